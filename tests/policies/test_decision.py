# How several limits become one verdict: each is asked once about all that the request brings under it, and charged for
# what passes.

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision import (
    ALL_POLICIES,
    STRICTNESS,
    ClientPatience,
    PartitionLimits,
    RequestDecision,
    RequestLimit,
    charge_admitted,
    decide_request,
    refund_part,
    strictest_verdict,
)
from policies.verdict import DELAY, HOLD, PROTECTED_TOPIC, REJECT, Verdict

Part = tuple[bytes, int, int, int]
PARTS: list[Part] = [(b"a", 0, 10, 1), (b"a", 1, 20, 2), (b"b", 0, 5, 1)]
KEYS = [part[:2] for part in PARTS]


class StubLimit(RequestLimit):
    """Says what it was made with, and keeps what it was asked and charged."""

    def __init__(self, why: Verdict | None = None, *, observes: bool = False) -> None:
        self.why = why
        self.observes = observes
        self.asked: list[tuple[int, int]] = []
        self.taken: list[tuple[int, int]] = []
        self.spared: list[tuple[int, int]] = []
        self.given_back: list[tuple[int, int]] = []

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict | None:
        self.asked.append((size, messages))
        return self.why

    def charge_request(self, size: int, messages: int, now: float) -> None:
        self.taken.append((size, messages))

    def record_only(self, size: int, messages: int) -> None:
        self.spared.append((size, messages))

    def refund_request(self, size: int, messages: int) -> None:
        self.given_back.append((size, messages))


def said(action: str, throttle_ms: int, observed_only: bool = False, reason: str = "r") -> Verdict:
    return Verdict(action, reason, throttle_ms, "", observed_only=observed_only)


def decided(*limits: PartitionLimits, parts: list[Part] = PARTS, **how: Any) -> RequestDecision[Part]:
    """One of `limits` for each part; the last one for the rest."""
    under = {part[:2]: limits[min(at, len(limits) - 1)] for at, part in enumerate(parts)}
    return decide_request(parts, under, ClientPatience(), 0.0, **how)


def test_each_limit_is_asked_once_about_all_that_comes_under_it_and_nothing_is_taken() -> None:
    whole, topic, other = StubLimit(), StubLimit(), StubLimit()
    of_a, of_b = PartitionLimits(quota=whole, threshold=topic), PartitionLimits(quota=whole, threshold=other)
    found = decided(of_a, of_a, of_b)
    assert (found.refused, found.delay_ms, found.notes) == ({}, 0, [])
    assert (whole.asked, topic.asked, other.asked) == ([(35, 4)], [(30, 3)], [(5, 1)])
    assert whole.taken == topic.taken == other.taken == []


def test_every_limit_is_charged_for_what_passes() -> None:
    whole, topic = StubLimit(), StubLimit(said(DELAY, 5))
    found = decided(
        PartitionLimits(quota=whole, threshold=topic),
        PartitionLimits(quota=whole, threshold=topic),
        PartitionLimits(quota=whole),
    )
    charge_admitted(found, PARTS[1:], 0.0)
    assert (whole.taken, topic.taken) == ([(25, 3)], [(20, 2)])


def test_bytes_that_one_limit_refuses_pass_nowhere_and_the_rest_does() -> None:
    no = said(REJECT, 7)
    found = decided(
        PartitionLimits(threshold=StubLimit(no)),
        PartitionLimits(),
        PartitionLimits(threshold=StubLimit(said(DELAY, 9))),
    )
    assert found.refused == {KEYS[0]: no}
    assert found.delay_ms == 9
    assert found.notes == [(PARTS[2], "delayed", "r", 9)]


def test_a_limit_that_only_observes_refuses_nothing_and_does_not_charge_what_it_would_have_refused() -> None:
    observes, other = StubLimit(said(REJECT, 7), observes=True), StubLimit()
    found = decided(PartitionLimits(quota=other, group=observes))
    assert found.refused == {}
    assert {note[1:] for note in found.notes} == {("would_reject", "r", 7)}
    charge_admitted(found, PARTS, 0.0)
    assert (observes.taken, observes.spared, other.taken) == ([], [(35, 4)], [(35, 4)])


def test_each_limit_has_back_what_it_was_charged_for_a_part() -> None:
    charged, observes, elsewhere = StubLimit(said(DELAY, 5)), StubLimit(said(REJECT, 7), observes=True), StubLimit()
    found = decided(
        PartitionLimits(quota=charged, group=observes),
        PartitionLimits(quota=charged),
        PartitionLimits(threshold=elsewhere),
    )
    charge_admitted(found, PARTS, 0.0)
    refund_part(found, PARTS[0])
    assert (charged.given_back, observes.given_back, elsewhere.given_back) == ([(10, 1)], [], [])
    assert observes.spared == [(10, 1), (-10, -1)]
    refund_part(found, (b"not in the request", 0, 1, 1))


def test_of_the_policies_only_those_are_enforced_that_are_for_this_client() -> None:
    delays = StubLimit(said(DELAY, 9))
    limits = PartitionLimits(
        quota=delays, group=StubLimit(said(REJECT, 7)), threshold=StubLimit(said(REJECT, 8, reason="t"))
    )
    found = decided(limits, observed={"quota", "group"})
    assert {why.reason for why in found.refused.values()} == {"t"}
    found = decided(limits, observed={"group", "threshold"})
    assert (found.refused, found.delay_ms) == ({}, 9)


def test_a_limit_that_only_observes_is_not_charged_for_what_would_not_have_been_sent_yet() -> None:
    """Or clients for which it is enforced would pay for those that don't wait."""
    quiet, delays, enforced = StubLimit(), StubLimit(said(DELAY, 9)), StubLimit()
    limits = PartitionLimits(quota=quiet, group=delays, threshold=enforced)
    observed = {"quota", "group"}
    for would_wait in (False, True):
        charge_admitted(decided(limits, observed=observed, would_wait=would_wait), PARTS, 0.0)
    assert (quiet.taken, delays.taken, enforced.taken) == ([(35, 4)], [(35, 4)], [(35, 4), (35, 4)])
    assert (quiet.spared, delays.spared, enforced.spared) == ([(35, 4)], [(35, 4)], [])


def test_with_nothing_enforced_all_is_noted_and_passes() -> None:
    found = decided(
        PartitionLimits(group=StubLimit(said(REJECT, 7)), threshold=StubLimit(said(DELAY, 9))), observed=ALL_POLICIES
    )
    assert (found.refused, found.delay_ms) == ({}, 0)
    assert {note[1:] for note in found.notes} == {("would_reject", "r", 7)}


def test_of_equally_strict_limits_the_one_that_is_asked_first_counts() -> None:
    limits = {kind: StubLimit(said(REJECT, 7, reason=kind)) for kind in PartitionLimits._fields}
    for kind in list(limits):
        assert {why.reason for why in decided(PartitionLimits(**limits)).refused.values()} == {kind}
        del limits[kind]


def test_a_limit_that_refused_is_charged_for_what_is_forwarded_all_the_same_and_spared_where_it_observes() -> None:
    for observes in (False, True):
        limit = StubLimit(said(REJECT, 7))
        found = decided(PartitionLimits(threshold=limit), observed=ALL_POLICIES if observes else ())
        charge_admitted(found, PARTS, 0.0)
        assert bool(limit.taken) is not observes
        assert bool(limit.spared) is observes


def test_a_partition_that_is_under_no_limit_passes() -> None:
    found = decide_request(PARTS, {}, ClientPatience(), 0.0)
    assert (found.refused, found.delay_ms, found.notes) == ({}, 0, [])
    charge_admitted(found, PARTS, 0.0)


def test_one_fate_is_that_of_a_refused_partition_and_never_for_good_because_of_another() -> None:
    no, never = said(REJECT, 7), said(REJECT, 0, reason=PROTECTED_TOPIC)
    limits = PartitionLimits(), PartitionLimits(threshold=StubLimit(no)), PartitionLimits()
    assert decided(*limits, one_fate=True).refused == dict.fromkeys(KEYS, no)
    assert decided(*limits).refused == {KEYS[1]: no}
    under = dict(zip(KEYS, limits, strict=True))
    found = decide_request(PARTS, under, ClientPatience(), 0.0, standing={(b"ours", 0): never}, one_fate=True)
    assert found.refused == {(b"ours", 0): replace(never, deferred=True), **dict.fromkeys(KEYS, no)}
    found = decide_request(PARTS, {}, ClientPatience(), 0.0, standing={(b"ours", 0): never}, one_fate=True)
    assert found.refused == {(b"ours", 0): never}


@pytest.mark.parametrize("observes", [False, True])
def test_nothing_is_noted_of_a_partition_that_is_refused_because_of_another(observes: bool) -> None:
    """It is not admitted: no client waits for it, and none would."""
    other = StubLimit(said(REJECT if observes else DELAY, 9, observes))
    under = PartitionLimits(group=other), PartitionLimits(threshold=StubLimit(said(REJECT, 7))), PartitionLimits()
    found = decided(*under, one_fate=True)
    assert (set(found.refused), found.delay_ms, found.notes) == (set(KEYS), 0, [])
    assert decided(*under).notes


verdicts = st.none() | st.builds(said, st.sampled_from(list(STRICTNESS)), st.integers(0, 3), st.booleans())


@given(st.lists(st.tuples(verdicts, verdicts, verdicts), min_size=3, max_size=3))
def test_each_partition_gets_the_strictest_of_what_its_own_limits_say(
    told: list[tuple[Verdict | None, Verdict | None, Verdict | None]],
) -> None:
    found = decided(*(PartitionLimits(StubLimit(one), StubLimit(two), StubLimit(three)) for one, two, three in told))
    for part, said_here in zip(PARTS, told, strict=True):
        why = strictest_verdict(said_here)
        assert found.refused.get(part[:2]) == (None if why is None or why.observed_only or why.action == DELAY else why)


def test_without_a_word_of_any_policy_there_is_no_verdict() -> None:
    assert strictest_verdict([]) is None
    assert strictest_verdict([None, None]) is None


@pytest.mark.seed("82.14")
@pytest.mark.parametrize(
    ("winner", "other"),
    [
        (said(REJECT, 1), said(DELAY, 9000)),
        (said(REJECT, 2), said(REJECT, 1)),
        (said(DELAY, 2), said(DELAY, 1)),
        (said(DELAY, 1), said(REJECT, 9000, observed_only=True)),
        (said(REJECT, 1, observed_only=True), said(DELAY, 9000, observed_only=True)),
        (said(HOLD, 1), said(REJECT, 9000)),
        (said("a misspelt action", 1), said(DELAY, 9000)),
    ],
)
def test_the_strictest_verdict_counts_in_any_order(winner: Verdict, other: Verdict) -> None:
    assert strictest_verdict([winner, None, other]) is winner
    assert strictest_verdict(iter([other, winner])) is winner


def test_of_equal_verdicts_the_first_counts() -> None:
    first, second = said(DELAY, 5, reason="topic-threshold"), said(DELAY, 5, reason="mine")
    assert strictest_verdict([first, second]) is first
