# The agent's flags, over the file that --config names. Knows which is wrong, and not what is done with them.

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from pydantic import ValidationError

from gateway import yaml_text
from gateway.agent.settings import AgentSettings, OwnLimits, SettingsError
from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.config import property_text
from gateway.kafka import topic_names
from gateway.name_hints import name_hint
from gateway.validation_text import describe_finding

KAFKA_PREFIX: Final = "kafka."


def read_settings(argv: Sequence[str]) -> AgentSettings:
    """Flags, over the file that --config names.

    Raises:
        SettingsError: the fault, and its place.
    """
    args = vars(_make_parser().parse_args(argv))
    path: Path | None = args.pop("config")
    data = _read_file(path) if path is not None else {}
    given: dict[str, Any] = {name: value for name, value in args.items() if value is not None}
    for name in ("kafka", "volumes"):
        data[name] = data.get(name) or {}
        if not isinstance(data[name], dict):
            raise SettingsError(f"{path}: {name}: keys with values are needed here")
    for text in given.pop("kafka", []):
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SettingsError(f"--kafka {text}: write KEY=VALUE, for example security.protocol=SSL")
        data["kafka"][key.removeprefix(KAFKA_PREFIX)] = value
    for name in ("soft", "hard"):
        for text in given.pop(f"volume_{name}", []):
            log_dir, equals, value = text.rpartition("=")
            own = data["volumes"].get(log_dir) or {}
            if not equals or not log_dir or not isinstance(own, dict):
                raise SettingsError(f"--volume-{name} {text}: write LOG_DIR=TYPE:LEVEL")
            data["volumes"][log_dir] = {**own, name: value}
    try:
        data["kafka"] = {str(key): _client_property(str(key), value) for key, value in data["kafka"].items()}
        return AgentSettings.model_validate({**data, **given})
    except ValidationError as error:
        raise SettingsError(_explain_error(error, path, set(given))) from None
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = yaml_text.load_yaml(yaml_text.read_text(path), str(path))
    except yaml_text.YamlError as error:
        raise SettingsError(str(error)) from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise SettingsError(f"{path}: keys such as broker_id: and log_dirs: are needed at the top level")
    found: dict[str, Any] = {}
    kafka = {}
    for key, value in data.items():
        if key.startswith(KAFKA_PREFIX):
            kafka[key.removeprefix(KAFKA_PREFIX)] = value
        else:
            found[key.replace("-", "_")] = value
    if kafka and isinstance(found.get("kafka") or {}, dict):
        found["kafka"] = {**(found.get("kafka") or {}), **kafka}
    return found


def _client_property(key: str, value: object) -> str:
    text = property_text(f"kafka.{key}", value)
    if not isinstance(text, str):
        raise ValueError(f"kafka.{key}: a text or a number is needed, or {{file: PATH}}")
    return text


def _explain_error(error: ValidationError, path: Path | None, flags: set[str]) -> str:
    # A mistyped name before what is missing for it.
    first = min(error.errors(include_url=False, include_context=False), key=lambda f: f["type"] != "extra_forbidden")
    names = [str(part) for part in first["loc"]]
    text = describe_finding(first)
    if first["type"] == "missing" and names[0] in ("broker_id", "log_dirs"):
        return f"--{names[0].replace('_', '-')} is required (or {names[0]} in --config)"
    if first["type"] == "extra_forbidden":
        known = OwnLimits.model_fields if len(names) > 1 else AgentSettings.model_fields
        return f"{path}: {'.'.join(names)}: unknown key; {name_hint(names[-1], known)}"
    if not names:
        return text
    where = f"--{names[0].replace('_', '-')}" if names[0] in flags or path is None else f"{path}: {'.'.join(names)}"
    return f"{where}: {text}" if first["type"] == "value_error" else f"{where}: {text}, not {first['input']!r}"


class _AgentParser(CommandParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.describe_error(message)} (see {self.prog} --help)\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = _AgentParser(
        prog="produce-gateway volume-agent",
        description="Publish the usage of a broker's volumes, for gateways with `storage: {source: snapshots}`. Runs"
        " beside the broker.",
        epilog="TYPE is ConsumedBytes, MinFreeBytes (LEVEL: a size such as 10GB) or MinFreePercentage (LEVEL: percent"
        " from 1 to 100; the gateway's own file has 0..1 there). Without a limit here the gateway's own applies.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--broker-id", metavar="N", help="node.id of the broker")
    add("--log-dirs", metavar="PATH,…", help="the broker's log.dirs")
    add("--bootstrap-servers", metavar="HOST:PORT,…", help="the cluster (127.0.0.1:9092)")
    add("--kafka", metavar="KEY=VALUE", action="append", help="property of librdkafka, such as security.protocol=SSL")
    add("--topic", help=f"the volume topic ({topic_names.VOLUMES}); created, compacted, where it doesn't exist")
    add("--replication", metavar="N", help="its copies when it is created (3, or as many as there are brokers)")
    add("--interval", metavar="DURATION", help="between snapshots, PT30S or 30s (PT30S)")
    add("--soft", metavar="TYPE:LEVEL", help="where producers should be throttled")
    add("--hard", metavar="TYPE:LEVEL", help="where they should be paused")
    for name in ("soft", "hard"):
        add(
            f"--volume-{name}",
            metavar="LOG_DIR=TYPE:LEVEL",
            action="append",
            help=f"another --{name} for that log dir's volume; none: only the gateway's",
        )
    add("--metrics", metavar="HOST:PORT", help="where /metrics is, or off (127.0.0.1:9191)")
    add("--log-format", metavar="FORMAT", help="console or json (console)")
    add("--config", metavar="FILE", type=Path, help="YAML file: these names as keys, kafka.KEY for --kafka")
    add_examples(
        parser,
        "--broker-id 1 --log-dirs /var/lib/kafka --bootstrap-servers kafka:9092",
        "--config agent.yaml --interval 10s --hard MinFreeBytes:10GB",
    )
    return parser
