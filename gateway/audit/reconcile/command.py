# `produce-gateway audit reconcile`: its options, and where its two sides come from: the brokers (brokers.py) and the
# usage log, added up here. reconcile.py compares the two. The same manners as cli.py.

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.audit import cli
from gateway.audit.addresses import check_reachable
from gateway.audit.answers.options import add_format_option, render_document
from gateway.audit.batch.query import AuditQuery
from gateway.kafka import topic_names

if TYPE_CHECKING:
    from gateway.audit.reconcile.reconcile import CountedUsage, LogSnapshot, TopicVerdict

_EPILOG: Final = """\
exit codes: 0 everything agrees; 3 a topic differs, or is undecided; 1 not done (one line on stderr
says why and what to do); 2 wrong options.

examples:
  produce-gateway audit reconcile snapshot --bootstrap-servers kafka:9092 --out monday.json
  produce-gateway audit reconcile --bootstrap-servers kafka:9092 --since monday.json
  produce-gateway audit reconcile --since monday.json --until tuesday.json --tables ./audit
"""
_INTERNAL_PREFIX: Final = "__"  # topics of Kafka and the gateway: no client produces to them through the gateway
_DAY_MS: Final = 86_400_000


def main(argv: list[str]) -> int:
    """Run it; `argv` begins with its name. Gives the exit code."""
    takes_snapshot = argv[1:2] == ["snapshot"]
    try:
        options = (_snapshot_parser() if takes_snapshot else _make_parser()).parse_args(
            argv[2 if takes_snapshot else 1 :]
        )
        work = (_prepare_snapshot if takes_snapshot else _prepare_reconcile)(options)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    return cli.run_guarded(work, needs_spark=False)


def _snapshot_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser(
        "reconcile snapshot",
        "Notes how large the brokers' logs are, and where they end, for a later reconcile.",
        _EPILOG,
    )
    parser.add_argument(
        "--bootstrap-servers", required=True, metavar="HOST:PORT,…", help="of Kafka, not of the gateway"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write; - is stdout")
    _add_common_options(parser)
    cli.add_quiet_option(parser)
    return parser


def _make_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser(
        "reconcile",
        "Compares the accepted bytes of the usage log with the growth of the brokers' logs, topic by topic.",
        _EPILOG,
    )
    add = parser.add_argument
    add("--bootstrap-servers", metavar="HOST:PORT,…", help="of Kafka, not of the gateway")
    add("--since", metavar="FILE", help="a snapshot; without it: since the topics were made")
    add("--until", metavar="FILE", help="a later one; without it: now")
    add("--topic", help=f"of the usage log ({topic_names.USAGE})")
    add("--spool", action="append", default=[], metavar="PATH", help="read spool files in place of that topic")
    add("--tables", metavar="DIR", help="read the tables of `produce-gateway audit stream` in place of that topic")
    add("--margin", default="5s", metavar="DURATION", help="intervals so near a snapshot may be on either side (5s)")
    add("--settle", default="5s", metavar="DURATION", help="wait so long for the usage log where --until is now (5s)")
    add_format_option(parser)
    _add_common_options(parser)
    cli.add_spark_options(parser)
    cli.add_engine_option(parser)
    return parser


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--topics", metavar="A,B", help=f"only these; else all whose names don't begin with {_INTERNAL_PREFIX}")
    add("--property", action="append", default=[], metavar="K=V", help="property of the Kafka client")
    add("--command-config", metavar="FILE", help="file of such properties, as Kafka's own tools take it")


def _prepare_snapshot(options: argparse.Namespace) -> Callable[[], int]:
    properties, wanted = cli.read_properties(options), _topic_filter(options.topics)
    if options.out != "-" and not Path(options.out).absolute().parent.is_dir():
        cli.exit_wrong_use(f"--out: there is no directory {Path(options.out).absolute().parent}")
    tell = cli.make_progress_printer(options.quiet)

    def work() -> int:
        from gateway.audit.reconcile import reconcile

        found = _ask_brokers(options, properties, wanted, tell)
        _check_names(options.topics, found.topics)
        text = reconcile.dump_snapshot(found)
        if options.out == "-":
            return cli.print_result(text, cli.OK)
        _write_snapshot(Path(options.out), text)
        tell(f"{len(found.topics):,} topics noted in {options.out}")
        return cli.OK

    return work


def _prepare_reconcile(options: argparse.Namespace) -> Callable[[], int]:
    if options.bootstrap_servers is None and not options.until:
        cli.exit_wrong_use("no broker to ask: give --bootstrap-servers, or --until FILE")
    if options.bootstrap_servers is None and not options.spool and not options.tables:
        cli.exit_wrong_use(
            "nothing to compare with: give --bootstrap-servers for the usage topic, or --spool, or --tables"
        )
    if options.tables and options.spool:
        cli.exit_wrong_use("--tables can't be read together with --spool: they may hold the same records")
    cli.check_engine_option(options)
    properties, conf, wanted = (
        cli.read_properties(options),
        cli.parse_pairs("--conf", options.conf),
        _topic_filter(options.topics),
    )
    from_kafka = options.bootstrap_servers is not None
    cli.check_topic_options(
        options, reads_topic=from_kafka and not (options.spool or options.tables), asks_kafka=from_kafka
    )
    margin_ms, settle_ms = (_parse_age(f"--{name}", getattr(options, name)) for name in ("margin", "settle"))
    since, until = (_read_snapshot(name, getattr(options, name.removeprefix("--"))) for name in ("--since", "--until"))
    tell = cli.make_progress_printer(options.quiet)

    def work() -> int:
        from gateway.audit.reconcile import reconcile

        end = until
        if end is None:
            end = _ask_brokers(options, properties, wanted, tell)
            # Bytes acknowledged before are in the usage log after an interval and a round trip to Kafka.
            time.sleep(settle_ms / 1000)
        reading = _make_reading(options, properties, conf, since, end, margin_ms)
        counted, complete = count_usage(reading, since, end, margin_ms, tell)
        earlier, later = (_filter_topics(each, wanted) for each in (since, end))
        assert later is not None
        sums = {topic: each for topic, each in reconcile.merge_topic_ids(counted, later).items() if wanted(topic)}
        _check_names(options.topics, {*later.topics, *(earlier.topics if earlier else ()), *sums})
        try:
            verdicts = reconcile.reconcile_topics(earlier, later, sums, complete=complete)
        except reconcile.InvalidLogSnapshot as error:
            return cli.report_failure(str(error))
        return _print_verdicts(options.format, earlier, later, verdicts, complete)

    return work


def _ask_brokers(
    options: argparse.Namespace,
    properties: Mapping[str, str],
    wanted: Callable[[str], bool],
    tell: Callable[[str], None],
) -> LogSnapshot:
    from gateway.audit.reconcile import brokers

    check_reachable(options.bootstrap_servers)
    tell("asking the brokers")
    return brokers.fetch_snapshot(options.bootstrap_servers, properties, wanted)


def _make_reading(
    options: argparse.Namespace,
    properties: Mapping[str, str],
    conf: Mapping[str, str],
    since: LogSnapshot | None,
    until: LogSnapshot,
    margin_ms: int,
) -> cli.SourceOptions:
    """The usage log between the snapshots, and what is within `margin_ms` of them."""
    sources = argparse.Namespace(**vars(options))
    if options.tables or options.spool:
        sources.bootstrap_servers = None  # of the brokers alone
    start = None if since is None else since.began_ms - margin_ms
    if start is not None and options.tables:
        start -= _DAY_MS  # an interval may have begun before; a topic is read from an hour before anyway
    return cli.SourceOptions(sources, start, until.ended_ms + margin_ms + 1, properties, (), conf)


def count_usage(
    reading: cli.SourceOptions,
    since: LogSnapshot | None,
    until: LogSnapshot,
    margin_ms: int,
    tell: Callable[[str], None],
) -> tuple[dict[str, CountedUsage], bool]:
    """The additions to logs by topic, according to the usage log, and whether nothing is known to be missing of it
    between the snapshots; in the engine that the options name or that suits them.

    Raises:
        AuditError: the usage log can't be read.
    """
    from gateway.audit.reconcile.local_sums import AdditionCollector
    from gateway.audit.reconcile.reconcile import bound_additions

    bounds = bound_additions(since, until, margin_ms)
    question = AuditQuery((), None, None if since is None else since.began_ms, until.ended_ms)
    # Roll-ups don't know when intervals ended: tables are read record by record, as for a replay.
    local = cli.open_local_records(reading, reading.start_ms, replays=bool(reading.options.tables))
    if local is not None:
        reach = AuditQuery((), None, reading.start_ms, reading.end_ms)
        counted = local.collect(lambda: AdditionCollector(bounds), reach, tell).make_counted()
        return counted, local.find_gaps(question, tell).complete
    cli.check_spark("this audit")
    from gateway.audit.batch import job
    from gateway.audit.reconcile.spark_sums import count_additions

    with cli.open_records_within(reading, tell) as records:
        return count_additions(records.rows, bounds), job.find_gaps(records, question, tell).complete


def _print_verdicts(
    kind: str, since: LogSnapshot | None, until: LogSnapshot, verdicts: list[TopicVerdict], complete: bool
) -> int:
    from gateway.audit.reconcile import reconcile

    document = reconcile.verdicts_json(since, until, verdicts, complete)
    text = render_document(document, kind, lambda: reconcile.verdicts_text(verdicts, complete))
    return cli.print_result(
        text, cli.OK if all(each.verdict == reconcile.AGREES for each in verdicts) else cli.INCOMPLETE
    )


def _topic_filter(topics: str | None) -> Callable[[str], bool]:
    if topics is None:
        return lambda name: not name.startswith(_INTERNAL_PREFIX)
    chosen = _split_names(topics)
    if not chosen:
        cli.exit_wrong_use("--topics: no name is given")
    return chosen.__contains__


def _split_names(topics: str) -> set[str]:
    return {name.strip() for name in topics.split(",") if name.strip()}


def _check_names(topics: str | None, known: Collection[str]) -> None:
    """Refuse to agree about a topic that is nowhere: its name is misspelt.

    Raises:
        AuditError: --topics names one.
    """
    from gateway.audit.errors import AuditError

    if missing := sorted(_split_names(topics or "").difference(known)):
        raise AuditError(f"--topics: there is no topic {', '.join(missing)}")


def _filter_topics(snapshot: LogSnapshot | None, wanted: Callable[[str], bool]) -> Any:
    from gateway.audit.reconcile.reconcile import LogSnapshot

    if snapshot is None:
        return None
    topics = {name: topic for name, topic in snapshot.topics.items() if wanted(name)}
    return LogSnapshot(snapshot.cluster, snapshot.began_ms, snapshot.ended_ms, topics)


def _parse_age(name: str, text: str) -> int:
    # 0 is a wish that makes sense here, unlike a window of 0.
    return 0 if text in ("0", "0s", "0ms") else cli.parse_duration_ms(name, text)


def _read_snapshot(name: str, path: str | None) -> LogSnapshot | None:
    from gateway.audit.reconcile import reconcile

    if path is None:
        return None
    try:
        return reconcile.load_snapshot(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, reconcile.InvalidLogSnapshot) as error:
        cli.exit_wrong_use(f"{name}: {path}: {error.strerror if isinstance(error, OSError) else error}")


def _write_snapshot(path: Path, text: str) -> None:
    # Whole or not at all: half a snapshot is found out only when it is needed.
    from gateway.audit.errors import AuditError

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise AuditError(f"{path} can't be written: {error.strerror}") from None
