# The sections `thresholds`, `resource_groups`, `policies_store` and `internal`: who may send how much, and who is under
# no limit.

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from gateway.config.sections.fields import (
    ByteRate,
    Copies,
    GroupName,
    KafkaName,
    NamespaceName,
    NodeId,
    Number,
    Pattern,
    Percent,
    PluginName,
    Principal,
    Seconds,
    Section,
    TenantName,
    WrittenPath,
    setting,
)
from gateway.kafka import topic_names
from gateway.plugins import QUOTA_SOURCES
from policies.definitions.rollout import ALL_CLIENTS
from policies.groups.finder import DEFAULT_PATTERN
from policies.thresholds.values import TOTAL_KEY, TOTAL_OUT_KEY, check_single_thresholds


class TopicThreshold(Section):
    threshold: ByteRate = setting(
        ..., "Bytes per second of the topic on each broker.", alias="bytes.in.per.sec.threshold", ge=0
    )


class BrokerThreshold(Section):
    total: ByteRate | None = setting(None, "Bytes per second of this broker.", alias=TOTAL_KEY, gt=0)
    total_out: ByteRate | None = setting(
        None, "Bytes per second that consumers with shares share of this broker.", alias=TOTAL_OUT_KEY, gt=0
    )

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if self.total is None and self.total_out is None:
            raise ValueError(f"a total of its own is needed: {TOTAL_KEY}: 8MB, {TOTAL_OUT_KEY}: 8MB, or both")
        return self


class Thresholds(Section):
    """Bytes per second and upstream broker. `brokers`: node id -> a total of its own."""

    total: ByteRate | None = setting(
        None,
        "Bytes per second of each broker. Without it, topics' thresholds limit nothing.",
        live=True,
        alias=TOTAL_KEY,
        gt=0,
    )
    total_out: ByteRate | None = setting(
        None,
        "Bytes per second that consumers with consumer_byte_rate.shares share of each broker. It limits no other"
        " consumer.",
        live=True,
        alias=TOTAL_OUT_KEY,
        gt=0,
    )
    brokers: dict[NodeId, BrokerThreshold] = setting({}, "Totals of particular brokers, by node id.", live=True)
    topics: dict[KafkaName, TopicThreshold] = setting(
        {}, "Thresholds of topics, by name. The others share what these leave.", live=True
    )
    # As the proposal has it.
    on_exceed: Literal["reject", "delay"] = setting(
        "reject", "reject: by Kafka's one-minute rate. delay: slow producers down to their threshold.", live=True
    )
    burst: Seconds = setting(
        0.0,
        "With on_exceed reject: seconds of a threshold that may pass above it at once. 0: no such bound.",
        live=True,
        ge=0,
        le=3600,
    )
    mode: Literal["enforce", "observe"] = setting(
        "enforce", "observe: only count what thresholds would reject or delay.", live=True
    )
    enforce_percent: Percent = setting(
        ALL_CLIENTS,
        "For how many percent of the clients thresholds are enforced; the others are only counted.",
        live=True,
    )
    # An entry point of produce_gateway.quota_sources.
    source: PluginName = setting("", "The name of a plugin that provides total and topics instead.")
    options: dict[str, Any] = setting({}, "Options of that plugin.")
    interval: Seconds = setting(60.0, "How often it is asked.", gt=0, le=86400)

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


class GroupRates(Section):
    """Limits of one resource group over all gateways, per second; None: none. The names are PIP-82's."""

    publish_bytes: ByteRate | None = setting(
        None, "Bytes per second that the group may produce, over all gateways.", alias="publishRateInBytes", gt=0
    )
    publish_msgs: Number | None = setting(
        None,
        "Messages per second that the group may produce.",
        alias="publishRateInMsgs",
        gt=0,
        unit="messages per second",
    )
    dispatch_bytes: ByteRate | None = setting(
        None, "Bytes per second that the group may consume.", alias="dispatchRateInBytes", gt=0
    )
    dispatch_msgs: Number | None = setting(
        None,
        "Messages per second that the group may consume.",
        alias="dispatchRateInMsgs",
        gt=0,
        unit="messages per second",
    )


class ResourceGroups(Section):
    """Limits that tenants and namespaces have together, and the way a topic's or a principal's name tells its owner."""

    topic_pattern: Pattern = setting(
        DEFAULT_PATTERN,
        "How to read tenant and namespace from a topic's name: a template, or a regular expression with groups"
        " tenant and namespace. Empty: names carry no tenant.",
    )
    principal_pattern: Pattern = setting(
        "", "How to read the tenant from a principal if the topic's name doesn't give one."
    )
    mode: Literal["enforce", "observe"] = setting("enforce", "observe: only count what groups would delay.")
    enforce_percent: Percent = setting(
        ALL_CLIENTS, "For how many percent of the clients groups are enforced; the others are only counted."
    )
    groups: dict[GroupName, GroupRates] = setting({}, "Groups by name, each with its rates.")
    tenants: dict[TenantName, GroupName] = setting({}, "Which group a tenant belongs to.")
    namespaces: dict[NamespaceName, GroupName] = setting(
        {}, "Which group a tenant/namespace belongs to, instead of its tenant's."
    )

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

    topic: KafkaName = setting(
        topic_names.POLICIES,
        "The compacted topic for changes made at run time. All gateways of a cluster use the same one.",
    )
    replication: Copies | None = setting(
        None, "Copies of it, if the gateway creates it. Without it 3, or the number of brokers if that is less."
    )
    # The spool is this gateway's alone.
    file: WrittenPath | None = setting(
        None, "The file for these changes with internal_topics: none. Without it policies.jsonl in the spool."
    )


class InternalClient(Section):
    """Both together: a client chooses its client id, a broker accepted the principal."""

    principal: Principal = setting(..., "The principal, as User:name.")
    client_id: str = setting(..., "The client id that it must use.")


class Internal(Section):
    """Metered, never limited: replication, operators' tools."""

    principals: tuple[Principal, ...] = setting((), "Principals that are metered and never limited, as User:name.")
    client_ids: tuple[str, ...] = setting(
        (), "The same for every client that uses this client id, which any client can."
    )
    clients: tuple[InternalClient, ...] = setting((), "The same for a principal together with a client id.")
