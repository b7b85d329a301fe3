# A process that is stopped: none of its tasks has a turn, and what happened meanwhile it sees when it goes on.

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from tests.simulation.clock import START_S, Agenda, Process, block, current_process, deterministic


def run_process(main: Callable[[Agenda], Awaitable[None]], stops_at: float, seconds: float) -> float:
    """`main` in a process that is stopped then, for so long; returns the seconds until it has ended."""
    agenda, process = Agenda(), Process("one")

    async def world() -> None:
        async with trio.open_nursery() as nursery:
            token = current_process.set(process)
            nursery.start_soon(main, agenda)
            current_process.reset(token)
            agenda.after(stops_at, process.stop)
            agenda.after(stops_at + seconds, process.resume)

    with deterministic(agenda, 1):
        trio.run(world, clock=agenda.make_clock())
    return agenda.now - START_S


def test_timers_of_a_stopped_process_are_late() -> None:
    ends: list[float] = []

    async def main(agenda: Agenda) -> None:
        for _ in range(3):
            await trio.sleep(1.0)
            ends.append(agenda.now - START_S)

    assert run_process(main, 1.5, 10.0) == 12.5
    assert ends == [1.0, 11.5, 12.5]


def test_what_came_in_time_counts_before_the_time_out_that_is_over() -> None:
    found: list[bool] = []

    async def main(agenda: Agenda) -> None:
        for comes_after in (8.0, 60.0):
            task = trio.lowlevel.current_task()
            entry = agenda.after(comes_after, trio.lowlevel.reschedule, task)

            def give_up(_: object) -> trio.lowlevel.Abort:
                entry.cancel()
                return trio.lowlevel.Abort.SUCCEEDED

            with trio.move_on_after(5.0) as scope:
                await trio.lowlevel.wait_task_rescheduled(give_up)
            found.append(scope.cancelled_caught)

    assert run_process(main, 1.0, 20.0) == 26.0
    assert found == [False, True]


def test_threads_of_a_stopped_process_wait_too() -> None:
    times: list[float] = []

    async def main(agenda: Agenda) -> None:
        await trio.to_thread.run_sync(block, 2.0)
        times.append(agenda.now - START_S)

    run_process(main, 1.0, 5.0)
    assert times == [6.0]


def test_others_go_on() -> None:
    async def main(agenda: Agenda) -> None:
        await trio.sleep(3.0)

    assert run_process(main, 4.0, 1.0) == 5.0
