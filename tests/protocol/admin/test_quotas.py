# Which quotas of a change go to the broker and which don't, what is refused, and one answer out of two.

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.admin.quotas import (
    APART_TYPE,
    CLIENT_ID,
    USER,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    Entity,
    EntityAlteration,
    EntityData,
    EntityQuotas,
    FilterComponent,
    QuotaOperation,
    QuotaValue,
    entity_key,
    merge_altered,
    merge_described,
    ops_for_broker,
    split_alterations,
    without_apart,
    without_entities,
)
from tests.protocol.admin_cases import error

BPS = "producer_byte_rate.bps"
SHARES = "producer_byte_rate.shares"
RATE = "producer_byte_rate"
INVALID_REQUEST = error("INVALID_REQUEST")
DENIED = error("CLUSTER_AUTHORIZATION_FAILED")


def is_ours(_entity: Entity, key: str) -> bool:
    return "." in key


def user(name: str | None, client_id: str | None = "") -> Entity:
    parts = (EntityData(USER, name), EntityData(CLIENT_ID, client_id))
    return parts if client_id != "" else parts[:1]


def change(entity: Entity, *ops: tuple[str, float] | tuple[str, float, bool]) -> EntityAlteration:
    return EntityAlteration(entity, tuple(QuotaOperation(*op) for op in ops))


def request(*entries: EntityAlteration) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(entries, False)


def result(entity: Entity, code: int = 0) -> AlterClientQuotasResult:
    return AlterClientQuotasResult(code, "why" if code else None, entity)


def test_the_order_of_an_entity_means_nothing_and_its_names_all() -> None:
    assert entity_key(user("a", "c")) == entity_key(user("a", "c")[::-1])
    keys = {entity_key(each) for each in (user("a"), user(None), user("b"), user("a", None), user("a", "c"), ())}
    assert len(keys) == 6
    assert entity_key(user("a") + user("b")) == entity_key(user("b"))


# --- changes ----------------------------------------------------------------------------------------------------------


def test_our_keys_are_taken_out_and_the_others_are_left() -> None:
    whole = request(
        change(user("a"), (RATE, 1.0), (BPS, 2.0), (SHARES, 0.0, True)),
        change(user(None), (BPS, 2.0)),
        change(user("b"), (RATE, 0.0, True)),
        change(user("c")),
    )
    ours, rest, refused = split_alterations(whole, is_ours)
    assert ours == (change(user("a"), (BPS, 2.0), (SHARES, 0.0, True)), change(user(None), (BPS, 2.0)))
    assert rest == request(change(user("a"), (RATE, 1.0)), change(user("b"), (RATE, 0.0, True)), change(user("c")))
    assert refused == ()


def test_the_broker_can_be_given_a_part_of_what_is_ours_as_well() -> None:
    def removals(op: QuotaOperation) -> QuotaOperation | None:
        return QuotaOperation(RATE, 0.0, True) if op.remove and op.key == SHARES else None

    whole = request(change(user("a"), (BPS, 0.0, True), (SHARES, 5.0, True), ("x", 1.0)), change(user("b"), (BPS, 1.0)))
    ours, rest, _ = split_alterations(whole, is_ours, removals)
    assert ours == (change(user("a"), (BPS, 0.0, True), (SHARES, 5.0, True)), change(user("b"), (BPS, 1.0)))
    assert rest == request(change(user("a"), (RATE, 0.0, True), ("x", 1.0)))
    assert ops_for_broker(whole.entries[0], is_ours, removals) == rest.entries[0].ops


def test_nothing_of_ours_is_the_request_itself_and_nothing_else_leaves_no_rest() -> None:
    for whole in (request(), request(change(user("a"))), request(change(user("a"), (RATE, 1.0)))):
        assert split_alterations(whole, is_ours) == ((), whole, ())
        assert split_alterations(whole, is_ours).rest is whole
    only = request(change(user("a"), (BPS, 1.0)))
    assert split_alterations(only, is_ours) == (only.entries, None, ())
    checked = request(change(user("a"), (BPS, 1.0), (RATE, 1.0)))._replace(validate_only=True)
    rest = split_alterations(checked, is_ours).rest
    assert rest is not None
    assert rest.validate_only


def test_an_entity_that_names_our_key_twice_is_refused_whole() -> None:
    ours, rest, refused = split_alterations(request(change(user("a"), (BPS, 1.0), (RATE, 1.0), (BPS, 2.0))), is_ours)
    assert (ours, rest) == ((), None)
    assert [(row.error_code, row.entity) for row in refused] == [(INVALID_REQUEST, user("a"))]
    assert f"{BPS} is named 2 times" in (refused[0].error_message or "")


def test_an_entity_that_is_there_twice_is_refused_if_one_of_them_has_a_key_of_ours() -> None:
    first, second = change(user("a", "c"), (RATE, 1.0)), change(user("a", "c")[::-1], (BPS, 1.0))
    for entries in ((first, second), (second, first)):
        ours, rest, refused = split_alterations(request(*entries, change(user("z"), (RATE, 1.0))), is_ours)
        assert (ours, rest) == ((), request(change(user("z"), (RATE, 1.0))))
        assert [(row.error_code, entity_key(row.entity)) for row in refused] == [
            (INVALID_REQUEST, entity_key(user("a", "c")))
        ]
    theirs = request(first, first)
    assert split_alterations(theirs, is_ours).rest is theirs


def test_entities_can_be_taken_out_after_a_probe() -> None:
    whole = request(change(user("a", "c"), (RATE, 1.0)), change(user("b"), (RATE, 1.0)))
    assert without_entities(whole, [user("a", "c")[::-1]]) == request(change(user("b"), (RATE, 1.0)))
    assert without_entities(whole, [user("c")]) == whole
    assert without_entities(whole, [user("b"), user("a", "c")]) is None


_ops = st.lists(
    st.builds(QuotaOperation, st.sampled_from((BPS, SHARES, RATE, "x")), st.floats(0, 9), st.booleans()), max_size=4
)
_entities = st.sampled_from((user("a"), user(None), user("a", "c"), user("a", "c")[::-1]))


@given(st.lists(st.builds(EntityAlteration, _entities, _ops.map(tuple)), max_size=4).map(tuple))
def test_no_key_of_ours_reaches_the_broker_and_every_entity_is_somewhere(entries: tuple[EntityAlteration, ...]) -> None:
    ours, rest, refused = split_alterations(request(*entries), is_ours)
    left = rest.entries if rest else ()
    assert not [op for entry in left for op in entry.ops if is_ours((), op.key)]
    assert all(entry.ops and all(is_ours((), op.key) for op in entry.ops) for entry in ours)
    out = {entity_key(row.entity) for row in refused}
    assert not out & {entity_key(entry.entity) for entry in (*ours, *left)}
    taken = sorted(op for entry in (*ours, *left) for op in entry.ops)
    assert taken == sorted(op for entry in entries if entity_key(entry.entity) not in out for op in entry.ops)
    assert {entity_key(e.entity) for e in entries} == out | {entity_key(e.entity) for e in (*ours, *left)}


# --- answers to changes -----------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_request_and_as_it_names_the_entities() -> None:
    entities = [user("a", "c"), user(None), user("b"), user("b", None), user("z")]
    whole = request(*(change(entity, (RATE, 1.0)) for entity in entities))
    theirs = [result(entity[::-1], 42 if entity == user("b") else 0) for entity in entities[:4]]
    for seed in range(5):
        random.Random(seed).shuffle(theirs)
        merged = merge_altered(whole, AlterClientQuotasResponse(9, tuple(theirs)), [result(user("z"), 40)])
        assert merged == (
            9,
            (
                result(user("a", "c")),
                result(user(None)),
                result(user("b"), 42),
                result(user("b", None)),
                result(user("z"), 40),
            ),
        )


@pytest.mark.seed("546.40")
@pytest.mark.parametrize(
    ("broker", "own", "merged"), [(0, 0, 0), (0, 42, 42), (31, 0, 31), (31, 42, 31), (None, 42, 42), (31, None, 31)]
)
def test_of_two_results_an_error_counts_and_the_brokers_first(broker: int | None, own: int | None, merged: int) -> None:
    theirs = None if broker is None else AlterClientQuotasResponse(0, (result(user("a"), broker),))
    ours = [] if own is None else [result(user("a"), own)]
    assert merge_altered(request(change(user("a"))), theirs, ours) == (0, (result(user("a"), merged),))


def test_an_entity_without_any_result_is_not_left_out_and_an_unrequested_one_comes_last() -> None:
    merged = merge_altered(request(change(user("a"))), AlterClientQuotasResponse(0, (result(user("z")),)), [])
    assert [(row.error_code, row.entity) for row in merged.entries] == [(-1, user("a")), (0, user("z"))]


def test_an_entity_that_is_there_twice_is_answered_once_as_by_the_broker() -> None:
    whole = request(change(user("a"), (RATE, 1.0)), change(user("a"), (RATE, 2.0)))
    answer = AlterClientQuotasResponse(0, (result(user("a"), 42),))
    assert merge_altered(whole, answer, []) == answer


# --- descriptions -----------------------------------------------------------------------------------------------------


def entry(entity: Entity, **values: float) -> EntityQuotas:
    return EntityQuotas(entity, tuple(QuotaValue(key, value) for key, value in values.items()))


def test_our_values_are_added_to_the_same_entity_and_our_entities_come_last() -> None:
    answer = DescribeClientQuotasResponse(3, 0, None, (entry(user("a", "c"), rate=1.0), entry(user("b"), rate=1.0)))
    ours = (entry(user("z"), bps=5.0), entry(user("a", "c")[::-1], bps=6.0))
    assert merge_described(answer, ours) == (
        3,
        0,
        None,
        (entry(user("a", "c"), rate=1.0, bps=6.0), entry(user("b"), rate=1.0), entry(user("z"), bps=5.0)),
    )


def test_the_brokers_value_of_the_same_key_stays_visible() -> None:
    """Both are enforced."""
    answer = DescribeClientQuotasResponse(0, 0, None, (entry(user("a"), x=1.0, y=2.0),))
    assert merge_described(answer, [entry(user("a"), x=9.0)]).entries == (
        entry(user("a"), **{"x.upstream": 1.0, "y": 2.0, "x": 9.0}),
    )


def test_all_of_the_brokers_values_are_told_apart_where_that_is_asked_for() -> None:
    answer = DescribeClientQuotasResponse(0, 0, None, (entry(user("a"), x=1.0, y=2.0), entry(user("b"), x=3.0)))
    merged = merge_described(answer, [entry(user("a"), z=9.0)], lambda _, key: key == "x")
    assert merged.entries == (
        entry(user("a"), **{"x.upstream": 1.0, "y": 2.0, "z": 9.0}),
        entry(user("b"), **{"x.upstream": 3.0}),
    )


def test_brokers_are_asked_without_what_only_a_gateway_knows() -> None:
    asked = DescribeClientQuotasRequest((FilterComponent(APART_TYPE, 2, None), FilterComponent("user", 0, "a")), True)
    assert without_apart(asked) == DescribeClientQuotasRequest((FilterComponent("user", 0, "a"),), True)
    assert without_apart(DescribeClientQuotasRequest(())) is None


@pytest.mark.parametrize("entries", [None, ()])
def test_nothing_found_by_the_broker_is_no_error(entries: tuple[()] | None) -> None:
    answer = DescribeClientQuotasResponse(0, 0, None, entries)
    assert merge_described(answer, [entry(user("a"), x=1.0)]).entries == (entry(user("a"), x=1.0),)
    assert merge_described(answer, []).entries == ()


def test_an_answer_with_an_error_stays_as_it_is() -> None:
    answer = DescribeClientQuotasResponse(0, DENIED, "no", None)
    assert merge_described(answer, [entry(user("a"), x=1.0)]) is answer
