# The fence by cases from real clients, and against a model that keeps every rejection forever.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.idempotence import fence as fence_module
from policies.idempotence.fence import EXPIRY_S, ProducerFence, is_later_sequence

LAST = 2**31 - 1
T = b"clicks"


def test_a_fresh_producer_with_five_batches_in_flight_stays_in_order() -> None:
    """The Java case: sequence 0 is rejected, the broker would accept 1 and never 0 again."""
    fence = ProducerFence()
    fence.record_rejection(7, 0, T, 0, 0, 0.0)
    assert [fence.blocks_batch(7, 0, T, 0, seq, 0.1) for seq in (1, 2, 3, 4)] == [True] * 4
    # when 0 comes again and there is room
    assert fence.blocks_batch(7, 0, T, 0, 0, 1.0) is False
    fence.record_admission(7, 0, T, 0)
    # then the others follow
    assert [fence.blocks_batch(7, 0, T, 0, seq, 1.0) for seq in (1, 2, 3, 4)] == [False] * 4
    assert not fence.entries


def test_the_base_seen_again_prolongs_the_fence() -> None:
    fence = ProducerFence()
    fence.record_rejection(7, 0, T, 0, 10, 0.0)
    fence.record_rejection(7, 0, T, 0, 10, 50.0)
    assert fence.blocks_batch(7, 0, T, 0, 11, EXPIRY_S) is True
    assert fence.blocks_batch(7, 0, T, 0, 11, 50.0 + EXPIRY_S) is False
    assert not fence.entries


@pytest.mark.parametrize("other", [(8, 0, T, 0), (7, 1, T, 0), (7, 0, b"views", 0), (7, 0, T, 1)])
def test_another_producer_epoch_topic_or_partition_is_not_behind_it(other: tuple[int, int, bytes, int]) -> None:
    """A producer that gives a batch up comes back with a new epoch and sequence 0."""
    fence = ProducerFence()
    fence.record_rejection(7, 0, T, 0, 10, 0.0)
    assert fence.blocks_batch(*other, 11, 0.0) is False


def test_sequences_wrap_after_the_largest_int32() -> None:
    fence = ProducerFence()
    fence.record_rejection(7, 0, T, 0, LAST, 0.0)
    assert fence.blocks_batch(7, 0, T, 0, 0, 0.0) is True
    assert fence.blocks_batch(7, 0, T, 0, LAST - 1, 0.0) is False
    fence.record_admission(7, 0, T, 0)
    fence.record_rejection(7, 0, T, 0, 3, 0.0)
    assert fence.blocks_batch(7, 0, T, 0, LAST, 0.0) is False


@given(st.integers(0, LAST), st.integers(0, 2**30 - 1))
def test_of_two_sequences_one_is_later_or_they_are_equal(base: int, ahead: int) -> None:
    later = (base + ahead) % 2**31
    assert is_later_sequence(later, base) is (ahead > 0)
    assert is_later_sequence(base, later) is False


def test_producers_without_an_id_are_never_fenced() -> None:
    fence = ProducerFence()
    fence.record_rejection(-1, -1, T, 0, -1, 0.0)
    assert not fence.entries


def test_the_fence_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_module, "MAX_ENTRIES", 3)
    fence = ProducerFence()
    for index in range(3):
        fence.record_rejection(7, 0, T, index, 5, float(index))
    fence.record_rejection(7, 0, T, 1, 5, 3.0)  # seen again: now the youngest, and no other had to go for it
    assert [key[3] for key in fence.entries] == [0, 2, 1]
    fence.record_rejection(7, 0, T, 3, 5, 4.0)
    assert [key[3] for key in fence.entries] == [2, 1, 3]


def test_expired_entries_go_with_the_next_rejection() -> None:
    fence = ProducerFence()
    for index in range(100):
        fence.record_rejection(7, 0, T, index, 5, 0.0)
    fence.record_rejection(7, 0, T, 100, 5, EXPIRY_S)
    assert [key[3] for key in fence.entries] == [100]


class Model:
    """Per key: the lowest rejected sequence not admitted since, and when it or an earlier one was seen last."""

    def __init__(self) -> None:
        self.history: list[tuple[str, tuple[int, int], int, float]] = []

    def base(self, key: tuple[int, int], now: float) -> int | None:
        base, seen = None, 0.0
        for what, other, seq, then in self.history:
            if other != key:
                continue
            if base is not None and then - seen >= EXPIRY_S:
                base = None
            if what == "admitted":
                base = None
            elif base is None or seq <= base:
                base, seen = seq, then
        return None if base is None or now - seen >= EXPIRY_S else base


steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 9), st.booleans(), st.floats(0, 40)))


@given(steps)
def test_agrees_with_the_model_for_any_order_of_batches(steps: list[tuple[int, int, int, bool, float]]) -> None:
    fence, model, now = ProducerFence(), Model(), 0.0
    for pid, index, seq, has_room, pause in steps:
        now += pause
        base = model.base((pid, index), now)
        blocked = fence.blocks_batch(pid, 0, T, index, seq, now)
        assert blocked is (base is not None and seq > base)
        if has_room and not blocked:
            fence.record_admission(pid, 0, T, index)
            model.history.append(("admitted", (pid, index), seq, now))
        else:
            fence.record_rejection(pid, 0, T, index, seq, now)
            model.history.append(("rejected", (pid, index), seq, now))


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 5), st.integers(0, LAST))
def test_a_producer_with_batches_in_flight_gets_them_in_order_without_a_gap(
    room: list[bool], in_flight: int, first: int
) -> None:
    """Batches of one record, the client's retries in order: the admitted batches never have a gap."""
    fence, waiting, admitted = ProducerFence(), list(range(in_flight)), []
    for turn, has_room in enumerate(room):
        for number in list(waiting):
            seq = (first + number) % 2**31
            if fence.blocks_batch(7, 0, T, 0, seq, turn / 10) or not has_room:
                fence.record_rejection(7, 0, T, 0, seq, turn / 10)
            else:
                fence.record_admission(7, 0, T, 0)
                waiting.remove(number)
                admitted.append(number)
            has_room = not has_room  # the quota changes its mind between any two batches
        waiting = sorted(waiting)
        waiting += range(max([*waiting, *admitted]) + 1, max([*waiting, *admitted]) + 1 + in_flight - len(waiting))
    assert admitted == list(range(len(admitted)))


def test_an_abandoned_batch_leaves_the_connection_free_again_after_it_expired() -> None:
    """Else the connection would be on the slow way for ever: no request asks about that key any more."""
    fence = ProducerFence()
    fence.record_rejection(7, 0, T, 0, 10, 0.0)
    assert fence.blocks_batch(7, 1, T, 0, 0, EXPIRY_S - 1) is False  # it goes on with a new epoch
    assert fence.entries
    assert fence.blocks_batch(7, 1, T, 0, 1, EXPIRY_S) is False
    assert not fence.entries


class Producer:
    """Up to five batches in flight; after a reconnect it sends all that is not acknowledged again, in order."""

    def __init__(self, first: int) -> None:
        self.unacknowledged = [(first + i) % 2**31 for i in range(5)]

    def send_all(self, fence: ProducerFence, rooms: list[bool], log: list[int], now: float) -> None:
        for seq, room in zip(list(self.unacknowledged), rooms, strict=False):
            if fence.blocks_batch(7, 0, T, 0, seq, now) or not room:
                fence.record_rejection(7, 0, T, 0, seq, now)
            else:
                fence.record_admission(7, 0, T, 0)
                log.append(seq)
                self.unacknowledged.remove(seq)


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=12), st.integers(0, LAST))
def test_a_client_that_reconnects_to_another_worker_or_gateway_stays_in_order(
    connections: list[list[bool]], first: int
) -> None:
    """The new connection's fence is empty, and needs nothing of the old one: it sees the oldest batch first.

    The broker that admits it is the same, whichever gateway is between.
    """
    producer, log = Producer(first), list[int]()
    for rooms in connections:
        producer.send_all(ProducerFence(), rooms, log, 0.0)
    producer.send_all(ProducerFence(), [True] * 5, log, 0.0)
    assert log == [(first + i) % 2**31 for i in range(5)]


def test_a_fence_that_outlived_its_connection_would_reject_what_is_in_order() -> None:
    """The reason that none is shared: the batch that it waits for was admitted elsewhere and does not come again."""
    old, new = ProducerFence(), ProducerFence()
    old.record_rejection(7, 0, T, 0, 0, 0.0)
    assert new.blocks_batch(7, 0, T, 0, 0, 1.0) is False  # admitted on the new connection
    assert new.blocks_batch(7, 0, T, 0, 1, 1.0) is False
    assert old.blocks_batch(7, 0, T, 0, 1, 1.0) is True
