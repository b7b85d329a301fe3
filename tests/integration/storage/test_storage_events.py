# What storage protection does when it doesn't see: those rows of the table of events in docs/storage.md in which a
# process ends, in real processes. (Rows in which a source says something else are in test_log_dirs.py, in
# gateway/control/storage/ and policies/storage/.) Each ends with all that an operator can look at (`expect`): state and
# origin, /metrics, one log line.
#
# One cluster for all: broker 1 is the controller as well; broker 2 has a small disk beside a large one, and may be
# ended. The gateways ask through a door in front of each broker, which can be shut; producers don't need it. Intervals
# are as short as they go; times after which something ends are long enough for a machine that does nothing for several
# seconds.

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway import embedded
from gateway.embedded import EmbeddedCluster, EmbeddedError, find_free_port, wait_for
from tests.integration.gateways import Gateway, create_topic, end_offsets, read_topic
from tests.integration.limits.steady import Steady, assert_in_log_once_and_in_order
from tests.integration.storage.disks import SmallDisk
from tests.integration.storage.test_log_dirs import Proxy

MB = 1_000_000
DISK = 40 * MB
SEEN_S = 60.0  # until something that must come has come
_names = itertools.count(1)

INTERVAL_S = 0.5
LOG_DIRS: dict[str, Any] = {
    "source": "log-dirs",
    "check_interval": f"{INTERVAL_S}s",
    "min.available.bytes": 1,
    "throttle.factor.fallback": 0.25,
}
VALIDITY = "throttle.factor.validity.duration"
THRESHOLDS = {"total.bytes.in.per.sec.threshold": 2 * MB, "on_exceed": "delay"}
MAX_AGE_S = 120.0  # of snapshots that are written by hand, and never waited for; those of agents come every second
AGENT_MAX_AGE_S = 15.0
STALE = "broker 2 has no snapshot younger than {:g} s"
SESSION_S = 20.0  # so long a broker is listed after it was killed
NEVER = {"type": "MinFreeBytes", "level": 1}  # a limit that nothing here reaches


class Gatekeeper:
    """In front of a broker's listener for questions."""

    def __init__(self, port: int, target: int) -> None:
        self._port = port
        self._target = target
        self._proxy: Proxy | None = None

    def open(self) -> None:
        if self._proxy is None:
            self._proxy = Proxy(self._target, lambda key, version, answer: answer, self._port).__enter__()

    def shut(self) -> None:
        if self._proxy is not None:
            self._proxy.__exit__()
            self._proxy = None


class Site:
    """The cluster, its small disk, and the doors by broker id."""

    def __init__(self, kafka: EmbeddedCluster, disk: SmallDisk, doors: dict[int, Gatekeeper], address: str) -> None:
        self.kafka = kafka
        self.disk = disk
        self.doors = doors
        self.address = address  # of the doors

    def gateway(self, storage: dict[str, Any], **sections: Any) -> Gateway:
        settings = {"thresholds": THRESHOLDS, "storage": {"admin": {"bootstrap_servers": self.address}, **storage}}
        return Gateway(self.kafka.bootstrap_servers, settings | sections, node_ids=2)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    host, port = embedded.HOST, find_free_port(8)
    brokers, controller, asked, doors = (port, port + 1), port + 2, (port + 4, port + 5), (port + 6, port + 7)
    overrides = {
        "controller.quorum.voters": f"1@{host}:{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,ASKED:PLAINTEXT",
        "broker.session.timeout.ms": f"{SESSION_S * 1000:.0f}",
    }
    own = {
        node_id: {
            "process.roles": "broker,controller" if node_id == 1 else "broker",
            "listeners": f"PLAINTEXT://{host}:{brokers[node_id - 1]},ASKED://{host}:{asked[node_id - 1]}"
            + (f",CONTROLLER://{host}:{controller}" if node_id == 1 else ""),
            "advertised.listeners": f"PLAINTEXT://{host}:{brokers[node_id - 1]},ASKED://{host}:{doors[node_id - 1]}",
        }
        for node_id in (1, 2)
    }
    with ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(DISK))
        dirs = {2: [tmp_path_factory.mktemp("large"), disk.path / "small"]}
        kafka = stack.enter_context(EmbeddedCluster(2, overrides, per_broker_overrides=own, log_dirs=dirs, port=port))
        by_id = {node_id: Gatekeeper(doors[node_id - 1], asked[node_id - 1]) for node_id in (1, 2)}
        for door in by_id.values():
            stack.callback(door.shut)
        yield Site(kafka, disk, by_id, f"{host}:{doors[0]}")


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """Everything is as at the beginning."""
    for door in shared.doors.values():
        door.open()
    yield shared
    for door in shared.doors.values():
        door.open()
    if not shared.kafka.broker(2).is_running:
        restart(shared.kafka)


def restart(kafka: EmbeddedCluster) -> None:
    """Broker 2; one that was killed is let in only when its session is over."""
    try:
        kafka.start_broker(2)
    except EmbeddedError:
        if not kafka.broker(2).is_running:
            kafka.stop_broker(2)
            kafka.start_broker(2)


@contextmanager
def agents(site: Site, topic: str) -> Iterator[dict[int, Any]]:
    """A volume agent beside each broker, by broker id."""
    running = {}
    try:
        for node_id, broker in site.kafka.brokers.items():
            command = [sys.executable, "-m", "gateway", "volume-agent", "--broker-id", str(node_id), "--metrics", "off"]
            command += ["--log-dirs", ",".join(map(str, broker.log_dirs)), "--topic", topic, "--interval", "1s"]
            command += ["--bootstrap-servers", site.kafka.bootstrap_servers]
            running[node_id] = embedded.spawn_process(command, cwd=Path(__file__).parents[3])
        wait_for("their first snapshots", lambda: described_in(site, topic) == {"1", "2"}, SEEN_S, every_s=0.2)
        yield running
    finally:
        for process in running.values():
            embedded.reap_process(process)


def described_in(site: Site, topic: str) -> set[str]:
    """Broker ids."""
    return {json.loads(value)["brokerId"] for value in read_topic(site.kafka, topic)}


def volumes_topic(site: Site) -> str:
    return create_topic(site.kafka, f"volumes-{next(_names)}", cleanup_policy="compact")


def publish(site: Site, topic: str, broker_id: int) -> None:
    """A snapshot as the proposal has it."""
    at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
    none = {"type": "MinFreeBytes", "level": 0}
    volume = {"volumeName": "/data", "capacity": 100, "consumed": 40}
    value = {
        "brokerId": str(broker_id),
        "snapshotAt": at,
        "hardLimit": {"type": "MinFreeBytes", "level": 20},
        "softLimit": none,
        "volumes": [volume],
    }
    producer = Producer({"bootstrap.servers": site.kafka.bootstrap_servers})
    producer.produce(topic, json.dumps(value).encode(), str(broker_id).encode())
    assert producer.flush(30) == 0


def snapshots(topic: str, max_age_s: float = MAX_AGE_S) -> dict[str, Any]:
    section = {"topic": topic, "max_age": f"{max_age_s:g}s", "fail_safe": "PAUSE"}
    return {"source": "snapshots", "check_interval": f"{INTERVAL_S}s", "snapshots": section}


def shown(gateway: Gateway) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.admin}/v1/storage", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def reach(gateway: Gateway, state: str, origin: str, factor: float | None = None) -> dict[str, Any]:
    """Wait until it holds; what REST shows then."""
    found: dict[str, Any] = {}

    def reached() -> bool:
        found.update(shown(gateway))
        return (found["state"], found["origin"]) == (state, origin) and factor in (None, found["factor"])

    try:
        wait_for(f"{state} ({origin})", reached, SEEN_S, every_s=0.1)
    except EmbeddedError as error:
        raise AssertionError(f"{error}: {found}; {gateway.log()[-3000:]}") from None
    return found


def fallbacks(gateway: Gateway) -> float:
    """How often the fallback or the fail-safe came into force so far."""
    return gateway.metric("storage_fallback_throttle_factor_applied_total")


def lines_with(gateway: Gateway, text: str) -> int:
    return sum(text in line for line in gateway.log().splitlines())


def expect(gateway: Gateway, line: str, **metrics: float) -> None:
    """One line of the log with that text, and these metrics."""
    wait_for(f"the log line {line}", lambda: line in gateway.log(), SEEN_S)
    assert lines_with(gateway, line) == 1, gateway.log()[-3000:]
    for name, value in metrics.items():
        assert gateway.metric(f"storage_{name}") == value, f"{name}: {gateway.log()[-3000:]}"


# --- the two sources' own ways ----------------------------------------------------------------------------------------


@pytest.mark.seed("035.22")
def test_an_agent_is_killed_and_the_fail_safe_is_pause(site: Site) -> None:
    topic = volumes_topic(site)
    with agents(site, topic) as running, site.gateway(snapshots(topic, AGENT_MAX_AGE_S) | {"hard": NEVER}) as gateway:
        reach(gateway, "OPEN", "valid")
        before = fallbacks(gateway)
        running[2].kill()
        reach(gateway, "PAUSE", "fail-safe")
        line = f"storage: PAUSE (fail-safe), every produce limit x 0: {STALE.format(AGENT_MAX_AGE_S)}"
        expect(gateway, line, throttle_factor=0, no_data_throttling=1)
        assert fallbacks(gateway) == before + 1
        gateway.stop()


def test_a_gateway_has_just_started_and_there_are_no_snapshots(site: Site) -> None:
    topic = volumes_topic(site)
    with site.gateway(snapshots(topic)) as gateway:
        reach(gateway, "PAUSE", "fail-safe")
        line = "broker 1 has no snapshot of its volumes, broker 2 has no snapshot of its volumes"
        expect(gateway, line, throttle_factor=0, no_data_throttling=1, active_brokers=2, active_log_dirs=0)
        held = create_topic(site.kafka, f"held-{next(_names)}")
        producer = Producer({"bootstrap.servers": gateway.bootstrap, "enable.idempotence": True})
        producer.produce(held, b"one")
        assert producer.flush(1) == 1
        assert end_offsets(site.kafka, held) == 0
        for broker_id in (1, 2):
            publish(site, topic, broker_id)
        reach(gateway, "OPEN", "valid")
        assert producer.flush(SEEN_S) == 0
        gateway.stop()


# --- log dirs ---------------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.30")
def test_a_broker_crashes_and_stays_listed(site: Site) -> None:
    with site.gateway(LOG_DIRS | {VALIDITY: "6s"}) as gateway:  # kept for a third of the session, then the fallback
        reach(gateway, "OPEN", "valid", 1.0)
        site.kafka.kill_broker(2)
        # Each may be over before a machine that stood still looks; and such a one may keep the gateway from looking.
        line = "storage: THROTTLE (fallback), every produce limit x 0.25: no valid throttle factor for more than 6.5 s"
        wait_for("the fallback", lambda: line in gateway.log(), SEEN_S)
        reach(gateway, "OPEN", "valid", 1.0)  # its session is over: it isn't active any more
        wait_for("one broker", lambda: gateway.metric("storage_active_brokers") == 1, SEEN_S)
        assert "storage: OPEN again" in gateway.log()
        assert lines_with(gateway, line) == fallbacks(gateway) >= 1
        gateway.stop()


# --- the gateway itself -----------------------------------------------------------------------------------------------


# Only the small disk is anywhere near these limits; they leave less than a producer offers.
TIGHT: Final[dict[str, Any]] = {
    "source": "log-dirs",
    "check_interval": f"{INTERVAL_S}s",
    "soft": {"type": "MinFreeBytes", "level": 4 * DISK},
    "hard": {"type": "MinFreeBytes", "level": DISK // 10},
}


def test_a_new_control_counts_no_fallback_before_it_has_heard_what_its_workers_hold(site: Site) -> None:
    """The worker is stopped meanwhile, so that this is no race."""
    with site.gateway(TIGHT) as gateway:
        reach(gateway, "THROTTLE", "valid")
        for door in site.doors.values():
            door.shut()
        before = reach(gateway, "THROTTLE", "kept")["factor"]
        killed, worker = gateway.child("gateway.control"), gateway.child("gateway.data")
        os.kill(worker, signal.SIGSTOP)
        try:
            os.kill(killed, signal.SIGKILL)
            wait_for("a new control", lambda: gateway.child("gateway.control") not in (0, killed), SEEN_S)
            name, labels = "storage_observations_total", {"outcome": "failed"}
            wait_for("its first failure", lambda: gateway.metric(name, **labels) > 0, SEEN_S)
            assert gateway.metric("storage_fallback_throttle_factor_applied_total") == 0
        finally:
            os.kill(worker, signal.SIGCONT)
        reach(gateway, "THROTTLE", "kept", before)
        assert gateway.metric("storage_fallback_throttle_factor_applied_total") == 0
        for door in site.doors.values():
            door.open()
        reach(gateway, "THROTTLE", "valid")


@pytest.mark.full  # the one before it, and limits that go on without control: cluster/test_resilience.py
def test_the_control_process_is_killed(site: Site) -> None:
    topic = f"steady-{next(_names)}"
    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers, "log_level": 2})
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1]])])[topic].result(120)
    with site.gateway(TIGHT) as gateway, Steady(gateway.bootstrap, topic, 300, 2500) as steady:
        told = reach(gateway, "THROTTLE", "valid")["factor"]
        for door in site.doors.values():
            door.shut()
        before = reach(gateway, "THROTTLE", "kept")["factor"]
        assert 0 < before <= told
        killed = gateway.child("gateway.control")
        os.kill(killed, signal.SIGKILL)
        steady.wait_for(200)
        wait_for("a new control", lambda: gateway.child("gateway.control") not in (0, killed), SEEN_S)
        wait_for("ready", gateway.ready, SEEN_S)
        found = reach(gateway, "THROTTLE", "kept", before)
        wait_for("a failure", lambda: gateway.metric("storage_observations_total", outcome="failed") > 0, SEEN_S)
        assert shown(gateway)["factor"] == before, found
        expect(
            gateway,
            "storage: continuing with the factor that workers hold: THROTTLE (kept)",
            fallback_throttle_factor_applied_total=0,
        )
        assert "(fallback)" not in gateway.log()
        wait_for("a delay", lambda: gateway.metric("policy_bytes_total", topic=topic, outcome="delayed") > 0, SEEN_S)
        steady.wait_for(200)
        for door in site.doors.values():
            door.open()
        reach(gateway, "THROTTLE", "valid")
        sent = steady.finish()
        gateway.stop()
    assert_in_log_once_and_in_order(site.kafka, topic, sent, 2500)
