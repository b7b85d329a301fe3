# `produce-gateway audit recommend`: its options. The same manners as cli.py: the document goes to stdout, and
# what answers is imported only after the options are known to be right.

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gateway.audit import cli
from gateway.audit.answers.answer import dump_json
from gateway.audit.answers.options import add_format_option
from policies.units import parse_size

if TYPE_CHECKING:
    from gateway.audit.batch.query import CountedRecords
    from gateway.audit.cli import SourceOptions
    from gateway.audit.whatif.recommend import RecommendOptions, TopicRate

_EPILOG: Final = """\
The command prints a document that `produce-gateway policies apply` takes, with the reasons as comments:
  produce-gateway audit recommend --total 20MB --tables ./audit --from 7d > wish.yaml
  produce-gateway audit what-if gateway.yaml --apply wish.yaml --tables ./audit --from 7d
  produce-gateway policies apply wish.yaml

exit codes: 0 done; 1 it could not be done (one line on stderr says why); 2 wrong options; 3 with --strict, when
something is missing from the records.
"""


def main(argv: list[str]) -> int:
    """`argv` begins with the command's name; gives the exit code."""
    try:
        work = _prepare_recommendation(_make_parser().parse_args(argv[1:]))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    return cli.run_guarded(work, needs_spark=False)


def _make_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser("recommend", "Thresholds for topics from recorded usage, under a total.", _EPILOG)
    add = parser.add_argument
    add("--total", required=True, metavar="SIZE", help="of each broker, per second: 20MB; never more is given out")
    add("--percentile", type=float, default=99.0, metavar="P", help="of a topic's rates (%(default)g)")
    add("--window", default="1m", metavar="DURATION", help="over which rates are taken (%(default)s)")
    add("--headroom", default="20%", metavar="SHARE", help="above that, 20%% or 0.2 (%(default)s)")
    add("--min", default="0", metavar="SIZE", help="per second, for each topic at least (%(default)s)")
    add("--reserve", default="5%", metavar="SHARE", help="of the total, for topics without a threshold (%(default)s)")
    add_format_option(parser, ("yaml", "json"))
    cli.add_source_options(parser)
    cli.add_engine_option(parser)
    return parser


def _prepare_recommendation(options: argparse.Namespace) -> Callable[[], int]:
    reading = cli.check_source_options(options, cli.now_ms())
    total = _parse_size_option("--total", options.total)
    if total <= 0:
        cli.exit_wrong_use("--total: above 0 is needed")
    if not 0 < options.percentile <= 100:
        cli.exit_wrong_use(f"--percentile: {options.percentile:g} is not a valid percentile: above 0, at most 100")
    headroom, reserve = _parse_share("--headroom", options.headroom), _parse_share("--reserve", options.reserve)
    if reserve >= 1:
        cli.exit_wrong_use(f"--reserve: {options.reserve} leaves nothing of the total")
    window_ms = cli.parse_duration_ms("--window", options.window)
    least = _parse_size_option("--min", options.min)
    tell = cli.make_progress_printer(options.quiet)

    def work() -> int:
        from gateway.audit.batch import tables
        from gateway.audit.batch.query import AuditQuery
        from gateway.audit.whatif import recommend

        wish = recommend.RecommendOptions(total, options.percentile, headroom, least, reserve, window_ms)
        question = AuditQuery((), None, reading.start_ms, reading.end_ms)
        with _open_rates(reading, wish, tell) as (rates, records):
            topics = recommend.find_peaks(rates, wish)
            integrity = records.find_gaps(question, tell)
            sources = records.sources
        try:
            advice = recommend.advise_thresholds(topics, wish)
        except recommend.InfeasibleThresholds as error:
            return cli.report_failure(str(error))
        if options.format == "json":
            made = recommend.advice_json(advice, wish)
            text = dump_json({**made, "sources": sources, "integrity": tables.integrity_json(integrity)})
        else:
            text = recommend.advice_yaml(advice, wish, integrity.complete).rstrip("\n")
        return cli.print_result(text, cli.INCOMPLETE if options.strict and not integrity.complete else cli.OK)

    return work


@contextmanager
def _open_rates(
    reading: SourceOptions, wish: RecommendOptions, tell: Callable[[str], None]
) -> Iterator[tuple[list[TopicRate], CountedRecords]]:
    """The rates of the sources' records in either engine, and these themselves."""
    from gateway.audit.whatif import recommend

    bounds = (reading.start_ms, reading.end_ms)
    found = cli.open_local_records(reading, reading.start_ms)
    if found is not None:
        with found.open_groups(recommend.rate_question(wish, *bounds), tell) as rows:
            yield recommend.measure_rates(rows, wish), found
        return
    cli.check_spark("this recommendation")
    from gateway.audit.batch import transforms
    from gateway.audit.whatif import rates

    with cli.open_records_within(reading, tell) as records:
        tell("looking for the busiest times")
        yield rates.measure_rates(transforms.filter_by_start(records.rows, *bounds), wish), records


def _parse_size_option(name: str, text: str) -> float:
    try:
        return float(parse_size(text))
    except ValueError as error:
        cli.exit_wrong_use(f"{name}: {error}")


def _parse_share(name: str, text: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(%?)", text)
    if not found:
        cli.exit_wrong_use(f"{name}: {text!r} is not a valid share: write for example 20% or 0.2")
    return float(found[1]) / (100 if found[2] else 1)
