# The section `storage`: what keeps full disks from taking the cluster down.
#
# Knows no disk and no source's inside; nor does it look for plugins.

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from gateway.config.sections.clients import Client
from gateway.config.sections.fields import (
    Copies,
    Count,
    KafkaName,
    Number,
    PluginName,
    Seconds,
    Section,
    Size,
    reject_bool,
    setting,
)
from gateway.kafka import topic_names
from gateway.plugins import LIMIT_POLICIES, VOLUME_SOURCES
from policies.definitions.policy_values import PolicyKey
from policies.groups import names as group_names
from policies.storage import LimitType, StorageScope, VolumeLimit
from policies.thresholds.values import TOTAL_KEY
from policies.units import parse_size

BUILT_IN_SOURCES: Final = ("log-dirs", "snapshots", "prometheus")
TopicPattern = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._*-]{1,249}$")]  # `*`: any characters
FORGET_AFTER_S: Final = 3600.0  # a restart with log recovery, or a pod that moves to another node, is over by then
MIN_CHECK_INTERVAL_S: Final = 0.1  # sooner, a check would begin before the last is over


class StorageLimit(Section):
    """Bytes, or for MinFreePercentage a share of the volume."""

    type: LimitType = setting(..., "What is compared: free bytes, the free share of the volume, or used bytes.")
    level: float = setting(
        ...,
        "Bytes, such as 10GB, or for MinFreePercentage a share, such as 0.2.",
        gt=0,
        allow_inf_nan=False,
        unit="bytes, or a share of the volume",
    )

    @field_validator("level", mode="before")
    @classmethod
    def _parse_level(cls, value: object, info: ValidationInfo) -> object:
        reject_bool(value)
        return value if info.data.get("type") == "MinFreePercentage" else parse_size(value)

    @model_validator(mode="after")
    def _check_share(self) -> Self:
        if self.type == "MinFreePercentage" and self.level > 1:
            raise ValueError(f"level: {self.level:g} is not a valid share of a volume; for example: 0.2 for 20 %")
        if self.type != "MinFreePercentage" and self.level < 1:
            raise ValueError(
                f"level: {self.level:g} is less than a byte: write a size such as 10GB, or type: MinFreePercentage for"
                " a share"
            )
        return self

    @property
    def limit(self) -> VolumeLimit:
        return VolumeLimit(self.type, self.level)


LimitInput = StorageLimit | tuple[StorageLimit, ...] | None


def _as_list(value: object) -> object:
    """One limit may be written without the list."""
    return (value,) if isinstance(value, dict | StorageLimit) else () if value is None else value


LimitList = Annotated[tuple[StorageLimit, ...], BeforeValidator(_as_list, json_schema_input_type=LimitInput)]


class VolumeLimits(Section):
    """Limits of some volumes, in place of those for all. `match`: "BROKER:LOG DIR", `*` stands for any characters."""

    match: str = setting(
        ..., "The volumes: BROKER:LOG_DIR; * stands for any characters.", min_length=1, max_length=1000
    )
    soft: LimitList = setting((), "In place of storage.soft.")
    hard: LimitList = setting((), "In place of storage.hard.")

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if ":" not in self.match and not self.match.startswith("*"):
            raise ValueError(f"match: {self.match}: write BROKER:LOG_DIR, for example 3:/data/* or *:/data/1")
        if not (self.soft or self.hard):
            raise ValueError(f"match {self.match}: no limit is given: write hard: {{type: MinFreeBytes, level: 10GB}}")
        _check_limit_pair(self.soft, self.hard)
        return self


def _check_limit_pair(soft: LimitList, hard: LimitList) -> None:
    for early, late in itertools.product(soft, hard):
        lag = early.limit.lag_behind(late.limit)
        if lag is not None and lag >= 0:
            right = "less" if early.type == "ConsumedBytes" else "more"
            raise ValueError(
                f"soft: level {early.level:g} is reached no earlier than hard's {late.level:g}: {right}"
                f" {early.type} for soft than for hard"
            )


class StorageAdmin(Client):
    """The endpoint for the sources; values left out are upstream's, the properties all together."""

    bootstrap_servers: str = setting("", "Brokers to ask; without it those of upstream.")
    properties: dict[str, str] = setting(
        {}, "librdkafka's properties, written beside bootstrap_servers; they replace all of upstream's.", repr=False
    )


class Snapshots(Section):
    """Volume snapshots in a compacted topic, written by `produce-gateway volume-agent` beside each broker."""

    topic: KafkaName = setting(
        topic_names.VOLUMES, "The compacted topic of volume snapshots; created if it is missing."
    )
    # Three of an agent's rounds.
    max_age: Seconds = setting(180.0, "An active broker without a younger snapshot is unknown.", gt=0, le=7 * 86400)
    # 035's default.
    fail_safe: Literal["PAUSE", "OPEN"] = setting("PAUSE", "The state while a broker is unknown.")
    replication: Copies | None = setting(
        None, "Copies of the topic. Without it 3, or the number of brokers if that is less."
    )


class PrometheusQueries(Section):
    """The query of a Prometheus for volumes; gateway/storage/prometheus.py explains the keys."""

    url: str = setting(..., "Address of the server, with the path under which it runs.")
    available: str = setting("", "PromQL for free bytes, one series for each volume.")
    size: str = setting("", "PromQL for the size, one series for each volume.")
    broker_label: str = setting("", "The label that contains the broker's id.")
    volume_label: str = setting("", "The volume's name in messages and metrics.")
    broker_pattern: str | None = setting(None, "A regular expression; its group broker, or its first group, is the id.")
    brokers: dict[str, Count] = setting({}, "By the label's value, the id, if the label contains none.")
    expected_brokers: tuple[Count, ...] | None = setting(None, "Ids of the brokers, if the cluster can't be asked.")
    max_age: Seconds = setting(180.0, "Maximum age of a sample.", gt=0, le=7 * 86400)
    timeout: Seconds = setting(10.0, "Time limit for one observation.", gt=0, le=60)
    username: str = setting("", "User, with password_file.")
    password_file: str = setting("", "A file with the password, read for each observation.")
    bearer_token_file: str = setting("", "A file with a token in place of user and password.")
    ca_file: str = setting("", "A PEM file with the CAs of the server's certificate. Without it, the system's.")


class Storage(Section):
    """Protection of the cluster against full disks: a factor on every produce limit."""

    source: PluginName = setting(
        "log-dirs", "Where volumes come from: log-dirs, snapshots, prometheus, or the name of a plugin."
    )
    check_interval: Seconds = setting(
        60.0, "How often the gateway observes the disks. PT0S turns it off.", ge=0, le=86400
    )
    admin: StorageAdmin | None = setting(None, "Another endpoint for these requests, in place of upstream's.")
    min_available_bytes: Size | None = setting(
        None, "PAUSE while any volume has this much free or less.", alias="min.available.bytes", gt=0
    )
    min_available_ratio: Number | None = setting(
        None, "The same as a share of the volume: 0.01 = 1 %.", alias="min.available.ratio", unit="share of the volume"
    )
    soft: LimitList = setting(
        (), "From here to hard the factor falls from 1 to 0. Of a list, the first that is reached counts."
    )
    hard: LimitList = setting((), "PAUSE while any volume is beyond this. Of a list, the first that is reached counts.")
    volumes: tuple[VolumeLimits, ...] = setting(
        (), "Limits of some volumes, in place of soft and hard; the first that matches counts."
    )
    fallback: Number = setting(
        1.0, "The factor while the disks can't be observed.", alias="throttle.factor.fallback", unit="factor"
    )
    validity: Seconds = setting(
        300.0,
        "How long the last valid factor stays in force when observations fail.",
        alias="throttle.factor.validity.duration",
        ge=0,
        le=7 * 86400,
    )
    mode: Literal["enforce", "observe"] = setting("enforce", "observe: only count what storage protection would hold.")
    scope: StorageScope = setting(
        "cluster", "Whom a volume at its limit holds: cluster, all producers; affected, topics with a replica on it."
    )
    exempt_topics: tuple[TopicPattern, ...] = setting(
        (), "With scope: affected, topics that are never held; * stands for any characters."
    )
    # None: by scope, see remembers_brokers.
    fenced_brokers: Literal["remember", "ignore"] | None = setting(
        None, "Brokers that left with a volume at a limit: remember their last state, or ignore it."
    )
    forget_after: Seconds = setting(
        FORGET_AFTER_S, "How long it is remembered, unless they are seen again before.", gt=0, le=30 * 86400
    )
    new_broker_grace: Seconds = setting(
        60.0, "How long a broker that joins may be without a report of its volumes.", ge=0, le=86400
    )
    snapshots: Snapshots | None = setting(None, "With source: snapshots.")
    prometheus: PrometheusQueries | None = setting(None, "With source: prometheus.")
    # Of the source, or of factor_source in its place.
    options: dict[str, Any] = setting({}, "Options of a plugin.")
    limit_policy: PluginName = setting("", "The name of a plugin that says when a volume is too full.")
    limit_policy_options: dict[str, Any] = setting({}, "Options of that plugin.")
    factor_source: PluginName = setting(
        "", "The name of a plugin that provides the factor, in place of source and limits."
    )

    @field_validator("check_interval")
    @classmethod
    def _check_interval(cls, seconds: float) -> float:
        if 0 < seconds < MIN_CHECK_INTERVAL_S:
            raise ValueError(f"{seconds:g} s is too often: write at least 100ms, or PT0S for off")
        return seconds

    @field_validator("min_available_ratio")
    @classmethod
    def _check_ratio(cls, ratio: float | None) -> float | None:
        if ratio is not None and not 0 < ratio <= 1:
            raise ValueError(
                f"{ratio:g} is not a valid share of a volume, which is above 0 and at most 1; for example: 0.01 for 1 %"
            )
        return ratio

    @field_validator("fallback")
    @classmethod
    def _check_fallback(cls, factor: float) -> float:
        if not 0 <= factor <= 1:
            raise ValueError(
                f"{factor:g} is not a valid factor: write 1.0 to leave limits as they are, 0.0 to pause, or between"
            )
        return factor

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        given = self._limit_keys()
        if len(given) > 1:
            several = ", or write hard: [{type: MinFreeBytes, level: 10GB}, {type: MinFreePercentage, level: 0.05}]"
            raise ValueError(
                f"{given[0]} and {given[1]}: two kinds of limit at once: keep one of them"
                + ("" if "limit_policy" in given else several)
            )
        if self.volumes and given and given[0] not in ("soft", "hard"):
            raise ValueError(f"volumes: {given[0]} is one limit for all volumes: write hard in its place")
        _check_limit_pair(self.soft, self.hard)
        if self.needs_limits and not given and not self.volumes and self.check_interval:
            raise ValueError(
                "no limit is given: write min.available.bytes: 1GB, or min.available.ratio: 0.01, or"
                " hard: {type: MinFreeBytes, level: 10GB}"
            )
        return self

    @model_validator(mode="after")
    def _check_factor_source(self) -> Self:
        """A factor from elsewhere takes the place of volumes and their limits."""
        if not self.factor_source:
            return self
        name = f"factor_source {self.factor_source}"
        replaced = {
            "volumes": bool(self.volumes),
            "source": self.source != "log-dirs",
            "admin": bool(self.admin),
            "snapshots": bool(self.snapshots),
            "prometheus": bool(self.prometheus),
        }
        beside = [*self._limit_keys(), *(key for key, is_given in replaced.items() if is_given)]
        if beside:
            raise ValueError(f"{beside[0]}: {name} stands in its place: keep one of them")
        if self.scope == "affected":
            raise ValueError(f"scope affected: {name} knows no volumes: keep one of them")
        if self.fenced_brokers == "remember":
            raise ValueError(f"fenced_brokers remember: {name} knows no volumes: keep one of them")
        return self

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        for name in ("snapshots", "prometheus"):
            if getattr(self, name) and self.source != name:
                raise ValueError(
                    f"{name}: has no effect with source {self.source}: write source: {name}, or leave it out"
                )
        if self.source == "prometheus" and not self.prometheus:
            raise ValueError(
                "source prometheus: its address is needed: write prometheus: {url: http://prometheus:9090}"
            )
        return self

    @model_validator(mode="after")
    def _check_effects(self) -> Self:
        """Keys that would have no effect beside the others."""
        if self.forget_after != FORGET_AFTER_S and not self.remembers_brokers:
            raise ValueError("forget_after: has no effect with fenced_brokers: ignore: leave it out, or write remember")
        if self.exempt_topics and self.scope == "cluster":
            raise ValueError(
                "exempt_topics: have no effect with scope cluster: write scope: affected, or leave them out"
            )
        if self.options and not (self.is_plugin_source or self.factor_source):
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
    def is_plugin_source(self) -> bool:
        """The source is a plugin."""
        return self.source not in BUILT_IN_SOURCES

    @property
    def needs_limits(self) -> bool:
        """Nothing but this file says where a volume's limits are."""
        return self.source in ("log-dirs", "prometheus") and not self.factor_source

    @property
    def remembers_brokers(self) -> bool:
        """Brokers that left while a volume was at a limit count on. [DISK] leaves out every fenced one."""
        chosen = self.fenced_brokers or ("remember" if self.scope == "affected" else "ignore")
        return chosen == "remember"

    @property
    def is_disabled(self) -> bool:
        return self.check_interval == 0

    @property
    def snapshot_settings(self) -> Snapshots:
        """The section `snapshots`, with its defaults."""
        return self.snapshots or Snapshots()

    def _limit_keys(self) -> list[str]:
        kinds = {
            "min.available.bytes": self.min_available_bytes is not None,
            "min.available.ratio": self.min_available_ratio is not None,
            "soft" if self.soft else "hard": bool(self.soft or self.hard),
            "limit_policy": bool(self.limit_policy),
        }
        return [key for key, given in kinds.items() if given]


def limits_production(keys: Iterable[PolicyKey]) -> bool:
    """Whether there is a limit that storage's factor can lower: a broker's total, some client's bytes per second, or a
    resource group's publish limit.

    Thresholds of topics limit nothing without a total, and shares are parts of one.
    """
    return any(
        key.key == TOTAL_KEY
        or (key.kind == "group" and key.key in (group_names.PUBLISH_BYTES, group_names.PUBLISH_MSGS))
        or (key.kind == "quota" and key.quota_key.type == "producer_byte_rate" and key.quota_key.unit != "shares")
        for key in keys
    )
