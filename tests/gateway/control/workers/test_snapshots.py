# What workers are told of resource groups and of client quotas.

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.channel import GroupSnapshot, QuotaChanges, QuotaSnapshot, decode_for_worker
from gateway.control.workers.snapshots import groups_of, quota_changes, quotas_of, thresholds_of
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, PolicyOperation
from policies.definitions.rollout import PolicyRollout
from policies.groups.group_limiters import GroupLimitValues
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.quotas.store import QuotaStore

TEXT = """
upstream: {bootstrap_servers: broker:9092}
resource_groups:
  topic_pattern: "{tenant}-{topic}"
  principal_pattern: "User:{tenant}"
  groups: {gold: {publishRateInBytes: 12MB, publishRateInMsgs: 100, dispatchRateInBytes: 24MB, dispatchRateInMsgs: 200}}
  tenants: {acme: gold}
"""


def test_groups_of_the_file_and_of_run_time_with_the_files_patterns() -> None:
    settings = config.parse_settings(TEXT)
    gold, orders = PolicyKey.of_group("gold", "publishRateInMsgs"), PolicyKey.of_namespace("acme", "orders")
    policies = PolicySet(settings.policy_values()).alter_policies(
        [PolicyOperation(gold, 50), PolicyOperation(PolicyKey.of_group("silver"), 1), PolicyOperation(orders, "silver")]
    )
    assert groups_of(policies, settings) == GroupSnapshot(
        1,
        {"gold": GroupLimitValues(12e6, 50.0, 24e6, 200.0), "silver": GroupLimitValues()},
        {"acme": "gold"},
        {"acme/orders": "silver"},
        "{tenant}-{topic}",
        "User:{tenant}",
        "enforce",
    )


def test_a_namespace_whose_group_is_not_there_is_without_limits_and_not_under_its_tenants() -> None:
    settings = config.parse_settings(TEXT)
    policies = PolicySet(settings.policy_values(), {PolicyKey.of_namespace("acme", "orders"): "gone"})
    told = groups_of(policies, settings)
    assert told.groups["gone"] == GroupLimitValues()
    assert told.namespaces == {"acme/orders": "gone"}


def test_for_how_many_of_the_clients_each_policy_is_enforced() -> None:
    settings = config.parse_settings(
        TEXT + "  enforce_percent: 5\nclient_quotas_enforce_percent: 0.5\nthresholds: {enforce_percent: 50}\n"
    )
    told = [make(PolicySet(), settings).enforce_percent for make in (thresholds_of, quotas_of, groups_of)]
    assert told == [50.0, 0.5, 5.0]
    assert settings.rollout == PolicyRollout(quota=0.5, group=5.0, threshold=50.0)


RATE = QuotaKey("producer_byte_rate", "broker_bps")
_ENTITIES = [Entity(name) for name in ("a", "b", "c", DEFAULT)]
_ENTRIES = st.dictionaries(st.sampled_from(_ENTITIES), st.just({RATE: 1.0}) | st.just({RATE: 2.0}))


@given(_ENTRIES, _ENTRIES)
def test_changes_of_quotas_make_the_new_ones_of_those_that_were_told(
    before: dict[Entity, dict[QuotaKey, float]], after: dict[Entity, dict[QuotaKey, float]]
) -> None:
    changes = quota_changes(QuotaSnapshot(1, before), QuotaSnapshot(2, after))
    if changes is not None:
        assert QuotaStore.from_validated(before).overlay_entries(changes.entries, 2).entries == after


def test_one_quota_of_many_is_told_alone_and_anything_else_with_all_of_them() -> None:
    many = {Entity(f"user-{number}"): {RATE: 1.0} for number in range(10)}
    told, alice = QuotaSnapshot(1, many), Entity("alice")
    assert quota_changes(told, QuotaSnapshot(2, many | {alice: {RATE: 2.0}})) == QuotaChanges({alice: {RATE: 2.0}})
    fewer = {entity: values for entity, values in many.items() if entity != Entity("user-3")}
    assert quota_changes(told, QuotaSnapshot(2, fewer)) == QuotaChanges({Entity("user-3"): {}})
    assert quota_changes(told, QuotaSnapshot(2, {entity: {RATE: 3.0} for entity in many})) is None
    assert quota_changes(told, QuotaSnapshot(2, many | {alice: {RATE: 2.0}}, mode="observe")) is None


def test_quotas_and_their_changes_are_the_same_behind_the_channel() -> None:
    for message in (
        QuotaSnapshot(1, {Entity(DEFAULT, "<default>"): {RATE: 1.0}, Entity("a"): {RATE: 2.0}}),
        QuotaChanges({Entity(None, DEFAULT): {}, Entity("", "é"): {QuotaKey("request_percentage", "percent"): 0.5}}),
    ):
        assert decode_for_worker(msgspec.msgpack.encode(message)) == message


def test_observed_as_a_whole_or_alone() -> None:
    alone, whole = config.parse_settings(TEXT + "  mode: observe\n"), config.parse_settings(TEXT + "mode: observe\n")
    assert [groups_of(PolicySet(), each).mode for each in (alone, whole)] == ["observe", "observe"]
    assert [each.rollout for each in (alone, whole)] == [PolicyRollout(group=0.0), PolicyRollout(0.0, 0.0, 0.0)]
