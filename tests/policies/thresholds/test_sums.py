# What topics take of each broker's total together.

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.thresholds.sums import (
    EVERY_BROKER,
    MAX_NAMED,
    NO_PLACES,
    CommittedTotal,
    find_exceeded,
    find_overcommitted,
    is_unplaced,
    over_texts,
    oversized_texts,
    reserved_warnings,
    sum_commitments,
    sum_warnings,
)

MB = 1_000_000
PLACES = {1: {"clicks", "other"}, 2: {"clicks", "views"}, 3: {"other"}}
TOPICS = {"clicks": 15.0 * MB, "views": 10.0 * MB, "planned": 5.0 * MB}


def test_a_topic_counts_on_brokers_that_have_a_partition_of_it_and_on_no_other() -> None:
    found = sum_commitments({EVERY_BROKER: 20.0 * MB, "3": 8.0 * MB}, TOPICS, PLACES)
    assert found == {
        "1": CommittedTotal(20 * MB, 15 * MB),
        "2": CommittedTotal(20 * MB, 25 * MB),
        "3": CommittedTotal(8 * MB, 0),
    }
    assert find_overcommitted(found) == {"2": CommittedTotal(20 * MB, 25 * MB)}
    assert found["2"].excess == 5 * MB
    assert [(each.overcommitted, each.utilization_text) for each in found.values()] == [
        (0, "75%"),
        (5 * MB, "125%"),
        (0, "0%"),
    ]


def test_a_total_of_nothing_is_exceeded_by_any_topic() -> None:
    assert CommittedTotal(0, 1).utilization_text == "over a limit of 0"
    assert CommittedTotal(0, 0).utilization_text == "0%"


def test_brokers_without_a_total_are_left_out() -> None:
    assert sum_commitments({"3": 8.0}, TOPICS, PLACES).keys() == {"3"}
    assert sum_commitments({}, TOPICS, PLACES) == {}


def test_with_unknown_placement_each_topic_counts_on_each_broker() -> None:
    found = sum_commitments({EVERY_BROKER: 20.0 * MB, "3": 40.0 * MB}, TOPICS, None)
    assert found == {EVERY_BROKER: CommittedTotal(20 * MB, 30 * MB), "3": CommittedTotal(40 * MB, 30 * MB)}


@pytest.mark.seed("V1.7")
@given(st.floats(1, 1e10), st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1e9), max_size=6))
def test_a_sum_above_the_total_is_too_much_and_no_other(total: float, topics: dict[str, float]) -> None:
    for places in (None, {1: set(topics)}):
        over = find_overcommitted(sum_commitments({EVERY_BROKER: total}, topics, places))
        assert bool(over) is (math.fsum(topics.values()) > total)


@pytest.mark.seed("V1.7")
@pytest.mark.parametrize("before", [{}, {"2": CommittedTotal(20.0, 20.0)}])
def test_half_a_byte_is_too_much(before: dict[str, CommittedTotal]) -> None:
    assert find_exceeded({"2": CommittedTotal(20.0, 20.5)}, before)
    assert not find_exceeded({"2": CommittedTotal(20.0, 20.0)}, before)


def test_twenty_tenths_are_two_though_adding_them_up_one_by_one_says_more() -> None:
    assert not find_overcommitted(sum_commitments({EVERY_BROKER: 2.0}, {f"t{i}": 0.1 for i in range(20)}, None))
    assert find_overcommitted(sum_commitments({EVERY_BROKER: 2.0}, {f"t{i}": 0.1 for i in range(21)}, None))


@pytest.mark.seed("V1.7")
@pytest.mark.parametrize(("before", "over"), [(24.0, True), (25.0, False), (26.0, False)])
def test_a_broker_overcommitted_as_much_before_may_stay_so(before: float, over: bool) -> None:
    assert bool(find_exceeded({"2": CommittedTotal(20.0, 25.0)}, {"2": CommittedTotal(20.0, before)})) is over
    assert (
        bool(find_exceeded({"2": CommittedTotal(20.0, 15.0, 10.0)}, {"2": CommittedTotal(20.0, before - 9.0, 9.0)}))
        is over
    )


def test_of_a_topic_that_is_not_there_yet_the_threshold_is_reserved_on_every_broker() -> None:
    found = sum_commitments({EVERY_BROKER: 20.0 * MB, "3": 8.0 * MB}, TOPICS, PLACES, [5.0 * MB])
    assert found["1"] == CommittedTotal(20 * MB, 15 * MB, 5 * MB)
    assert found["3"] == CommittedTotal(8 * MB, 0, 5 * MB)
    assert find_overcommitted({"1": CommittedTotal(20.0, 15.0, 6.0)}) == {}, "nothing of it is taken yet"
    assert find_exceeded({"1": CommittedTotal(20.0, 15.0, 6.0), "2": CommittedTotal(20.0, 14.0, 6.0)}, {}).keys() == {
        "1"
    }
    assert [is_unplaced("planned", places) for places in (PLACES, NO_PLACES, None)] == [True, True, False]


def test_what_is_reserved_is_said_with_the_brokers_that_it_will_overcommit() -> None:
    now = {
        "1": CommittedTotal(20.0, 15.0, 6.0),
        "2": CommittedTotal(20.0, 21.0, 6.0),
        "3": CommittedTotal(20.0, 14.0, 6.0),
    }
    topics, broker = reserved_warnings(now, ["planned", "d", "c", "b", "a"])
    assert "topics that are not there (a, b, c and 2 more): each takes its part of every broker's total" in topics
    assert broker.startswith("broker 1: its topics' bytes.in.per.sec.threshold sum up to 21 bytes/s (6 bytes/s of it ")
    assert reserved_warnings(now, []) == []


def test_before_any_broker_is_known_a_topic_must_fit_on_one_alone() -> None:
    topics = {"clicks": 30.0, "small": 20.0}
    assert oversized_texts({EVERY_BROKER: 10.0, "7": 20.0}, topics).keys() == {"clicks"}
    assert oversized_texts({"7": 20.0}, topics) == {}, "other brokers have no limit"


def test_the_worst_brokers_are_named_and_the_others_counted() -> None:
    over = {str(number): CommittedTotal(20.0 * MB, (20.0 + number) * MB) for number in range(1, 31)}
    texts = over_texts(over)
    assert [name for name, _ in texts] == ["28", "29", "30", EVERY_BROKER]
    assert texts[2][1].startswith("broker 30: its topics' bytes.in.per.sec.threshold sum up to 50,000,000 bytes/s")
    assert texts[-1][1] == f"{30 - MAX_NAMED} more brokers are overcommitted as well"
    assert over_texts({}) == []


def test_overcommitted_brokers_and_those_with_nothing_left_are_warned_about() -> None:
    over, used_up = sum_warnings(
        {"1": CommittedTotal(20.0, 25.0), "2": CommittedTotal(20.0, 20.0), "3": CommittedTotal(20.0, 19.0)}
    )
    assert over.startswith("broker 1: its topics' ")
    assert "by 5" in over
    assert used_up.startswith("broker 2: its topics' ")
    assert "is 0" in used_up
