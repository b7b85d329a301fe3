# The configuration file: YAML in, one frozen and validated value out, or lines that say what is wrong, where, and what
# would be right. Each default stands here with its reason.
#
# Knows no sockets and no clients; whether librdkafka knows an `upstream` property is asked by `check` (cli.py), since
# the parent process reads this module and stays small. Sizes: MB = 10^6, MiB = 2^20. Durations: 500ms, 3s, 1h30m.

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from policies.thresholds import Thresholds as ThresholdRules
from policies.thresholds import check as check_thresholds
from policies.verdict import RETRIED_BY_ALL, THROTTLING_QUOTA_EXCEEDED
from protocol.api import ERROR_NAMES, RETRIABLE

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|[kKMGT]?B|[KMGT]iB)")
_UNITS: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**i for i, letter in enumerate("KMGT", 1)},
    "kB": 1000,
    **{f"{letter}iB": 1024**i for i, letter in enumerate("KMGT", 1)},
}
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|s|m|h|d))")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_KAFKA_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/]+):(\d{1,5})")

# What may be handed to the gateway's own Kafka clients: how to reach and trust brokers, nothing that changes how they
# work. The names are librdkafka's.
CLIENT_PROPERTIES: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl.",
    "enable.sasl.",
    "https.",
    "socket.",
    "broker.address.",
)
_USUAL_PROPERTIES: Final = (
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm",
)  # fmt: skip


class ConfigError(Exception):
    """The configuration can't be used. `lines`: one finding each, made for a human."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def parse_size(value: object) -> object:
    """Bytes from an int or from text such as 20MB, 1.5GiB, 4096.

    Raises:
        ValueError: text that is no size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is no size: write for example 20MB (20 * 10^6), 20MiB (20 * 2^20) or 20000000")
    return round(float(match[1]) * _UNITS[match[2]])


def parse_duration(value: object) -> object:
    """Seconds from a number or from text such as 500ms, 3s, 1h30m.

    Raises:
        ValueError: text that is no duration.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{value!r} is no duration: write for example 500ms, 3s or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is needed here, not true or false")
    return value


Size = Annotated[int, BeforeValidator(parse_size), BeforeValidator(_reject_bool)]
Seconds = Annotated[float, BeforeValidator(parse_duration), BeforeValidator(_reject_bool), Field(allow_inf_nan=False)]
Port = Annotated[int, BeforeValidator(_reject_bool), Field(ge=1, le=65535)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Upstream(_Section):
    """The cluster behind the gateway, and how the gateway's own clients reach it."""

    model_config = ConfigDict(
        json_schema_extra={"patternProperties": {rf"^({'|'.join(map(re.escape, CLIENT_PROPERTIES))})": {}}},
    )
    bootstrap_servers: str
    metadata_refresh: Seconds = Field(
        default=5.0, ge=0.1, le=3600
    )  # a new topic changes implicit shares: a tick is 5 s too
    connect_timeout: Seconds = Field(
        default=3.0, gt=0, le=60
    )  # clients give up a dead broker after 10 to 30 s themselves
    properties: dict[str, str] = {}  # those that begin as CLIENT_PROPERTIES say; written beside the others in YAML

    @model_validator(mode="before")
    @classmethod
    def _collect_properties(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        properties = dict(data.get("properties") or {})
        for key in [key for key in data if isinstance(key, str) and key.startswith(CLIENT_PROPERTIES)]:
            properties[key] = data[key]
        rest = {key: value for key, value in data.items() if key not in properties}
        return {**rest, "properties": {key: _property_text(key, value) for key, value in properties.items()}}

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _check_servers(cls, value: object) -> object:
        servers = value if isinstance(value, list) else str(value).split(",")
        texts = [str(server).strip() for server in servers]
        for text in texts:
            match = _ADDRESS.fullmatch(text)
            if match is None or not 1 <= int(match[1]) <= 65535:
                raise ValueError(f"{text!r} is no host:port; write for example broker1:9092,broker2:9092")
        return ",".join(texts)

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap servers as (host, port)."""
        pairs = (server.rpartition(":") for server in self.bootstrap_servers.split(","))
        return tuple((host.strip("[]"), int(port)) for host, _, port in pairs)


class Listener(_Section):
    host: str = "127.0.0.1"  # reachable from elsewhere only when somebody says so
    port: Port = 19092
    advertised_host: str = ""  # "": the host itself
    brokers: dict[int, Port] = {}  # node id -> port, where port + 1 + node id doesn't fit

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.advertised_host and self.host in ("0.0.0.0", "::", ""):  # noqa: S104  compared, not bound
            raise ValueError(
                f"advertised_host is needed, because {self.host or 'an empty host'} is no address that clients can"
                " connect to: give the name under which they reach this gateway",
            )
        by_port: dict[int, str] = {self.port: "the bootstrap listener"}
        for node_id, port in self.brokers.items():
            if port in by_port:
                raise ValueError(f"brokers.{node_id}: port {port} is taken by {by_port[port]}")
            by_port[port] = f"broker {node_id}"
        return self

    @property
    def advertised(self) -> str:
        return self.advertised_host or self.host

    def broker_port(self, node_id: int) -> int:
        """The port of that broker's listener; it may be beyond 65535, then nothing can be opened there."""
        return self.brokers.get(node_id, self.port + 1 + node_id)


class Admin(_Section):
    host: str = "127.0.0.1"  # metrics name topics and clients
    port: Port = 9190


class TopicThreshold(_Section):
    threshold: Annotated[Size, Field(alias="bytes.in.per.sec.threshold", ge=0)]


class Thresholds(_Section):
    """Bytes per second and upstream broker."""

    total: Annotated[Size | None, Field(alias="total.bytes.in.per.sec.threshold", gt=0)] = None
    topics: dict[str, TopicThreshold] = {}
    on_exceed: Literal["reject", "delay"] = "reject"  # as the proposal has it
    mode: Literal["enforce", "observe"] = "enforce"

    @field_validator("topics")
    @classmethod
    def _check_names(cls, topics: dict[str, TopicThreshold]) -> dict[str, TopicThreshold]:
        for name in topics:
            if not _KAFKA_NAME.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"{name!r} can't be a topic's name: letters, digits, '.', '_' and '-', at most 249")
        return topics

    @model_validator(mode="after")
    def _check_sum(self) -> Self:
        check_thresholds(self.total, self.by_topic())
        return self

    def by_topic(self) -> dict[str, float]:
        return {name: float(topic.threshold) for name, topic in self.topics.items()}


class UsageLog(_Section):
    topic: str = "__produce_gateway_usage"
    spool_dir: Path = Path("./spool")
    max_spool_bytes: Size = Field(default=2**30, ge=2**20)  # a day without Kafka at 12 kB/s: about 50 busy clients
    retention: Seconds = Field(default=7 * 86400.0, ge=0)  # published files stay so long: the audit can read them too
    partitions: int = Field(default=3, ge=1, le=1000)
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        if not _KAFKA_NAME.fullmatch(topic):
            raise ValueError(f"{topic!r} can't be a topic's name: letters, digits, '.', '_' and '-', at most 249")
        return topic


class Internal(_Section):
    """Metered, never limited: replication, operators' tools."""

    principals: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()

    @field_validator("principals")
    @classmethod
    def _check_principals(cls, principals: tuple[str, ...]) -> tuple[str, ...]:
        for principal in principals:
            if ":" not in principal:
                raise ValueError(f"{principal!r} is no principal: write User:{principal}")
        return principals


class Limits(_Section):
    max_request_bytes: Size = Field(default=100 * 2**20, ge=1024, le=2**31 - 1)  # Kafka's socket.request.max.bytes
    # Over all connections; beyond it the gateway stops reading.
    max_buffered_bytes: Size = Field(default=2**30, ge=2**20)
    # A half-sent request without progress; a Java client gives up its request after 30 s.
    frame_timeout: Seconds = Field(default=60.0, gt=0)
    # Pairs of principal and client id, which clients can multiply at will: per interval in the usage log, and in all in
    # /metrics, where each costs several series; the rest is counted as `other`.
    max_client_keys: int = Field(default=10_000, ge=1, le=1_000_000)
    max_client_metrics: int = Field(default=500, ge=0, le=100_000)
    # Pairs of broker and topic that /metrics shows at 0 before their first byte.
    max_topic_metrics: int = Field(default=1000, ge=0, le=100_000)


class Settings(_Section):
    """A gateway's whole configuration."""

    upstream: Upstream
    listener: Listener = Listener()
    admin: Admin = Admin()
    thresholds: Thresholds = Thresholds()
    usage_log: UsageLog = UsageLog()
    internal_topics: Literal["kafka", "none"] = "kafka"
    internal: Internal = Internal()
    mode: Literal["enforce", "observe"] = "enforce"  # observe: every policy decides and counts, none acts
    acks0: Literal["delay", "drop"] = "delay"  # over a limit; dropping is silent: every client reports success
    policies: tuple[str, ...] = ()  # policies of your own: module:factory, see docs/policies.md
    reject_code: Literal["auto"] | int = "auto"
    unknown_apis: Literal["pass", "hide"] = "pass"
    limits: Limits = Limits()
    gateway_id: str = ""  # "": made of host name and port, so that two gateways of one host differ
    drain_timeout: Seconds = Field(default=30.0, gt=0, le=3600)  # Kubernetes waits 30 s before it kills

    @model_validator(mode="before")
    @classmethod
    def _skip_empty_sections(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @field_validator("reject_code", mode="before")
    @classmethod
    def _check_reject_code(cls, value: object) -> object:
        if value == "auto" or (type(value) is int and value in ERROR_NAMES and value != 0):
            return value
        raise ValueError(f"{value!r} is neither auto nor the number of a Kafka error, such as 89 or 19")

    @field_validator("policies")
    @classmethod
    def _check_policies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
                raise ValueError(f"{name!r} names no policy: write module:factory, for example mycompany.limits:make")
        return value

    @field_validator("gateway_id")
    @classmethod
    def _check_gateway_id(cls, value: str) -> str:
        if value and not re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", value):
            raise ValueError(f"{value!r}: letters, digits, '.', '_' and '-' only, since it is part of Kafka keys")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.limits.max_request_bytes > self.limits.max_buffered_bytes:
            raise ValueError(
                f"limits.max_request_bytes: {self.limits.max_request_bytes:,} bytes could never be read under"
                f" limits.max_buffered_bytes = {self.limits.max_buffered_bytes:,}: raise the latter",
            )
        if self.admin.host == self.listener.host and self.admin.port in (
            self.listener.port,
            *self.listener.brokers.values(),
        ):
            raise ValueError(f"admin.port: {self.admin.port} is a port of the listener as well: choose another one")
        return self

    @property
    def gateway(self) -> str:
        """This gateway's name in usage records."""
        return self.gateway_id or f"{re.sub(r'[^a-zA-Z0-9._-]', '-', socket.gethostname())}-{self.listener.port}"


def load(path: Path) -> Settings:
    """Read and validate a configuration file.

    Raises:
        ConfigError: everything that is wrong with it, with file, line and path of each.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: can't be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 text: {error.reason} at byte {error.start}"]) from error
    return parse(text, str(path))


def parse(text: str, source: str = "configuration") -> Settings:
    """Validate YAML text; `source` stands before each finding.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError([f"{source}{line}: {error.problem or 'no YAML'}"]) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: no YAML: {error}"]) from error
    if not isinstance(data, dict):
        raise ConfigError([f"{source}: keys such as upstream: and listener: are needed at the top level"])
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        lines = [_explain(finding, node, source) for finding in error.errors(include_url=False)]
        raise ConfigError(list(dict.fromkeys(lines))) from error


def warnings(settings: Settings) -> list[str]:
    """What is allowed but hardly meant, and what is off."""
    found = list(ThresholdRules(settings.thresholds.total, settings.thresholds.by_topic()).warnings())
    found += _code_warnings(settings.reject_code)
    if settings.mode == "observe":
        found.append("mode observe: nothing is limited, only counted (would_reject, would_delay)")
    elif settings.thresholds.mode == "observe":
        found.append("thresholds.mode observe: thresholds limit nothing, they are only counted")
    if settings.acks0 == "drop":
        found.append("acks0 drop: what is over a limit is lost, and its producers report success")
    if settings.thresholds.on_exceed == "delay" and settings.thresholds.total is None:
        found.append("thresholds.on_exceed delay: without a total.bytes.in.per.sec.threshold nothing is delayed")
    if "SSL" in settings.upstream.properties.get("security.protocol", "").upper():
        found.append(
            "upstream security.protocol: client connections are relayed to brokers in plaintext in this release, so"
            " the bootstrap servers must lead to a listener without TLS"
        )
    if settings.internal_topics == "none":
        found.append(
            "internal_topics none: usage records stay in usage_log.spool_dir and are not published to a topic;"
            " topic ids are learned from clients' metadata only"
        )
    return found


def _code_warnings(code: Literal["auto"] | int) -> list[str]:
    if code == "auto" or code in RETRIED_BY_ALL:
        return []
    name = ERROR_NAMES[code]
    if code == THROTTLING_QUOTA_EXCEEDED:
        return [
            f"reject_code {code} ({name}): librdkafka, sarama, aiokafka, KafkaJS and Java before 2.7 give up what is"
            " rejected with it; auto sends it only to those that retry it",
        ]
    if code not in RETRIABLE:
        return [f"reject_code {code} ({name}) is not retriable: clients drop what is rejected"]
    kept = ", ".join(map(str, sorted(RETRIED_BY_ALL)))
    return [
        f"reject_code {code} ({name}): not every client retries it, and idempotent producers are not protected from"
        f" losing records behind it; codes that all retry: {kept}",
    ]


class _Loader(yaml.SafeLoader):
    """A mapping with the same key twice is refused: PyYAML would take the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(None, None, f"{key.value} is there twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _property_text(key: str, value: object) -> object:
    """librdkafka takes text only. A secret may stand in a file: {file: /run/secrets/password}."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict) and set(value) == {"file"}:
        try:
            return Path(str(value["file"])).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{key}: file {value['file']} can't be read: {error}") from error
    return str(value) if isinstance(value, (int, float)) else value


def _explain(finding: Any, root: yaml.Node | None, source: str) -> str:
    loc = tuple(part for part in finding["loc"] if part not in ("[key]", "int", "literal['auto']"))
    path = ".".join(str(part) for part in loc)
    where = f"{source}:{_line_of(root, loc)}: " if root is not None else f"{source}: "
    text = finding["msg"].removeprefix("Value error, ")
    match finding["type"]:
        case "extra_forbidden":
            return f"{where}{path}: unknown key{_suggest(loc)}"
        case "missing":
            return f"{where}{path}: is required"
        case "value_error":
            return f"{where}{path}: {text}" if path else f"{where}{text}"
        case "string_type" if finding["loc"][-1:] == ("[key]",):
            return f"{where}{path}: YAML takes this key for no text but {type(loc[-1]).__name__}: put it in quotes"
        case "model_type" | "dict_type":
            return f"{where}{path}: keys with values are needed here, not {finding['input']!r}"
        case _:
            value = "what is there" if "password" in path or "secret" in path else repr(finding["input"])
            return f"{where}{path}: {text.removeprefix('Input ')}, not {value}"


def _suggest(loc: tuple[Any, ...]) -> str:
    known = _keys_at(loc[:-1])
    near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known here: {', '.join(sorted(known))}" if known else ""


def _keys_at(loc: tuple[Any, ...]) -> list[str]:
    model: Any = Settings
    for part in loc:
        if isinstance(model, type) and issubclass(model, BaseModel):
            fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
            model = fields.get(str(part))
        else:
            model = (get_args(model) or (None,))[-1]  # dict[str, TopicThreshold]
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    keys = [field.alias or name for name, field in model.model_fields.items()]
    return [*(key for key in keys if key != "properties"), *_USUAL_PROPERTIES] if model is Upstream else keys


def _line_of(root: yaml.Node, loc: tuple[Any, ...]) -> int:
    """The line of the deepest part of the path that exists in the file."""
    node, line = root, root.start_mark.line
    for part in loc:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
            continue
        found = [pair for pair in getattr(node, "value", ()) if isinstance(pair, tuple) and pair[0].value == str(part)]
        if not found:
            break
        line, node = found[0][0].start_mark.line, found[0][1]
    return line + 1
