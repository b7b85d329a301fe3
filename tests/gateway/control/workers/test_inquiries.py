# Questions to all workers: one answer made of theirs, and what is told of those that don't answer.

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway.channel import FindConnections, FoundConnections
from gateway.control.workers.inquiries import InquiryResult, WorkerInquiries
from tests.gateway.data.worker.shown import shown


class Workers:
    """Plays so many workers; the first `answering` of them answer at once."""

    def __init__(self, workers: int, answering: int) -> None:
        self.workers, self.answering = workers, answering
        self.inquiries = WorkerInquiries(self.post)
        self.questions: list[FindConnections] = []

    def post(self, question: FindConnections) -> int:
        self.questions.append(question)
        trio.lowlevel.current_trio_token().run_sync_soon(self.answer, question)
        return self.workers

    def answer(self, question: FindConnections) -> None:
        for number in range(self.answering):
            rows = tuple(shown(f"w{number}-{index}", muted_s=float(9 - index - number)) for index in range(3))
            self.inquiries.record_answer(FoundConnections(question.token, 10, 5, rows))


async def test_answers_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.control.workers.inquiries.ANSWER_TIMEOUT_S", 60.0)
    workers = Workers(2, 2)
    found = await workers.inquiries.find_connections(FindConnections(limit=4, client_id="c"))
    assert (found.total, found.matched, found.missing) == (20, 10, 0)
    assert [each.peer for each in found.connections] == ["w0-0", "w0-1", "w1-0", "w0-2"]
    assert workers.questions[0].client_id == "c"
    await workers.inquiries.find_connections(FindConnections())
    assert len({each.token for each in workers.questions}) == 2


async def test_a_worker_that_does_not_answer_is_missing(autojump_clock: MockClock) -> None:
    workers = Workers(3, 1)
    found = await workers.inquiries.find_connections(FindConnections())
    assert (found.total, found.matched, found.missing, len(found.connections)) == (10, 5, 2, 3)
    workers.answer(workers.questions[0])  # too late: nobody waits for it


async def test_without_workers_there_is_nothing_to_wait_for() -> None:
    with trio.fail_after(20):
        assert await Workers(0, 0).inquiries.find_connections(FindConnections()) == InquiryResult()


async def test_few_questions_are_open_at_once(autojump_clock: MockClock) -> None:
    workers = Workers(1, 0)
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(workers.inquiries.find_connections, FindConnections())
        await trio.testing.wait_all_tasks_blocked()
        assert len(workers.questions) == 4
        nursery.cancel_scope.cancel()
    with pytest.raises(KeyError):
        workers.inquiries._open[1]


async def test_a_late_answer_to_a_former_control_is_none_to_this_one(autojump_clock: MockClock) -> None:
    former, present = Workers(1, 0), Workers(1, 0)
    await former.inquiries.find_connections(FindConnections(principal="User:a"))
    async with trio.open_nursery() as nursery:
        found: list[InquiryResult] = []

        async def find() -> None:
            found.append(await present.inquiries.find_connections(FindConnections()))

        nursery.start_soon(find)
        await trio.testing.wait_all_tasks_blocked()
        present.inquiries.record_answer(FoundConnections(former.questions[0].token, 10, 5, ()))
    assert found == [InquiryResult(missing=1)]
