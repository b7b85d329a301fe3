# The configuration file: YAML in, one frozen and validated value out, or lines that say what is wrong, where, and what
# would be right. Each default stands here with its reason.
#
# Knows no sockets and no clients; whether librdkafka knows an `upstream` property is asked by `check` (cli.py), since
# the parent process reads this module and stays small; nor does it look for plugins. Sizes: MB = 10^6, MiB = 2^20.
# Durations: 500ms, 3s, 1h30m, or PT1M as ISO 8601 and the proposals have them.

from __future__ import annotations

import difflib
import math
import re
import socket
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.certificates import PROTOCOLS, ListenerTls
from gateway.durations import parse_iso8601
from gateway.hosts import is_loopback
from gateway.kafka import topic_names
from gateway.tokens import check_token
from policies import group_names, groups
from policies.storage import LimitType
from policies.thresholds import ThresholdError
from policies.thresholds import Thresholds as ThresholdRules
from policies.thresholds import check as check_thresholds
from policies.verdict import RETRIED_BY_ALL, THROTTLING_QUOTA_EXCEEDED
from protocol.api import ERROR_NAMES, RETRIABLE

if TYPE_CHECKING:
    from policies.policy_set import PolicyKey, Value

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


# Entry points by which plugins are found; see docs/plugins.md.
VOLUME_SOURCES: Final = "produce_gateway.volume_sources"
LIMIT_POLICIES: Final = "produce_gateway.limit_policies"
QUOTA_SOURCES: Final = "produce_gateway.quota_sources"
BUILT_IN_SOURCES: Final = ("log-dirs", "snapshots", "prometheus")


PEM: Final = "PEM"
TLS_PROTOCOLS: Final = tuple(PROTOCOLS)
MIN_CHECK_S: Final = 0.1  # of storage: sooner, one look would begin before the last is over
MAX_WORKERS: Final = 256  # more than cores of any machine that a gateway would have for itself
MAX_REQUEST_WAIT_S: Final = 15.0  # in all, delays included (docs/non-obvious.md)


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
    size = float(match[1]) * _UNITS[match[2]]
    if not math.isfinite(size):
        raise ValueError(f"{value[:20]!r}… is larger than any size can be: write for example 20MB or 20MiB")
    return round(size)


def parse_duration(value: object) -> object:
    """Seconds from a number or from text such as 500ms, 3s, 1h30m, PT1M.

    Raises:
        ValueError: text that is no duration.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if (seconds := parse_iso8601(text)) is not None:
        return seconds
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{value!r} is no duration: write for example 500ms, 3s, 1h30m or PT1M")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is needed here, not true or false")
    return value


def _check_topic_name(name: str) -> str:
    if not _KAFKA_NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} can't be a topic's name: letters, digits, '.', '_' and '-', at most 249")
    return name


def _checked(check: Callable[[str], None]) -> AfterValidator:
    """As a validator: `check` raises ValueError for a name that can't be."""

    def validate(name: str) -> str:
        check(name)
        return name

    return AfterValidator(validate)


def _check_plugin_name(name: str) -> str:
    if name and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(f"{name!r} can't be the name of an entry point: letters, digits, '.', '_' and '-'")
    return name


Size = Annotated[int, BeforeValidator(parse_size), BeforeValidator(_reject_bool)]
Seconds = Annotated[float, BeforeValidator(parse_duration), BeforeValidator(_reject_bool), Field(allow_inf_nan=False)]
Number = Annotated[float, BeforeValidator(_reject_bool), Field(allow_inf_nan=False)]
Port = Annotated[int, BeforeValidator(_reject_bool), Field(ge=1, le=65535)]
KafkaName = Annotated[str, AfterValidator(_check_topic_name)]
Workers = Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WORKERS)]
GroupName = Annotated[str, _checked(group_names.check_group)]
TenantName = Annotated[str, _checked(group_names.check_tenant)]
NamespaceName = Annotated[str, _checked(group_names.check_namespace)]
PluginName = Annotated[str, AfterValidator(_check_plugin_name)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _Client(_Section):
    """How a client of the gateway's own reaches a cluster."""

    model_config = ConfigDict(
        json_schema_extra={"patternProperties": {rf"^({'|'.join(map(re.escape, CLIENT_PROPERTIES))})": {}}},
    )
    bootstrap_servers: str
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
        return {**rest, "properties": {key: property_text(key, value) for key, value in properties.items()}}

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _check_servers(cls, value: object) -> object:
        if value == "" and not cls.model_fields["bootstrap_servers"].is_required():
            return value
        servers = value if isinstance(value, list) else str(value).split(",")
        texts = [str(server).strip() for server in servers]
        for text in texts:
            match = _ADDRESS.fullmatch(text)
            if match is None or not 1 <= int(match[1]) <= 65535:
                raise ValueError(f"{text!r} is no host:port; write for example broker1:9092,broker2:9092")
        return ",".join(texts)


class Upstream(_Client):
    """The cluster behind the gateway, and how the gateway's own clients reach it."""

    metadata_refresh: Seconds = Field(
        default=5.0, ge=0.1, le=3600
    )  # a new topic changes implicit shares: a tick is 5 s too
    connect_timeout: Seconds = Field(
        default=3.0, gt=0, le=60
    )  # clients give up a dead broker after 10 to 30 s themselves

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap servers as (host, port)."""
        pairs = (server.rpartition(":") for server in self.bootstrap_servers.split(","))
        return tuple((host.strip("[]"), int(port)) for host, _, port in pairs)


class Listener(_Section):
    host: str = "127.0.0.1"  # reachable from elsewhere only when somebody says so
    port: Port = 19092
    advertised_host: str = ""  # "": the host itself
    brokers: dict[int, Port] = {}  # node id -> port, where port + 1 + node id doesn't fit
    # TLS, in Kafka's names; PEM only. Whether the files can be used is asked by `check` and `serve`, not here: control
    # validates these settings again whenever it starts, and a file that was changed for the worse must not stop it.
    keystore: Annotated[str, Field(alias="ssl.keystore.location")] = ""  # "": plain TCP
    keystore_type: Annotated[str, Field(alias="ssl.keystore.type")] = PEM
    key: Annotated[str, Field(alias="ssl.key.location")] = ""  # "": it is in the keystore's file, as Kafka has it
    key_password: Annotated[str, Field(alias="ssl.key.password", max_length=1000)] = ""
    truststore: Annotated[str, Field(alias="ssl.truststore.location")] = ""
    truststore_type: Annotated[str, Field(alias="ssl.truststore.type")] = PEM
    client_auth: Annotated[Literal["none", "requested", "required"], Field(alias="ssl.client.auth")] = "none"
    protocols: Annotated[tuple[str, ...], Field(alias="ssl.enabled.protocols", min_length=1)] = TLS_PROTOCOLS

    @field_validator("keystore_type", "truststore_type")
    @classmethod
    def _check_type(cls, value: str) -> str:
        if value.upper() != PEM:
            raise ValueError(
                f"{value} can't be read, only PEM: convert it with openssl pkcs12 -in FILE -out FILE.pem (a JKS file"
                " first with keytool -importkeystore -deststoretype pkcs12)"
            )
        return PEM

    @field_validator("key_password", mode="before")
    @classmethod
    def _read_password(cls, value: object) -> object:
        return property_text("ssl.key.password", value)

    @field_validator("protocols", mode="before")
    @classmethod
    def _check_protocols(cls, value: object) -> object:
        names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
        for name in names if isinstance(names, list) else ():
            if name not in TLS_PROTOCOLS:
                raise ValueError(f"{name} is not spoken: write one or both of {', '.join(TLS_PROTOCOLS)}")
        return names

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        for name in ("key", "key_password", "truststore", "client_auth", "protocols"):
            field = type(self).model_fields[name]
            if not self.keystore and getattr(self, name) != field.default:
                raise ValueError(
                    f"{field.alias}: has no effect without a certificate: write ssl.keystore.location: server.pem"
                )
        if self.client_auth != "none" and not self.truststore:
            raise ValueError(
                f"ssl.client.auth: {self.client_auth} needs to know whose certificates to take: write"
                " ssl.truststore.location: clients-ca.pem"
            )
        if self.truststore and self.client_auth == "none":
            raise ValueError(
                "ssl.truststore.location: clients are asked for no certificate: write ssl.client.auth: required, or"
                " requested, or leave it out"
            )
        return self

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

    @property
    def tls(self) -> ListenerTls | None:
        """None: plain TCP."""
        if not self.keystore:
            return None
        return ListenerTls(
            self.keystore, self.key, self.key_password, self.truststore, self.client_auth, self.protocols
        )

    def broker_port(self, node_id: int) -> int:
        """The port of that broker's listener; it may be beyond 65535, then nothing can be opened there."""
        return self.brokers.get(node_id, self.port + 1 + node_id)


class Admin(_Section):
    """`tokens`, and those in `token_file`, one in each line, give admin rights. Without either who asks from this
    machine has them; and with `open` whoever reaches the port may change what needs none.
    """

    host: str = "127.0.0.1"  # metrics name topics and clients
    port: Port = 9190
    tokens: tuple[Annotated[str, AfterValidator(check_token)], ...] = ()
    token_file: Path | None = None  # read again when it changes
    hosts: tuple[str, ...] = ()  # more names under which it is asked, such as that of a Kubernetes service
    open: bool = False

    @model_validator(mode="after")
    def _check_open(self) -> Self:
        if not (is_loopback(self.host) or self.tokens or self.token_file or self.open):
            raise ValueError(
                f"host: {self.host or 'every address'} is reached from elsewhere, and whoever reaches it could change"
                " policies: write token_file: FILE, or open: true if that is meant"
            )
        return self

    @property
    def names(self) -> frozenset[str]:
        """Lower-case names that a request's header Host may have."""
        return frozenset(name.lower() for name in (self.host, *self.hosts))


class TopicThreshold(_Section):
    threshold: Annotated[Size, Field(alias="bytes.in.per.sec.threshold", ge=0)]


class BrokerThreshold(_Section):
    total: Annotated[Size, Field(alias="total.bytes.in.per.sec.threshold", gt=0)]


class Thresholds(_Section):
    """Bytes per second and upstream broker. `brokers`: node id -> a total of its own."""

    total: Annotated[Size | None, Field(alias="total.bytes.in.per.sec.threshold", gt=0)] = None
    brokers: dict[Annotated[int, Field(ge=0)], BrokerThreshold] = {}
    topics: dict[str, TopicThreshold] = {}
    on_exceed: Literal["reject", "delay"] = "reject"  # as the proposal has it
    mode: Literal["enforce", "observe"] = "enforce"
    source: PluginName = ""  # of the operator's own (produce_gateway.quota_sources): replaces total and topics
    options: dict[str, Any] = {}  # handed to it
    interval: Seconds = Field(default=60.0, gt=0, le=86400)  # how often it is asked

    @field_validator("topics")
    @classmethod
    def _check_names(cls, topics: dict[str, TopicThreshold]) -> dict[str, TopicThreshold]:
        for name in topics:
            _check_topic_name(name)
        return topics

    @model_validator(mode="after")
    def _check_sum(self) -> Self:
        check_thresholds(self.total, self.by_topic())
        for node_id, total in self.by_broker().items():
            try:
                check_thresholds(total, self.by_topic())
            except ThresholdError as error:
                raise ValueError(f"brokers.{node_id}: {error}") from error
        if self.options and not self.source:
            raise ValueError(f"options: are handed to a source of your own: write source: NAME ({QUOTA_SOURCES})")
        return self

    def by_topic(self) -> dict[str, float]:
        return {name: float(topic.threshold) for name, topic in self.topics.items()}

    def by_broker(self) -> dict[int, float]:
        return {node_id: float(broker.total) for node_id, broker in self.brokers.items()}

    @property
    def limits_bytes(self) -> bool:
        """Whether any broker has a total, so that anything is ever over it."""
        return self.total is not None or bool(self.brokers) or bool(self.source)


class UsageLog(_Section):
    topic: KafkaName = topic_names.USAGE
    spool_dir: Path = Path("./spool")
    max_spool_bytes: Size = Field(default=2**30, ge=2**20)  # a day without Kafka at 12 kB/s: about 50 busy clients
    retention: Seconds = Field(default=7 * 86400.0, ge=0)  # published files stay so long: the audit can read them too
    partitions: int = Field(default=3, ge=1, le=1000)
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less


class GroupRates(_Section):
    """Limits of one resource group over all gateways, per second; None: none. The names are PIP-82's."""

    publish_bytes: Annotated[Size | None, Field(alias="publishRateInBytes", gt=0)] = None
    publish_msgs: Annotated[Number | None, Field(alias="publishRateInMsgs", gt=0)] = None
    dispatch_bytes: Annotated[Size | None, Field(alias="dispatchRateInBytes", gt=0)] = None
    dispatch_msgs: Annotated[Number | None, Field(alias="dispatchRateInMsgs", gt=0)] = None


class ResourceGroups(_Section):
    """Limits that tenants and namespaces have together, and how a topic's or a principal's name says whose it is."""

    topic_pattern: str = groups.DEFAULT_PATTERN
    principal_pattern: str = ""  # "": principals say nothing
    mode: Literal["enforce", "observe"] = "enforce"
    groups: dict[GroupName, GroupRates] = {}
    tenants: dict[TenantName, GroupName] = {}
    namespaces: dict[NamespaceName, GroupName] = {}  # "tenant/namespace"

    @field_validator("groups", mode="before")
    @classmethod
    def _fill_groups(cls, value: object) -> object:
        """`silver:` alone is a group without limits, for what is set at run time."""
        return {key: {} if own is None else own for key, own in value.items()} if isinstance(value, dict) else value

    @field_validator("topic_pattern", "principal_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            groups.check_pattern(pattern, "")
        except groups.PatternError as error:
            raise ValueError(str(error).removeprefix(": ")) from error
        return pattern

    @model_validator(mode="after")
    def _check_attached(self) -> Self:
        for key, attached in (("tenants", self.tenants), ("namespaces", self.namespaces)):
            for name, group in attached.items():
                if group not in self.groups:
                    known = ", ".join(sorted(self.groups)) or "none"
                    raise ValueError(f"{key}.{name}: there is no group {group}; groups has {known}")
        return self

    def as_document(self) -> dict[str, Any]:
        """What may be changed at run time, as a document of `policies export` has it."""
        return self.model_dump(by_alias=True, exclude_none=True, include={"groups", "tenants", "namespaces"})


class PoliciesStore(_Section):
    """Where policies changed at run time are kept: in the topic, or with `internal_topics: none` in the file."""

    topic: KafkaName = topic_names.POLICIES
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less
    file: Path | None = None  # None: policies.jsonl in usage_log.spool_dir, which is this gateway's alone


class StorageLimit(_Section):
    """Bytes, or for MinFreePercentage a share of the volume."""

    type: LimitType
    level: float = Field(gt=0, allow_inf_nan=False)

    @field_validator("level", mode="before")
    @classmethod
    def _parse_level(cls, value: object, info: ValidationInfo) -> object:
        _reject_bool(value)
        return value if info.data.get("type") == "MinFreePercentage" else parse_size(value)

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        if self.type == "MinFreePercentage" and self.level > 1:
            raise ValueError(f"level: {self.level:g} is no share of a volume: write for example 0.2 for 20 %")
        return self


class StorageAdmin(_Client):
    """Where the sources ask; what is left out is upstream's, the properties all together."""

    bootstrap_servers: str = ""


class Snapshots(_Section):
    """Volume snapshots in a compacted topic, written by `produce-gateway volume-agent` beside each broker."""

    topic: KafkaName = topic_names.VOLUMES
    max_age: Seconds = Field(default=180.0, gt=0, le=7 * 86400)  # three of an agent's rounds
    fail_safe: Literal["PAUSE", "OPEN"] = "PAUSE"  # 035's default
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less


class PrometheusQueries(_Section):
    """How a Prometheus is asked for volumes; what the keys mean says gateway/storage/prometheus.py."""

    url: str
    available: str = ""
    size: str = ""
    broker_label: str = ""
    volume_label: str = ""
    broker_pattern: str | None = None
    brokers: dict[str, int] = {}
    expected_brokers: tuple[int, ...] | None = None
    max_age: Seconds = Field(default=180.0, gt=0, le=7 * 86400)
    timeout: Seconds = Field(default=10.0, gt=0, le=60)
    username: str = ""
    password_file: str = ""
    bearer_token_file: str = ""
    ca_file: str = ""


class Storage(_Section):
    """What keeps full disks from taking the cluster down: a factor on every produce limit."""

    source: PluginName = "log-dirs"  # log-dirs, snapshots, prometheus, or one of the operator's own
    check_interval: Seconds = Field(default=60.0, ge=0, le=86400)  # 0: off
    admin: StorageAdmin | None = None
    min_available_bytes: Annotated[Size | None, Field(alias="min.available.bytes", gt=0)] = None
    min_available_ratio: Annotated[Number | None, Field(alias="min.available.ratio")] = None
    soft: StorageLimit | None = None
    hard: StorageLimit | None = None
    fallback: Annotated[Number, Field(alias="throttle.factor.fallback")] = 1.0
    validity: Annotated[Seconds, Field(alias="throttle.factor.validity.duration", ge=0, le=7 * 86400)] = 300.0
    mode: Literal["enforce", "observe"] = "enforce"
    snapshots: Snapshots | None = None
    prometheus: PrometheusQueries | None = None
    options: dict[str, Any] = {}  # of the source, or of factor_source in its place
    limit_policy: PluginName = ""
    limit_policy_options: dict[str, Any] = {}
    factor_source: PluginName = ""

    @field_validator("check_interval")
    @classmethod
    def _check_interval(cls, seconds: float) -> float:
        if 0 < seconds < MIN_CHECK_S:
            raise ValueError(f"{seconds:g} s is too often: write at least 100ms, or PT0S for off")
        return seconds

    @field_validator("min_available_ratio")
    @classmethod
    def _check_ratio(cls, ratio: float | None) -> float | None:
        if ratio is not None and not 0 < ratio <= 1:
            raise ValueError(f"{ratio:g} is no share of a volume: write one above 0, at most 1, such as 0.01 for 1 %")
        return ratio

    @field_validator("fallback")
    @classmethod
    def _check_fallback(cls, factor: float) -> float:
        if not 0 <= factor <= 1:
            raise ValueError(
                f"{factor:g} is no factor: write 1.0 to leave limits as they are, 0.0 to pause, or between"
            )
        return factor

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        given = self._limit_keys()
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]}: two kinds of limit at once: keep one of them")
        if self.soft and self.hard and self.soft.type == self.hard.type:
            later = self.soft.level - self.hard.level
            if (later if self.soft.type == "ConsumedBytes" else -later) >= 0:
                right = "less" if self.soft.type == "ConsumedBytes" else "more"
                raise ValueError(
                    f"soft: level {self.soft.level:g} is reached no earlier than hard's {self.hard.level:g}: {right}"
                    f" {self.soft.type} for soft than for hard"
                )
        if self.brings_no_limits and not given and self.check_interval:
            raise ValueError(
                "no limit is given: write min.available.bytes: 1GB, or min.available.ratio: 0.01, or"
                " hard: {type: MinFreeBytes, level: 10GB}"
            )
        return self

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.factor_source:
            beside = [*self._limit_keys(), *(["source"] if self.source != "log-dirs" else [])]
            beside += ["admin"] if self.admin else []
            if beside:
                raise ValueError(
                    f"{beside[0]}: factor_source {self.factor_source} stands in its place: keep one of them"
                )
        for name in ("snapshots", "prometheus"):
            if getattr(self, name) and self.factor_source:
                raise ValueError(f"{name}: factor_source {self.factor_source} stands in its place: keep one of them")
            if getattr(self, name) and self.source != name:
                raise ValueError(
                    f"{name}: has no effect with source {self.source}: write source: {name}, or leave it out"
                )
        if self.source == "prometheus" and not self.prometheus:
            raise ValueError(
                "source prometheus: its address is needed: write prometheus: {url: http://prometheus:9090}"
            )
        if self.options and not (self.own_source or self.factor_source):
            other = "limit_policy_options for those of limit_policy" if self.limit_policy else "leave them out"
            raise ValueError(
                f"options: are handed to a source of your own, and {self.source} is built in: write source: NAME"
                f" ({VOLUME_SOURCES}), or {other}"
            )
        if self.limit_policy_options and not self.limit_policy:
            raise ValueError(
                f"limit_policy_options: are handed to limits of your own: write limit_policy: NAME ({LIMIT_POLICIES})"
            )
        if self.source == "snapshots" and (self.fallback, self.validity) != (1.0, 300.0):
            key = "throttle.factor." + ("fallback" if self.fallback != 1.0 else "validity.duration")
            right = "fail_safe" if self.fallback != 1.0 else "max_age"
            raise ValueError(f"{key}: has no effect with source snapshots: write snapshots: {{{right}: …}}")
        return self

    @property
    def own_source(self) -> bool:
        """The source is a plugin."""
        return self.source not in BUILT_IN_SOURCES

    @property
    def brings_no_limits(self) -> bool:
        """Nothing but this file says where a volume's limits are."""
        return self.source in ("log-dirs", "prometheus") and not self.factor_source

    @property
    def off(self) -> bool:
        return self.check_interval == 0

    @property
    def reads(self) -> Snapshots:
        """The section `snapshots`, with its defaults."""
        return self.snapshots or Snapshots()

    def _limit_keys(self) -> list[str]:
        kinds = {
            "min.available.bytes": self.min_available_bytes is not None,
            "min.available.ratio": self.min_available_ratio is not None,
            "soft" if self.soft else "hard": self.soft is not None or self.hard is not None,
            "limit_policy": bool(self.limit_policy),
        }
        return [key for key, given in kinds.items() if given]


def _check_principal(principal: str) -> None:
    if ":" not in principal:
        raise ValueError(f"{principal!r} is no principal: write User:{principal}")


Principal = Annotated[str, _checked(_check_principal)]


class InternalClient(_Section):
    """Both together: a client id is what its client says, a principal is what a broker accepted."""

    principal: Principal
    client_id: str


class Internal(_Section):
    """Metered, never limited: replication, operators' tools."""

    principals: tuple[Principal, ...] = ()
    client_ids: tuple[str, ...] = ()  # whoever says so
    clients: tuple[InternalClient, ...] = ()


class Limits(_Section):
    max_request_bytes: Size = Field(default=100 * 2**20, ge=1024, le=2**31 - 1)  # Kafka's socket.request.max.bytes
    # Over all connections; beyond it the gateway stops reading.
    max_buffered_bytes: Size = Field(default=2**30, ge=2**20)
    # For a whole request from its first byte, and as long again as its bytes take at `min_rate`; a Java client gives
    # its request up after 30 s.
    frame_timeout: Seconds = Field(default=60.0, gt=0)
    min_rate: Size = Field(default=64 * 2**10, ge=1)  # bytes per second
    # From the connection to the head of its first request; clients send that at once.
    first_byte_timeout: Seconds = Field(default=30.0, gt=0)
    # From the connection to the end of SASL, where brokers want it; clients give up after 30 s.
    authentication_timeout: Seconds = Field(default=60.0, gt=0)
    # Without a byte from the client, and of an answer that it doesn't read: brokers' connections.max.idle.ms.
    idle_timeout: Seconds = Field(default=600.0, gt=0)
    max_connections: int = Field(default=20_000, ge=1)
    max_connections_per_address: int = Field(default=10_000, ge=1)  # one may stand for many behind a NAT or a proxy
    max_connections_per_principal: int = Field(default=10_000, ge=1)
    max_partitions_per_request: int = Field(default=10_000, ge=1, le=1_000_000)  # of one Produce request
    # Of a request that control reads whole (configs and client quotas): 1 MiB are 15,000 quotas and 0.6 s of its time.
    max_admin_request: Size = Field(default=2**20, ge=1024, le=16 * 2**20)
    # Pairs of principal and client id, which clients can multiply at will: per interval in the usage log, and in all in
    # /metrics, where each costs several series; the rest is counted as `other`.
    max_client_keys: int = Field(default=10_000, ge=1, le=1_000_000)
    max_client_metrics: int = Field(default=500, ge=0, le=100_000)
    # Pairs of broker and topic whose series are all in /metrics, at 0, from their first byte on.
    max_topic_metrics: int = Field(default=1000, ge=0, le=100_000)


class Settings(_Section):
    """A gateway's whole configuration."""

    upstream: Upstream
    listener: Listener = Listener()
    admin: Admin = Admin()
    workers: Workers = 1  # data processes; each keeps at most one core busy
    thresholds: Thresholds = Thresholds()
    client_quotas: tuple[dict[str, Any], ...] = ()  # as in a document of `policies export`
    client_quotas_mode: Literal["enforce", "observe"] = "enforce"
    client_quotas_api: Literal["gateway", "upstream"] = "gateway"  # whose are Describe- and AlterClientQuotas
    resource_groups: ResourceGroups = ResourceGroups()
    # The next three are PIP-82's: where gateways tell each other what they use.
    usage_topic: Annotated[KafkaName, Field(alias="resourceUsagePublishTopicName")] = topic_names.RESOURCE_USAGE
    publishes_usage: Annotated[bool, Field(alias="resourceUsagePublishToTopic")] = True
    usage_interval: Annotated[Seconds, Field(alias="resourceUsagePublishIntervalInSecs", ge=0.1, le=3600)] = 1.0
    resource_usage_report_every: int = Field(default=5, ge=1, le=1000)  # cycles: what didn't change is told again
    policies_store: PoliciesStore = PoliciesStore()
    storage: Storage | None = None
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

    @field_validator("workers", mode="before")
    @classmethod
    def _check_workers(cls, value: object) -> object:
        if value == "auto" or (type(value) is int and 1 <= value <= MAX_WORKERS):
            return value
        raise ValueError(f"{value!r} is neither a number of processes, 1 to {MAX_WORKERS}, nor auto: one for each core")

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
        if self.storage and self.storage.source == "snapshots" and self.storage.reads.topic == self.usage_log.topic:
            raise ValueError(f"storage.snapshots.topic: {self.usage_log.topic} is the usage log's: name another one")
        if self.policies_store.topic in (self.usage_log.topic, self.storage and self.storage.reads.topic):
            raise ValueError(f"policies_store.topic: {self.policies_store.topic} is another one's: name another topic")
        others = (self.usage_log.topic, self.policies_store.topic, self.storage and self.storage.reads.topic)
        if self.usage_topic in others:
            raise ValueError(f"resourceUsagePublishTopicName: {self.usage_topic} is another one's: name another topic")
        self._check_policy_values()
        has_soft = self.storage is not None and self.storage.soft is not None
        if has_soft and not self.thresholds.limits_bytes and not limits_production(self.policy_values()):
            raise ValueError(
                "storage.soft: a soft limit has no effect where no produce limit exists: write"
                " thresholds: {total.bytes.in.per.sec.threshold: 20MB}, or producer_byte_rate in client_quotas, or a"
                " group's publishRateInBytes, or leave soft out"
            )
        return self

    def _check_policy_values(self) -> None:
        from gateway.policy.document import DocumentError  # noqa: PLC0415  it reads sizes as this module does
        from policies.policy_set import PolicyError  # noqa: PLC0415

        try:
            self.policy_values()
        except DocumentError as error:
            raise ValueError("; ".join(error.lines)) from error
        except PolicyError as error:
            raise ValueError(f"client_quotas: {error}") from error

    def policy_values(self) -> dict[PolicyKey, Value]:
        """What the sections `thresholds`, `client_quotas` and `resource_groups` say: the base of what may be changed at
        run time.
        """
        thresholds = self.thresholds
        return self.base_with(thresholds.total, thresholds.by_topic())

    def base_with(self, total: float | None, topics: Mapping[str, float]) -> dict[PolicyKey, Value]:
        """The same with these thresholds, in bytes per second, in place of the file's.

        Raises:
            PolicyError: they can't be.
        """
        from gateway.policy.document import base_of  # noqa: PLC0415

        brokers, groups = self.thresholds.by_broker(), self.resource_groups.as_document()
        return base_of(total, topics, brokers, self.client_quotas, groups)

    @property
    def policies_file(self) -> Path:
        """Where policies changed at run time are kept without internal topics."""
        return self.policies_store.file or self.usage_log.spool_dir / "policies.jsonl"

    @property
    def own_topics(self) -> tuple[str, ...]:
        """Topics of the gateway's own: clients may not produce to them."""
        storage = self.storage
        volumes = (storage.reads.topic,) if storage and not storage.off and storage.source == "snapshots" else ()
        policies = (self.policies_store.topic,) if self.internal_topics == "kafka" else ()
        exchange = (self.usage_topic,) if self.exchanges else ()
        return (self.usage_log.topic, *policies, *exchange, *volumes)

    @property
    def exchanges(self) -> bool:
        """Whether limits hold over all gateways of the cluster, or for this one alone."""
        return self.publishes_usage and self.internal_topics == "kafka"

    @property
    def storage_admin(self) -> StorageAdmin:
        """Where storage sources ask, upstream's values in place of those that are left out."""
        own = (self.storage.admin if self.storage else None) or StorageAdmin()
        return StorageAdmin(
            bootstrap_servers=own.bootstrap_servers or self.upstream.bootstrap_servers,
            properties=own.properties or self.upstream.properties,
        )

    @property
    def gateway(self) -> str:
        """This gateway's name in usage records."""
        return self.gateway_id or f"{re.sub(r'[^a-zA-Z0-9._-]', '-', socket.gethostname())}-{self.listener.port}"


def limits_production(keys: Iterable[PolicyKey]) -> bool:
    """Whether there is a limit that storage's factor can lower: a broker's total, some client's bytes per second, or
    what a resource group may publish.

    Thresholds of topics limit nothing without a total, and shares are parts of one.
    """
    return any(
        key.kind == "broker"
        or (key.kind == "group" and key.key in (group_names.PUBLISH_BYTES, group_names.PUBLISH_MSGS))
        or (key.kind == "quota" and key.quota.type == "producer_byte_rate" and key.quota.unit != "shares")
        for key in keys
    )


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
    if settings.thresholds.on_exceed == "delay" and not settings.thresholds.limits_bytes:
        found.append("thresholds.on_exceed delay: without a total.bytes.in.per.sec.threshold nothing is delayed")
    if "SSL" in settings.upstream.properties.get("security.protocol", "").upper():
        found.append(
            "upstream security.protocol: client connections are relayed to brokers in plaintext in this release, so"
            " the bootstrap servers must lead to a listener without TLS"
        )
    admin = settings.admin
    if not is_loopback(admin.host) and not (admin.tokens or admin.token_file):
        found.append(f"admin.open: whoever reaches {admin.host}:{admin.port} may change policies")
    if settings.internal.client_ids:
        found.append(
            "internal.client_ids: any client can claim such an id and is then never limited: write internal.clients:"
            " [{principal: User:mirror, client_id: mirror}], which wants both"
        )
    found += _storage_warnings(settings)
    if settings.internal_topics == "none":
        found.append(
            "internal_topics none: usage records stay in usage_log.spool_dir and are not published to a topic;"
            " topic ids are learned from clients' metadata only; every limit holds for this gateway alone"
        )
    elif not settings.publishes_usage:
        found.append("resourceUsagePublishToTopic false: every limit holds for this gateway alone")
    return found


def _storage_warnings(settings: Settings) -> list[str]:
    storage = settings.storage
    if storage is None:
        return []
    if storage.off:
        return ["storage.check_interval PT0S: full disks are not looked for"]
    found = []
    if settings.mode != "observe" and storage.mode == "observe":
        found.append("storage.mode observe: full disks hold nothing back, what they would is only counted")
    if storage.source == "snapshots" and storage.reads.fail_safe == "OPEN":
        found.append("storage.snapshots.fail_safe OPEN: a broker whose snapshots are missing is taken to have room")
    if storage.soft and not storage.hard and storage.brings_no_limits:
        found.append(
            "storage.soft: without a hard limit producers are held only when a volume is full to the last byte"
        )
    if storage.fallback == 1.0 and storage.source != "snapshots":
        found.append(
            f"storage: throttle.factor.fallback 1.0: when nothing has been learned of the disks for"
            f" {storage.validity:g} s, nothing is held back; 0.0 would pause instead"
        )
    if settings.thresholds.limits_bytes and settings.thresholds.on_exceed == "reject":
        found.append(
            "storage: thresholds.on_exceed reject goes by the average of a minute and lets bursts in that no hard limit"
            " may have room for; delay bounds what is written between two checks"
        )
    return found + _headroom_warnings(storage, settings.thresholds)


def _headroom_warnings(storage: Storage, thresholds: Thresholds) -> list[str]:
    """Whether what is written between two checks has room behind the hard limit, as far as that needs no volume."""
    if storage.factor_source or storage.limit_policy:
        return []
    totals = [*thresholds.by_broker().values(), *([thresholds.total] if thresholds.total is not None else [])]
    if not totals:
        if thresholds.source:
            return []
        return [
            "storage: without a total.bytes.in.per.sec.threshold there is no bound to what is written between two"
            " checks: no hard limit is known to come early enough"
        ]
    hard = storage.hard
    room = hard.level if hard and hard.type == "MinFreeBytes" else storage.min_available_bytes
    written = max(totals) * (storage.check_interval + MAX_REQUEST_WAIT_S)
    if room is None or room >= written:
        return []
    key = "hard" if hard else "min.available.bytes"
    return [
        f"storage.{key}: {room:,.0f} bytes of head-room are less than the {written:,.0f} bytes that"
        f" {max(totals):,.0f} bytes/s bring to a broker within {storage.check_interval:g} s and the"
        f" {MAX_REQUEST_WAIT_S:g} s that a request may be on its way, not counting what replication adds: raise the"
        " limit or check more often"
    ]


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


def property_text(key: str, value: object) -> object:
    """librdkafka takes text only. A secret may stand in a file: {file: /run/secrets/password}.

    What is neither text, number, boolean nor such a file is given back as it is: it is the caller's to refuse.

    Raises:
        ValueError: the file can't be read.
    """
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
    text = finding["msg"].removeprefix("Value error, ")
    place = _named_in(root, loc, text) if finding["type"] == "value_error" else loc
    where = f"{source}:{_line_of(root, place)}: " if root is not None else f"{source}: "
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
        if _is_section(model):
            fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
            model = fields.get(str(part))
        else:
            model = (get_args(model) or (None,))[-1]  # dict[str, TopicThreshold]
        if isinstance(model, UnionType):  # Storage | None
            model = get_args(model)[0]
    if not _is_section(model):
        return []
    keys = [field.alias or name for name, field in model.model_fields.items()]
    return [*(key for key in keys if key != "properties"), *_USUAL_PROPERTIES] if issubclass(model, _Client) else keys


def _is_section(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)


def _named_in(root: yaml.Node | None, loc: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """The path with the keys that the text begins with ("storage.soft: …"), as far as they are in the file."""
    node, rest = _node_at(root, loc), text.partition(": ")[0]
    while rest and isinstance(node, yaml.MappingNode):
        keys = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
        key = max((key for key in keys if rest == key or rest.startswith((key + ".", key + " "))), key=len, default="")
        if not key:
            break
        loc, node, rest = (*loc, key), keys[key], rest[len(key) + 1 :]
    return loc


def _line_of(root: yaml.Node, loc: tuple[Any, ...]) -> int:
    """The line of the deepest part of the path that exists in the file."""
    return 1 + [root.start_mark.line, *(line for _, line in _steps(root, loc))][-1]


def _node_at(root: yaml.Node | None, loc: tuple[Any, ...]) -> yaml.Node | None:
    """The node at that path; None where the file has none."""
    nodes = [root, *(node for node, _ in _steps(root, loc))]
    return nodes[-1] if len(nodes) == len(loc) + 1 else None


def _steps(root: yaml.Node | None, loc: tuple[Any, ...]) -> Iterator[tuple[yaml.Node, int]]:
    """Node and line of each part of the path, as far as it exists in the file."""
    node = root
    for part in loc:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            yield node, node.start_mark.line
            continue
        found = [pair for pair in getattr(node, "value", ()) if isinstance(pair, tuple) and pair[0].value == str(part)]
        if not found:
            return
        node = found[0][1]
        yield node, found[0][0].start_mark.line
