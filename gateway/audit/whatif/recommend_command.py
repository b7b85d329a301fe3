# `produce-gateway audit recommend`: its options. The same manners as cli.py: the document goes to stdout, and PySpark
# is imported only after the options are known to be right.

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final

from gateway.audit import cli
from policies.units import parse_size

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
        work = _recommend(_parser().parse_args(argv[1:]))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    return cli.guarded(work)


def _parser() -> argparse.ArgumentParser:
    parser = cli.new_parser("recommend", "Thresholds for topics from recorded usage, under a total.", _EPILOG)
    add = parser.add_argument
    add("--total", required=True, metavar="SIZE", help="of each broker, per second: 20MB; never more is given out")
    add("--percentile", type=float, default=99.0, metavar="P", help="of a topic's rates (%(default)g)")
    add("--window", default="1m", metavar="DURATION", help="over which rates are taken (%(default)s)")
    add("--headroom", default="20%", metavar="SHARE", help="above that, 20%% or 0.2 (%(default)s)")
    add("--min", default="0", metavar="SIZE", help="per second, for each topic at least (%(default)s)")
    add("--reserve", default="5%", metavar="SHARE", help="of the total, for topics without a threshold (%(default)s)")
    add("--format", choices=("yaml", "json"), default="yaml")
    cli.add_sources(parser)
    return parser


def _recommend(options: argparse.Namespace) -> Callable[[], int]:
    reading = cli.checked_sources(options, cli.now_ms())
    total = _size("--total", options.total)
    if total <= 0:
        cli.refuse("--total: above 0 is needed")
    if not 0 < options.percentile <= 100:
        cli.refuse(f"--percentile: {options.percentile:g} is none: above 0, at most 100")
    headroom, reserve = _share("--headroom", options.headroom), _share("--reserve", options.reserve)
    if reserve >= 1:
        cli.refuse(f"--reserve: {options.reserve} leaves nothing of the total")
    window_ms = cli.duration("--window", options.window)
    least = _size("--min", options.min)
    tell = cli.teller(options.quiet)

    def work() -> int:
        from gateway.audit.batch import job, tables, transforms
        from gateway.audit.whatif import recommend

        wish = recommend.Wish(total, options.percentile, headroom, least, reserve, window_ms)
        question = job.Question((), None, reading.start_ms, reading.end_ms)
        with cli.opened(reading, tell) as records:
            tell("looking for the busiest times")
            rows = transforms.within(records.rows, reading.start_ms, reading.end_ms)
            topics = recommend.busiest(rows, wish)
            integrity = job.find_gaps(records, question, tell)
        try:
            advice = recommend.advise(topics, wish)
        except recommend.CannotAdvise as error:
            return cli.fail(str(error))
        if options.format == "json":
            made = recommend.as_json(advice, wish)
            text = tables.dumps({**made, "sources": records.about, "integrity": tables.integrity_json(integrity)})
        else:
            text = recommend.as_yaml(advice, wish, integrity.complete).rstrip("\n")
        return cli.put(text, cli.INCOMPLETE if options.strict and not integrity.complete else cli.OK)

    return work


def _size(name: str, text: str) -> float:
    try:
        return float(parse_size(text))
    except ValueError as error:
        cli.refuse(f"{name}: {error}")


def _share(name: str, text: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(%?)", text)
    if not found:
        cli.refuse(f"{name}: {text!r} is no share: write for example 20% or 0.2")
    return float(found[1]) / (100 if found[2] else 1)
