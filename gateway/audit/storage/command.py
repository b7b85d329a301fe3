# `produce-gateway audit storage`: its options. Manners and exit codes are cli.py's.

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.audit import cli
from gateway.audit.answers.options import add_format_option, render_document
from gateway.audit.batch.query import AuditQuery
from policies.units import parse_size

if TYPE_CHECKING:
    from gateway.audit.storage.filling import VolumeOptions, VolumeReport

_EPILOG: Final = """\
The usage log notes volumes, and where the busiest topics have replicas, about once a minute while storage protection is
on. What was there before the first note counts as staying, so a retention that is recommended is short enough.

exit codes: those of `produce-gateway audit`

examples:
  produce-gateway audit storage --tables ./audit --from 7d --window 1h
  produce-gateway audit storage --bootstrap-servers kafka:9092 --from 1d --keep-free 100GB --over-time
"""


def main(argv: list[str]) -> int:
    """Run it; `argv` begins with its name. Gives the exit code."""
    try:
        work = _prepare_report(_make_parser().parse_args(argv[1:]))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    return cli.run_guarded(work, needs_spark=False)


def _make_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser(
        "storage",
        "What fills the brokers' volumes, and which retention would have kept them below their limits.",
        _EPILOG,
    )
    add = parser.add_argument
    add(
        "--window",
        default="10m",
        metavar="DURATION",
        help="of sums over time, and the step of retention.ms (%(default)s)",
    )
    add("--keep-free", metavar="SIZE", help="bytes that had to stay free; without it, each volume's hard limit")
    add("--over-time", action="store_true", help="a row for each volume and window as well")
    add_format_option(parser)
    cli.add_source_options(parser)
    cli.add_engine_option(parser)
    return parser


def _prepare_report(options: argparse.Namespace) -> Callable[[], int]:
    reading = cli.check_source_options(options, cli.now_ms())
    window_ms = cli.parse_duration_ms("--window", options.window)
    keep_free = None
    if options.keep_free is not None:
        try:
            keep_free = round(parse_size(options.keep_free))
        except ValueError as error:
            cli.exit_wrong_use(f"--keep-free: {error}")
    tell = cli.make_progress_printer(options.quiet)

    def work() -> int:
        from gateway.audit.storage import text
        from gateway.audit.storage.filling import VolumeOptions

        wish = VolumeOptions(window_ms, reading.start_ms, reading.end_ms, keep_free, reading.time_zone)
        report = _report_volumes(reading, wish, tell)
        shown = render_document(
            text.volumes_json(report), options.format, lambda: text.volumes_text(report, options.over_time)
        )
        return cli.print_result(shown, cli.INCOMPLETE if options.strict and not report.integrity.complete else cli.OK)

    return work


def _report_volumes(reading: cli.SourceOptions, wish: VolumeOptions, tell: Callable[[str], None]) -> VolumeReport:
    """What the sources' records say, in the engine that the options name or that suits them."""
    from gateway.audit.storage.filling import make_report
    from gateway.audit.storage.local_counts import VolumeCollector

    question = AuditQuery((), None, wish.from_ms, wish.to_ms)
    # No roll-up knows disks: tables are read record by record, as for a replay.
    found = cli.open_local_records(reading, reading.start_ms, replays=bool(reading.options.tables))
    if found is not None:
        counts = found.collect(lambda: VolumeCollector(wish), question, tell).make_counts()
        return make_report(counts, wish, found.sources, found.find_gaps(question, tell))
    cli.check_spark("this audit")
    from gateway.audit.batch import job
    from gateway.audit.storage import spark_counts

    with cli.open_records_within(reading, tell) as records:
        counts = spark_counts.count_volumes(records, wish, tell)
        return make_report(counts, wish, records.sources, job.find_gaps(records, question, tell))
