# The Prometheus source against a real Prometheus, which scrapes exporters of ours: what node_exporter and a kubelet say
# of Kafka's volumes. A Prometheus is looked for on PATH; without one these tests are skipped, in CI they fail.

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily

from gateway.embedded import EmbeddedCluster, find_free_port, reap_process, spawn_process, wait_for
from gateway.storage.log_dirs import active_brokers
from gateway.storage.prometheus import Prometheus
from policies.storage import ObservationFailed, Volume

READY_S = 60.0
NODE = ("node_filesystem_avail_bytes", "node_filesystem_size_bytes")
KUBELET = ("kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes")


class Exporter:
    """`volumes`: (labels, available, size); `age_s`: how old it says that its samples are. Names of NODE or KUBELET."""

    def __init__(self, names: tuple[str, str]) -> None:
        self._names = names
        self.volumes: list[tuple[dict[str, str], float, float]] = []
        self.age_s: float | None = None
        registry = CollectorRegistry()
        registry.register(self)
        self.port = find_free_port()
        self._running: tuple[WSGIServer, Thread] | None = start_http_server(self.port, "127.0.0.1", registry)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        stamp = None if self.age_s is None else time.time() - self.age_s
        available, size = (GaugeMetricFamily(name, "as a test has it") for name in self._names)
        for labels, free, whole in self.volumes:
            available.add_sample(available.name, labels, free, timestamp=stamp)
            size.add_sample(size.name, labels, whole, timestamp=stamp)
        return available, size

    def stop(self) -> None:
        if self._running is not None:
            server, thread = self._running
            self._running = None
            server.shutdown()
            server.server_close()
            thread.join()


class Scraped:
    """A Prometheus that scrapes `exporters` (target's labels, exporter) every 200 ms."""

    def __init__(self, folder: Path, exporters: list[tuple[dict[str, str], Exporter]]) -> None:
        binary = shutil.which("prometheus")
        if binary is None:
            reason = "no prometheus on PATH (Debian, Ubuntu: the package prometheus)"
            (pytest.fail if os.environ.get("CI", "").lower() in ("true", "1") else pytest.skip)(reason)
        jobs = "\n".join(
            f"      - {{targets: ['127.0.0.1:{exporter.port}'], labels: {labels}}}" for labels, exporter in exporters
        )
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"scrape_configs:\n  - job_name: kafka-nodes\n    static_configs:\n{jobs}\n"
        )
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = spawn_process(
                [binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address=127.0.0.1:{port}"],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def stop(self) -> None:
        reap_process(self.process, 20.0)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    """run(({labels}, exporter), …) starts a Prometheus; it and the exporters end with the test."""
    with ExitStack() as stack:

        def start(*exporters: tuple[dict[str, str], Exporter]) -> Scraped:
            for _, exporter in exporters:
                stack.callback(exporter.stop)
            running = Scraped(tmp_path, list(exporters))
            stack.callback(running.stop)
            wait_for("Prometheus to be ready", running.is_ready, READY_S)
            return running

        yield start


def observed(source: Prometheus) -> tuple[Volume, ...] | str:
    try:
        return source.observe().volumes
    except ObservationFailed as error:
        return str(error)


def wait_for_volumes(source: Prometheus, *volumes: Volume) -> None:
    wait_for(f"{volumes}", lambda: observed(source) == volumes, READY_S)


def wait_for_failure(source: Prometheus, told: str) -> None:
    wait_for(f"{told!r}", lambda: told in str(observed(source)), READY_S)


def mount(point: str) -> dict[str, str]:
    return {"device": "/dev/sdb", "fstype": "ext4", "mountpoint": point}


@pytest.mark.seed("035.3")
def test_node_exporters_beside_the_brokers(run: Any, kafka: EmbeddedCluster) -> None:
    (node_id,) = kafka.brokers
    ours, others = Exporter(NODE), Exporter(NODE)
    ours.volumes = [(mount("/var/lib/kafka/data"), 2e9, 1e11), (mount("/"), 5, 10)]
    others.volumes = [(mount("/var/lib/kafka/data"), 0, 1e11)]
    prometheus = run(({"instance": f"kafka-{node_id}:9100"}, ours), ({"instance": f"kafka-{node_id + 7}:9100"}, others))
    source = Prometheus(prometheus.url, active_brokers=lambda: active_brokers({}, kafka.bootstrap_servers))
    volume = Volume(node_id, "/var/lib/kafka/data", 10**11, 2 * 10**9)
    wait_for_volumes(source, volume)  # the other one is no broker of this cluster
    ours.volumes[0] = (mount("/var/lib/kafka/data"), 1e9, 1e11)
    wait_for_volumes(source, volume._replace(available=10**9))
    ours.volumes.append((mount("/mnt/kafka"), float("nan"), 1e11))
    wait_for_failure(source, f"Prometheus says available = nan of broker {node_id} volume /mnt/kafka")
    ours.volumes.pop()
    wait_for_volumes(source, volume._replace(available=10**9))
    ours.stop()
    wait_for_volumes(source)

    def is_missed() -> bool:
        try:
            return source.observe().missing == {node_id}
        except ObservationFailed:  # of the other one a scrape was late
            return False

    wait_for("it to be missed", is_missed, READY_S)


def test_kubelets_with_strimzis_volume_claims(run: Any) -> None:
    kubelet = Exporter(KUBELET)
    names = [f"data-{disk}-my-cluster-kafka-{broker}" for broker in (0, 1) for disk in (0, 1)]
    kubelet.volumes = [({"namespace": "kafka", "persistentvolumeclaim": name}, 30, 100) for name in names]
    kubelet.volumes.append(({"namespace": "db", "persistentvolumeclaim": "data-postgres-0"}, 1, 100))
    prometheus = run(({"instance": "10.0.0.7:10250"}, kubelet))
    source = Prometheus(prometheus.url, expected_brokers=[0, 1])
    wait_for_volumes(source, *(Volume(int(name[-1]), name, 100, 30) for name in names))
    kubelet.volumes.append(({"namespace": "other", "persistentvolumeclaim": names[0]}, 1, 100))
    wait_for_failure(source, "broker 0 is both kafka/my-cluster-kafka-0 and other/my-cluster-kafka-0: narrow")
    narrow = [f'{name}{{namespace="kafka",persistentvolumeclaim=~"data-(.-)?my-cluster-.*"}}' for name in KUBELET]
    narrowed = Prometheus(prometheus.url, narrow[0], narrow[1], expected_brokers=[0, 1])
    wait_for_volumes(narrowed, *(Volume(int(name[-1]), name, 100, 30) for name in names))


def test_the_age_of_samples_is_prometheus_own(run: Any) -> None:
    late = Exporter(NODE)
    late.volumes = [(mount("/kafka"), 30, 100)]
    late.age_s = 120.0  # within the five minutes for which Prometheus repeats what it had last
    prometheus = run(({"instance": "kafka-1"}, late))
    wait_for_volumes(Prometheus(prometheus.url, max_age=250), Volume(1, "/kafka", 100, 30))
    told = observed(Prometheus(prometheus.url, max_age="1m"))
    assert isinstance(told, str)
    assert "Prometheus' samples of node_filesystem_avail_bytes" in told
    assert "and max_age is 60 s" in told
    # For what is more than a selector no age is known.
    sums = [f"sum by (instance, mountpoint) ({name})" for name in NODE]
    assert observed(Prometheus(prometheus.url, sums[0], sums[1], max_age="1m")) == (Volume(1, "/kafka", 100, 30),)


def test_a_wrong_expression_is_told_as_prometheus_tells_it(run: Any) -> None:
    prometheus = run()
    told = observed(Prometheus(prometheus.url, "up{", "up"))
    assert isinstance(told, str)
    assert told.startswith(f"Prometheus at {prometheus.url} answers 400: ")
    assert "parse error" in told
    assert "\n" not in told
    assert observed(Prometheus(prometheus.url, "1", "2")) == "1 is a scalar: one number per volume is needed"
