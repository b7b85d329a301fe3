# The sections of the configuration file as frozen, validated values. Each default stands here with its reason.
#
# Knows no sockets, no clients and no file but those that sections name.

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from gateway.certificates import PROTOCOLS, ListenerTls
from gateway.config.clients import Client, property_text
from gateway.config.fields import (
    MAX_WORKERS,
    GroupName,
    KafkaName,
    NamespaceName,
    Number,
    Pattern,
    PluginName,
    Port,
    Principal,
    Seconds,
    Section,
    Size,
    TenantName,
    Workers,
)
from gateway.config.storage import Storage, StorageAdmin, limits_production
from gateway.hosts import is_loopback
from gateway.kafka import topic_names
from gateway.policy_document import DocumentError, base_of
from gateway.storage.plugins import QUOTA_SOURCES
from gateway.tokens import check_token
from policies.groups.finder import DEFAULT_PATTERN
from policies.policy_set import PolicyError, PolicyKey, Value
from policies.thresholds.values import ThresholdError
from policies.thresholds.values import check as check_thresholds
from protocol.api import ERROR_NAMES

PEM: Final = "PEM"
TLS_PROTOCOLS: Final = tuple(PROTOCOLS)


class Upstream(Client):
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


class Listener(Section):
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
                f"advertised_host is needed, because {self.host or 'an empty host'} is not an address that clients can"
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


class Admin(Section):
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


class TopicThreshold(Section):
    threshold: Annotated[Size, Field(alias="bytes.in.per.sec.threshold", ge=0)]


class BrokerThreshold(Section):
    total: Annotated[Size, Field(alias="total.bytes.in.per.sec.threshold", gt=0)]


class Thresholds(Section):
    """Bytes per second and upstream broker. `brokers`: node id -> a total of its own."""

    total: Annotated[Size | None, Field(alias="total.bytes.in.per.sec.threshold", gt=0)] = None
    brokers: dict[Annotated[int, Field(ge=0)], BrokerThreshold] = {}
    topics: dict[KafkaName, TopicThreshold] = {}
    on_exceed: Literal["reject", "delay"] = "reject"  # as the proposal has it
    mode: Literal["enforce", "observe"] = "enforce"
    source: PluginName = ""  # of the operator's own (produce_gateway.quota_sources): replaces total and topics
    options: dict[str, Any] = {}  # handed to it
    interval: Seconds = Field(default=60.0, gt=0, le=86400)  # how often it is asked

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


class UsageLog(Section):
    topic: KafkaName = topic_names.USAGE
    spool_dir: Path = Path("./spool")
    max_spool_bytes: Size = Field(default=2**30, ge=2**20)  # a day without Kafka at 12 kB/s: about 50 busy clients
    retention: Seconds = Field(default=7 * 86400.0, ge=0)  # published files stay so long: the audit can read them too
    partitions: int = Field(default=3, ge=1, le=1000)
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less


class GroupRates(Section):
    """Limits of one resource group over all gateways, per second; None: none. The names are PIP-82's."""

    publish_bytes: Annotated[Size | None, Field(alias="publishRateInBytes", gt=0)] = None
    publish_msgs: Annotated[Number | None, Field(alias="publishRateInMsgs", gt=0)] = None
    dispatch_bytes: Annotated[Size | None, Field(alias="dispatchRateInBytes", gt=0)] = None
    dispatch_msgs: Annotated[Number | None, Field(alias="dispatchRateInMsgs", gt=0)] = None


class ResourceGroups(Section):
    """Limits that tenants and namespaces have together, and how a topic's or a principal's name says whose it is."""

    topic_pattern: Pattern = DEFAULT_PATTERN
    principal_pattern: Pattern = ""  # "": principals say nothing
    mode: Literal["enforce", "observe"] = "enforce"
    groups: dict[GroupName, GroupRates] = {}
    tenants: dict[TenantName, GroupName] = {}
    namespaces: dict[NamespaceName, GroupName] = {}  # "tenant/namespace"

    @field_validator("groups", mode="before")
    @classmethod
    def _fill_groups(cls, value: object) -> object:
        """`silver:` alone is a group without limits, for what is set at run time."""
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
        """What may be changed at run time, as a document of `policies export` has it."""
        return self.model_dump(by_alias=True, exclude_none=True, include={"groups", "tenants", "namespaces"})


class PoliciesStore(Section):
    """Where policies changed at run time are kept: in the topic, or with `internal_topics: none` in the file."""

    topic: KafkaName = topic_names.POLICIES
    replication: int | None = Field(default=None, ge=1, le=100)  # None: 3, or the number of brokers where that is less
    file: Path | None = None  # None: policies.jsonl in usage_log.spool_dir, which is this gateway's alone


class InternalClient(Section):
    """Both together: a client id is what its client says, a principal is what a broker accepted."""

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


class Settings(Section):
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
