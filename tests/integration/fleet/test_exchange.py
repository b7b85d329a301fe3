# Exchanges that hear each other over a real broker: at once, one after the other, and whatever happens to the topic and
# to the cluster. Each runs as a gateway's control process runs it; what it hears is kept for the test.

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from gateway.control.fleet.exchange import exchange as exchange_module
from gateway.control.fleet.exchange import usage_codec as form
from gateway.control.fleet.exchange.exchange import TOPIC_SPEC, GatewayUsage, UsageExchange
from gateway.control.fleet.exchange.peers import PeerNews
from gateway.control.fleet.exchange.reports import ThresholdRate
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.embedded import EmbeddedCluster
from gateway.kafka.internal_topic import REQUEST_TIMEOUT_S
from policies.fleet.keys import FleetKey, group_key, total_key
from policies.fleet.shares import IDLE, LimitDemand
from tests.integration.gateways import LogBatch, log_batches

WAIT_S = 60.0  # until what must come has come, however busy the machine is
CYCLE_S = 0.5
PATIENT_S = 2.5  # a cycle where nobody may be taken for dead, however busy the machine is
LATENCY_S = 0.3
GOLD = group_key("gold", "publish", "bytes")
TOTAL = total_key(1)


@pytest.fixture
def topic() -> str:
    return f"resource-usage-{uuid.uuid4().hex[:8]}"


class Gateway:
    def __init__(self, kafka: EmbeddedCluster, topic: str, name: str, **options: Any) -> None:
        self.uses: dict[str, LimitDemand] = {}
        self.rates: list[ThresholdRate] = []
        self.heard: list[tuple[float, PeerNews]] = []
        self.gone: list[tuple[float, str]] = []
        self.states: list[bool] = []
        self._presented: set[str] = set()
        self.exchange = UsageExchange(
            {"bootstrap.servers": options.pop("bootstrap", kafka.bootstrap_servers)},
            topic,
            name,
            self,
            **{"cycle_s": CYCLE_S} | options,
        )

    def on_peer_news(self, heard: PeerNews) -> None:
        self.heard.append((time.monotonic(), heard))

    def on_peer_lost(self, peer: str) -> None:
        self.gone.append((time.monotonic(), peer))

    def on_exchange_state(self, up: bool) -> None:
        self.states.append(up)

    def on_report_published(self, keys: Sequence[FleetKey]) -> None:
        pass

    def find_limit(self, key: FleetKey) -> float | None:
        return None

    def busiest_traffic(self) -> GatewayTraffic:
        return GatewayTraffic()

    def current_usage(self) -> GatewayUsage:
        ended, self._presented = self._presented - self.uses.keys(), set(self.uses)
        return GatewayUsage({**self.uses, **dict.fromkeys(ended, IDLE)}, self.rates, 2)

    @property
    def problem(self) -> str:
        return self.exchange.health.problem

    @property
    def dropped(self) -> dict[str, int]:
        """How many messages, by reason; without those that were stale when a machine that stood still read them."""
        return {why: count for why, count in self.exchange.peers.drop_counts.items() if count and why != "stale"}

    def knows(self, key: str) -> list[float]:
        """What others take of it, rounded to two digits."""
        return sorted(float(f"{use.rate:.2g}") for use in self.exchange.peers.demands_for(key))

    async def until(self, what: str, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < timeout_s, f"no {what}: {self.problem}, {self.exchange.peers.drop_counts}"
            await trio.sleep(0.01)

    async def ready(self, peers: int) -> None:
        await self.until(
            f"{peers} peers", lambda: self.exchange.health.is_up and self.exchange.peers.peer_count == peers
        )


@asynccontextmanager
async def running(*gateways: Gateway) -> AsyncIterator[list[trio.CancelScope]]:
    """Cancel one of the scopes to stop that one."""
    scopes = [trio.CancelScope() for _ in gateways]

    async def run(gateway: Gateway, scope: trio.CancelScope) -> None:
        with scope:
            await gateway.exchange.run()

    async with trio.open_nursery() as nursery:
        for gateway, scope in zip(gateways, scopes, strict=True):
            nursery.start_soon(run, gateway, scope)
        yield scopes
        for scope in scopes:
            scope.cancel()


def admin(kafka: EmbeddedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def create_topic(kafka: EmbeddedCluster, topic: str, partitions: int, config: dict[str, str]) -> None:
    client = admin(kafka)
    client.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(timeout=WAIT_S)


def delete_topic(kafka: EmbeddedCluster, topic: str) -> None:
    client = admin(kafka)
    client.delete_topics([topic])[topic].result(timeout=WAIT_S)


def settings_of(kafka: EmbeddedCluster, topic: str) -> dict[str, str]:
    client, resource = admin(kafka), ConfigResource(ResourceType.TOPIC, topic)
    found = client.describe_configs([resource])[resource].result(timeout=WAIT_S)
    return {name: found[name].value for name in TOPIC_SPEC.config}


@pytest.mark.seed("82.12")
async def test_two_gateways_hear_each_other(
    kafka: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gateway.control.fleet.exchange.writer.LATE_S", WAIT_S
    )  # a report that is late would be thrown away
    a, b = Gateway(kafka, topic, "a"), Gateway(kafka, topic, "b")
    async with running(a, b):
        await a.ready(1)
        await b.ready(1)
        for rate in (100.0, 200.0, 50.0):
            a.uses = {GOLD: LimitDemand(rate, rate > 100), TOTAL: LimitDemand(rate / 2)}
            await b.until(f"a rate of {rate}", lambda rate=rate: b.knows(GOLD) == [rate])  # type: ignore[misc]
            assert b.knows(TOTAL) == [rate / 2]
        a.uses = {}
        await b.until("an end of it", lambda: b.knows(GOLD) == [])
    assert a.exchange.peers.living_gateways.keys() <= {heard.peer for _, heard in a.heard}
    assert a.dropped == {}
    assert a.exchange.writer.sent_messages >= 4
    assert a.exchange.received_messages >= 4
    assert a.exchange.received_bytes > 20 * a.exchange.received_messages
    assert a.exchange.writer.failed_messages == 0


async def test_the_way_over_the_topic_takes_less_than_three_tenths_of_a_second(
    kafka: EmbeddedCluster, topic: str
) -> None:
    a, b = Gateway(kafka, topic, "a", cycle_s=0.2), Gateway(kafka, topic, "b", cycle_s=0.2)
    trips: list[float] = []

    def is_quick() -> bool:  # where nothing else is in the way
        trips.append(a.exchange.peers.round_trip_s)
        return trips[-1] < LATENCY_S

    async with running(a, b):
        await a.until(f"trip of less than {LATENCY_S} s: {trips}", is_quick)


@pytest.mark.seed("82.22")
async def test_three_gateways_and_one_that_comes_late(kafka: EmbeddedCluster, topic: str) -> None:
    a, b, c = (Gateway(kafka, topic, name) for name in "abc")
    a.uses, b.uses = {GOLD: LimitDemand(100.0), TOTAL: LimitDemand(5.0)}, {GOLD: LimitDemand(10.0, True)}
    a.rates = [ThresholdRate(1, None, 500.0), ThresholdRate(1, "clicks", 300.0)]
    async with running(a, b):
        await a.ready(1)
        await b.ready(1)
        await b.until("usage", lambda: b.knows(GOLD) == [100.0])
        await trio.sleep(3 * CYCLE_S)  # all was said long ago
        async with running(c):
            await c.until("usages of both", lambda: (c.knows(GOLD), c.knows(TOTAL)) == ([10.0, 100.0], [5.0]))
            await c.until("rates", lambda: c.exchange.peers.broker_rates().get(1, (0.0, {}))[1].get("clicks") == 300.0)
            await c.until("workers", lambda: c.exchange.peers.worker_count == 4)
            await a.ready(2)
            assert set(a.exchange.peers.living_gateways.values()) == {"b", "c"}
        # who stops in order is gone at once
        await a.until("only one peer", lambda: a.exchange.peers.peer_count == 1)
        assert a.heard[-1][1].left or any(heard.left for _, heard in a.heard[-4:])


@pytest.mark.seed("82.15", "82.49", "82.50")
async def test_the_topic_is_made_as_it_must_be(kafka: EmbeddedCluster, topic: str) -> None:
    a = Gateway(kafka, topic, "a")
    async with running(a):
        await a.ready(0)
    assert settings_of(kafka, topic) == TOPIC_SPEC.config
    metadata = admin(kafka).list_topics(topic, timeout=WAIT_S).topics[topic]
    assert len(metadata.partitions) == 1
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
        said = form.decode_usage(message.value() or b"")
        assert (said.broker, said.workers, said.cycle_ms) == ("a", 2, 1000 * CYCLE_S)
    finally:
        consumer.close()


@pytest.mark.seed("82.38")
async def test_reports_are_compressed_as_a_whole(kafka: EmbeddedCluster, topic: str) -> None:
    a, b = Gateway(kafka, topic, "a"), Gateway(kafka, topic, "b")
    reports = [
        {group_key(f"tenant-{n}", "publish", "bytes"): LimitDemand(n + x) for n in range(1200)} for x in (1.0, 10_000.0)
    ]
    a.uses = reports[0]

    def of_gzip() -> list[LogBatch]:
        return [batch for batch in log_batches(kafka, topic) if batch.codec == 1]

    def is_batched() -> bool:  # not where its producer waited for the processor longer than it lingers: then once more
        a.uses = reports[a.uses is reports[0]]
        return any(batch.records >= 3 for batch in of_gzip())

    async with running(a, b):
        await b.until("usages", lambda: all(b.knows(key) for key in a.uses))
        await b.until("batch of three messages", is_batched)
    gzip = of_gzip()
    assert all(batch.size < batch.records * 500 * 16 for batch in gzip)


async def test_a_topic_that_another_program_made_is_put_right(kafka: EmbeddedCluster, topic: str) -> None:
    """Two partitions, Kafka's settings, but one that was chosen: that stays."""
    create_topic(kafka, topic, 2, {"retention.ms": "3600000"})
    a, b = Gateway(kafka, topic, "a"), Gateway(kafka, topic, "b")
    a.uses = {GOLD: LimitDemand(100.0)}
    async with running(a, b):
        await b.until("usage", lambda: b.knows(GOLD) == [100.0])
        await a.ready(1)
    assert settings_of(kafka, topic) == {**TOPIC_SPEC.config, "retention.ms": "3600000"}


async def test_a_topic_that_is_deleted_is_made_anew(
    kafka: EmbeddedCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (Gateway(kafka, topic, name, cycle_s=PATIENT_S) for name in "ab")
    a.uses, b.uses = {GOLD: LimitDemand(100.0)}, {GOLD: LimitDemand(10.0)}
    async with running(a, b):
        await a.ready(1)
        await b.ready(1)
        await trio.to_thread.run_sync(delete_topic, kafka, topic)
        a.uses = {GOLD: LimitDemand(200.0)}
        await b.until("a rate of 200", lambda: b.knows(GOLD) == [200.0])
        await a.ready(1)
        await b.ready(1)
        assert a.states in ([True], [True, False, True])
        assert a.problem == ""
    assert (a.gone, b.gone) == ([], [])  # nobody was taken for dead
    assert "Traceback" not in caplog.text


async def test_partitions_that_somebody_adds_are_read_at_once(kafka: EmbeddedCluster, topic: str) -> None:
    a, b = (Gateway(kafka, topic, name, cycle_s=PATIENT_S) for name in "ab")
    async with running(a, b):
        await a.ready(1)
        await b.ready(1)
        client = admin(kafka)
        client.create_partitions([NewPartitions(topic, 3)])[topic].result(timeout=WAIT_S)
        for each in (a, b):
            await each.until("partitions", lambda each=each: each.exchange._reader._partitions == {0, 1, 2})  # type: ignore[misc]
            await each.until("end of each", lambda each=each: each.exchange._reader.is_reading)  # type: ignore[misc]
        a.uses = {GOLD: LimitDemand(200.0)}
        await b.until("a rate of 200", lambda: b.knows(GOLD) == [200.0])
        assert (a.states, b.states) == ([True], [True])
    assert (a.gone, b.gone) == ([], [])


async def test_a_consumer_that_reads_nothing_more_is_replaced(
    kafka: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As librdkafka's, for ever, where a topic was recreated after its partition had changed its leader, and the new
    one begins at another broker: its leader epoch is lower.
    """
    monkeypatch.setattr(exchange_module, "RENEW_S", 0.0)
    a, b = Gateway(kafka, topic, "a"), Gateway(kafka, topic, "b")
    async with running(a, b):
        await a.ready(1)
        await b.ready(1)
        consumer = a.exchange._reader._consumer
        assert consumer is not None
        consumer.unassign()
        b.uses = {GOLD: LimitDemand(100.0)}
        await a.until("usage", lambda: a.knows(GOLD) == [100.0])
        await a.ready(1)
        assert a.exchange._reader._consumer is not consumer


async def test_a_cluster_that_goes_away_and_comes_back(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """And a gateway that starts while it is away."""
    with EmbeddedCluster(1) as kafka:
        a, b, late = (Gateway(kafka, topic, name, cycle_s=PATIENT_S) for name in ("a", "b", "late"))
        a.uses, b.uses = {GOLD: LimitDemand(100.0)}, {GOLD: LimitDemand(10.0)}
        async with running(a, b):
            await a.ready(1)
            await b.ready(1)
            await b.until("usage", lambda: b.knows(GOLD) == [100.0])
            since = a.exchange.health.since
            await trio.to_thread.run_sync(kafka.kill_broker, 1)
            async with running(late):
                await a.until("a problem", lambda: not a.exchange.health.is_up)
                await b.until("a problem", lambda: not b.exchange.health.is_up)
                assert a.problem
                assert a.exchange.health.since > since
                await trio.sleep(PATIENT_S)
                # what was known stays, nothing piles up, and nothing is said into the void
                assert (b.knows(GOLD), b.exchange.peers.peer_count) == ([100.0], 1)
                assert a.exchange.writer._pending <= 1
                assert (late.exchange.health.is_up, late.exchange.writer.sent_messages) == (False, 0)
                a.uses = {GOLD: LimitDemand(300.0)}
                sent = a.exchange.writer.sent_messages
                await trio.to_thread.run_sync(kafka.start_broker, 1)
                await b.until("what changed meanwhile", lambda: b.knows(GOLD) == [300.0])
                for gateway in (a, b, late):
                    await gateway.ready(2)
                await late.until("usages", lambda: late.knows(GOLD) == [10.0, 300.0])
                assert a.exchange.writer.sent_messages - sent < 60
                assert (a.gone, b.gone) == ([], [])
                assert (a.states, a.problem) == ([True, False, True], "")
                assert late.states == [True]
    warnings = [record.getMessage() for record in caplog.records if record.name == "gateway.fleet"]
    assert len(warnings) < 20, warnings  # some about each of three, over many seconds


async def test_a_stop_is_quick_also_when_no_broker_answers(kafka: EmbeddedCluster, topic: str) -> None:
    a = Gateway(kafka, topic, "a", bootstrap="127.0.0.1:1")
    async with running(a):
        await a.until("a problem", lambda: "is not available" in a.exchange.health._trouble)
        began = time.monotonic()
    assert time.monotonic() - began < REQUEST_TIMEOUT_S


async def test_hurry_does_not_wait_for_the_cycle(kafka: EmbeddedCluster, topic: str) -> None:
    cycle_s = 30.0
    a, b = Gateway(kafka, topic, "a", cycle_s=cycle_s), Gateway(kafka, topic, "b", cycle_s=cycle_s)
    a.uses = {GOLD: LimitDemand(50.0)}
    async with running(a, b):
        await b.until("usage", lambda: b.knows(GOLD) == [50.0])
        await a.ready(1)
        await trio.sleep(cycle_s / 4)  # they have met, and a has said all again, as five times per cycle it may
        a.uses = {GOLD: LimitDemand(100.0, True)}
        a.exchange.report_soon()
        await b.until("usage", lambda: b.knows(GOLD) == [100.0], cycle_s / 2)
