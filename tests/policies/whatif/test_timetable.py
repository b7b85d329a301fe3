# The policies that were in force while usage was recorded.

from __future__ import annotations

from policies.definitions.policy_values import OVERRIDE_KEY, PolicyKey
from policies.whatif.rows import ReplayRules
from policies.whatif.timetable import TimedChange, build_timetable

TOTAL, CLICKS, VIEWS = PolicyKey.of_broker(), PolicyKey.of_topic("clicks"), PolicyKey.of_topic("views")
BASE = {TOTAL: 12.0, CLICKS: 5.0}


def test_without_changes_the_file_holds_with_the_wish_over_it() -> None:
    assert build_timetable(BASE, (), {}) == (BASE, ())
    assert build_timetable(BASE, (), {CLICKS: 1.0}) == ({TOTAL: 12.0, CLICKS: 1.0}, ())


def test_values_hold_from_their_change_on_and_before_it_the_former_ones() -> None:
    changes = [
        TimedChange(3000, CLICKS, 7.0, None),
        TimedChange(1000, CLICKS, 6.0, 7.0),
        TimedChange(2000, VIEWS, None, 2.0),
        TimedChange(2000, TOTAL, 12.0, 20.0),
    ]
    before = {TOTAL: 12.0, CLICKS: 6.0}  # the file says 5 by now
    assert build_timetable(BASE, changes, {}) == (
        before,
        (
            (1000, {TOTAL: 12.0, CLICKS: 7.0}),
            (2000, {TOTAL: 20.0, CLICKS: 7.0, VIEWS: 2.0}),
            (3000, {TOTAL: 20.0, VIEWS: 2.0}),
        ),
    )


def test_the_wish_stands_over_all_of_it() -> None:
    changes = [TimedChange(1000, CLICKS, 5.0, 7.0), TimedChange(2000, TOTAL, 12.0, 20.0)]
    assert build_timetable(BASE, changes, {CLICKS: 1.0}) == (
        {TOTAL: 12.0, CLICKS: 1.0},
        ((2000, {TOTAL: 20.0, CLICKS: 1.0}),),
    )


def test_an_operators_hand_on_storage_is_no_limit() -> None:
    assert build_timetable(BASE, [TimedChange(1, PolicyKey("storage", "", OVERRIDE_KEY), None, "PAUSE")], {}) == (
        BASE,
        (),
    )


def test_a_limit_over_all_brokers_counts_whenever_it_was_in_force() -> None:
    gold = {PolicyKey.of_group("gold"): 1.0}
    assert ReplayRules(BASE).is_per_broker
    assert not ReplayRules(BASE, later=((1000, gold), (2000, BASE))).is_per_broker
