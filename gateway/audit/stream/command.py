# `produce-gateway audit stream | compact | expire`: their options and what they say. The same manners as cli.py: the
# outcome goes to stdout, what is going on to stderr, an error is one line there, and PySpark is imported only after the
# options are known to be right.

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.audit import cli
from gateway.kafka import topic_names

if TYPE_CHECKING:
    from gateway.audit.store import AuditTables
    from gateway.audit.stream.upkeep import UpkeepResult

_EPILOG: Final = """\
exit codes: 0 done (a continuous stream: asked to stop by SIGTERM or SIGINT); 1 it could not be done (one line on stderr
says why and what to do); 2 wrong options.
"""

MIN_GRACE_MS = 3_600_000  # a batch's files are there before its commit
_ROW_NAMES: Final = {"usage": "rows of usage"}  # what the tables' names don't say by themselves


def main(argv: list[str]) -> int:
    """Run one of them; `argv` begins with its name. Gives the exit code."""
    name = argv[0]
    try:
        options = _PARSERS[name]().parse_args(argv[1:])
        work = _PREPARERS[name](options)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else cli.WRONG_USE
    return cli.run_guarded(work)


def _stream_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser(
        "stream", "Writes the usage topic into tables, each record exactly once whatever happens.", _EPILOG
    )
    add = parser.add_argument
    add("--bootstrap-servers", required=True, metavar="HOST:PORT,…", help="of Kafka, not of the gateway")
    add("--topic", default=topic_names.USAGE, help="its name (%(default)s)")
    add("--output", required=True, metavar="DIR", help="the tables: a directory, or s3a://…, hdfs://…")
    add("--checkpoint", metavar="DIR", help="the stream's progress (OUTPUT/_checkpoint)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="read the topic's present records, then end (the default)")
    how.add_argument("--interval", metavar="DURATION", help="go on, with a batch every 30s, 5m …")
    add("--max-records", type=int, metavar="N", help="of one batch at most (200000, with --interval 50000)")
    add(
        "--derive-every",
        default="5m",
        metavar="DURATION",
        help="how often the stream updates gaps, lives and roll-ups (%(default)s)",
    )
    add(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="serve Prometheus at /metrics, and /healthz (on 127.0.0.1 without HOST; without this option nowhere)",
    )
    add("--property", action="append", default=[], metavar="K=V", help="property of the Kafka client")
    add("--command-config", metavar="FILE", help="file of such properties, as Kafka's own tools take it")
    cli.add_key_option(parser)
    cli.add_spark_options(parser)
    return parser


def _compact_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser(
        "compact", "Few large files in place of the tables' many small ones; a stream may go on meanwhile.", _EPILOG
    )
    _add_upkeep_options(parser)
    return parser


def _expire_parser() -> argparse.ArgumentParser:
    parser = cli.new_parser(
        "expire", "Lets go of the days that ended longer ago than --keep; a stream may go on meanwhile.", _EPILOG
    )
    parser.add_argument("--keep", required=True, metavar="DURATION", help="how long usage is kept: 90d")
    _add_upkeep_options(parser)
    return parser


def _add_upkeep_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the tables")
    parser.add_argument(
        "--grace", default="1d", metavar="DURATION", help="how long a reader or a batch may take (%(default)s)"
    )
    cli.add_spark_options(parser)


def _prepare_stream(options: argparse.Namespace) -> Callable[[], int]:
    interval = cli.parse_duration_ms("--interval", options.interval) if options.interval is not None else None
    derive_every = cli.parse_duration_ms("--derive-every", options.derive_every)
    if options.max_records is not None and options.max_records < 1:
        cli.exit_wrong_use(f"--max-records: {options.max_records} is not a valid number of records")
    address = _parse_address(options.metrics_port) if options.metrics_port is not None else None
    properties = cli.read_properties(options)
    conf = cli.parse_pairs("--conf", options.conf)
    checkpoint = options.checkpoint or f"{options.output.rstrip('/')}/_checkpoint"
    keys = cli.read_chain_keys(options.chain_key)
    tell = cli.make_progress_printer(options.quiet)

    def work() -> int:
        from gateway.audit import store
        from gateway.audit.addresses import check_reachable
        from gateway.audit.spark import spark_session
        from gateway.audit.stream import metrics, stream

        facts = metrics.StreamMetrics()
        if address is not None:
            metrics.serve_metrics(facts, *address)
        check_reachable(options.bootstrap_servers)
        plan = stream.StreamPlan(
            options.bootstrap_servers,
            options.topic,
            properties,
            checkpoint,
            None if interval is None else interval / 1000,
            options.max_records or (stream.CATCH_UP_RECORDS if interval is None else stream.MAX_RECORDS),
            derive_every / 1000,
            keys,
        )
        tell("starting Spark")
        session = spark_session.open_session(
            conf, delta=True, jars=options.jars, packages=options.packages, is_long=interval is not None
        )
        with cli.keep_interruptible(session) as spark:
            tables = store.open_tables(spark, options.output, make=True)
            added = stream.run_stream(spark, tables, plan, tell, facts)
        print(", ".join(f"{count:,} {_ROW_NAMES.get(name, name)}" for name, count in added.items()), flush=True)
        return cli.OK

    return work


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 2**16:
        cli.exit_wrong_use(f"--metrics-port: {text!r} is not a valid port, as 9308 or 0.0.0.0:9308")
    return host.strip("[]") or "127.0.0.1", int(port)


def _prepare_compact(options: argparse.Namespace) -> Callable[[], int]:
    grace = _parse_grace(options.grace)

    def work(tables: AuditTables, tell: Callable[[str], None]) -> str:
        from gateway.audit.stream import upkeep

        return _result_text(upkeep.compact_tables(tables, grace, tell))

    return _prepare_upkeep(options, work)


def _prepare_expire(options: argparse.Namespace) -> Callable[[], int]:
    keep, grace = _parse_age("--keep", options.keep), _parse_grace(options.grace)

    def work(tables: AuditTables, tell: Callable[[str], None]) -> str:
        from gateway.audit.stream import upkeep

        done = upkeep.expire_usage(tables, keep, grace, tell)
        return f"{_result_text(done)}; usage is kept from {tables.first_kept_day()} (UTC) on"

    return _prepare_upkeep(options, work)


def _prepare_upkeep(
    options: argparse.Namespace, work: Callable[[AuditTables, Callable[[str], None]], str]
) -> Callable[[], int]:
    conf = cli.parse_pairs("--conf", options.conf)
    tell = cli.make_progress_printer(options.quiet)

    def run() -> int:
        from gateway.audit import store
        from gateway.audit.spark import spark_session

        tell("starting Spark")
        session = spark_session.open_session(
            conf, kafka=False, delta=True, jars=options.jars, packages=options.packages
        )
        with cli.keep_interruptible(session) as spark:
            print(work(store.open_tables(spark, options.directory), tell), flush=True)
        return cli.OK

    return run


def _parse_grace(text: str) -> int:
    ms = _parse_age("--grace", text)
    if ms < MIN_GRACE_MS:
        cli.exit_wrong_use(
            f"--grace: {text!r} is too short: files that a stream is writing would be deleted; at least 1h"
        )
    return ms


def _parse_age(name: str, text: str) -> int:
    # An age of 0 is a wish that makes sense here, unlike a window of 0.
    return 0 if re.fullmatch(r"0(ms|s|m|h|d)", text) else cli.parse_duration_ms(name, text)


def _result_text(done: UpkeepResult) -> str:
    return f"{done.files_before:,} files became {done.files_after:,}; {done.deleted:,} leftovers deleted"


_PARSERS: Final = {"stream": _stream_parser, "compact": _compact_parser, "expire": _expire_parser}
_PREPARERS: Final = {"stream": _prepare_stream, "compact": _prepare_compact, "expire": _prepare_expire}
