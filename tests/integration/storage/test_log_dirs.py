# Volumes of a real cluster: what log dirs' file systems themselves say, brokers that leave between the two questions,
# log dirs that fail, brokers of before KIP-827 (played by a proxy that changes ApiVersions and nothing else).

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway import embedded
from gateway.embedded import EmbeddedCluster, find_free_port, wait_for
from gateway.storage.log_dirs import LogDirs, active_brokers
from policies.storage import Observation, ObservationFailed
from tests.gateway.storage.leftovers import no_descriptors_left

NOISE_BYTES = 2**30  # other tests and other programs write to the same file system meanwhile
API_VERSIONS, DESCRIBE_CLUSTER = 18, 60
ALL = frozenset({1, 2, 3})
PARTITIONS = 4  # of each topic on a broker with two log dirs


def observe(servers: str, timeout_s: float = 30.0, **properties: Any) -> Observation:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    return LogDirs(given, servers, timeout_s).observe()


def why(servers: str, timeout_s: float = 30.0, **properties: Any) -> str:
    with pytest.raises(ObservationFailed) as caught:
        observe(servers, timeout_s, **properties)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def problem(servers: str) -> str:
    try:
        observe(servers)
    except ObservationFailed as error:
        return str(error)
    return ""


def await_all(cluster: EmbeddedCluster) -> None:
    """Return when each broker knows all: an earlier test may have ended one, and awaited it at another."""
    asked = [f"{embedded.HOST}:{broker.port}" for broker in cluster.brokers.values()]
    wait_for("all to see all", lambda: all(active_brokers({}, each, 30.0) == ALL for each in asked))


def observe_all(servers: str) -> Observation:
    """With all brokers: one may be fenced for a moment, where a machine stood still."""
    seen: list[Observation] = []

    def is_whole() -> bool:
        seen.append(observe(servers))
        return seen[-1].brokers == ALL

    wait_for("all brokers", is_whole)
    return seen[-1]


def first(cluster: EmbeddedCluster) -> str:
    return f"{embedded.HOST}:{cluster.broker(1).port}"


class Proxy:
    """In front of one broker. Each answer goes on as `change(api key, version, answer without its size)` has it."""

    def __init__(self, target: int, change: Callable[[int, int, bytes], bytes], port: int = 0) -> None:
        self._target, self._change = target, change
        self._listening = socket.create_server((embedded.HOST, port or find_free_port()))
        self.address = f"{embedded.HOST}:{self._listening.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Proxy:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(sock,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.ExitStack() as open_ones, contextlib.suppress(OSError, struct.error):
            open_ones.enter_context(client)
            broker = open_ones.enter_context(socket.create_connection((embedded.HOST, self._target)))
            requests = open_ones.enter_context(client.makefile("rb"))
            answers = open_ones.enter_context(broker.makefile("rb"))
            while True:  # one at a time: no second request comes before the first is answered
                request = self._frame(requests)
                broker.sendall(struct.pack(">i", len(request)) + request)
                key, version = struct.unpack_from(">hh", request)
                answer = self._change(key, version, self._frame(answers))
                client.sendall(struct.pack(">i", len(answer)) + answer)

    @staticmethod
    def _frame(reader: io.BufferedReader) -> bytes:
        (size,) = struct.unpack(">i", reader.read(4))
        return reader.read(size)


@dataclass(frozen=True)
class Limits:
    """A `change` that lowers what ApiVersions says: api key -> highest version; -1: the broker doesn't know it."""

    highest: dict[int, int]

    def __call__(self, key: int, version: int, answer: bytes) -> bytes:
        if key != API_VERSIONS or struct.unpack_from(">h", answer, 4) != (0,):
            return answer
        assert version >= 3  # flexible: correlation id, error, compact array of (key, min, max, tags)
        changed = bytearray(answer)
        count, at = changed[6] - 1, 7
        if changed[6] & 0x80:
            count, at = (changed[6] & 0x7F | changed[7] << 7) - 1, 8
        for _ in range(count):
            api, lowest, _ = struct.unpack_from(">hhh", changed, at)
            if api in self.highest:
                kept = self.highest[api] >= 0
                struct.pack_into(">hhh", changed, at, *((api, lowest, self.highest[api]) if kept else (32000, 0, 0)))
            at += 7
        return bytes(changed)


@contextlib.contextmanager
def old_broker(highest: dict[int, int]) -> Iterator[str]:
    """The address of a broker that is only known under that of a proxy with these limits."""
    port, behind = find_free_port(), find_free_port(2)
    own = {"advertised.listeners": f"PLAINTEXT://{embedded.HOST}:{port}"}
    with Proxy(behind, Limits(highest), port) as proxy, EmbeddedCluster(1, own, port=behind):
        yield proxy.address


# --- what is there ----------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.5", "DISK.13")
def test_totals_are_those_of_the_file_systems(kafka3: EmbeddedCluster) -> None:
    await_all(kafka3)
    seen = observe_all(kafka3.bootstrap_servers)
    assert seen.offline == ()
    assert {(volume.broker_id, volume.name) for volume in seen.volumes} == {
        (node_id, str(kafka3.broker(node_id).log_dir)) for node_id in ALL
    }
    for volume in seen.volumes:
        said = os.statvfs(volume.name)
        assert volume.total == said.f_blocks * said.f_frsize
        assert abs(volume.available - said.f_bavail * said.f_frsize) < NOISE_BYTES


def test_one_bootstrap_server_of_several_is_enough(kafka3: EmbeddedCluster) -> None:
    await_all(kafka3)
    nobody = f"{embedded.HOST}:{find_free_port()}"
    servers = f"{nobody},{first(kafka3)}"
    observe_all(servers)
    wait_for("all brokers", lambda: active_brokers({}, servers, 30.0) == ALL)


@no_descriptors_left
def test_a_source_is_asked_again_and_again(kafka3: EmbeddedCluster) -> None:
    await_all(kafka3)
    source = LogDirs({}, kafka3.bootstrap_servers)
    for _ in range(20):
        wait_for("all brokers", lambda: source.observe().brokers == ALL)


# --- who is gone ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ended_after_describe_cluster(cluster: EmbeddedCluster, node_id: int, end: Callable[[int], None]) -> Iterator[str]:
    """An address of the cluster; when its answer to DescribeCluster goes out, that broker has just been ended."""

    def change(key: int, _version: int, answer: bytes) -> bytes:
        if key == DESCRIBE_CLUSTER and cluster.broker(node_id).is_running:
            end(node_id)
        return answer

    with Proxy(cluster.broker(1).port, change) as proxy:
        try:
            yield proxy.address
        finally:
            if not cluster.broker(node_id).is_running:
                cluster.start_broker(node_id)
            wait_for("all brokers", lambda: active_brokers({}, first(cluster), 30.0) == ALL)


@pytest.mark.seed("DISK.25")
@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.full), "kill"])
def test_a_broker_that_goes_between_the_two_questions(how: str, kafka3: EmbeddedCluster) -> None:
    end = kafka3.stop_broker if how == "stop" else kafka3.kill_broker
    address = f"broker 3 ({embedded.HOST}:{kafka3.broker(3).port})"
    with ended_after_describe_cluster(kafka3, 3, end) as proxied:
        said = why(proxied, 60.0)  # an orderly end takes some seconds
        assert said.startswith(f"{address}: ")
        assert "ECONNREFUSED" in said

        # Once it is fenced it is not active any more, though DescribeCluster goes on naming it (KIP-1073).
        wait_for("fencing", lambda: active_brokers({}, first(kafka3), 30.0) == {1, 2}, 90)
        seen = observe(first(kafka3))
        assert seen.brokers == {1, 2}
        assert {volume.broker_id for volume in seen.volumes} == {1, 2}
    observe_all(first(kafka3))


# --- who asks ---------------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.16")
def test_plain_and_scram_and_one_without_the_right_to_describe_the_cluster() -> None:
    user, password = "storage", 'a "quoted" \\ one'
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{user}",  # the broker itself is without a name
        "early.start.listeners": "CONTROLLER",
    }
    with EmbeddedCluster(1, rights, users={user: password, "low": "low"}) as cluster:
        servers = cluster.sasl_bootstrap_servers
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            who: dict[str, Any] = {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": mechanism,
                "sasl_username": user,
            }
            assert observe(servers, **who, sasl_password=password).brokers == {1}
            said = why(servers, **who, sasl_password="wrong-one")
            assert "SASL_AUTHENTICATION_FAILED" in said
            assert "wrong-one" not in said
        assert why(servers)  # a listener that asks, and nobody who says who he is
        who |= {"sasl_mechanism": "PLAIN", "sasl_username": "low"}
        said = why(servers, **who, sasl_password="low")
        assert "CLUSTER_AUTHORIZATION_FAILED): allow this principal Describe on the cluster" in said


@pytest.mark.seed("DISK.16")
def test_tls_with_and_without_a_password(tmp_path: Path) -> None:
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    for name in ("own", "other"):
        files = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.crt")]
        subprocess.run([*made.split(), *files], check=True, capture_output=True)
    both = (tmp_path / "own.key").read_text() + (tmp_path / "own.crt").read_text()
    (tmp_path / "own.pem").write_text(both)
    port = find_free_port(4)
    kinds = {"PLAINTEXT": port, "CONTROLLER": port + 1, "SSL": port + 2, "SASL_SSL": port + 3}
    account = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_me="secret";'
    own = {
        "listeners": ",".join(f"{name}://{embedded.HOST}:{at}" for name, at in kinds.items()),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "own.pem"),
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": account,
    }
    with EmbeddedCluster(1, own, port=port):
        tls, sasl = f"{embedded.HOST}:{port + 2}", f"{embedded.HOST}:{port + 3}"
        ca: dict[str, Any] = {"ssl_ca_location": str(tmp_path / "own.crt")}
        assert observe(tls, security_protocol="SSL", **ca).brokers == {1}
        said = why(tls, security_protocol="SSL", ssl_ca_location=str(tmp_path / "other.crt"))
        assert "not signed by a CA in ssl.ca.location" in said
        who: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "me", **ca}
        assert observe(sasl, **who, sasl_password="secret").brokers == {1}
        assert "Authentication failed: Invalid username or password" in why(sasl, **who, sasl_password="wrong-one")


# --- what they don't say ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("highest", [pytest.param(n, marks=[pytest.mark.full] if n >= 0 else []) for n in (1, 0, -1)])
def test_an_older_describe_cluster_or_none_is_enough(highest: int) -> None:
    with old_broker({DESCRIBE_CLUSTER: highest}) as servers:
        assert active_brokers({}, servers, 30.0) == {1}
        assert observe(servers).brokers == {1}


# --- log dirs that fail -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def jbod(folder: Path, second: Path) -> Iterator[EmbeddedCluster]:
    own = {"log.dirs": f"{folder / 'first'},{second}", "metadata.log.dir": str(folder / "first")}
    with EmbeddedCluster(1, {**own, "num.partitions": str(PARTITIONS)}) as cluster:
        yield cluster


def create(cluster: EmbeddedCluster, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    client.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(120)


def assert_in_both(cluster: EmbeddedCluster, log_dirs: list[str]) -> None:
    """The broker tells that its only topic is in both, and its files say the same: of all of the topic's partitions, as
    the broker makes a log dir anew for one that it is still at."""
    with contextlib.closing(LogDirs({}, cluster.bootstrap_servers, 30.0)) as source:
        expected = {(1, log_dir): {"spread"} for log_dir in log_dirs}
        wait_for("the partitions", lambda: source.place({1}) == expected)

    def files() -> list[Path]:  # the last that the broker writes for a new partition: the id of its topic
        return [file for log_dir in log_dirs for file in Path(log_dir).glob("spread-*/partition.metadata")]

    wait_for("their files", lambda: len(files()) == PARTITIONS)
    assert {str(file.parent.parent) for file in files()} == set(log_dirs)


def remove(folder: Path) -> None:
    """Whatever the broker writes there meanwhile: it puts files into a folder that is being removed."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_for("the folder's end", is_gone)


def replace_by_a_file(folder: Path) -> None:
    """Nothing can be made there any more, and a broker that has made the folder anew meanwhile loses that one too."""

    def is_replaced() -> bool:
        remove(folder)
        with contextlib.suppress(IsADirectoryError):
            folder.write_text("no folder")
        return folder.is_file()

    wait_for("the file", is_replaced)


def test_a_log_dir_that_vanished_first_fails_the_view_and_is_offline_once_the_broker_knows(tmp_path: Path) -> None:
    second = tmp_path / "second"
    with jbod(tmp_path, second) as cluster:
        servers = cluster.bootstrap_servers
        assert {volume.name for volume in observe(servers).volumes} == {str(tmp_path / "first"), str(second)}
        create(cluster, "spread")
        assert_in_both(cluster, [str(tmp_path / "first"), str(second)])
        remove(second)
        said = problem(servers)  # "": the broker has just written there, and noticed
        assert not said or said.startswith(f"broker 1: log dir {second}: error ")
        replace_by_a_file(second)
        create(cluster, "anything")  # some of its partitions belong there
        wait_for("the broker's notice", lambda: noticed(servers))
        seen = observe(servers)
        assert seen.brokers == {1}
        assert seen.offline == ((1, str(second)),)
        assert [volume.name for volume in seen.volumes] == [str(tmp_path / "first")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_volume_that_fills_up_is_seen_filling_and_then_offline(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(small)], check=True)
    try:
        with jbod(tmp_path, small) as cluster:
            servers = cluster.bootstrap_servers
            create(cluster, "filling")
            volume = next(volume for volume in observe(servers).volumes if volume.name == str(small))
            assert volume.total == 64 * 2**20
            before = volume.available

            (small / "ballast").write_bytes(bytes(32 * 2**20))
            volume = next(volume for volume in observe(servers).volumes if volume.name == str(small))
            assert volume.available <= before - 32 * 2**20

            produce_until(servers, "filling", lambda: noticed(servers))
            seen = observe(servers)
            assert seen.brokers == {1}
            assert seen.offline == ((1, str(small)),)
            assert [volume.name for volume in seen.volumes] == [str(tmp_path / "first")]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def noticed(servers: str) -> bool:
    try:
        return bool(observe(servers).offline)
    except ObservationFailed:
        return False


def produce_until(servers: str, topic: str, done: Callable[[], bool]) -> None:
    settings = {"bootstrap.servers": servers, "log_level": 0, "message.timeout.ms": 5000, "linger.ms": 5}
    producer = Producer(settings)
    for _ in range(400):  # 400 MB at most, 64 MB can't hold that
        for partition in range(PARTITIONS):
            for _ in range(4):
                producer.produce(topic, os.urandom(65_536), partition=partition)
        producer.flush(10)
        if done():
            return
    raise AssertionError("the broker took everything")
