# What explanations say is in force is what a worker's own limits decide by: those of a worker with the same policies,
# storage factor and parts, asked themselves.

from __future__ import annotations

import pytest

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from policies.engine import OnExceed, PolicyEngine
from policies.explain import ExplainInputs, ExplainSubject, MeterRates, explain_traffic, shared_limit_keys
from policies.fleet.fleet_limiter import FleetLimiter
from policies.fleet.shares import ShareGrant
from policies.groups.finder import DEFAULT_PATTERN, GroupResolver
from policies.groups.group_limiters import GroupLimitValues
from policies.groups.names import DISPATCH_BYTES, PUBLISH_BYTES, PUBLISH_MSGS
from policies.limits.description import FleetUse, LimitDescription
from policies.quotas.quota_limiters import QuotaLimiters
from policies.storage import AffectedTopics, StorageFactor
from tests.policies.explain.explain_play import ALICE, BPS, BROKER_BPS, CONSUME, MB, TOTAL, quota

TOPIC = "acme.orders.new"
ASKED = ExplainSubject(TOPIC, "alice", "app")
GROUP_RATES = {PUBLISH_BYTES: 12.0 * MB, PUBLISH_MSGS: 100.0, DISPATCH_BYTES: 24.0 * MB}
POLICIES = PolicySet(
    {
        TOTAL: 20.0 * MB,
        quota(ALICE, BPS): 3.0 * MB,
        quota(ALICE, BROKER_BPS): 2.0 * MB,
        quota(ALICE, CONSUME): 9.0 * MB,
        PolicyKey.of_group("gold"): 1.0,
        PolicyKey.of_namespace("acme", "orders"): "gold",
        **{PolicyKey.of_group("gold", key): rate for key, rate in GROUP_RATES.items()},
    }
)
FINDER = GroupResolver(DEFAULT_PATTERN, "", POLICIES.tenant_groups(), POLICIES.namespace_groups())


class Worker:
    def __init__(self, known: ExplainInputs, parts: dict[str, ShareGrant], gateways: int) -> None:
        self.engine = PolicyEngine(0.0)
        self.engine.fleet.update_grants(parts, gateways, 0.0, 0.0)
        self.engine.set_thresholds(20.0 * MB, {}, on_exceed=known.on_exceed)
        self.engine.set_listed_topics(1, [TOPIC])
        self.engine.set_groups({"gold": GroupLimitValues.from_rates(GROUP_RATES)}, FINDER, 0.0)
        self.quotas = QuotaLimiters(self.engine.fleet)
        self.quotas.set_quotas(POLICIES.quota_store(), 0.0)
        if known.storage is not None:
            self.engine.set_storage(known.storage.value, known.storage.why, known.affected, 1.0)
            self.quotas.set_storage_factor(self.engine.storage_factor, 1.0)

    def limits(self) -> dict[str, list[tuple[float, float]]]:
        """By reason: what holds here, and over all gateways."""
        quotas = self.quotas.connection_limit(1, "alice", "app", 2.0)
        groups = [self.engine.groups.limit_of("gold", direction, 2.0) for direction in ("publish", "dispatch")]
        found: dict[str, list[FleetLimiter]] = {
            "client-quota": [*quotas.produce_limiters, *quotas.consume_limiters],
            "resource-group": [limiter for each in groups for limiter in each.limiters],
        }
        return {
            name: sorted((each.gateway_rate, each.whole_rate) for each in limiters) for name, limiters in found.items()
        }


def levels(rules: tuple[LimitDescription, ...], name: str) -> list[tuple[float | None, float | None]]:
    found = [level for rule in rules if rule.name == name for level in rule.levels]
    return sorted(((level.limit, level.whole) for level in found), key=str)


@pytest.mark.parametrize("factor", [None, 1.0, 0.25, 0.0])
@pytest.mark.parametrize("gateways", [1, 3])
def test_what_is_in_force_is_what_a_workers_own_limits_say(gateways: int, factor: float | None) -> None:
    storage = None if factor is None else StorageFactor(factor, why="full")
    known = ExplainInputs(POLICIES, led_topics={1: (TOPIC,)}, storage=storage, finder=FINDER)
    keys = shared_limit_keys(ASKED, known)
    assert len(keys) == 6
    parts = {key: 100.0 * (number + 1) for number, key in enumerate(keys)} if gateways > 1 else {}
    fleet = {key: FleetUse(part, {"gwb": 1.0}, gateways) for key, part in parts.items()}
    found = explain_traffic(ASKED, known._replace(rates=MeterRates(fleet=fleet)))
    worker = Worker(known, {key: ShareGrant(part, part) for key, part in parts.items()}, gateways)
    for name, limits in worker.limits().items():
        assert levels(found.rules, name) == sorted(limits, key=str), name


@pytest.mark.parametrize("on_exceed", ["reject", "delay"])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_whether_thresholds_delay_and_what_all_producers_share_is_what_the_engine_says(
    factor: float, on_exceed: OnExceed
) -> None:
    known = ExplainInputs(POLICIES, led_topics={1: (TOPIC,)}, storage=StorageFactor(factor, why="full"))
    known = known._replace(on_exceed=on_exceed)
    limits = Worker(known, {}, 1).engine.broker_meters(1).limits
    rules = explain_traffic(ASKED, known).rules
    (threshold,) = [rule for rule in rules if rule.name == "topic-threshold"]
    assert (threshold.action == "delay") is limits.strategy.delays_requests
    shared = [] if limits.storage_throttle is None else [limits.storage_throttle.limiter.whole_rate]
    assert [rule.levels[0].limit for rule in rules if rule.name == "storage-throttle"] == shared


@pytest.mark.parametrize("factor", [0.5, 0.0])
def test_a_topic_that_metadata_does_not_list_is_held_on_the_brokers_where_the_engine_holds_it(factor: float) -> None:
    full = AffectedTopics("broker 3 /d", factor, "broker 3 volume /d: full", ("other",), (3,))
    leads = {1: ("views",), 3: ("other",)}
    known = ExplainInputs(POLICIES, led_topics=leads, storage=StorageFactor(factor, why="full"), affected=[full])
    engine = Worker(known, {}, 1).engine
    for broker, topics in leads.items():
        engine.set_listed_topics(broker, topics)
        held = engine.broker_meters(broker).storage_limit_of(TOPIC.encode()) is not None
        rules = explain_traffic(ASKED._replace(broker=broker), known).rules
        assert any(rule.name.startswith("storage") for rule in rules) is held is (broker == 3)
    both = [rule for rule in explain_traffic(ASKED, known).rules if rule.name.startswith("storage")]
    assert [rule.broker for rule in both] == ([3] if factor else [None])
