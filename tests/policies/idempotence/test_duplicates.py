from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.idempotence import duplicates
from tests.variants import COMPILED, PURE, module

T = b"clicks"
BATCHES = 5  # what a broker keeps
Acknowledged = duplicates.AcknowledgedBatches


@pytest.fixture(scope="module", params=[PURE, COMPILED], autouse=True)
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiled or not; all tests hold for both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            f"{__name__}.Acknowledged", module("policies.idempotence.duplicates", request.param).AcknowledgedBatches
        )
        yield


@pytest.mark.parametrize("back", range(2 * BATCHES))
def test_the_last_five_are_known_and_others_forgotten_as_the_broker_forgets_them(back: int) -> None:
    acknowledged = Acknowledged()
    for seq in range(20):
        acknowledged.record_batch(7, 0, T, 0, seq, 100 + seq)
    assert acknowledged.record_batch(7, 0, T, 0, 19 - back, 119 - back) is (back < BATCHES)


@pytest.mark.parametrize("other", [(8, 0, T, 0), (7, 1, T, 0), (7, 0, b"views", 0), (7, 0, T, 1)])
def test_another_producer_epoch_topic_or_partition_is_another_batch(other: tuple[int, int, bytes, int]) -> None:
    acknowledged = Acknowledged()
    acknowledged.record_batch(7, 0, T, 0, 0, 0)
    assert acknowledged.record_batch(*other, 0, 0) is False


def test_batches_without_a_producer_id_cannot_be_told_apart() -> None:
    acknowledged = Acknowledged()
    assert acknowledged.record_batch(-1, -1, T, 0, -1, 100) is False
    assert acknowledged.record_batch(-1, -1, T, 0, -1, 100) is False
    assert len(acknowledged) == 0


def test_sequences_wrap() -> None:
    acknowledged = Acknowledged()
    acknowledged.record_batch(7, 0, T, 0, 2**31 - 2, 100)
    assert acknowledged.record_batch(7, 0, T, 0, 0, 102) is False
    assert acknowledged.record_batch(7, 0, T, 0, 2**31 - 2, 100) is True


def test_memory_is_bounded_and_entries_in_use_stay() -> None:
    acknowledged = Acknowledged(generation=100)
    for pid in range(10_000):
        acknowledged.record_batch(pid, 0, T, 0, 0, pid)
        if pid % 50 == 0:
            assert acknowledged.record_batch(10**6, 0, T, 0, 0, 5) is (pid > 0)
        assert len(acknowledged) <= 200
    assert acknowledged.record_batch(9_900, 0, T, 0, 0, 9_900) is True
    assert acknowledged.record_batch(0, 0, T, 0, 0, 0) is False


batches = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 12), st.integers(0, 3)), max_size=120)


@given(batches)
def test_agrees_with_a_model_that_remembers_the_last_five_of_each(batches: list[tuple[int, int, int, int]]) -> None:
    acknowledged, model = Acknowledged(), dict[tuple[int, int], list[tuple[int, int]]]()
    for pid, index, seq, offset in batches:
        known = model.setdefault((pid, index), [])
        # a sequence that advances is new, whatever its offset
        is_duplicate = (seq, offset) in known[-BATCHES:] and seq <= known[-1][0]
        assert acknowledged.record_batch(pid, 0, T, index, seq, offset) is is_duplicate
        if not is_duplicate:
            known.append((seq, offset))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=200), st.integers(1, 10))
def test_as_many_producers_as_promised_are_remembered(uses: list[tuple[int, int]], generation: int) -> None:
    acknowledged, order = Acknowledged(generation), list[int]()
    for pid, _ in uses:
        duplicate = acknowledged.record_batch(pid, 0, T, 0, 0, 0)
        recent = list(dict.fromkeys(reversed(order)))[:generation]
        assert duplicate or pid not in recent
        assert pid in order or not duplicate
        order.append(pid)
        assert len(acknowledged) <= 2 * generation


def test_offsets_fit_64_bits() -> None:
    assert array("q").itemsize == 8
    acknowledged = Acknowledged()
    acknowledged.record_batch(2**63 - 1, 0, T, 0, 0, 2**63 - 1)
    assert acknowledged.record_batch(2**63 - 1, 0, T, 0, 0, 2**63 - 1) is True


# --- whole requests ---------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    pid: int
    epoch: int
    topic: bytes
    partition: int
    seq: int


def seen_of(acknowledged: Any, parts: list[Part], offsets: list[int]) -> list[int]:
    topics, numbers = list[tuple[bytes, int, int]](), array("q")
    for place, part in enumerate(parts):
        if topics and topics[-1][0] == part.topic:
            topics[-1] = (part.topic, topics[-1][1], place + 1)
        else:
            topics.append((part.topic, place, place + 1))
        numbers.extend((part.partition, 100, 1, part.pid, part.epoch, part.seq, 0))
    found: list[int] = acknowledged.record_batches(topics, numbers, array("q", offsets))
    return found


parts = st.builds(
    Part, st.integers(-1, 2), st.integers(0, 1), st.sampled_from([b"a", b"b"]), st.integers(0, 3), st.integers(0, 9)
)
requests = st.lists(st.lists(st.tuples(parts, st.integers(0, 3)), max_size=12), max_size=12)


@given(requests, st.integers(1, 20))
def test_a_request_is_the_same_as_its_partitions_one_by_one(
    requests: list[list[tuple[Part, int]]], generation: int
) -> None:
    together, single = Acknowledged(generation), duplicates.AcknowledgedBatches(generation)
    for request in requests:
        found = seen_of(together, [part for part, _ in request], [offset for _, offset in request])
        expected = [single.record_batch(*part, offset) for part, offset in request]
        assert found == [place for place, seen in enumerate(expected) if seen]
        assert len(together) == len(single)


def test_a_wide_request_outgrows_the_memory_that_is_there() -> None:
    acknowledged = Acknowledged()
    for seq in range(2 * BATCHES):
        wide = [Part(7, 0, T, index, seq) for index in range(1000)]
        assert seen_of(acknowledged, wide, [seq] * 1000) == []
        assert seen_of(acknowledged, wide, [seq] * 1000) == list(range(1000))
    assert len(acknowledged) == 1000
