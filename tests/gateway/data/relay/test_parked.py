# How old the oldest request of a held connection may be, by how much had arrived when.

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.data.relay.parked import MAX_SAMPLES, SAMPLE_S, ParkedInput
from tests.gateway.data.play import account

RATE = 100  # bytes handled in a second


def held(parked: ParkedInput, size: int) -> None:
    if parked.input_slice is not None:
        parked.pop_input()
    if size:
        parked.park_input(bytearray(size), 0, size, None)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300), st.integers(0, 500), st.integers(0, 1000))
def test_the_age_is_never_less_than_that_of_the_oldest_byte_and_hardly_more(
    arrivals: list[int], most_held: int, at_first: int
) -> None:
    """Bytes arrive each second and are handled at a steady rate; a part of them is read ahead, the rest is unread."""
    parked = ParkedInput(account())
    arrived_at = [0.0] * at_first  # of each byte that has not been handled
    drained_at = now = 0.0
    for count in arrivals:
        before = min(len(arrived_at), most_held)
        held(parked, before)
        now += 1.0
        arrived_at += [now] * count
        left = max(0, before - RATE)
        del arrived_at[: before - left]
        held(parked, left)
        drained_at = parked.oldest_since(before, len(arrived_at) - left, drained_at, now)
        if left:
            assert drained_at <= arrived_at[0]
    if left and len(arrivals) <= MAX_SAMPLES:
        assert drained_at >= min(arrived_at[0], now) - 1.0 - SAMPLE_S - (most_held == 0)


def test_a_steady_queue_is_as_old_as_its_oldest_byte_and_not_as_its_beginning() -> None:
    parked = ParkedInput(account())
    drained_at = 0.0
    for now in range(1, 200):  # 40 s of it are always there: as much comes as is handled
        held(parked, 1000)
        held(parked, 1000 - RATE)
        drained_at = parked.oldest_since(1000, 40 * RATE - 1000 + RATE, drained_at, float(now))
        assert now - drained_at <= 42.0
    assert now - drained_at >= 39.0
