# All topics and how near each is to its threshold.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from policies.definitions.policy_values import PolicyKey
from policies.engine import INTERNAL_TOPICS, TopicRate
from policies.explain.model import ExplainInputs, TopicFlow, TopicStatus, origin_of, produce_factor, sortable_ratio
from policies.explain.thresholds import implicit_share_of
from policies.limits.limit_use import limit_utilization

TopOrder = Literal["rate", "rejected", "utilization"]


def topic_statuses(
    known: ExplainInputs, flows: Mapping[str, TopicFlow], others: Mapping[str, TopicFlow] = {}
) -> list[TopicStatus]:
    """Every topic that metadata, meters, thresholds or traffic know, by name. `flows`: through this gateway; `others`:
    through the others together, of the busiest topics.
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
    by_broker = {rates.node_id: rates for rates in known.rates.brokers}
    shares: dict[int, float] = {}
    scale = _storage_scale(known)
    lines = []
    for name in sorted({*places, *explicit, *flows, *others} - {""}):
        best: tuple[float, int | None, float | None] = (math.nan, None, None)
        for broker in sorted(places.get(name, ())):
            meter = meters.get(name, {}).get(broker)
            limit = None if meter is None else meter.threshold
            total = known.policies.broker_total(broker)
            if limit is None and total is not None and (name in explicit or name not in INTERNAL_TOPICS):
                if name not in explicit and broker not in shares:
                    shares[broker] = implicit_share_of(known, broker, total, name, by_broker.get(broker))
                limit = (explicit[name] if name in explicit else shares[broker]) * scale
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
        flow, other = flows.get(name, TopicFlow()), others.get(name, TopicFlow())
        away = math.fsum(elsewhere.get(name, {}).values()) if name in elsewhere else other.accepted
        lines.append(
            TopicStatus(
                name, tuple(sorted(places.get(name, ()))), kind,
                origin_of(settings.get(key), known.base) or ("computed" if limited else ""),
                best[1], best[2] if limited else explicit.get(name),
                away + math.fsum(meter.rate for meter in meters.get(name, {}).values()), away, best[0],
                any(meter.over for meter in meters.get(name, {}).values()), flow.combined_with(other),
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


def _storage_scale(known: ExplainInputs) -> float:
    factor = produce_factor(known)
    return factor if 0 < factor < 1 else 1.0
