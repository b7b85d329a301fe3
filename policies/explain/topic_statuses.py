# All topics and how near each is to its threshold.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Final, Literal, NamedTuple

from policies.definitions.policy_values import PolicyKey
from policies.explain.idle_limits import IdleLimits
from policies.explain.model import ExplainInputs, TopicFlow, origin_of, sortable_ratio
from policies.limits.description import NOT_SHARED, OTHER_GATEWAYS, FleetUse, LimitLevel, known_broker
from policies.thresholds.broker_limits import TopicRate
from policies.thresholds.values import TOPIC_KEY

TopOrder = Literal["rate", "rejected", "utilization"]

_NOWHERE: Final = LimitLevel(TOPIC_KEY, "", None, None, None)  # of a topic that no broker has


class TopicStatus(NamedTuple):
    """One topic over all its brokers and all gateways.

    `threshold`: on the broker where its utilization is highest, `broker`; None = none; in force there, as `level` says.
    `kind`: explicit, implicit, or none. `rate`: one-minute rate of all brokers, `elsewhere`: the part of it that other
    gateways bring. `over`: rejected or delayed somewhere by its threshold, or it would be if that were enforced.
    `flow`: through all gateways; `others`: through the other ones, by name, where the topic is among their busiest.
    `is_missing`: no broker has it, as where a threshold's topic is mistyped.
    """

    topic: str
    brokers: tuple[int, ...]
    kind: str
    origin: str
    broker: int | None
    threshold: float | None
    rate: float
    elsewhere: float
    level: LimitLevel
    over: bool
    flow: TopicFlow
    others: Mapping[str, TopicFlow] = {}
    is_missing: bool = False

    @property
    def utilization(self) -> float:
        return self.level.utilization

    @property
    def utilization_text(self) -> str:
        return "no such topic" if self.is_missing else self.level.utilization_text


def topic_statuses(
    known: ExplainInputs, flows: Mapping[str, TopicFlow], others: Mapping[str, Mapping[str, TopicFlow]] = {}
) -> list[TopicStatus]:
    """Every topic that metadata, meters, thresholds or traffic know, by name. `flows`: through this gateway; `others`:
    through each of the others, by topic and gateway, of their busiest topics.
    """
    places: dict[str, set[int]] = {}
    for broker, names in known.led_topics.items():
        for name in names:
            places.setdefault(name, set()).add(broker)
    meters: dict[str, dict[int, TopicRate]] = {}
    for rates in known.rates.brokers:
        for each in rates.topics:
            meters.setdefault(each.topic, {})[rates.node_id] = each
            places.setdefault(each.topic, set()).add(rates.node_id)
    elsewhere: dict[str, dict[int, FleetUse]] = {}
    for node_id, brought in known.rates.peer_traffic.items():
        for topic, rate in brought.topics.items():
            name = topic.decode(errors="replace")
            elsewhere.setdefault(name, {})[node_id] = FleetUse(others={OTHER_GATEWAYS: rate})
            places.setdefault(name, set()).add(node_id)
    explicit = known.policies.topic_thresholds()
    settings = {setting.key: setting for setting in known.policies.list_settings()}
    limits = IdleLimits(known)
    lines = []
    for name in sorted({*places, *explicit, *flows, *others} - {""}):
        origin = origin_of(settings.get(PolicyKey.of_topic(name)), known.base_origin)
        here, there = meters.get(name, {}), elsewhere.get(name, {})
        levels = {
            broker: limits.of_broker(broker).describe_topic(
                name, here.get(broker), origin, there.get(broker, NOT_SHARED)
            )
            for broker in sorted(places.get(name, ()))
        }
        nearest = max(levels, key=lambda broker: sortable_ratio(levels[broker].utilization), default=None)
        level = _NOWHERE if nearest is None else levels[nearest]
        limited = level.whole_limit is not None
        kind = "explicit" if name in explicit else "implicit" if limited else "none"
        theirs = others.get(name, {})
        flow, other = flows.get(name, TopicFlow()), reduce(TopicFlow.combined_with, theirs.values(), TopicFlow())
        away = math.fsum(use.combined_rate(0.0) for use in there.values()) if there else other.accepted
        lines.append(
            TopicStatus(
                name, tuple(broker for broker in levels if broker >= 0), kind,
                origin or ("computed" if limited else ""), None if nearest is None else known_broker(nearest),
                level.whole_limit if limited else explicit.get(name),
                away + math.fsum(meter.rate for meter in here.values()), away, level,
                any(meter.over for meter in here.values()), flow.combined_with(other), theirs,
                bool(known.led_topics) and not levels,
            )
        )  # fmt: skip
    return lines


def top_topics(lines: Iterable[TopicStatus], by: TopOrder) -> list[TopicStatus]:
    """The busiest first: by one-minute rate, by rejections just now, or by utilization."""
    keys: dict[TopOrder, Callable[[TopicStatus], float]] = {
        "rate": lambda line: line.rate,
        "rejected": lambda line: line.flow.rejected,
        "utilization": lambda line: sortable_ratio(line.utilization),
    }
    return sorted(lines, key=lambda line: (-keys[by](line), -line.rate, line.topic))
