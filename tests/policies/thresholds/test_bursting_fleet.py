# Thresholds that reject with a burst, kept by several workers and gateways: together they let pass what one worker
# would, and who begins elsewhere is not worse off for that.

from __future__ import annotations

import random
from functools import cache

import pytest

from policies.meters.meter import TICK_S
from tests.examples import matrix
from tests.policies.thresholds.fleet_play import Fleet
from tests.policies.thresholds.pacing_play import TURN_S, Connection
from tests.policies.thresholds.test_claims import NAMES, TOTAL

BURST_S = 5.0
START_S = 61.0  # each broker is known, and was quiet for a minute
LATER_S = 100.0
END_S = 140.0
CYCLES_S = 2.0

Producers = list[list[list[Connection]]]  # by gateway and worker


def most_beyond(fleet: Fleet) -> float:
    """Seconds of the total that any time had beyond it, at most."""
    most = beyond = 0.0
    for at in range(int(START_S), int(END_S)):
        beyond = max(0.0, beyond + fleet.share(at, at + 1) - 1.0)
        most = max(most, beyond)
    return most


def bringing(topic: str, rate: float, start: float = START_S, stop: float = END_S, size: int = 600) -> Connection:
    """Brings that much, of the total, unless it is rejected."""
    made = Connection(topic, size, 1, start=start, pause_s=size / (rate * TOTAL) - TURN_S)
    made.stop = stop
    return made


def play(producers: Producers, **thresholds: float) -> Fleet:
    """`thresholds`: of the total."""
    shares = {name: share * TOTAL for name, share in thresholds.items()}
    fleet = Fleet(TOTAL, shares, NAMES, producers, burst_s=BURST_S)
    fleet.run(END_S)
    return fleet


def nobody(gateways: int, workers: int) -> Producers:
    return [[[] for _ in range(workers)] for _ in range(gateways)]


def spread(seed: int, gateways: int, workers: int) -> Producers:
    """Producers of 1.2 to 4 times the total, unevenly over gateways and workers."""
    chance = random.Random(seed)
    producers = nobody(gateways, workers)
    count = chance.randint(2, 6)
    for _ in range(count):
        rate, start = chance.uniform(1.2, 4.0) / count, START_S + chance.choice((0, 0, 7, 31))
        chance.choice(chance.choice(producers)).append(bringing(chance.choice(NAMES), rate, start))
    return producers


def in_one_worker(producers: Producers) -> Producers:
    return [[[each for gateway in producers for worker in gateway for each in worker]]]


def elsewhere(gateways: int, workers: int, here: list[Connection], there: list[Connection]) -> Producers:
    """`there`: on the last worker of all; `here`: on the first."""
    producers = nobody(gateways, workers)
    producers[0][0].extend(here)
    producers[-1][-1].extend(there)
    return producers


@pytest.mark.parametrize(("seed", "gateways", "workers"), matrix(range(6), [1, 2, 3], [1, 2]))
def test_they_let_pass_what_one_worker_would(seed: int, gateways: int, workers: int) -> None:
    one = play(in_one_worker(spread(seed, gateways, workers)))
    fleet = play(spread(seed, gateways, workers))
    assert most_beyond(fleet) <= most_beyond(one) + 1.0
    assert fleet.share(START_S, END_S) == pytest.approx(one.share(START_S, END_S), rel=0.07)


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_that_are_all_flooded_at_once_let_pass_one_burst(workers: int) -> None:
    """And a request each, and what comes until one of them sees what the others took."""
    floods = [[[bringing("new", 3.0)] for _ in range(workers)]]
    assert most_beyond(play(floods, new=1.0)) <= BURST_S + 2.0


def test_a_flood_that_goes_from_worker_to_worker_finds_no_other_burst_there() -> None:
    """A worker that hasn't seen a topic yet doesn't take it for unused."""
    floods = [[[bringing("new", 3.0, START_S + 2 * at, START_S + 2 * at + 2)] for at in range(8)]]
    assert most_beyond(play(floods, new=1.0)) <= BURST_S + 1.0


@pytest.mark.parametrize("workers", [2, 4])
def test_the_workers_of_a_gateway_let_pass_the_same_as_one(workers: int) -> None:
    one, many = (play(made) for made in (in_one_worker(spread(1, 1, workers)), spread(1, 1, workers)))
    for at in range(int(START_S), int(END_S) - 10, 10):
        assert many.share(at, at + 10) == pytest.approx(one.share(at, at + 10), abs=0.1)


@pytest.mark.parametrize(("gateways", "workers"), [(1, 2), (1, 4), (2, 1), (3, 2)])
def test_a_topic_within_its_threshold_that_begins_elsewhere_is_never_rejected(gateways: int, workers: int) -> None:
    greedy, calm = bringing("new", 3.0), bringing("paid", 0.45, LATER_S)
    fleet = play(elsewhere(gateways, workers, [greedy], [calm]), new=0.5, paid=0.5)
    assert calm.rejections == []
    assert greedy.admitted(LATER_S + CYCLES_S, END_S) / (END_S - LATER_S - CYCLES_S) == pytest.approx(
        0.55 * TOTAL, rel=0.05
    ), "it gives way"
    assert fleet.share(LATER_S + 2 * CYCLES_S, END_S) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("workers", [2, 4])
def test_a_topic_within_its_threshold_may_move_to_another_worker(workers: int) -> None:
    before, after = bringing("paid", 0.45, stop=LATER_S), bringing("paid", 0.45, LATER_S)
    play(elsewhere(1, workers, [bringing("new", 3.0), before], [after]), new=0.5, paid=0.5)
    assert before.rejections == after.rejections == []


@pytest.mark.parametrize(("gateways", "workers"), [(2, 1), (2, 2), (3, 1)])
def test_a_topic_within_its_threshold_that_moves_to_another_gateway_has_all_of_it_two_ticks_later(
    gateways: int, workers: int
) -> None:
    before, after = bringing("paid", 0.45, stop=LATER_S), bringing("paid", 0.45, LATER_S)
    fleet = play(elsewhere(gateways, workers, [bringing("new", 3.0), before], [after]), new=0.5, paid=0.5)
    assert max(before.rejections, default=START_S) <= START_S + TICK_S, "until its rate is known"
    assert max(after.rejections, default=LATER_S) <= LATER_S + 2 * TICK_S + CYCLES_S
    assert fleet.share(LATER_S, END_S) == pytest.approx(1.0, abs=0.05)


@cache
def begun_later(gateways: int, workers: int) -> list[float]:
    """Bytes of who begins elsewhere on a topic that uses the total up: in the first two cycles, and then."""
    first, later = ([bringing("new", 0.75, at + 0.013 * n) for n in range(4)] for at in (START_S, LATER_S))
    fleet = play(elsewhere(gateways, workers, first, later), new=1.0)
    after = LATER_S + 2 * CYCLES_S
    assert fleet.share(after, END_S) == pytest.approx(1.0, abs=0.05)
    return [sum(each.admitted(*when) for each in later) for when in ((LATER_S, after), (after, END_S))]


@pytest.mark.parametrize(("gateways", "workers"), [(1, 2), (2, 1), (2, 2), (3, 1)])
def test_who_begins_elsewhere_on_a_topic_that_uses_the_total_up_has_its_part_in_two_cycles(
    gateways: int, workers: int
) -> None:
    """About what it would have in one worker, where who is rejected is chance."""
    got = begun_later(1, 1), begun_later(gateways, workers)
    assert [many >= 0.6 * one for one, many in zip(*got, strict=True)] == [True, True], got
