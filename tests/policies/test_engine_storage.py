# The storage factor in the engine: every produce limit times the factor, one line for all producers, and a pause.

from __future__ import annotations

import pytest

from policies.decision import ClientPatience
from policies.engine import PolicyEngine
from policies.limits.limiter import MAX_WAIT_S
from policies.thresholds.pacing import ThresholdPacer
from policies.verdict import DELAY, HOLD, REJECT, STORAGE_PAUSE, STORAGE_THROTTLE
from tests.policies.asking import decide, present, record, say, storage, threshold_of

WHY = "broker 2 volume /data: 5.0 GB of 100.0 GB free"


def engine(factor: float = 0.5, total: float | None = 1000.0, *, mode: str = "enforce", **options: str) -> PolicyEngine:
    made = PolicyEngine(0.0)
    made.set_thresholds(total, {"clicks": 400.0} if total else {}, **options)  # type: ignore[arg-type]
    made.set_listed_topics(1, ["clicks", "logs"])
    made.set_storage_factor(factor, WHY, 0.0, mode=mode)  # type: ignore[arg-type]
    return made


@pytest.mark.seed("DISK.10", "035.2", "V1.8")
def test_every_threshold_is_multiplied() -> None:
    (broker,) = engine(0.25).collect_rates()
    made = engine(0.25).broker_meters(1)
    assert broker.threshold == 250.0
    assert [threshold_of(made, name) for name in (b"clicks", b"logs")] == [100.0, 150.0]
    assert engine(0.25, None).broker_meters(1).limits.thresholds.total is None, "there is nothing to multiply"


def test_thresholds_that_use_up_their_total_still_may_when_multiplied() -> None:
    # 0.1 + 0.2 > 0.3 in floating point: what was accepted must not be refused because disks fill up.
    one = PolicyEngine(0.0)
    one.set_thresholds(0.3, {"a": 0.1, "b": 0.19999999999999998})
    one.set_storage_factor(0.7, WHY, 0.0)
    assert one.broker_meters(1).limits.thresholds.total == pytest.approx(0.21)


def test_a_factor_of_1_asks_no_limit() -> None:
    one = engine(1.0)
    assert one.pause is None
    assert one.broker_meters(1).limits.storage_throttle is None
    assert storage(one, 1, 10**9, 0.0) is None


def test_a_changed_policy_keeps_the_factor_and_a_changed_factor_the_policy() -> None:
    one = engine(0.5)
    one.set_thresholds(2000.0, {"clicks": 600.0})
    assert one.broker_meters(1).limits.thresholds.total == 1000.0
    one.set_storage_factor(1.0, "", 1.0)
    assert one.broker_meters(1).limits.thresholds.total == 2000.0
    assert threshold_of(one.broker_meters(1), b"clicks") == 600.0


def test_all_producers_of_a_broker_share_its_total_times_the_factor_by_delay() -> None:
    one = engine(0.5)
    broker = one.broker_meters(1)
    admitted, now = 0, 0.0
    while now < 60.0:
        verdict = storage(one, 1, 100, now)
        assert verdict is None or (verdict.action, verdict.reason) == (DELAY, STORAGE_THROTTLE)
        assert broker.limits.storage_throttle is not None
        broker.limits.storage_throttle.charge_request(100, 1, now)
        admitted += 100
        now += verdict.throttle_ms / 1000 if verdict else 0.001
    assert admitted == pytest.approx(500 * 60, rel=0.02)


def test_brokers_that_were_not_known_before_have_their_line_too() -> None:
    assert engine(0.5).broker_meters(7).limits.storage_throttle is not None


def test_the_verdict_names_broker_volume_and_factor() -> None:
    one = engine(0.35)
    verdict = present(storage(one, 1, 10_000, 0.0))
    assert WHY in verdict.text
    assert "at 35 % because of storage".replace(" %", "%") in verdict.text
    assert "share 350.0 B/s" in verdict.text


def test_a_line_without_room_turns_away() -> None:
    one = engine(0.5)
    limit = present(one.broker_meters(1).limits.storage_throttle)
    limit.charge_request(round((MAX_WAIT_S + 1) * 500), 1, 0.0)
    verdict = present(storage(one, 1, 1, 0.0))
    assert verdict.action == REJECT
    assert 0 < verdict.throttle_ms <= MAX_WAIT_S * 1000


def test_without_a_total_a_factor_between_0_and_1_has_no_effect() -> None:
    assert storage(engine(0.5, None), 1, 10**9, 0.0) is None


def test_a_factor_of_0_is_a_pause_under_any_limits() -> None:
    for total in (1000.0, None):
        pause = present(say(engine(0.0, total).pause, 1, 0.0, ClientPatience()))
        assert (pause.action, pause.reason, pause.observed_only) == (HOLD, STORAGE_PAUSE, False)
        assert WHY in pause.text
        assert pause.throttle_ms > 0


def test_a_pause_forgives_no_debt() -> None:
    # Else a factor that goes to and fro between a little and nothing lets everybody in anew each time.
    one = engine(0.5)
    one.broker_meters(1).limits.storage_throttle.charge_request(5000, 1, 0.0)  # type: ignore[union-attr]
    one.set_storage_factor(0.0, WHY, 1.0)
    one.set_storage_factor(0.1, WHY, 2.0)
    assert present(storage(one, 1, 100, 2.0)).throttle_ms > 3000


def test_observing_multiplies_nothing_and_marks_its_verdicts() -> None:
    one = engine(0.5, mode="observe")
    assert one.broker_meters(1).limits.thresholds.total == 1000.0
    verdict = present(storage(one, 1, 5000, 0.0))
    assert verdict.observed_only
    assert verdict.would_outcome == "would_delay"
    pause = present(say(engine(0.0, mode="observe").pause, 1, 0.0, ClientPatience()))
    assert pause.observed_only
    assert pause.would_outcome == "would_reject"


def test_thresholds_that_reject_delay_as_long_as_the_factor_is_below_1() -> None:
    # By the average of the last minute, who was within his limit until now would be rejected for a minute.
    one = engine(1.0)
    broker = one.broker_meters(1)
    for _ in range(20):
        record(broker, b"clicks", 500 * 5)
        record(broker, b"logs", 450 * 5)
        one.apply_due_ticks(one.next_tick_at)
    now = one.next_tick_at
    one.set_storage_factor(0.5, WHY, now)
    assert one.needs_pacing
    one.pace_limits(now)
    for _ in range(10):
        broker.add_topic(b"clicks").uncounted += 400
        broker.total.uncounted += 400
        verdict = decide(one, 1, b"clicks", 400, now)
    assert verdict is not None
    assert (verdict.action, verdict.reason) == (DELAY, STORAGE_THROTTLE)
    assert WHY in verdict.text
    one.set_storage_factor(1.0, "", now)
    assert not one.needs_pacing


def test_thresholds_that_delay_pace_at_the_reduced_rate() -> None:
    one = engine(0.5, on_exceed="delay")
    strategy = one.broker_meters(1).limits.strategy
    assert isinstance(strategy, ThresholdPacer)
    assert strategy.bucket.rate == 500.0
