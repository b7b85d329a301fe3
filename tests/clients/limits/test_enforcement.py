# Limits that no well-configured client loses, duplicates or reorders a record by: the matrix of enforcement.py, and
# what several producers, several topics of one request and requests larger than their quota are promised.
#
# All runs go on beside each other, in front of one cluster: they wait more than they compute. `make clients` runs the
# whole matrix and writes what it saw into docs/clients.md; `make test` a telling subset.

from __future__ import annotations

import os
import platform
import re
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from gateway import embedded
from tests.clients import harness
from tests.clients.conftest import FULL, Matrix
from tests.clients.gateways import Gateway
from tests.clients.harness import Driver, Result
from tests.clients.limits import enforcement, matrix_report
from tests.clients.limits.enforcement import BRIEF, Cell, Outcome, cells, counted_in, findings
from tests.clients.limits.scenario_policies import MIXED_S
from tests.gateway.data import play
from tests.integration.wire import Wire

pytestmark = [pytest.mark.clients, pytest.mark.kafka, pytest.mark.timeout(1500)]

PARALLEL = 6  # cells mostly wait for a throttle time to pass
SELECTED = tuple(cells()) if FULL else BRIEF

# Of each broker: all there is belongs to the topic that two producers share. Others get what it leaves: on a broker
# that doesn't lead it, everything.
QUOTA = 400_000
SHARED = "shared"
THRESHOLDS = {
    "total.bytes.in.per.sec.threshold": QUOTA,
    "topics": {SHARED: {"bytes.in.per.sec.threshold": QUOTA}},
    "on_exceed": "delay",
}
SHARED_ON, OVERSIZED_ON, MIXED_ON = 1, 2, 3

WARM_UP_S, MEASURED_S = 6.0, 30.0  # the slowest client has connected, and a bucket's burst is spent
RECORD = 1000
# Two producers; each is two processes, so that its share does not come from its number of connections. Both send about
# 11 kB at a time: connections take turns, so a producer with larger requests gets more.
PRODUCERS: dict[str, dict[str, Any]] = {
    "java": {"options": {"max.request.size": "12000"}},
    "librdkafka": {},  # an idempotent one would keep a core busy while it waits for its answers
}

KINDS = ("limited", "free", "limited-java", "free-java")
OVERSIZED = 900_000  # more than two seconds of the quota; no client sends more than 1 MB by default


@pytest.fixture(scope="module")
def limited(cluster: embedded.EmbeddedCluster) -> Iterator[Gateway]:
    with Gateway(cluster.bootstrap_servers, enforcement.SETTINGS) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def paced(cluster: embedded.EmbeddedCluster) -> Iterator[Gateway]:
    """Delays by thresholds. It has the policies as well: they say nothing about topics that aren't theirs."""
    with Gateway(cluster.bootstrap_servers, {"thresholds": THRESHOLDS, **enforcement.SETTINGS}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, cluster: embedded.EmbeddedCluster, limited: Gateway, paced: Gateway
) -> Iterator[Callable[..., Any]]:
    """Results by what was run; the runs of all selected tests are started with the first that is asked for."""
    direct = cluster.bootstrap_servers
    others: dict[str, Callable[[], Any]] = {
        "shared": lambda: two_producers(paced, direct),
        "oversized": lambda: oversized(paced, direct),
        "mixed": lambda: mixed(paced, direct),
    }
    running = Matrix(PARALLEL)
    asking = [item for item in request.session.items if "runs" in getattr(item, "fixturenames", ())]
    chosen = {item.callspec.params["cell"] for item in asking if hasattr(item, "callspec")}
    wanted = {name for item in asking for name in others if name in item.name}
    for name in sorted(wanted):
        running.start((name,), others[name])
    for cell in SELECTED:
        if cell in chosen:
            running.start(cell, lambda c=cell: enforcement.drive(limited, direct, c))  # type: ignore[misc]
    seen: list[Outcome] = []

    def result(*key: str) -> Any:
        found = running.result(key)
        if isinstance(found, Outcome):
            seen.append(found)
        return found

    yield result
    running.close()
    if FULL and len(seen) == len(SELECTED):
        report(request.config, seen)


def report(config: pytest.Config, seen: list[Outcome]) -> None:
    """Only a whole matrix replaces what the document shows."""
    where = f"Apache Kafka {embedded.KAFKA_VERSION}, Python {platform.python_version()}, {os.cpu_count()} cores"
    measured = f"Measured on {datetime.now(UTC):%Y-%m-%d}: {where}, {PARALLEL} cells at a time."
    in_order = sorted(seen, key=lambda outcome: SELECTED.index((outcome.scenario, outcome.variant)))
    enforcement.save(in_order, embedded.cache_dir() / "clients" / "outcomes.jsonl")
    matrix_report.write(in_order, measured)
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:
        terminal.write_line(f"\n{matrix_report.render(in_order, measured)}\nwritten to {matrix_report.DOCUMENT}")


@pytest.mark.parametrize("cell", SELECTED, ids="/".join)
def test_limits_cost_no_records(cell: Cell, runs: Callable[..., Outcome]) -> None:
    outcome = runs(*cell)
    assert findings(outcome) == [], outcome


# --- two producers on one limit ---------------------------------------------------------------------------------------


def two_producers(gateway: Gateway, direct: str) -> dict[str, float]:
    """Bytes per second that got into the log over the measured time, of each producer."""
    harness.create_topics(
        direct, [SHARED], 4, broker=SHARED_ON, config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    )
    with ExitStack() as stack:
        for client, config in PRODUCERS.items():
            for number in range(2):
                # Offers the whole limit alone, and so more than three times its share.
                driver = Driver(
                    client, "produce", gateway.bootstrap, topics=[SHARED], partitions=4, run=f"share{number}",
                    count=60 * QUOTA // RECORD, rate=QUOTA / RECORD, record_bytes=RECORD, batch_records=10,
                    client_id=client, timeout_s=120, **config,
                )  # fmt: skip
                stack.callback(driver.stop)
        embedded.wait_for("both producers to be under way", lambda: under_way(gateway), 60, every_s=0.2)
        began = time.time() + WARM_UP_S
        time.sleep(WARM_UP_S + MEASURED_S + 1)  # the measured time itself
    text = gateway.metrics()
    messages = counted_in(text, "produce_messages", SHARED, "accepted")
    overhead = counted_in(text, "produce_bytes", SHARED, "accepted") / messages
    found = appended(direct, began * 1000, (began + MEASURED_S) * 1000)
    return {client: found[client] * overhead / MEASURED_S for client in PRODUCERS}


def under_way(gateway: Gateway) -> bool:
    text = gateway.metrics()
    return all(f'client_bytes_total{{client_id="{client}",outcome="accepted"' in text for client in PRODUCERS)


def appended(direct: str, start_ms: float, end_ms: float) -> Counter[str]:
    """How many records of each client the broker appended in that time, by its own clock."""
    consumer = Consumer({"bootstrap.servers": direct, "group.id": "appended", "enable.partition.eof": True})
    found: Counter[str] = Counter()
    try:
        consumer.assign([TopicPartition(SHARED, partition, OFFSET_BEGINNING) for partition in range(4)])
        open_places = set(range(4))
        deadline = time.monotonic() + 60
        while open_places:
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    if start_ms <= message.timestamp()[1] < end_ms:
                        found[(message.value() or b"").partition(b":")[0].decode()] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_places.discard(int(message.partition() or 0))
    finally:
        consumer.close()
    return found


@pytest.mark.full  # pure: policies/thresholds/test_pacing.py; real: a user of integration/limits/test_client_quotas.py
def test_two_producers_get_all_of_a_shared_limit_and_each_its_part(runs: Callable[..., dict[str, float]]) -> None:
    shares = runs("shared")
    # A machine that stands still for three seconds costs two of them: a second's worth is saved.
    assert 0.8 * QUOTA < sum(shares.values()) < 1.05 * QUOTA, shares
    assert min(shares.values()) >= 0.3 * sum(shares.values()), shares


# --- a request larger than a second of its quota ----------------------------------------------------------------------


def oversized(gateway: Gateway, direct: str) -> tuple[Result, harness.Verdict]:
    mark = uuid.uuid4().hex[:6]
    topic = f"oversized-{mark}"
    harness.create_topics(direct, [topic], 1, broker=OVERSIZED_ON)
    produced = harness.run(
        "librdkafka", "produce", gateway.bootstrap, topics=[topic], run=mark, count=4, record_bytes=OVERSIZED,
        idempotence=True, batch_records=1,
    )  # fmt: skip
    return produced, harness.judge(
        produced, harness.read_back(direct, [topic], "librdkafka", mark, record_bytes=OVERSIZED)
    )


def test_oversized_requests_pass(runs: Callable[..., tuple[Result, harness.Verdict]]) -> None:
    produced, verdict = runs("oversized")
    assert produced["errors"] == {}, produced["first_error"]
    assert verdict.clean, verdict
    assert verdict.acknowledged == 4, produced
    # Each waits for what those before it took: three of them, as the last one's debt is nobody's wait any more.
    assert produced["elapsed_s"] >= 2 * OVERSIZED / QUOTA, produced


# --- a request with a partition over its limit and one that is free ---------------------------------------------------


def mixed(gateway: Gateway, direct: str) -> dict[str, Any]:
    mark = uuid.uuid4().hex[:6]
    limited, free, java_limited, java_free = (f"mixed-{kind}--{mark}" for kind in KINDS)
    harness.create_topics(direct, [limited, free, java_limited, java_free], 1, broker=MIXED_ON)
    client_hello = struct.pack(">hhih", 18, 3, 1, -1) + b"\0" + compact("apache-kafka-java") + compact("4.1.0") + b"\0"
    with Wire(gateway.broker_port(MIXED_ON)) as wire:
        wire.send(struct.pack(">i", len(client_hello)) + client_hello)
        wire.receive()
        began = time.monotonic()
        throttle_ms, first = wire.produce(play.request(2, {limited: [0], free: [0]}, client_id="mixed"))
        at_once = time.monotonic() - began
        _, later = wire.produce(play.request(3, {free: [0]}, client_id="mixed"))
        waited = time.monotonic() - began
    java = harness.run(
        "java", "produce", gateway.bootstrap, topics=[java_limited, java_free], run=mark, count=10,
        options={"linger.ms": "1000"}, client_id=f"mixed-{mark}",
    )  # fmt: skip
    log = harness.read_back(direct, [java_limited, java_free], "java", mark)
    codes = {"limited": first[limited, 0][0], "free": first[free, 0][0], "later": later[free, 0][0]}

    def merged_twice() -> bool:
        return bool(re.search(r"^produce_gateway_answers_merged_total [2-9]", gateway.metrics(), re.MULTILINE))

    embedded.wait_for("both mixed requests in /metrics", merged_twice)
    return {
        "codes": codes,
        "throttle_s": throttle_ms / 1000,
        "at_once": at_once,
        "waited": waited,
        "java": java,
        "log": log,
    }


def compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def test_mixed_requests_are_acknowledged_in_part_at_once(runs: Callable[..., dict[str, Any]]) -> None:
    seen = runs("mixed")
    assert seen["codes"] == {"limited": 89, "free": 0, "later": 0}
    assert seen["throttle_s"] > 1.0
    assert seen["at_once"] < seen["throttle_s"] <= seen["waited"] + 0.05
    java = seen["java"]
    assert java["errors"] == {}, java["first_error"]
    assert harness.judge(java, seen["log"]).clean
    # Java's first answer acknowledged what was free, well before what was limited.
    told = [second for second, count in enumerate(java["timeline"]) for _ in range(count)]
    assert told[4] + 2 <= told[5], told
    assert seen["throttle_s"] < MIXED_S
