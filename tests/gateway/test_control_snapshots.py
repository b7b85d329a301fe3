# What workers are told of resource groups.

from __future__ import annotations

from gateway import config
from gateway.channel import Groups
from gateway.control.snapshots import groups_of, quotas_of, thresholds_of
from policies.groups.lines import GroupLimits
from policies.policy_set import PolicySet
from policies.policy_values import Op, PolicyKey
from policies.rollout import Rollout

TEXT = """
upstream: {bootstrap_servers: broker:9092}
resource_groups:
  topic_pattern: "{tenant}-{topic}"
  principal_pattern: "User:{tenant}"
  groups: {gold: {publishRateInBytes: 12MB, publishRateInMsgs: 100, dispatchRateInBytes: 24MB, dispatchRateInMsgs: 200}}
  tenants: {acme: gold}
"""


def test_groups_of_the_file_and_of_run_time_with_the_files_patterns() -> None:
    settings = config.parse(TEXT)
    gold, orders = PolicyKey.of_group("gold", "publishRateInMsgs"), PolicyKey.of_namespace("acme", "orders")
    policies = PolicySet(settings.policy_values()).alter(
        [Op(gold, 50), Op(PolicyKey.of_group("silver"), 1), Op(orders, "silver")]
    )
    assert groups_of(policies, settings) == Groups(
        1,
        {"gold": GroupLimits(12e6, 50.0, 24e6, 200.0), "silver": GroupLimits()},
        {"acme": "gold"},
        {"acme/orders": "silver"},
        "{tenant}-{topic}",
        "User:{tenant}",
        "enforce",
    )


def test_a_namespace_whose_group_is_not_there_is_without_limits_and_not_under_its_tenants() -> None:
    settings = config.parse(TEXT)
    policies = PolicySet(settings.policy_values(), {PolicyKey.of_namespace("acme", "orders"): "gone"})
    told = groups_of(policies, settings)
    assert told.groups["gone"] == GroupLimits()
    assert told.namespaces == {"acme/orders": "gone"}


def test_for_how_many_of_the_clients_each_policy_is_enforced() -> None:
    settings = config.parse(
        TEXT + "  enforce_percent: 5\nclient_quotas_enforce_percent: 0.5\nthresholds: {enforce_percent: 50}\n"
    )
    told = [make(PolicySet(), settings).enforce_percent for make in (thresholds_of, quotas_of, groups_of)]
    assert told == [50.0, 0.5, 5.0]
    assert settings.rollout == Rollout(quota=0.5, group=5.0, threshold=50.0)


def test_observed_as_a_whole_or_alone() -> None:
    alone, whole = config.parse(TEXT + "  mode: observe\n"), config.parse(TEXT + "mode: observe\n")
    assert [groups_of(PolicySet(), each).mode for each in (alone, whole)] == ["observe", "observe"]
    assert [each.rollout for each in (alone, whole)] == [Rollout(group=0.0), Rollout(0.0, 0.0, 0.0)]
