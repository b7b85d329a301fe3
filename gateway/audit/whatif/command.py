# `produce-gateway audit what-if`: its options, and what of a configuration file can be replayed. The same manners as
# cli.py: what answers is imported only after the options and the file are known to be right.

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway import config
from gateway import policy_document as document
from gateway.audit import cli
from gateway.audit.answers.options import add_format_option, render_document
from gateway.audit.answers.windows import time_text
from gateway.audit.whatif import history
from gateway.secret_key import ROLLOUT_PURPOSE, derive_key, find_secret
from policies.definitions.policy_set import PolicySet
from policies.definitions.rollout import ALL_CLIENTS
from policies.whatif.replay import WARM_UP_S
from policies.whatif.rows import ReplayRules
from policies.whatif.timetable import TimedChange, build_timetable

if TYPE_CHECKING:
    from gateway.audit.cli import SourceOptions
    from gateway.audit.whatif.whatif import ReplayableRecords

GROUP_DIMENSIONS: Final = ("broker", "topic", "principal", "client_id")
MAX_UNEXPLAINED: Final = 0.1  # of an outcome's bytes: further off than a replay of the policies in force is
_DESCRIPTION: Final = (
    "A policy's would-be effect on the recorded usage: the clients rejected or delayed, and the bytes."
)
_EPILOG: Final = """\
POLICY is a gateway's configuration file: its thresholds, client_quotas and resource_groups are replayed, and
enforced in any mode. With --history the changes at run time hold from their times on, as they did; the file of it is
the output of `produce-gateway policies history --limit 1000 -o json`. With --apply a document of `produce-gateway
policies` stands over all of that.

exit codes: 0 done; 1 it could not be done, or POLICY is wrong; 2 wrong options; 3 with --strict, when something is
missing.

examples:
  produce-gateway audit what-if gateway.yaml --bootstrap-servers localhost:9092 --from 1d
  produce-gateway audit what-if gateway.yaml --apply wish.yaml --tables ./audit --by topic --window 1m --format json
  produce-gateway audit what-if gateway.yaml --history history.json --apply wish.yaml --spool /var/lib/gateway/spool
"""


def main(argv: list[str]) -> int:
    """`argv` begins with the command's name; gives the exit code."""
    try:
        options = _make_parser().parse_args(argv[1:])
        work = _prepare_what_if(options)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    except config.ConfigError as error:
        return _print_errors(error.lines)
    except document.DocumentError as error:
        return _print_errors(error.lines)
    return cli.run_guarded(work, needs_spark=False)


def _make_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser("what-if", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("policy", metavar="POLICY", type=Path, help="the configuration file of a gateway")
    add("--apply", metavar="FILE", type=Path, help="a document as `produce-gateway policies apply` takes it")
    add("--history", metavar="FILE", type=Path, help="changes at run time, as `policies history -o json` prints them")
    add(
        "--by",
        default="topic",
        metavar="A,B",
        help=f"any of {', '.join(GROUP_DIMENSIONS)}; empty for one sum (%(default)s)",
    )
    add("--window", metavar="DURATION", help="rows per 1m, 1h, 1d …")
    add_format_option(parser)
    add("--topics", type=int, metavar="N", help="topics that each broker leads, for implicit thresholds (as recorded)")
    add("--delivery-timeout", default="2m", metavar="DURATION", help="after which clients give up (%(default)s)")
    cli.add_source_options(parser)
    cli.add_engine_option(parser)
    return parser


def _prepare_what_if(options: argparse.Namespace) -> Callable[[], int]:
    reading = cli.check_source_options(options, cli.now_ms())
    by = cli.parse_choices("--by", options.by, GROUP_DIMENSIONS)
    window = cli.parse_duration_ms("--window", options.window) if options.window is not None else None
    patience = cli.parse_duration_ms("--delivery-timeout", options.delivery_timeout)
    if options.topics is not None and options.topics < 1:
        cli.exit_wrong_use(f"--topics: {options.topics} is not a valid number of topics")
    settings = config.load_settings(options.policy)
    past, wish = _read_history(options.history), _read_document(options.apply)
    rules, warnings = make_rules(settings, wish, patience / 1000, past)
    baseline = make_rules(settings, {}, patience / 1000, past)[0] if wish or past else None
    of_baseline = _baseline_text(options, past, reading.time_zone)
    secret = find_secret(settings)
    key = None if secret is None else derive_key(secret, ROLLOUT_PURPOSE)
    name = str(options.policy if options.apply is None else options.apply)
    tell = cli.make_progress_printer(options.quiet)

    def work() -> int:
        from gateway.audit.batch import tables
        from gateway.audit.batch.query import AuditQuery
        from gateway.audit.whatif import text as whatif_text
        from gateway.audit.whatif import whatif

        question = AuditQuery(by, window, reading.start_ms, reading.end_ms, time_zone=reading.time_zone)
        with _open_usage(reading, tell) as records:
            answer = whatif.evaluate_policy(
                records,
                rules,
                question,
                topics=options.topics,
                baseline=baseline if is_enforced(settings) else None,
                tell=tell,
            )
            integrity = records.find_gaps(question, tell)
            if not integrity.sees_repeats and whatif.has_rejections(answer):
                answer = replace(answer, unknown=True)
            notes = [*warnings, *_uncertainty_notes(answer, rules, options.topics), *_unexplained_notes(answer, past)]
            about = {"policy": name, "baseline": of_baseline, "sources": records.sources, "warnings": notes}

        def show_text() -> str:
            said = "".join(f"note: {warning}\n" for warning in notes)
            trust = tables.integrity_text(integrity, records.sources, question.from_ms, question.zone)
            return f"{whatif_text.what_if_text(answer, name)}\n\nbaseline: {of_baseline}\n{said}{trust}"

        document = whatif_text.what_if_json(answer, {**about, "integrity": tables.integrity_json(integrity)}, key)
        text = render_document(document, options.format, show_text)
        return cli.print_result(text, cli.INCOMPLETE if options.strict and not integrity.complete else cli.OK)

    return work


@contextmanager
def _open_usage(reading: SourceOptions, tell: Callable[[str], None]) -> Iterator[ReplayableRecords]:
    """The sources' records in either engine; what their replay needs before the first bound is read as well."""
    warmed = replace(reading, start_ms=reading.start_ms and reading.start_ms - round(WARM_UP_S * 1000))
    found = cli.open_local_records(warmed, warmed.start_ms, replays=True)
    if found is not None:
        from gateway.audit.whatif.local_reading import LocalUsage

        yield LocalUsage(found)
        return
    cli.check_spark("this what-if")
    from gateway.audit.whatif import reading as spark_reading

    ways = cli.RecordReaders(
        spark_reading.read_pieces,
        spark_reading.read_table_pieces,
        spark_reading.prestart_workers,
        cli.find_gaps_within(warmed),
    )
    with cli.open_records_with(ways, warmed, tell) as records:
        yield records


def is_enforced(settings: config.Settings) -> bool:
    """Whether all limits of the file were enforced for all clients, so that the records show what they did."""
    return "observe" not in _policy_modes(settings) and min(settings.rollout) >= ALL_CLIENTS


def _policy_modes(settings: config.Settings) -> set[str]:
    groups = settings.resource_groups
    return {settings.mode, settings.thresholds.mode, settings.client_quotas_mode, groups.mode}


def make_rules(
    settings: config.Settings, wish: dict[Any, Any], delivery_s: float, past: Sequence[TimedChange] = ()
) -> tuple[ReplayRules, list[str]]:
    """What can be replayed of a file, of the `past` changes at run time, and of a wish; and notes on the rest."""
    values, later = build_timetable(settings.policy_values(), past, wish)
    groups = settings.resource_groups
    rules = ReplayRules(
        values,
        settings.thresholds.on_exceed,
        groups.topic_pattern,
        groups.principal_pattern,
        frozenset(settings.internal.principals),
        frozenset(settings.internal.client_ids),
        frozenset((each.principal, each.client_id) for each in settings.internal.clients),
        delivery_s=delivery_s,
        later=later,
    )
    found = []
    if "observe" in _policy_modes(settings):
        found.append("mode observe: this is the policies' effect if they were enforced")
    elif min(settings.rollout) < ALL_CLIENTS:
        found.append(
            "enforce_percent: this is what the policies would do if they were enforced for all clients; each client's"
            " part of it holds as soon as it is among those for whom they are (place in --format json)"
        )
    if settings.thresholds.source:
        found.append(f"thresholds.source {settings.thresholds.source}: its decisions are not known here")
    if settings.policies:
        found.append("policies of your own are not replayed: the bytes that they rejected stay rejected")
    if any(key.kind == "quota" and key.quota_key.type == "request_percentage" for key in values):
        found.append("request_percentage is not replayed: records don't say how long requests took")
    if settings.thresholds.burst:
        found.append("thresholds.burst is not replayed: what thresholds reject for their one-minute rates alone is")
    if settings.acks0 == "drop":
        found.append("acks0 drop: requests with acks=0 are replayed as if they waited")
    return rules, found


def _read_document(path: Path | None) -> dict[Any, Any]:
    if path is None:
        return {}
    try:
        return dict(document.parse_document(path.read_text("utf-8"), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        cli.exit_wrong_use(f"--apply: {path}: {error.strerror if isinstance(error, OSError) else error}")


def _read_history(path: Path | None) -> list[TimedChange]:
    if path is None:
        return []
    try:
        return history.parse_history(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, history.InvalidHistory) as error:
        cli.exit_wrong_use(f"--history: {path}: {error.strerror if isinstance(error, OSError) else error}")


def _baseline_text(options: argparse.Namespace, past: Sequence[TimedChange], zone: str) -> str:
    """The policies that the answer starts from."""
    if options.history is None:
        return f"{options.policy} alone, without changes at run time (--history)"
    if not past:
        return f"{options.policy}; {options.history} has no change at run time"
    first, last = (time_text(pick(each.at_ms for each in past), zone) for pick in (min, max))
    count = f"{len(past):,} change{'' if len(past) == 1 else 's'}"
    return f"{options.policy}, with {count} at run time from {first} to {last} ({options.history})"


def _unexplained_notes(answer: Any, past: Sequence[TimedChange]) -> list[str]:
    """Whether the baseline alone would have given something else than what happened: then the answer is about more than
    the wish.
    """
    off = answer.baseline_deviation
    if off is None or off.share <= MAX_UNEXPLAINED:
        return []
    remedy = (
        "was the file another one then, or is its history longer than what was given?"
        if past
        else "policies were changed at run time, or the file was another one: give --history"
    )
    return [
        f"the baseline doesn't explain the records: by it alone {off.what_if:,} bytes would be {off.outcome}, and"
        f" really {off.actual:,} were: {remedy}"
    ]


def _uncertainty_notes(answer: Any, rules: ReplayRules, topics: int | None) -> list[str]:
    """The questions that the records leave open."""
    found = []
    if answer.unknown:
        found.append(
            "some rejected bytes may have come again, which no record tells: the dropped bytes are an upper bound"
        )
    policies = PolicySet(rules.values)
    implicit = any(
        policies.broker_total(broker) is not None and count > len(policies.topic_thresholds())
        for broker, count in answer.topics_sharing.items()
    )
    if topics is None and implicit:
        shares = ", ".join(f"{count} on broker {broker}" for broker, count in sorted(answer.topics_sharing.items())[:5])
        found.append(f"topics without a threshold share the rest; counted are those with traffic ({shares}): --topics")
    return found


def _print_errors(lines: Any) -> int:
    for line in lines:
        print(line, file=sys.stderr)
    return cli.FAILED
