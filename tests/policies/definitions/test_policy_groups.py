# Resource groups among the policies: which limits hold, what is attached to what, that both sides of an attachment are
# judged, and how it is written down and read back.

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.definitions.fitting import find_misfits
from policies.definitions.policy_records import (
    AlterationHead,
    ChangeSource,
    InvalidPolicyRecord,
    PolicyEntry,
    PolicyRecord,
    decode_record,
    encode_alteration,
    encode_key,
)
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    PolicyChange,
    PolicyError,
    PolicyKey,
    PolicyOperation,
    PolicySetting,
    PolicyValue,
    value_text,
)
from policies.groups.names import GROUP_KEYS, PUBLISH_BYTES, PUBLISH_MSGS
from tests.policies.definitions.policy_play import MB, altered, refused

GOLD, SILVER = PolicyKey.of_group("gold"), PolicyKey.of_group("silver")
GOLD_BYTES, GOLD_MSGS = PolicyKey.of_group("gold", PUBLISH_BYTES), PolicyKey.of_group("gold", PUBLISH_MSGS)
ACME, ORDERS = PolicyKey.of_tenant("acme"), PolicyKey.of_namespace("acme", "orders")
BASE: dict[PolicyKey, PolicyValue] = {GOLD: 1.0, GOLD_BYTES: 12.0 * MB, ACME: "gold"}
HEAD = AlterationHead(7, "token", 1_700_000_000_000, ChangeSource("User:alice", "rest", "10.0.0.1:5"), 1)


def records(old: PolicySet, new: PolicySet) -> list[PolicyRecord]:
    return encode_alteration(new.changes_since(old), HEAD)


# --- what holds -------------------------------------------------------------------------------------------------------


def test_groups_have_limits_or_none_and_are_attached() -> None:
    policies = altered(PolicySet(BASE), (SILVER, 1), (ORDERS, "silver"), (GOLD_MSGS, 100))
    assert policies.group_limits() == {"gold": {PUBLISH_BYTES: 12 * MB, PUBLISH_MSGS: 100}, "silver": {}}
    assert policies.tenant_groups() == {"acme": "gold"}
    assert policies.namespace_groups() == {"acme/orders": "silver"}
    assert policies.attachments_of("gold") == (ACME,)
    assert policies.attachments_of("silver") == (ORDERS,)


def test_a_change_wins_over_the_file_and_without_it_the_file_shows_again() -> None:
    policies = altered(PolicySet(BASE), (GOLD_BYTES, 5 * MB), (SILVER, 1), (ACME, "silver"))
    assert policies.group_limits()["gold"] == {PUBLISH_BYTES: 5 * MB}
    assert policies.tenant_groups() == {"acme": "silver"}
    assert policies.find_setting(GOLD_BYTES) == PolicySetting(GOLD_BYTES, 12.0 * MB, 5.0 * MB)
    assert policies.find_setting(PolicyKey.of_group("bronze")) is None
    back = altered(policies, (GOLD_BYTES, None), (ACME, None))
    assert back.group_limits()["gold"] == {PUBLISH_BYTES: 12 * MB}
    assert back.tenant_groups() == {"acme": "gold"}


def test_settings_list_groups_behind_the_rest_in_the_order_of_their_names() -> None:
    policies = PolicySet({**BASE, PolicyKey.of_topic("zz"): 1.0, ORDERS: "gold", PolicyKey.of_group("aa"): 1.0})
    assert [str(setting.key) for setting in policies.list_settings()] == [
        "bytes.in.per.sec.threshold of topic zz", "group aa", "publishRateInBytes of group gold", "group gold",
        "resourcegroup of tenant acme", "resourcegroup of namespace acme/orders",
    ]  # fmt: skip


def test_values_are_shown_with_their_unit() -> None:
    shown: list[tuple[PolicyKey, PolicyValue | None]] = [
        (GOLD, 1),
        (GOLD_BYTES, 12 * MB),
        (GOLD_MSGS, 2.5),
        (ACME, "gold"),
        (ACME, None),
    ]
    texts = [value_text(key, value) for key, value in shown]
    assert texts == ["exists", "12,000,000 bytes/s", "2.500 messages/s", "gold", "none"]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_nothing_is_attached_to_a_group_that_is_not_there() -> None:
    (fault,) = refused(PolicySet(BASE), (ORDERS, "bronze"))
    assert fault == (ORDERS, "namespace acme/orders: there is no group bronze: create it first", "unknown")
    assert altered(PolicySet(BASE), (PolicyKey.of_group("bronze"), 1), (ORDERS, "bronze")).namespace_groups()


def test_a_group_in_use_can_not_be_deleted() -> None:
    policies = altered(PolicySet(), (GOLD, 1), (GOLD_BYTES, 5), (ACME, "gold"), (ORDERS, "gold"))
    both = [(GOLD, None), (GOLD_BYTES, None)]
    (fault,) = refused(policies, *both)
    text = "group gold is in use by tenant acme, namespace acme/orders: detach it there first"
    assert fault == (GOLD, text, "in use")
    assert [f.kind for f in refused(policies, *both, (ACME, None))] == ["in use"]
    gone = altered(policies, *both, (ACME, None), (ORDERS, None))
    assert (dict(gone.group_limits()), dict(gone.tenant_groups())) == ({}, {})


def test_a_group_in_use_may_lose_its_limits_and_be_replaced_in_one_go() -> None:
    policies = altered(PolicySet(), (GOLD, 1), (GOLD_BYTES, 5), (ACME, "gold"))
    assert altered(policies, (GOLD_BYTES, None)).group_limits() == {"gold": {}}
    assert altered(policies, (GOLD, None)).group_limits() == {
        "gold": {PUBLISH_BYTES: 5}
    }  # a limit alone is a group as well
    swapped = altered(policies, (GOLD, None), (GOLD_BYTES, None), (SILVER, 1), (ACME, "silver"))
    assert dict(swapped.tenant_groups()) == {"acme": "silver"}


def test_a_group_of_the_file_does_not_go_so_that_its_attachments_may_stay() -> None:
    policies = altered(PolicySet(BASE), (GOLD_BYTES, 5), (GOLD, 1))
    assert altered(policies, (GOLD_BYTES, None), (GOLD, None)).group_limits() == {"gold": {PUBLISH_BYTES: 12 * MB}}
    (fault,) = refused(PolicySet(BASE), (GOLD, None))
    assert fault.message == (
        "group gold is set in the configuration file (resource_groups.groups.gold): remove it there, or set another"
        " value here"
    )
    (fault,) = refused(PolicySet(BASE), (GOLD_BYTES, None))
    assert "(resource_groups.groups.gold.publishRateInBytes)" in fault.message
    (fault,) = refused(PolicySet(BASE), (ACME, None))
    assert "(resource_groups.tenants.acme)" in fault.message


def test_many_users_of_a_group_are_counted() -> None:
    attached = {PolicyKey.of_tenant(f"t{number}"): "gold" for number in range(8)}
    policies = PolicySet({}, {GOLD: 1.0, **attached})
    (fault,) = refused(policies, (GOLD, None))
    assert "tenant t0, tenant t1, tenant t2, tenant t3, tenant t4 and 3 more" in fault.message


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (GOLD_BYTES, 0, "group gold: publishRateInBytes: 0 is not a valid limit: a number above 0"),
        (GOLD_BYTES, -1, "-1 is not a valid limit"),
        (GOLD_BYTES, float("nan"), "nan is not a valid limit"),
        (GOLD_BYTES, 2.0**64, "at most 9223372036854775807"),
        (GOLD_BYTES, "gold", "publishRateInBytes of group gold: a number is needed here, not 'gold'"),
        (GOLD, 2, "exists: is 1 where there is the group, not 2"),
        (PolicyKey.of_group("gold", "publishRate"), 1, "unknown key 'publishRate': known are publishRateInMsgs, "),
        (PolicyKey.of_group("a/b"), 1, "'a/b' can't be a group's name"),
        (PolicyKey.of_group(".."), 1, "'..' can't be a group's name"),
        (PolicyKey.of_group("g" * 201), 1, "can't be a group's name"),
        (ACME, 1, "resourcegroup of tenant acme: the name of a group is needed here, not 1"),
        (ACME, "a b", "tenant acme: 'a b' can't be a group's name"),
        (PolicyKey.of_tenant(""), "gold", "'' can't be the name of a tenant"),
        (PolicyKey.of_tenant("a\n"), "gold", "can't be the name of a tenant"),
        (
            PolicyKey("namespace", "acme", "resourcegroup"),
            "gold",
            "'acme' is not a valid namespace; for example: acme/orders",
        ),
        (PolicyKey("namespace", "a/b/c", "resourcegroup"), "gold", "'b/c' can't be the name of a tenant or namespace"),
        (PolicyKey("tenant", "acme", "group"), "gold", "tenant acme: unknown key 'group': known is resourcegroup"),
    ],
)
def test_an_impossible_value_is_refused_in_one_line(key: PolicyKey, value: PolicyValue, text: str) -> None:
    (fault,) = refused(PolicySet(BASE), (key, value))
    assert text in fault.message
    assert "\n" not in fault.message


def test_thresholds_and_quotas_take_no_names() -> None:
    for key in (PolicyKey.of_topic("t"), PolicyKey.of_broker()):
        (fault,) = refused(PolicySet(), (key, "gold"))
        assert "a number is needed here" in fault.message
        assert find_misfits(PolicySet(), [PolicyOperation(key, "gold")]) == [fault.message]


# --- bases differ, and are changed ------------------------------------------------------------------------------------


def test_an_attachment_to_a_group_that_the_file_no_longer_has_is_warned_of() -> None:
    policies = altered(PolicySet(BASE), (ORDERS, "gold")).with_base({})
    assert policies.collect_warnings() == (
        "there is no group gold, but namespace acme/orders should belong to it: unlimited",
    )
    assert altered(policies, (PolicyKey.of_topic("t"), 1)).namespace_groups() == {"acme/orders": "gold"}
    assert altered(policies, (GOLD, 1)).collect_warnings() == ()


def test_a_document_is_made_to_hold_and_only_run_time_is_pruned() -> None:
    policies = altered(PolicySet(BASE), (SILVER, 1), (ORDERS, "silver"))
    wanted: dict[PolicyKey, PolicyValue] = {GOLD: 1.0, GOLD_BYTES: 5.0 * MB, ORDERS: "gold"}
    assert policies.diff_values(wanted) == [PolicyOperation(GOLD_BYTES, 5 * MB), PolicyOperation(ORDERS, "gold")]
    pruned = policies.diff_values(wanted, prune=True)
    assert pruned == [
        PolicyOperation(GOLD_BYTES, 5 * MB),
        PolicyOperation(SILVER, None),
        PolicyOperation(ORDERS, "gold"),
    ]
    assert dict(policies.alter_policies(pruned).namespace_groups()) == {"acme/orders": "gold"}


# --- written down -----------------------------------------------------------------------------------------------------


def test_records_say_the_groups_name_and_what_it_was() -> None:
    old = PolicySet(BASE)
    new = altered(old, (SILVER, 1), (ACME, "silver"))
    silver, acme, _head = records(old, new)
    assert silver.key == b'["group","silver","exists"]'
    assert acme.key == b'["tenant","acme","resourcegroup"]'
    assert json.loads(acme.value or b"") == {
        "v": 1, "value": "silver", "version": 7, "at_ms": 1_700_000_000_000, "who": "User:alice", "door": "rest",
        "peer": "10.0.0.1:5", "old": "gold", "new": "silver",
    }  # fmt: skip
    assert new.changes_since(old) == (
        PolicyChange(SILVER, 1, None, 1),
        PolicyChange(ACME, "silver", "gold", "silver"),
    )
    removed = encode_alteration([PolicyChange(ACME, None, "silver", "gold")], HEAD)[0]
    assert removed.value is None
    assert decode_record(removed.key, removed.value) == PolicyEntry(ACME, None)


_NAMES = st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True)
_OPS = st.one_of(
    st.builds(lambda name: PolicyOperation(PolicyKey.of_group(name), 1), _NAMES),
    st.builds(
        lambda name, key, value: PolicyOperation(PolicyKey.of_group(name, key), value),
        _NAMES, st.sampled_from(GROUP_KEYS), st.none() | st.floats(0.001, 1e15),
    ),
    st.builds(lambda name, group: PolicyOperation(PolicyKey.of_tenant(name), group), _NAMES, st.none() | _NAMES),
    st.builds(lambda name, group: PolicyOperation(PolicyKey.of_namespace(name, name), group), _NAMES,
    st.none() | _NAMES),
)  # fmt: skip


@given(st.lists(st.lists(_OPS, max_size=3), max_size=20))
def test_written_and_compacted_records_are_read_as_the_same_and_always_fit(
    alterations: list[list[PolicyOperation]],
) -> None:
    policies = PolicySet()
    kept: dict[bytes, PolicyRecord] = {}
    for ops in alterations:
        try:
            new = policies.alter_policies(ops)
        except PolicyError:
            continue
        kept |= {record.key: record for record in records(policies, new)}
        policies = new
    entries = [decode_record(record.key, record.value) for record in kept.values()]
    read = {e.key: e.value for e in entries if isinstance(e, PolicyEntry) and e.value is not None}
    assert PolicySet({}, read).effective_values() == policies.effective_values()
    assert {*policies.tenant_groups().values(), *policies.namespace_groups().values()} <= policies.group_limits().keys()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (ACME, {"v": 1, "value": 5}, "can't be a group's name"),
        (ACME, {"v": 1}, "can't be a group's name"),
        (GOLD_BYTES, {"v": 1, "value": "gold"}, "its value is not a number: 'gold'"),
        (GOLD_BYTES, {"v": 1, "value": True}, "its value is not a number"),
        (GOLD_BYTES, {"v": 1, "value": -5}, "-5 is not a valid limit"),
        (PolicyKey.of_group("gold", "storageQuota"), {"v": 1, "value": 5}, "unknown key 'storageQuota'"),
        (PolicyKey("cluster", "x", "y"), {"v": 1, "value": 5}, "'cluster' is not a kind of policy"),  # type: ignore[arg-type]
    ],
)
def test_a_record_of_a_newer_gateway_or_of_none_is_left_out(key: PolicyKey, value: object, text: str) -> None:
    with pytest.raises(InvalidPolicyRecord, match=text):
        decode_record(encode_key(key), json.dumps(value).encode())


def test_reading_judges_no_attachment_since_bases_differ() -> None:
    assert decode_record(encode_key(ACME), b'{"v":1,"value":"nowhere"}') == PolicyEntry(ACME, "nowhere")
