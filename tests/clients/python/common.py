# What the three Python drivers share: the contract (see tests/clients/harness.py), the record numbering, the ledger of
# what the library told the application, and the deadline. Knows no Kafka library and judges nothing.

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Config:
    """The driver's argument; absent means the library's own default where there is one."""

    client: str
    mode: str
    bootstrap: str
    run: str = "run"
    client_id: str = ""
    topics: list[str] = field(default_factory=list)
    partitions: int = 1
    replication: int = 1
    count: int = 0
    record_bytes: int = 0
    keys: bool = False
    acks: int | None = None
    idempotence: bool | None = None
    compression: str = ""
    batch_records: int = 0
    rate: float = 0
    transactional_id: str = ""
    transaction_size: int = 20
    abort_every: int = 0
    group: str = ""
    isolation: str = "read_uncommitted"
    settle_s: float = 0.5
    timeout_s: float = 60
    options: dict[str, Any] = field(default_factory=dict)

    def value(self, i: int) -> bytes:
        text = f"{self.client}:{self.run}:{i}"
        return (text + "|").ljust(self.record_bytes, "x").encode() if self.record_bytes > len(text) else text.encode()

    def target(self, i: int) -> tuple[str, int]:
        """Round robin over every partition of every topic."""
        topic, partition = divmod(i % (len(self.topics) * self.partitions), self.partitions)
        return self.topics[topic], partition

    def batch_bytes(self) -> int:
        """The batch size that holds about `batch_records` records."""
        return 80 + self.batch_records * (len(self.value(self.count)) + 20)

    def transactions(self) -> list[tuple[int, int, bool]]:
        """(first record, behind the last, to be committed) of each transaction."""
        starts = range(0, self.count, self.transaction_size)
        return [
            (at, min(at + self.transaction_size, self.count), not self.abort_every or (n % self.abort_every != 0))
            for n, at in enumerate(starts, 1)
        ]


class Ledger:
    """What the library said about each record; it may say so from a thread of its own."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.start = time.monotonic()
        self.deadline = self.start + config.timeout_s
        self.outcome: list[str | None] = [None] * config.count
        self.lost: set[int] = set()
        self.timeline: Counter[int] = Counter()
        self.events: Counter[str] = Counter()
        self.transactions: Counter[str] = Counter(committed=0, aborted=0, failed=0)
        self.throttle: dict[str, float | None] = {"count": None, "max_ms": None}
        self.first_error = ""

    def left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def due(self, i: int) -> float:
        """Seconds until record i is due."""
        return self.start + i / self.config.rate - time.monotonic() if self.config.rate else 0.0

    def acknowledge(self, i: int) -> None:
        self.outcome[i] = "ok"
        self.timeline[int(time.monotonic() - self.start)] += 1

    def fail(self, i: int, name: str, text: str) -> None:
        self.outcome[i] = name
        self.first_error = self.first_error or text

    def throttled(self, ms: float) -> None:
        self.throttle = {"count": (self.throttle["count"] or 0) + 1, "max_ms": max(self.throttle["max_ms"] or 0, ms)}

    def by_the_deadline(self, work: Callable[[], None]) -> None:
        """Run what may block beyond the deadline; what there is to tell is told then. Raises what it raised."""
        errors: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        thread.join(self.left())
        if errors:
            raise errors[0]

    def all_ok(self, first: int, end: int) -> bool:
        return all(outcome == "ok" for outcome in self.outcome[first:end])

    def end_transaction(self, first: int, end: int, outcome: str) -> None:
        self.transactions[outcome] += 1
        if outcome != "committed":
            self.lost.update(range(first, end))

    def result(self) -> dict[str, Any]:
        numbered = list(enumerate(self.outcome))
        failed = [i for i, outcome in numbered if outcome not in (None, "ok")]
        return {
            "sent": len(numbered),
            "acknowledged": sum(outcome == "ok" and i not in self.lost for i, outcome in numbered),
            "errors": dict(Counter(self.outcome[i] for i in failed)),
            "failed": failed,
            "unresolved": [i for i, outcome in numbered if outcome is None],
            "aborted": [i for i, outcome in numbered if outcome == "ok" and i in self.lost],
            "timeline": [self.timeline[second] for second in range(max(self.timeline, default=-1) + 1)],
            "first_error": self.first_error,
            "throttle": self.throttle,
            "events": dict(self.events),
            "transactions": dict(self.transactions),
            "elapsed_s": time.monotonic() - self.start,
        }


class Reading:
    """What a consumer saw, in the order it saw it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.start = time.monotonic()
        self.deadline = self.start + config.timeout_s
        self.partitions: dict[str, list[int]] = {}
        self.distinct: set[int] = set()
        self.strangers = 0
        self.first_s = 0.0
        self.events: Counter[str] = Counter()

    def take(self, topic: str, partition: int, value: bytes | None) -> None:
        _, found, number = (value or b"").partition(b"|")[0].partition(f":{self.config.run}:".encode())
        if not found or not number.isdigit():
            self.strangers += 1
            return
        if not self.distinct:
            self.first_s = time.monotonic() - self.start
        self.partitions.setdefault(f"{topic}/{partition}", []).append(int(number))
        self.distinct.add(int(number))
        if len(self.distinct) == self.config.count:  # a little longer, to see what comes twice
            self.deadline = min(self.deadline, time.monotonic() + self.config.settle_s)

    def left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def done(self) -> bool:
        return not self.left()

    def result(self) -> dict[str, Any]:
        return {
            "partitions": self.partitions,
            "strangers": self.strangers,
            "first_s": self.first_s,
            "events": dict(self.events),
            "elapsed_s": time.monotonic() - self.start,
        }


def eventually(so: Callable[[], bool], timeout_s: float = 10) -> bool:
    """A broker hears of new and deleted topics a moment after the controller has answered."""
    end = time.monotonic() + timeout_s
    while not so():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def main(version: str, modes: dict[str, Callable[[Config], dict[str, Any]]]) -> None:
    """Run the mode that the argument names; the last line of stdout is the result, or the error that prevented one."""
    config = Config(**json.loads(sys.argv[1]))
    watchdog = threading.Timer(config.timeout_s + 15, os._exit, [3])
    watchdog.daemon = True
    watchdog.start()
    code = 0
    try:
        result = modes[config.mode](config)
    except Exception as error:
        traceback.print_exc()
        result, code = {"error": type(error).__name__, "first_error": str(error)}, 1
    print(json.dumps(result | {"client": config.client, "version": version}), flush=True)
    sys.stderr.flush()
    os._exit(code)  # a library's threads must not keep us: what it had to say has been said
