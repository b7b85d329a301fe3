# Questions of alice's about the topic clicks, and what is known when they are asked.

from __future__ import annotations

from collections.abc import Sequence

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.explain import (
    ExplainInputs,
    ExplainSubject,
    HeldTraffic,
    LimitDescription,
    MeterRates,
    TrafficExplanation,
)
from policies.limits.limit_use import LimitUse
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.quotas.quota_limiters import QuotaRate
from policies.quotas.text import entity_text
from policies.thresholds.broker_limits import BrokerRate, TopicRate

MB = 10**6
NOW_MS = 1_700_000_000_000
TOTAL, TOTAL_2, CLICKS = PolicyKey.of_broker(), PolicyKey.of_broker(2), PolicyKey.of_topic("clicks")
ALICE, ANYBODY, APP = Entity("alice"), Entity(DEFAULT), Entity("alice", "app")
BPS, BROKER_BPS = QuotaKey.parse("producer_byte_rate:bps"), QuotaKey.parse("producer_byte_rate:broker_bps")
SHARES, TIME = QuotaKey.parse("producer_byte_rate:shares"), QuotaKey.parse("request_percentage")
CONSUME = QuotaKey.parse("consumer_byte_rate:bps")
ASKED = ExplainSubject("clicks", "alice", "app")
LEADS = {1: ("clicks", "views"), 2: ("views",)}


def first_rule(found: TrafficExplanation) -> LimitDescription:
    (first,) = (rule for rule in found.rules if rule.first)
    return first


def quota(entity: Entity, key: QuotaKey) -> PolicyKey:
    return PolicyKey.of_quota(entity, key)


def known(base: dict[PolicyKey, float] | None = None, **more: object) -> ExplainInputs:
    policies = PolicySet({TOTAL: 12.0 * MB} if base is None else base)
    return ExplainInputs(policies=policies, led_topics=LEADS, now_ms=NOW_MS)._replace(**more)  # type: ignore[arg-type]


def rates(
    rate: float = 1.0 * MB,
    total: float = 2.0 * MB,
    *,
    over: bool = False,
    broker: int = 1,
    quotas: Sequence[QuotaRate] = (),
    topic: str = "clicks",
) -> MeterRates:
    return MeterRates([BrokerRate(broker, total, 0.0, 0.0, None, [TopicRate(topic, rate, None, over)])], quotas)


def line(source: Entity, key: QuotaKey, rate: float, limit: float, broker: int | None = None) -> QuotaRate:
    """Of alice's connections with client id app."""
    user = None if source.user is None else "alice"
    client_id = None if source.client_id is None else "app"
    return QuotaRate(
        str(key), entity_text(source), user, client_id, broker, LimitUse(rate, limit, rate >= limit), limit
    )


def held(
    reason: str = "topic-threshold", *, outcome: str = "rejected", ago_ms: int = 1000, broker: int = 1
) -> HeldTraffic:
    last = NOW_MS - ago_ms
    return HeldTraffic(
        "clicks", "User:alice", "app", broker, outcome, reason, last - 1000, last, 100, 1, 500, last - 90_000
    )


def named(found: TrafficExplanation) -> list[tuple[str, int | None]]:
    return [(rule.name, rule.broker) for rule in found.rules]


def rule(found: TrafficExplanation, name: str, broker: int | None = None) -> LimitDescription:
    (only,) = (each for each in found.rules if each.name == name and broker in (None, each.broker))
    return only


def whys(found: TrafficExplanation, what: str) -> list[str]:
    return [each.why for each in found.shadowed if what in each.what]
