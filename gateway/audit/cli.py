# `produce-gateway audit …`: its options, exit codes and manners. The result goes to stdout and nothing else does; what
# is going on goes to stderr, a line each; an error is one line there. No arithmetic and no Spark in here: job.py is
# imported only after the options are known to be right, so that --help and a typing error cost no PySpark.

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TextIO, TypeVar
from zoneinfo import ZoneInfoNotFoundError

from gateway.audit.answers.answer import CSV, NDJSON, TABLE, AuditAnswer, render_answer
from gateway.audit.answers.options import add_answer_options
from gateway.audit.answers.windows import CALENDAR_UNITS, QUARTER_HOUR_MS, CalendarWindows, load_zone
from gateway.audit.batch.query import AuditQuery, stream_report
from gateway.audit.engines import AUTO, ENGINES, LOCAL, has_given_session
from gateway.cli_support.arguments import CommandParser
from gateway.kafka import topic_names
from gateway.name_hints import name_hint
from gateway.secret_key import read_secret
from policies import usage
from policies.units import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.audit.batch.job import AuditRecords, NumberedRecords
    from gateway.audit.batch.query import CountedRecords
    from gateway.audit.batch.spark_sources import AuditSource
    from gateway.audit.local.records import LocalRecords
    from gateway.audit.local.tables import LocalTables
    from gateway.audit.store import AuditTables

_Session = TypeVar("_Session")
_Read = TypeVar("_Read")

OK, FAILED, WRONG_USE, INCOMPLETE = 0, 1, 2, 3

_MAX_MS: Final = 10**17  # far beyond any record, and far below what a long holds
_FIRST_MS, _LAST_MS = 0, 32_503_680_000_000  # 1970 and 3000: no record is beyond them, no calendar ends before

_EPILOG = """\
exit codes: 0 done; 1 it could not be done (one line on stderr says why); 2 wrong options;
3 with --strict, when something is missing: a gap, a lost worker, malformed or contradictory records; or is too much:
intervals after a worker's last; or when there is no record at all.

examples:
  produce-gateway audit --bootstrap-servers localhost:9092 --by topic,principal --window 1m
  produce-gateway audit --spool ./spool --by topic,reason --format json
  produce-gateway audit --tables ./audit --by topic --window 1h

further commands, each with its own --help:
  stream     write the usage topic into tables, each record exactly once
  compact    few large files in place of the tables' many small ones
  expire     let go of old days
  top        the clients with most dropped, delayed, rejected … bytes
  what-if    a policy file's would-be effect on the recorded usage
  recommend  thresholds from usage, as `produce-gateway policies apply` takes them
  storage    what fills the brokers' volumes, and which retention would have kept them below their limits
  cost       what tenants owe, by a price file
  episodes   refused bytes: who, when, why, and what became of them
  slo        the share of time within limits
  trend      past sums, and a forecast with its error
  report     one HTML file with plots
  reconcile  whether the sums agree with the growth of the brokers' logs
"""

# The first argument picks it: module of this package whose `main(argv)` it is, `argv` with the name still in front.
COMMANDS: Final = {
    "stream": "stream.command",
    "compact": "stream.command",
    "expire": "stream.command",
    "top": "report.top_command",
    "what-if": "whatif.command",
    "recommend": "whatif.recommend_command",
    "storage": "storage.command",
    "report": "report.command",
    "cost": "questions.command",
    "episodes": "questions.command",
    "slo": "questions.command",
    "trend": "questions.command",
    "reconcile": "reconcile.command",
}


def main(argv: list[str]) -> int:
    """Run the audit with these arguments (without the program's name); gives the exit code."""
    if argv and argv[0] in COMMANDS:
        command = importlib.import_module(f"gateway.audit.{COMMANDS[argv[0]]}")
        return int(command.main(argv))
    try:
        if argv and not argv[0].startswith("-"):
            hint = name_hint(argv[0], COMMANDS)
            exit_wrong_use(f"{argv[0]!r} is not a command of the audit, and options begin with --; {hint}")
        options = _make_parser().parse_args(argv)
        question, reading = _check_options(options, now_ms())
    except SystemExit as stop:  # argparse has said what was wrong, or has shown its help
        return stop.code if isinstance(stop.code, int) else WRONG_USE
    return run_guarded(lambda: _run_audit(options, question, reading), needs_spark=False)


def _run_audit(options: argparse.Namespace, question: AuditQuery, reading: SourceOptions) -> int:
    from gateway.audit.batch import tables

    tell = make_progress_printer(options.quiet)
    with (
        open_counted_records(reading, question, tell) as records,
        stream_report(records, question, tell) as report,
    ):
        return deliver_answer(tables.report_answer(report, options.measure), options, tell)


def deliver_answer(answer: AuditAnswer, options: argparse.Namespace, tell: Callable[[str], None]) -> int:
    """Print the answer, or write its rows to the place that options name; gives the exit code. `options`: those of
    `add_source_options` and `add_answer_options`. Spark, if it has the rows, still has to run.

    Raises:
        AuditError: the place can't be written.
    """
    from gateway.audit.answers import files

    code = INCOMPLETE if options.strict and not answer.is_complete else OK
    if options.destination is None:
        code = print_lines(render_answer(answer, options.format), code)
        if options.format in (CSV, NDJSON) and not options.quiet:  # which have no place for them
            print(*answer.notes, answer.findings, sep="\n", file=sys.stderr)
        return code
    goes_to_stdout = files.is_stdout(Path(options.destination))
    count = files.write_answer(answer, options.destination, tell)
    lines = [f"{options.destination}: {count:,} rows", *answer.notes, answer.findings]
    return print_lines(lines, code, sys.stderr if goes_to_stdout else None)


def run_guarded(command: Callable[[], int], *, needs_spark: bool = True) -> int:
    """Run a command; any failure becomes one line on stderr and an exit code."""
    from gateway.audit import errors
    from gateway.audit.spark import connector

    # Without any handler Python shows what Py4J logs of a connection that ended: tracebacks of what is reported here.
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)
    try:
        if needs_spark:
            check_spark("the audit")
        return command()
    except (connector.MissingDependency, errors.AuditError) as error:
        return report_failure(str(error))
    except KeyboardInterrupt:
        return report_failure("interrupted", 130)
    except Exception as error:  # whatever else Spark may raise: still one line, and never a traceback
        if _caused_by_interrupt(error):
            return report_failure("interrupted", 130)
        return report_failure(_failure_text(error, errors.explain_error))
    finally:
        logging.getLogger().removeHandler(silent)


def check_spark(what: str) -> None:
    """Refuse to do what needs Spark where there is none.

    Raises:
        AuditError: what it needs isn't installed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow", "deltalake")):
        from gateway.audit import errors

        raise errors.AuditError(f"{what} needs PySpark, PyArrow and deltalake: pip install 'produce-gateway[audit]'")


def _caused_by_interrupt(error: BaseException) -> bool:
    """Whether it was raised while something was put away after Ctrl-C, in the middle of an answer of Java's."""
    before: BaseException | None = error
    while before is not None and not isinstance(before, KeyboardInterrupt):
        before = before.__cause__ or before.__context__
    return before is not None


def _failure_text(error: Exception, explain: Callable[[BaseException], str]) -> str:
    if not isinstance(error, ConnectionError):
        with suppress(Exception):  # only Java knows what it says, and has ended
            return explain(error)
    return f"Java ended before it was done ({type(error).__name__}): it was killed, or the machine lacks memory"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The data to read: the options of `add_source_options`, found right. Bounds in Unix ms, the end not included."""

    options: argparse.Namespace
    start_ms: int | None
    end_ms: int | None
    properties: Mapping[str, str]  # of the Java client
    keys: tuple[bytes, ...]  # of the records' digests
    conf: Mapping[str, str]  # Spark's
    time_zone: str = "UTC"  # in which times are told, by IANA's name


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """The options that choose the data to read, and the Spark to read it with."""
    add = parser.add_argument
    add("--bootstrap-servers", metavar="HOST:PORT,…", help="read the usage topic of this Kafka (not of the gateway)")
    add("--topic", help=f"its name ({topic_names.USAGE})")
    add("--spool", action="append", default=[], metavar="PATH", help="read spool files: file, directory or glob")
    add("--tables", metavar="DIR", help="read the tables that `produce-gateway audit stream` has written")
    add("--from", dest="start", metavar="TIME", help="first interval: 2026-11-20T21:00Z, or 1h for an hour ago")
    add("--to", dest="end", metavar="TIME", help="end, not included")
    said = "of times that are told, of those without an offset, and of the calendar: Europe/Berlin (UTC)"
    add("--time-zone", metavar="ZONE", help=said)
    add("--property", action="append", default=[], metavar="K=V", help="property of the Kafka client")
    add("--command-config", metavar="FILE", help="file of such properties, as Kafka's own tools take it")
    add_key_option(parser)
    add("--strict", action="store_true", help="exit with 3 when something is missing")
    add_spark_options(parser)


def add_key_option(parser: argparse.ArgumentParser) -> None:
    """The keys of the usage log's chain."""
    parser.add_argument(
        "--chain-key",
        action="append",
        default=[],
        metavar="FILE",
        help="usage_log.chain_key_file: records without a digest by it count as changed; again for older keys",
    )


def read_chain_keys(paths: Sequence[str]) -> tuple[bytes, ...]:
    """The keys in these files.

    Raises:
        SystemExit: one of them has none; the reason has been printed.
    """
    keys = []
    for path in paths:
        try:
            keys.append(read_secret(Path(path)))
        except (OSError, ValueError) as error:
            exit_wrong_use(f"--chain-key: {path}: {getattr(error, 'strerror', None) or error}")
    return tuple(keys)


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """The choice of the engine, for commands that both can answer."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=AUTO,
        help="local: this process alone, without Java; auto: that for tables on this machine, and for spool files and"
        " topics of up to some gigabytes, else Spark (%(default)s)",
    )


def check_engine_option(options: argparse.Namespace) -> None:
    """Refuse options that the chosen engine can't honour.

    Raises:
        SystemExit: there is one; the reason has been printed.
    """
    if getattr(options, "engine", AUTO) == LOCAL and (options.conf or options.jars or options.packages):
        exit_wrong_use("--engine local needs no Spark: --conf, --jars, --packages are Spark's")


def check_topic_options(options: argparse.Namespace, *, reads_topic: bool, asks_kafka: bool) -> None:
    """Refuse options of Kafka's where it isn't asked, and put the usage topic's name in order. Who gives --topic with
    other sources may mean a topic of producers, and take sums of all topics for its own.

    Raises:
        SystemExit: there is one; the reason has been printed.
    """
    if options.topic is not None and not reads_topic:
        exit_wrong_use("--topic is the usage log's topic in Kafka, which isn't read here; --by topic has a row of each")
    if not asks_kafka and (options.property or options.command_config is not None):
        exit_wrong_use("--property and --command-config are the Kafka client's: they need --bootstrap-servers")
    if options.topic is None:
        options.topic = topic_names.USAGE


def _check_answer_options(options: argparse.Namespace) -> None:
    place = getattr(options, "destination", None)  # the report and others have none, or another one
    if place is not None and options.format != TABLE and not place.endswith(f".{options.format}"):
        exit_wrong_use(f"-o {options.format}: --output {place} says itself in which format rows go there")


def check_source_options(options: argparse.Namespace, now_ms: int) -> SourceOptions:
    """The result of the options of `add_source_options`.

    Raises:
        SystemExit: they are wrong; the reason has been printed.
    """
    if options.bootstrap_servers is None and not options.spool and not options.tables:
        exit_wrong_use("nothing to read: give --bootstrap-servers, or --spool, or both, or --tables")
    if options.tables and (options.bootstrap_servers is not None or options.spool):
        exit_wrong_use(
            "--tables can't be read together with --bootstrap-servers or --spool: they may hold the same records"
        )
    check_engine_option(options)
    _check_answer_options(options)
    time_zone = options.time_zone or "UTC"
    zone = _find_zone(time_zone)
    bounds = (("--from", options.start), ("--to", options.end))
    start, end = (_parse_time(name, text, now_ms, zone) for name, text in bounds)
    if start is not None and end is not None and end <= start:
        exit_wrong_use("--to must be later than --from")
    start, end = (None if each is None else min(max(_FIRST_MS, each), _LAST_MS) for each in (start, end))
    properties = read_properties(options)
    from_kafka = options.bootstrap_servers is not None
    check_topic_options(options, reads_topic=from_kafka, asks_kafka=from_kafka)
    keys = read_chain_keys(options.chain_key)
    if keys and options.tables:
        exit_wrong_use("--chain-key: tables hold no text to check; give it to `audit stream`, which writes them")
    return SourceOptions(options, start, end, properties, keys, parse_pairs("--conf", options.conf), time_zone)


@contextmanager
def keep_interruptible(session: AbstractContextManager[_Session]) -> Iterator[_Session]:
    """The Spark session, in which Ctrl-C works as before: PySpark's own handler would ask Java to cancel, in
    the middle of another answer.
    """
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    with session as spark:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
        yield spark


@contextmanager
def open_counted_records(
    reading: SourceOptions, question: AuditQuery | None, tell: Callable[[str], None]
) -> Iterator[CountedRecords]:
    """The sources' records, each once, for this question alone (None: for any between the bounds), in the engine that
    the options name or that suits them; to be called within `run_guarded`.
    """
    found = open_local_records(reading, reading.start_ms)
    if found is not None:
        yield found
        return
    check_spark("this audit")
    opened = open_records_within(reading, tell) if question is None else open_sums(reading, question, tell)
    with opened as records:
        yield records


def open_local_records(
    reading: SourceOptions, from_ms: int | None, *, replays: bool = False
) -> LocalRecords | LocalTables | None:
    """The sources' records in the local engine, where options name it, or where it suits them; else None. `from_ms`:
    from when on a topic has to be read (Unix ms); `replays`: whether they are to be replayed, not only added up.
    """
    options = reading.options
    always = options.engine == LOCAL
    if not always and (options.engine != AUTO or _asks_for_spark(options)):
        return None
    from gateway.audit.local import opening

    if options.tables:
        return opening.open_tables(options.tables, always=always, replays=replays)
    address = (options.bootstrap_servers, options.topic, reading.properties)
    return opening.open_sources(
        *address, options.spool, always=always, keys=reading.keys, from_ms=from_ms, replays=replays
    )


def _asks_for_spark(options: argparse.Namespace) -> bool:
    named = options.conf or options.jars or options.packages
    return bool(named or has_given_session())


def open_records_within(reading: SourceOptions, tell: Callable[[str], None]) -> AbstractContextManager[AuditRecords]:
    """Start Spark, and give the sources' records, each once, of intervals between the bounds: a topic is read from
    shortly before the first, and from further back where something is missing; to be called within `run_guarded`.
    """
    from gateway.audit.batch import job

    readers = RecordReaders(job.read_sources, job.read_tables, has_gaps=find_gaps_within(reading))
    return open_records_with(readers, reading, tell)


def find_gaps_within(reading: SourceOptions) -> Callable[[NumberedRecords], bool]:
    """RecordReaders.has_gaps for these bounds."""
    from gateway.audit.batch import job
    from gateway.audit.batch.query import AuditQuery

    question = AuditQuery((), None, reading.start_ms, reading.end_ms)
    return lambda records: job.find_gaps(records, question).gaps_total > 0


def open_sums(
    reading: SourceOptions, question: AuditQuery, tell: Callable[[str], None]
) -> AbstractContextManager[AuditRecords]:
    """The same, for one question alone (job.read_sums)."""
    from gateway.audit.batch import job

    read_sums = partial(job.read_sums, question=question)
    readers = RecordReaders(read_sums, job.read_tables, has_gaps=find_gaps_within(reading))
    return open_records_with(readers, reading, tell)


@dataclass(frozen=True, slots=True)
class RecordReaders(Generic[_Read]):
    """Functions that take the places of job.read_sources and job.read_tables. `on_session` is called as soon as Spark
    is there. `has_gaps`: whether something seems to be missing between the bounds; without it a topic is read whole.
    """

    read_sources: Callable[[Sequence[AuditSource], Callable[[str], None]], AbstractContextManager[_Read]]
    read_tables: Callable[[AuditTables, int | None, int | None, Callable[[str], None]], AbstractContextManager[_Read]]
    on_session: Callable[[SparkSession], None] = lambda _: None
    has_gaps: Callable[[_Read], bool] | None = None


@contextmanager
def open_records_with(
    ways: RecordReaders[_Read], reading: SourceOptions, tell: Callable[[str], None]
) -> Iterator[_Read]:
    """The same by other ways of reading."""
    from gateway.audit import store
    from gateway.audit.addresses import check_reachable
    from gateway.audit.batch import spark_sources
    from gateway.audit.spark import spark_session

    options, conf = reading.options, reading.conf
    if options.tables:
        tell("starting Spark")
        session = spark_session.open_session(
            conf, kafka=False, delta=True, jars=options.jars, packages=options.packages
        )
        with keep_interruptible(session) as spark:
            ways.on_session(spark)
            tables = store.open_tables(spark, options.tables)
            with ways.read_tables(tables, reading.start_ms, reading.end_ms, tell) as records:
                yield records
        return
    topic = options.bootstrap_servers is not None
    if topic:
        check_reachable(options.bootstrap_servers)
    tell("starting Spark")
    is_long = spark_sources.spool_bytes(options.spool) > spark_session.LONG_READ_BYTES
    session = spark_session.open_session(
        conf, kafka=topic, jars=options.jars, packages=options.packages, is_long=is_long
    )
    with keep_interruptible(session) as spark:
        ways.on_session(spark)
        ranges: list[list[AuditSource]] = [[]]
        if topic:
            from_ms = None if ways.has_gaps is None else reading.start_ms
            address = (options.bootstrap_servers, options.topic, reading.properties)
            ranges = [[source] for source in spark_sources.read_topic_ranges(spark, *address, from_ms)]
        spool = [spark_sources.read_spool(spark, path) for path in options.spool]
        for part in ranges:
            for source in part:
                tell(f"{options.topic}: {source.record_count:,} records")
            sources = [replace(source, keys=reading.keys) for source in (*part, *spool)]
            with ways.read_sources(sources, tell) as records:
                if part is ranges[-1] or ways.has_gaps is None or not ways.has_gaps(records):
                    yield records
                    return
            tell("looking for what is missing in older records")


def new_parser(command: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Of `audit COMMAND`; "" is the audit itself."""
    return CommandParser(
        prog=f"produce-gateway audit {command}".rstrip(),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_spark_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that starts Spark."""
    add = parser.add_argument
    add("--conf", action="append", default=[], metavar="K=V", help="setting of Spark (spark.driver.memory=4g)")
    add("--packages", help="Maven coordinates of the jars that Spark needs, in place of the pinned ones")
    add("--jars", help="files of them, in place of the pinned ones")
    add_quiet_option(parser)


def add_quiet_option(parser: argparse.ArgumentParser) -> None:
    """The option of every command that says how far it is."""
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def _make_parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "", "Sums up the usage log exactly: offered, accepted, rejected, errored … bytes, messages, requests.", _EPILOG
    )
    add_source_options(parser)
    add_engine_option(parser)
    add = parser.add_argument
    known = ", ".join(usage.DIMENSIONS)
    add("--by", default="topic", metavar="A,B", help=f"any of {known}; empty for one sum (%(default)s)")
    add_window_options(parser, "one row per")
    add_answer_options(parser)
    add("--measure", default=",".join(usage.MEASURES), metavar="A,B", help="tables to show: %(default)s")
    return parser


def _check_options(options: argparse.Namespace, now_ms: int) -> tuple[AuditQuery, SourceOptions]:
    """The question and the sources; the rest of `options` is put in order."""
    reading = check_source_options(options, now_ms)
    by = parse_choices("--by", options.by, usage.DIMENSIONS)
    options.measure = parse_choices("--measure", options.measure, usage.MEASURES) or usage.MEASURES
    return make_question(by, options, reading), reading


def add_window_options(parser: argparse.ArgumentParser, what: str, default: str | None = None) -> None:
    """The windows of a question. `what`: what there is of each."""
    said = f"{what} 1m, 1h, 1d … in UTC, or {', '.join(CALENDAR_UNITS)}{f' ({default})' if default else ''}"
    parser.add_argument("--window", default=default, metavar="WINDOW", help=said)


def make_question(by: tuple[str, ...], options: argparse.Namespace, reading: SourceOptions) -> AuditQuery:
    """The question that the options of `add_window_options` ask.

    Raises:
        SystemExit: they are wrong; the reason has been printed.
    """
    bounds = (reading.start_ms, reading.end_ms)
    if options.window in CALENDAR_UNITS:
        calendar = CalendarWindows(options.window, reading.time_zone)
        return AuditQuery(by, QUARTER_HOUR_MS, *bounds, calendar)
    units = f", or one of {', '.join(CALENDAR_UNITS)}"
    window = None if options.window is None else parse_duration_ms("--window", options.window, units)
    if options.time_zone is not None and window is not None:
        exit_wrong_use(f"--time-zone: windows of {options.window} are in UTC: use one of {', '.join(CALENDAR_UNITS)}")
    return AuditQuery(by, window, *bounds, time_zone=reading.time_zone)


def _find_zone(name: str) -> tzinfo:
    try:
        return load_zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        exit_wrong_use(
            f"--time-zone: {name!r} is not a time zone that this system knows; for example: Europe/Berlin (a system"
            " without any needs the Python package tzdata)"
        )


def parse_choices(name: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(part.strip().replace("-", "_") for part in text.split(",") if part.strip()))
    for each in chosen:
        if each not in known:
            exit_wrong_use(f"{name}: {each!r} is not one of {', '.join(known)}")
    return chosen


def parse_duration_ms(name: str, text: str, others: str = "") -> int:
    """Milliseconds, at least 1. `others`: what else it may be, as the end of a sentence."""
    ms = _to_milliseconds(text)
    if not ms:
        exit_wrong_use(f"{name}: {text!r} is not a valid duration; for example: 30s, 1m, 1h or 1d{others}")
    return ms


def _to_milliseconds(text: str) -> int | None:
    """None: it is not a duration."""
    try:
        ms = parse_duration(text) * 1000
    except ValueError:
        return None
    return round(ms) if ms <= _MAX_MS else None


def _parse_time(name: str, text: str | None, now_ms: int, zone: tzinfo) -> int | None:
    if text is None:
        return None
    if (ms := _to_milliseconds(text)) is not None:
        return now_ms - ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        exit_wrong_use(f"{name}: {text!r} is neither a time such as 2026-11-20T21:00Z nor a duration such as 1h")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return round(moment.timestamp() * 1000)


def parse_pairs(name: str, texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            exit_wrong_use(f"{name}: {text!r} is not KEY=VALUE")
        found[key.strip()] = value
    return found


def read_properties(options: argparse.Namespace) -> dict[str, str]:
    """The Java client's properties of --command-config and --property, without the prefix "kafka.".

    Raises:
        SystemExit: they can't be read, or one of them is misspelt; the reason has been printed.
    """
    from gateway.kafka.java_properties import find_meant_property

    given = read_properties_file(options.command_config) if options.command_config is not None else {}
    given |= parse_pairs("--property", options.property)
    found = {name.removeprefix("kafka."): value for name, value in given.items()}
    for name in found:
        if near := find_meant_property(name):
            exit_wrong_use(f"{name} is not a property of the Kafka client; did you mean {near}?")
    return found


def read_properties_file(path: str) -> dict[str, str]:
    """The properties in a file of --command-config.

    Raises:
        SystemExit: it can't be read; the reason has been printed.
    """
    from gateway.kafka.java_properties import InvalidPropertiesFile, parse_properties

    try:
        return parse_properties(Path(path).read_bytes().decode("iso-8859-1"))
    except (OSError, InvalidPropertiesFile) as error:
        exit_wrong_use(f"--command-config: {path}: {error.strerror if isinstance(error, OSError) else error}")


def exit_wrong_use(text: str) -> NoReturn:
    print(f"produce-gateway audit: {text}", file=sys.stderr)
    raise SystemExit(WRONG_USE)


def report_failure(text: str, code: int = FAILED) -> int:
    print(f"produce-gateway audit: {text}", file=sys.stderr)
    return code


def make_progress_printer(quiet: bool) -> Callable[[str], None]:
    started = time.monotonic()

    def tell(text: str) -> None:
        if not quiet:
            print(f"audit {time.monotonic() - started:5.1f} s  {text}", file=sys.stderr, flush=True)

    return tell


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def print_result(text: str, code: int) -> int:
    """Print the result; gives `code`."""
    return print_lines([text], code)


def print_lines(lines: Iterable[str], code: int, file: TextIO | None = None) -> int:
    """The same of a result that comes line by line. `file`: sys.stderr, where stdout has something else."""
    try:
        for line in lines:
            print(line, file=file)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough; the interpreter's own flush at exit must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code
