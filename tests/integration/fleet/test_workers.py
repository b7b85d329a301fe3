# Several workers under one control: connections go to all of them, their numbers are one gateway's, and each may die.

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway.embedded import EmbeddedCluster, wait_for
from policies import usage
from tests.gateway.data import play
from tests.integration.gateways import Gateway, Sum, create_topic, end_offsets, lives, log_bytes, sums, total
from tests.integration.limits.steady import RECOVERY_S, Steady, assert_in_log_once_and_in_order
from tests.integration.wire import Wire

TWO = {"workers": 2}


@pytest.fixture
def gateway(kafka: EmbeddedCluster) -> Iterator[Gateway]:
    with Gateway(kafka.bootstrap_servers, TWO) as running:
        yield running


def both_up(gateway: Gateway) -> bool:
    return all(gateway.metric("worker_up", worker=str(number)) == 1 for number in range(2))


def test_connections_and_bytes_of_all_workers_are_one_gateways(kafka: EmbeddedCluster, gateway: Gateway) -> None:
    topic = create_topic(kafka, "workers-sum")
    assert both_up(gateway), "ready once each is there"
    size, port = play.size_of(), gateway.broker_port(1)
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(port)) for _ in range(6)]
        for number, wire in enumerate(wires):
            assert wire.produce(play.request(number, {topic: [0]}))[1] == {(topic, 0): (0, None)}
        wait_for("gauges", lambda: gateway.metric("connections") == 6)
        assert [gateway.metric("connections", worker=str(number)) for number in range(2)] == [3, 3]
        gateway.settle(topic, Sum(6 * size, 6), "accepted")
        wait_for("a tick of both meters", lambda: gateway.metric("topic_rate_bytes_per_second", topic=topic) > 0)
    records = gateway.wait_published(kafka)
    by_worker = {record["worker"] for record in records if any(row["topic"] == topic for row in record["rows"])}
    assert by_worker == {0, 1}
    assert total(sums(records)[topic], "accepted") == Sum(log_bytes(kafka, topic), end_offsets(kafka, topic))
    gateway.stop()
    assert [own[-1]["final"] for own in lives(gateway.spooled()).values()] == [True, True]


def test_each_worker_may_be_killed_in_turn_and_nothing_is_lost(kafka: EmbeddedCluster, gateway: Gateway) -> None:
    topics = [create_topic(kafka, f"workers-killed-{number}") for number in range(3)]
    with ExitStack() as stack:
        producers = [stack.enter_context(Steady(gateway.bootstrap, topic)) for topic in topics]
        for number in (0, 1):
            wait_for("both workers", lambda: both_up(gateway), RECOVERY_S)
            victim, survivor = gateway.worker(number), gateway.worker(1 - number)
            os.kill(victim, signal.SIGKILL)
            for producer in producers:
                producer.wait_for(200)
            wait_for("a successor", lambda v=victim, n=number: gateway.worker(n) not in (0, v), RECOVERY_S)  # type: ignore[misc]
            wait_for("readiness", gateway.ready)
            assert gateway.worker(1 - number) == survivor
        for producer, topic in zip(producers, topics, strict=True):
            assert_in_log_once_and_in_order(kafka, topic, producer.finish())
    wait_for("both workers", lambda: both_up(gateway), RECOVERY_S)
    assert [gateway.metric("worker_restarts_total", worker=str(number)) for number in range(2)] == [1, 1]
    assert gateway.metric("workers_lost_total") == 2
    gateway.stop()
    ends = [own[-1] for own in lives(gateway.spooled()).values()]
    assert sorted(record["worker"] for record in ends if record["kind"] == usage.LOST) == [0, 1]
    assert sorted(record["worker"] for record in ends if record["final"]) == [0, 1]
