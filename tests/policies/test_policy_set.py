# Base and changes as one value: what wins, what is refused, what an apply comes to, and what is read back of what was
# written down, also after compaction.

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.policy_set import (
    Change,
    Entry,
    Fault,
    Head,
    InvalidPolicy,
    InvalidRecord,
    Op,
    Origin,
    PolicyError,
    PolicyKey,
    PolicySet,
    Record,
    Setting,
    Source,
    changes_json,
    decode,
    encode,
    key_bytes,
    value_text,
)
from policies.quotas.names import DEFAULT, KEYS, Entity, QuotaKey
from policies.quotas.store import Alteration
from policies.quotas.store import Op as QuotaOp
from policies.thresholds.values import TOPIC_KEY, TOTAL_KEY

MB = 10**6
CLICKS, VIEWS, ORDERS = (PolicyKey.of_topic(name) for name in ("clicks", "views", "orders"))
TOTAL, TOTAL_2 = PolicyKey.of_broker(), PolicyKey.of_broker(2)
PRODUCE = QuotaKey("producer_byte_rate", "broker_bps")
SHARES = QuotaKey("producer_byte_rate", "shares")
ALICE, BOB = Entity("alice"), Entity("bob")
ALICE_RATE, ALICE_SHARES = PolicyKey.of_quota(ALICE, PRODUCE), PolicyKey.of_quota(ALICE, SHARES)
BOB_RATE = PolicyKey.of_quota(BOB, PRODUCE)
PERCENT = PolicyKey.of_quota(ALICE, QuotaKey("request_percentage", "percent"))
CONSUMER_SHARES = PolicyKey.of_quota(ALICE, QuotaKey("consumer_byte_rate", "shares"))
BASE = {TOTAL: 12.0 * MB, CLICKS: 5.0 * MB, ALICE_RATE: 1000.0}


def refused(policies: PolicySet, *ops: Op, gone: frozenset[str] = frozenset()) -> tuple[Fault, ...]:
    with pytest.raises(PolicyError) as error:
        policies.alter(ops, gone=gone)
    return error.value.faults


# --- which value wins -------------------------------------------------------------------------------------------------


def test_a_change_wins_over_the_base_and_without_it_the_base_shows_again() -> None:
    policies = PolicySet(BASE)
    changed = policies.alter([Op(CLICKS, 6 * MB), Op(VIEWS, 1 * MB)])
    assert changed.topics() == {"clicks": 6 * MB, "views": 1 * MB}
    assert changed.alter([Op(CLICKS, None), Op(VIEWS, None)]).topics() == {"clicks": 5 * MB}
    assert policies.topics() == {"clicks": 5 * MB}


def test_both_values_are_shown_with_which_wins() -> None:
    policies = PolicySet(BASE).alter([Op(CLICKS, 6 * MB), Op(TOTAL_2, 8 * MB), Op(BOB_RATE, 50)])
    origins: list[tuple[Setting, Origin, float]] = [(s, s.origin, s.value) for s in policies.settings()]
    assert origins == [
        (Setting(TOTAL, 12 * MB, None), "file", 12 * MB),
        (Setting(TOTAL_2, None, 8 * MB), "run time", 8 * MB),
        (Setting(CLICKS, 5 * MB, 6 * MB), "run time", 6 * MB),
        (Setting(ALICE_RATE, 1000, None), "file", 1000),
        (Setting(BOB_RATE, None, 50), "run time", 50),
    ]


def test_a_broker_has_its_own_total_or_the_default() -> None:
    policies = PolicySet(BASE).alter([Op(TOTAL_2, 8 * MB)])
    assert [policies.total(), policies.total(1), policies.total(2)] == [12 * MB, 12 * MB, 8 * MB]
    assert policies.totals() == {2: 8 * MB}
    assert policies.thresholds(2) == (8 * MB, {"clicks": 5 * MB})
    assert PolicySet().thresholds(2) == (None, {})


def test_quotas_are_a_store_of_all_values_in_force() -> None:
    policies = PolicySet(BASE).alter([Op(ALICE_RATE, 2000), Op(PolicyKey.of_quota(BOB, KEYS[0]), 5)])
    store = policies.quotas()
    assert dict(store.entries) == {ALICE: {PRODUCE: 2000.0}, BOB: {KEYS[0]: 5.0}}
    assert policies.quotas() is store
    assert store.version == policies.version


def test_each_alteration_is_a_version_and_what_alters_nothing_is_none() -> None:
    first = PolicySet(BASE)
    second = first.alter([Op(CLICKS, 6 * MB), Op(VIEWS, MB)])
    assert [first.version, second.version] == [0, 1]
    assert second.alter([Op(CLICKS, 6 * MB), Op(ORDERS, None)]) is second
    pinned = first.alter([Op(CLICKS, 5 * MB)])  # as the base has it, but it stays when the base is changed
    assert pinned.version == 1
    assert pinned.rebased({}).topics() == {"clicks": 5 * MB}


def test_changes_say_what_was_and_is_in_force() -> None:
    old = PolicySet(BASE, {CLICKS: 6.0 * MB, VIEWS: 2.0 * MB})
    new = old.alter([Op(VIEWS, None), Op(CLICKS, None), Op(ORDERS, 1 * MB), Op(TOTAL, 10 * MB)])
    assert new.changes_since(old) == (
        Change(TOTAL, 10 * MB, 12 * MB, 10 * MB),
        Change(CLICKS, None, 6 * MB, 5 * MB),
        Change(ORDERS, 1 * MB, None, 1 * MB),
        Change(VIEWS, None, 2 * MB, None),
    )
    assert new.changes_since(new) == ()
    assert changes_json(new.changes_since(old))[1] == {
        "kind": "topic", "name": "clicks", "key": TOPIC_KEY, "old": 6_000_000, "new": 5_000_000,
    }  # fmt: skip


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_only_the_base_has_is_not_removed_and_the_line_says_where_it_is_set() -> None:
    faults = refused(PolicySet({**BASE, TOTAL_2: 9.0 * MB}), *(Op(key, None) for key in (TOTAL, TOTAL_2, CLICKS)))
    assert [fault.key for fault in faults] == [TOTAL, TOTAL_2, CLICKS]
    assert faults[2].message == (
        "bytes.in.per.sec.threshold of topic clicks is set in the configuration file"
        " (thresholds.topics.clicks.bytes.in.per.sec.threshold): remove it there, or set another value here"
    )
    assert "(thresholds.total.bytes.in.per.sec.threshold)" in faults[0].message
    assert "(thresholds.brokers.2.total.bytes.in.per.sec.threshold)" in faults[1].message
    (fault,) = refused(PolicySet(BASE), Op(ALICE_RATE, None))
    assert "producer_byte_rate:broker_bps of {user=alice} is set in the configuration file" in fault.message
    assert "(client_quotas, {user=alice})" in fault.message


def test_the_sum_may_not_exceed_any_total_whichever_side_moves() -> None:
    policies = PolicySet(BASE).alter([Op(TOTAL_2, 8 * MB)])
    assert [fault.key for fault in refused(policies, Op(VIEWS, 4 * MB))] == [TOTAL_2]
    assert [fault.key for fault in refused(policies, Op(VIEWS, 8 * MB))] == [TOTAL, TOTAL_2]
    assert [fault.key for fault in refused(policies, Op(TOTAL_2, 4 * MB))] == [TOTAL_2]
    assert [fault.key for fault in refused(policies, Op(PolicyKey.of_broker(7), 4 * MB))] == [PolicyKey.of_broker(7)]
    assert refused(policies, Op(TOTAL, 4 * MB))[0].message == (
        "the topics' bytes.in.per.sec.threshold sum up to 5,000,000 bytes/s, which exceeds"
        " total.bytes.in.per.sec.threshold = 4,000,000 bytes/s by 1,000,000 bytes/s: lower some of them, or raise the"
        " total to at least 5,000,000 bytes/s"
    )
    assert refused(policies, Op(TOTAL_2, 4 * MB))[0].message.startswith("broker 2: the topics'")


def test_a_base_that_shows_again_is_part_of_the_sum() -> None:
    policies = PolicySet(BASE).alter([Op(CLICKS, 1 * MB), Op(VIEWS, 9 * MB)])
    assert [fault.key for fault in refused(policies, Op(CLICKS, None))] == [TOTAL]


def test_thresholds_are_judged_all_together_so_their_order_does_not_matter() -> None:
    policies = PolicySet(BASE)
    ops = [Op(VIEWS, 20 * MB), Op(TOTAL, 30 * MB)]
    assert policies.alter(ops).effective() == policies.alter(ops[::-1]).effective()


def test_one_fault_and_nothing_is_done() -> None:
    policies = PolicySet(BASE)
    faults = refused(policies, Op(VIEWS, 1 * MB), Op(PolicyKey.of_topic("no/topic"), 1), Op(ORDERS, -1))
    assert [fault.key.name for fault in faults] == ["no/topic", "orders"]
    assert policies.topics() == {"clicks": 5 * MB}


def test_deleted_topics_leave_the_sum() -> None:
    policies = PolicySet(BASE)
    refused(policies, Op(VIEWS, 8 * MB))
    changed = policies.alter([Op(VIEWS, 8 * MB)], gone=frozenset({"clicks"}))
    assert changed.topics(frozenset({"clicks"})) == {"views": 8 * MB}
    assert changed.thresholds(1, frozenset({"clicks"})).topics == {"views": 8 * MB}
    assert changed.warnings(frozenset({"clicks"})) == ()
    (warning,) = changed.warnings()  # it was made again
    assert "which exceeds" in warning


def test_a_sum_that_is_too_large_already_may_shrink_or_stay_but_not_grow() -> None:
    policies = PolicySet({TOTAL: 10.0, CLICKS: 8.0, VIEWS: 6.0})
    assert policies.alter([Op(CLICKS, 7)]).topics() == {"clicks": 7, "views": 6}
    assert policies.alter([Op(CLICKS, 9), Op(VIEWS, 5)]).topics() == {"clicks": 9, "views": 5}
    assert policies.alter([Op(TOTAL, 11)]).total() == 11
    assert [fault.key for fault in refused(policies, Op(CLICKS, 8.5))] == [TOTAL]
    assert [fault.key for fault in refused(policies, Op(TOTAL, 9.5))] == [TOTAL]
    assert [fault.key for fault in refused(policies, Op(TOTAL_2, 13))] == [TOTAL_2]  # a new total has no former excess
    assert policies.alter([Op(BOB_RATE, 5)]).version == 1  # no part of the sum


_thresholds = st.builds(
    Op, st.sampled_from((CLICKS, VIEWS, ORDERS, TOTAL, TOTAL_2)), st.none() | st.sampled_from((0.1, 0.2, 0.3, 1.0, 2.0))
)


@given(
    st.dictionaries(st.sampled_from((CLICKS, VIEWS, TOTAL)), st.sampled_from((0.3, 0.9, 1.0))),
    st.dictionaries(st.sampled_from((CLICKS, ORDERS, TOTAL, TOTAL_2)), st.sampled_from((0.2, 0.3, 2.0))),
    st.lists(_thresholds, max_size=8),
    st.sets(st.sampled_from(("clicks", "views"))),
)
def test_what_fits_is_what_alter_takes_one_after_the_other(
    base: dict[PolicyKey, float], changes: dict[PolicyKey, float], ops: list[Op], gone: set[str]
) -> None:
    policies = PolicySet(base, changes)
    fit: list[Op] = []
    errors: list[str | None] = []
    for op in ops:
        try:
            policies.alter([*fit, op], gone=gone)
            fit.append(op)
            errors.append(None)
        except PolicyError as error:
            errors.append(str(error))
    found = policies.fitting(ops, gone=gone)
    assert [error is None for error in found] == [error is None for error in errors]
    assert all(said == error for said, error in zip(found, errors, strict=True))


def test_shares_need_a_total_and_losing_the_last_one_is_a_warning() -> None:
    without = PolicySet()
    (fault,) = refused(without, Op(ALICE_SHARES, 10))
    assert fault.key == ALICE_SHARES
    assert "no total" in fault.message
    both = without.alter([Op(ALICE_SHARES, 10), Op(TOTAL_2, 5 * MB)])  # together they can
    assert both.warnings() == ()
    lost = both.alter([Op(TOTAL_2, None)])
    assert lost.warnings() == ("1 quotas in shares have no effect: there is no broker total to share",)
    (fault,) = refused(both, Op(TOTAL_2, None), Op(ALICE_SHARES, 20))
    assert fault.key == ALICE_SHARES
    consumer = PolicyKey.of_quota(ALICE, QuotaKey("consumer_byte_rate", "shares"))
    assert [fault.key for fault in refused(both, Op(consumer, 10))] == [consumer]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (CLICKS, -1, "topic clicks: -1 must be a finite number, 0 or more"),
        (CLICKS, math.nan, "must be a finite number"),
        (TOTAL, 0, "must be a finite number above 0"),
        (TOTAL_2, math.inf, "broker 2: "),
        (ALICE_RATE, 0.5, "no fractions"),
        (PolicyKey("topic", "clicks", "retention.ms"), 1, "unknown key 'retention.ms': known is bytes.in"),
        (PolicyKey("topic", "..", TOPIC_KEY), 1, "can't be a topic's name"),
        (PolicyKey("broker", "02", TOTAL_KEY), 1, "'02' is no broker id"),
        (PolicyKey("broker", "-1", TOTAL_KEY), 1, "no broker id"),
        (PolicyKey("user", "x", "y"), 1, "'user' is no kind of policy"),  # type: ignore[arg-type]
        (PolicyKey("quota", "alice", PRODUCE.wire), 1, "'alice' is no entity"),
        (PolicyKey("quota", ALICE.path, "bytes"), 1, "unknown quota 'bytes'"),
    ],
)
def test_what_can_not_be_set_is_refused_in_one_line(key: PolicyKey, value: float, text: str) -> None:
    (fault,) = refused(PolicySet(), Op(key, value))
    assert text in fault.message
    assert "\n" not in fault.message


def test_a_key_is_one_however_it_is_spelled() -> None:
    spelled = PolicyKey("quota", ALICE.path, "producer_byte_rate:broker_bps")
    assert spelled.checked() == ALICE_RATE
    policies = PolicySet(BASE).alter([Op(spelled, 7)])
    assert policies.changes == {ALICE_RATE: 7.0}
    assert "is given twice" in refused(policies, Op(spelled, 7), Op(ALICE_RATE, 8))[0].message


# --- AlterClientQuotas ------------------------------------------------------------------------------------------------


def test_of_client_quotas_an_entity_that_is_refused_leaves_the_others_alone() -> None:
    policies = PolicySet(BASE)
    altered, errors = policies.alter_quotas(
        [
            Alteration([("user", "bob")], [QuotaOp("producer_byte_rate", 5), QuotaOp("consumer_byte_rate.bps", 6)]),
            Alteration([("user", "carol")], [QuotaOp("producer_byte_rate", 5), QuotaOp("request_percentage", -1)]),
            Alteration([("group", "x")], []),
            Alteration([("user", None)], [QuotaOp("producer_byte_rate", None)]),
        ]
    )
    assert [error is None for error in errors] == [True, False, False, True]
    assert set(altered.changes) == {BOB_RATE, PolicyKey.of_quota(BOB, QuotaKey("consumer_byte_rate", "bps"))}
    assert altered.version == 1


def test_a_quota_of_the_base_can_be_changed_but_not_removed() -> None:
    policies = PolicySet(BASE)
    remove = [Alteration([("user", "alice")], [QuotaOp("producer_byte_rate", None), QuotaOp("request_percentage", 5)])]
    same, (error,) = policies.alter_quotas(remove)
    assert same is policies
    assert error is not None
    assert "is set in the configuration file" in str(error)
    changed, _ = policies.alter_quotas([Alteration([("user", "alice")], [QuotaOp("producer_byte_rate", 5)])])
    assert changed.quotas().entries[ALICE] == {PRODUCE: 5.0}
    back, errors = changed.alter_quotas([Alteration([("user", "alice")], remove[0].ops[:1])])
    assert errors == (None,)
    assert back.quotas().entries[ALICE] == {PRODUCE: 1000.0}


def test_shares_by_kafka_need_a_total_too() -> None:
    shares = [Alteration([("user", "alice")], [QuotaOp("producer_byte_rate.shares", 5)])]
    assert PolicySet().alter_quotas(shares).errors[0] is not None
    assert PolicySet(BASE).alter_quotas(shares).errors == (None,)


# --- apply ------------------------------------------------------------------------------------------------------------

keys = st.sampled_from(
    [TOTAL, TOTAL_2, CLICKS, VIEWS, ORDERS, ALICE_RATE, BOB_RATE, PolicyKey.of_quota(Entity(DEFAULT, "a,b=c"), PRODUCE)]
)
values = st.dictionaries(keys, st.integers(1, 10**9).map(float))


@given(values, values, values, st.booleans())
def test_a_second_apply_of_the_same_does_nothing(
    base: dict[PolicyKey, float], changes: dict[PolicyKey, float], wanted: dict[PolicyKey, float], prune: bool
) -> None:
    policies = PolicySet(base, changes)
    try:
        applied = policies.alter(policies.diff(wanted, prune=prune))
    except PolicyError:
        return  # the sum
    assert {key: applied.effective()[key] for key in wanted} == wanted
    assert applied.diff(wanted, prune=prune) == []
    if prune:
        assert {key for key in applied.changes if key not in wanted} == set()
        assert set(applied.effective()) == set(wanted) | set(base)
    else:
        assert set(applied.effective()) == set(wanted) | set(base) | set(changes)


def test_without_prune_nothing_is_removed_and_the_base_never_is() -> None:
    policies = PolicySet(BASE, {VIEWS: 1.0, CLICKS: 2.0})
    assert policies.diff({ORDERS: 3.0}) == [Op(ORDERS, 3.0)]
    assert policies.diff({ORDERS: 3.0}, prune=True) == [Op(CLICKS, None), Op(ORDERS, 3.0), Op(VIEWS, None)]


# --- written down -----------------------------------------------------------------------------------------------------

HEAD = Head(7, "token", 1_700_000_000_000, Source("User:alice", "kafka", "127.0.0.1:5"), 2)
names = st.text(min_size=1).filter(lambda name: all(not 0xD800 <= ord(char) <= 0xDFFF for char in name))


@given(
    st.one_of(
        st.builds(PolicyKey.of_topic, st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)),
        st.builds(PolicyKey.of_broker, st.none() | st.integers(0, 2**31 - 1)),
        st.builds(PolicyKey.of_quota, st.builds(Entity, names, st.one_of(st.none(), names)), st.just(PRODUCE)),
    ),
    st.integers(1, 10**12),
)
def test_what_was_written_is_read(key: PolicyKey, value: int) -> None:
    set_, removed, head = encode([Change(key, value, None, value), Change(key, None, value, None)], HEAD)
    assert decode(set_.key, set_.value) == Entry(key, float(value))
    assert decode(removed.key, removed.value) == Entry(key, None)
    assert set_.key == removed.key == key_bytes(key)
    assert decode(head.key, head.value) == HEAD


def test_a_record_says_who_when_from_where_old_and_new() -> None:
    changes = [Change(CLICKS, 6.0 * MB, 5.0 * MB, 6.0 * MB), Change(VIEWS, None, 2.5, None)]
    set_, removed, _ = encode(changes, HEAD)
    by = {"v": 1, "version": 7, "at_ms": 1_700_000_000_000, "who": "User:alice", "door": "kafka", "peer": "127.0.0.1:5"}
    assert set_.key == b'["topic","clicks","bytes.in.per.sec.threshold"]'
    assert json.loads(set_.value or b"") == {"value": 6_000_000, **by, "old": 5_000_000, "new": 6_000_000}
    assert set_.audit is None
    assert removed.value is None  # so that compaction removes it; what would be lost stands beside it
    assert json.loads(removed.audit or b"") == {**by, "old": 2.5, "new": None}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (None, b"{}", "is no JSON"),
        (b'["head"]', b'{"v":1,"token":"x","version":1' + b"0" * 400 + b"}", "a version being below 9007199254740992"),
        (b'["head"]', b'{"v":1,"token":"x","version":9007199254740992}', "a version being below 9007199254740992"),
        (b'["head"]', b'{"v":1,"token":"x","version":true}', "a version being below 9007199254740992"),
        (b'["head"]', b'{"v":1,"token":"x","version":-1}', "a version being below 9007199254740992"),
        (key_bytes(CLICKS), b'{"v":1,"value":1e308}', "at most 9223372036854775807"),
        (key_bytes(TOTAL), b'{"v":1,"value":1e308}', "at most 9223372036854775807"),
        (key_bytes(PERCENT), b'{"v":1,"value":5e-324}', "from 0.001 to 100,000 %"),
        (key_bytes(PERCENT), b'{"v":1,"value":1.7e308}', "from 0.001 to 100,000 %"),
        (key_bytes(CONSUMER_SHARES), b'{"v":1,"value":1}', "no total for consumer_byte_rate"),
        (b"\xff", b"{}", "is no JSON"),
        (b"[" * 100_000, b"{}", "is no JSON"),
        (b'"topic"', b"{}", "is not [kind, name, key]"),
        (b'["topic",1,"x"]', b"{}", "is not [kind, name, key]"),
        (b'["topic","a","x"]', b'{"v":1,"value":1}', "unknown key 'x'"),
        (key_bytes(CLICKS), b"", "is no JSON"),
        (key_bytes(CLICKS), b"[]", "is no object"),
        (key_bytes(CLICKS), b'{"v":2,"value":1}', "its layout is 2, known is 1"),
        (key_bytes(CLICKS), b'{"v":1,"value":true}', "its value is no number: True"),
        (key_bytes(CLICKS), b'{"v":1,"value":-5}', "must be a finite number, 0 or more"),
        (key_bytes(CLICKS), b'{"v":1,"value":NaN}', "must be a finite number"),
        (key_bytes(CLICKS), b'{"v":1,"value":1' + b"0" * 400 + b"}", "too large"),
        (key_bytes(TOTAL), b'{"v":1,"value":0}', "above 0"),
        (b'["head"]', b'{"v":1,"version":"7","token":"t"}', "a head without version"),
        (b'["head"]', b"7", "is no object"),
    ],
)
def test_what_is_no_record_of_ours_is_refused_in_one_line(key: bytes | None, value: bytes, text: str) -> None:
    with pytest.raises(InvalidRecord) as error:
        decode(key, value)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@given(st.lists(st.lists(st.tuples(keys, st.none() | st.integers(1, 99).map(float)), max_size=4), max_size=8))
def test_compaction_loses_nothing_of_what_holds(alterations: list[list[tuple[PolicyKey, float | None]]]) -> None:
    policies = PolicySet()
    log: list[Record] = []
    for each in alterations:
        try:
            new = policies.alter([Op(key, value) for key, value in dict(each).items()])
        except PolicyError:
            continue
        changes = new.changes_since(policies)
        log += encode(changes, HEAD._replace(version=new.version)) if changes else []
        policies = new
    latest = {record.key: index for index, record in enumerate(log)}
    compacted = [record for index, record in enumerate(log) if latest[record.key] == index]
    assert replay(log) == replay(compacted) == (policies.changes, policies.version)


def replay(log: list[Record]) -> tuple[dict[PolicyKey, float], int]:
    held: dict[PolicyKey, float] = {}
    version = 0
    for record in log:
        said = decode(record.key, record.value)
        if isinstance(said, Head):
            version = said.version
        elif said is not None and said.value is not None:
            held[said.key] = said.value
        elif said is not None:
            held.pop(said.key, None)
    return held, version


def test_a_head_that_somebody_removed_says_nothing() -> None:
    assert decode(b'["head"]', None) is None


def test_values_for_people() -> None:
    percent = PolicyKey.of_quota(ALICE, QuotaKey("request_percentage", "percent"))
    assert [value_text(key, 1000) for key in (CLICKS, ALICE_RATE, ALICE_SHARES, percent)] == [
        "1,000 bytes/s", "1,000 bytes/s", "1000 shares", "1000 %",
    ]  # fmt: skip
    assert value_text(CLICKS, None) == "none"


def test_invalid_policies_are_value_errors_as_the_doors_expect() -> None:
    assert issubclass(InvalidPolicy, ValueError)
    assert str(PolicyError([Fault(CLICKS, "a"), Fault(VIEWS, "b")])) == "a; b"
