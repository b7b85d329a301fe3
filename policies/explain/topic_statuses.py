# All topics and how near each is to its threshold.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Literal, NamedTuple

from policies.definitions.policy_values import PolicyKey
from policies.explain.idle_limits import IdleLimits
from policies.explain.model import ExplainInputs, TopicFlow, origin_of, sortable_ratio
from policies.limits.description import ratio_text
from policies.limits.limit_use import limit_utilization
from policies.thresholds.broker_limits import TopicRate

TopOrder = Literal["rate", "rejected", "utilization"]


class TopicStatus(NamedTuple):
    """One topic over all its brokers and all gateways.

    `threshold`: on the broker where its utilization is highest, `broker`; None = none; in force there. `kind`:
    explicit, implicit, or none. `rate`: one-minute rate of all brokers, `elsewhere`: the part of it that other gateways
    bring. `over`: rejected or delayed somewhere by its threshold. `flow`: through all gateways; `others`: through the
    other ones, by name, where the topic is among their busiest.
    """

    topic: str
    brokers: tuple[int, ...]
    kind: str
    origin: str
    broker: int | None
    threshold: float | None
    rate: float
    elsewhere: float
    utilization: float
    over: bool
    flow: TopicFlow
    others: Mapping[str, TopicFlow] = {}

    @property
    def utilization_text(self) -> str:
        return ratio_text(self.utilization, is_limited=self.broker is not None and self.threshold is not None)


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
    elsewhere: dict[str, dict[int, float]] = {}
    for node_id, brought in known.rates.peer_traffic.items():
        for topic, rate in brought.topics.items():
            name = topic.decode(errors="replace")
            elsewhere.setdefault(name, {})[node_id] = rate
            places.setdefault(name, set()).add(node_id)
    explicit = known.policies.topic_thresholds()
    settings = {setting.key: setting for setting in known.policies.list_settings()}
    limits = IdleLimits(known)
    lines = []
    for name in sorted({*places, *explicit, *flows, *others} - {""}):
        best: tuple[float, int | None, float | None] = (math.nan, None, None)
        for broker in sorted(places.get(name, ())):
            meter = meters.get(name, {}).get(broker)
            limit = None if meter is None else meter.threshold
            if limit is None:
                found = limits.of_broker(broker, name).thresholds.threshold_of(name.encode())
                limit = None if found is None else found.limit
            used = limit_utilization(elsewhere.get(name, {}).get(broker, 0.0), limit)
            if meter is not None:
                used = (
                    meter.limit_use.utilization if meter.threshold is not None else limit_utilization(meter.rate, limit)
                )
            if best[1] is None or sortable_ratio(used) > sortable_ratio(best[0]):
                best = (used, broker, limit)
        limited = best[2] is not None
        kind = "explicit" if name in explicit else "implicit" if limited else "none"
        key = PolicyKey.of_topic(name)
        theirs = others.get(name, {})
        flow, other = flows.get(name, TopicFlow()), reduce(TopicFlow.combined_with, theirs.values(), TopicFlow())
        away = math.fsum(elsewhere.get(name, {}).values()) if name in elsewhere else other.accepted
        lines.append(
            TopicStatus(
                name, tuple(sorted(places.get(name, ()))), kind,
                origin_of(settings.get(key), known.base_origin) or ("computed" if limited else ""),
                best[1], best[2] if limited else explicit.get(name),
                away + math.fsum(meter.rate for meter in meters.get(name, {}).values()), away, best[0],
                any(meter.over for meter in meters.get(name, {}).values()), flow.combined_with(other), theirs,
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
