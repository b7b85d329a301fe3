# The whole configuration: its sections, the keys beside them, and what they have to say together.
#
# Knows no sockets, no clients and no file but those that sections name.

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from pydantic import field_validator, model_validator

from gateway.config.sections.admin import Admin, Health, local_url
from gateway.config.sections.authentication import Authentication
from gateway.config.sections.clients import Upstream
from gateway.config.sections.fields import (
    MAX_GATEWAY_ID,
    MAX_WORKERS,
    Count,
    FieldFaults,
    KafkaName,
    ListenerName,
    Percent,
    Seconds,
    Section,
    Workers,
    setting,
)
from gateway.config.sections.limits import Limits
from gateway.config.sections.listeners import Listener, check_port_conflicts
from gateway.config.sections.logs import Log, UsageLog
from gateway.config.sections.policies import Internal, PoliciesStore, ResourceGroups, Thresholds
from gateway.config.sections.storage import Storage, StorageAdmin, limits_production
from gateway.kafka import topic_names
from gateway.listener_names import DEFAULT_LISTENER
from gateway.policy_document import DocumentError, configured_policies
from policies.definitions.policy_values import PolicyError, PolicyKey, PolicyValue, PolicyValues
from policies.definitions.rollout import ALL_CLIENTS, PolicyRollout
from protocol.api import ERROR_NAMES

# Not beside the admin port: there are other gateways' admin ports on one machine, or the ports of brokers.
HEALTH_PORT_OFFSET: Final = 105
MIN_RELOAD_INTERVAL_S: Final = 0.1  # the file is looked at in a thread


class Settings(Section):
    """A gateway's whole configuration."""

    upstream: Upstream = setting(..., "The cluster behind the gateway.")
    listener: Listener | None = setting(None, "Where clients connect.")
    listeners: dict[ListenerName, Listener] = setting(
        {}, "Several listeners by name, each with the keys of listener, in place of it."
    )
    authentication: Authentication | None = setting(
        None, "SASL that ends at the gateway. Without it SASL passes through to the brokers."
    )
    admin: Admin = setting(Admin(), "The admin server: /metrics, REST, the console.", live=False)
    health: Health = setting(
        Health(),
        "The health port: /healthz and /readyz, in plain HTTP, for probes of Kubernetes, load balancers and"
        " containers. It answers whatever the admin server has to do.",
    )
    workers: Workers = setting(
        1,
        "Number of data processes, each of which uses one core at most; auto: one for each core that the gateway"
        " may use.",
        unit="processes",
    )
    thresholds: Thresholds = setting(Thresholds(), "Bytes per second of each broker, and of topics on each broker.")
    # As in a document of `policies export`.
    client_quotas: tuple[dict[str, Any], ...] = setting(
        (),
        "Quotas as {user: alice, client_id: app, producer_byte_rate: 1MiB}; <default> stands for the default user"
        " or client id.",
        live=True,
    )
    client_quotas_mode: Literal["enforce", "observe"] = setting(
        "enforce", "observe: only count what client quotas would delay.", live=True
    )
    client_quotas_enforce_percent: Percent = setting(
        ALL_CLIENTS, "For how many percent of the clients quotas are enforced; the others are only counted.", live=True
    )
    client_quotas_api: Literal["gateway", "upstream"] = setting(
        "gateway", "Which side answers DescribeClientQuotas and AlterClientQuotas on the gateway's port.", live=True
    )
    resource_groups: ResourceGroups = setting(
        ResourceGroups(), "Limits that tenants and namespaces share over all gateways.", live=True
    )
    # The next three are PIP-82's: where gateways tell each other what they use.
    usage_topic: KafkaName = setting(
        topic_names.RESOURCE_USAGE,
        "The topic for reports of usage between gateways. All gateways of a cluster use the same one.",
        alias="resourceUsagePublishTopicName",
    )
    publishes_usage: bool = setting(
        True,
        "Whether gateways report their usage to each other, so that every limit applies over all of them.",
        alias="resourceUsagePublishToTopic",
    )
    usage_interval: Seconds = setting(
        1.0,
        "Interval between reports. All gateways must use the same one.",
        alias="resourceUsagePublishIntervalInSecs",
        ge=0.1,
        le=3600,
    )
    resource_usage_report_every: Count = setting(
        5,
        "Usage is reported at least once in this many intervals, even if it changed by less than a tenth.",
        ge=1,
        le=1000,
        unit="intervals",
    )
    policies_store: PoliciesStore = setting(PoliciesStore(), "Where changes made at run time are kept.")
    storage: Storage | None = setting(None, "Storage protection, which keeps full disks from taking the cluster down.")
    usage_log: UsageLog = setting(UsageLog(), "The usage log: one record per second and worker, for the audit.")
    internal_topics: Literal["kafka", "none"] = setting(
        "kafka", "none: no internal topics; the usage log stays in the spool, and limits apply to this gateway alone."
    )
    internal: Internal = setting(Internal(), "Clients that are metered and never limited.", live=True, workers=True)
    mode: Literal["enforce", "observe"] = setting(
        "enforce", "observe: every policy only counts what it would do.", live=True, workers=True
    )
    # Dropping is silent: every client reports success.
    acks0: Literal["delay", "drop"] = setting(
        "delay",
        "How acks=0 requests over a limit are handled. drop: the producer gets no sign of it.",
        live=True,
        workers=True,
    )
    policies: tuple[str, ...] = setting((), "Policies of your own, each as module:factory.", workers=True)
    reject_code: Literal["auto"] | int = setting(
        "auto",
        "The error code of rejections: auto chooses by the client's software; else the number of a Kafka error.",
        live=True,
        workers=True,
        unit="Kafka's error code",
    )
    unknown_apis: Literal["pass", "hide"] = setting(
        "pass",
        "hide: leave APIs that are newer than this release out of the gateway's ApiVersions answer.",
        live=True,
        workers=True,
    )
    limits: Limits = setting(Limits(), "Bounds of what clients may take: connections, time, memory, series.")
    # A change is taken over when it stays for as long.
    reload_interval: Seconds = setting(
        5.0,
        "How often the gateway looks whether this file, or that of a secret in it, has changed, to take the"
        " change over; 0: only when asked to.",
        live=True,
        ge=0,
        le=86400,
    )
    log: Log = setting(Log(), "What the gateway logs, on standard error.")
    # None: `secret-key` in usage_log.spool_dir, which is made once.
    secret_key_file: Path | None = setting(
        None,
        "A file with a secret that all gateways of the cluster share, so that they agree on what clients must not"
        " be able to compute. Without it each gateway makes its own in the spool.",
    )
    # "": made of host name and port, so that two gateways of one host differ.
    gateway_id: str = setting(
        "",
        "The gateway's name in usage records and for other gateways. Empty: host name and port of the first listener.",
    )
    # SIGTERM: `readyz` says no at once, listeners close after `shutdown_delay`, and what is in flight has
    # `drain_timeout` from then on. Kubernetes kills after 30 s, so both together have to be less.
    shutdown_delay: Seconds = setting(
        0.0, "How long connections are accepted after SIGTERM, with /readyz at 503 already.", live=True, ge=0, le=3600
    )
    drain_timeout: Seconds = setting(20.0, "How long requests in flight have from then on.", live=True, gt=0, le=3600)

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
    def worker_count(self) -> int:
        """The number of workers: the parent has replaced `auto` by a number."""
        return 1 if self.workers == "auto" else self.workers

    @property
    def health_address(self) -> tuple[str, int]:
        """Host and port of the health port."""
        admin, own = self.admin, self.health
        return admin.host if own.host is None else own.host, own.port or admin.port + HEALTH_PORT_OFFSET

    @property
    def health_url(self) -> str:
        """Under which this machine reaches the health port."""
        return local_url("http", *self.health_address)

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
