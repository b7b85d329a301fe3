# Requests of many partitions: counted, charged and answered as if each partition had come in a request of its own,
# whatever order the broker answers in, and whatever becomes of some of them.

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.data.play import TOPIC_ID, Play, answer, request, size_of

TOPICS = ("clicks", "orders", "views")
NOT_LEADER = 6
BY_ID = 13


class Wide(NamedTuple):
    """One request: partitions by topic, each with the error code and base offset that the broker answers."""

    topics: dict[str, dict[int, tuple[int, int]]]
    values: tuple[bytes, ...]
    producer: tuple[int, int, int]
    shuffle: int


@st.composite
def wides(draw: st.DrawFn) -> Wide:
    results = st.tuples(st.sampled_from([0, 0, 0, 0, 0, NOT_LEADER]), st.integers(0, 3))
    partitions = st.dictionaries(st.integers(0, 30), results, min_size=1, max_size=20)
    topics = draw(st.dictionaries(st.sampled_from(TOPICS), partitions, min_size=1))
    producer = draw(st.sampled_from([(-1, -1, -1), (7, 0, 0), (7, 0, 1), (8, 1, 0)]))
    values = draw(st.lists(st.sampled_from([b"", b"x", 200 * b"y"]), min_size=1, max_size=3))
    return Wide(topics, tuple(values), producer, draw(st.integers(0, 5)))


def shuffled(wide: Wide) -> dict[str, dict[int, tuple[int, int]]]:
    chance = Random(wide.shuffle)
    topics = list(wide.topics)
    chance.shuffle(topics)
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for topic in topics:
        indexes = list(wide.topics[topic])
        chance.shuffle(indexes)
        found[topic] = {index: wide.topics[topic][index] for index in indexes}
    return found


def send(play: Play, correlation: int, wide: Wide) -> None:
    """The request and its answer."""
    asked = {topic: list(parts) for topic, parts in wide.topics.items()}
    frame = request(correlation, asked, values=wide.values, producer=wide.producer)
    assert play.client(frame) == (frame, b"")
    frame = answer(correlation, shuffled(wide))
    assert play.broker(frame) == frame


def apart(wide: Wide) -> list[Wide]:
    """Each partition in a request of its own."""
    return [
        wide._replace(topics={topic: {index: result}})
        for topic, parts in wide.topics.items()
        for index, result in parts.items()
    ]


def state(play: Play) -> tuple[object, ...]:
    """All that is counted and charged, but for the number of requests."""
    rows = {key: counts[:2] for key, counts in play.rows().items()}
    meters = play.engine.broker_meters(1)
    topics = {name: (meter.uncounted, meter.messages) for name, meter in meters.topics.items()}
    return rows, topics, meters.total.uncounted


@given(st.lists(wides(), min_size=1, max_size=6))
def test_many_partitions_are_counted_and_charged_as_each_of_them_would_be(sent: list[Wide]) -> None:
    together, one_by_one = Play().named(), Play().named()
    for number, wide in enumerate(sent):
        send(together, number, wide)
    for number, wide in enumerate(each for several in sent for each in apart(several)):
        send(one_by_one, number, wide)
    assert state(together) == state(one_by_one)


def test_the_requests_of_a_topic_are_counted_once_for_all_of_its_partitions() -> None:
    play = Play()
    parts = dict.fromkeys(range(40), (0, 5))
    for correlation in (1, 2):
        send(play, correlation, Wide({"clicks": parts, "orders": {3: (0, 1)}}, (b"v",), (-1, -1, -1), correlation))
    size = size_of((b"v",))
    assert play.rows() == {
        ("clicks", "accepted", ""): (80 * size, 80, 2),
        ("orders", "accepted", ""): (2 * size, 2, 2),
    }


def test_of_a_repeated_request_what_the_log_has_already_is_a_duplicate() -> None:
    play = Play().named()
    first = Wide({"clicks": {index: (0, 100 + index) for index in range(40)}}, (b"v",), (7, 0, 0), 1)
    send(play, 1, first)
    new = {index: (0, 200 + index) for index in range(20, 40)}  # these were not in the log
    send(play, 2, first._replace(topics={"clicks": {**first.topics["clicks"], **new}}, shuffle=2))
    size = size_of((b"v",))
    assert play.rows() == {
        ("clicks", "accepted", ""): (60 * size, 60, 2),
        ("clicks", "duplicate", ""): (20 * size, 20, 1),
    }
    assert play.engine.broker_meters(1).topics[b"clicks"].uncounted == 60 * size


@pytest.mark.parametrize("missing", [0, 17, 39])
def test_a_partition_that_the_broker_does_not_answer_is_unanswered_and_others_are_accepted(missing: int) -> None:
    play = Play()
    frame = request(1, {"clicks": list(range(40))})
    play.client(frame)
    play.broker(answer(1, {"clicks": {index: (0, 1) for index in range(40) if index != missing}}))
    size = size_of()
    assert play.rows() == {
        ("clicks", "accepted", ""): (39 * size, 39, 1),
        ("clicks", "unanswered", ""): (size, 1, 1),
    }


def test_with_topic_ids_they_are_counted_by_name() -> None:
    play = Play()
    play.world.cluster.topic_ids[TOPIC_ID] = b"clicks"
    for correlation in (1, 2):
        frame = request(correlation, {"clicks": list(range(30))}, version=BY_ID)
        assert play.client(frame) == (frame, b"")
        play.broker(answer(correlation, {"clicks": dict.fromkeys(range(30), (0, 1))}, version=BY_ID))
    assert play.rows() == {("clicks", "accepted", ""): (60 * size_of(), 60, 2)}
