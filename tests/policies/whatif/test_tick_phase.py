# When ticks were: from rejections that were told to wait until one.

from __future__ import annotations

import pytest

from policies.whatif import tick_phase
from policies.whatif.tick_phase import BINS_A_SECOND, TickPhase, find_phase, phase_vote

START_MS = 1_763_600_040_000  # a multiple of five seconds
NO_EDGES: dict[int, int] = {}


def votes_of(tick_ms: int, intervals: list[tuple[int, int]], asked_ms: int) -> list[tuple[int, int, int]]:
    """One rejection in each interval, `asked_ms` behind its start, told to wait until the next tick."""
    found = []
    for start, end in intervals:
        at = start + asked_ms
        wait = (tick_ms - at) % 5000 or 5000
        found.append((*phase_vote(START_MS + start, START_MS + end, wait), 1))
    return found


def at(votes: list[tuple[int, int, int]], edges: dict[int, int] = NO_EDGES) -> float:
    found = find_phase(votes, edges)
    assert found is not None
    return found.at


def drifting(count: int, by_ms: int = 7) -> list[tuple[int, int]]:
    return [(number * (1000 + by_ms), (number + 1) * (1000 + by_ms)) for number in range(count)]


def test_a_rejection_says_that_a_tick_is_within_the_second_that_its_wait_leads_to() -> None:
    assert phase_vote(START_MS + 1000, START_MS + 2000, 2500) == (350, 100)
    assert phase_vote(START_MS + 4000, START_MS + 5000, 2500) == (150, 100), "counted within five seconds"


def test_nothing_was_said() -> None:
    assert find_phase([], NO_EDGES) is None
    assert find_phase([(0, 500, 3)], NO_EDGES) is None, "any time would do"


def test_rejections_at_any_time_of_their_second_leave_one_answer() -> None:
    votes = [each for asked in range(0, 1000, 10) for each in votes_of(3210, drifting(5, 0), asked)]
    assert at(votes) == pytest.approx(3.21, abs=0.02)


def test_intervals_that_drift_narrow_it_down() -> None:
    assert at(votes_of(3210, drifting(130), 300)) == pytest.approx(3.21, abs=0.25)


@pytest.mark.parametrize("tick_ms", [0, 10, 2490, 4990])
def test_round_the_end_of_the_circle(tick_ms: int) -> None:
    votes = [each for asked in range(0, 1000, 10) for each in votes_of(tick_ms, drifting(5, 0), asked)]
    found = at(votes)
    assert min(abs(found - tick_ms / 1000), 5 - abs(found - tick_ms / 1000)) < 0.02


def test_edges_of_intervals_that_follow_the_ticks_say_it_to_a_hundredth() -> None:
    edge_ms = 430
    intervals = [(edge_ms + 1000 * number, edge_ms + 1000 * (number + 1)) for number in range(60)]
    votes = votes_of(3000 + edge_ms, intervals, 5)
    edges = {edge_ms // 10: 55, (edge_ms + 20) // 10: 4, 7: 1}
    assert at(votes) != pytest.approx(3.43, abs=0.05), "without them it isn't known so well"
    assert at(votes, edges) == pytest.approx(3.43, abs=0.01)
    assert find_phase(votes, edges) == TickPhase(at(votes, edges), at_edges=True)


def test_edges_all_over_the_second_say_nothing() -> None:
    votes = votes_of(3210, drifting(130), 300)
    assert find_phase(votes, dict.fromkeys(range(BINS_A_SECOND), 3)) == find_phase(votes, NO_EDGES)


def test_some_that_don_t_fit_do_no_harm() -> None:
    votes = [each for asked in range(0, 1000, 10) for each in votes_of(3210, drifting(5, 0), asked)]
    assert at([*votes, (10, 100, 9), (420, 100, 9)]) == pytest.approx(3.21, abs=0.02)


def test_the_longest_wait_that_clients_are_told_says_nothing_exact() -> None:
    assert tick_phase.MAX_WAIT_MS < 10_000
