# The embedded Kafka: what comes out of the fetch, and that brokers start and end as they are told. That they crash and
# return with what they had is test_resilience.py's.

from __future__ import annotations

import hashlib
import io
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway import embedded
from gateway.embedded import (
    EmbeddedCluster,
    EmbeddedError,
    class_data,
    fetch_kafka,
    find_free_port,
    java_command,
    wait_for,
)
from gateway.embedded import __main__ as command
from gateway.embedded.jars import kafka_jars
from gateway.embedded.maven import MavenJar, find_fault
from tests.background import Handler, serving, url_of
from tests.integration.gateways import end_offsets

# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("runn", "; did you mean run?"),
        ("", "the following arguments are required: COMMAND"),
        ("run --port 99999", "argument --port: '99999': 1 to 65500"),
        ("run --brokers 0", "argument --brokers: invalid choice: 0"),
    ],
)
def test_a_wrong_command_line_starts_nothing(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(arguments.split())
    assert end.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_another_server_is_not_taken_for_the_kafka_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert command.main(["run", "--port", str(port)]) == 1
    assert capsys.readouterr().err == f"127.0.0.1:{port}: Address already in use: --port chooses other ports\n"


# --- fetching ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """A Maven repository on loopback with the real jars, and an empty cache; changes to the dict change its files."""
    libs = fetch_kafka()
    files = {f"/m2/{jar.path}": (libs / jar.file_name).read_bytes() for jar in kafka_jars()}

    class Repository(Handler):
        def do_GET(self) -> None:
            content = files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.answer(200, content)

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Repository)) as server:
        monkeypatch.setenv("PRODUCE_GATEWAY_MAVEN", f"{url_of(server)}/m2")
        monkeypatch.setenv("PRODUCE_GATEWAY_CACHE", str(tmp_path / "cache"))
        yield files


def test_fetch_takes_the_jars_from_an_own_maven_repository_once(maven: dict[str, bytes], tmp_path: Path) -> None:
    said = io.StringIO()
    libs = fetch_kafka(said)
    assert libs.is_relative_to(tmp_path / "cache")
    assert find_fault(libs, kafka_jars()) is None
    assert "42 jars" in said.getvalue()

    maven.clear()
    said = io.StringIO()
    assert fetch_kafka(said) == libs
    assert said.getvalue() == ""


def test_a_jar_that_changed_in_the_repository_is_refused_in_one_line(maven: dict[str, bytes], tmp_path: Path) -> None:
    path = next(path for path in maven if "jopt-simple" in path)
    maven[path] += b"!"
    with pytest.raises(EmbeddedError, match=r"^Apache Kafka .* jopt-simple-.*\.jar has SHA-256 .*: not used$"):
        fetch_kafka(io.StringIO())
    assert not list((tmp_path / "cache").glob("*/libs"))


def test_a_cached_jar_that_was_damaged_is_fetched_again(maven: dict[str, bytes]) -> None:
    libs = fetch_kafka(io.StringIO())
    jar = libs / "slf4j-api-2.0.17.jar"
    jar.write_bytes(jar.read_bytes()[:-1])
    said = io.StringIO()
    assert fetch_kafka(said) == libs
    assert find_fault(libs, kafka_jars()) is None
    assert "The cached Apache Kafka is damaged (slf4j-api-2.0.17.jar has SHA-256" in said.getvalue()


def test_a_repository_that_lacks_a_jar_is_one_line_with_its_name(maven: dict[str, bytes]) -> None:
    del maven[next(path for path in maven if "jopt-simple" in path)]
    with pytest.raises(EmbeddedError, match=r"could not fetch .*jopt-simple.*PRODUCE_GATEWAY_MAVEN") as caught:
        fetch_kafka(io.StringIO())
    assert "\n" not in str(caught.value)


def test_difference_names_what_is_missing_and_what_is_too_much(tmp_path: Path) -> None:
    jars = [MavenJar("org", name, "1", hashlib.sha256(name.encode()).hexdigest()) for name in ("a", "b")]
    (tmp_path / "a-1.jar").write_bytes(b"a")
    assert find_fault(tmp_path, jars) == "1 of 2 jars are missing, b-1.jar among them"
    (tmp_path / "b-1.jar").write_bytes(b"b")
    assert find_fault(tmp_path, jars) is None
    (tmp_path / "c-1.jar").write_bytes(b"c")
    assert find_fault(tmp_path, jars) == "c-1.jar does not belong there"


# --- Java -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def _forget_java() -> Iterator[None]:
    embedded.find_java_path.cache_clear()
    yield
    embedded.find_java_path.cache_clear()


@pytest.mark.usefixtures("_forget_java")
def test_missing_java_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedError, match=r"^Kafka and Spark need Java 17 or newer, but none is on PATH: install"):
        embedded.find_java_path()


@pytest.mark.parametrize(
    ("version", "major"), [("11.0.2", "11"), ("1.8.0_402", "8"), ("17.0.15", None), ("21", None), ("25-ea", None)]
)
@pytest.mark.usefixtures("_forget_java")
def test_java_must_be_17(version: str, major: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "java"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if major is None:
        assert embedded.find_java_path() == str(fake)
        return
    with pytest.raises(EmbeddedError, match=rf"is Java {major}: put a newer one first"):
        embedded.find_java_path()


# --- class data -------------------------------------------------------------------------------------------------------

TOOL = ("kafka.tools.StorageTool", "random-uuid")


def test_a_tool_takes_its_classes_from_the_archive() -> None:
    archive = class_data.make_archive()
    assert archive is not None
    where = f"-XX:SharedArchiveFile={archive}"
    command = java_command(*TOOL, java_options=("-Xlog:class+load",))
    assert where in command
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "source: shared objects file (top)" in said


def test_an_archive_that_is_none_costs_nothing_but_time(tmp_path: Path) -> None:
    archive = class_data.make_archive()
    broken = tmp_path / "broken.jsa"
    broken.write_bytes(b"none")
    command = [word.replace(str(archive), str(broken)) for word in java_command(*TOOL)]
    assert f"-XX:SharedArchiveFile={broken}" in command
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"[\w-]{22}\n", done.stdout)
    assert done.stderr == ""


# --- brokers ----------------------------------------------------------------------------------------------------------


def create(cluster: EmbeddedCluster, topic: str, partitions: int = 1, copies: int = 1) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    client.create_topics([NewTopic(topic, partitions, copies)])[topic].result(120)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode == 0
    return state != "Z"


def test_released_features_are_on_as_after_a_real_format(kafka: EmbeddedCluster) -> None:
    said = kafka.run_tool(
        "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", kafka.bootstrap_servers, "describe"
    )
    levels = {line.split()[1]: line.partition("FinalizedVersionLevel: ")[2].split()[0] for line in said.splitlines()}
    assert levels["transaction.version"] == "2"
    assert levels["metadata.version"].startswith("4.3")
    assert levels["group.version"] == "1"


def test_a_failing_tool_says_why(kafka: EmbeddedCluster) -> None:
    with pytest.raises(EmbeddedError, match=r"(?s)TopicCommand ended with 1: .*bootstrap-server"):
        kafka.run_tool("org.apache.kafka.tools.TopicCommand", "--list")


def test_users_are_asked_for_their_password_by_plain_and_scram() -> None:
    users = {"alice": 'a "quoted" \\ one', "bob": "b"}
    with EmbeddedCluster(1, users=users) as cluster:
        create(cluster, "sasl")
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            common = {
                "bootstrap.servers": cluster.sasl_bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": "alice",
                "log_level": 0,
            }
            assert delivered(Producer(common | {"sasl.password": users["alice"]}), "sasl")
            assert not delivered(Producer(common | {"sasl.password": "wrong", "message.timeout.ms": 1500}), "sasl")


def delivered(producer: Producer, topic: str) -> bool:
    accepted: list[bool] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: accepted.append(error is None))
    producer.flush(60)
    return accepted == [True]


def test_a_configuration_that_kafka_refuses_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(1, {"log.retention.hours": "soon"}, base_dir=tmp_path)
    with pytest.raises(EmbeddedError, match=r"broker 1 ended with 1: .*log\.retention\.hours"):
        cluster.open()
    assert not cluster.broker(1).is_running


def test_overrides_ports_and_files_are_where_they_were_asked_for(tmp_path: Path) -> None:
    port = find_free_port(2)
    own = {1: {"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"}}
    with EmbeddedCluster(
        1, {"auto.create.topics.enable": "true"}, per_broker_overrides=own, base_dir=tmp_path, port=port
    ) as c:
        assert c.bootstrap_servers == f"127.0.0.1:{port}"
        assert delivered(Producer({"bootstrap.servers": c.bootstrap_servers, "log_level": 0}), "made-by-producing")
        pid = c.broker(1).pid
    assert not alive(pid)
    assert len(list(tmp_path.glob("*/made-by-producing-0"))) == 1
    with EmbeddedCluster(1, per_broker_overrides=own, base_dir=tmp_path, port=port) as c:
        assert end_offsets(c, "made-by-producing") == 1


OWNER = """
import time
from gateway.embedded import EmbeddedCluster
cluster = EmbeddedCluster(1).open()
tool = cluster.start_tool("kafka.Kafka", "/dev/null")
print(cluster.broker(1).pid, tool.pid, cluster.broker(1).folder.parent, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_process_that_started_it(how: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        broker, tool, folder = owner.stdout.readline().split()
        assert alive(int(broker))
        owner.send_signal(how)
    wait_for("the broker's end", lambda: not alive(int(broker)))
    wait_for("the tool's end", lambda: not alive(int(tool)))
    wait_for("the folder's removal", lambda: not Path(folder).exists())


def test_free_ports_are_consecutive_and_never_given_twice() -> None:
    first, second = find_free_port(5), find_free_port(5)
    assert not set(range(first, first + 5)) & set(range(second, second + 5))
    assert all(20_000 <= port < 31_000 for port in (first, second + 4))
