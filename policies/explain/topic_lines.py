# All topics and how near each is to its threshold.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from policies.definitions.policy_values import PolicyKey
from policies.engine import INTERNAL_TOPICS, TopicRate
from policies.explain.model import Flow, Known, TopicLine, origin_of, produce_factor, sortable
from policies.explain.thresholds import share_of
from policies.limits.limit_use import utilization

By = Literal["rate", "rejected", "utilization"]


def topics(known: Known, flows: Mapping[str, Flow], others: Mapping[str, Flow] = {}) -> list[TopicLine]:
    """Every topic that metadata, meters, thresholds or traffic know, by name. `flows`: through this gateway; `others`:
    through the others together, of the busiest topics.
    """
    places: dict[str, set[int]] = {}
    for broker, names in known.leads.items():
        for name in names:
            places.setdefault(name, set()).add(broker)
    meters: dict[str, dict[int, TopicRate]] = {}
    for rates in known.rates.brokers:
        for each in rates.topics:
            meters.setdefault(each.topic, {})[rates.node_id] = each
            places.setdefault(each.topic, set()).add(rates.node_id)
    elsewhere: dict[str, dict[int, float]] = {}
    for node_id, brought in known.rates.elsewhere.items():
        for topic, rate in brought.topics.items():
            name = topic.decode(errors="replace")
            elsewhere.setdefault(name, {})[node_id] = rate
            places.setdefault(name, set()).add(node_id)
    explicit = known.policies.topics()
    settings = {setting.key: setting for setting in known.policies.settings()}
    by_broker = {rates.node_id: rates for rates in known.rates.brokers}
    shares: dict[int, float] = {}
    scale = _scale(known)
    lines = []
    for name in sorted({*places, *explicit, *flows, *others} - {""}):
        best: tuple[float, int | None, float | None] = (math.nan, None, None)
        for broker in sorted(places.get(name, ())):
            meter = meters.get(name, {}).get(broker)
            limit = None if meter is None else meter.threshold
            total = known.policies.total(broker)
            if limit is None and total is not None and (name in explicit or name not in INTERNAL_TOPICS):
                if name not in explicit and broker not in shares:
                    shares[broker] = share_of(known, broker, total, name, by_broker.get(broker))
                limit = (explicit[name] if name in explicit else shares[broker]) * scale
            used = utilization(elsewhere.get(name, {}).get(broker, 0.0), limit)
            if meter is not None:
                used = meter.used.utilization if meter.threshold is not None else utilization(meter.rate, limit)
            if best[1] is None or sortable(used) > sortable(best[0]):
                best = (used, broker, limit)
        limited = best[2] is not None
        kind = "explicit" if name in explicit else "implicit" if limited else "none"
        key = PolicyKey.of_topic(name)
        flow, other = flows.get(name, Flow()), others.get(name, Flow())
        away = math.fsum(elsewhere.get(name, {}).values()) if name in elsewhere else other.accepted
        lines.append(
            TopicLine(
                name, tuple(sorted(places.get(name, ()))), kind,
                origin_of(settings.get(key), known.base) or ("computed" if limited else ""),
                best[1], best[2] if limited else explicit.get(name),
                away + math.fsum(meter.rate for meter in meters.get(name, {}).values()), away, best[0],
                any(meter.over for meter in meters.get(name, {}).values()), flow.plus(other),
            )
        )  # fmt: skip
    return lines


def top(lines: Iterable[TopicLine], by: By) -> list[TopicLine]:
    """The busiest first: by one-minute rate, by rejections just now, or by utilization."""
    keys: dict[By, Callable[[TopicLine], float]] = {
        "rate": lambda line: line.rate,
        "rejected": lambda line: line.flow.rejected,
        "utilization": lambda line: sortable(line.utilization),
    }
    return sorted(lines, key=lambda line: (-keys[by](line), -line.rate, line.topic))


def _scale(known: Known) -> float:
    factor = produce_factor(known)
    return factor if 0 < factor < 1 else 1.0
