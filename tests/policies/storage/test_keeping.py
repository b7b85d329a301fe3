# Validity and fallback at their edges, and after a restart.

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.storage import (
    GRACE_S,
    FactorKeeper,
    ObservationFailed,
    StorageFactor,
)

# --- Keeper: validity and fallback ------------------------------------------------------------------------------------

MINUTE = 60.0


@pytest.mark.parametrize(
    ("factor", "state"), [(1.0, "OPEN"), (0.999, "THROTTLE"), (math.ulp(0.0), "THROTTLE"), (0.0, "PAUSE")]
)
def test_the_state_goes_by_the_factor(factor: float, state: str) -> None:
    assert StorageFactor(factor, "valid", "").state == state


@pytest.mark.parametrize(
    ("validity", "interval", "holds"),
    [(300, 60, 360), (120, 60, 180), (119, 60, 120), (60, 60, 120), (59, 60, 60), (0, 60, 60), (0.3, 0.1, 0.4)],
)
def test_a_factor_holds_for_whole_intervals(validity: float, interval: float, holds: float) -> None:
    assert FactorKeeper(validity, 0.0, interval).hold_s == pytest.approx(holds)


@given(st.floats(0, 1000), st.floats(0.1, 1000), st.floats(0, 1e6), st.booleans())
def test_until_is_when_current_becomes_next_and_not_before(
    validity: float, interval: float, now: float, fails: bool
) -> None:
    keeper = FactorKeeper(validity, 0.25, interval)
    keeper.record_observation(0.5, "full", now)
    if fails:
        keeper.record_failure("away", now)
    until = keeper.changes_at(now)
    assert until is not None
    assert keeper.current_factor(math.nextafter(until, -math.inf)).value == 0.5
    assert keeper.current_factor(until) == keeper.next_factor(now)
    assert keeper.current_factor(until).value == 0.25
    assert keeper.changes_at(until) is None


def test_a_dead_control_that_never_says_failed_lets_the_factor_run_out_too() -> None:
    keeper = FactorKeeper(120, 1.0, 60)
    keeper.record_observation(0.0, "broker 1 …", 1000.0)
    until = 1180.0 + GRACE_S  # a recalculation that is due has surely begun by then
    assert keeper.current_factor(until - 0.1) == StorageFactor(0.0, "valid", "broker 1 …", 1000.0)
    assert keeper.current_factor(until) == StorageFactor(
        1.0, "fallback", "no valid throttle factor for more than 180 s", 1000.0
    )


@pytest.mark.parametrize(("validity", "interval"), [(60, 60), (120, 60), (300, 60), (60, 15), (0.2, 0.1)])
def test_a_factor_holds_while_the_recalculation_that_may_end_it_is_under_way(validity: float, interval: float) -> None:
    """After so many failures as bring the next one too far: the disk may be as full as it was."""
    for succeeds in (True, False):
        keeper = FactorKeeper(validity, 1.0, interval)
        keeper.record_observation(0.0, "full", 0.0)
        count = round(validity / interval)
        for number in range(1, count + 1):
            keeper.begin_observation(number * interval, 30.0)
            keeper.record_failure("away", (number + 0.5) * interval)
        began = (count + 1) * interval + 0.001
        keeper.begin_observation(began, 30.0)
        for passed in (0.0, 1.0, 29.9):
            assert keeper.current_factor(began + passed).value == 0.0
            assert keeper.changes_at(began + passed) == began + 30.0
        if succeeds:
            keeper.record_observation(0.0, "full", began)
            assert keeper.current_factor(began + interval / 2) == StorageFactor(0.0, "valid", "full", began)
        else:
            keeper.record_failure("away", began + 10.0)
            assert keeper.current_factor(began + 10.0).origin == "fallback"
            assert keeper.changes_at(began + 10.0) is None


def test_a_recalculation_that_never_ends_keeps_a_factor_for_its_time_limit_and_revives_none() -> None:
    keeper = FactorKeeper(60, 1.0, 60)
    keeper.record_observation(0.0, "full", 0.0)
    keeper.begin_observation(120.0, 30.0)
    assert keeper.current_factor(149.9).value == 0.0
    assert keeper.current_factor(150.0).origin == "fallback"
    keeper.begin_observation(180.0, 30.0)
    assert keeper.current_factor(180.0).origin == "fallback"


def test_a_factor_adopted_while_a_recalculation_is_under_way_holds_until_that_has_ended() -> None:
    keeper = FactorKeeper(120, 1.0, 60)
    keeper.begin_observation(1000.0, 30.0)
    assert keeper.changes_at(1000.0) is None, "there is nothing that could go on"
    keeper.adopt_factor(PAUSED, until=1010.0, now=1001.0)
    assert keeper.current_factor(1029.9).value == 0.0
    keeper.record_failure("away", 1020.0)
    assert keeper.current_factor(1020.0).origin == "fallback"


@pytest.mark.parametrize(
    ("validity", "observed", "failed"),
    [
        (0, 0.0, 60.0),  # without any validity the first failure
        (0, 2.0, 60.1),  # that comes sooner than the success did
        (120, 0.3, 180.0),  # that one began late, and the last recalculation a moment before its time
    ],
)
def test_the_failure_of_the_recalculation_that_ends_a_factor_brings_the_fallback(
    validity: float, observed: float, failed: float
) -> None:
    keeper = FactorKeeper(validity, 1.0, 60)
    keeper.record_observation(0.0, "full", observed)
    keeper.begin_observation(failed, 30.0)
    assert keeper.current_factor(failed).value == 0.0
    keeper.record_failure("away", failed)
    assert keeper.current_factor(failed).origin == "fallback"


def test_without_any_validity_a_recalculation_that_takes_a_moment_does_not_let_the_fallback_in() -> None:
    keeper = FactorKeeper(30, 0.0, 60)
    for started in (0.0, 60.0, 120.0):
        assert keeper.current_factor(started + 0.2).value == (1.0 if started else 0.0)
        keeper.record_observation(1.0, "", started + 0.3)
    # but for half an interval only: then nobody is calculating any more
    assert keeper.changes_at(120.3) == pytest.approx(210.3)


def test_a_clock_that_stands_still_changes_nothing() -> None:
    keeper = FactorKeeper(120, 0.0, 60)
    keeper.record_observation(1.0, "", 5.0)
    for _ in range(10):
        keeper.record_failure("away", 5.0)
    assert keeper.current_factor(5.0) == StorageFactor(1.0, "kept", "", 5.0)


def test_failures_do_not_make_a_factor_last_longer() -> None:
    keeper = FactorKeeper(300, 0.0, 60)
    keeper.record_observation(1.0, "", 0.0)
    for minute in range(1, 10):
        keeper.record_failure("away", minute * MINUTE)
        assert keeper.current_factor(minute * MINUTE).origin == ("kept" if minute < 6 else "fallback")


def test_the_fallback_says_since_when_and_why() -> None:
    keeper = FactorKeeper(120, 0.0, 60)
    assert keeper.current_factor(0.0) == StorageFactor(0.0, "fallback", "no valid throttle factor yet", None)
    keeper.record_failure("broker 3 did\nnot answer", 1.0)
    assert keeper.current_factor(1.0).why == "no valid throttle factor yet: broker 3 did not answer"
    keeper.record_observation(1.0, "", 2.0)
    keeper.record_failure("broker 3 did not answer", 62.0)
    assert keeper.next_factor(62.0).why == "no valid throttle factor for more than 180 s: broker 3 did not answer"
    keeper.record_observation(1.0, "", 122.0)
    assert keeper.next_factor(122.0).why == "no valid throttle factor for more than 180 s"


@pytest.mark.parametrize("nonsense", [-0.1, 1.1, math.nan, math.inf])
def test_an_invalid_factor_is_refused_and_changes_nothing(nonsense: float) -> None:
    keeper = FactorKeeper(120, 1.0, 60)
    keeper.record_observation(0.5, "", 0.0)
    with pytest.raises(ObservationFailed, match="must be from 0 to 1"):
        keeper.record_observation(nonsense, "", 60.0)
    assert keeper.current_factor(60.0) == StorageFactor(0.5, "valid", "", 0.0)
    assert keeper.changes_at(60.0) == 180.0 + GRACE_S


@pytest.mark.seed("DISK.29")
@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((300, 1, 0), "check_interval"),
        ((300, 1, math.nan), "check_interval"),
        ((-1, 1, 60), r"validity\.duration"),
        ((math.inf, 1, 60), r"validity\.duration"),
        ((300, 1.1, 60), r"factor\.fallback"),
        ((300, -0.1, 60), r"factor\.fallback"),
        ((300, math.nan, 60), r"factor\.fallback"),
    ],
)
def test_a_keeper_that_cannot_be_is_refused_by_its_key(arguments: tuple[float, float, float], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        FactorKeeper(*arguments)


# --- Keeper: after a restart ------------------------------------------------------------------------------------------

PAUSED = StorageFactor(0.0, "valid", "broker 1 …")


def test_after_a_restart_the_factor_the_workers_still_hold_goes_on_until_it_runs_out() -> None:
    keeper = FactorKeeper(120, 1.0, 60)
    keeper.adopt_factor(PAUSED, until=1100.0, now=1000.0)
    keeper.record_failure("broker 2 is away", 1060.0)
    assert keeper.current_factor(1099.0) == StorageFactor(0.0, "kept", "broker 1 …")
    assert keeper.changes_at(1099.0) == 1100.0
    assert keeper.current_factor(1100.0).origin == "fallback"


def test_an_open_factor_is_adopted_too_or_a_pessimistic_fallback_would_stop_everything() -> None:
    keeper = FactorKeeper(120, 0.0, 60)
    keeper.adopt_factor(StorageFactor(1.0, "valid", ""), until=1100.0, now=1000.0)
    assert keeper.current_factor(1000.0) == StorageFactor(1.0, "kept", "")


def test_an_observation_ends_what_was_adopted() -> None:
    keeper = FactorKeeper(120, 1.0, 60)
    keeper.adopt_factor(PAUSED, until=1100.0, now=1000.0)
    keeper.record_observation(1.0, "", 1001.0)
    assert keeper.current_factor(1001.0).value == 1.0


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_comes_late_never_replaces_an_observation(fails: bool) -> None:
    keeper = FactorKeeper(120, 1.0, 60)
    keeper.record_observation(1.0, "", 1000.0)
    if fails:
        keeper.record_failure("away", 1060.0)
    keeper.adopt_factor(PAUSED, until=1200.0, now=1060.0)
    assert keeper.current_factor(1060.0).value == 1.0
    assert keeper.changes_at(1060.0) == 1180.0 + GRACE_S


def test_of_several_workers_the_youngest_counts_and_of_equally_old_ones_the_lowest() -> None:
    held = [
        (PAUSED, 1090.0),
        (StorageFactor(0.5, "kept", "half"), 1100.0),
        (StorageFactor(0.7, "valid", "more"), 1100.0),
    ]
    for order in itertools.permutations(held):
        keeper = FactorKeeper(120, 1.0, 60)
        for factor, until in order:
            keeper.adopt_factor(factor, until, 1000.0)
        assert keeper.current_factor(1000.0) == StorageFactor(0.5, "kept", "half")
        assert keeper.changes_at(1000.0) == 1100.0


@pytest.mark.parametrize(
    ("factor", "until"),
    [
        (PAUSED, None),  # without an end it was never told
        (PAUSED, 1000.0),
        (PAUSED, math.nan),
        (StorageFactor(0.0, "fallback", ""), 1100.0),
        (StorageFactor(0.0, "fail-safe", ""), 1100.0),
        (StorageFactor(1.5, "valid", ""), 1100.0),
        (StorageFactor(math.nan, "valid", ""), 1100.0),
    ],
)
def test_a_factor_not_observed_or_over_is_not_adopted(factor: StorageFactor, until: float | None) -> None:
    keeper = FactorKeeper(120, 0.75, 60)
    keeper.adopt_factor(factor, until, 1000.0)
    assert keeper.current_factor(1000.0) == StorageFactor(0.75, "fallback", "no valid throttle factor yet")


def test_a_validity_shortened_at_the_restart_holds_for_what_is_adopted_too() -> None:
    keeper = FactorKeeper(0, 1.0, 60)
    keeper.adopt_factor(PAUSED, until=1300.0, now=1000.0)
    assert keeper.changes_at(1000.0) == 1060.0 + GRACE_S
