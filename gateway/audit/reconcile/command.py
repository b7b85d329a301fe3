# `produce-gateway audit reconcile`: its options, and where its two sides come from: the brokers (brokers.py) and the
# usage log, added up here. reconcile.py compares the two. The same manners as cli.py.

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.audit import cli
from gateway.audit.addresses import check_reachable
from gateway.audit.answers.options import add_format_option, render_document
from gateway.kafka import topic_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
_CERTAIN_COLUMN: Final = "certain"
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
    return cli.run_guarded(work)


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
    add("--topic", default=topic_names.USAGE, help="of the usage log (%(default)s)")
    add("--spool", action="append", default=[], metavar="PATH", help="read spool files in place of that topic")
    add("--tables", metavar="DIR", help="read the tables of `produce-gateway audit stream` in place of that topic")
    add("--margin", default="5s", metavar="DURATION", help="intervals so near a snapshot may be on either side (5s)")
    add("--settle", default="5s", metavar="DURATION", help="wait so long for the usage log where --until is now (5s)")
    add_format_option(parser)
    _add_common_options(parser)
    return parser


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--topics", metavar="A,B", help=f"only these; else all whose names don't begin with {_INTERNAL_PREFIX}")
    add("--property", action="append", default=[], metavar="K=V", help="property of the Kafka client")
    add("--command-config", metavar="FILE", help="file of such properties, as Kafka's own tools take it")
    cli.add_spark_options(parser)


def _prepare_snapshot(options: argparse.Namespace) -> Callable[[], int]:
    properties, conf, wanted = (
        _kafka_properties(options),
        cli.parse_pairs("--conf", options.conf),
        _topic_filter(options.topics),
    )
    if options.out != "-" and not Path(options.out).absolute().parent.is_dir():
        cli.exit_wrong_use(f"--out: there is no directory {Path(options.out).absolute().parent}")
    tell = cli.make_progress_printer(options.quiet)

    def work() -> int:
        from gateway.audit.batch import job
        from gateway.audit.reconcile import brokers, reconcile

        check_reachable(options.bootstrap_servers)
        tell("starting Spark")
        session = job.open_session(conf, jars=options.jars, packages=options.packages)
        with cli.keep_interruptible(session) as spark:
            tell("asking the brokers")
            found = brokers.fetch_snapshot(spark, properties, wanted)
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
    properties, conf, wanted = (
        _kafka_properties(options),
        cli.parse_pairs("--conf", options.conf),
        _topic_filter(options.topics),
    )
    margin_ms, settle_ms = (_parse_age(f"--{name}", getattr(options, name)) for name in ("margin", "settle"))
    since, until = (_read_snapshot(name, getattr(options, name.removeprefix("--"))) for name in ("--since", "--until"))
    tell = cli.make_progress_printer(options.quiet)

    def work() -> int:
        from gateway.audit.batch import job
        from gateway.audit.reconcile import brokers, reconcile

        kafka = options.bootstrap_servers is not None
        if kafka:
            check_reachable(options.bootstrap_servers)
        tell("starting Spark")
        session = job.open_session(
            conf, kafka=kafka, delta=bool(options.tables), jars=options.jars, packages=options.packages
        )
        with cli.keep_interruptible(session) as spark:
            end = until
            if end is None:
                tell("asking the brokers")
                end = brokers.fetch_snapshot(spark, properties, wanted)
                # Bytes acknowledged before are in the usage log after an interval and a round trip to Kafka.
                time.sleep(settle_ms / 1000)
            began_ms = None if since is None else since.began_ms
            bounds = began_ms, end.ended_ms
            with _read_usage(spark, options, properties, bounds, margin_ms, tell) as (rows, complete):
                counted = count_additions(rows, since, end, margin_ms)
        earlier, later = (_filter_topics(each, wanted) for each in (since, end))
        assert later is not None
        sums = {topic: each for topic, each in reconcile.merge_topic_ids(counted, later).items() if wanted(topic)}
        try:
            verdicts = reconcile.reconcile_topics(earlier, later, sums, complete=complete)
        except reconcile.InvalidLogSnapshot as error:
            return cli.report_failure(str(error))
        return _print_verdicts(options.format, earlier, later, verdicts, complete)

    return work


@contextmanager
def _read_usage(
    spark: SparkSession,
    options: argparse.Namespace,
    properties: Mapping[str, str],
    bounds: tuple[int | None, int],
    margin_ms: int,
    tell: Callable[[str], None],
) -> Iterator[tuple[DataFrame, bool]]:
    """The rows of the usage log with start_ms and end_ms, at least those within `margin_ms` of the bounds, and whether
    nothing is known to be missing between these. A topic is read from shortly before the first, and from further back
    where something is missing."""
    from gateway.audit import store
    from gateway.audit.batch import job, transforms

    question = job.AuditQuery((), None, *bounds)
    if options.tables:
        first = None if bounds[0] is None else bounds[0] - margin_ms - _DAY_MS  # an interval may have begun before
        with job.read_tables(store.open_tables(spark, options.tables), first, tell=tell) as records:
            yield records.rows, job.find_gaps(records, question, tell).complete
        return
    if options.spool:
        parts = [[job.read_spool(spark, path) for path in options.spool]]
    else:
        address = options.bootstrap_servers, options.topic, properties
        from_ms = None if bounds[0] is None else bounds[0] - margin_ms
        parts = [[source] for source in job.read_topic_ranges(spark, *address, from_ms)]
    for sources in parts:
        with job.read_sources(sources, tell) as records:
            trust = job.find_gaps(records, question, tell)
            if sources is parts[-1] or not trust.gaps_total:
                yield transforms.explode_rows(records.intervals, "end_ms"), trust.complete
                return


def count_additions(
    rows: DataFrame, since: LogSnapshot | None, until: LogSnapshot, margin_ms: int
) -> dict[str, CountedUsage]:
    """The additions to logs from one snapshot to the other, by topic, according to rows of usage (start_ms, end_ms).

    An interval within `margin_ms` of a snapshot may have been counted on either side of it: an append comes before its
    acknowledgement, and clocks of two hosts differ.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from gateway.audit.batch import transforms
    from gateway.audit.reconcile.reconcile import CountedUsage, UsageSum
    from gateway.audit.spark import schema

    certain = F.col("end_ms") <= until.began_ms - margin_ms
    possible = F.col("start_ms") <= until.ended_ms + margin_ms
    if since is not None:
        certain &= F.col("start_ms") >= since.ended_ms + margin_ms
        possible &= F.col("end_ms") >= since.began_ms - margin_ms
    sums = transforms.sum_usage_rows(
        rows.where(possible).withColumn(_CERTAIN_COLUMN, certain), ("topic", _CERTAIN_COLUMN)
    )
    found: dict[str, CountedUsage] = {}
    for row in sums.collect():
        accepted, maybe = (
            UsageSum(*(row[schema.sum_column(name, measure)] for measure in UsageSum._fields))
            for name in ("accepted", schema.MAYBE_APPENDED)
        )
        known = found.get(row["topic"], CountedUsage())
        if row[_CERTAIN_COLUMN]:
            found[row["topic"]] = CountedUsage(accepted, maybe, known.in_flight)
        else:
            found[row["topic"]] = CountedUsage(known.accepted, known.maybe, accepted.plus(maybe))
    return found


def _print_verdicts(
    kind: str, since: LogSnapshot | None, until: LogSnapshot, verdicts: list[TopicVerdict], complete: bool
) -> int:
    from gateway.audit.reconcile import reconcile

    document = reconcile.verdicts_json(since, until, verdicts, complete)
    text = render_document(document, kind, lambda: reconcile.verdicts_text(verdicts, complete))
    return cli.print_result(
        text, cli.OK if all(each.verdict == reconcile.AGREES for each in verdicts) else cli.INCOMPLETE
    )


def _kafka_properties(options: argparse.Namespace) -> dict[str, str]:
    properties = cli.read_properties_file(options.command_config) if options.command_config else {}
    properties |= cli.parse_pairs("--property", options.property)
    properties = {name.removeprefix("kafka."): value for name, value in properties.items()}
    return {"bootstrap.servers": options.bootstrap_servers or "", **properties}


def _topic_filter(topics: str | None) -> Callable[[str], bool]:
    if topics is None:
        return lambda name: not name.startswith(_INTERNAL_PREFIX)
    chosen = {name.strip() for name in topics.split(",") if name.strip()}
    if not chosen:
        cli.exit_wrong_use("--topics: no name is given")
    return lambda name: name in chosen


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
