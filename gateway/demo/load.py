# The demo's producers: what each offers, and the processes that offer it. librdkafka and kafka-python run in Python
# processes of this very module (`python -m gateway.demo.load`), ProducerPerformance is Kafka's own.
#
# A producer here is an application with a steady flow and a small buffer: what it could not hand to its client in time
# is not made up for afterwards. (One that catches up would answer each opening of the gate with all it has saved up,
# and the one-minute rate would swing by that instead of by the meter's 5 s tick.)
# Each counts the messages that were acknowledged, by its client's own delivery reports: the only witness of what
# clients believe. Knows no thresholds and no gateway, only an address.

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from gateway import embedded

FLUSH_TIMEOUT_S: Final = 60.0  # rejections last some 10 to 20 s once no client offers more; then all is admitted
_REPORT_EVERY_S: Final = 1.0
_PACE_STEP_S: Final = 0.02
_CATCH_UP_S: Final = 0.2  # a step that came late may be made up for by as much

PERF_TEST: Final = "ProducerPerformance"


@dataclass(frozen=True)
class ProducerPlan:
    """One process's load: stages of (seconds, bytes/s over all brokers) to one topic. A last stage of infinite length
    is over when the process is asked to end.
    """

    topic: str
    client: str  # "librdkafka", "kafka-python" or PERF_TEST, which has one stage of a fixed number of records
    stages: tuple[tuple[float, float], ...]
    record_bytes: int = 2_000
    partitions: int = 3
    starts_s: float = 0.0

    @property
    def client_id(self) -> str:
        return f"{self.topic}-{self.client.lower()}" + (f"-{self.starts_s:.0f}s" if self.starts_s else "")

    @property
    def record_count(self) -> int:
        """The number of records in all stages, none of them without end."""
        return round(sum(seconds * rate for seconds, rate in self.stages) / self.record_bytes)


@dataclass
class MessageCounts:
    """Messages of one process: handed to the client, acknowledged to it, given up by it; never handed to it."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    skipped: int = 0


# --- the parent's side ------------------------------------------------------------------------------------------------


class ProducerProcess:
    """A running producer process; `counts` follows its reports."""

    def __init__(self, plan: ProducerPlan, bootstrap_servers: str, folder: Path) -> None:
        self.plan = plan
        self.counts = MessageCounts()
        self.log = folder / f"{plan.client_id}.log"
        if plan.client == PERF_TEST:
            command = _perf_command(plan, bootstrap_servers, self.log)
        else:
            order = {"plan": asdict(plan), "bootstrap_servers": bootstrap_servers}
            command = [sys.executable, "-m", "gateway.demo.load", json.dumps(order)]
        with self.log.open("ab") as log:
            self._process = embedded.spawn_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._reader = threading.Thread(target=self._read_reports, daemon=True)
        self._reader.start()

    def stop_offering(self) -> None:
        """Have it offer no more: the end of its input tells it. (ProducerPerformance ends by itself.)"""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait_for_exit(self, timeout_s: float) -> int:
        """The process's exit status, once it has reported everything; it is killed when it takes longer."""
        self._reader.join(timeout_s)
        status = embedded.reap_process(self._process)
        self._reader.join()
        return status

    @property
    def wanted_bytes(self) -> int:
        """The bytes of values that the application would have sent without a limit."""
        messages = self.plan.record_count if self.plan.client == PERF_TEST else self.counts.sent + self.counts.skipped
        return messages * self.plan.record_bytes

    @property
    def is_running(self) -> bool:
        return self._reader.is_alive()

    def log_tail(self) -> str:
        """The end of its log, in one line."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-500:]

    def _read_reports(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if self.plan.client == PERF_TEST:
                    self.counts = perf_counts(self.counts, line)
                else:
                    self.counts = MessageCounts(**json.loads(line))


_PERF_LINE: Final = re.compile(r"(\d+) records sent, .* ms max latency")


def perf_counts(before: MessageCounts, line: str) -> MessageCounts:
    """The counts after a line of ProducerPerformance's.

    It counts a record when it was acknowledged, and never one that failed. Every 5 s it tells the number since the last
    such line, at the end the number of all, with percentiles.
    """
    found = _PERF_LINE.match(line)
    if found is None:
        return before
    total = int(found[1]) + (0 if " 99.9th" in line else before.acknowledged)
    return MessageCounts(sent=total, acknowledged=total)


def _perf_command(plan: ProducerPlan, bootstrap_servers: str, log: Path) -> list[str]:
    return embedded.java_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", bootstrap_servers, "--topic", plan.topic),
        *("--num-records", str(plan.record_count), "--record-size", str(plan.record_bytes)),
        *("--throughput", str(round(plan.stages[0][1] / plan.record_bytes))),
        *("--command-property", f"client.id={plan.client_id}", "linger.ms=50"),
        log=log,
    )


# --- the child's side -------------------------------------------------------------------------------------------------


class RecordPacer:
    """The number of records that are due: a steady flow through stages of (seconds, bytes/s). `began` and `now` in
    seconds.
    """

    def __init__(self, stages: Sequence[tuple[float, float]], record_bytes: int, began: float) -> None:
        self._stages = stages
        self._record_bytes = record_bytes
        self._began = self._last = began
        self._credit = 0.0

    def current_rate(self, now: float) -> float | None:
        """Bytes/s just now; None when it is over."""
        end = self._began
        for seconds, rate in self._stages:
            end += seconds
            if now < end:
                return rate
        return None

    def due_records(self, now: float) -> int | None:
        """Records to send since the last call; None when it is over. A call that comes late loses the records that are
        too old.
        """
        rate = self.current_rate(now)
        if rate is None:
            return None
        most = rate * _CATCH_UP_S + self._record_bytes
        self._credit = min(self._credit + (now - self._last) * rate, most)
        self._last = now
        records = int(self._credit / self._record_bytes)
        self._credit -= records * self._record_bytes
        return records


@dataclass
class _PacedFlow:
    """A paced flow into a client, and its count. `send` hands one record to the client."""

    plan: ProducerPlan
    send: Callable[[bytes, int], None] = lambda _value, _partition: None
    counts: MessageCounts = field(default_factory=MessageCounts)
    stop_requested: threading.Event = field(default_factory=threading.Event)  # to end
    reported_at: float = 0.0

    def run(self, idle: Callable[[float], object]) -> None:
        """Offer the plan's records; `idle` waits for a number of seconds and lets the client's callbacks run."""
        pace = RecordPacer(self.plan.stages, self.plan.record_bytes, time.monotonic())
        while not self.stop_requested.is_set() and (records := pace.due_records(now := time.monotonic())) is not None:
            self.offer_records(records)
            self.report_counts(now)
            idle(_PACE_STEP_S)

    def offer_records(self, records: int) -> None:
        """Hand records to the client as long as it holds less than one second of the flow; skip the others."""
        window = max(1, int(max(rate for _, rate in self.plan.stages) / self.plan.record_bytes))
        for _ in range(records):
            if self.counts.sent - self.counts.acknowledged - self.counts.failed >= window:
                self.counts.skipped += 1
                continue
            self.send(
                self.sample_values[self.counts.sent % len(self.sample_values)], self.counts.sent % self.plan.partitions
            )
            self.counts.sent += 1

    @functools.cached_property
    def sample_values(self) -> list[bytes]:
        return [os.urandom(self.plan.record_bytes) for _ in range(16)]

    def report_counts(self, now: float) -> None:
        if now - self.reported_at >= _REPORT_EVERY_S:
            self.reported_at = now
            sys.stdout.write(json.dumps(asdict(self.counts)) + "\n")
            sys.stdout.flush()

    def record_delivery(self, failed: bool) -> None:
        if failed:
            self.counts.failed += 1
        else:
            self.counts.acknowledged += 1


def _run_librdkafka(flow: _PacedFlow, bootstrap_servers: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": flow.plan.client_id,
            "enable.idempotence": True,  # without it librdkafka reorders what it has to send again
            "linger.ms": 50,
        }
    )

    def send(value: bytes, partition: int) -> None:
        producer.produce(
            flow.plan.topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: flow.record_delivery(error is not None),
        )

    flow.send = send
    flow.run(producer.poll)
    producer.flush(FLUSH_TIMEOUT_S)


def _run_kafka_python(flow: _PacedFlow, bootstrap_servers: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap_servers, client_id=flow.plan.client_id, linger_ms=50, batch_size=65_536
    )

    def send(value: bytes, partition: int) -> None:
        future = producer.send(flow.plan.topic, value, partition=partition)
        future.add_callback(lambda _: flow.record_delivery(False))
        future.add_errback(lambda _: flow.record_delivery(True))

    flow.send = send
    flow.run(time.sleep)
    try:
        producer.flush(FLUSH_TIMEOUT_S)
    except KafkaTimeoutError as error:
        sys.stderr.write(f"{error}\n")
    producer.close(timeout=5)


_CLIENT_RUNNERS: Final[dict[str, Callable[[_PacedFlow, str], None]]] = {
    "librdkafka": _run_librdkafka,
    "kafka-python": _run_kafka_python,
}


def main(arguments: Sequence[str]) -> int:
    """Produce as the JSON in the only argument says, until stdin ends; a line of counts per second, the last one at the
    end.
    """
    order: dict[str, Any] = json.loads(arguments[0])
    plan = ProducerPlan(**order["plan"])
    flow = _PacedFlow(plan)

    def listen() -> None:
        sys.stdin.buffer.read()
        flow.stop_requested.set()

    threading.Thread(target=listen, daemon=True).start()
    _CLIENT_RUNNERS[plan.client](flow, order["bootstrap_servers"])
    flow.report_counts(float("inf"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
