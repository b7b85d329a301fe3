# The sections `thresholds`, `resource_groups`, `policies_store` and `internal`: who may send how much, and who is under
# no limit.

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gateway.config.sections.fields import (
    GroupName,
    KafkaName,
    NamespaceName,
    Number,
    Pattern,
    Percent,
    PluginName,
    Principal,
    Seconds,
    Section,
    Size,
    TenantName,
)
from gateway.kafka import topic_names
from gateway.storage.plugins import QUOTA_SOURCES
from policies.definitions.rollout import ALL_CLIENTS
from policies.groups.finder import DEFAULT_PATTERN
from policies.thresholds.values import TOTAL_KEY, TOTAL_OUT_KEY, check_single_thresholds


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
