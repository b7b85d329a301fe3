# `produce-gateway audit report`: its options, and the file. Manners and exit codes are cli.py's.

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from gateway.audit import cli
from gateway.audit.answers.files import is_stdout, replace_file
from gateway.audit.answers.options import find_path_fault
from gateway.audit.cli import SourceOptions

_EPILOG: Final = """\
The file needs nothing else: no network, no script; open it in any browser, or print it. The same records give the same
bytes, unless --stamp is given.

exit codes: those of `produce-gateway audit`

example:
  produce-gateway audit report --tables ./audit --from 24h --output report.html
"""


def main(argv: list[str]) -> int:
    """Run it; `argv` begins with its name. Gives the exit code."""
    now_ms = cli.now_ms()
    try:
        options = _make_parser().parse_args(argv[1:])
        reading = cli.check_source_options(options, now_ms)
        for name, number in (("--topics", options.topics), ("--clients", options.clients)):
            if number < 1:
                cli.exit_wrong_use(f"{name}: {number} is not a valid number of rows")
        output = Path(options.output)
        if fault := find_path_fault(output):
            cli.exit_wrong_use(f"--output: {fault}")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    if importlib.util.find_spec("matplotlib") is None:
        return cli.report_failure("the report needs matplotlib: pip install 'produce-gateway[audit-report]'")
    return cli.run_guarded(lambda: _write_report(reading, output, now_ms), needs_spark=False)


def _write_report(reading: SourceOptions, output: Path, now_ms: int) -> int:
    from gateway.audit.report import page, report

    options = reading.options
    tell = cli.make_progress_printer(options.quiet)
    before_ms = reading.start_ms
    if before_ms is not None:  # as long a time before is read as well, to be compared with
        before_ms -= (now_ms if reading.end_ms is None else reading.end_ms) - before_ms
    with cli.open_counted_records(replace(reading, start_ms=before_ms), None, tell) as records:
        bounds = (reading.start_ms, reading.end_ms)
        shown = (options.topics, options.clients)
        facts = report.gather_facts(records, *bounds, *shown, tell, now_ms, reading.time_zone)
    tell("drawing")
    goes_to_stdout = is_stdout(output)
    try:
        with replace_file(output) as file:
            size = file.write(page.render_page(facts, now_ms if options.stamp else None).encode())
    except OSError as error:
        return cli.report_failure(f"--output: {output}: {error.strerror}")
    complete = facts.integrity.complete
    verdict = "complete" if complete else "NOT COMPLETE, it names the gaps"
    line, code = f"{output}: {size:,} bytes, {verdict}", cli.INCOMPLETE if options.strict and not complete else cli.OK
    return cli.print_lines([line], code, sys.stderr if goes_to_stdout else None)


def _make_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser(
        "report",
        "Writes one HTML file with plots: traffic by client and topic, refusals with reasons, and whether it adds up.",
        _EPILOG,
    )
    add = parser.add_argument
    add("--output", required=True, metavar="FILE", help="the HTML file; one of that name is replaced")
    add("--topics", type=int, default=25, metavar="N", help="topics by name, the others together (%(default)s)")
    add("--clients", type=int, default=20, metavar="N", help="clients by name, the others together (%(default)s)")
    add("--stamp", action="store_true", help="say in it when it was made")
    cli.add_source_options(parser)
    cli.add_engine_option(parser)
    return parser
