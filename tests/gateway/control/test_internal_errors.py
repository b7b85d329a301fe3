# Errors of the gateway's own in what control does for one client: what gets out of `contain`, and what is said of it;
# and the tasks that answer workers' questions.

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from gateway.channel import AdminAnswer, AdminQuery
from gateway.control import internal_errors
from gateway.control.internal_errors import MAX_KINDS, SASL, InternalErrors
from gateway.control.query_tasks import QueryTasks, TaskShare, internal_error_answer


def ask(token: int, peer: str = "192.0.2.1:5", until: float = math.inf, request: bytes = b"") -> AdminQuery:
    return AdminQuery(token, until, peer, "User:alice", request)


def test_an_error_is_contained_counted_and_logged_once_for_each_line_of_code(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    errors = InternalErrors(counted.append)
    for _ in range(3):
        with errors.contain_errors(SASL, "192.0.2.1:5\nforged"):
            raise LookupError("first")
    with errors.contain_errors(SASL):
        raise LookupError("on another line")
    assert counted == [SASL] * 4
    assert len(caplog.records) == 2
    assert "the request of 192.0.2.1:5 forged and nothing else" in caplog.text
    assert "LookupError: on another line" in caplog.text


def test_the_same_is_logged_again_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [100.0, 100.0 + internal_errors.REPEAT_S - 1, 100.0 + internal_errors.REPEAT_S]
    monkeypatch.setattr("time.monotonic", iter(times).__next__)
    errors = InternalErrors()
    for _ in times:
        with errors.contain_errors(SASL):
            raise LookupError
    assert len(caplog.records) == 2


def test_many_kinds_are_no_log_storm(caplog: pytest.LogCaptureFixture) -> None:
    errors = InternalErrors()
    for number in range(3 * MAX_KINDS):
        with errors.contain_errors(SASL):
            raise type(f"Kind{number}", (Exception,), {})
    assert len(caplog.records) == MAX_KINDS


async def test_cancellation_gets_out_beside_an_error() -> None:
    counted: list[str] = []
    errors = InternalErrors(counted.append)

    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError

    with trio.CancelScope() as scope:
        with errors.contain_errors(SASL):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail_when_cancelled)
                nursery.start_soon(trio.sleep_forever)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        pytest.fail("it went on")
    assert (scope.cancelled_caught, counted) == (True, [SASL])


class Stage:
    """Tasks whose answers are functions of the test's. `said`: the answers."""

    def __init__(self, **bounds: Any) -> None:
        self.said: list[AdminAnswer] = []
        self.counted: list[str] = []
        self.open = trio.Event()
        errors = InternalErrors(self.counted.append)
        bounds = {"most": 100, **bounds}
        self.tasks = QueryTasks(SASL, self.answer, lambda ask: TaskShare(ask.peer, 2), errors, **bounds)

    async def answer(self, ask: AdminQuery) -> AdminAnswer:
        if ask.request == b"wait":
            await self.open.wait()
        if ask.request == b"fail":
            raise LookupError
        return AdminAnswer(ask.token, client=b"done")

    def start(self, ask: AdminQuery) -> bool:
        return self.tasks.submit_query(ask, self.said.append)


@pytest.fixture
async def stage(nursery: trio.Nursery) -> Stage:
    """Whose tasks run."""
    stage = Stage()
    nursery.start_soon(stage.tasks.run)
    await trio.testing.wait_all_tasks_blocked()
    return stage


async def test_an_error_ends_one_question_and_no_other(stage: Stage) -> None:
    assert stage.start(ask(1, request=b"fail"))
    await trio.testing.wait_all_tasks_blocked()
    assert stage.start(ask(2))
    await trio.testing.wait_all_tasks_blocked()
    assert stage.said == [internal_error_answer(1), AdminAnswer(2, client=b"done")]
    assert stage.said[0].closes == "error"
    assert stage.counted == [SASL]


async def test_an_answer_that_can_not_be_given_ends_no_other(stage: Stage) -> None:

    def reply(answer: AdminAnswer) -> None:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    assert stage.tasks.submit_query(ask(1), reply)
    await trio.testing.wait_all_tasks_blocked()
    assert stage.start(ask(2))
    await trio.testing.wait_all_tasks_blocked()
    assert (stage.said, stage.counted) == ([AdminAnswer(2, client=b"done")], [SASL])


async def test_questions_are_bounded_in_all_by_owner_and_by_bytes(nursery: trio.Nursery) -> None:
    stage = Stage(most=3, most_bytes=13)
    assert not stage.start(ask(1)), "nobody would answer"
    nursery.start_soon(stage.tasks.run)
    await trio.testing.wait_all_tasks_blocked()
    assert [stage.start(ask(n, "a", request=b"wait")) for n in (1, 2, 3)] == [True, True, False]
    assert not stage.start(ask(4, "b", request=b"6 more")), "more bytes than there may be"
    assert stage.start(ask(5, "b", request=b"wait"))
    assert not stage.start(ask(6, "c"))
    stage.open.set()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(answer.token for answer in stage.said) == [1, 2, 5]
    assert [stage.start(ask(n, "a", request=b"wait")) for n in (7, 8, 9)] == [True, True, False]


async def test_nobody_is_answered_who_was_told_that_there_is_no_answer(stage: Stage) -> None:
    assert stage.start(ask(1, until=-math.inf, request=b"fail"))
    await trio.testing.wait_all_tasks_blocked()
    assert (stage.said, stage.counted) == ([], [])
