# The agent's snapshots and metrics, without Kafka.

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from prometheus_client import generate_latest

from gateway.agent import publishing
from gateway.agent.arguments import read_settings
from gateway.agent.metrics import PREFIX, AgentMetrics
from gateway.agent.publishing import RETRY_S, VolumeAgent
from gateway.storage.snapshot import decode_snapshot
from policies.storage import Volume, VolumeLimit
from tests.gateway.agent.test_measuring import formatted


class Cluster:
    """Acknowledges each record after `takes_s`, of which it remembers when it came; and the time, which goes on while
    the producer waits. `steps`: what came, in its order.
    """

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.now = 100.0
        self.error: KafkaError | None = None
        self.steps: list[str] = []
        self.records: list[tuple[float, str, str, bytes]] = []
        self._waiting: list[tuple[float, Callable[..., None]]] = []

    def monotonic(self) -> float:
        return self.now

    def ensure_topic(self) -> str:
        self.steps.append("topic")
        return ""

    def produce(self, topic: str, *, key: str, value: bytes, on_delivery: Callable[..., None]) -> None:
        self.steps.append("record")
        self.records.append((self.now, topic, key, value))
        self._waiting.append((self.now + self.takes_s, on_delivery))

    def poll(self, timeout: float) -> None:
        self.now += timeout
        while self._waiting and self._waiting[0][0] <= self.now:
            self._waiting.pop(0)[1](self.error, None)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(2.0)
    monkeypatch.setattr(publishing, "time", cluster)
    monkeypatch.setattr(publishing, "Producer", Mock(return_value=cluster))
    monkeypatch.setattr(publishing, "volume_topic", Mock(return_value=cluster))
    return cluster


def run_agent(cluster: Cluster, tmp_path: Path, records: int, *flags: str) -> AgentMetrics:
    """Until so many were published or failed."""
    formatted(tmp_path / "a")
    settings = read_settings(["--broker-id", "7", "--log-dirs", str(tmp_path / "a"), "--topic", "volumes", *flags])
    metrics = AgentMetrics(settings.log_dirs)
    agent = VolumeAgent(settings, metrics, lambda: 1_790_000_000.0)
    poll = cluster.poll

    def counted(timeout: float) -> None:
        poll(timeout)
        if len(cluster.records) >= records and not cluster._waiting:
            agent.stop_requested.set()

    cluster.poll = counted  # type: ignore[method-assign]
    agent.run()
    return metrics


@pytest.mark.seed("035.13")
def test_a_snapshot_is_published_at_the_start_and_then_in_each_interval(cluster: Cluster, tmp_path: Path) -> None:
    """However long the cluster takes for one."""
    metrics = run_agent(cluster, tmp_path, 4, "--interval", "30s")
    assert [at for at, *_ in cluster.records] == pytest.approx([100.0, 130.0, 160.0, 190.0])
    assert said(metrics, "snapshots_published_total") == 4


@pytest.mark.seed("035.13", "035.36")
def test_a_snapshot_that_the_cluster_does_not_take_is_an_error_and_soon_tried_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.error = KafkaError(KafkaError._MSG_TIMED_OUT)
    metrics = run_agent(cluster, tmp_path, 3, "--interval", "30s")
    pause = cluster.takes_s + RETRY_S
    assert [at for at, *_ in cluster.records] == pytest.approx([100.0, 100.0 + pause, 100.0 + 2 * pause])
    assert (said(metrics, "publication_errors_total"), said(metrics, "snapshots_published_total")) == (3, 0)


@pytest.mark.parametrize("poll", range(6))  # before a record, while it is on its way, and between two of them
def test_a_producer_that_has_failed_for_good_is_replaced_and_the_agent_goes_on(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, poll: int
) -> None:
    """As librdkafka has it where the agent may not write yet: see `is_fatal`."""
    cluster.takes_s = 0.5
    producers: list[FailingProducer] = []

    class FailingProducer:
        def __init__(self, _: object) -> None:
            self._polls = 0
            self._is_first = not producers
            producers.append(self)

        def produce(self, *args: object, **options: object) -> None:
            if self._is_first and self._polls > poll:
                raise KafkaException(KafkaError(KafkaError._FATAL, "Unable to produce message: Local: Fatal error"))
            cluster.produce(*args, **options)  # type: ignore[arg-type]

        def poll(self, timeout: float) -> None:
            self._polls += 1
            if self._is_first and self._polls == poll + 1:
                raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no right", True))
            cluster.poll(timeout)

    monkeypatch.setattr(publishing, "Producer", FailingProducer)
    metrics = run_agent(cluster, tmp_path, 3, "--interval", "30s")
    assert len(producers) == 2
    assert said(metrics, "snapshots_published_total") >= 2
    (why,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert why == "snapshot not published: no right; trying again"


@pytest.mark.seed("035.12")
def test_usage_is_published_by_the_broker_s_id_to_a_topic_that_was_put_right_before(
    cluster: Cluster, tmp_path: Path
) -> None:
    run_agent(cluster, tmp_path, 2)
    assert cluster.steps == ["topic", "record", "record"]
    for _, topic, key, value in cluster.records:
        snapshot = decode_snapshot(value, key.encode())
        assert (topic, key) == ("volumes", "7")
        assert [volume.total > 0 for volume in snapshot.volumes] == [True]


def said(metrics: AgentMetrics, name: str) -> float:
    """That metric's value."""
    (value,) = re.findall(rf"^{PREFIX}_{name} (\S+)$", generate_latest(metrics.registry).decode(), re.M)
    return float(value)


@pytest.mark.seed("035.37")
def test_metrics_of_volumes_are_those_of_the_last_measurement() -> None:
    metrics = AgentMetrics(["/a"])
    metrics.volumes.shown = (Volume(1, "/dev/a", 100, 40, VolumeLimit("MinFreePercentage", 0.2), None),)
    text = generate_latest(metrics.registry).decode()
    prefix = "produce_gateway_volume_agent"
    for name, value in (("capacity", 100), ("available", 40), ("consumed", 60), ("soft_level_free", 20)):
        assert f'{prefix}_volume_{name}_bytes{{volume="/dev/a"}} {value}.0' in text
    assert "hard_level_free_bytes{" not in text
    assert f'{prefix}_log_dir_errors_total{{log_dir="/a"}} 0.0' in text
    metrics.volumes.shown = ()
    assert "/dev/a" not in generate_latest(metrics.registry).decode()
