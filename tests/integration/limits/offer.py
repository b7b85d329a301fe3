# An open-loop load with frames of its own: each connection offers a fixed number of bytes every 400 ms, whatever
# becomes of them. What was rejected, or could not be sent because answers were held back, is not made up for: it would
# answer each opening of a gate with all that was saved up. Half of the connections honour throttle_time_ms, half don't.
#
# A thread with one asyncio loop for any number of connections; what happened is a list of (time, bytes) per topic.

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway import embedded
from tests.gateway.data import play

STEP_S = 0.4
LATE_S = 0.5  # a machine that is busy may make up for so much, which is no answer of a gate's
LAST_ANSWER_S = 30.0
MAX_IN_FLIGHT = 5  # as clients have it
CONNECTIONS = 2  # per topic: one honours throttle_time_ms
OVERHEAD = len(play.request(topics={"": [0]})) - len(b"payload")


@dataclass(frozen=True)
class Flow:
    """What is offered to a topic: `rate(t)` bytes/s at `t` seconds from the start (0 is allowed)."""

    topic: str
    rate: Callable[[float], float]


@dataclass
class Tally:
    """(seconds from the start, bytes), by when they were sent or answered."""

    offered: list[tuple[float, int]] = field(default_factory=list)
    admitted: list[tuple[float, int]] = field(default_factory=list)
    rejected: list[tuple[float, int]] = field(default_factory=list)
    codes: set[int] = field(default_factory=set)


def rate_between(happened: Sequence[tuple[float, int]], start: float, end: float) -> float:
    """Bytes per second."""
    return sum(size for at, size in happened if start <= at < end) / (end - start)


class Load:
    """Runs in a thread from `start` on, for `seconds`, which may be set to another end meanwhile."""

    def __init__(self, port: int, flows: Sequence[Flow], seconds: float) -> None:
        self._port = port
        self._flows = flows
        self.seconds = seconds
        self._thread = threading.Thread(target=self._run_thread, name="load")
        self.tallies = {flow.topic: Tally() for flow in flows}
        self.error: BaseException | None = None
        self.began = 0.0

    def start(self) -> None:
        self.began = time.monotonic()
        self._thread.start()

    def join(self) -> dict[str, Tally]:
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self.tallies

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # told where the test looks
            self.error = error

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for flow in self._flows:
                for number in range(CONNECTIONS):
                    one = _Connection(self, flow, number, honours=number % 2 == 0)
                    group.create_task(one.run(self._port))

    @property
    def now(self) -> float:
        return time.monotonic() - self.began


class _Connection:
    def __init__(self, load: Load, flow: Flow, number: int, *, honours: bool) -> None:
        self._load = load
        self._flow = flow
        self._tally = load.tallies[flow.topic]
        self._honours = honours
        self._offset = STEP_S * number / CONNECTIONS
        self._in_flight: deque[int] = deque()
        self._quiet_until = 0.0
        self._is_over = False
        self._frames: dict[int, tuple[bytearray, int]] = {}

    async def run(self, port: int) -> None:
        reader, writer = await asyncio.open_connection(embedded.HOST, port)
        answers = asyncio.create_task(self._read(reader))
        try:
            await asyncio.sleep(self._offset)
            step = 0
            while self._load.now < self._load.seconds:
                due = self._offset + step * STEP_S
                late = self._load.now - due
                if late < 0:
                    await asyncio.sleep(-late)
                elif late > LATE_S:
                    step += 1
                    continue
                self._offer(writer, step)
                step += 1
            # All that went to the broker is answered, and counted as such. A close that leaves an answer unread would
            # be a reset, and what was in flight would count as unanswered.
            self._is_over = True
            writer.write_eof()
            await asyncio.wait([answers], timeout=LAST_ANSWER_S)
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            writer.close()
        if answers.done() and not answers.cancelled() and answers.exception() is not None:
            raise answers.exception() or AssertionError

    def _offer(self, writer: asyncio.StreamWriter, step: int) -> None:
        now = self._load.now
        size = round(self._flow.rate(now) * STEP_S / CONNECTIONS)
        if size < OVERHEAD:
            return
        frame, batch = self._frame(size)
        self._tally.offered.append((now, batch))
        if now < self._quiet_until or len(self._in_flight) >= MAX_IN_FLIGHT:
            return  # held up: lost
        struct.pack_into(">i", frame, 8, step)
        self._in_flight.append(batch)
        writer.write(bytes(frame))

    def _frame(self, size: int) -> tuple[bytearray, int]:
        """A request of about that size, and the bytes of its batch."""
        if size not in self._frames:
            values = (b"x" * (size - OVERHEAD),)
            made = play.request(1, {self._flow.topic: [0]}, values=values, client_id=self._flow.topic)
            self._frames[size] = bytearray(made), play.size_of(values)
        return self._frames[size]

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                head = await reader.readexactly(4)
            except asyncio.IncompleteReadError as end:
                if self._is_over and not end.partial:
                    return
                raise
            frame = head + await reader.readexactly(struct.unpack(">i", head)[0])
            _, throttle_ms, rows = play.decode_answer(frame)
            ((code, _),) = rows.values()
            now, size = self._load.now, self._in_flight.popleft()
            (self._tally.rejected if code else self._tally.admitted).append((now, size))
            self._tally.codes.add(code)
            if self._honours and throttle_ms:
                self._quiet_until = now + throttle_ms / 1000
