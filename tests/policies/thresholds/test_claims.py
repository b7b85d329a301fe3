# A total that delays, kept by several gateways together over several topics: all of it is used where it is wanted, no
# more than that passes, and topics with thresholds of their own get them.

from __future__ import annotations

import random
from itertools import cycle

import pytest

from policies.meters.meter import TICK_S
from policies.thresholds.pacing import PACE_S
from policies.verdict import Verdict
from tests.effort import lines_run
from tests.examples import matrix
from tests.policies.asking import Request
from tests.policies.thresholds.fleet_play import KEY, Fleet, Worker
from tests.policies.thresholds.pacing_play import Connection

TOTAL = 60_000.0
NAMES = ("new", "paid", "sent")
BEGINNING_S = 20.0  # until each topic has a rate that all have heard of
END_S = 100.0


def many(topic: str, connections: int = 4, size: int = 2000, start: float = 0.0) -> list[Connection]:
    return [Connection(topic, size, start=start + number * 0.001) for number in range(connections)]


def seconds(fleet: Fleet, start: float, end: float) -> list[float]:
    """Of the total, what got in each second."""
    return [fleet.share(at, at + 1) for at in range(int(start), int(end))]


def send(worker: Worker, topic: bytes, size: int, now: float) -> Verdict | None:
    request = Request(worker.engine, topic, size)
    verdict = request.ask(now)
    request.admit(now)
    return verdict


def assert_exact(fleet: Fleet, start: float = BEGINNING_S, end: float = END_S) -> None:
    """3 % over 30 s, and no more than 110 % and a request in a second."""
    for at in range(int(start), int(end) - 29, 5):
        assert fleet.share(at, at + 30) == pytest.approx(1.0, abs=0.03), at
    assert max(seconds(fleet, start, end)) <= 1.1 + max(each.size for each in fleet.connections) / fleet.total


@pytest.mark.parametrize(("workers", "seed"), matrix([1, 2], range(6)))
def test_topics_spread_unevenly_over_gateways_get_the_total_together(seed: int, workers: int) -> None:
    chance = random.Random(seed)
    producers: list[list[list[Connection]]] = [[[] for _ in range(workers)] for _ in range(chance.randint(2, 4))]
    for gateway in producers:
        for name in chance.sample(NAMES, chance.randint(1, 3)):
            chance.choice(gateway).extend(many(name, chance.randint(1, 6), chance.choice((800, 2000, 3000))))
    fleet = Fleet(TOTAL, {}, NAMES, producers, seed)
    fleet.run(END_S)
    assert_exact(fleet)


def test_the_workers_of_a_single_gateway_keep_it_too() -> None:
    fleet = Fleet(TOTAL, {}, NAMES, [[many("new") + many("paid", 1), many("paid"), many("sent", 6)]])
    fleet.run(END_S)
    assert_exact(fleet)


@pytest.mark.parametrize("pause_s", [0.02, 0.05, 0.1])
def test_a_topic_whose_client_waits_shortly_and_then_pauses_wants_more_all_the_same(pause_s: float) -> None:
    """It waits for less than it pauses, so most looks find no debt. The portion of who came first follows one-minute
    rates, and the other's is half of the threshold at once: for a while both are more than the threshold together.
    """
    size = round(1.4 * TOTAL * pause_s)
    first, later = Connection("new", size, pause_s=pause_s), Connection("new", size // 2, start=20.0, pause_s=pause_s)
    fleet = Fleet(TOTAL, {}, NAMES[:1], [[[first], [later]]])
    fleet.run(END_S)
    assert_exact(fleet, start=24.0)


def test_who_was_content_alone_makes_room_for_who_comes_later() -> None:
    """Neither waits at first: the one has its topic's whole threshold, and what others are given isn't its own."""
    calm = [Connection("new", round(0.019 * TOTAL), start=0.025 * number, pause_s=0.1) for number in range(4)]
    fleet = Fleet(TOTAL, {}, NAMES[:1], [[calm], [many("new", start=20.0)]])
    fleet.run(END_S)
    assert_exact(fleet, start=25.0)


@pytest.mark.parametrize("connections", [2, 20])
def test_each_topic_gets_its_threshold_wherever_it_is_produced(connections: int) -> None:
    thresholds = {"new": 0.9 * TOTAL, "paid": 0.1 * TOTAL}
    fleet = Fleet(TOTAL, thresholds, NAMES, [[many("new")], [many("paid", connections)]])
    fleet.run(END_S)
    assert_exact(fleet)
    for name, threshold in thresholds.items():
        assert fleet.rate(name, 30.0, END_S) == pytest.approx(threshold, rel=0.03)


def test_a_threshold_of_which_each_gateway_has_some_is_kept_over_all() -> None:
    thresholds = {"new": 0.5 * TOTAL, "paid": 0.3 * TOTAL, "sent": 0.2 * TOTAL}
    busy = [[many("new", 6) + many("paid", 1)], [many("new", 1) + many("sent")], [many("paid", 5) + many("sent", 1)]]
    fleet = Fleet(TOTAL, thresholds, NAMES, busy)
    fleet.run(140.0)
    assert_exact(fleet, end=140.0)
    for name, threshold in thresholds.items():
        assert fleet.rate(name, 80.0, 140.0) == pytest.approx(threshold, rel=0.05)


def test_what_a_topic_leaves_is_shared_by_the_gateways_that_want_more() -> None:
    """Half of what `paid` doesn't use is for `new`, and half for a topic without any threshold left."""
    thresholds = {"new": 0.6 * TOTAL, "paid": 0.4 * TOTAL}
    fleet = Fleet(TOTAL, thresholds, NAMES, [[many("new")], [many("sent")], []])
    fleet.run(END_S)
    assert_exact(fleet)
    assert fleet.rate("new", 30.0, END_S) == pytest.approx(0.8 * TOTAL, rel=0.03)
    assert fleet.rate("sent", 30.0, END_S) == pytest.approx(0.2 * TOTAL, rel=0.05)


def test_a_topic_within_its_threshold_never_waits_at_any_gateway() -> None:
    thresholds = {"new": 0.7 * TOTAL, "paid": 0.3 * TOTAL}
    fleet = Fleet(TOTAL, thresholds, NAMES, [[many("new", 8)], [many("new", 8)]])
    told = []
    for worker, size in zip(fleet.workers, (1000, 300), strict=True):  # 13 kB/s of 18

        def send_calmly(now: float, worker: Worker = worker, size: int = size) -> float:
            told.append(send(worker, b"paid", size, now))
            return now + 0.1

        worker.loop.at(0.0, send_calmly)
    fleet.run(END_S)
    late = told[len(told) // 4 :]
    assert sum(verdict is not None for verdict in late) <= 0.01 * len(late)


@pytest.mark.parametrize(("gateways", "workers"), [(1, 2), (2, 1), (3, 1)])
def test_a_topic_within_its_threshold_that_moves_has_all_of_it_two_ticks_later(gateways: int, workers: int) -> None:
    before, after = (Connection("paid", 600, 1, start=at, pause_s=0.02) for at in (0.0, 60.0))  # 27 kB/s
    before.stop = 60.0
    producers: list[list[list[Connection]]] = [[[] for _ in range(workers)] for _ in range(gateways)]
    producers[0][0] += [*many("new", 8), before]
    producers[-1][-1].append(after)
    fleet = Fleet(TOTAL, {"new": 0.5 * TOTAL, "paid": 0.5 * TOTAL}, NAMES, producers)
    fleet.run(END_S)
    assert fleet.rate("paid", 60.0 + 2 * TICK_S + 3.0, END_S) == pytest.approx(fleet.rate("paid", 40.0, 60.0), rel=0.03)
    assert fleet.share(60.0, END_S) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("pauses", [[0.1, 0.1, 0.1, 0.1, 0.6], [0.1, 0.1, 0.1, 1.1], [0.1, 0.5]])
def test_what_comes_in_bursts_and_never_waits_leaves_the_rest_to_others_no_more_and_no_less(
    pauses: list[float],
) -> None:
    taken = 0.3 * TOTAL
    fleet = Fleet(TOTAL, {}, NAMES, [[many("new", 8)], [[]]])
    worker, turn = fleet.workers[1], cycle(pauses)

    def send_calmly(now: float) -> float:
        send(worker, b"new", round(taken * sum(pauses) / len(pauses)), now)
        return now + next(turn)

    worker.loop.at(0.0, send_calmly)
    fleet.run(END_S)
    for at in range(40, int(END_S) - 29, 5):
        assert fleet.share(at, at + 30) + taken / TOTAL == pytest.approx(1.0, abs=0.03), at


def test_topics_that_come_and_go_leave_no_more_than_two_cycles_above_the_total() -> None:
    first = many("new", 6)
    for each in first:
        each.stop = 60.0
    fleet = Fleet(TOTAL, {}, NAMES, [[first], [many("paid", 3) + many("sent", 1)], [many("new", 2, start=60.0)]])
    fleet.run(120.0)
    assert_exact(fleet, start=64.0, end=120.0)
    assert sum(fleet.share(at, at + 1) for at in range(60, 64)) <= 4 * 1.15


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_a_total_that_changes_is_kept_after_two_cycles(times: float) -> None:
    fleet = Fleet(TOTAL, {}, NAMES, [[many("new", 6)], [many("paid", 3) + many("sent", 1)]])
    fleet.run(60.0)
    fleet.set_thresholds(times * TOTAL, {})
    fleet.run(120.0)
    assert_exact(fleet, start=65.0, end=120.0)


def test_topics_whose_thresholds_are_more_than_the_total_get_them_as_at_one_gateway() -> None:
    """Partitions have moved: thresholds stay."""
    thresholds = {"new": 0.8 * TOTAL, "paid": 0.6 * TOTAL}
    fleet = Fleet(TOTAL, thresholds, NAMES, [[many("new")], [many("paid")]])
    fleet.run(END_S)
    for name, threshold in thresholds.items():
        assert fleet.rate(name, 30.0, END_S) == pytest.approx(threshold, rel=0.03)


def test_what_topics_and_the_total_say_of_themselves_is_what_is_in_force() -> None:
    fleet = Fleet(TOTAL, {}, NAMES, [[many("new", 6)], [many("paid", 3) + many("sent", 1)], [many("new", 1)]])
    fleet.run(60.0)
    parts = []
    for gateway in fleet.gateways:
        (worker,) = gateway.workers
        broker = worker.broker.limits.read_rate(fleet.now)
        assert broker.bucket_use is not None
        topics = [each.bucket_use.limit or 0.0 for each in broker.topics if each.bucket_use is not None]
        assert sum(topics) <= 1.1 * (broker.bucket_use.limit or 0.0)
        assert broker.bucket_use.limit == pytest.approx(gateway.allocator.grants[KEY].rate)
        assert gateway.rate(40.0, 60.0) == pytest.approx(broker.bucket_use.limit, rel=0.1)
        parts.append(broker.bucket_use.limit)
    assert sum(filter(None, parts)) == pytest.approx(TOTAL, rel=0.1)


def test_ten_thousand_quiet_topics_cost_next_to_nothing_in_a_fleet_either() -> None:
    fleet = Fleet(TOTAL, {}, NAMES, [[many("new")], []])
    fleet.run(10.0)
    engine, broker = fleet.workers[0].engine, fleet.workers[0].broker
    for number in range(10_000):
        broker.add_topic(b"t%d" % number)
    for step in range(1, 41):  # a look at claims each second, and at all topics while the total is used up
        assert lines_run(engine.pace_limits, 10.0 + step * PACE_S) < 65_000
