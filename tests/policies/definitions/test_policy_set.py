# Base and changes as one value: what wins, what is refused, what an apply comes to, and what an end does.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    PolicyChange,
    PolicyError,
    PolicyKey,
    PolicyOperation,
    PolicySetting,
    PolicyValue,
    PolicyValues,
    RuntimeValue,
    TopicId,
    ValueEnd,
    file_origin,
)
from policies.quotas.names import DEFAULT, QUOTA_KEYS, Entity, QuotaKey
from policies.quotas.store import Alteration
from policies.quotas.store import Op as QuotaOp
from policies.thresholds.sums import NO_PLACES, TopicPlaces
from policies.thresholds.values import TOTAL_OUT_KEY
from tests.policies.definitions.policy_play import (
    ALICE,
    ALICE_RATE,
    ALICE_SHARES,
    AT,
    BOB,
    BOB_RATE,
    CLICKS,
    HOUR,
    MB,
    ORDERS,
    PRODUCE,
    TOTAL,
    TOTAL_2,
    TOTAL_OUT,
    VIEWS,
    altered,
    refused,
)  # fmt: skip

BASE = {TOTAL: 12.0 * MB, CLICKS: 5.0 * MB, ALICE_RATE: 2000.0}


# --- which value wins -------------------------------------------------------------------------------------------------


def test_a_change_wins_over_the_base_and_without_it_the_base_shows_again() -> None:
    policies = PolicySet(BASE)
    changed = altered(policies, (CLICKS, 6 * MB), (VIEWS, 1 * MB))
    assert changed.topic_thresholds() == {"clicks": 6 * MB, "views": 1 * MB}
    assert altered(changed, (CLICKS, None), (VIEWS, None)).topic_thresholds() == {"clicks": 5 * MB}
    assert policies.topic_thresholds() == {"clicks": 5 * MB}


def test_both_values_are_shown_with_which_wins() -> None:
    policies = altered(PolicySet(BASE), (CLICKS, 6 * MB), (TOTAL_2, 8 * MB), (BOB_RATE, 50))
    origins: list[tuple[PolicySetting, str, PolicyValue]] = [
        (s, s.origin(file_origin), s.value) for s in policies.list_settings()
    ]
    assert origins == [
        (PolicySetting(TOTAL, 12 * MB, None), "file", 12 * MB),
        (PolicySetting(TOTAL_2, None, 8 * MB), "run time", 8 * MB),
        (PolicySetting(CLICKS, 5 * MB, 6 * MB), "run time", 6 * MB),
        (PolicySetting(ALICE_RATE, 2000, None), "file", 2000),
        (PolicySetting(BOB_RATE, None, 50), "run time", 50),
    ]


def test_a_broker_has_its_own_total_or_the_default() -> None:
    policies = altered(PolicySet(BASE), (TOTAL_2, 8 * MB))
    assert [policies.broker_total(), policies.broker_total(1), policies.broker_total(2)] == [12 * MB, 12 * MB, 8 * MB]
    assert policies.broker_totals() == {2: 8 * MB}
    assert PolicySet().broker_total(2) is None


def test_quotas_are_a_store_of_all_values_in_force() -> None:
    policies = altered(PolicySet(BASE), (ALICE_RATE, 3000), (PolicyKey.of_quota(BOB, QUOTA_KEYS[0]), 5))
    store = policies.quota_store()
    assert dict(store.entries) == {ALICE: {PRODUCE: 3000.0}, BOB: {QUOTA_KEYS[0]: 5.0}}
    assert policies.quota_store() is store
    assert store.version == policies.version


def test_after_a_change_the_quotas_of_others_are_not_worked_out_again() -> None:
    before = altered(PolicySet(BASE), (BOB_RATE, 5))
    kept = before.quota_store().entries[BOB]
    for after in (
        altered(before, (ALICE_RATE, 7)),
        altered(before, (CLICKS, MB)),
        before.with_base({}),
        PolicySet(BASE, {BOB_RATE: 5.0}, 7).inherit_quotas(before),
    ):
        assert after.quota_store().entries[BOB] is kept
        assert after.quota_store().version == after.version


_QUOTA_KEYS = [PolicyKey.of_quota(entity, key) for entity in (ALICE, BOB, Entity(DEFAULT, "app")) for key in QUOTA_KEYS]


@given(st.lists(st.dictionaries(st.sampled_from([*_QUOTA_KEYS, CLICKS]), st.none() | st.integers(1, 9)), max_size=5))
def test_the_quotas_after_any_changes_are_those_of_a_set_made_anew(steps: list[dict[PolicyKey, int | None]]) -> None:
    policies = PolicySet(dict.fromkeys((TOTAL, TOTAL_OUT), 1.0))
    policies.quota_store()
    for number, step in enumerate(steps):
        values = {key: float(value) for key, value in step.items() if value is not None}
        if number % 2:
            policies = policies.with_base({TOTAL: 1.0, TOTAL_OUT: 1.0, **values})
        else:
            policies = altered(policies, *((key, value) for key, value in values.items() if key != CLICKS))
        anew = PolicySet(policies.base, policies.changes, policies.version)
        assert policies.quota_store().entries == anew.quota_store().entries
        assert [list(values) for values in policies.quota_store().entries.values()] == [
            sorted(values) for values in policies.quota_store().entries.values()
        ]


def test_each_alteration_is_a_version_and_what_alters_nothing_is_none() -> None:
    first = PolicySet(BASE)
    second = altered(first, (CLICKS, 6 * MB), (VIEWS, MB))
    assert [first.version, second.version] == [0, 1]
    assert altered(second, (CLICKS, 6 * MB), (ORDERS, None)) is second
    pinned = altered(first, (CLICKS, 5 * MB))  # as the base has it, but it stays when the base is changed
    assert pinned.version == 1
    assert pinned.with_base({}).topic_thresholds() == {"clicks": 5 * MB}


def test_changes_say_what_was_and_is_in_force() -> None:
    old = PolicySet(BASE, {CLICKS: 6.0 * MB, VIEWS: 2.0 * MB})
    new = altered(old, (VIEWS, None), (CLICKS, None), (ORDERS, 1 * MB), (TOTAL, 10 * MB))
    assert new.changes_since(old) == (
        PolicyChange(TOTAL, 10 * MB, 12 * MB, 10 * MB),
        PolicyChange(CLICKS, None, 6 * MB, 5 * MB),
        PolicyChange(ORDERS, 1 * MB, None, 1 * MB),
        PolicyChange(VIEWS, None, 2 * MB, None),
    )
    assert new.changes_since(new) == ()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_value_only_in_the_base_is_not_removed_and_the_line_says_where_it_is_set() -> None:
    faults = refused(PolicySet({**BASE, TOTAL_2: 9.0 * MB}), *((key, None) for key in (TOTAL, TOTAL_2, CLICKS)))
    assert [fault.key for fault in faults] == [TOTAL, TOTAL_2, CLICKS]
    assert faults[2].message == (
        "bytes.in.per.sec.threshold of topic clicks is set in the configuration file"
        " (thresholds.topics.clicks.bytes.in.per.sec.threshold or thresholds.source): remove it there, or set another"
        " value here"
    )
    assert "(thresholds.total.bytes.in.per.sec.threshold or thresholds.source)" in faults[0].message
    assert "(thresholds.brokers.2.total.bytes.in.per.sec.threshold)" in faults[1].message
    (fault,) = refused(PolicySet(BASE), (ALICE_RATE, None))
    assert "producer_byte_rate:broker_bps of {user=alice} is set in the configuration file" in fault.message
    assert "(client_quotas, {user=alice})" in fault.message


@pytest.mark.seed("V1.7")
def test_the_sum_may_not_exceed_any_total_whichever_side_moves() -> None:
    policies = altered(PolicySet(BASE), (TOTAL_2, 8 * MB))
    assert [fault.key for fault in refused(policies, (VIEWS, 4 * MB))] == [TOTAL_2]
    assert [fault.key for fault in refused(policies, (VIEWS, 8 * MB))] == [TOTAL, TOTAL_2]
    assert [fault.key for fault in refused(policies, (BOB_RATE, 50), (VIEWS, 8 * MB))] == [TOTAL, TOTAL_2]
    assert [fault.key for fault in refused(policies, (TOTAL_2, 4 * MB))] == [TOTAL_2]
    assert [fault.key for fault in refused(policies, (PolicyKey.of_broker(7), 4 * MB))] == [PolicyKey.of_broker(7)]
    assert refused(policies, (TOTAL, 4 * MB))[0].message == (
        "the topics' bytes.in.per.sec.threshold sum up to 5,000,000 bytes/s, which exceeds"
        " total.bytes.in.per.sec.threshold = 4,000,000 bytes/s by 1,000,000 bytes/s: lower some of them, or raise the"
        " total to at least 5,000,000 bytes/s"
    )
    assert refused(policies, (TOTAL_2, 4 * MB))[0].message.startswith("broker 2: its topics'")


def test_a_base_that_shows_again_is_part_of_the_sum() -> None:
    policies = altered(PolicySet(BASE), (CLICKS, 1 * MB), (VIEWS, 9 * MB))
    assert [fault.key for fault in refused(policies, (CLICKS, None))] == [TOTAL]


def test_thresholds_are_judged_all_together_so_their_order_does_not_matter() -> None:
    policies = PolicySet(BASE)
    ops = [(VIEWS, 20 * MB), (TOTAL, 30 * MB)]
    assert altered(policies, *ops).effective_values() == altered(policies, *ops[::-1]).effective_values()


def test_one_fault_and_nothing_is_done() -> None:
    policies = PolicySet(BASE)
    faults = refused(policies, (VIEWS, 1 * MB), (PolicyKey.of_topic("no/topic"), 1), (ORDERS, -1))
    assert [fault.key.name for fault in faults] == ["no/topic", "orders"]
    assert policies.topic_thresholds() == {"clicks": 5 * MB}


def test_a_topic_takes_its_part_only_of_brokers_that_have_a_partition_of_it() -> None:
    """Thirty brokers with three topics each, which have all of a broker's total together: ninety thresholds."""
    places = {broker: {f"t{3 * broker + number}" for number in range(3)} for broker in range(30)}
    ops = [(PolicyKey.of_topic(name), 4 * MB) for names in places.values() for name in sorted(names)]
    policies = altered(PolicySet({TOTAL: 12.0 * MB}), *ops, places=places)
    assert len(policies.topic_thresholds()) == 90
    (fault,) = refused(policies, (PolicyKey.of_topic("t4"), 5 * MB), places=places)
    assert fault.key == TOTAL
    assert fault.message == (
        "broker 1: its topics' bytes.in.per.sec.threshold sum up to 13,000,000 bytes/s, which exceeds"
        " total.bytes.in.per.sec.threshold = 12,000,000 bytes/s by 1,000,000 bytes/s: lower some of them, or raise the"
        " total to at least 13,000,000 bytes/s"
    )
    assert refused(policies, (PolicyKey.of_broker(7), 11 * MB), places=places)[0].key == PolicyKey.of_broker(7)
    assert altered(policies, (PolicyKey.of_broker(31), 1 * MB), places=places).broker_total(31) == MB, (
        "it has no topics"
    )
    spread = {broker: {"t4", *names} for broker, names in places.items()}
    faults = refused(PolicySet({TOTAL: 12.0 * MB}), *ops, places=spread)
    assert len(faults) == 4
    assert faults[-1].message == "26 more brokers are overcommitted as well"


@pytest.mark.seed("V1.7")
def test_a_topic_that_is_not_there_yet_counts_wherever_it_may_be_placed_until_it_is() -> None:
    places = {1: {"clicks"}, 2: {"orders"}}
    policies = altered(PolicySet(BASE), (VIEWS, 7 * MB), places=places)
    (fault,) = refused(policies, (VIEWS, 7.5 * MB), places=places)
    assert fault.key == TOTAL
    assert fault.message.startswith(
        "broker 1: its topics' bytes.in.per.sec.threshold sum up to 12,500,000 bytes/s (7,500,000 bytes/s of it for"
        " topics that are not there yet and may come here), which exceeds total"
    )
    assert refused(policies, (ORDERS, 6 * MB), places=places), "whichever of the two is set first"
    assert refused(policies, (TOTAL, 11 * MB), places=places)
    assert altered(policies, (ORDERS, 5 * MB), places=places)
    there = {1: {"clicks"}, 2: {"orders"}, 3: {"views"}}
    assert altered(policies, (ORDERS, 12 * MB), places=there), "it was placed elsewhere"
    (warning,) = altered(policies, (VIEWS, 6 * MB), places=places).collect_warnings(places)
    assert warning.startswith("bytes.in.per.sec.threshold of topics that are not there (views): each takes its part of")
    assert policies.collect_warnings(there) == ()


def test_a_broker_that_has_no_topic_yet_may_get_one() -> None:
    policies = PolicySet({**BASE, TOTAL_2: 1.0 * MB})
    assert refused(policies, (VIEWS, 2 * MB), places={1: {"clicks"}, 2: set()})[0].key == TOTAL_2


# --- topics come and go -----------------------------------------------------------------------------------------------

OLD, NEW, ELSEWHERE = TopicId("c1", "old"), TopicId("c1", "new"), TopicId("c2", "new")
THERE: TopicPlaces = {1: {"clicks", "views"}}
GONE: TopicPlaces = {1: {"clicks"}}


def of_topic(value: float = 7.0 * MB, base: PolicyValues = BASE) -> PolicySet:
    return altered(PolicySet(base), (VIEWS, value), places=THERE, topic_ids={"views": OLD})


def test_the_threshold_of_an_earlier_topic_of_the_name_is_gone_with_its_end() -> None:
    policies = altered(of_topic(), (VIEWS, 6 * MB, 5000), places=THERE, topic_ids={"views": OLD})
    assert policies.follow_topic_ids({"views": OLD}) is policies
    after = policies.follow_topic_ids({"views": NEW})
    assert (after.changes, after.ends, after.topic_ids) == ({}, {}, {})
    assert after.version == policies.version + 1
    (change,) = after.changes_since(policies)
    assert (change.key, change.old, change.new, change.only_topic_id) == (VIEWS, 6 * MB, None, False)
    assert after.follow_topic_ids({"views": NEW}) is after, "another gateway finds it done"


def test_what_the_file_says_of_a_topic_holds_for_the_next_one_too() -> None:
    after = of_topic(6.0 * MB, {**BASE, VIEWS: 2.0 * MB}).follow_topic_ids({"views": NEW})
    assert after.topic_thresholds()["views"] == 2 * MB


def test_a_value_whose_topic_was_not_known_is_the_present_ones_from_here_on() -> None:
    policies = altered(PolicySet(BASE), (VIEWS, MB, 5000), places=GONE)
    bound = policies.follow_topic_ids({"views": OLD, "clicks": OLD, "other": OLD})
    assert bound.topic_ids == {"views": OLD}, "only what was set at run time"
    (change,) = bound.changes_since(policies)
    assert change == PolicyChange(VIEWS, MB, MB, MB, ValueEnd(5000, None), OLD, True)
    assert bound.follow_topic_ids({"views": NEW}).changes == {}
    moved = bound.follow_topic_ids({"views": ELSEWHERE})
    assert moved.topic_ids == {"views": ELSEWHERE}, "another cluster's ids say nothing about this one's topics"
    assert moved.topic_thresholds() == bound.topic_thresholds()


def test_the_topic_of_a_value_survives_what_changes_beside_it() -> None:
    policies = altered(of_topic(), (VIEWS, 6 * MB, 5000), places=THERE, topic_ids={"views": OLD})
    assert policies.with_base({}).topic_ids == {"views": OLD}
    assert policies.revert_expired(5000).runtime_value(VIEWS) == RuntimeValue(7 * MB, None, OLD)
    assert policies.restore_values({CLICKS: RuntimeValue(MB)}).topic_ids == {"views": OLD}
    again = altered(policies, (VIEWS, 6 * MB, 5000), places=THERE)
    assert again.topic_ids == {}, "a value set for a topic that nobody knows may be the next one's"


def test_a_deletion_takes_the_threshold_that_was_there_by_then() -> None:
    policies = of_topic()
    held = policies.runtime_value(VIEWS)
    assert policies.without_topics({"views": held, "other": RuntimeValue(1.0)}).changes == {}
    for other in ((VIEWS, 6 * MB), (VIEWS, 7 * MB), (VIEWS, 7 * MB, 5000)):
        meanwhile = altered(policies, other, places=GONE)
        assert meanwhile.without_topics({"views": held}) is meanwhile


def test_a_topic_that_was_deleted_or_is_away_takes_no_room() -> None:
    policies = of_topic()
    assert policies.reserved_thresholds(GONE) == {}
    assert policies.collect_warnings(GONE) == ()
    assert altered(policies, (CLICKS, 12 * MB), places=GONE)
    assert refused(policies, (CLICKS, 12 * MB), places=THERE)
    filed = of_topic(6.0 * MB, {**BASE, VIEWS: 2.0 * MB})
    assert filed.reserved_thresholds(GONE) == {"views": 2 * MB}, "the next one has it by the file"
    anew = altered(policies, (VIEWS, 7 * MB), places=GONE)
    assert anew.reserved_thresholds(GONE) == {"views": 7 * MB}, "set again, for one to come"


def test_partitions_that_move_leave_the_thresholds_and_a_warning_says_which_broker_has_too_much() -> None:
    policies = altered(PolicySet(BASE), (VIEWS, 8 * MB), places={1: {"clicks"}, 2: {"views"}})
    assert policies.collect_warnings({1: {"clicks"}, 2: {"views"}}) == ()
    moved = {1: {"clicks"}, 2: {"views", "clicks"}}
    (warning,) = policies.collect_warnings(moved)
    assert warning.startswith("broker 2: its topics' ")
    assert "by 1,000,000 bytes/s" in warning
    assert policies.commitments_by_broker(moved)["2"].excess == MB
    assert [fault.key for fault in refused(policies, (VIEWS, 9 * MB), places=moved)] == [TOTAL]
    assert altered(policies, (VIEWS, 7.5 * MB), places=moved).topic_thresholds()["views"] == 7.5 * MB
    (used_up,) = altered(policies, (VIEWS, 7 * MB), places=moved).collect_warnings(moved)
    assert used_up.startswith("broker 2: its topics' bytes.in.per.sec.threshold use up")


@pytest.mark.seed("V1.7")
def test_what_the_file_says_and_what_comes_back_at_an_end_is_not_judged_but_warned_of() -> None:
    places = {1: {"clicks", "views"}}
    file = PolicySet.from_base({TOTAL: 10.0 * MB, CLICKS: 6.0 * MB, VIEWS: 5.0 * MB}, NO_PLACES)
    assert "exceeds" in file.collect_warnings(places)[0]
    policies = PolicySet({TOTAL: 10.0 * MB, CLICKS: 6.0 * MB})
    lowered = altered(policies, (CLICKS, 4 * MB, AT + HOUR), now_ms=AT, places=places)
    filled = altered(lowered, (VIEWS, 6 * MB), now_ms=AT, places=places)
    ended = filled.revert_expired(AT + HOUR)
    assert ended.topic_thresholds() == {"clicks": 6 * MB, "views": 6 * MB}
    assert "by 2,000,000 bytes/s" in ended.collect_warnings(places)[0]


@pytest.mark.seed("V1.7")
def test_a_sum_that_is_too_large_already_may_shrink_or_stay_but_not_grow() -> None:
    policies = PolicySet({TOTAL: 10.0, CLICKS: 8.0, VIEWS: 6.0})
    assert altered(policies, (CLICKS, 7)).topic_thresholds() == {"clicks": 7, "views": 6}
    assert altered(policies, (CLICKS, 9), (VIEWS, 5)).topic_thresholds() == {
        "clicks": 9,
        "views": 5,
    }
    assert altered(policies, (TOTAL, 11)).broker_total() == 11
    assert [fault.key for fault in refused(policies, (CLICKS, 8.5))] == [TOTAL]
    assert [fault.key for fault in refused(policies, (TOTAL, 9.5))] == [TOTAL]
    assert [fault.key for fault in refused(policies, (TOTAL_2, 13))] == [TOTAL_2]  # a new total has no former excess
    assert altered(policies, (BOB_RATE, 5)).version == 1  # no part of the sum


def test_shares_need_a_total_and_losing_the_last_one_is_a_warning() -> None:
    without = PolicySet()
    (fault,) = refused(without, (ALICE_SHARES, 10))
    assert fault.key == ALICE_SHARES
    assert "no total" in fault.message
    both = altered(without, (ALICE_SHARES, 10), (TOTAL_2, 5 * MB))  # together they can
    assert both.collect_warnings() == ()
    lost = altered(both, (TOTAL_2, None))
    assert lost.collect_warnings() == ("1 quotas in shares have no effect: there is no broker total to share",)
    (fault,) = refused(both, (TOTAL_2, None), (ALICE_SHARES, 20))
    assert fault.key == ALICE_SHARES
    consumer = PolicyKey.of_quota(ALICE, QuotaKey("consumer_byte_rate", "shares"))
    assert [fault.key for fault in refused(both, (consumer, 10))] == [consumer]


def test_a_key_is_one_however_it_is_spelled() -> None:
    spelled = PolicyKey("quota", ALICE.path, "producer_byte_rate:broker_bps")
    assert spelled.validate_key() == ALICE_RATE
    policies = altered(PolicySet(BASE), (spelled, 7))
    assert policies.changes == {ALICE_RATE: 7.0}
    assert "is given twice" in refused(policies, (spelled, 7), (ALICE_RATE, 8))[0].message


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


@pytest.mark.seed("546.10")
def test_a_quota_of_the_base_can_be_changed_but_not_removed() -> None:
    policies = PolicySet(BASE)
    remove = [Alteration([("user", "alice")], [QuotaOp("producer_byte_rate", None), QuotaOp("request_percentage", 5)])]
    same, (error,) = policies.alter_quotas(remove)
    assert same is policies
    assert error is not None
    assert "is set in the configuration file" in str(error)
    changed, _ = policies.alter_quotas([Alteration([("user", "alice")], [QuotaOp("producer_byte_rate", 5)])])
    assert changed.quota_store().entries[ALICE] == {PRODUCE: 5.0}
    back, errors = changed.alter_quotas([Alteration([("user", "alice")], remove[0].ops[:1])])
    assert errors == (None,)
    assert back.quota_store().entries[ALICE] == {PRODUCE: 2000.0}


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
        applied = policies.alter_policies(policies.diff_values(wanted, prune=prune))
    except PolicyError:
        return  # the sum
    assert {key: applied.effective_values()[key] for key in wanted} == wanted
    assert applied.diff_values(wanted, prune=prune) == []
    if prune:
        assert {key for key in applied.changes if key not in wanted} == set()
        assert set(applied.effective_values()) == set(wanted) | set(base)
    else:
        assert set(applied.effective_values()) == set(wanted) | set(base) | set(changes)


def test_without_prune_nothing_is_removed_and_the_base_never_is() -> None:
    policies = PolicySet(BASE, {VIEWS: 1.0, CLICKS: 2.0})
    assert policies.diff_values({ORDERS: 3.0}) == [PolicyOperation(ORDERS, 3.0)]
    assert policies.diff_values({ORDERS: 3.0}, prune=True) == [
        PolicyOperation(CLICKS, None),
        PolicyOperation(ORDERS, 3.0),
        PolicyOperation(VIEWS, None),
    ]


def test_a_total_for_consumers_is_no_total_of_producers() -> None:
    made = PolicySet({TOTAL_OUT: 5.0, PolicyKey.of_broker(2, TOTAL_OUT_KEY): 3.0})
    assert (made.broker_total(), made.broker_totals()) == (None, {})
    assert made.shareable_types() == {"consumer_byte_rate"}
    assert (made.broker_total_out(), made.broker_total_out(2), made.broker_totals_out()) == (5.0, 3.0, {2: 3.0})
    assert altered(made, (CLICKS, 100.0)).topic_thresholds() == {"clicks": 100.0}  # what is read takes nothing of it


# --- with an end ------------------------------------------------------------------------------------------------------


def test_a_change_ends_and_what_it_replaced_holds_again() -> None:
    before = PolicySet(BASE, {VIEWS: 2.0 * MB}, 1)
    ops = [(CLICKS, 6 * MB, AT + HOUR), (VIEWS, 3 * MB, AT + 2 * HOUR), (ORDERS, 1 * MB, AT + HOUR)]
    during = altered(before, *ops, now_ms=AT)
    assert during.topic_thresholds() == {"clicks": 6 * MB, "views": 3 * MB, "orders": 1 * MB}
    assert during.next_end_ms == AT + HOUR
    assert during.revert_expired(AT + HOUR - 1) is during
    first = during.revert_expired(AT + HOUR)
    assert first.topic_thresholds() == {"clicks": 5 * MB, "views": 3 * MB}
    assert first.next_end_ms == AT + 2 * HOUR
    late = during.revert_expired(AT + 100 * HOUR)  # nobody was there at that time
    assert (late.topic_thresholds(), late.changes, late.next_end_ms) == (
        {"clicks": 5 * MB, "views": 2 * MB},
        before.changes,
        None,
    )
    assert late.revert_expired(AT + 100 * HOUR) is late
    assert late.version == during.version + 1 == before.version + 2


def test_of_changes_with_an_end_that_replace_each_other_the_first_ones_former_value_holds_again() -> None:
    first = altered(PolicySet(BASE, {CLICKS: 4.0 * MB}), (CLICKS, 6 * MB, AT + HOUR), now_ms=AT)
    second = altered(first, (CLICKS, 7 * MB, AT + 3 * HOUR), now_ms=AT + 1)
    assert second.ends == {CLICKS: ValueEnd(AT + 3 * HOUR, 4 * MB)}
    assert second.revert_expired(AT + HOUR).topic_thresholds()["clicks"] == 7 * MB
    longer = altered(second, (CLICKS, 7 * MB, AT + 4 * HOUR), now_ms=AT)
    assert longer.ends == {CLICKS: ValueEnd(AT + 4 * HOUR, 4 * MB)}
    assert [(change.old, change.new, change.end) for change in longer.changes_since(second)] == [
        (7 * MB, 7 * MB, ValueEnd(AT + 4 * HOUR, 4 * MB))
    ]
    assert altered(longer, (CLICKS, 7 * MB, AT + 4 * HOUR), now_ms=AT) is longer
    assert longer.revert_expired(AT + 4 * HOUR).topic_thresholds()["clicks"] == 4 * MB


def test_a_later_change_without_an_end_stays_and_a_removal_removes_both() -> None:
    during = altered(PolicySet(BASE, {CLICKS: 4.0 * MB}), (CLICKS, 6 * MB, AT + HOUR), now_ms=AT)
    for value, left in ((7 * MB, 7 * MB), (6 * MB, 6 * MB), (None, 5 * MB)):
        after = altered(during, (CLICKS, value))
        assert (after.ends, after.next_end_ms) == ({}, None)
        assert after.revert_expired(AT + 2 * HOUR).topic_thresholds()["clicks"] == left


def test_a_value_taken_back_is_not_judged_again_and_its_error_is_said() -> None:
    during = altered(PolicySet(BASE), (CLICKS, 1 * MB, AT + HOUR), now_ms=AT)
    filled = altered(during, (VIEWS, 11 * MB))
    after = filled.revert_expired(AT + HOUR)
    assert after.topic_thresholds() == {"clicks": 5 * MB, "views": 11 * MB}
    assert "exceeds" in after.collect_warnings()[0]


def test_an_end_survives_another_base() -> None:
    during = altered(PolicySet(BASE), (CLICKS, 6 * MB, AT + HOUR), now_ms=AT)
    assert during.with_base({TOTAL: 12.0 * MB, CLICKS: 3.0 * MB}).revert_expired(AT + HOUR).topic_thresholds() == {
        "clicks": 3 * MB
    }


@pytest.mark.parametrize(
    ("op", "text"),
    [
        ((CLICKS, 6 * MB, AT), "until 2023-11-14T22:13:20Z has to be later than now, which is 2023-11-14T22:13:20Z"),
        ((CLICKS, 6 * MB, 2**62), f"until {2**62} has to be later than now"),
        ((VIEWS, None, AT + HOUR), "a value that is removed has no end"),
        ((PolicyKey.of_group("gold"), 1, AT + HOUR), "only limits have an end"),
        ((PolicyKey.of_tenant("acme"), "gold", AT + HOUR), "only limits have an end"),
    ],
)
def test_ends_that_can_not_be(op: tuple[PolicyKey, PolicyValue | None, int], text: str) -> None:
    assert text in refused(PolicySet(BASE, {VIEWS: 1.0}), op, now_ms=AT)[0].message


def test_client_quotas_and_documents_have_ends_as_well() -> None:
    set_ = [QuotaOp("producer_byte_rate", 5.0)]
    altered = PolicySet().alter_quotas(
        [Alteration(ALICE.wire_pairs, set_, AT + HOUR), Alteration(BOB.wire_pairs, set_, AT)], now_ms=AT
    )
    assert [error is None for error in altered.errors] == [True, False]
    assert altered.policies.ends == {ALICE_RATE: ValueEnd(AT + HOUR, None)}
    assert altered.policies.revert_expired(AT + HOUR).quota_store().entries == {}
    applied = PolicySet(BASE).apply_values({CLICKS: 5.0 * MB, VIEWS: 1.0 * MB}, until_ms=AT + HOUR, now_ms=AT)
    assert applied.ends == {VIEWS: ValueEnd(AT + HOUR, None)}  # of what it changes
    with pytest.raises(PolicyError, match="has to be later than now"):
        PolicySet(BASE).apply_values({VIEWS: 1.0 * MB}, until_ms=AT, now_ms=AT)


def test_an_end_of_an_entity_is_that_of_the_values_that_it_sets() -> None:
    ops = [QuotaOp("producer_byte_rate", 5.0), QuotaOp("producer_byte_rate:shares", None)]
    policies, errors = PolicySet({TOTAL: 12.0 * MB}, {ALICE_SHARES: 3.0}).alter_quotas(
        [Alteration(ALICE.wire_pairs, ops, AT + HOUR), Alteration(BOB.wire_pairs, ops[1:], AT + HOUR)], now_ms=AT
    )
    assert (policies.changes, policies.ends) == ({ALICE_RATE: 5.0}, {ALICE_RATE: ValueEnd(AT + HOUR, None)})
    assert errors[0] is None
    assert "a value that is removed has no end" in str(errors[1])


def test_an_apply_moves_an_end_and_without_one_makes_its_values_permanent() -> None:
    wanted = {CLICKS: 6.0 * MB, TOTAL: 12.0 * MB}
    during = PolicySet(BASE).apply_values(wanted, until_ms=AT + HOUR, now_ms=AT)
    assert during.diff_values(wanted, until_ms=AT + HOUR) == []
    later = during.apply_values(wanted, until_ms=AT + 2 * HOUR, now_ms=AT)
    assert later.ends == {CLICKS: ValueEnd(AT + 2 * HOUR, None)}
    assert later.diff_values({TOTAL: 12.0 * MB}) == []
    kept = later.apply_values(wanted, now_ms=AT)
    assert (kept.changes, kept.ends) == ({CLICKS: 6.0 * MB}, {})
    assert kept.diff_values(wanted) == kept.diff_values(wanted, until_ms=AT + HOUR) == []


def test_of_a_document_with_groups_only_limits_have_an_end() -> None:
    gold, acme = PolicyKey.of_group("gold"), PolicyKey.of_tenant("acme")
    rate = PolicyKey.of_group("gold", "publishRateInBytes")
    wanted: dict[PolicyKey, PolicyValue] = {gold: 1.0, rate: 5.0, acme: "gold"}
    applied = PolicySet().apply_values(wanted, until_ms=AT + HOUR, now_ms=AT)
    assert (applied.effective_values(), applied.ends) == (wanted, {rate: ValueEnd(AT + HOUR, None)})
    assert applied.diff_values(wanted, until_ms=AT + HOUR) == []
