# How exactly the what-if gives back what really happened: a gateway whose thresholds are much too low for what real
# producers want, for five minutes, and the replay of its records by the same policy. `python -m
# tests.integration.accounts.whatif_full` prints each topic, outcome and minute with the difference in per cent, and
# ends with 1 if one of them is above 2 %.
#
# The producers are librdkafka and kafka-python, idempotent and not, as applications use them: what is rejected they
# send again, and their queues grow meanwhile.

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import Producer
from kafka import KafkaProducer

from gateway import config
from gateway.audit.whatif.command import make_rules
from gateway.embedded import EmbeddedCluster
from policies.meters.meter import TICK_S
from policies.whatif.replay import replay_usage
from policies.whatif.rows import ReplayRow
from tests.integration.gateways import Gateway, Record, create_topic
from tests.policies.whatif.replay_play import phases_of

MINUTE_MS: Final = 60_000
TOLERANCE: Final = 0.02
STEP_S: Final = 0.05
TOTAL: Final = 400_000
THRESHOLDS: Final = {"whatif-clicks": 130_000, "whatif-orders": 90_000, "whatif-calm": 130_000, "whatif-logs": 50_000}
MOST_QUEUED: Final = 10_000_000  # bytes that a client keeps; beyond, its application drops what it has
POLICY: Final[dict[str, Any]] = {
    "thresholds": {
        "total.bytes.in.per.sec.threshold": TOTAL,
        "topics": {topic: {"bytes.in.per.sec.threshold": limit} for topic, limit in THRESHOLDS.items()},
    }
}


class Load(NamedTuple):
    """Bytes per second that a client wants to send, in messages of `size`."""

    topic: str
    client_id: str
    rate: int
    size: int
    library: str
    idempotent: bool = True


LOADS: Final = (
    Load("whatif-clicks", "web", 500_000, 5000, "librdkafka"),
    Load("whatif-clicks", "mobile", 150_000, 1000, "kafka-python"),
    Load("whatif-orders", "shop", 350_000, 8000, "kafka-python"),
    Load("whatif-orders", "import", 100_000, 20_000, "librdkafka", idempotent=False),
    Load("whatif-calm", "batch", 80_000, 4000, "librdkafka"),
    Load("whatif-logs", "agent", 250_000, 2000, "librdkafka"),
)
# The same from one library: kafka-python, with its queue full, takes a core for itself.
LIGHT_LOADS: Final = tuple(load._replace(library="librdkafka") for load in LOADS)


class Difference(NamedTuple):
    """Of one topic, outcome and window, in bytes."""

    window_ms: int
    topic: str
    outcome: str
    really: int
    change: int

    @property
    def share(self) -> float:
        return abs(self.change) / self.really if self.really else float(bool(self.change))


def offer(bootstrap: str, seconds: float, loads: Sequence[Load]) -> None:
    """All of them for so long; what is not in then stays out."""
    threads = [threading.Thread(target=_run, args=(bootstrap, load, seconds), name=load.client_id) for load in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run(bootstrap: str, load: Load, seconds: float) -> None:
    (_librdkafka if load.library == "librdkafka" else _kafka_python)(bootstrap, load, time.monotonic() + seconds)


def _librdkafka(bootstrap: str, load: Load, until: float) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": load.client_id,
            "enable.idempotence": load.idempotent,
            # An idempotent one with several keeps a core busy for as long as it waits for an answer.
            "max.in.flight": 1 if load.idempotent else 5,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": MOST_QUEUED // 1000,
            "log_level": 2,
        }
    )
    value, owed = b"." * load.size, 0.0
    while time.monotonic() < until:
        owed += load.rate * STEP_S
        while owed >= load.size:
            owed -= load.size
            try:
                producer.produce(load.topic, value)
            except BufferError:
                owed = 0.0
        producer.poll(0)
        threading.Event().wait(STEP_S)
    producer.purge()
    producer.flush(5)


def _kafka_python(bootstrap: str, load: Load, until: float) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        client_id=load.client_id,
        enable_idempotence=load.idempotent,
        linger_ms=20,
    )
    value, owed, queued = b"." * load.size, 0.0, 0

    def settle(_: object) -> None:
        nonlocal queued
        queued -= load.size

    while time.monotonic() < until:
        owed += load.rate * STEP_S
        while owed >= load.size:
            owed -= load.size
            if queued < MOST_QUEUED:
                queued += load.size
                producer.send(load.topic, value).add_callback(settle).add_errback(settle)
        threading.Event().wait(STEP_S)
    producer._sender.force_close()  # there is no other way to give up what is queued: `close` waits for it, and fails
    producer.close(timeout=5)


def offer_to(
    kafka: EmbeddedCluster, gateway: Gateway, seconds: float, loads: Sequence[Load] = LOADS, *, at_minute: bool = False
) -> None:
    """The same through that gateway, whose meters have ticked before the first byte; `at_minute`: from the next on."""
    for topic in THRESHOLDS:
        create_topic(kafka, topic)
    left = MINUTE_MS / 1000 - time.time() % (MINUTE_MS / 1000) if at_minute else 0.0
    threading.Event().wait(left if left > TICK_S else left + TICK_S + 1)
    offer(gateway.bootstrap, seconds, loads)


def rows_of(records: Iterable[Record]) -> list[ReplayRow]:
    """What the replay takes."""
    rows = [
        ReplayRow(
            (each["gateway"], each["boot"], each["worker"]),
            each["seq"],
            each["start_ms"],
            each["end_ms"],
            (row["broker"], row["topic"], row["principal"], row["client_id"]),
            **{name: row[name] for name in ("outcome", "reason", "bytes", "messages", "requests", "delay_ms")},
            repeats=row.get("repeats"),
        )
        for each in records
        for row in each["rows"]
    ]
    return sorted(rows, key=lambda row: (row.start_ms, row.life))


def differences(rows: list[ReplayRow], policy: Mapping[str, Any], window_ms: int | None) -> list[Difference]:
    """The replay by this policy beside what really happened."""
    settings = config.Settings.model_validate({"upstream": {"bootstrap_servers": "kafka:9092"}, **policy})
    rules, _ = make_rules(settings, {}, 120.0)
    really: dict[tuple[int, str, str], int] = defaultdict(int)
    change: dict[tuple[int, str, str], int] = defaultdict(int)
    for row in rows:
        really[row.start_ms - row.start_ms % window_ms if window_ms else 0, row.stream[1], row.outcome] += row.bytes
    for shift in replay_usage(rows, rules, phases_of(rows), window_ms=window_ms):
        change[shift.window_ms, shift.stream[1], shift.outcome] += shift.bytes
    return [Difference(*key, really[key], change[key]) for key in sorted(really.keys() | change.keys())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args()
    print(f"{options.minutes:g} minutes …", file=sys.stderr, flush=True)
    with EmbeddedCluster(1) as kafka, Gateway(kafka.bootstrap_servers, POLICY) as gateway:
        offer_to(kafka, gateway, options.minutes * 60, at_minute=True)
        gateway.stop()
        rows = rows_of(gateway.spooled())
    found = differences(rows, POLICY, MINUTE_MS)
    first = found[0].window_ms
    print(f"{'minute':>6}  {'topic':<16}{'outcome':<12}{'really':>14}{'what if':>14}{'difference':>12}")
    for each in found:
        print(
            f"{(each.window_ms - first) // MINUTE_MS:>6}  {each.topic:<16}{each.outcome:<12}{each.really:>14,}"
            f"{each.really + each.change:>14,}{each.share:>11.2%}"
        )
    # What is left in flight when the producers end makes a last window of a second or so.
    judged = [each for each in found if (each.window_ms - first) / MINUTE_MS < options.minutes]
    worst = max(each.share for each in judged)
    print(f"at most {worst:.2%}: {'as it must be' if worst <= TOLERANCE else 'NOT as it must be'}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
