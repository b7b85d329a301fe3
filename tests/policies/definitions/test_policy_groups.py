# Resource groups among the policies: which limits hold, what is attached to what, that both sides of an attachment are
# judged, and how it is written down and read back.

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.definitions.fitting import fitting
from policies.definitions.policy_records import (
    Entry,
    Head,
    InvalidPolicyRecord,
    Record,
    Source,
    changes_json,
    decode,
    encode,
    key_bytes,
)
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import Change, Fault, Op, PolicyError, PolicyKey, Setting, Value, value_text
from policies.groups.names import GROUP_KEYS, PUBLISH_BYTES, PUBLISH_MSGS

MB = 10**6
GOLD, SILVER = PolicyKey.of_group("gold"), PolicyKey.of_group("silver")
GOLD_BYTES, GOLD_MSGS = PolicyKey.of_group("gold", PUBLISH_BYTES), PolicyKey.of_group("gold", PUBLISH_MSGS)
ACME, ORDERS = PolicyKey.of_tenant("acme"), PolicyKey.of_namespace("acme", "orders")
BASE: dict[PolicyKey, Value] = {GOLD: 1.0, GOLD_BYTES: 12.0 * MB, ACME: "gold"}
HEAD = Head(7, "token", 1_700_000_000_000, Source("User:alice", "rest", "10.0.0.1:5"), 1)


def refused(policies: PolicySet, *ops: Op) -> tuple[Fault, ...]:
    with pytest.raises(PolicyError) as error:
        policies.alter(ops)
    return error.value.faults


def records(old: PolicySet, new: PolicySet) -> list[Record]:
    return encode(new.changes_since(old), HEAD)


# --- what holds -------------------------------------------------------------------------------------------------------


def test_groups_have_limits_or_none_and_are_attached() -> None:
    policies = PolicySet(BASE).alter([Op(SILVER, 1), Op(ORDERS, "silver"), Op(GOLD_MSGS, 100)])
    assert policies.groups() == {"gold": {PUBLISH_BYTES: 12 * MB, PUBLISH_MSGS: 100}, "silver": {}}
    assert policies.tenants() == {"acme": "gold"}
    assert policies.namespaces() == {"acme/orders": "silver"}
    assert policies.attached_to("gold") == (ACME,)
    assert policies.attached_to("silver") == (ORDERS,)


def test_a_change_wins_over_the_file_and_without_it_the_file_shows_again() -> None:
    policies = PolicySet(BASE).alter([Op(GOLD_BYTES, 5 * MB), Op(SILVER, 1), Op(ACME, "silver")])
    assert policies.groups()["gold"] == {PUBLISH_BYTES: 5 * MB}
    assert policies.tenants() == {"acme": "silver"}
    assert policies.setting(GOLD_BYTES) == Setting(GOLD_BYTES, 12.0 * MB, 5.0 * MB)
    assert policies.setting(PolicyKey.of_group("bronze")) is None
    back = policies.alter([Op(GOLD_BYTES, None), Op(ACME, None)])
    assert back.groups()["gold"] == {PUBLISH_BYTES: 12 * MB}
    assert back.tenants() == {"acme": "gold"}


def test_settings_list_groups_behind_the_rest_in_the_order_of_their_names() -> None:
    policies = PolicySet({**BASE, PolicyKey.of_topic("zz"): 1.0, ORDERS: "gold", PolicyKey.of_group("aa"): 1.0})
    assert [str(setting.key) for setting in policies.settings()] == [
        "bytes.in.per.sec.threshold of topic zz", "group aa", "publishRateInBytes of group gold", "group gold",
        "resourcegroup of tenant acme", "resourcegroup of namespace acme/orders",
    ]  # fmt: skip


def test_values_are_shown_with_their_unit() -> None:
    shown: list[tuple[PolicyKey, Value | None]] = [
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
    (fault,) = refused(PolicySet(BASE), Op(ORDERS, "bronze"))
    assert fault == (ORDERS, "namespace acme/orders: there is no group bronze: create it first", "unknown")
    assert PolicySet(BASE).alter([Op(PolicyKey.of_group("bronze"), 1), Op(ORDERS, "bronze")]).namespaces()


def test_a_group_in_use_can_not_be_deleted() -> None:
    policies = PolicySet().alter([Op(GOLD, 1), Op(GOLD_BYTES, 5), Op(ACME, "gold"), Op(ORDERS, "gold")])
    both = [Op(GOLD, None), Op(GOLD_BYTES, None)]
    (fault,) = refused(policies, *both)
    text = "group gold is in use by tenant acme, namespace acme/orders: detach it there first"
    assert fault == (GOLD, text, "in use")
    assert [f.kind for f in refused(policies, *both, Op(ACME, None))] == ["in use"]
    gone = policies.alter([*both, Op(ACME, None), Op(ORDERS, None)])
    assert (dict(gone.groups()), dict(gone.tenants())) == ({}, {})


def test_a_group_in_use_may_lose_its_limits_and_be_replaced_in_one_go() -> None:
    policies = PolicySet().alter([Op(GOLD, 1), Op(GOLD_BYTES, 5), Op(ACME, "gold")])
    assert policies.alter([Op(GOLD_BYTES, None)]).groups() == {"gold": {}}
    assert policies.alter([Op(GOLD, None)]).groups() == {"gold": {PUBLISH_BYTES: 5}}  # a limit alone is a group as well
    swapped = policies.alter([Op(GOLD, None), Op(GOLD_BYTES, None), Op(SILVER, 1), Op(ACME, "silver")])
    assert dict(swapped.tenants()) == {"acme": "silver"}


def test_a_group_of_the_file_does_not_go_so_that_its_attachments_may_stay() -> None:
    policies = PolicySet(BASE).alter([Op(GOLD_BYTES, 5), Op(GOLD, 1)])
    assert policies.alter([Op(GOLD_BYTES, None), Op(GOLD, None)]).groups() == {"gold": {PUBLISH_BYTES: 12 * MB}}
    (fault,) = refused(PolicySet(BASE), Op(GOLD, None))
    assert fault.message == (
        "group gold is set in the configuration file (resource_groups.groups.gold): remove it there, or set another"
        " value here"
    )
    (fault,) = refused(PolicySet(BASE), Op(GOLD_BYTES, None))
    assert "(resource_groups.groups.gold.publishRateInBytes)" in fault.message
    (fault,) = refused(PolicySet(BASE), Op(ACME, None))
    assert "(resource_groups.tenants.acme)" in fault.message


def test_many_users_of_a_group_are_counted() -> None:
    attached = {PolicyKey.of_tenant(f"t{number}"): "gold" for number in range(8)}
    policies = PolicySet({}, {GOLD: 1.0, **attached})
    (fault,) = refused(policies, Op(GOLD, None))
    assert "tenant t0, tenant t1, tenant t2, tenant t3, tenant t4 and 3 more" in fault.message


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (GOLD_BYTES, 0, "group gold: publishRateInBytes: 0 is no limit: a number above 0"),
        (GOLD_BYTES, -1, "-1 is no limit"),
        (GOLD_BYTES, float("nan"), "nan is no limit"),
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
def test_an_impossible_value_is_refused_in_one_line(key: PolicyKey, value: Value, text: str) -> None:
    (fault,) = refused(PolicySet(BASE), Op(key, value))
    assert text in fault.message
    assert "\n" not in fault.message


def test_thresholds_and_quotas_take_no_names() -> None:
    for key in (PolicyKey.of_topic("t"), PolicyKey.of_broker()):
        (fault,) = refused(PolicySet(), Op(key, "gold"))
        assert "a number is needed here" in fault.message
        assert fitting(PolicySet(), [Op(key, "gold")]) == [fault.message]


# --- bases differ, and are changed ------------------------------------------------------------------------------------


def test_an_attachment_to_a_group_that_the_file_no_longer_has_is_warned_of() -> None:
    policies = PolicySet(BASE).alter([Op(ORDERS, "gold")]).rebased({})
    assert policies.warnings() == ("there is no group gold, but namespace acme/orders should belong to it: unlimited",)
    assert policies.alter([Op(PolicyKey.of_topic("t"), 1)]).namespaces() == {"acme/orders": "gold"}
    assert policies.alter([Op(GOLD, 1)]).warnings() == ()


def test_a_document_is_made_to_hold_and_only_run_time_is_pruned() -> None:
    policies = PolicySet(BASE).alter([Op(SILVER, 1), Op(ORDERS, "silver")])
    wanted: dict[PolicyKey, Value] = {GOLD: 1.0, GOLD_BYTES: 5.0 * MB, ORDERS: "gold"}
    assert policies.diff(wanted) == [Op(GOLD_BYTES, 5 * MB), Op(ORDERS, "gold")]
    pruned = policies.diff(wanted, prune=True)
    assert pruned == [Op(GOLD_BYTES, 5 * MB), Op(SILVER, None), Op(ORDERS, "gold")]
    assert dict(policies.alter(pruned).namespaces()) == {"acme/orders": "gold"}


# --- written down -----------------------------------------------------------------------------------------------------


def test_records_say_the_groups_name_and_what_it_was() -> None:
    old = PolicySet(BASE)
    new = old.alter([Op(SILVER, 1), Op(ACME, "silver")])
    silver, acme, _head = records(old, new)
    assert silver.key == b'["group","silver","exists"]'
    assert acme.key == b'["tenant","acme","resourcegroup"]'
    assert json.loads(acme.value or b"") == {
        "v": 1, "value": "silver", "version": 7, "at_ms": 1_700_000_000_000, "who": "User:alice", "door": "rest",
        "peer": "10.0.0.1:5", "old": "gold", "new": "silver",
    }  # fmt: skip
    assert changes_json(new.changes_since(old)) == [
        {"kind": "group", "name": "silver", "key": "exists", "old": None, "new": 1, "until": None},
        {"kind": "tenant", "name": "acme", "key": "resourcegroup", "old": "gold", "new": "silver", "until": None},
    ]
    removed = encode([Change(ACME, None, "silver", "gold")], HEAD)[0]
    assert removed.value is None
    assert decode(removed.key, removed.value) == Entry(ACME, None)


_NAMES = st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True)
_OPS = st.one_of(
    st.builds(lambda name: Op(PolicyKey.of_group(name), 1), _NAMES),
    st.builds(
        lambda name, key, value: Op(PolicyKey.of_group(name, key), value),
        _NAMES, st.sampled_from(GROUP_KEYS), st.none() | st.floats(0.001, 1e15),
    ),
    st.builds(lambda name, group: Op(PolicyKey.of_tenant(name), group), _NAMES, st.none() | _NAMES),
    st.builds(lambda name, group: Op(PolicyKey.of_namespace(name, name), group), _NAMES, st.none() | _NAMES),
)  # fmt: skip


@given(st.lists(st.lists(_OPS, max_size=3), max_size=20))
def test_written_and_compacted_records_are_read_as_the_same_and_always_fit(alterations: list[list[Op]]) -> None:
    policies = PolicySet()
    kept: dict[bytes, Record] = {}
    for ops in alterations:
        try:
            new = policies.alter(ops)
        except PolicyError:
            continue
        kept |= {record.key: record for record in records(policies, new)}
        policies = new
    entries = [decode(record.key, record.value) for record in kept.values()]
    read = {e.key: e.value for e in entries if isinstance(e, Entry) and e.value is not None}
    assert PolicySet({}, read).effective() == policies.effective()
    assert {*policies.tenants().values(), *policies.namespaces().values()} <= policies.groups().keys()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (ACME, {"v": 1, "value": 5}, "can't be a group's name"),
        (ACME, {"v": 1}, "can't be a group's name"),
        (GOLD_BYTES, {"v": 1, "value": "gold"}, "its value is no number: 'gold'"),
        (GOLD_BYTES, {"v": 1, "value": True}, "its value is no number"),
        (GOLD_BYTES, {"v": 1, "value": -5}, "-5 is no limit"),
        (PolicyKey.of_group("gold", "storageQuota"), {"v": 1, "value": 5}, "unknown key 'storageQuota'"),
        (PolicyKey("cluster", "x", "y"), {"v": 1, "value": 5}, "'cluster' is no kind of policy"),  # type: ignore[arg-type]
    ],
)
def test_a_record_of_a_newer_gateway_or_of_none_is_left_out(key: PolicyKey, value: object, text: str) -> None:
    with pytest.raises(InvalidPolicyRecord, match=text):
        decode(key_bytes(key), json.dumps(value).encode())


def test_reading_judges_no_attachment_since_bases_differ() -> None:
    assert decode(key_bytes(ACME), b'{"v":1,"value":"nowhere"}') == Entry(ACME, "nowhere")
