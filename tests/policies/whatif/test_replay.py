# Recorded usage decided once more. The record comes from a play of workers and retrying clients at steps of 10 ms, so
# the truth is known: by the policy that was in force, and by others.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from policies.definitions.policy_values import PolicyKey
from policies.engine import OnExceed, PolicyEngine
from policies.whatif.replay import GIVEN_UP, WAITING, replay_usage
from policies.whatif.rows import OutcomeShift, ReplayRow, ReplayRules, WorkerLife
from policies.whatif.tick_phase import TickPhase
from tests.policies.whatif.replay_play import Client, Worker, phases_of, play

START = 1_763_600_040.0
MINUTE_MS = 60_000
TOPICS = {"clicks": 300_000.0, "orders": 200_000.0, "calm": 200_000.0}
IMPLICIT = ("logs", "misc")
TOTAL = 900_000.0
Sums = dict[tuple[int, str, str], float]


def limits(times: float = 1.0) -> ReplayRules:
    values = {PolicyKey.of_broker(): TOTAL * times} | {PolicyKey.of_topic(t): v * times for t, v in TOPICS.items()}
    return ReplayRules(values, topics={1: (*TOPICS, *IMPLICIT)})


def clients() -> list[Client]:
    return [
        Client("clicks", "web", 700_000),
        Client("clicks", "app", 400_000, size=50_000, burst_s=17),
        Client("orders", "shop", 500_000),
        Client("orders", "pos", 60_000, size=5000),
        Client("calm", "batch", 90_000),
        Client("logs", "agent", 300_000),
        Client("misc", "cron", 30_000, size=1000),
    ]


def worker(number: int = 0, times: float = 1.0, drift_s: float = 0.0) -> Worker:
    engine = PolicyEngine(START - 6.13 - 1.27 * number)
    rules = limits(times)
    engine.set_thresholds(TOTAL * times, {topic: limit * times for topic, limit in TOPICS.items()})
    engine.set_listed_topics(1, rules.topics[1])
    engine.broker_meters(1).start_at_zero()  # it ran for a while before anything was produced
    return Worker(engine, clients(), number, drift_s=drift_s)


def actual(rows: Iterable[ReplayRow]) -> Sums:
    sums: Sums = defaultdict(float)
    for row in rows:
        sums[row.start_ms // MINUTE_MS * MINUTE_MS, row.stream[1], row.outcome] += row.bytes
    return sums


def worst(rows: Iterable[ReplayRow], shifts: Iterable[OutcomeShift]) -> float:
    """The largest difference of any topic, outcome and minute, as a share of what really happened."""
    truth = actual(rows)
    changes: Sums = defaultdict(float)
    for shift in shifts:
        changes[shift.window_ms, shift.stream[1], shift.outcome] += shift.bytes
    return max(
        (abs(change) / truth[key] if truth[key] else 1.0 for key, change in changes.items() if change), default=0.0
    )


def by_topic(rows: Iterable[ReplayRow], shifts: Iterable[OutcomeShift] = ()) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        sums[row.stream[1], row.outcome] += row.bytes
        sums[row.stream[1], "repeats"] += row.repeats or 0
    for shift in shifts:
        sums[shift.stream[1], shift.outcome] += shift.bytes
        sums[shift.stream[1], "repeats"] += shift.repeats
    return sums


def test_the_policy_in_force_gives_back_what_happened() -> None:
    rows = play([worker()], START, 300)
    truth = actual(rows)
    assert min(sum(size for key, size in truth.items() if key[2] == kind) for kind in ("accepted", "rejected")) > 1e7
    assert any(row.repeats for row in rows if row.outcome == "rejected"), "some were rejected again and again"
    assert worst(rows, replay_usage(rows, limits(), phases_of(rows), window_ms=MINUTE_MS)) < 0.02


def test_policies_that_were_changed_on_the_way_give_back_what_happened() -> None:
    made = worker()
    play([made], START, 150)
    made.engine.set_thresholds(TOTAL * 0.7, {topic: limit * 0.7 for topic, limit in TOPICS.items()})
    rows = play([made], START + 150, 150)
    changed = replace(limits(), later=((round((START + 150) * 1000), limits(0.7).values),))
    assert worst(rows, replay_usage(rows, changed, phases_of(rows), window_ms=MINUTE_MS)) < 0.02
    assert worst(rows, replay_usage(rows, limits(), phases_of(rows), window_ms=MINUTE_MS)) > 0.1


def test_intervals_that_do_not_follow_the_ticks_leave_less_certainty() -> None:
    rows = play([worker(drift_s=0.003)], START, 300)
    shifts = list(replay_usage(rows, limits(), phases_of(rows), window_ms=MINUTE_MS))
    assert worst(rows, [shift for shift in shifts if shift.outcome == "accepted"]) < 0.02


def test_so_it_does_with_several_workers_that_tell_each_other_their_rates() -> None:
    rows = play([worker(0), worker(1), worker(2)], START, 240)
    assert worst(rows, replay_usage(rows, limits(), phases_of(rows), window_ms=MINUTE_MS)) < 0.02


def test_it_does_not_with_another_policy_nor_other_ticks() -> None:
    rows = play([worker()], START, 300)
    phases = phases_of(rows)
    assert worst(rows, replay_usage(rows, limits(0.9), phases, window_ms=MINUTE_MS)) > 0.1
    late = {life: phase._replace(at=(phase.at + 2.5) % 5) for life, phase in phases.items()}
    assert worst(rows, replay_usage(rows, limits(), late, window_ms=MINUTE_MS)) > 0.1


@pytest.mark.parametrize(("was", "would"), [(100.0, 1.0), (1.0, 0.5), (1.5, 1.0), (1.0, 1.5)])
def test_another_policy_gives_about_what_it_would_have_done(was: float, would: float) -> None:
    rows = play([worker(times=was)], START, 300)
    truth = by_topic(play([worker(times=would)], START, 300))
    found = by_topic(rows, replay_usage(rows, limits(would), phases_of(rows)))
    for topic in TOPICS:
        assert found[topic, "accepted"] == pytest.approx(truth[topic, "accepted"], rel=0.2), topic
        assert found[topic, "rejected"] == pytest.approx(truth[topic, "rejected"], rel=0.5, abs=1e5), topic
    assert found["calm", "rejected"] == 0, "never over its threshold"


def test_nothing_is_lost_nor_made_by_a_replay() -> None:
    rows = play([worker()], START, 120)
    offered = {topic: truth_of_first(rows, topic) for topic in TOPICS}
    for times in (0.3, 0.8, 50.0):
        found = by_topic(rows, replay_usage(rows, limits(times), phases_of(rows)))
        for topic, first in offered.items():
            outcomes = ("accepted", "rejected", WAITING, "dropped")
            left = sum(found[topic, outcome] for outcome in outcomes) - found[topic, "repeats"]
            assert left == pytest.approx(first, rel=1e-3), (topic, times)


def truth_of_first(rows: Iterable[ReplayRow], topic: str) -> float:
    return sum(row.bytes - (row.repeats or 0) for row in rows if row.stream[1] == topic)


def test_without_limits_everything_gets_in_once() -> None:
    rows = play([worker()], START, 120)
    found = by_topic(rows, replay_usage(rows, limits(50.0), {}))
    for topic in (*TOPICS, *IMPLICIT):
        assert found[topic, "rejected"] == 0
        assert found[topic, "repeats"] == 0
        assert found[topic, "accepted"] == pytest.approx(truth_of_first(rows, topic), rel=1e-3)


# --- by hand: single rows, one client ---------------------------------------------------------------------------------

LIFE = ("gw", "boot", 0)
WEB = (1, "clicks", "User:web", "web")
TIGHT = ReplayRules({PolicyKey.of_broker(): 1000.0, PolicyKey.of_topic("clicks"): 1000.0}, topics={1: ("clicks",)})
PHASE = {LIFE: TickPhase(START % 5)}


def row(
    second: int,
    outcome: str,
    size: int,
    repeats: int | None = 0,
    reason: str = "",
    stream: tuple = WEB,  # type: ignore[type-arg]
) -> ReplayRow:
    reason = reason or ("topic-threshold" if outcome == "rejected" else "")
    at = round(START * 1000) + 1000 * second
    return ReplayRow(
        LIFE, second, at, at + 1000, stream, outcome, reason, size, size // 10, max(1, size // 1000), 0, repeats
    )


BEFORE = row(-1, "accepted", 10)._replace(seq=0)  # its meters begin with the second behind this one


def changes(
    rows: list[ReplayRow], rules: ReplayRules, phases: Mapping[WorkerLife, TickPhase] = PHASE, **more: int
) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for shift in replay_usage(rows, rules, phases, **more):
        sums[" ".join(filter(None, (shift.outcome, shift.reason)))] += shift.bytes
        sums["repeats"] += shift.repeats
    return {name: size for name, size in sums.items() if size}


NO_LIMIT, NO_LIMIT_HERE = ReplayRules({}), ReplayRules({PolicyKey.of_broker(2): 1.0})


@pytest.mark.parametrize("on_exceed", ["reject", "delay"])
@pytest.mark.parametrize("rules", [NO_LIMIT, NO_LIMIT_HERE], ids=["no limit", "another broker's"])
def test_an_admitted_batch_is_not_admitted_once_more_when_its_repeat_comes(
    rules: ReplayRules, on_exceed: OnExceed
) -> None:
    rows = [row(0, "rejected", 5000), row(3, "rejected", 5000, 5000), row(7, "accepted", 9000, 5000)]
    found = changes(rows, replace(rules, on_exceed=on_exceed))
    assert found == {"rejected topic-threshold": -10_000, "repeats": -10_000}


def test_without_repeats_every_attempt_counts_as_new() -> None:
    rows = [row(0, "rejected", 5000, None), row(3, "rejected", 5000, None), row(7, "accepted", 9000, None)]
    assert changes(rows, ReplayRules({})) == {"rejected topic-threshold": -10_000, "accepted": 10_000}, "an upper bound"


def test_a_batch_rejected_here_comes_again_when_its_topic_is_open() -> None:
    rows = [row(second, "accepted", 30_000) for second in range(5)]  # 30 times its threshold until the first tick
    rows += [row(second, "accepted", 1000) for second in range(5, 400)]
    found = changes(rows, TIGHT)
    assert found.pop("rejected topic-threshold") == found.pop("repeats") > 0, "all of it was in at last"
    assert found == {}


def test_a_batch_of_a_topic_never_open_again_is_given_up_or_still_waiting() -> None:
    rows = [BEFORE, *(row(second, "accepted", 100_000) for second in range(10))]
    rows += [row(second, "accepted", 10) for second in range(10, 90)]
    patient = changes(rows, TIGHT)
    assert f"dropped {GIVEN_UP}" not in patient
    assert patient[WAITING] > 490_000
    found = changes(rows, ReplayRules(TIGHT.values, topics=TIGHT.topics, delivery_s=30.0))
    assert found[f"dropped {GIVEN_UP}"] > 490_000
    assert found[WAITING] < 400


def test_a_second_with_both_is_parted_at_the_tick() -> None:
    rows = [BEFORE, *(row(second, "accepted", 30_000) for second in range(4))]
    # The tick is in the middle of this second: 40,000 before it, 5,000 rejected behind it.
    rows += [row(4, "accepted", 40_000), row(4, "rejected", 5000)]
    rows += [row(second, "rejected", 5000, 5000) for second in range(5, 9)]
    assert changes(rows, TIGHT, {LIFE: TickPhase((START + 4.5) % 5)}) == {}


def test_a_batch_admitted_after_rejections_is_behind_the_tick() -> None:
    rules = ReplayRules(
        {PolicyKey.of_broker(): 21_500.0, PolicyKey.of_topic("clicks"): 21_500.0}, topics={1: ("clicks",)}
    )
    rows = [BEFORE, *(row(second, "accepted", 30_000) for second in range(4))]
    rows += [row(4, "accepted", 15_000), row(4, "rejected", 5000)]  # over 27 kB/s from 4.5 s on, by 8 % less each tick
    rows += [row(second, "rejected", 5000, 5000) for second in range(5, 19)]
    rows += [row(19, "accepted", 90_000, 5000)]  # below 21.5 kB/s from 19.5 s on
    later = [each._replace(seq=each.seq + 100) for each in rows]  # it ran before
    assert changes(later, rules, {LIFE: TickPhase((START + 4.5) % 5)}) == {}


@pytest.mark.parametrize(("phase", "same"), [(4.98, True), (4.5, False)])
def test_a_tick_beside_an_edge_is_at_the_edge(phase: float, same: bool) -> None:
    rows = [BEFORE, *(row(second, "accepted", 30_000) for second in range(5))]
    rows += [row(second, "rejected", 5000, 5000 if second > 5 else 0) for second in range(5, 9)]
    assert (changes(rows, TIGHT, {LIFE: TickPhase((START + phase) % 5)}) == {}) is same


def test_a_worker_that_is_late_ends_its_interval_late_and_ticks_then() -> None:
    rows = [BEFORE, *(row(second, "accepted", 30_000) for second in range(5))]
    rows[-1] = rows[-1]._replace(end_ms=rows[-1].end_ms + 400)
    late = [row(second, "rejected", 5000, 5000 if second > 5 else 0) for second in range(5, 9)]
    late[0] = late[0]._replace(start_ms=late[0].start_ms + 400)
    assert changes([*rows, *late], TIGHT, {LIFE: TickPhase(START % 5, at_edges=True)}) == {}
    assert changes([*rows, *late], TIGHT, {LIFE: TickPhase(START % 5)}) != {}, "it can't be known there"


def test_storage_and_policies_of_ones_own_are_not_decided_anew() -> None:
    rows = [row(0, "rejected", 5000, reason="storage-throttle"), row(1, "rejected", 5000, reason="nightly-load")]
    assert changes(rows, ReplayRules({})) == {}


def test_a_fence_falls_with_the_rejection_before_it() -> None:
    rows = [row(0, "rejected", 5000), row(0, "rejected", 7000, reason="fence")]
    assert changes(rows, ReplayRules({})) == {
        "rejected topic-threshold": -5000,
        "rejected fence": -7000,
        "accepted": 12_000,
    }


def test_an_exempt_client_is_metered_and_never_rejected() -> None:
    tool = (1, "clicks", "User:mirror", "tool")
    rules = ReplayRules(TIGHT.values, topics=TIGHT.topics, exempt_principals=frozenset({"User:mirror"}))
    rows = [row(second, "accepted", 30_000, stream=tool) for second in range(60)]
    assert changes(rows, rules) == {}
    mixed = sorted([*rows, *(row(second, "accepted", 100) for second in range(60))], key=lambda each: each.start_ms)
    found = changes(mixed, rules)
    assert found[WAITING] > 4000, "the other client's topic is over by what the tool brings"


def test_windows_and_warming_up() -> None:
    rows = [row(second, "accepted", 30_000) for second in range(120)]
    start = round(START * 1000)
    whole = list(replay_usage(rows, TIGHT, PHASE, window_ms=MINUTE_MS))
    assert {shift.window_ms for shift in whole} == {start, start + MINUTE_MS}
    late = list(replay_usage(rows, TIGHT, PHASE, window_ms=MINUTE_MS, from_ms=start + MINUTE_MS))
    assert sorted(late) == sorted(shift for shift in whole if shift.window_ms > start)
    assert all(first.window_ms <= second.window_ms for first, second in pairwise(whole))


def test_errors_of_the_broker_are_no_traffic() -> None:
    rows = [row(second, "errored", 30_000, reason="MESSAGE_TOO_LARGE") for second in range(60)]
    assert changes(rows, TIGHT) == {}


@pytest.mark.parametrize("reason", ["REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"])
def test_errors_of_the_broker_that_come_after_the_append_are_traffic(reason: str) -> None:
    errored = [row(second, "errored", 30_000, reason=reason) for second in range(60)]
    accepted = [row(second, "accepted", 30_000) for second in range(60)]
    assert changes(errored, TIGHT)[f"errored {reason}"] == changes(accepted, TIGHT)["accepted"] < 0
