from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.idempotence.repeats import (
    MAX_BATCHES,
    MAX_COMPARED,
    NO_EPOCH,
    RETENTION_S,
    BatchId,
    BatchOwner,
    RejectedBatches,
    sends_same_bytes,
)
from tests.effort import lines_run

T = b"clicks"
A: BatchId = (0, 10, 500, 5)  # epoch, sequence, bytes, messages
PLAIN: BatchOwner = ("User:ANONYMOUS", "app")
P: BatchId = (NO_EPOCH, 0xDEADBEEF, 500, 5)


def rejected(*batches: BatchId, owner: BatchOwner = 7, now: float = 0.0, max_batches: int = 1000) -> RejectedBatches:
    made = RejectedBatches(max_batches)
    for batch in batches:
        made.record_rejection(owner, T, 0, batch, now)
    return made


# --- a rejection is matched once, by the next attempt -----------------------------------------------------------------


@pytest.mark.parametrize(("owner", "batch"), [(7, A), (PLAIN, P)])
def test_the_next_attempt_at_a_rejected_batch_is_a_repeat_and_the_one_after_it_is_not(
    owner: BatchOwner, batch: BatchId
) -> None:
    memory = rejected(batch, owner=owner)
    assert memory.may_match
    assert memory.match_retry(owner, T, 0, batch) == 500
    assert memory.match_retry(owner, T, 0, batch) == 0
    assert not memory.may_match
    assert len(memory) == 0


def test_a_batch_that_is_rejected_again_and_again_is_outstanding_once() -> None:
    memory = rejected(A)
    for now in range(100):
        assert memory.match_retry(7, T, 0, A) == 500
        memory.record_rejection(7, T, 0, A, now)
    assert len(memory) == 1


@pytest.mark.parametrize(
    ("owner", "topic", "index", "batch"),
    [
        (8, T, 0, A),
        (7, b"views", 0, A),
        (7, T, 1, A),
        (7, T, 0, (0, 15, 500, 5)),  # the next one of the same producer
        (PLAIN, T, 0, P),
    ],
)
def test_a_batch_of_another_producer_or_partition_or_of_a_later_sequence_is_new(
    owner: BatchOwner, topic: bytes, index: int, batch: BatchId
) -> None:
    assert rejected(A).match_retry(owner, topic, index, batch) == 0


def test_another_client_name_is_another_client_where_there_is_no_producer_id() -> None:
    assert rejected(P, owner=PLAIN).match_retry(("User:ANONYMOUS", "app2"), T, 0, P) == 0


def test_the_question_for_outstanding_batches_is_for_one_partition() -> None:
    memory = rejected(P, owner=PLAIN)
    assert memory.has_rejected(PLAIN, T, 0)
    assert not memory.has_rejected(PLAIN, T, 1)
    assert not memory.has_rejected(("User:ANONYMOUS", "app2"), T, 0)


# --- what can't be told -----------------------------------------------------------------------------------------------


def test_the_same_sequence_with_other_records_can_not_be_told() -> None:
    """KafkaJS makes the request anew when it tries again; a client that gives up may use the sequence for another."""
    assert rejected(A).match_retry(7, T, 0, (0, 10, 499, 5)) is None


def test_the_start_of_a_new_epoch_may_be_what_was_rejected_in_the_old_one() -> None:
    """KIP-360: it starts at sequence 0 with what is left, in order, so behind as many messages all is new."""
    memory = rejected(A, (0, 15, 300, 3))
    assert memory.match_retry(7, T, 0, (1, 0, 900, 8)) is None
    assert memory.match_retry(7, T, 0, (1, 7, 100, 1)) is None
    assert memory.match_retry(7, T, 0, (1, 8, 100, 1)) == 0
    assert memory.match_retry(7, T, 1, (1, 0, 100, 1)) == 0
    memory.record_rejection(7, T, 0, (1, 8, 100, 1), 1.0)  # one of this epoch says nothing about its others
    assert memory.match_retry(7, T, 0, (1, 9, 100, 1)) == 0
    assert memory.match_retry(7, T, 0, (1, 8, 100, 1)) == 100


def test_clients_that_put_records_into_new_batches_can_not_be_followed() -> None:
    memory = rejected(P, owner=PLAIN)
    other = (NO_EPOCH, 1, 800, 8)
    assert memory.match_retry(PLAIN, T, 0, other, same_bytes=False) is None
    assert memory.match_retry(PLAIN, T, 1, other, same_bytes=False) == 0
    assert memory.match_retry(PLAIN, T, 0, other, same_bytes=True) == 0
    assert (
        memory.match_retry(PLAIN, T, 0, P, same_bytes=False) == 500
    )  # the same bytes are the same, whoever sends them
    assert memory.match_retry(PLAIN, T, 0, other, same_bytes=False) == 0  # nothing is outstanding any more


@pytest.mark.parametrize(
    ("software", "same"),
    [*((name, True) for name in ("apache-kafka-java", "kafka-python", "kgo")), ("librdkafka", False), ("", False)],
)
def test_which_clients_send_the_same_bytes_again(software: str, same: bool) -> None:
    assert sends_same_bytes(software) is same


def test_a_producer_that_leaves_more_behind_than_any_client_does_is_not_looked_at_batch_by_batch() -> None:
    memory = rejected(*((0, seq, 100, 1) for seq in range(MAX_COMPARED + 1)))
    assert memory.match_retry(7, T, 0, (0, 10**6, 100, 1)) is None
    assert memory.match_retry(7, T, 0, (0, 5, 100, 1)) == 100


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_batch_is_known_for_ten_minutes_after_its_last_rejection() -> None:
    memory = rejected(A)
    memory.expire_batches(RETENTION_S - 0.1)
    assert memory.match_retry(7, T, 0, A) == 500
    memory.record_rejection(7, T, 0, A, 100.0)
    memory.expire_batches(100.0 + RETENTION_S)
    assert not memory.may_match
    assert memory.match_retry(7, T, 0, A) == 0


def test_a_batch_that_is_not_sent_again_goes_though_others_are_rejected_at_the_same_place() -> None:
    memory = rejected(A)
    memory.record_rejection(7, T, 0, (0, 15, 100, 1), RETENTION_S - 1)
    assert len(memory) == 2
    memory.record_rejection(7, T, 0, (0, 16, 100, 1), RETENTION_S)
    assert len(memory) == 2
    assert memory.match_retry(7, T, 0, A) == 0


def _of_many_producers(batches: int) -> Callable[[], None]:
    memory = RejectedBatches()
    for pid in range(batches):
        memory.record_rejection(pid, T, 0, A, 0.0)

    def go() -> None:
        memory.expire_batches(RETENTION_S)
        assert len(memory) == 0

    return go


def _of_one_producer(batches: int) -> Callable[[], None]:
    memory = RejectedBatches()
    for sequence in range(batches - 1):
        memory.record_rejection(7, T, 0, (0, sequence, 100, 1), 0.0)

    def go() -> None:
        memory.record_rejection(7, T, 0, A, RETENTION_S)
        assert len(memory) == 1

    return go


@pytest.mark.parametrize("prepare", [_of_many_producers, _of_one_producer])
def test_much_that_goes_at_once_stops_no_client_for_long(prepare: Callable[[int], Callable[[], None]]) -> None:
    assert lines_run(prepare(MAX_BATCHES)) < 20 * MAX_BATCHES  # where each looks past all before it, 10⁹


def test_beyond_its_bound_it_can_not_tell_for_as_long_as_it_would_have_known() -> None:
    memory = RejectedBatches(max_batches=3)
    for pid in range(4):
        memory.record_rejection(pid, T, 0, A, float(pid))
    assert len(memory) <= 3
    assert memory.is_blind
    assert memory.match_retry(0, T, 0, A) is None  # forgotten
    assert memory.match_retry(99, T, 0, A) is None  # nobody knows
    assert memory.match_retry(3, T, 0, A) == 500
    memory.expire_batches(3.0 + RETENTION_S - 0.1)
    assert memory.may_match
    memory.expire_batches(3.0 + RETENTION_S)
    assert not memory.is_blind
    assert not memory.may_match
    assert memory.match_retry(99, T, 0, A) == 0


# --- against an oracle ------------------------------------------------------------------------------------------------

events = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 1), st.integers(0, 7), st.sampled_from(["rejected", "rejected", "other"])
    ),
    max_size=200,
)


def size_of(pid: int, seq: int) -> int:
    return 100 + 7 * seq + pid


@given(events)
def test_rejected_less_repeats_is_what_was_rejected_at_its_last_attempt(
    events: list[tuple[int, int, int, str]],
) -> None:
    memory, last = RejectedBatches(), dict[tuple[int, int, int], str]()
    refused = repeats = 0
    for now, (pid, index, seq, outcome) in enumerate(events):
        batch = (0, seq, size_of(pid, seq), 1)
        said = memory.match_retry(pid, T, index, batch) if memory.may_match else 0
        assert said is not None
        repeats += said
        if outcome == "rejected":
            refused += batch[2]
            memory.record_rejection(pid, T, index, batch, now)
        last[pid, index, seq] = outcome
    dropped = [(pid, seq) for (pid, _, seq), outcome in last.items() if outcome == "rejected"]
    assert refused - repeats == sum(size_of(pid, seq) for pid, seq in dropped)
    assert len(memory) == len(dropped)
    assert memory.may_match is bool(dropped)


@given(events, st.integers(1, 5))
def test_a_small_memory_gives_bounds_that_hold(events: list[tuple[int, int, int, str]], max_batches: int) -> None:
    memory, last = RejectedBatches(max_batches), dict[tuple[int, int, int], str]()
    refused = repeats = unknown = 0
    for now, (pid, index, seq, outcome) in enumerate(events):
        batch = (0, seq, size_of(pid, seq), 1)
        said = memory.match_retry(pid, T, index, batch) if memory.may_match else 0
        if said is None:
            unknown += batch[2]
        else:
            repeats += said
        if outcome == "rejected":
            refused += batch[2]
            memory.record_rejection(pid, T, index, batch, now)
        last[pid, index, seq] = outcome
        assert len(memory) <= max_batches
    dropped = sum(size_of(pid, seq) for (pid, _, seq), outcome in last.items() if outcome == "rejected")
    assert refused - repeats - unknown <= dropped <= refused - repeats
