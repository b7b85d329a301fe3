# Observe and acks0 on a real broker, from the configuration file to /metrics and the usage records.

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from gateway.embedded import EmbeddedCluster, wait_for
from gateway.secret_key import KEY_FILE_NAME, ROLLOUT_PURPOSE, derive_key, read_secret
from policies.definitions.rollout import rollout_place
from tests.integration.gateways import Gateway, create_topic, end_offsets

_names = itertools.count(1)
LIMIT = "total.bytes.in.per.sec.threshold"
SMALL = 2_000  # bytes a second: the first tick of any load is over it
BETWEEN_LOOKS_S = 0.5
PER_S = 500  # records
DEADLINE_S = 60.0  # until a policy must have shown itself


@pytest.fixture
def topic(kafka: EmbeddedCluster) -> str:
    return create_topic(kafka, f"modes-{next(_names)}", 1)


def produce_until(gateway: Gateway, topic: str, seen: Callable[[], bool], **options: object) -> int:
    """Send records of 1 kB until something is seen; how many were acknowledged. Any error of a delivery fails."""
    failed: list[object] = []
    acknowledged = 0

    def told(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None
        failed.extend(() if error is None else (error,))

    # With several in flight, an idempotent one keeps a core busy for as long as it is held.
    own = {"bootstrap.servers": gateway.bootstrap, "linger.ms": 0, "enable.idempotence": True, "max.in.flight": 1}
    producer = Producer(own | options)
    sent = 0
    give_up = time.monotonic() + DEADLINE_S
    while not seen():
        assert time.monotonic() < give_up, "nothing was seen"
        # A look takes as long as the cluster has topics: enough in between for any limit here, however long it was.
        start, due = time.monotonic(), sent
        while (passed := time.monotonic() - start) < BETWEEN_LOOKS_S:
            while sent < due + passed * PER_S:
                producer.produce(topic, bytes(1000), on_delivery=told)
                sent += 1
            producer.poll(0.01)
    assert producer.flush(60) == 0
    assert failed == []
    assert acknowledged == sent
    return sent


def noted(gateway: Gateway, note: str, topic: str) -> float:
    return gateway.metric("policy_bytes_total", broker="1", topic=topic, outcome=note, reason="topic-threshold")


def rows(gateway: Gateway, topic: str) -> dict[str, int]:
    """Messages by outcome in the spooled usage records."""
    found: dict[str, int] = {}
    for record in gateway.spooled():
        for row in record["rows"]:
            if row["topic"] == topic:
                found[row["outcome"]] = found.get(row["outcome"], 0) + row["messages"]
    return found


def test_observe_counts_what_would_be_rejected_and_touches_nothing(kafka: EmbeddedCluster, topic: str) -> None:
    with Gateway(kafka.bootstrap_servers, {"mode": "observe", "thresholds": {LIMIT: SMALL}}) as gateway:
        assert noted(gateway, "would_reject", topic) == 0
        sent = produce_until(gateway, topic, lambda: noted(gateway, "would_reject", topic) > 0)
        gateway.stop()
        counted = rows(gateway, topic)
        assert counted["accepted"] == sent == end_offsets(kafka, topic)
        assert 0 < counted["would_reject"] <= sent
        assert set(counted) == {"accepted", "would_reject"}
        assert "would reject: topic" in gateway.log()


def test_acks_0_over_its_limit_is_dropped_only_where_the_operator_says_so(kafka: EmbeddedCluster, topic: str) -> None:
    settings = {"acks0": "drop", "thresholds": {LIMIT: SMALL}}
    with Gateway(kafka.bootstrap_servers, settings) as gateway:

        def dropped() -> float:
            labels = {"broker": "1", "topic": topic, "outcome": "dropped", "reason": "acks0-limit"}
            return gateway.metric("produce_bytes_total", **labels)

        assert dropped() == 0
        sent = produce_until(gateway, topic, lambda: dropped() > 0, acks=0, **{"enable.idempotence": False})
        gateway.stop()
        counted = rows(gateway, topic)
        wait_for("the broker to append", lambda: counted["unacknowledged"] == end_offsets(kafka, topic))
        assert counted["unacknowledged"] + counted["dropped"] == sent


@pytest.mark.full  # gateway/data/session/limits/test_rollout.py
def test_a_policy_that_is_brought_in_by_steps_slows_down_clients_in_it_and_counts_the_others(
    kafka: EmbeddedCluster, topic: str
) -> None:
    ids = [f"client-{number}" for number in range(20)]
    thresholds = {LIMIT: 100_000, "on_exceed": "delay", "enforce_percent": 50}
    with Gateway(kafka.bootstrap_servers, {"thresholds": thresholds}) as gateway:
        assert gateway.metric("policy_enforced_clients_ratio", policy="threshold") == 0.5
        key = derive_key(read_secret(gateway.spool / KEY_FILE_NAME), ROLLOUT_PURPOSE)
        held, free = (
            next(name for name in ids if (rollout_place("User:ANONYMOUS", name, key) < 50) is is_in)
            for is_in in (True, False)
        )
        produce_until(gateway, topic, lambda: noted(gateway, "would_delay", topic) > 0, **{"client.id": free})
        assert noted(gateway, "delayed", topic) == 0
        produce_until(gateway, topic, lambda: noted(gateway, "delayed", topic) > 0, **{"client.id": held})
        gateway.stop()
        found = {
            (row["client_id"], row["outcome"])
            for record in gateway.spooled()
            for row in record["rows"]
            if row["topic"] == topic
        }
        assert found == {(free, "accepted"), (free, "would_delay"), (held, "accepted"), (held, "delayed")}
