# `produce-gateway audit top`: its options. Manners and exit codes are cli.py's.

from __future__ import annotations

import argparse
from typing import Final

from gateway.audit import cli
from gateway.audit.answers.options import add_answer_options
from gateway.audit.cli import SourceOptions
from gateway.audit.report import top
from gateway.audit.report.top import RankingOptions
from policies import usage

RANKED_SUMS: Final = ("dropped", "rejected", "delayed", "errored", "offered", "accepted")

_EPILOG: Final = """\
what:
  dropped    bytes that never got in: rejected and not sent again, dropped, or discarded (≤: an upper bound)
  rejected   bytes of rejected attempts; a client that sends again counts again
  delayed    bytes that had to wait for a limit
  errored    bytes that brokers refused
  offered    all sent bytes; accepted: bytes that brokers took

exit codes: those of `produce-gateway audit`

example:
  produce-gateway audit top --tables ./audit --by client_id --what dropped --window 1h --limit 3
"""


def main(argv: list[str]) -> int:
    """Run it; `argv` begins with its name. Gives the exit code."""
    try:
        options = _make_parser().parse_args(argv[1:])
        reading = cli.check_source_options(options, cli.now_ms())
        by = cli.parse_choices("--by", options.by, usage.DIMENSIONS)
        if not by:
            cli.exit_wrong_use("--by: name the dimensions to rank")
        if options.limit < 1:
            cli.exit_wrong_use(f"--limit: {options.limit} is not a valid number of rows")
        wish = RankingOptions(cli.make_question(by, options, reading), options.what, options.limit)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    return cli.run_guarded(lambda: _print_ranking(reading, wish), needs_spark=False)


def _print_ranking(reading: SourceOptions, wish: RankingOptions) -> int:
    options = reading.options
    tell = cli.make_progress_printer(options.quiet)
    with cli.open_counted_records(reading, wish.query, tell) as records:
        return cli.deliver_answer(top.ranking_answer(top.rank_groups(records, wish, tell)), options, tell)


def _make_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser("top", "The clients with most dropped, rejected, delayed … bytes.", _EPILOG)
    add = parser.add_argument
    add("--by", default="client_id", metavar="A,B", help=f"any of {', '.join(usage.DIMENSIONS)} (%(default)s)")
    add("--what", choices=RANKED_SUMS, default="dropped", help="the sum to rank by (%(default)s)")
    add("--limit", type=int, default=10, metavar="N", help="number of rows to show, of each window (%(default)s)")
    cli.add_window_options(parser, "the top of each")
    add_answer_options(parser)
    cli.add_source_options(parser)
    cli.add_engine_option(parser)
    return parser
