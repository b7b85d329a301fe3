# The sections of the configuration file as frozen, validated values. Each default stands here with its reason.
#
# Knows no sockets, no clients and no file but those that sections name.

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from gateway.access_tokens.tokens import parse_token_line
from gateway.config.authentication import Authentication
from gateway.config.clients import Client
from gateway.config.fields import (
    MAX_GATEWAY_ID,
    MAX_WORKERS,
    FieldFaults,
    GroupName,
    Host,
    KafkaName,
    ListenerName,
    NamespaceName,
    Network,
    Number,
    Pattern,
    Percent,
    PluginName,
    Port,
    Principal,
    Seconds,
    Section,
    Size,
    TenantName,
    Workers,
)
from gateway.config.listeners import Listener, check_port_conflicts
from gateway.config.logs import Log
from gateway.config.storage import Storage, StorageAdmin, limits_production
from gateway.config.tls import TlsSection
from gateway.kafka import topic_names
from gateway.listener_names import DEFAULT_LISTENER
from gateway.policy_document import DocumentError, configured_policies
from gateway.storage.plugins import QUOTA_SOURCES
from gateway.system.hosts import is_loopback
from gateway.system.sockets import address_text
from gateway.tls.broker_tls import BrokerTls, parse_broker_tls
from gateway.tls.principal_rules import ANONYMOUS
from policies.definitions.policy_values import PolicyError, PolicyKey, PolicyValue, PolicyValues
from policies.definitions.rollout import ALL_CLIENTS, PolicyRollout
from policies.groups.finder import DEFAULT_PATTERN
from policies.thresholds.values import TOTAL_KEY, TOTAL_OUT_KEY, check_single_thresholds
from protocol.api import ERROR_NAMES

# Not beside the admin port: there are other gateways' admin ports on one machine, or the ports of brokers.
HEALTH_PORT_OFFSET: Final = 105
MIN_RELOAD_INTERVAL_S: Final = 0.1  # the file is looked at in a thread


class Upstream(Client):
    """The cluster behind the gateway, and how relayed connections and the gateway's own clients reach it. Whether files
    can be used is asked by `check` and `serve`, as with the listener's.
    """

    metadata_refresh: Seconds = Field(
        default=5.0, ge=0.1, le=3600
    )  # a new topic changes implicit shares: a tick is 5 s too
    connect_timeout: Seconds = Field(
        default=3.0, gt=0, le=60
    )  # clients give up a dead broker after 10 to 30 s themselves

    # Header of the PROXY protocol with the client's address, before all else on a relayed connection: "v1" or "v2".
    proxy_protocol: Literal["none", "v1", "v2"] = "none"

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        parse_broker_tls(self.properties)
        return self

    @property
    def tls(self) -> BrokerTls | None:
        """None: brokers are spoken to in plain text."""
        return parse_broker_tls(self.properties)

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap servers as (host, port)."""
        pairs = (server.rpartition(":") for server in self.bootstrap_servers.split(","))
        return tuple((host.strip("[]"), int(port)) for host, _, port in pairs)


def _local_url(scheme: str, host: str, port: int) -> str:
    """Under which this machine reaches what is bound to that host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"{scheme}://{address_text(host, port)}"


def _check_token(line: str) -> str:
    parse_token_line(line)
    return line


class Admin(TlsSection):
    """`tokens` and the lines of `token_file` say who may do what, and so do `principals` of client certificates.
    Without any of them a client on this machine may do everything; and with `open` so may any client that reaches the
    port, as far as it needn't say who it is.
    """

    host: Host = "127.0.0.1"  # metrics name topics and clients
    port: Port = 9190
    # Each as a line of the file.
    tokens: tuple[Annotated[str, AfterValidator(_check_token)], ...] = Field(default=(), repr=False)
    token_file: Path | None = None  # read again when it changes
    principals: dict[Principal, Literal["viewer", "operator", "admin"]] = {}  # of client certificates
    anonymous: Literal["viewer", "none"] = "viewer"  # callers without any of these, where there are some
    metrics: Literal["open", "viewer"] = "open"  # the least role for /metrics; Prometheus often has no token
    hosts: tuple[str, ...] = ()  # more names under which it is asked, such as that of a Kubernetes service
    # Whose X-Forwarded-For is believed. Others could claim any address, and spend its attempts.
    trusted_proxies: tuple[Network, ...] = ()
    open: bool = False

    @model_validator(mode="after")
    def _check_open(self) -> Self:
        if not (is_loopback(self.host) or self.has_credentials or self.open):
            raise ValueError(
                f"host: {self.host or 'every address'} is reached from elsewhere, and any client that reaches it"
                " could change policies: write token_file: FILE, or open: true if that is meant"
            )
        return self

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        if self.principals and self.client_auth == "none":
            raise ValueError(
                "principals: clients are asked for no certificate: write ssl.client.auth: requested, or required"
            )
        if ANONYMOUS in self.principals:
            raise ValueError(f"principals.{ANONYMOUS}: every client without a certificate is that: leave it out")
        for key in ("anonymous", "metrics"):
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and not self.has_credentials:
                raise ValueError(f"{key}: {value} would need credentials, and there are none: write token_file: FILE")
        return self

    @property
    def has_credentials(self) -> bool:
        return bool(self.tokens or self.token_file or self.principals)

    @property
    def url(self) -> str:
        """Under which this machine reaches it."""
        return _local_url("https" if self.tls else "http", self.host, self.port)

    @property
    def host_names(self) -> frozenset[str]:
        """Lower-case names that a request's header Host may have."""
        return frozenset(name.lower() for name in (self.host, *self.hosts))


class Health(Section):
    """The port that answers nothing but /healthz and /readyz, which load on the admin port doesn't reach."""

    host: Host | None = None  # None: as of the admin server, so that whoever reached that reaches this
    port: Port | None = None  # None: admin.port + HEALTH_SHIFT


class TopicThreshold(Section):
    threshold: Annotated[Size, Field(alias="bytes.in.per.sec.threshold", ge=0)]


class BrokerThreshold(Section):
    total: Annotated[Size | None, Field(alias=TOTAL_KEY, gt=0)] = None
    total_out: Annotated[Size | None, Field(alias=TOTAL_OUT_KEY, gt=0)] = None

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if self.total is None and self.total_out is None:
            raise ValueError(f"a total of its own is needed: {TOTAL_KEY}: 8MB, {TOTAL_OUT_KEY}: 8MB, or both")
        return self


class Thresholds(Section):
    """Bytes per second and upstream broker. `brokers`: node id -> a total of its own."""

    total: Annotated[Size | None, Field(alias=TOTAL_KEY, gt=0)] = None
    total_out: Annotated[Size | None, Field(alias=TOTAL_OUT_KEY, gt=0)] = None  # limits only consumers with shares
    brokers: dict[Annotated[int, Field(ge=0)], BrokerThreshold] = {}
    topics: dict[KafkaName, TopicThreshold] = {}
    on_exceed: Literal["reject", "delay"] = "reject"  # as the proposal has it
    burst: Seconds = Field(default=0.0, ge=0, le=3600)  # above a threshold, where on_exceed is reject; 0: no bound
    mode: Literal["enforce", "observe"] = "enforce"
    enforce_percent: Percent = ALL_CLIENTS  # of the clients; for all others they are only observed
    source: PluginName = ""  # of the operator's own (produce_gateway.quota_sources): replaces total and topics
    options: dict[str, Any] = {}  # handed to it
    interval: Seconds = Field(default=60.0, gt=0, le=86400)  # how often it is asked

    @model_validator(mode="after")
    def _check_each(self) -> Self:
        if self.total is not None:  # else some broker has no limit
            check_single_thresholds([self.total, *self.by_broker().values()], self.by_topic())
        if self.options and not self.source:
            raise ValueError(f"options: are handed to a source of your own: write source: NAME ({QUOTA_SOURCES})")
        if self.burst and self.on_exceed == "delay":
            raise ValueError("burst: has no effect with on_exceed: delay, which lets a second of a threshold through")
        return self

    def by_topic(self) -> dict[str, float]:
        return {name: float(topic.threshold) for name, topic in self.topics.items()}

    def by_broker(self) -> dict[int, float]:
        return {node_id: float(each.total) for node_id, each in self.brokers.items() if each.total is not None}

    def outbound_by_broker(self) -> dict[int | None, float]:
        """The totals that consumers have shares of, by broker; None: of those without one of their own."""
        totals: dict[int | None, Any] = {node_id: each.total_out for node_id, each in self.brokers.items()}
        return {node_id: float(total) for node_id, total in [(None, self.total_out), *totals.items()] if total}

    @property
    def limits_bytes(self) -> bool:
        """Whether any broker has a total, so that anything is ever over it."""
        return self.total is not None or bool(self.by_broker()) or bool(self.source)


class UsageLog(Section):
    topic: KafkaName = topic_names.USAGE
    spool_dir: Path = Path("./spool")
    max_spool_bytes: Size = Field(default=2**30, ge=2**20)  # a day without Kafka at 12 kB/s: about 50 busy clients
    retention: Seconds = Field(default=7 * 86400.0, ge=0)  # published files are kept this long, for the audit
    partitions: int = Field(default=3, ge=1, le=1000)
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less


class GroupRates(Section):
    """Limits of one resource group over all gateways, per second; None: none. The names are PIP-82's."""

    publish_bytes: Annotated[Size | None, Field(alias="publishRateInBytes", gt=0)] = None
    publish_msgs: Annotated[Number | None, Field(alias="publishRateInMsgs", gt=0)] = None
    dispatch_bytes: Annotated[Size | None, Field(alias="dispatchRateInBytes", gt=0)] = None
    dispatch_msgs: Annotated[Number | None, Field(alias="dispatchRateInMsgs", gt=0)] = None


class ResourceGroups(Section):
    """Limits that tenants and namespaces have together, and the way a topic's or a principal's name tells its owner."""

    topic_pattern: Pattern = DEFAULT_PATTERN
    principal_pattern: Pattern = ""  # "": principals say nothing
    mode: Literal["enforce", "observe"] = "enforce"
    enforce_percent: Percent = ALL_CLIENTS
    groups: dict[GroupName, GroupRates] = {}
    tenants: dict[TenantName, GroupName] = {}
    namespaces: dict[NamespaceName, GroupName] = {}  # "tenant/namespace"

    @field_validator("groups", mode="before")
    @classmethod
    def _fill_groups(cls, value: object) -> object:
        """`silver:` alone is a group without limits, for limits set at run time."""
        return {key: {} if own is None else own for key, own in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check_attached(self) -> Self:
        for key, attached in (("tenants", self.tenants), ("namespaces", self.namespaces)):
            for name, group in attached.items():
                if group not in self.groups:
                    known = ", ".join(sorted(self.groups)) or "none"
                    raise ValueError(f"{key}.{name}: there is no group {group}; groups has {known}")
        return self

    def as_document(self) -> dict[str, Any]:
        """The values that may be changed at run time, as a document of `policies export` has them."""
        return self.model_dump(by_alias=True, exclude_none=True, include={"groups", "tenants", "namespaces"})


class PoliciesStore(Section):
    """The store of policies changed at run time: in the topic, or with `internal_topics: none` in the file."""

    topic: KafkaName = topic_names.POLICIES
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less
    file: Path | None = None  # None: policies.jsonl in usage_log.spool_dir, which is this gateway's alone


class InternalClient(Section):
    """Both together: a client chooses its client id, a broker accepted the principal."""

    principal: Principal
    client_id: str


class Internal(Section):
    """Metered, never limited: replication, operators' tools."""

    principals: tuple[Principal, ...] = ()
    client_ids: tuple[str, ...] = ()  # whoever says so
    clients: tuple[InternalClient, ...] = ()


class Limits(Section):
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
    # From the connection on, give or take a tenth by chance; later it is closed between two requests. 0: none.
    max_connection_age: Seconds = Field(default=0.0, ge=0)
    # That a Produce request waits for a limit, however long its client does: see policies.client_timeouts.
    max_hold: Seconds = Field(default=50.0, ge=1, le=60)
    max_connections: int = Field(default=20_000, ge=1)
    max_connections_per_address: int | None = Field(default=None, ge=1)  # None: see connections_per_address
    max_connections_per_principal: int = Field(default=10_000, ge=1)
    max_partitions_per_request: int = Field(default=10_000, ge=1, le=1_000_000)  # of one Produce request
    # Of a request that control reads whole (configs and client quotas): 1 MiB are 15,000 quotas and 0.6 s of its time.
    max_admin_request: Size = Field(default=2**20, ge=1024, le=16 * 2**20)
    # Pairs of principal and client id, which clients can multiply at will: per interval in the usage log, and in all in
    # /metrics, where each costs several series; the rest is counted as `other`.
    max_client_keys: int = Field(default=10_000, ge=1, le=1_000_000)
    max_client_metrics: int = Field(default=500, ge=0, le=100_000)
    # Pairs of broker and topic that have series in /metrics, 13 under a threshold alone.
    max_topic_metrics: int = Field(default=1000, ge=0, le=100_000)

    @property
    def connections_per_address(self) -> int:
        """By default a tenth of all: one address may stand for a hundred clients behind a NAT, and a few that nobody
        knows must not take all places. At least 100, which a machine with many producers needs.
        """
        return min(self.max_connections, self.max_connections_per_address or max(100, self.max_connections // 10))


class Settings(Section):
    """A gateway's whole configuration."""

    upstream: Upstream
    listener: Listener | None = None  # None: there are several …
    listeners: dict[ListenerName, Listener] = {}  # … by name, as Kafka's listeners have names
    authentication: Authentication | None = None  # None: SASL passes through to the brokers
    admin: Admin = Admin()
    health: Health = Health()
    workers: Workers = 1  # data processes; each keeps at most one core busy
    thresholds: Thresholds = Thresholds()
    client_quotas: tuple[dict[str, Any], ...] = ()  # as in a document of `policies export`
    client_quotas_mode: Literal["enforce", "observe"] = "enforce"
    client_quotas_enforce_percent: Percent = ALL_CLIENTS
    client_quotas_api: Literal["gateway", "upstream"] = "gateway"  # whose are Describe- and AlterClientQuotas
    resource_groups: ResourceGroups = ResourceGroups()
    # The next three are PIP-82's: where gateways tell each other what they use.
    usage_topic: Annotated[KafkaName, Field(alias="resourceUsagePublishTopicName")] = topic_names.RESOURCE_USAGE
    publishes_usage: Annotated[bool, Field(alias="resourceUsagePublishToTopic")] = True
    usage_interval: Annotated[Seconds, Field(alias="resourceUsagePublishIntervalInSecs", ge=0.1, le=3600)] = 1.0
    resource_usage_report_every: int = Field(default=5, ge=1, le=1000)  # cycles until unchanged usage is sent again
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
    # How often the file, and those of its secrets, are looked at; a change is taken over when it stays for as long.
    reload_interval: Seconds = Field(default=5.0, ge=0, le=86400)  # 0: only when somebody asks for it
    log: Log = Log()
    # What clients must not compute is keyed with it. None: `secret-key` in usage_log.spool_dir, which is made once.
    secret_key_file: Path | None = None
    gateway_id: str = ""  # "": made of host name and port, so that two gateways of one host differ
    # SIGTERM: `readyz` says no at once, listeners close after `shutdown_delay`, and what is in flight has
    # `drain_timeout` from then on. Kubernetes kills after 30 s, so both together have to be less.
    shutdown_delay: Seconds = Field(default=0.0, ge=0, le=3600)  # 0: nobody asks `readyz`
    drain_timeout: Seconds = Field(default=20.0, gt=0, le=3600)

    @model_validator(mode="before")
    @classmethod
    def _skip_empty_sections(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {key: value for key, value in data.items() if value is not None}
        if not data.get("listeners"):
            return {"listener": {}, **data}
        if "listener" in data:
            raise ValueError("listeners: there is a section listener as well: move it in here, under a name")
        return data

    @field_validator("reload_interval")
    @classmethod
    def _check_interval(cls, seconds: float) -> float:
        if 0 < seconds < MIN_RELOAD_INTERVAL_S:
            raise ValueError(f"{seconds:g} s is too often: write at least {MIN_RELOAD_INTERVAL_S:g}s, or 0s for never")
        return seconds

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
        if value and not re.fullmatch(rf"[a-zA-Z0-9._-]{{1,{MAX_GATEWAY_ID}}}", value):
            shown = value if len(value) <= MAX_GATEWAY_ID else f"{value[:20]}…, {len(value)} characters"
            raise ValueError(
                f"{shown!r}: letters, digits, '.', '_' and '-' only, at most {MAX_GATEWAY_ID}, since it is part of"
                " Kafka keys: for example gateway-1"
            )
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.limits.max_request_bytes > self.limits.max_buffered_bytes:
            raise ValueError(
                f"limits.max_request_bytes: {self.limits.max_request_bytes:,} bytes could never be read under"
                f" limits.max_buffered_bytes = {self.limits.max_buffered_bytes:,}: raise the latter",
            )
        check_port_conflicts(self.all_listeners, self.other_ports)
        if (
            self.storage
            and self.storage.source == "snapshots"
            and self.storage.snapshot_settings.topic == self.usage_log.topic
        ):
            raise ValueError(f"storage.snapshots.topic: {self.usage_log.topic} is the usage log's: name another one")
        if self.policies_store.topic in (self.usage_log.topic, self.storage and self.storage.snapshot_settings.topic):
            raise ValueError(f"policies_store.topic: {self.policies_store.topic} is another one's: name another topic")
        others = (
            self.usage_log.topic,
            self.policies_store.topic,
            self.storage and self.storage.snapshot_settings.topic,
        )
        if self.usage_topic in others:
            raise ValueError(f"resourceUsagePublishTopicName: {self.usage_topic} is another one's: name another topic")
        self._check_policy_values()
        storage = self.storage
        has_soft = storage is not None and bool(storage.soft or any(each.soft for each in storage.volumes))
        affected = self.storage is not None and self.storage.scope == "affected"
        if has_soft and affected and not self.thresholds.limits_bytes:
            raise ValueError(
                "storage.soft: with scope affected a soft limit lowers the totals of brokers, and there is none: write"
                " thresholds: {total.bytes.in.per.sec.threshold: 20MB}, or leave soft out"
            )
        if has_soft and not self.thresholds.limits_bytes and not limits_production(self.policy_values()):
            raise ValueError(
                "storage.soft: a soft limit has no effect where no produce limit exists: write"
                " thresholds: {total.bytes.in.per.sec.threshold: 20MB}, or producer_byte_rate in client_quotas, or a"
                " group's publishRateInBytes, or leave soft out"
            )
        return self

    @property
    def health_address(self) -> tuple[str, int]:
        """Host and port of the health port."""
        admin, own = self.admin, self.health
        return admin.host if own.host is None else own.host, own.port or admin.port + HEALTH_PORT_OFFSET

    @property
    def health_url(self) -> str:
        """Under which this machine reaches the health port."""
        return _local_url("http", *self.health_address)

    @property
    def other_ports(self) -> Mapping[str, tuple[str, int]]:
        """The addresses that are no listener's, by their key in the file."""
        return {"admin.port": (self.admin.host, self.admin.port), "health.port": self.health_address}

    @property
    def all_listeners(self) -> Mapping[str, Listener]:
        """By name, in the order of the file; the one of the section `listener` is DEFAULT_LISTENER."""
        return self.listeners if self.listener is None else {DEFAULT_LISTENER: self.listener}

    def authentication_of(self, listener: str) -> Authentication | None:
        """What holds for clients of that listener; None: their SASL passes through to the brokers."""
        own = self.all_listeners[listener].authentication or self.authentication
        return own if own is not None and own.enabled else None

    def _check_policy_values(self) -> None:
        try:
            self.policy_values()
        except DocumentError as error:
            raise FieldFaults(error.lines) from error
        except PolicyError as error:
            raise ValueError(f"client_quotas: {error}") from error

    def policy_values(self) -> PolicyValues:
        """The contents of the sections `thresholds`, `client_quotas` and `resource_groups`: the base of changes at run
        time.
        """
        return self._policy_values

    @cached_property
    def _policy_values(self) -> PolicyValues:
        thresholds = self.thresholds
        return MappingProxyType(self.policy_values_with(thresholds.total, thresholds.by_topic()))

    def policy_values_with(self, total: float | None, topics: Mapping[str, float]) -> dict[PolicyKey, PolicyValue]:
        """The same with these thresholds, in bytes per second, in place of the file's.

        Raises:
            PolicyError: they can't be.
        """
        brokers, groups = self.thresholds.by_broker(), self.resource_groups.as_document()
        return configured_policies(
            total, topics, brokers, self.client_quotas, groups, self.thresholds.outbound_by_broker()
        )

    @property
    def rollout(self) -> PolicyRollout:
        """For how many percent of the clients each policy is enforced; 0 where all of it is only observed."""
        thresholds, groups = self.thresholds, self.resource_groups
        percents = {
            "quota": (self.client_quotas_mode, self.client_quotas_enforce_percent),
            "group": (groups.mode, groups.enforce_percent),
            "threshold": (thresholds.mode, thresholds.enforce_percent),
        }
        found = {
            policy: 0.0 if "observe" in (self.mode, mode) else percent for policy, (mode, percent) in percents.items()
        }
        return PolicyRollout(**found)

    @property
    def policies_file(self) -> Path:
        """The store of policies changed at run time without internal topics."""
        return self.policies_store.file or self.usage_log.spool_dir / "policies.jsonl"

    @property
    def gateway_topics(self) -> tuple[str, ...]:
        """Topics of the gateway's own: clients may not produce to them."""
        storage = self.storage
        volumes = (
            (storage.snapshot_settings.topic,)
            if storage and not storage.is_disabled and storage.source == "snapshots"
            else ()
        )
        policies = (self.policies_store.topic,) if self.internal_topics == "kafka" else ()
        exchange = (self.usage_topic,) if self.exchanges_usage else ()
        return (self.usage_log.topic, *policies, *exchange, *volumes)

    @property
    def exchanges_usage(self) -> bool:
        """Whether limits hold over all gateways of the cluster, or for this one alone."""
        return self.publishes_usage and self.internal_topics == "kafka"

    @property
    def storage_admin(self) -> StorageAdmin:
        """The endpoint for storage sources, upstream's values in place of those that are left out."""
        own = (self.storage.admin if self.storage else None) or StorageAdmin()
        return StorageAdmin(
            bootstrap_servers=own.bootstrap_servers or self.upstream.bootstrap_servers,
            properties=own.properties or self.upstream.properties,
        )

    @property
    def client_properties(self) -> dict[str, Any]:
        """librdkafka configuration of the gateway's own clients."""
        return {
            **self.upstream.properties,
            "bootstrap.servers": self.upstream.bootstrap_servers,
            "client.id": f"produce-gateway-{self.gateway_name}",
            "log_level": 2,  # what matters is reported by the calls; librdkafka repeats itself on stderr
        }

    @property
    def gateway_name(self) -> str:
        """This gateway's name in usage records, and for other gateways."""
        host = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())
        port = next(iter(self.all_listeners.values())).port
        return self.gateway_id or f"{host[:MAX_GATEWAY_ID]}-{port}"
