# The bound on log lines of one kind: how many, when they begin anew, and what is told of those left out.

from __future__ import annotations

from gateway.log.log_bound import MAX_KINDS, LeftOut, LogBound


def test_so_many_lines_of_a_kind_then_their_number() -> None:
    bound: LogBound[str] = LogBound(2, 10.0)
    assert [bound.may_say("a", now, amount=5) for now in (0.0, 1.0, 2.0, 3.0)] == [True, True, False, False]
    assert bound.may_say("b", 3.0)
    assert list(bound.ended(9.9)) == []
    assert list(bound.ended(11.0)) == [LeftOut("a", 2, 10, 11.0)]
    assert list(bound.ended(20.0)) == []  # of b none was left out
    assert bound.may_say("a", 20.0)


def test_a_kind_may_have_a_bound_of_its_own() -> None:
    bound: LogBound[str] = LogBound(50, 10.0)
    assert [bound.may_say("broker", 0.0, burst=1) for _ in range(3)] == [True, False, False]


def test_kinds_are_bounded_as_well() -> None:
    bound: LogBound[int] = LogBound(1, 10.0)
    assert all(bound.may_say(kind, 0.0) for kind in range(MAX_KINDS))
    assert not bound.may_say(MAX_KINDS, 0.0)
    assert bound.may_say(0, 0.0) is False
    assert list(bound.ended(10.0)) == [LeftOut(0, 1, 0, 10.0)]
    assert bound.may_say(MAX_KINDS, 10.0)
