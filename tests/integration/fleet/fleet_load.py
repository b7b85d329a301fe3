# A real producer as a process of its own, so that several of them offer steady loads on few cores and the test is not
# held up: `python -m tests.integration.fleet.fleet_load TASK`, in JSON. librdkafka, idempotent; over its limit it
# offers what its queue takes. Writes the number of acknowledged bytes a few times a second, a line each; on
# SIGTERM it flushes, and its last line is `done SENT ACKNOWLEDGED FAILED`.

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Producer

from tests.background import Telling

RECORD = 5_000
STEP_S = 0.02
QUEUE_S = 1.5  # seconds of its offer that wait in the client: more would only come late
TELL_S = 0.25
FLUSH_S = 60.0


@dataclass(frozen=True)
class Task:
    """What it does. `rate`: bytes per second that it offers; `request`: 0, small batches over all partitions, or so
    many bytes in each, to one partition; `turn_s`: it offers something in every other turn of so many seconds, 0:
    always.
    """

    bootstrap: str
    rate: float
    topics: Sequence[str]
    request: int = 0
    turn_s: float = 0.0


class Load(Telling):
    """The process, seen from the test. `progress`: bytes of records that were acknowledged."""

    def __init__(self, task: Task) -> None:
        super().__init__([sys.executable, "-m", "tests.integration.fleet.fleet_load", json.dumps(asdict(task))])

    def finish(self) -> tuple[int, int, int]:
        """Records sent, acknowledged, failed."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(FLUSH_S + 20)
        self.close()
        assert self.last.startswith("done "), self.last
        sent, acknowledged, failed = map(int, self.last.split()[1:])
        return sent, acknowledged, failed


def main(task: Task) -> None:
    """Offer until SIGTERM."""
    rate, topics = task.rate, task.topics
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    counts = {"sent": 0, "acknowledged": 0, "failed": 0}

    def settle(error: Any, _: Any) -> None:
        counts["failed" if error else "acknowledged"] += 1

    producer = Producer(
        {
            "bootstrap.servers": task.bootstrap,
            "enable.idempotence": True,
            "max.in.flight": 1,  # with several it keeps a core busy for as long as it waits for an answer
            # Half a batch more than is asked for: what ends the wait is its size, or it would be that of a moment.
            "linger.ms": 1500 * task.request / rate if task.request else 20,
            "batch.size": task.request or 100_000,
            "message.timeout.ms": 120_000,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 5000,
            "log_level": 0,
            "on_delivery": settle,
        }
    )
    most = max(20, int(rate * QUEUE_S / RECORD), 2 * task.request // RECORD)
    partition = 0 if task.request else -1  # -1: librdkafka chooses
    value = os.urandom(RECORD)
    owed, then, told = 0.0, time.monotonic(), 0.0
    while not stopping.is_set():
        now = time.monotonic()
        rests = task.turn_s and int(now / task.turn_s) % 2
        owed = 0.0 if rests else min(owed + (now - then) * rate / RECORD, max(1.0, rate * 0.2 / RECORD))
        then = now
        while owed >= 1 and len(producer) < most:
            producer.produce(topics[counts["sent"] % len(topics)], value, partition=partition)
            counts["sent"] += 1
            owed -= 1
        producer.poll(STEP_S)
        if now - told >= TELL_S:
            told = now
            print(counts["acknowledged"] * RECORD, flush=True)
    producer.flush(FLUSH_S)
    print("done", counts["sent"], counts["acknowledged"], counts["failed"], flush=True)


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
