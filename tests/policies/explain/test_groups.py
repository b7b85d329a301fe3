# What explanations say about resource groups: which one, why, its part of the limit, and which rule binds first.

from __future__ import annotations

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, PolicyOperation
from policies.explain import (
    ExplainInputs,
    ExplainSubject,
    HeldTraffic,
    LimitDescription,
    MeterRates,
    TrafficExplanation,
    explain_traffic,
)
from policies.fleet.keys import group_key
from policies.groups.finder import DEFAULT_PATTERN, GroupResolver
from policies.groups.group_limiters import GroupRate
from policies.groups.names import DISPATCH_BYTES, PUBLISH_BYTES, PUBLISH_MSGS
from policies.limits.description import FleetUse
from policies.limits.limit_use import LimitUse
from policies.storage import StorageFactor
from policies.thresholds.broker_limits import BrokerRate, TopicRate
from tests.policies.explain.explain_play import MB, NOW_MS, first_rule

GOLD = PolicyKey.of_group("gold")
GOLD_BYTES, GOLD_MSGS = PolicyKey.of_group("gold", PUBLISH_BYTES), PolicyKey.of_group("gold", PUBLISH_MSGS)
ACME, ORDERS = PolicyKey.of_tenant("acme"), PolicyKey.of_namespace("acme", "orders")
TOPIC = "acme.orders.new"
POLICIES = PolicySet().alter_policies(
    [PolicyOperation(GOLD, 1), PolicyOperation(GOLD_BYTES, 12 * MB), PolicyOperation(ORDERS, "gold")]
)
BROKER = BrokerRate(1, 2.0 * MB, 0.0, 0.0, None, [TopicRate(TOPIC, 1.0 * MB, None, False)])


def known(policies: PolicySet = POLICIES, principal_pattern: str = "", **more: object) -> ExplainInputs:
    finder = GroupResolver(DEFAULT_PATTERN, principal_pattern, policies.tenant_groups(), policies.namespace_groups())
    leads = {1: (TOPIC, "plain")}
    return ExplainInputs(policies, led_topics=leads, now_ms=NOW_MS, finder=finder)._replace(**more)  # type: ignore[arg-type]


def rates(rate: float, part: float | None, *, msgs: float = 0.0, waiting: bool = False) -> MeterRates:
    group = GroupRate("gold", "publish", 1, LimitUse(rate, part, waiting), LimitUse(msgs, None))
    return MeterRates([BROKER], groups=[group])


def group_rules(found: TrafficExplanation) -> list[LimitDescription]:
    return [rule for rule in found.rules if rule.name == "resource-group"]


def test_a_group_is_a_rule_with_its_part_of_the_limit_and_what_all_gateways_take() -> None:
    measured = rates(4.0 * MB, 5.0 * MB)._replace(
        fleet={group_key("gold", "publish", "bytes"): FleetUse(5.0 * MB, {"gwb": 7.5 * MB}, 2)}
    )
    (rule,) = group_rules(explain_traffic(ExplainSubject(TOPIC), known(rates=measured)))
    level = rule.levels[0]
    assert (level.what, level.origin) == (
        "publishRateInBytes of group gold, attached to namespace acme/orders",
        "run time",
    )
    assert (level.configured, level.limit, level.rate) == (12 * MB, 5 * MB, 4 * MB)
    assert (rule.action, rule.traffic, rule.mode, rule.limits_now) == ("delay", "produce", "enforce", False)
    assert rule.headroom == 1 * MB
    assert level.text == (
        "12.0 MB/s over 2 gateways: 11.5 MB/s used (4.0 MB/s here, 7.5 MB/s at gwb), the share of this gateway is now"
        " 5.0 MB/s (80%)"
    )


def test_without_a_known_part_the_whole_limit_is_shown() -> None:
    (rule,) = group_rules(explain_traffic(ExplainSubject(TOPIC), known()))
    assert (rule.levels[0].limit, rule.levels[0].rate) == (12 * MB, None)
    (rule,) = group_rules(explain_traffic(ExplainSubject(TOPIC), known(rates=MeterRates([BROKER]))))
    assert (rule.levels[0].limit, rule.levels[0].rate) == (12 * MB, 0.0)  # the meters speak, and say nothing of it
    part = MeterRates([BROKER], fleet={group_key("gold", "publish", "bytes"): FleetUse(3.0 * MB, {"gwb": 0.0}, 2)})
    (rule,) = group_rules(explain_traffic(ExplainSubject(TOPIC), known(rates=part)))
    assert rule.levels[0].limit == 3 * MB


def test_a_namespaces_group_replaces_its_tenants_and_that_is_said() -> None:
    policies = POLICIES.alter_policies([PolicyOperation(PolicyKey.of_group("big"), 1), PolicyOperation(ACME, "big")])
    found = explain_traffic(ExplainSubject(TOPIC), known(policies))
    assert [rule.levels[0].what for rule in group_rules(found)] == [
        "publishRateInBytes of group gold, attached to namespace acme/orders"
    ]
    (shadowed,) = [each for each in found.shadowed if each.name == "resource-group"]
    assert shadowed == (
        "resource-group", None, "resourcegroup of tenant acme", "run time", "big",
        "namespace acme/orders has group gold, which replaces its tenant's",
    )  # fmt: skip


def test_a_principal_may_say_which_group() -> None:
    policies = POLICIES.alter_policies([PolicyOperation(ACME, "gold")])
    found = explain_traffic(ExplainSubject("plain", "acme"), known(policies, "User:{tenant}"))
    assert group_rules(found)[0].levels[0].what.endswith("attached to tenant acme")
    assert group_rules(explain_traffic(ExplainSubject("plain", "other"), known(policies, "User:{tenant}"))) == []


def test_why_no_group_is_about_a_topic() -> None:
    def notes(topic: str, pattern: str = "") -> list[str]:
        said = explain_traffic(ExplainSubject(topic, "u"), known(POLICIES, pattern)).notes
        return [note for note in said if note.startswith("no resource group")]

    assert notes(TOPIC) == []
    assert notes("plain") == [
        "no resource group: neither the topic's name nor the principal says which tenant it is of"
    ]
    assert notes("acme.x.t") == ["no resource group: none is attached to namespace acme/x or tenant acme"]
    assert notes("plain", "User:{tenant}") == ["no resource group: none is attached to tenant u"]
    assert not any(
        "resource group" in note for note in explain_traffic(ExplainSubject("plain"), known(PolicySet())).notes
    )


def test_internal_topics_are_in_no_group_for_any_client() -> None:
    policies = POLICIES.alter_policies([PolicyOperation(ACME, "gold")])
    found = explain_traffic(ExplainSubject("__consumer_offsets", "acme"), known(policies, "User:{tenant}"))
    assert group_rules(found) == []
    assert "no resource group: Kafka's internal topics are in none" in found.notes


def test_a_group_without_limits_or_that_is_not_there_limits_nothing() -> None:
    empty = PolicySet({}, {GOLD: 1.0, ORDERS: "gold"})
    missing = PolicySet({}, {ORDERS: "gold"})
    for policies, why in ((empty, "the group has no limits, it is only metered"), (missing, "there is no such group")):
        found = explain_traffic(ExplainSubject(TOPIC), known(policies))
        assert group_rules(found) == []
        assert [each.why for each in found.shadowed] == [why]


def test_of_two_limits_the_one_that_is_used_up_is_what_waits() -> None:
    policies = POLICIES.alter_policies([PolicyOperation(GOLD_MSGS, 100)])
    for used_up in ("publishRateInMsgs", "publishRateInBytes"):
        of_bytes = LimitUse(11.0 * MB, 12.0 * MB, used_up == "publishRateInBytes", 1.0)
        of_msgs = LimitUse(99.0, 100.0, used_up == "publishRateInMsgs", 1.0)
        used = MeterRates([BROKER], groups=[GroupRate("gold", "publish", 1, of_bytes, of_msgs)])
        found = explain_traffic(ExplainSubject(TOPIC), known(policies, rates=used))
        now = [rule.levels[0].what.split(" of ")[0] for rule in group_rules(found) if rule.limits_now]
        assert now == [used_up]
        assert found.summary.startswith(f"delayed now by resource-group: {used_up} of group gold")


def test_a_topic_held_by_a_group_lately_is_limited_now() -> None:
    at = NOW_MS - 9
    held = HeldTraffic(TOPIC, "User:ANONYMOUS", "", 1, "delayed", "resource-group", at, at, 1, 1, 50, at)
    (rule,) = group_rules(explain_traffic(ExplainSubject(TOPIC), known(rates=rates(MB, 2.0 * MB)), [held]))
    assert rule.limits_now


def test_the_more_stringent_of_group_and_topic_is_first() -> None:
    total, topic = PolicyKey.of_broker(), PolicyKey.of_topic(TOPIC)
    policies = POLICIES.alter_policies([PolicyOperation(total, 3 * MB), PolicyOperation(topic, 2 * MB)])
    tight, loose = rates(4.0 * MB, 4.5 * MB), rates(4.0 * MB, 12.0 * MB)
    assert first_rule(explain_traffic(ExplainSubject(TOPIC), known(policies, rates=tight))).name == "resource-group"
    assert first_rule(explain_traffic(ExplainSubject(TOPIC), known(policies, rates=loose))).name == "topic-threshold"


def test_dispatch_is_about_fetch_and_storage_lowers_only_what_is_published() -> None:
    policies = POLICIES.alter_policies([PolicyOperation(PolicyKey.of_group("gold", DISPATCH_BYTES), 24 * MB)])
    found = explain_traffic(ExplainSubject(TOPIC), known(policies, storage=StorageFactor(0.5)))
    limits = {rule.traffic: rule.levels[0].limit for rule in group_rules(found)}
    assert limits == {"produce": 6 * MB, "fetch": 24 * MB}
    assert "times the storage factor 0.5" in group_rules(found)[0].note


def test_internal_principals_are_in_no_group() -> None:
    found = explain_traffic(ExplainSubject(TOPIC, "mirror"), known(internal_principals=("User:mirror",)))
    assert group_rules(found) == []
    assert any(each.name == "resource-group" and "12,000,000 bytes/s" in each.value for each in found.shadowed)


def test_an_observed_limit_is_never_first() -> None:
    found = explain_traffic(
        ExplainSubject(TOPIC), known(group_mode="observe", rates=rates(12.0 * MB, 12.0 * MB, waiting=True))
    )
    assert [(rule.mode, rule.first) for rule in group_rules(found)] == [("observe", False)]


def test_the_files_value_is_shown_beside_a_changed_one() -> None:
    policies = PolicySet({GOLD: 1.0, GOLD_BYTES: 5.0 * MB, ORDERS: "gold"}).alter_policies(
        [PolicyOperation(GOLD_BYTES, 12 * MB)]
    )
    found = explain_traffic(ExplainSubject(TOPIC), known(policies))
    assert [(each.what, each.value, each.origin) for each in found.shadowed] == [
        ("publishRateInBytes of group gold", "5,000,000 bytes/s", "file")
    ]
    assert group_rules(found)[0].levels[0].origin == "run time"
