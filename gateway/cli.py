# The commands. Each imports what it needs when it runs: `check` has no use for Spark, and an audit none for sockets.
#
# A user's mistake is one or more lines on stderr and exit code 1 (2 for a wrong command line), never a traceback.

from __future__ import annotations

import argparse
import json
import logging
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config import Settings, Storage

# They parse their own arguments; the text is for the list of commands.
_OWN_PARSERS = {
    "demo": "producers against a threshold in front of a real Kafka, with an audit at the end",
    "audit": "sums of the usage log: offered, accepted, rejected, errored bytes (needs produce-gateway[audit])",
    "storage": "show what a running gateway knows of the cluster's disks, and the factor in force",
    "explain": "every rule that looks at some traffic: limit, rate, which one binds, and why",
    "topics": "every topic of a running gateway with its threshold and rate",
    "top": "who is producing just now, sorted by rate, rejections or utilization",
    "groups": "resource groups: list, get, set, delete, attach, detach, and what is used of them",
    "policies": "show, export, compare or apply what may be changed at run time",
    "kafka-quotas": "list, describe and alter client quotas of a gateway or a Kafka cluster, as KIP-546 has it",
    "volume-agent": "publish the volumes of a broker to the topic that source: snapshots reads; runs beside it",
    "import-strimzi": "turn the quota plugin's part of a Kafka resource into this configuration",
}
_COMMANDS = {
    **{name: f"gateway.commands.{name}" for name in ("explain", "groups", "policies", "storage", "top", "topics")},
    "import-strimzi": "gateway.commands.import_strimzi",
    "kafka-quotas": "gateway.commands.kafka_quotas",
    "volume-agent": "gateway.volume_agent",
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
    from gateway import config, cores, supervisor

    problems = [*_try_policies(settings), *_try_certificates(settings)]
    if problems:
        return _fail([f"{path}: {problem}" for problem in problems])
    logging.basicConfig(stream=sys.stderr, format=supervisor.LOG_FORMAT, level=logging.INFO)
    for warning in config.warnings(settings):
        logging.getLogger("gateway").warning("%s", warning)
    listeners = {
        "bootstrap": (settings.listener.host, settings.listener.port),
        "admin": (settings.admin.host, settings.admin.port),
    }
    workers = cores.count() if settings.workers == "auto" else settings.workers
    if workers > 1:
        logging.getLogger("gateway").info("%d workers", workers)
    as_json = settings.model_copy(update={"workers": workers}).model_dump_json(by_alias=True).encode()
    return supervisor.run(as_json, listeners, workers=workers, drain_timeout_s=settings.drain_timeout)


def check(path: Path) -> int:
    """Say whether a configuration can be used, and what it comes to. Opens no connection."""
    settings = _load(path)
    if settings is None:
        return 1
    from gateway import config

    problems = [
        *_try_policies(settings),
        *_try_certificates(settings),
        *_try_storage(settings),
        *_ask_librdkafka(settings),
    ]
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
    lines.append(f"TLS        {_describe_tls(settings)}")
    lines.append(f"admin      http://{settings.admin.host}:{settings.admin.port}/metrics, /healthz, /readyz")
    lines.append(f"workers    {_describe_workers(settings)}")
    total = "none, nothing is rejected" if thresholds.total is None else f"{thresholds.total:,} bytes/s per broker"
    lines.append(f"total      {total}")
    if thresholds.total is not None:
        lines.append(f"on exceed  {thresholds.on_exceed}")
    lines += [f"broker {node_id:<3d} total {total:,.0f} bytes/s" for node_id, total in thresholds.by_broker().items()]
    lines += [f"topic      {name}: {topic.threshold:,} bytes/s" for name, topic in sorted(thresholds.topics.items())]
    mode = "observe" if "observe" in (settings.mode, thresholds.mode) else "enforce"
    lines.append(f"mode       {mode}; acks=0 over a limit: {settings.acks0}; reject_code {settings.reject_code}")
    if thresholds.source:
        lines.append(f"source     {thresholds.source} says both, asked every {thresholds.interval:g} s")
    if settings.client_quotas:
        lines.append(f"quotas     for {len(settings.client_quotas)} entities; mode {settings.client_quotas_mode}")
    lines += _summarize_groups(settings)
    kept = settings.policies_store.topic if settings.internal_topics == "kafka" else settings.policies_file
    lines.append(
        f"changes    at run time are kept in {kept}; Describe- and AlterClientQuotas: {settings.client_quotas_api}"
    )
    lines += _summarize_storage(settings)
    lines += [f"policy     {name}" for name in settings.policies]
    internal = [*settings.internal.principals, *(f"client id {name}" for name in settings.internal.client_ids)]
    internal += [f"{each.principal} as client id {each.client_id}" for each in settings.internal.clients]
    if internal:
        lines.append(f"internal   {', '.join(internal)}: metered, never limited")
    kept = "then to topic " + settings.usage_log.topic if settings.internal_topics == "kafka" else "and stays there"
    lines.append(f"usage log  to {settings.usage_log.spool_dir}, {kept}")
    return lines


def _describe_tls(settings: Settings) -> str:
    tls = settings.listener.tls
    if tls is None:
        return "none on the listeners: plain TCP"
    clients = {"none": "not asked for", "requested": "checked where one is sent", "required": "required"}
    return f"{' and '.join(tls.protocols)}, certificate {tls.keystore}; client certificates {clients[tls.client_auth]}"


def _describe_workers(settings: Settings) -> str:
    from gateway import cores

    if settings.workers == "auto":
        return f"auto: {cores.count()} on this machine, one for each core that the gateway may use"
    return str(settings.workers)


def _summarize_groups(settings: Settings) -> list[str]:
    groups = settings.resource_groups
    lines = []
    if groups.groups:
        mode = "observe" if "observe" in (settings.mode, groups.mode) else "enforce"
        lines.append(f"groups     by {groups.topic_pattern or 'principal alone'}; mode {mode}")
        if groups.principal_pattern and groups.topic_pattern:
            lines[-1] += f"; else by principal {groups.principal_pattern}"
    for name, rates in groups.groups.items():
        limits = [
            f"{key} {value:,.12g} {'bytes' if key.endswith('Bytes') else 'messages'}/s"
            for key, value in rates.model_dump(by_alias=True, exclude_none=True).items()
        ]
        lines.append(f"group      {name}: {', '.join(limits) or 'no limits'}")
    for kind, attached in (("tenant", groups.tenants), ("namespace", groups.namespaces)):
        lines += [f"attached   {kind} {name} to {group}" for name, group in attached.items()]
    over = f"all gateways that share topic {settings.usage_topic}, told every {settings.usage_interval:g} s"
    lines.append(f"limits     hold over {over if settings.exchanges else 'this gateway alone'}")
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


def _try_certificates(settings: Settings) -> list[str]:
    """What is wrong with the listeners' certificates: here, since workers would take no connection."""
    if settings.listener.tls is None:
        return []
    from gateway.certificates import CertificateError, make_context

    try:
        make_context(settings.listener.tls)
    except CertificateError as error:
        return [f"listener.{error}"]
    return []


def _summarize_storage(settings: Settings) -> list[str]:
    storage = settings.storage
    if storage is None or storage.off:
        return ["storage    not looked at, full disks hold nothing back"]
    if storage.factor_source:
        asked, limits = f"factor_source {storage.factor_source}", "its own"
    else:
        where = f" {storage.reads.topic}" if storage.source == "snapshots" else ""
        where = f" {storage.prometheus.url}" if storage.source == "prometheus" and storage.prometheus else where
        asked, limits = storage.source + where, _describe_limits(storage)
    lines = [f"storage    {asked}, every {storage.check_interval:g} s; {settings.storage_admin.bootstrap_servers}"]
    lines.append(f"limits     {limits}")
    if storage.source == "snapshots":
        doubt = f"{storage.reads.fail_safe} when a broker has no snapshot younger than {storage.reads.max_age:g} s"
    else:
        doubt = f"factor {storage.fallback:g} when nothing was learned for {storage.validity:g} s"
    mode = "observe" if "observe" in (settings.mode, storage.mode) else "enforce"
    return [*lines, f"no data    {doubt}; mode {mode}"]


def _describe_limits(storage: Storage) -> str:
    from policies.storage import Limit

    if storage.limit_policy:
        return f"limit_policy {storage.limit_policy}"
    if storage.min_available_bytes is not None:
        return f"min.available.bytes {storage.min_available_bytes:,}"
    if storage.min_available_ratio is not None:
        return f"min.available.ratio {storage.min_available_ratio:g}"
    pair = (("soft", storage.soft), ("hard", storage.hard))
    said = [f"{name} {Limit(limit.type, limit.level)}" for name, limit in pair if limit]
    return ", ".join(said) or "the volumes' own"


def _try_storage(settings: Settings) -> list[str]:
    """What is wrong with plugins and properties of storage and of thresholds.source. Connects nowhere.

    `serve` leaves it to control, which gives up with the same line: the parent need not load all that.
    """
    from gateway.plugins import PluginError

    problems = []
    if settings.storage is not None and not settings.storage.off:
        from gateway.control.storage_sources import StorageError, try_parts

        try:
            try_parts(settings, settings.storage)
        except StorageError as error:
            problems.append(str(error))
    if settings.thresholds.source:
        from gateway.storage import plugins

        try:
            plugins.load(plugins.QUOTA_SOURCES, settings.thresholds.source, settings.thresholds.options)
        except PluginError as error:
            problems.append(f"thresholds: {error}")
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
        try:
            from gateway.demo import command as demo
        except ModuleNotFoundError as error:
            if error.name != "kafka":
                raise
            return _fail(["the demo's producers need kafka-python: pip install 'produce-gateway[audit]'"])
        return int(demo.main(argv))
    if name in _COMMANDS:
        return int(import_module(_COMMANDS[name]).main(argv))
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
