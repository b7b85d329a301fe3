# The bound on log lines of one kind: how many, when they begin anew, and what is told of those left out.

from __future__ import annotations

from gateway.log.log_bound import MAX_KINDS, LogRateLimiter, SuppressedLines


def test_so_many_lines_of_a_kind_then_their_number() -> None:
    bound: LogRateLimiter[str] = LogRateLimiter(2, 10.0)
    assert [bound.allow_line("a", now, amount=5) for now in (0.0, 1.0, 2.0, 3.0)] == [True, True, False, False]
    assert bound.allow_line("b", 3.0)
    assert list(bound.end_periods(9.9)) == []
    assert list(bound.end_periods(11.0)) == [SuppressedLines("a", 2, 10, 11.0)]
    assert list(bound.end_periods(20.0)) == []  # of b none was left out
    assert bound.allow_line("a", 20.0)


def test_a_kind_may_have_a_bound_of_its_own() -> None:
    bound: LogRateLimiter[str] = LogRateLimiter(50, 10.0)
    assert [bound.allow_line("broker", 0.0, burst=1) for _ in range(3)] == [True, False, False]


def test_kinds_are_bounded_as_well() -> None:
    bound: LogRateLimiter[int] = LogRateLimiter(1, 10.0)
    assert all(bound.allow_line(kind, 0.0) for kind in range(MAX_KINDS))
    assert not bound.allow_line(MAX_KINDS, 0.0)
    assert bound.allow_line(0, 0.0) is False
    assert list(bound.end_periods(10.0)) == [SuppressedLines(0, 1, 0, 10.0)]
    assert bound.allow_line(MAX_KINDS, 10.0)
