# Simulated time, and everything else that makes a run the same each time: one clock for trio's tasks and for the calls
# of models, which jumps to whatever is due next; a seeded order of trio's tasks; all that the product reads of time and
# chance in place of the real ones; and blocking code, which the product runs in threads, in greenlets of this thread.
#
# Knows no Kafka and no gateway.

from __future__ import annotations

import contextvars
import functools
import heapq
import math
import os
import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from unittest import mock

import greenlet  # type: ignore[import-untyped]  # playwright brings it along
import trio
from trio._core import _run as trio_run
from trio.testing import MockClock

START_S: Final = 1_000.0  # trio's clock when a world begins
UNIX_S: Final = 1_700_000_000.0  # Unix time then: before that of the files which the product writes
MOST_IDLE_PASSES: Final = 100
MONOTONIC_S: Final = 70_000.0  # by which `time.monotonic` is ahead of trio's clock


_io_manager: Any = vars(trio_run)["TheIOManager"]


class Process:
    """A process of the product, as far as the simulation has any. `wall_offset_s`: by which its wall clock is off.
    `is_dead`: it was killed, and whatever its code still does has no effect. `is_stopped`: none of its tasks has a
    turn, nor its threads. `stops`: how often it was. `stopped_at`: on trio's clock; infinite: it runs. `stopped_count`:
    of all processes, those that are stopped now.
    """

    stopped_count = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.wall_offset_s = 0.0
        self.is_dead = self.is_stopped = False
        self.stops = 0
        self.stopped_at = math.inf
        self._held: list[trio.lowlevel.Task] = []  # what would run: for what it waited, that is there
        self._overdue: dict[trio.lowlevel.Task, None] = {}  # whose time-outs are over

    def stop(self) -> None:
        """As by SIGSTOP. What the kernel does for it goes on, up to the size of its buffers."""
        self.is_stopped, self.stops, self.stopped_at = True, self.stops + 1, trio.current_time()
        Process.stopped_count += 1
        queue = trio_run.GLOBAL_RUN_CONTEXT.runner.runq
        self._held += [task for task in queue if task.context.get(current_process) is self]
        for task in self._held:
            queue.remove(task)

    def resume(self) -> None:
        """As by SIGCONT: it first sees what has come, and only then that its time-outs are over, as an event loop."""
        if self.is_stopped:
            self.is_stopped, self.stopped_at = False, math.inf
            Process.stopped_count -= 1
            trio_run.GLOBAL_RUN_CONTEXT.runner.runq.extend(self._held)
            overdue = list(self._overdue)
            self._held.clear()
            self._overdue.clear()
            for task in overdue:
                task._attempt_delivery_of_any_pending_cancel()

    def hold_task(self, task: trio.lowlevel.Task) -> None:
        """The task, which was just put at the end of those that run next, has to wait until the process goes on."""
        trio_run.GLOBAL_RUN_CONTEXT.runner.runq.pop()
        self._held.append(task)

    def hold_cancellation(self, task: trio.lowlevel.Task) -> None:
        self._overdue[task] = None


# The process that runs now: tasks inherit it.
current_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=Process("world"))  # noqa: B039


class Stuck(Exception):
    """Nothing is due any more, and the world has not come to its end."""


class Entry:
    """A call that is due at a time. `cancel` it any number of times."""

    __slots__ = ("args", "call")

    @property
    def wakes_task(self) -> bool:
        return self.call is trio.lowlevel.reschedule or isinstance(getattr(self.call, "__self__", None), _Sleeper)

    def __init__(self, call: Callable[..., Any] | None, args: tuple[Any, ...]) -> None:
        self.call = call
        self.args = args

    def cancel(self) -> None:
        self.call, self.args = None, ()


class Agenda:
    """What models do when: plain calls in the order of their times. `now`: simulated seconds, trio's clock."""

    def __init__(self) -> None:
        self.now = START_S
        self.idle_passes = 0
        self._heap: list[tuple[float, int, Entry]] = []
        self._is_over = False
        self._numbers = count()

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> Entry:
        entry = Entry(call, args)
        if not self._is_over or entry.wakes_task:
            heapq.heappush(self._heap, (when, next(self._numbers), entry))
        return entry

    def after(self, seconds: float, call: Callable[..., Any], *args: Any) -> Entry:
        return self.at(self.now + seconds, call, *args)

    def clear(self) -> None:
        """From now on models do nothing. Tasks and blocking code that wait go on: the product has to come to an end."""
        self._is_over = True
        self._heap = [each for each in self._heap if each[2].wakes_task]
        heapq.heapify(self._heap)

    def jump(self) -> None:
        """All tasks wait: do what is due next, until one of them goes on."""
        runner, heap, pop = trio_run.GLOBAL_RUN_CONTEXT.runner, self._heap, heapq.heappop
        while not runner.runq:
            while heap and heap[0][2].call is None:
                pop(heap)
            deadline = runner.deadlines.next_deadline()
            if not heap or heap[0][0] > deadline:
                if deadline == math.inf:  # but at the end of all trio tells itself something through the system
                    self.idle_passes += 1
                    if self.idle_passes > MOST_IDLE_PASSES:
                        raise Stuck
                    return
                self.now = max(self.now, deadline)
                return
            now = self.now = max(self.now, heap[0][0])
            while heap and heap[0][0] <= now:
                entry = pop(heap)[2]
                if entry.call is not None:
                    entry.call(*entry.args)

    async def sleep(self, seconds: float) -> None:
        """In the place of `trio.sleep`: without a deadline that trio would have to keep."""
        if seconds <= 0.0:
            await trio.lowlevel.checkpoint()
            return
        entry = self.after(seconds, trio.lowlevel.reschedule, trio.lowlevel.current_task())

        def give_up(_: Any) -> trio.lowlevel.Abort:
            entry.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    def make_clock(self) -> MockClock:
        """A clock for `trio.run` that shows this agenda's time."""
        clock: Any = MockClock(autojump_threshold=0)
        clock.current_time = lambda: self.now
        clock._autojump = self.jump
        clock.deadline_to_sleep_time = lambda deadline: 0.0 if deadline <= self.now else 999_999_999.0
        found: MockClock = clock
        return found


# --- blocking code ----------------------------------------------------------------------------------------------------


class Alarm:
    """Something that blocking code waits for: `ring` wakes all who do."""

    def __init__(self) -> None:
        self.waiting: dict[_Sleeper, None] = {}

    def ring(self) -> None:
        for sleeper in list(self.waiting):
            sleeper.wake()


class _Sleeper:
    """A task whose blocking code waits."""

    def __init__(self, agenda: Agenda, seconds: float, alarm: Alarm | None) -> None:
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self._alarm = alarm
        self._entry = agenda.after(seconds, self.wake)
        if alarm is not None:
            alarm.waiting[self] = None

    def wake(self) -> None:
        if self._task is not None:
            task = self._task
            self.cancel()
            trio.lowlevel.reschedule(task)

    def cancel(self) -> None:
        self._task = None
        self._entry.cancel()
        if self._alarm is not None:
            self._alarm.waiting.pop(self, None)


_agenda: contextvars.ContextVar[Agenda] = contextvars.ContextVar("agenda")


def block(seconds: float, alarm: Alarm | None = None) -> None:
    """Wait in code that the product runs in a thread; on trio's own stack it doesn't wait."""
    parent = greenlet.getcurrent().parent
    if parent is not None and seconds > 0.0:
        parent.switch(seconds, alarm)


async def run_blocking(call: Callable[..., Any], *args: Any, abandon_on_cancel: bool = False, **_: Any) -> Any:
    """In the place of `trio.to_thread.run_sync`."""
    await trio.lowlevel.checkpoint_if_cancelled()
    if current_process.get().is_dead:
        await trio.lowlevel.checkpoint()
        return None
    agenda = _agenda.get()
    routine = greenlet.greenlet(functools.partial(call, *args))
    routine.gr_context = contextvars.copy_context()
    found = routine.switch()
    if routine.dead:
        await trio.lowlevel.checkpoint()
    while not routine.dead:
        sleeper = _Sleeper(agenda, *found)

        def give_up(_: Any, sleeper: _Sleeper = sleeper) -> trio.lowlevel.Abort:
            if not abandon_on_cancel:
                return trio.lowlevel.Abort.FAILED
            sleeper.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            await trio.lowlevel.wait_task_rescheduled(give_up)
        except trio.Cancelled:
            routine.throw(greenlet.GreenletExit)
            raise
        found = routine.switch()
    return found


# --- processes that are stopped ---------------------------------------------------------------------------------------


def _stopped_process(task: trio.lowlevel.Task) -> Process | None:
    process = task.context.get(current_process)
    return process if process is not None and process.is_stopped else None


def _reschedule(
    runner: Any, task: trio.lowlevel.Task, *outcome: Any, real: Callable[..., None] = trio_run.Runner.reschedule
) -> None:
    real(runner, task, *outcome)
    if Process.stopped_count and (process := _stopped_process(task)) is not None:
        process.hold_task(task)


def _deliver_cancellation(
    task: trio.lowlevel.Task,
    real: Callable[..., None] = trio.lowlevel.Task._attempt_delivery_of_any_pending_cancel,
) -> None:
    if Process.stopped_count and (process := _stopped_process(task)) is not None:
        process.hold_cancellation(task)
    else:
        real(task)


# --- chance, time, order ----------------------------------------------------------------------------------------------


def _seldom(agenda: Agenda, get_events: Callable[..., Any]) -> Callable[..., Any]:
    """Ask the system for events only now and then: in a world there are none but Ctrl-C."""
    passes = count()
    return lambda manager, timeout: (
        [] if next(passes) % 256 and not agenda.idle_passes else get_events(manager, timeout)
    )


@contextmanager
def deterministic(agenda: Agenda, seed: int) -> Iterator[None]:
    """What the product reads of time and chance within it follows from `agenda` and `seed`."""
    chance = random.Random(f"product {seed}")

    def unix_s() -> float:
        return UNIX_S - START_S + agenda.now + current_process.get().wall_offset_s

    def monotonic() -> float:
        return agenda.now + MONOTONIC_S

    def sleep(seconds: float) -> None:
        block(seconds)

    real_gmtime, before = time.gmtime, random.getstate()
    fakes: list[tuple[Any, str, Any]] = [
        (time, "time", unix_s),
        (time, "time_ns", lambda: round(unix_s() * 1e9)),
        (time, "monotonic", monotonic),
        (time, "perf_counter", monotonic),
        (time, "process_time", lambda: 0.0),
        (time, "gmtime", lambda seconds=None: real_gmtime(unix_s() if seconds is None else seconds)),
        (time, "sleep", sleep),
        (os, "urandom", chance.randbytes),
        (os, "fsync", lambda fd: None),
        (uuid, "uuid4", lambda: uuid.UUID(bytes=chance.randbytes(16), version=4)),
        (secrets, "token_bytes", lambda size=32: chance.randbytes(size)),
        (secrets, "token_hex", lambda size=32: chance.randbytes(size).hex()),
        (trio, "sleep", agenda.sleep),
        (trio.to_thread, "run_sync", run_blocking),
        (_io_manager, "get_events", _seldom(agenda, _io_manager.get_events)),
        (trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (trio_run, "_r", random.Random(f"trio {seed}")),
        (trio_run.Runner, "reschedule", _reschedule),
        (trio.lowlevel.Task, "_attempt_delivery_of_any_pending_cancel", _deliver_cancellation),
    ]
    random.seed(f"global {seed}")
    token = _agenda.set(agenda)
    patches = [mock.patch.object(place, name, value) for place, name, value in fakes]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
        _agenda.reset(token)
        random.setstate(before)
