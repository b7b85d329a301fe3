# The recordQuota of the broker side quota (V1) as sessions have it: its sentences are in docs/seeds.md. Batches come by
# the wire, and whether one got into the log is what went upstream.

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from policies.meters.meter import TICK_S
from tests.gateway.data.play import Play, answer, request, size_of
from tests.variants import COMPILED, PURE, running

SIZE = size_of()
RATE = SIZE / TICK_S  # of one batch in the interval of a tick

# One request each, and what of it is clicks'. Those of one partition and of several pass by ways of their own
# (fast_path.pyx), and what has to be looked at by another (gate.py): acks=0 has.
ADMITTED = {
    "one partition": (request(1), SIZE, SIZE),
    "several partitions": (request(1, {"clicks": [0, 1, 2]}), 3 * SIZE, 3 * SIZE),
    "two topics": (request(1, {"clicks": [0], "views": [0]}), SIZE, 2 * SIZE),
    "acks=0": (request(1, acks=0), SIZE, SIZE),
}


@pytest.fixture(scope="module", params=[PURE, COMPILED], autouse=True)
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    with running(request.param):
        yield


def taken(play: Play, topic: str = "clicks", batches: int = 1) -> list[bool]:
    """Whether each of these batches got into the log; each is a request that the broker acknowledges."""
    got = []
    for _ in range(batches):
        upstream, _ = play.client(request(1, {topic: [0]}))
        got.append(bool(upstream))
        if upstream:
            play.broker(answer(1, {topic: {0: (0, 0)}}))
        play.session.hold.muted_until = 0.0  # what the client would send next is asked for at once
    return got


def tick(play: Play) -> None:
    play.now = play.engine.next_tick_at
    play.engine.apply_due_ticks(play.now)
    play.world.ledger.advance_epoch()


@pytest.mark.seed("V1.2")
def test_data_is_dropped_while_the_observed_rate_exceeds_the_total_and_taken_again_below_it() -> None:
    play = Play(total=10 * RATE, topics={"clicks": 10 * RATE})
    assert all(taken(play, batches=30))
    for _ in range(30):
        tick(play)
        observed = play.engine.broker_meters(1).total.rate
        assert taken(play, batches=3) == [observed <= 10 * RATE] * 3
    assert play.rows()["clicks", "accepted", ""][2] > 30  # it was taken again


@pytest.mark.seed("V1.12")
@pytest.mark.parametrize(("total", "topic"), list(itertools.product([9, 10, 11, None], [3, 4, 5])))
def test_a_batch_is_dropped_only_if_both_rates_exceed_their_thresholds(total: int | None, topic: int) -> None:
    """Rates of 10 and 4: strictly greater, on both sides of the &&."""
    play = Play(total=None if total is None else total * RATE, topics={"clicks": topic * RATE})
    taken(play, "clicks", 4)
    taken(play, "rest", 6)
    tick(play)
    assert taken(play) == [not (total is not None and total < 10 and topic < 4)]


@pytest.mark.seed("V1.13")
@pytest.mark.parametrize("shape", ADMITTED)
@pytest.mark.parametrize("total", [None, 1.0], ids=["no limit", "a limit that is not reached yet"])
def test_the_size_of_what_was_admitted_is_recorded_in_the_total_and_in_its_topic(
    shape: str, total: float | None
) -> None:
    frame, clicks, all_ = ADMITTED[shape]
    play = Play(total=total)
    for topic in ("clicks", "views"):
        play.engine.broker_meters(1).confirm_topic(topic.encode())
    for times in (1, 2):
        play.client(frame)
        meters = play.engine.broker_meters(1)
        assert (meters.topics[b"clicks"].uncounted, meters.total.uncounted) == (times * clicks, times * all_)
        assert meters.throttled.uncounted == 0


@pytest.mark.seed("V1.13", "V1.16")
@pytest.mark.parametrize("partitions", [[0], [0, 1, 2]])
def test_the_size_of_what_was_rejected_is_recorded_in_neither_but_in_the_throttled_rate(partitions: list[int]) -> None:
    play = Play(total=1.0).overload("clicks")
    assert play.client(request(1, {"clicks": partitions}))[0] == b""
    meters = play.engine.broker_meters(1)
    assert (meters.topics[b"clicks"].uncounted, meters.total.uncounted) == (0, 0)
    assert meters.throttled.uncounted == len(partitions) * SIZE
    tick(play)
    assert meters.throttled.rate > 0
    assert meters.errors.rate == 0
