# A real producer as a process of its own, so that several of them offer steady loads on few cores and the test is not
# held up: `python -m tests.integration.fleet_load BOOTSTRAP BYTES_PER_S TOPIC…`. librdkafka, idempotent; over its
# limit it offers what its queue takes. Writes the number of acknowledged bytes a few times a second, a line each; on
# SIGTERM it flushes, and its last line is `done SENT ACKNOWLEDGED FAILED`.

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer

from gateway import embedded

RECORD = 5_000
STEP_S = 0.02
QUEUE_S = 1.5  # seconds of its offer that wait in the client: more would only come late
TELL_S = 0.25
FLUSH_S = 60.0


class Load:
    """The process, seen from the test. `acknowledged`: bytes of records, as last told."""

    def __init__(self, bootstrap: str, rate: float, topics: Sequence[str]) -> None:
        command = [sys.executable, "-m", "tests.integration.fleet_load", bootstrap, str(int(rate)), *topics]
        self.process = embedded.spawn(command, stdout=subprocess.PIPE, text=True)
        self.acknowledged = 0
        self.last = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def finish(self) -> tuple[int, int, int]:
        """Records sent, acknowledged, failed."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(FLUSH_S + 20)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert self.last.startswith("done "), self.last
        sent, acknowledged, failed = map(int, self.last.split()[1:])
        return sent, acknowledged, failed

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = line.strip()
            if self.last.isdigit():
                self.acknowledged = int(self.last)


def main(bootstrap: str, rate: int, topics: Sequence[str]) -> None:
    """Offer until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    counts = {"sent": 0, "acknowledged": 0, "failed": 0}

    def settle(error: Any, _: Any) -> None:
        counts["failed" if error else "acknowledged"] += 1

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 100_000,
            "message.timeout.ms": 120_000,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 5000,
            "log_level": 0,
            "on_delivery": settle,
        }
    )
    most = max(20, int(rate * QUEUE_S / RECORD))
    value = os.urandom(RECORD)
    owed, then, told = 0.0, time.monotonic(), 0.0
    while not stopping.is_set():
        now = time.monotonic()
        owed = min(owed + (now - then) * rate / RECORD, rate * 0.2 / RECORD)
        then = now
        while owed >= 1 and len(producer) < most:
            producer.produce(topics[counts["sent"] % len(topics)], value)
            counts["sent"] += 1
            owed -= 1
        producer.poll(STEP_S)
        if now - told >= TELL_S:
            told = now
            print(counts["acknowledged"] * RECORD, flush=True)
    producer.flush(FLUSH_S)
    print("done", counts["sent"], counts["acknowledged"], counts["failed"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
