# The commands. Each imports what it needs when it runs: `check_configuration` has no use for Spark, and an audit none
# for sockets.
#
# A user's mistake is one or more lines on stderr and exit code 1 (2 for a wrong command line), never a traceback.

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import time
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from gateway.cli_support.arguments import CommandParser, add_examples

if TYPE_CHECKING:
    from gateway.config import AuthenticationSettings, ConfigFinding, Listener, Settings, Storage, VolumeLimits
    from gateway.kafka.reach import ReachResult

# They parse their own arguments; the text is for the list of commands.
_OWN_PARSERS = {
    "demo": "producers against a threshold in front of a real Kafka, audited at the end (needs produce-gateway[demo])",
    "audit": "sums of the usage log: offered, accepted, rejected, errored bytes (needs produce-gateway[audit-local])",
    "status": "a running gateway in short: ready or not, traffic, storage, peers",
    "health": "whether a gateway lives, or is ready, as an exit code: for health checks",
    "reload": "have a running gateway read its configuration file again",
    "storage": "show a running gateway's view of the cluster's disks, and the factor in force",
    "explain": "every rule that looks at some traffic: limit, rate, which one binds, and why",
    "topics": "every topic of a running gateway with its threshold and rate",
    "top": "the topics produced to just now, sorted by rate, rejections or utilization",
    "clients": "who produces, at which rate, and why a client was held back last",
    "connections": "who is connected, from where, with which software, muted for how long and why",
    "peers": "the other gateways that share limits with this one",
    "history": "changes of policies at run time: who, when, from what",
    "groups": "resource groups: list, get, set, delete, attach, detach, and their usage",
    "policies": "show, export, compare or apply the policies that may be changed at run time",
    "kafka-quotas": "list, describe and alter client quotas of a gateway or a Kafka cluster, as KIP-546 has it",
    "volume-agent": "publish the volumes of a broker to the topic that source: snapshots reads; runs beside it",
    "scram-record": "make a user's record for authentication.credentials_file",
    "token": "make a token for the admin port, and the line by which the gateway knows it",
    "import-strimzi": "turn Strimzi's quota plugin's settings into this configuration (needs produce-gateway[strimzi])",
}
_COMMANDS = {
    **{name: f"gateway.commands.{name}" for name in ("groups", "health", "policies", "storage")},
    **{name: f"gateway.commands.credentials.{name.replace('-', '_')}" for name in ("scram-record", "token")},
    "kafka-quotas": "gateway.commands.kafka_quotas",
    "volume-agent": "gateway.agent.command",
}


class _ExtraCommand(NamedTuple):
    """A command of the distribution produce-gateway-extras. `needs`: modules to look for before it begins, by the names
    of what has them; its own package is the first.
    """

    title: str
    module: str
    extra: str
    needs: dict[str, str]


_EXTRAS = "produce-gateway-extras"
_EXTRA_COMMANDS = {
    # It says itself what else it needs, once its options are known to be right.
    "audit": _ExtraCommand("the audit", "gateway.audit.cli", "audit", {_EXTRAS: "gateway.audit"}),
    "demo": _ExtraCommand(
        "the demo",
        "gateway.demo.command",
        "demo",
        {
            _EXTRAS: "gateway.demo",
            "kafka-python": "kafka",
            "PySpark": "pyspark",
            "Matplotlib": "matplotlib",
            "deltalake": "deltalake",
        },
    ),
    "import-strimzi": _ExtraCommand(
        "import-strimzi", "gateway.strimzi.command", "strimzi", {_EXTRAS: "gateway.strimzi"}
    ),
}
_VIEW_COMMANDS = ("status", "clients", "connections", "peers", "history", "explain", "topics", "top", "reload")
_HELP_EPILOG = """\
examples:
  produce-gateway check gateway.yaml --strict
  produce-gateway serve gateway.yaml
  produce-gateway status gateway.yaml
  produce-gateway explain --topic clicks --user alice
  produce-gateway completion bash > ~/.local/share/bash-completion/completions/produce-gateway

Each command has --help, with examples. Exit codes: 0 done, 1 not done, 2 a wrong command line, 130 interrupted;
audit has 3 for an incomplete log. Documentation: docs/commands.md
"""
_EXAMPLES_OF = {
    "serve": ["gateway.yaml"],
    "check": ["gateway.yaml --strict", "--json - < gateway.yaml", "gateway.yaml --connect"],
    "schema": ["> gateway.schema.json"],
    "completion": [
        "bash > ~/.local/share/bash-completion/completions/produce-gateway",
        "zsh > ~/.zfunc/_produce-gateway          # in a folder of $fpath",
    ],
}
_SHOWN_NODE_IDS = (0, 1, 2)  # whose ports `check_configuration` shows


def main(argv: list[str]) -> int:
    """Run a command; the result is the exit code."""
    if argv and argv[0] in _OWN_PARSERS:
        return _run_subcommand(argv[0], argv[1:])
    parser = _make_parser()
    if argv and not argv[0].startswith("-") and argv[0] not in _command_names():
        from gateway.name_hints import name_hint

        print(f"produce-gateway: unknown command {argv[0]!r}; {name_hint(argv[0], _command_names())}", file=sys.stderr)
        return 2
    args = parser.parse_args(argv)
    match args.command:
        case "serve":
            return serve_gateway(args.config)
        case "check":
            return check_configuration(args.config, connect=args.connect, strict=args.strict, as_json=args.json)
        case "schema":
            return print_schema()
        case "completion":
            return print_completion(args.shell)
        case "version":
            from gateway import compiled

            print(f"produce-gateway {version('produce-gateway')}, hot path: {compiled.compilation_state()}")
            return 0
        case "help":
            parser.print_help()
            return 0
    parser.print_help()
    return 2


def serve_gateway(path: Path) -> int:
    """Run the gateway until SIGTERM or SIGINT."""
    # What is imported and read here stays, or is freed by its reference count: to look for garbage in it meanwhile is a
    # third of the time where there are many quotas.
    gc.disable()
    from gateway.config import examine_config
    from gateway.control.lifecycle.examination import TO_SERVE

    read_at_ns = time.time_ns()
    examined = examine_config(path, *TO_SERVE)
    settings = examined.settings
    if settings is None or examined.findings:
        gc.enable()
        return _print_errors(examined.lines)
    from gateway import config, parent_link, supervisor
    from gateway.log.logs import configure_logging, install_hooks
    from gateway.system import cores
    from policies.fleet import page

    configure_logging(settings.log)
    install_hooks()
    for warning in config.find_warnings(settings):
        logging.getLogger("gateway").warning("%s", warning)
    from gateway.listener_names import bootstrap_socket_name

    sockets = {bootstrap_socket_name(name): (own.host, own.port) for name, own in settings.all_listeners.items()}
    sockets["admin"] = (settings.admin.host, settings.admin.port)
    workers = cores.count_cores() if settings.workers == "auto" else settings.workers
    if workers > 1:
        logging.getLogger("gateway").info("%d workers", workers)
    as_json = settings.model_copy(update={"workers": workers}).model_dump_json(by_alias=True).encode()
    gc.freeze()
    gc.enable()
    return supervisor.run_gateway(
        as_json,
        sockets,
        workers=workers,
        memory_bytes=page.page_size(workers),
        drain_timeout_s=settings.drain_timeout,
        shutdown_delay_s=settings.shutdown_delay,
        origin=parent_link.ConfigOrigin(tuple(map(str, examined.files)), read_at_ns),
        log_format=settings.log.format,
        health=settings.health_address,
    )


def check_configuration(path: Path, *, connect: bool = False, strict: bool = False, as_json: bool = False) -> int:
    """Say whether a configuration can be used, and show its effect. Opens no connection, or with `connect` one to each
    broker. `strict`: warnings are errors.

    `as_json`: {config, ok, errors: [{line or null, variable or null, message}], warnings: as errors, effect: [text]}
    on stdout, whatever is found.
    """
    from gateway import config
    from gateway.control.lifecycle.examination import TO_CHECK

    examined = config.examine_config(path, *TO_CHECK)
    usable = None if examined.findings else examined.settings
    reached = _probe_brokers(usable) if usable and connect else []
    if away := [f"upstream: {each}" for each in reached if each.problem]:
        usable, examined = None, examined.with_problems(away)
    doubts = [*config.find_warnings(usable), *_certificate_warnings(usable)] if usable else []
    warnings = [examined.locate_finding(doubt) for doubt in doubts]
    ok = usable is not None and not (strict and warnings)
    if as_json:
        report = {
            "config": examined.source,
            "ok": ok,
            "errors": [_finding_data(finding) for finding in examined.findings],
            "warnings": [_finding_data(warning) for warning in warnings],
            "effect": [*summarize_settings(usable), *(f"connected  {each}" for each in reached)] if usable else [],
        }
        print(json.dumps(report, indent=2))
    elif usable is None:
        return _print_errors(examined.lines)
    elif not ok:
        return _print_errors([_warning_text(examined.source, warning) for warning in warnings])
    else:
        print(f"{examined.source}: OK")
        for line in summarize_settings(usable):
            print(f"  {line}")
        for each in reached:
            print(f"  connected  {each}")
        for warning in warnings:
            print(_warning_text(examined.source, warning))
    return 0 if ok else 1


def _finding_data(finding: ConfigFinding) -> dict[str, object]:
    return {"line": finding.line, "variable": finding.variable or None, "message": finding.text}


def _warning_text(source: str, warning: ConfigFinding) -> str:
    where = warning.variable or (source if warning.line is None else f"{source}:{warning.line}")
    return f"{where}: warning: {warning.text}"


def summarize_settings(settings: Settings) -> list[str]:
    """A configuration's effect, the mapping of ports included."""
    from policies.definitions.rollout import rollout_text

    thresholds = settings.thresholds
    lines = [
        f"gateway    {settings.gateway_name}",
        f"upstream   {settings.upstream.bootstrap_servers}; {_describe_broker_tls(settings)}",
    ]
    for name, listener in settings.all_listeners.items():
        if settings.listener is None:
            lines.append(f"listener   {name}")
        lines += _summarize_listener(listener)
    lines.append(f"clients    {_describe_authentication(settings.authentication)}")
    lines.append(f"admin      {_describe_admin(settings)}")
    lines.append(f"health     {settings.health_url}/healthz, /readyz")
    lines.append(f"workers    {_describe_workers(settings)}")
    total = "none, nothing is rejected" if thresholds.total is None else f"{thresholds.total:,} bytes/s per broker"
    lines.append(f"total      {total}")
    if thresholds.total is not None:
        burst = f"; a burst of {thresholds.burst:g} s" if thresholds.burst else ""
        lines.append(f"on exceed  {thresholds.on_exceed}{burst}")
    lines += [f"broker {node_id:<3d} total {total:,.0f} bytes/s" for node_id, total in thresholds.by_broker().items()]
    for broker, value in sorted(
        thresholds.outbound_by_broker().items(), key=lambda item: -1 if item[0] is None else item[0]
    ):
        place = "each broker" if broker is None else f"broker {broker}"
        lines.append(f"consumers  with shares have shares of {value:,.0f} bytes/s of {place}")
    lines += [f"topic      {name}: {topic.threshold:,} bytes/s" for name, topic in sorted(thresholds.topics.items())]
    rollout = settings.rollout
    mode = rollout_text(rollout.threshold)
    lines.append(f"mode       {mode}; acks=0 over a limit: {settings.acks0}; reject_code {settings.reject_code}")
    if thresholds.source:
        lines.append(f"source     {thresholds.source} says both, asked every {thresholds.interval:g} s")
    if settings.client_quotas:
        lines.append(f"quotas     for {len(settings.client_quotas)} entities; mode {rollout_text(rollout.quota)}")
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


def _summarize_listener(listener: Listener) -> list[str]:
    from gateway.system.sockets import address_text

    host, port = listener.bootstrap_address
    on = listener.host if port == listener.port else address_text(listener.host, listener.port)
    lines = [f"bootstrap  {address_text(host, port)}, listening on {on}"]
    for node_id in sorted({*_SHOWN_NODE_IDS, *listener.brokers}):
        bound, (host, port) = listener.broker_port(node_id), listener.broker_address(node_id)
        beyond = port if listener.sni is not None else max(bound, port)
        place = address_text(host, port) if beyond <= 65535 else f"none, port {beyond} is beyond 65535: withheld"
        lines.append(f"broker {node_id:<3d} {place}")
    if listener.sni is None:
        shift = (listener.advertised_port or listener.port) - listener.port
        first = listener.port + 1 + shift
        host = listener.advertised_broker_host_pattern or listener.public_host
        lines.append(f"broker N   {address_text(host, first)}+N, up to N = {65535 - max(first, listener.port + 1)}")
    else:
        lines.append("broker N   on the same port, by the server name in the TLS handshake (SNI)")
    lines.append(f"TLS        {_describe_tls(listener)}")
    if listener.authentication is not None:
        lines.append(f"clients    {_describe_authentication(listener.authentication)}")
    return lines


def _describe_tls(listener: Listener) -> str:
    tls = listener.tls
    if tls is None:
        return "none: plain TCP"
    clients = {"none": "not asked for", "requested": "checked where one is sent", "required": "required"}
    return f"{' and '.join(tls.protocols)}, certificate {tls.keystore}; client certificates {clients[tls.client_auth]}"


def _describe_broker_tls(settings: Settings) -> str:
    tls = settings.upstream.tls
    if tls is None:
        return "plain TCP"
    if not tls.verifies:
        verified = "certificates not verified"
    else:
        cas = tls.ca or ("ssl.ca.pem" if tls.ca_pem else "the system's CAs")
        verified = f"certificates verified by {cas}, host names {'as well' if tls.checks_name else 'not'}"
    return f"TLS, {verified}; own certificate {tls.certificate or ('given' if tls.certificate_pem else 'none')}"


def _describe_workers(settings: Settings) -> str:
    from gateway.system import cores

    if settings.workers == "auto":
        return f"auto: {cores.count_cores()} on this machine, one for each core that the gateway may use"
    return str(settings.workers)


def _summarize_groups(settings: Settings) -> list[str]:
    from policies.definitions.rollout import rollout_text

    groups = settings.resource_groups
    lines = []
    if groups.groups:
        mode = rollout_text(settings.rollout.group)
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
    lines.append(f"limits     hold over {over if settings.exchanges_usage else 'this gateway alone'}")
    return lines


def _describe_admin(settings: Settings) -> str:
    """The address, and who may do what there."""
    from gateway.system.sockets import address_text

    admin = settings.admin
    kinds = {"tokens": bool(admin.tokens or admin.token_file), "client certificates": bool(admin.principals)}
    who = " and ".join(kind for kind, there in kinds.items() if there)
    others = {"viewer": "all others read", "none": "nobody else"}[admin.anonymous]
    url = f"{'https' if admin.tls else 'http'}://{address_text(admin.host, admin.port)}"
    return f"{url}; {f'roles by {who}, {others}' if who else 'no credentials'}"


def _certificate_warnings(settings: Settings) -> list[str]:
    """What clients will dislike about the listeners' certificates; workers log the same."""
    from gateway.listener_names import config_path
    from gateway.tls.certificate_names import find_name_warnings

    return [
        f"{config_path(name)}.{line}"
        for name, listener in settings.all_listeners.items()
        if listener.tls is not None
        for line in find_name_warnings(listener.tls, listener.advertised_hosts)
    ]


def _probe_brokers(settings: Settings) -> list[ReachResult]:
    """How each broker answers."""
    from gateway.kafka.client import BrokerAddress, NoAnswer
    from gateway.kafka.reach import ReachResult, reach_brokers

    upstream = settings.upstream
    try:
        return reach_brokers(upstream.properties, upstream.bootstrap_servers, upstream.connect_timeout)
    except NoAnswer as error:
        return [ReachResult(-1, BrokerAddress(*upstream.addresses()[0]), str(error))]


def _describe_authentication(own: AuthenticationSettings | None) -> str:
    if own is None or not own.enabled:
        return "SASL passes through to the brokers"
    clients = f"SASL ends here: {', '.join(own.mechanisms)}" if own.mechanisms else "clients by their certificates"
    brokers = f"credentials in {own.upstream_credentials_file}" if own.upstream_credentials_file else "none"
    return f"{clients}; to brokers: {brokers}"


def _summarize_storage(settings: Settings) -> list[str]:
    storage = settings.storage
    if storage is None or storage.is_disabled:
        return ["storage    not looked at, full disks hold nothing back"]
    if storage.factor_source:
        asked, limits = f"factor_source {storage.factor_source}", "its own"
    else:
        where = f" {storage.snapshot_settings.topic}" if storage.source == "snapshots" else ""
        where = f" {storage.prometheus.url}" if storage.source == "prometheus" and storage.prometheus else where
        asked, limits = storage.source + where, _describe_limits(storage)
    lines = [f"storage    {asked}, every {storage.check_interval:g} s; {settings.storage_admin.bootstrap_servers}"]
    lines.append(f"limits     {limits}")
    if storage.source == "snapshots":
        snapshots = storage.snapshot_settings
        doubt = f"{snapshots.fail_safe} when a broker has no snapshot younger than {snapshots.max_age:g} s"
    else:
        doubt = f"factor {storage.fallback:g} when nothing was learned for {storage.validity:g} s"
    mode = "observe" if "observe" in (settings.mode, storage.mode) else "enforce"
    if storage.scope == "affected":
        exempt = f", but for {', '.join(storage.exempt_topics)}" if storage.exempt_topics else ""
        lines.append(f"scope      topics with a replica on a volume at its limit{exempt}")
    if storage.remembers_brokers:
        lines.append(f"fenced     brokers with a volume at its limit are remembered for {storage.forget_after:g} s")
    return [*lines, f"no data    {doubt}; mode {mode}"]


def _describe_limits(storage: Storage) -> str:
    if storage.limit_policy:
        return f"limit_policy {storage.limit_policy}"
    if storage.min_available_bytes is not None:
        return f"min.available.bytes {storage.min_available_bytes:,}"
    if storage.min_available_ratio is not None:
        return f"min.available.ratio {storage.min_available_ratio:g}"

    def describe(limits: Storage | VolumeLimits) -> list[str]:
        pairs = (("soft", limits.soft), ("hard", limits.hard))
        return [f"{name} {each.limit}" for name, several in pairs for each in several]

    defaults = describe(storage) or ["the volumes' own"]
    return "; ".join([", ".join(defaults), *(f"{each.match}: {', '.join(describe(each))}" for each in storage.volumes)])


def print_schema() -> int:
    """The configuration's JSON Schema, for editors."""
    from gateway.config.schema import described_schema

    print(json.dumps(described_schema(), indent=2))
    return 0


def print_completion(shell: str) -> int:
    """A script that completes commands and options."""
    import shtab

    print(shtab.complete(_make_parser(whole=True), shell))
    return 0


def _command_names() -> list[str]:
    return ["serve", "check", *_OWN_PARSERS, "schema", "completion", "version", "help"]


def _make_parser(*, whole: bool = False) -> argparse.ArgumentParser:
    """`whole`: with the options of commands that parse their own, as far as they can be had without running them."""
    parser = CommandParser(
        prog="produce-gateway",
        description="A Kafka gateway on the produce path: meters every byte and keeps producers within their limits.",
        epilog=_HELP_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"produce-gateway {version('produce-gateway')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in (("serve", "run the gateway"), ("check", "validate a configuration and show its effect")):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("config", type=Path, metavar="CONFIG", help="YAML file; -: standard input")
        if name == "check":
            command.add_argument("--strict", action="store_true", help="refuse what there are warnings of, too")
            command.add_argument("--json", action="store_true", help="print findings and effect as JSON")
            command.add_argument(
                "--connect", action="store_true", help="connect to every broker as well, and say what is wrong there"
            )
        add_examples(command, *_EXAMPLES_OF[name])
    for name, text in _OWN_PARSERS.items():
        parents = [own] if whole and (own := _find_parser(name)) else []
        commands.add_parser(name, help=text, add_help=False, parents=parents)
    text = "print the configuration's JSON Schema, for editors"
    add_examples(commands.add_parser("schema", help=text, description=text), *_EXAMPLES_OF["schema"])
    text = "print a script that completes commands and options in a shell"
    completion = commands.add_parser("completion", help=text, description=text)
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    add_examples(completion, *_EXAMPLES_OF["completion"])
    text = "print the version, and whether the hot path is compiled"
    add_examples(commands.add_parser("version", help=text, description=text), "")
    commands.add_parser("help", help="print this")
    return parser


def _find_parser(name: str) -> CommandParser | None:
    """A command's own parser; None: it has none that could be had."""
    if name in _VIEW_COMMANDS:
        from gateway.commands.views.commands import make_parser

        return make_parser(name)
    make = getattr(import_module(_COMMANDS[name]), "make_parser", None) if name in _COMMANDS else None
    return None if make is None else cast("CommandParser", make())


def _run_subcommand(name: str, argv: list[str]) -> int:
    if command := _EXTRA_COMMANDS.get(name):
        if missing := [package for package, module in command.needs.items() if find_spec(module) is None]:
            how = f"pip install 'produce-gateway[{command.extra}]'"
            if _EXTRAS in missing:
                how += f" (in the repository: pip install '.[{command.extra}]' ./extras)"
            return _print_errors([f"{command.title} needs {', '.join(missing)}: {how}"])
        return int(import_module(command.module).main(argv))
    if name in _VIEW_COMMANDS:
        from gateway.commands.views.commands import main as show_view

        return show_view(name, argv)
    return int(import_module(_COMMANDS[name]).main(argv))


def _print_errors(lines: list[str]) -> int:
    for line in lines:
        print(line, file=sys.stderr)
    return 1
