# The seed's own examples (KIP-546, draft), word for word, where people would run them: a real Kafka behind a real
# gateway, the kafka-quotas command, and clients that are held to what it says. Also quotas that the brokers had before
# the gateway came. The seed's slips are those that policies/quotas/text.py names.

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from gateway.embedded import EmbeddedCluster, wait_for
from gateway.quotas.client import QuotaClient
from policies.quotas.store import Alteration, Op
from tests.integration.gateways import Gateway, create_topic, log_bytes
from tests.integration.limits.test_kafka_quotas import Run, Said

USERS = {name: f"{name}-secret" for name in ("admin", "user-one", "user-two", "user-three")}
TOTAL_OUT = 1_500_000
SETTLE_S, WINDOW_S, WINDOWS = 5.0, 8.0, 10


def login(user: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user, "sasl.password": USERS[user],
    }  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1, users=USERS) as running:
        yield running


@pytest.fixture
def gateway(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Gateway]:
    servers = cluster.sasl_bootstrap_servers
    settings = {
        "internal_topics": "none",
        "policies_store": {"file": str(tmp_path / "policies.jsonl")},
        "upstream": {"bootstrap_servers": servers, **login("admin")},
        "thresholds": {
            "total.bytes.in.per.sec.threshold": "50MB",
            "total.bytes.out.per.sec.threshold": TOTAL_OUT,
        },
    }
    with Gateway(servers, settings) as running:
        yield running


@pytest.fixture
def run(gateway: Gateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`kafka-quotas --bootstrap-server localhost:9092` of the seed; the port and who asks are ours."""
    file = tmp_path / "admin.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="admin" password="{USERS["admin"]}";'
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={jaas}\n")

    class Asking(Run):
        def __call__(self, *argv: str, servers: str = "") -> Said:
            return super().__call__("--command-config", str(file), *argv, servers=servers)

    return Asking(gateway.bootstrap, capsys)


BY_CLIENT_ID = """\
{user=user-one, client-id=my-client}
consumer_byte_rate:shares=200
producer_byte_rate:bps=10000000

{user=user-two, client-id=my-client}
producer_byte_rate:broker_bps=2000000

{user=<default>, client-id=my-client}
consumer_byte_rate:shares=100
producer_byte_rate:broker_bps=500000
"""


@pytest.mark.seed("546.34", "546.35", "546.36", "546.13")
def test_the_seeds_examples_run_and_hold(cluster: EmbeddedCluster, gateway: Gateway, run: Run) -> None:
    one, two = ("--names=user=user-one,client-id=my-client", "--names=user=user-two,client-id=my-client")
    run.alter(one, "--add=consumer_byte_rate:shares=200,producer_byte_rate:bps=10000000")
    run.alter(two, "--add=producer_byte_rate:broker_bps=2000000")
    default = ("--names=client-id=my-client", "--defaults=user")
    run.alter(*default, "--add=consumer_byte_rate:shares=100,producer_byte_rate:broker_bps=500000")

    assert run("--list", "--names=client-id=my-client") == (0, BY_CLIENT_ID, "")
    assert run("--list", "--prefix=user=user-") == (0, BY_CLIENT_ID.partition("\n\n{user=<default>")[0] + "\n", "")
    assert run("--describe", one) == (
        0,
        """\
consumer_byte_rate:shares=200 {user=user-one, client-id=my-client}
producer_byte_rate:bps=10000000 {user=user-one, client-id=my-client}
producer_byte_rate:broker_bps=500000 {user=<default>, client-id=my-client}
""",
        "",
    )
    assert run("--describe", two, "--include-overrides") == (
        0,
        """\
consumer_byte_rate:shares=100 {user=<default>, client-id=my-client}
producer_byte_rate:broker_bps=2000000 {user=user-two, client-id=my-client}
*producer_byte_rate:broker_bps=500000 {user=<default>, client-id=my-client}
""",
        "",
    )
    wanted = {"user-one": 2 / 3 * TOTAL_OUT, "user-two": 1 / 3 * TOTAL_OUT, "user-three writes": 500_000}
    windows = []
    for rates in play(cluster, gateway):
        windows.append(rates)
        # A consumer that the machine keeps from asking leaves its part to the other: the limit's due, and no judgement
        # of the shares. Then the next window tells.
        holds = all(0.85 * want < rates[name] < 1.15 * want for name, want in wanted.items())
        if holds and 1.7 < rates["user-one"] / rates["user-two"] < 2.3:
            break
    else:
        pytest.fail(f"not {wanted} in any of {windows}")

    run.alter(*default, "--add=producer_byte_rate:shares=100", "--delete=producer_byte_rate:broker_bps")
    assert run("--list", *default) == (
        0,
        """\
{user=<default>, client-id=my-client}
consumer_byte_rate:shares=100
producer_byte_rate:shares=100
""",
        "",
    )


def play(cluster: EmbeddedCluster, gateway: Gateway) -> Iterator[dict[str, float]]:
    """Bytes per second that two read and a third one writes, all as my-client, all with more to do than they may: of
    one window after the other.
    """
    backlog, written = create_topic(cluster, "examples-backlog", 1), create_topic(cluster, "examples-written", 1)
    filling = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 20})
    for _ in range(4000):  # 120 MB: as much as they read in the last window
        filling.produce(backlog, b"x" * 30_000)
        filling.poll(0)
    assert filling.flush(60) == 0
    over = threading.Event()
    got = {"user-one": 0, "user-two": 0}

    def read(user: str) -> None:
        names = {"bootstrap.servers": gateway.bootstrap, "client.id": "my-client", "group.id": user, **login(user)}
        # Its queue is never full: librdkafka would wait for a second then, and leave its part to the other.
        consumer = Consumer({**names, "fetch.message.max.bytes": 200_000, "queued.max.messages.kbytes": 65_536})
        consumer.assign([TopicPartition(backlog, 0, 0)])
        while not over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                got[user] += len(message.value() or b"")
        consumer.close()

    def write() -> None:
        names = {"bootstrap.servers": gateway.bootstrap, "client.id": "my-client", **login("user-three")}
        producer = Producer({**names, "queue.buffering.max.kbytes": 500, "batch.size": 60_000})
        while not over.is_set():
            try:
                producer.produce(written, b"y" * 5000)
            except BufferError:
                producer.poll(0.05)
        producer.purge()

    def look() -> dict[str, tuple[float, int]]:
        """Bytes until now, each with its own time: brokers take a while to tell the size of a log."""
        seen = {user: (time.monotonic(), size) for user, size in got.items()}
        size = log_bytes(cluster, written)
        return {**seen, "user-three writes": (time.monotonic(), size)}

    threads = [threading.Thread(target=read, args=(user,)) for user in got] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(SETTLE_S)
        first = look()
        for _ in range(WINDOWS):
            time.sleep(WINDOW_S)
            last = look()
            yield {name: (last[name][1] - size) / (last[name][0] - at) for name, (at, size) in first.items()}
            first = last
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_quotas_of_the_brokers_are_told_warned_of_and_taken_over(
    cluster: EmbeddedCluster, gateway: Gateway, run: Run
) -> None:
    brokers = QuotaClient(cluster.bootstrap_servers)
    assert brokers.alter([Alteration([("user", "user-one")], [Op("producer_byte_rate", 1_000_000.0)])]) == (None,)
    wait_for("the brokers' quota", lambda: "(brokers)" in run("--list", "--names=user=user-one").out)
    said = run("--alter", "--names=user=user-one", "--add=producer_byte_rate=5MB")
    assert (said.code, said.out) == (0, "")
    assert said.err == (
        "kafka-quotas: warning: producer_byte_rate:broker_bps=5000000 of {user=user-one} does not hold: brokers"
        " enforce producer_byte_rate:broker_bps=1000000 {user=user-one} of their own, which is less\n"
    )
    with urllib.request.urlopen(f"{gateway.admin}/v1/client-quotas/effective?user=user-one", timeout=10) as answer:
        (quota,) = json.load(answer)["quotas"]
    assert (quota["by"], quota["value"], quota["also"]["by"]) == ("brokers", 1_000_000, "gateway")
    diff = (
        "{user=user-one}\n-producer_byte_rate:broker_bps=1000000 (brokers)\n"
        "-producer_byte_rate:broker_bps=5000000\n+producer_byte_rate:broker_bps=1000000\n"
    )
    assert run("--take-over") == (0, f"{diff}\n1 quota to move; nothing was done: --yes does it\n", "")
    assert run("--take-over", "--yes") == (0, f"{diff}\n1 quota moved\n", "")
    wait_for("the brokers to have none", lambda: brokers.describe() == ())
    run.shows("producer_byte_rate:broker_bps=1000000 {user=user-one}\n", "--describe", "--names=user=user-one")
