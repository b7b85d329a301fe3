# The volume agent as a process beside a real Kafka, and the reader of its topic: what gets there, what is said about it
# when something is away, and how it ends.

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import yaml
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions
from prometheus_client.parser import text_string_to_metric_families

from gateway import embedded
from gateway.embedded import EmbeddedCluster, wait_for
from gateway.kafka.internal_topic import TopicError, TopicPresent
from gateway.storage.snapshot import encode_snapshot
from gateway.storage.snapshots import SnapshotReader, volume_topic
from policies.storage import Volume, VolumeLimit, VolumeSnapshot
from tests.integration.gateways import create_topic, end_offsets, read_topic

ROOT = Path(__file__).parents[3]
PREFIX = "produce_gateway_volume_agent_"
WAIT_S = 60.0


def patient(seconds: int) -> tuple[str, ...]:
    """A snapshot is given as long as an interval, a second here; a machine that stands still may take longer."""
    names = ("message.timeout.ms", "topic.metadata.propagation.max.ms")
    return tuple(word for name in names for word in ("--kafka", f"{name}={seconds * 1000}"))


class Agent:
    """An agent process with one log dir in `folder`; ended by the end of the `with` at the latest."""

    def __init__(self, servers: str, topic: str, folder: Path, *flags: str, log_dirs: str = "") -> None:
        self.port = embedded.find_free_port()
        self._log = folder / f"agent-{self.port}.log"
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / "meta.properties").write_text("version=1\n")
        command = [
            *(
                sys.executable,
                "-m",
                "gateway",
                "volume-agent",
                "--broker-id",
                "1",
                "--interval",
                "1s",
                "--topic",
                topic,
            ),
            *("--log-dirs", log_dirs or str(folder / "data"), "--bootstrap-servers", servers),
            *("--metrics", f"127.0.0.1:{self.port}", *flags),
        ]
        with open(self._log, "wb") as log:
            self.process = embedded.spawn_process(command, stdout=log, stderr=log, cwd=ROOT)

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        embedded.reap_process(self.process)
        said = self.log()
        assert "Traceback" not in said
        assert not re.search("^%", said, re.MULTILINE), said  # librdkafka's own lines

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def lines(self) -> list[str]:
        """What was logged, without the time."""
        return [line.split(" ", 1)[1] for line in self.log().splitlines()]

    def metrics(self) -> dict[str, float]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:  # not yet
            return {}
        return {
            sample.name.removeprefix(PREFIX): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def wait(self, what: str, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        found: dict[str, float] = {}

        def holds() -> bool:
            nonlocal found
            assert self.process.poll() is None, self.log()
            found = self.metrics()
            return bool(found) and condition(found)

        try:
            wait_for(what, holds, WAIT_S, every_s=0.1)
        except embedded.EmbeddedError as error:
            raise AssertionError(f"{error}: {found}; {self.log()}") from None
        return found

    def wait_published(self, count: int) -> dict[str, float]:
        return self.wait(f"{count} snapshots", lambda found: found["snapshots_published_total"] >= count)


class Reading:
    """A reader and all that it has given so far."""

    def __init__(self, servers: str, topic: str, **properties: str) -> None:
        self.reader = SnapshotReader({"bootstrap.servers": servers, **properties}, topic)
        self.records: list[tuple[int, VolumeSnapshot | None]] = []

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reader.close()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.records[-5:]}"
            self.records += self.reader.poll_snapshots(0.2)

    def of(self, broker_id: int) -> list[VolumeSnapshot | None]:
        return [snapshot for number, snapshot in self.records if number == broker_id]


@pytest.fixture
def topic() -> str:
    return f"volumes-{uuid.uuid4().hex[:8]}"


def send(servers: str, topic: str, *records: tuple[str, bytes | None], partition: int = -1) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 2})
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=partition, on_delivery=_check)
    assert producer.flush(30) == 0


def _check(error: object, _: object) -> None:
    assert error is None, error


def snapshot(broker_id: int, available: int = 50) -> bytes:
    return encode_snapshot(VolumeSnapshot(broker_id, 1.0, (Volume(broker_id, "/dev/sda", 100, available),)))


def cleanup_policy(kafka: EmbeddedCluster, topic: str) -> str:
    admin, resource = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}), ConfigResource("topic", topic)
    return str(admin.describe_configs([resource])[resource].result(120)["cleanup.policy"].value)


# --- the agent --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("035.13")
def test_it_publishes_at_start_and_periodically(kafka: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    flags = ("--soft", "MinFreePercentage:20", "--hard", "MinFreeBytes:1GB")
    with Agent(kafka.bootstrap_servers, topic, tmp_path, *flags, *patient(60)) as agent:
        shown = agent.wait_published(3)
        agent.wait("the connection", lambda found: found["connected"] == 1)
        with Reading(kafka.bootstrap_servers, topic) as reading:
            reading.until("three snapshots", lambda: len(reading.of(1)) >= 3)
            found = [each for each in reading.of(1) if each is not None]
            reading.until("the end", lambda: reading.reader.caught_up)
    assert cleanup_policy(kafka, topic) == "compact"
    assert abs(found[-1].at - time.time()) < 600
    assert [each.at for each in found] == sorted({each.at for each in found})
    (volume,) = found[-1].volumes
    size = os.statvfs(tmp_path)
    assert volume.total == size.f_blocks * size.f_frsize
    assert (volume.soft, volume.hard) == (VolumeLimit("MinFreePercentage", 0.2), VolumeLimit("MinFreeBytes", 1e9))
    assert shown["volume_capacity_bytes"] == volume.total
    assert shown["volume_consumed_bytes"] == volume.total - shown["volume_available_bytes"]
    assert shown["volume_soft_level_free_bytes"] == pytest.approx(volume.total * 0.2, abs=1)
    assert shown["volume_hard_level_free_bytes"] == 1e9
    assert shown["publication_errors_total"] == shown["log_dir_errors_total"] == 0
    assert shown["last_snapshot_timestamp_seconds"] >= found[0].at
    # One line for the start, one for the topic, one for the first snapshot, and none for those that follow.
    assert len(agent.lines()) == 3, agent.log()


@pytest.mark.seed("035.6", "035.15")
def test_a_reader_after_compaction_begins_with_the_last_snapshot(
    kafka: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    compact = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.0", "max.compaction.lag.ms": "100"}
    options: dict[str, Any] = {key.replace(".", "_"): value for key, value in compact.items()}
    create_topic(kafka, topic, cleanup_policy="compact", **options)
    send(kafka.bootstrap_servers, topic, *(("7", snapshot(7, available)) for available in range(40)))
    with Agent(kafka.bootstrap_servers, topic, tmp_path) as agent:
        # Each new segment makes the ones before it cleanable; the cleaner looks every 15 s.
        agent.wait_published(3)

        def compacted() -> bool:
            send(kafka.bootstrap_servers, topic, ("8", snapshot(8)))
            return len(read_topic(kafka, topic)) < 40

        wait_for("the cleaner", compacted, WAIT_S, every_s=1.0)
        with Reading(kafka.bootstrap_servers, topic) as reading:
            reading.until("the end", lambda: reading.reader.caught_up)
    (last,) = reading.of(7)
    assert last is not None
    assert last.volumes[0].available == 39
    assert reading.of(1)
    assert end_offsets(kafka, topic) > len(reading.records)


@pytest.mark.seed("035.16")
def test_a_broker_that_restarts_is_counted_shown_and_waited_for(topic: str, tmp_path: Path) -> None:
    with EmbeddedCluster(1) as kafka, Agent(kafka.bootstrap_servers, topic, tmp_path, *patient(5)) as agent:
        agent.wait_published(1)
        agent.wait("the connection", lambda found: found["connected"] == 1)
        with Reading(kafka.bootstrap_servers, topic) as reading:
            reading.until("the end", lambda: reading.reader.caught_up)
            assert reading.reader.connected
            lines, errors = len(agent.lines()), agent.metrics()["publication_errors_total"]
            kafka.kill_broker(1)
            before = agent.wait(
                "errors and no connection",
                lambda found: found["connected"] == 0 and found["publication_errors_total"] >= errors + 2,
            )
            reading.until("the reader to notice", lambda: not reading.reader.connected)
            said = [line for line in agent.lines()[lines:] if line.startswith("ERROR")]
            assert len(said) == 1, said
            assert "snapshot not published: " in said[0]
            kafka.start_broker(1)
            count = before["snapshots_published_total"] + 2
            after = agent.wait(
                "snapshots again",
                lambda found: found["connected"] == 1 and found["snapshots_published_total"] >= count,
            )
            at = after["last_snapshot_timestamp_seconds"]
            reading.until("what is new", lambda: any(each.at >= at - 0.001 for each in reading.of(1) if each))
            assert reading.reader.connected
        assert "snapshots are published again after " in agent.log()


@pytest.mark.seed("035.36")
def test_a_cluster_that_comes_later_gets_its_snapshots(topic: str, tmp_path: Path) -> None:
    port = embedded.find_free_port(3)
    with Agent(f"127.0.0.1:{port}", topic, tmp_path) as agent:
        shown = agent.wait("an error", lambda found: found["publication_errors_total"] >= 1)
        assert shown["connected"] == 0
        with EmbeddedCluster(1, port=port) as kafka:
            agent.wait_published(2)
            assert read_topic(kafka, topic)


@pytest.mark.seed("035.12")
def test_a_deleted_topic_is_made_again_and_read_from_its_beginning(
    kafka: EmbeddedCluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Agent(kafka.bootstrap_servers, topic, tmp_path) as agent,
        Reading(kafka.bootstrap_servers, topic) as reading,
    ):
        reading.until("two snapshots", lambda: len(reading.of(1)) >= 2)
        looking = volume_topic({"bootstrap.servers": kafka.bootstrap_servers}, topic)
        old = looking.lookup_topic()
        assert isinstance(old, TopicPresent)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 2})
        admin.delete_topics([topic])[topic].result(120)

        def is_another() -> bool:
            found = looking.lookup_topic()
            return isinstance(found, TopicPresent) and found.topic_id != old.topic_id

        wait_for("another topic of that name", is_another, WAIT_S)
        gone_at = time.time()
        reading.until("snapshots in the new one", lambda: any(each.at > gone_at for each in reading.of(1) if each))
        agent.wait_published(3)
    assert cleanup_policy(kafka, topic) == "compact"


def test_log_dirs_that_fail_are_named_until_none_is_left(kafka: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    with Agent(kafka.bootstrap_servers, topic, tmp_path, log_dirs=f"{data},{other}") as agent:
        agent.wait_published(2)
        assert json.loads(read_topic(kafka, topic)[-1])["unreadableLogDirs"] == [str(other)]
        shutil.rmtree(data)
        wait_for("the complaint", lambda: "no log dir is left" in agent.log(), WAIT_S)
        skipped = agent.wait("more of them", lambda found: found["snapshots_skipped_total"] >= 2)
        assert "volume_capacity_bytes" not in skipped
        count = skipped["snapshots_published_total"]
        assert agent.metrics()["snapshots_published_total"] == count
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "meta.properties").write_text("version=1\n")
        (tmp_path / "made").rename(other)
        agent.wait_published(int(count) + 1)
        lines = agent.lines()
    name = "gateway.volume-agent"
    for log_dir in (other, data):
        line = f"ERROR {name}: log dir {log_dir} can't be read (No such file or directory): gateways take"
        assert sum(each.startswith(line) for each in lines) == 1
    assert lines.count(f"INFO {name}: log dir {other} can be read again") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(kafka: EmbeddedCluster, topic: str, tmp_path: Path, number: signal.Signals) -> None:
    with Agent(kafka.bootstrap_servers, topic, tmp_path) as agent:
        agent.wait_published(1)
        agent.process.send_signal(number)
        assert agent.process.wait(30) == 0
        assert agent.lines()[-1] == f"INFO gateway.volume-agent: stopped by {number.name}"
    # The snapshot stays: the broker goes on without its agent, and gateways see it age.
    assert None not in read_topic(kafka, topic)


def test_a_signal_ends_it_while_no_cluster_answers(topic: str, tmp_path: Path) -> None:
    with Agent(f"127.0.0.1:{embedded.find_free_port()}", topic, tmp_path) as agent:
        agent.wait("its start", lambda found: True)
        agent.process.terminate()
        assert agent.process.wait(30) == 0


def test_a_taken_metrics_port_is_one_line(kafka: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    with Agent(kafka.bootstrap_servers, topic, tmp_path) as agent:
        agent.wait_published(1)
        flags = ["--broker-id", "1", "--log-dirs", str(tmp_path), "--metrics", f"127.0.0.1:{agent.port}"]
        done = subprocess.run(
            [sys.executable, "-m", "gateway", "volume-agent", *flags],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, f"--metrics 127.0.0.1:{agent.port}: Address already in use\n")


# --- the reader -------------------------------------------------------------------------------------------------------


def test_tombstones_and_invalid_records(kafka: EmbeddedCluster, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    servers = kafka.bootstrap_servers
    volume_topic({"bootstrap.servers": servers}, topic).ensure_topic()
    good = snapshot(3)
    bad: list[tuple[str, bytes | None]] = [
        ("4", b"no json"),
        ("4", b"{"),
        ("4", good),
        ("", good),
        ("x", None),
    ]
    send(servers, topic, ("3", good), *bad, ("3", None), ("5", snapshot(5)))
    with Reading(servers, topic) as reading:
        reading.until("the last", lambda: bool(reading.of(5)))
        reading.until("the end", lambda: reading.reader.caught_up)
        assert [number for number, _ in reading.records] == [3, 3, 5]
        assert reading.of(3)[1] is None
        assert reading.reader.invalid_records == len(bad)
    lines = [record.getMessage() for record in caplog.records if "not a valid snapshot" in record.getMessage()]
    assert len(lines) == 3, lines  # no JSON, another broker's, no key
    assert f"{topic}, partition 0 offset 1 is not a valid snapshot: no JSON: " in lines[0]


def test_a_topic_made_anew_between_two_looks_is_read_from_its_beginning(kafka: EmbeddedCluster, topic: str) -> None:
    """With more records than the old one had, so that no offset of the reader is out of range."""
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    volume_topic(properties, topic).ensure_topic()
    send(kafka.bootstrap_servers, topic, ("1", snapshot(1)), ("2", snapshot(2)))
    with Reading(kafka.bootstrap_servers, topic) as reading:
        reading.until("the end", lambda: reading.reader.caught_up)
        admin = AdminClient({**properties, "log_level": 2})
        admin.delete_topics([topic])[topic].result(120)
        wait_for("it to be gone", lambda: topic not in admin.list_topics(timeout=30).topics, WAIT_S)
        volume_topic(properties, topic).ensure_topic()
        send(kafka.bootstrap_servers, topic, *((str(number), snapshot(number)) for number in range(11, 16)))
        reading.until("the last", lambda: bool(reading.of(15)))
        reading.until("the first", lambda: bool(reading.of(11)))


def test_a_topic_that_comes_later_and_grows(
    kafka: EmbeddedCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers = kafka.bootstrap_servers
    with Reading(servers, topic) as reading:
        reading.until("an answer", lambda: reading.reader.connected)
        assert not reading.reader.caught_up
        assert reading.records == []
        volume_topic({"bootstrap.servers": servers}, topic).ensure_topic()
        send(servers, topic, ("1", snapshot(1)))
        reading.until("the first", lambda: bool(reading.of(1)))
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(120)
        wait_for("its leaders", lambda: _takes(servers, topic, 2), WAIT_S)
        reading.until("the one in the new partition", lambda: bool(reading.of(2)))
        assert len(reading.of(1)) == 1  # the old one was not read anew
    assert topic not in committed_topics(kafka)
    assert sum("does not exist; waiting for it" in record.getMessage() for record in caplog.records) == 1


def _takes(servers: str, topic: str, partition: int) -> bool:
    producer = Producer({"bootstrap.servers": servers, "log_level": 2, "message.timeout.ms": 5000})
    failed: list[object] = []
    producer.produce(
        topic, key="2", value=snapshot(2), partition=partition, on_delivery=lambda error, _: failed.append(error)
    )
    producer.flush(30)
    return failed == [None]


def committed_topics(kafka: EmbeddedCluster) -> set[str]:
    """Topics for which somebody has committed offsets."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    groups = [group.group_id for group in admin.list_consumer_groups().result(120).valid]
    answers = [admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group] for group in groups]
    return {place.topic for answer in answers for place in answer.result(120).topic_partitions}


def test_a_topic_that_is_not_compacted_is_complained_about(kafka: EmbeddedCluster, topic: str) -> None:
    create_topic(kafka, topic, cleanup_policy="delete")
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    complaint = f"topic {topic} has cleanup.policy=delete, so it grows, or forgets brokers: "
    assert volume_topic(properties, topic).ensure_topic().startswith(complaint)
    other = f"{topic}-both"
    create_topic(kafka, other, cleanup_policy="compact,delete")
    assert volume_topic(properties, other).ensure_topic() == ""


def test_a_topic_that_can_not_be_made_is_one_line(kafka: EmbeddedCluster, topic: str) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    with pytest.raises(TopicError, match=rf"^topic {topic} is not available: .*eplication.factor"):
        volume_topic(properties, topic, replication=7).ensure_topic()


# --- client certificates ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.crt; NAME.crt and NAME.key of `broker` and `agent`; NAME.pem with both, as Kafka's PEM stores want them."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test CA")
    for name in ("broker", "agent"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.crt", "-days", "2", "-extfile", "names"),
        )
        (folder / f"{name}.pem").write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text())
    return folder


@pytest.fixture(scope="module")
def secure(certificates: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A broker whose second listener wants client certificates: its address, and properties that satisfy it."""
    first = embedded.find_free_port(4)  # plaintext, controller, TLS
    listeners = {"PLAINTEXT": first, "CONTROLLER": first + 1, "SSL": first + 2}
    overrides = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.crt"),
    }
    with EmbeddedCluster(1, overrides, port=first):
        yield (
            f"127.0.0.1:{first + 2}",
            {
                "security.protocol": "SSL",
                "ssl.ca.location": str(certificates / "ca.crt"),
                "ssl.certificate.location": str(certificates / "agent.crt"),
                "ssl.key.location": str(certificates / "agent.key"),
            },
        )


@pytest.mark.seed("035.14")
def test_client_certificates(secure: tuple[str, dict[str, str]], topic: str, tmp_path: Path) -> None:
    servers, properties = secure
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump({f"kafka.{key}": value for key, value in properties.items()}))
    with (
        Agent(servers, topic, tmp_path, "--config", str(path)) as agent,
        Reading(servers, topic, **properties) as reading,
    ):
        agent.wait_published(1)
        reading.until("a snapshot", lambda: bool(reading.of(1)))


@pytest.mark.seed("035.14")
def test_without_a_client_certificate_nothing_is_published(
    secure: tuple[str, dict[str, str]], topic: str, tmp_path: Path
) -> None:
    servers, properties = secure
    rest = {key: properties[key] for key in ("security.protocol", "ssl.ca.location")} | {"reconnect.backoff.ms": "1000"}
    flags = [flag for key, value in rest.items() for flag in ("--kafka", f"{key}={value}")]
    with Agent(servers, topic, tmp_path, *flags) as agent, Reading(servers, topic, **rest) as reading:
        shown = agent.wait("an error", lambda found: found["publication_errors_total"] >= 1)
        assert shown["snapshots_published_total"] == 0
        said = [line for line in agent.lines() if line.startswith("ERROR")]
        assert len(said) == 1, said
        reading.records += reading.reader.poll_snapshots(0.2)
        assert not reading.reader.connected


@pytest.mark.seed("035.12")
def test_a_snapshot_is_what_the_agent_says_it_is(kafka: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    """The record itself, without our own decoder; without limits it says that the agent has no opinion."""
    with Agent(kafka.bootstrap_servers, topic, tmp_path) as agent:
        agent.wait_published(1)
        record = json.loads(read_topic(kafka, topic)[0])
    nothing = {"type": "MinFreeBytes", "level": 0}
    assert (record["brokerId"], record["hardLimit"], record["softLimit"]) == ("1", nothing, nothing)
    assert set(record["volumes"][0]) == {"volumeName", "capacity", "consumed"}
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["snapshotAt"])
