# `produce-gateway audit cost`, `episodes`, `slo` and `trend`: their options. Manners and exit codes are cli.py's.

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from gateway.audit import cli
from gateway.audit.answers.options import add_answer_options
from gateway.audit.answers.windows import QUARTER_HOUR_MS
from gateway.audit.batch import tables
from gateway.audit.batch.query import AuditQuery, LogIntegrity, stream_report
from gateway.audit.cli import SourceOptions
from gateway.audit.questions import cost, episodes, prices, slo, trend
from gateway.audit.questions.answering import AnsweredQuestion, make_answer
from policies import usage

_EXIT_CODES: Final = "exit codes: those of `produce-gateway audit`"
_COST_EPILOG: Final = f"""\
price file, as YAML or as CSV (per_gb,group,topic,principal,currency); the first price that matches holds:
  currency: EUR
  charged: accepted          or any other sum of the audit
  digits: 2
  prices:
    - {{per_gb: 0.02, group: batch-*}}
    - {{per_gb: 0.10}}

{_EXIT_CODES}

example:
  produce-gateway audit cost --tables ./audit --prices prices.yaml --from 2026-11-01 --to 2026-12-01 \\
    --time-zone Europe/Berlin --output invoice.csv
"""
_EPISODES_EPILOG: Final = f"""\
An episode begins with refused bytes. It ends when all of them were sent again and taken (`accepted`), or ten minutes
after the last refusal or repeat (`dropped`); `open`: the records end earlier.

{_EXIT_CODES}

example:
  produce-gateway audit episodes --tables ./audit --from 24h
"""
_TREND_EPILOG: Final = f"""\
Of the mean, a straight line, and one with a level for each weekday, that holds which was closest in the last quarter of
the windows; `error bytes`: how far it was off there, on average. Windows that bounds or records cut don't count.
What is seen ends with the last record, or with --to: windows before it in which there was no traffic have 0.

{_EXIT_CODES}

example:
  produce-gateway audit trend --tables ./audit --by group --window week --ahead 13
"""
_SLO_EPILOG: Final = f"""\
A step is within limits if none of its bytes was rejected, dropped or delayed. The usage log has sums of waits, so the
99th percentile is a bound that follows from them.

{_EXIT_CODES}

example:
  produce-gateway audit slo --tables ./audit --by group,topic --window month --target 99.9
"""


def main(argv: list[str]) -> int:
    """Run one of them; `argv` begins with its name. Gives the exit code."""
    make_parser, prepare = _COMMANDS[argv[0]]
    try:
        options = make_parser().parse_args(argv[1:])
        work = prepare(options, cli.check_source_options(options, cli.now_ms()))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    return cli.run_guarded(work, needs_spark=False)


def _make_cost_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser("cost", "What tenants owe for their bytes, by a price file.", _COST_EPILOG)
    parser.add_argument("--prices", required=True, metavar="FILE", help="what a GB costs")
    _add_common(parser, "group", "a line for each", "month")
    return parser


def _make_episodes_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser("episodes", "Refused bytes: who, when, why, and what became of them.", _EPISODES_EPILOG)
    parser.add_argument("--step", default="1m", metavar="DURATION", help="how exact times are (%(default)s)")
    _add_sources(parser)
    return parser


def _make_slo_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser("slo", "The share of time in which tenants were within their limits.", _SLO_EPILOG)
    add = parser.add_argument
    add("--step", default="1m", metavar="DURATION", help="whose share is told; up to 15m (%(default)s)")
    add("--target", metavar="PERCENT", help="the share that is promised")
    _add_common(parser, "group", "a row for each", None)
    return parser


def _make_trend_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser("trend", "Past sums, and a forecast with the error that it had of late.", _TREND_EPILOG)
    add = parser.add_argument
    add("--what", choices=("accepted", "offered", "rejected"), default="accepted", help="the sum (%(default)s)")
    add("--ahead", type=int, default=30, metavar="N", help="windows to foretell (%(default)s)")
    add("--window", choices=trend.UNITS, default="day", help="whole ones (%(default)s)")
    _add_dimensions(parser, "")
    _add_sources(parser)
    return parser


_Answered = tuple[list[dict[str, Any]], dict[str, Any], list[str]]  # rows, further fields of the JSON, notes
_MAX_AHEAD: Final = 1000
_MAX_STEP_MS: Final = QUARTER_HOUR_MS


def _add_common(parser: argparse.ArgumentParser, by: str, what: str, window: str | None) -> None:
    _add_dimensions(parser, by)
    cli.add_window_options(parser, what, window)
    _add_sources(parser)


def _add_dimensions(parser: argparse.ArgumentParser, by: str) -> None:
    known = ", ".join(usage.DIMENSIONS)
    parser.add_argument("--by", default=by, metavar="A,B", help=f"any of {known} ({by or 'one sum'})")


def _add_sources(parser: argparse.ArgumentParser) -> None:
    add_answer_options(parser)
    cli.add_source_options(parser)
    cli.add_engine_option(parser)


def _prepare_cost(options: argparse.Namespace, reading: SourceOptions) -> Callable[[], int]:
    path = Path(options.prices)
    try:
        found = prices.parse_prices(path.read_text(encoding="utf-8-sig"), path.suffix == ".csv")
    except (OSError, UnicodeDecodeError) as error:
        cli.exit_wrong_use(f"--prices: {path}: {error.strerror if isinstance(error, OSError) else error}")
    except prices.InvalidPrices as error:
        cli.exit_wrong_use(f"--prices: {path}: {error}")
    question = _parse_question(options, reading)

    def answer(rows: Iterable[dict[str, Any]], _: LogIntegrity) -> _Answered:
        lines = cost.make_lines(rows, question, found)
        total = cost.total_lines(lines)
        about = {"charged": found.charged, "currency": found.currency, "totals": total}
        notes = [f"total {total['amount']:,} {found.currency} for {total['bytes']:,} {found.charged} bytes"]
        if total["unpriced_bytes"]:
            notes.append(f"UNPRICED  {total['unpriced_bytes']:,} bytes match no price of {path}")
        return lines, {**tables.question_json(question), **about}, notes

    asked = cost.cost_question(question, found)
    return lambda: _answer(reading, asked, question.by, cost.cost_kinds(question.by), answer)


def _prepare_episodes(options: argparse.Namespace, reading: SourceOptions) -> Callable[[], int]:
    step = cli.parse_duration_ms("--step", options.step)
    question = AuditQuery(episodes.BY, step, reading.start_ms, reading.end_ms)

    def answer(rows: Iterable[dict[str, Any]], trust: LogIntegrity) -> _Answered:
        each_one = episodes.find_episodes(rows, step, sees_repeats=trust.sees_repeats, zone=reading.time_zone)
        found = sorted(each_one, key=lambda each: [each[name] for name in _EPISODE_ORDER])
        return found, {"step_ms": step, "from_ms": reading.start_ms, "to_ms": reading.end_ms}, []

    return lambda: _answer(reading, question, episodes.WHOSE, episodes.KINDS, answer)


_EPISODE_ORDER: Final = ("start_ms", *episodes.WHOSE)


def _prepare_slo(options: argparse.Namespace, reading: SourceOptions) -> Callable[[], int]:
    step = cli.parse_duration_ms("--step", options.step)
    question = _parse_question(options, reading)
    whole = question.window_ms or _MAX_STEP_MS
    if step > _MAX_STEP_MS:
        cli.exit_wrong_use(f"--step: {options.step} is more than 15m")
    if whole % step:
        cli.exit_wrong_use(f"--step: {options.step} has to divide {'--window' if question.window_ms else '15m'}")
    target = None if options.target is None else _parse_percent("--target", options.target)
    steps = AuditQuery(question.by, step, reading.start_ms, reading.end_ms)

    def answer(rows: Iterable[dict[str, Any]], _: LogIntegrity) -> _Answered:
        levels = slo.measure_levels(rows, question, target)
        share = None if target is None else float(target)
        return levels, {**tables.question_json(question), "step_ms": step, "target_share": share}, []

    return lambda: _answer(reading, steps, question.by, slo.slo_kinds(question), answer)


def _parse_percent(name: str, text: str) -> Fraction:
    """The share, exactly."""
    try:
        is_share = 0 < float(text) <= 100
    except ValueError:
        is_share = False
    if not is_share:
        cli.exit_wrong_use(f"{name}: {text} is not a share between 0 and 100 percent")
    return Fraction(text) / 100


def _parse_question(options: argparse.Namespace, reading: SourceOptions) -> AuditQuery:
    return cli.make_question(cli.parse_choices("--by", options.by, usage.DIMENSIONS), options, reading)


def _answer(
    reading: SourceOptions,
    question: AuditQuery,
    by: tuple[str, ...],
    kinds: dict[str, type],
    answer: Callable[[Iterable[dict[str, Any]], LogIntegrity], _Answered],
) -> int:
    """Ask for sums and deliver what `answer` makes of them, by `by`: rows, further fields of the JSON, notes."""
    tell = cli.make_progress_printer(reading.options.quiet)
    with cli.open_counted_records(reading, question, tell) as records, stream_report(records, question, tell) as report:
        rows, about, notes = answer(report.rows, report.integrity)
        about = {"by": list(by), **about}
        read = (reading.start_ms, report.sources, report.integrity)
        found = AnsweredQuestion(*read, kinds, rows, about, notes, reading.time_zone)
        return cli.deliver_answer(make_answer(found), reading.options, tell)


def _prepare_trend(options: argparse.Namespace, reading: SourceOptions) -> Callable[[], int]:
    question, now_ms = _parse_question(options, reading), cli.now_ms()
    # A window that goes on still is not whole, whatever the bounds say.
    seen = replace(question, to_ms=question.to_ms and min(question.to_ms, now_ms))
    if not 0 <= options.ahead <= _MAX_AHEAD:
        cli.exit_wrong_use(f"--ahead: {options.ahead} is not between 0 and {_MAX_AHEAD} windows")

    def answer(rows: Iterable[dict[str, Any]], _: LogIntegrity) -> _Answered:
        found = trend.tell_trend(rows, seen, options.what, options.ahead)
        few = f"no forecast: it takes {trend.MIN_WINDOWS} whole {options.window}s"
        is_told = any(row["kind"] == trend.FORECAST for row in found) or not options.ahead
        return found, {**tables.question_json(question), "what": options.what}, [] if is_told else [few]

    return lambda: _answer(reading, question, question.by, trend.trend_kinds(question.by), answer)


_COMMANDS: Final = {
    "trend": (_make_trend_parser, _prepare_trend),
    "cost": (_make_cost_parser, _prepare_cost),
    "episodes": (_make_episodes_parser, _prepare_episodes),
    "slo": (_make_slo_parser, _prepare_slo),
}
