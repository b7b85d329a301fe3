# One client under chaos, as a process of its own: `python -m tests.chaos.load JSON`. It knows bootstrap servers and
# topics, and nothing of what is done to them. It goes on until SIGTERM; its last line of stdout is what it saw.
#
#   produce  sends `librdkafka:RUN:NUMBER|xxx`, number after number, over the partitions (tests/clients/harness.py
#            reads such values back), and tells which numbers it was not told the end of, and its longest time without
#            an acknowledgement, from the first one on, while it waited for some
#   consume  reads the topics as a group does, and tells which numbers it saw, by partition

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.background import Telling

CLIENT = "librdkafka"
TELL_S = 0.2
STEP_S = 0.02
QUEUE_S = 1.0  # of its offer may wait in the client; what is more would only come late
FLUSH_S = 90.0
TIMEOUT_MS = 180_000  # a record that waited so long is given up: longer than any fault here
BATCH_BYTES = 16_000
IN_FLIGHT = 5


@dataclass(frozen=True)
class Task:
    """What such a client does; `rate` and `idempotent` are for producers."""

    role: str
    bootstrap: str
    topics: Sequence[str]
    run: str
    partitions: int = 3
    rate: float = 300.0  # records per second
    record_bytes: int = 1000
    idempotent: bool = True
    client_id: str = ""


class Load(Telling):
    """The process, seen from outside. `progress`: records acknowledged or seen so far."""

    def __init__(self, task: Task) -> None:
        super().__init__([sys.executable, "-m", "tests.chaos.load", json.dumps(asdict(task))])
        self.task = task

    def stop(self) -> None:
        """Let it come to its end; `result` waits for that."""
        self.process.send_signal(signal.SIGTERM)

    def result(self) -> dict[str, Any]:
        """What it saw; it is gone afterwards."""
        try:
            self.process.wait(FLUSH_S + 30)
        finally:
            self.close()
        assert self.process.returncode == 0, f"{self.task.role} {self.task.run}: exit status {self.process.returncode}"
        found: dict[str, Any] = json.loads(self.last)
        return found


class _Producing:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._waiting = [0] * task.partitions
        self._settled: set[int] = set()
        self._failed: dict[int, str] = {}  # number -> error
        self._sent = self._acknowledged = 0
        self._alive_at = 0.0  # of the last acknowledgement, or when the first record since then was handed over
        self._stall = 0.0
        self._producer = Producer(
            {
                "bootstrap.servers": task.bootstrap,
                "client.id": task.client_id or task.run,
                "acks": "all",
                "enable.idempotence": task.idempotent,
                "max.in.flight.requests.per.connection": IN_FLIGHT,
                "linger.ms": 10,
                "batch.size": BATCH_BYTES,
                "message.timeout.ms": TIMEOUT_MS,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 5000,
                "log_level": 0,
            }
        )

    def run(self, stopping: threading.Event) -> dict[str, Any]:
        rate = self._task.rate
        owed, then, told = 0.0, time.monotonic(), 0.0
        while not stopping.is_set():
            now = time.monotonic()
            owed = min(owed + (now - then) * rate, rate * 0.2)
            then = now
            while owed >= 1 and (partition := self._next_partition()) is not None:
                self._send(partition)
                owed -= 1
            self._producer.poll(STEP_S)
            if now - told >= TELL_S:
                told = now
                print(self._acknowledged, flush=True)
        self._producer.flush(FLUSH_S)
        return {
            "sent": self._sent,
            "failed": sorted(self._failed),
            "errors": sorted(set(self._failed.values())),
            "unresolved": sorted(set(range(self._sent)) - self._settled),
            "aborted": [],
            "stall_s": round(self._stall, 2),
        }

    def _next_partition(self) -> int | None:
        """In turn, but one whose broker is held up fills its own queue only; None: all are full."""
        count, task = len(self._waiting), self._task
        most = max(10, task.rate * QUEUE_S / count)
        for turn in range(self._sent, self._sent + count):
            if self._waiting[turn % count] < most:
                return turn % count
        return None

    def _send(self, partition: int) -> None:
        number, task = self._sent, self._task
        value = f"{CLIENT}:{task.run}:{number}|".encode().ljust(task.record_bytes, b"x")
        if len(self._producer) == 0 or not self._acknowledged:  # a stall can't begin before the first one
            self._alive_at = time.monotonic()
        self._producer.produce(
            task.topics[0],
            value,
            partition=partition,
            on_delivery=lambda error, _: self._settle(number, partition, error),
        )
        self._waiting[partition] += 1
        self._sent += 1

    def _settle(self, number: int, partition: int, error: KafkaError | None) -> None:
        now = time.monotonic()
        self._waiting[partition] -= 1
        self._stall = max(self._stall, now - self._alive_at)
        self._alive_at = now
        self._settled.add(number)
        if error:
            self._failed[number] = error.name()
        else:
            self._acknowledged += 1


class _Consuming:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._seen: dict[tuple[str, int], list[int]] = {}
        self._reached: dict[tuple[str, int], int] = {}  # the next offset to come
        self._events: set[str] = set()
        self._count = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": task.bootstrap,
                "group.id": task.run,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 1000,
                "session.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 5000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(list(task.topics))

    def run(self, stopping: threading.Event) -> dict[str, Any]:
        told = 0.0
        while not stopping.is_set():
            self._take()
            if time.monotonic() - told >= TELL_S:
                told = time.monotonic()
                print(self._count, flush=True)
        left, deadline = self._ends(), time.monotonic() + FLUSH_S
        while left and time.monotonic() < deadline:
            self._take()
            left = {place: end for place, end in left.items() if self._reached.get(place, 0) < end}
        self._consumer.close()
        return {
            "partitions": {f"{topic}/{partition}": numbers for (topic, partition), numbers in self._seen.items()},
            "behind": {f"{topic}/{partition}": end for (topic, partition), end in left.items()},
            "events": sorted(self._events),
        }

    def _take(self) -> None:
        for message in self._consumer.consume(500, 0.05):
            error = message.error()
            if error is not None:
                self._events.add(error.name())
                continue
            place = (str(message.topic()), int(message.partition() or 0))
            number = (message.value() or b"").partition(b"|")[0].rpartition(b":")[2]
            self._seen.setdefault(place, []).append(int(number))
            self._reached[place] = int(message.offset() or 0) + 1
            self._count += 1

    def _ends(self) -> dict[tuple[str, int], int]:
        """Where each partition ends, once all of them say so."""
        deadline = time.monotonic() + FLUSH_S
        while True:
            try:
                return {
                    (topic, partition): self._consumer.get_watermark_offsets(
                        TopicPartition(topic, partition), timeout=10
                    )[1]
                    for topic in self._task.topics
                    for partition in range(self._task.partitions)
                }
            except KafkaException:
                if time.monotonic() > deadline:
                    raise


def main(argument: str) -> None:
    """Be such a client until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    task = Task(**json.loads(argument))
    client = _Producing(task) if task.role == "produce" else _Consuming(task)
    print(json.dumps(client.run(stopping)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
