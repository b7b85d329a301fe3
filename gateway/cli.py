# The commands. Each imports what it needs when it runs: `check` has no use for Spark, and an audit none for sockets.
#
# A user's mistake is one or more lines on stderr and exit code 1 (2 for a wrong command line), never a traceback.

from __future__ import annotations

import argparse
import json
import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config import Settings

# They parse their own arguments; the text is for the list of commands.
_OWN_PARSERS = {
    "demo": "producers against a threshold in front of a real Kafka, with an audit at the end",
    "audit": "sums of the usage log: offered, accepted, rejected, errored bytes (needs produce-gateway[audit])",
}
_EXAMPLES = (0, 1, 2)  # node ids shown by `check`


def main(argv: list[str]) -> int:
    """Run a command; the result is the exit code."""
    if argv and argv[0] in _OWN_PARSERS:
        return _run_other(argv[0], argv[1:])
    parser = _make_parser()
    args = parser.parse_args(argv)
    match args.command:
        case "serve":
            return serve(args.config)
        case "check":
            return check(args.config)
        case "schema":
            return print_schema()
        case "version":
            print(f"produce-gateway {version('produce-gateway')}")
            return 0
    parser.print_help()
    return 2


def serve(path: Path) -> int:
    """Run the gateway until SIGTERM or SIGINT."""
    settings = _load(path)
    if settings is None:
        return 1
    from gateway import config, supervisor

    problems = _try_policies(settings)
    if problems:
        return _fail([f"{path}: {problem}" for problem in problems])
    logging.basicConfig(stream=sys.stderr, format=supervisor.LOG_FORMAT, level=logging.INFO)
    for warning in config.warnings(settings):
        logging.getLogger("gateway").warning("%s", warning)
    listeners = {
        "bootstrap": (settings.listener.host, settings.listener.port),
        "admin": (settings.admin.host, settings.admin.port),
    }
    as_json = settings.model_dump_json(by_alias=True).encode()
    return supervisor.run(as_json, listeners, drain_timeout_s=settings.drain_timeout)


def check(path: Path) -> int:
    """Say whether a configuration can be used, and what it comes to. Opens no connection."""
    settings = _load(path)
    if settings is None:
        return 1
    from gateway import config

    problems = [*_try_policies(settings), *_ask_librdkafka(settings)]
    if problems:
        return _fail([f"{path}: {problem}" for problem in problems])
    print(f"{path}: OK")
    for line in summarize(settings):
        print(f"  {line}")
    for warning in config.warnings(settings):
        print(f"warning: {warning}")
    return 0


def summarize(settings: Settings) -> list[str]:
    """What a configuration comes to, the mapping of ports included."""
    listener, thresholds = settings.listener, settings.thresholds
    lines = [
        f"gateway    {settings.gateway}",
        f"upstream   {settings.upstream.bootstrap_servers}",
        f"bootstrap  {listener.advertised}:{listener.port}, listening on {listener.host}",
    ]
    for node_id in sorted({*_EXAMPLES, *listener.brokers}):
        port = listener.broker_port(node_id)
        place = f"{listener.advertised}:{port}" if port <= 65535 else f"none, port {port} is beyond 65535: withheld"
        lines.append(f"broker {node_id:<3d} {place}")
    highest = 65535 - listener.port - 1
    lines.append(f"broker N   {listener.advertised}:{listener.port + 1}+N, up to N = {highest}")
    lines.append(f"admin      http://{settings.admin.host}:{settings.admin.port}/metrics, /healthz, /readyz")
    total = "none, nothing is rejected" if thresholds.total is None else f"{thresholds.total:,} bytes/s per broker"
    lines.append(f"total      {total}")
    if thresholds.total is not None:
        lines.append(f"on exceed  {thresholds.on_exceed}")
    lines += [f"topic      {name}: {topic.threshold:,} bytes/s" for name, topic in sorted(thresholds.topics.items())]
    mode = "observe" if "observe" in (settings.mode, thresholds.mode) else "enforce"
    lines.append(f"mode       {mode}; acks=0 over a limit: {settings.acks0}; reject_code {settings.reject_code}")
    lines += [f"policy     {name}" for name in settings.policies]
    internal = [*settings.internal.principals, *(f"client id {name}" for name in settings.internal.client_ids)]
    if internal:
        lines.append(f"internal   {', '.join(internal)}: metered, never limited")
    kept = "then to topic " + settings.usage_log.topic if settings.internal_topics == "kafka" else "and stays there"
    lines.append(f"usage log  to {settings.usage_log.spool_dir}, {kept}")
    return lines


def _try_policies(settings: Settings) -> list[str]:
    """What is wrong with the operator's own policies: here, where it can be said, not in a worker that dies of it."""
    from gateway.plugins import PluginError, load

    problems = []
    for name in settings.policies:
        try:
            load(name)
        except PluginError as error:
            problems.append(str(error))
    return problems


def print_schema() -> int:
    """The configuration's JSON Schema, for editors."""
    from gateway.config import Settings

    print(json.dumps(Settings.model_json_schema(by_alias=True), indent=2))
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="produce-gateway",
        description="A Kafka gateway on the produce path: meters every byte and keeps producers within their limits.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in (("serve", "run the gateway"), ("check", "validate a configuration and show what it comes to")):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("config", type=Path, metavar="CONFIG", help="YAML file")
    for name, text in _OWN_PARSERS.items():
        commands.add_parser(name, help=text, add_help=False)
    commands.add_parser("schema", help="print the configuration's JSON Schema")
    commands.add_parser("version", help="print the version")
    return parser


def _run_other(name: str, argv: list[str]) -> int:
    if name == "demo":
        from gateway import demo

        return int(demo.main(argv))
    try:
        from gateway.audit import cli as audit
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        return _fail(["the audit needs PySpark: pip install 'produce-gateway[audit]'"])
    return audit.main(argv)


def _load(path: Path) -> Settings | None:
    from gateway.config import ConfigError, load

    try:
        return load(path)
    except ConfigError as error:
        _fail(error.lines)
        return None


def _ask_librdkafka(settings: Settings) -> list[str]:
    """What the Kafka client says to the properties that are passed on to it."""
    if not settings.upstream.properties:
        return []
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from gateway.control.app import client_properties

    try:
        AdminClient(client_properties(settings))
    except KafkaException as error:
        return [f"upstream: {error.args[0].str()}"]
    return []


def _fail(lines: list[str]) -> int:
    for line in lines:
        print(line, file=sys.stderr)
    return 1
