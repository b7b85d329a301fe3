# What DescribeCluster and DescribeLogDirs answers come to, as Kafka 4.3.1 gave them (in version 3 for a broker before
# KIP-827). Servers that don't answer are sockets of the test's own; the real ones are in
# tests/integration/storage/test_log_dirs.py.

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from gateway.storage.log_dirs import LogDirs, active_brokers, active_ids, make_observation, topics_by_volume
from policies.storage import Observation, ObservationFailed, Volume
from protocol.admin.cluster import (
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    DescribeClusterBroker,
    DescribeClusterResponse,
    DescribeLogDirsResponse,
    LogDir,
    LogDirPartition,
    LogDirTopic,
)
from tests.background import accepting
from tests.gateway.storage.leftovers import no_descriptors_left

CLUSTER = DescribeClusterResponse(
    throttle_time_ms=0,
    error_code=0,
    error_message=None,
    endpoint_type=1,
    cluster_id="HeDkDJlTSJiZz_8b_4d9KA",
    controller_id=1,
    brokers=(DescribeClusterBroker(1, "127.0.0.1", 30182, None), DescribeClusterBroker(2, "127.0.0.1", 30183, None)),
    cluster_authorized_operations=-(2**31),
)


def described(name: str, total: int = 270_553_174_016, usable: int = 79_420_157_952, error: int = 0) -> LogDir:
    return LogDir(error, name, (), total, usable)


def answer(*log_dirs: LogDir, error: int = 0) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(0, error, log_dirs)


ONE = answer(described("/data/1"))
TWO = answer(described("/data/2", 1000, 10))


def fenced(*broker_ids: int) -> DescribeClusterResponse:
    brokers = (broker._replace(is_fenced=broker.broker_id in broker_ids) for broker in CLUSTER.brokers)
    return CLUSTER._replace(brokers=tuple(brokers))


def why(cluster: DescribeClusterResponse, answers: dict[int, DescribeLogDirsResponse]) -> str:
    with pytest.raises(ObservationFailed) as caught:
        make_observation(cluster, answers)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def holding(name: str, *topics: str, error: int = 0) -> LogDir:
    parts = (LogDirPartition(0, 5, 0, False), LogDirPartition(1, 5, 0, True))  # one on its way from another log dir
    return described(name, error=error)._replace(topics=tuple(LogDirTopic(topic, parts) for topic in topics))


def test_the_topics_of_each_log_dir_are_told() -> None:
    one = answer(holding("/data/a", "x", "y"), holding("/data/b", "y"), holding("/bad", "z", error=56))
    assert topics_by_volume([1], {1: one, 2: TWO}) == {(1, "/data/a"): {"x", "y"}, (1, "/data/b"): {"y"}}


@pytest.mark.parametrize("answers", [{}, {1: answer(error=31)}])
def test_a_broker_that_does_not_tell_its_topics_fails_all(answers: dict[int, DescribeLogDirsResponse]) -> None:
    with pytest.raises(ObservationFailed, match="broker 1: DescribeLogDirs: "):
        topics_by_volume([1], answers)


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.seed("DISK.5", "DISK.13")
def test_every_log_dir_of_every_broker_is_a_volume() -> None:
    both = answer(described("/data/a", 5, 4), described("/data/b", 7, 0))
    volumes = (Volume(1, "/data/a", 5, 4), Volume(1, "/data/b", 7, 0), Volume(2, "/data/2", 1000, 10))
    assert make_observation(CLUSTER, {2: TWO, 1: both}) == Observation(frozenset({1, 2}), volumes)


@pytest.mark.seed("035.16", "DISK.17")
def test_a_fenced_broker_is_not_active_and_need_not_answer() -> None:
    for answers in ({1: ONE}, {1: ONE, 2: TWO}):
        seen = make_observation(fenced(2), answers)
        assert seen.brokers == {1}
        assert [volume.broker_id for volume in seen.volumes] == [1]


def test_versions_before_2_name_only_active_brokers() -> None:
    frame = DESCRIBE_CLUSTER.encode_response(fenced(2), 1, 7)[4:]
    _, read = DESCRIBE_CLUSTER.decode_response(frame, 0, len(frame), 1)
    assert active_ids(read) == {1, 2}


@pytest.mark.seed("DISK.13", "DISK.26", "DISK.40")
@pytest.mark.parametrize(
    ("cluster", "answers", "said"),
    [
        (fenced(1, 2), {}, "DescribeCluster names no active broker"),
        (CLUSTER._replace(error_code=31, brokers=()), {}, "DescribeCluster: error 31 (CLUSTER_AUTHORIZATION_FAILED)"),
        (CLUSTER, {1: ONE}, "broker 2 is active but did not describe its log dirs"),
        (
            CLUSTER,
            {1: ONE, 2: answer(error=31)},
            "broker 2: DescribeLogDirs: error 31 (CLUSTER_AUTHORIZATION_FAILED): a",
        ),
        (CLUSTER, {1: ONE, 2: answer()}, "broker 2 describes no log dir"),
        (
            CLUSTER,
            {1: ONE, 2: answer(described("/gone", -1, -1, error=-1), described("/good"))},
            "broker 2: log dir /gone: error -1 (UNKNOWN_SERVER_ERROR)",
        ),
        *[
            (
                CLUSTER,
                {1: ONE, 2: answer(described("/o", *sizes))},
                "broker 2 does not tell total and usable bytes of /o",
            )
            for sizes in ((-1, -1), (5, -1))
        ],
        (CLUSTER, {1: ONE, 2: answer(described("/fuse", 0, 0))}, "0 bytes in total"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_answer_that_lacks_an_active_brokers_sizes_fails_all(
    cluster: DescribeClusterResponse, answers: dict[int, DescribeLogDirsResponse], said: str
) -> None:
    assert said in why(cluster, answers)


def test_an_offline_log_dir_is_left_out_and_listed() -> None:
    half = answer(described("/bad", -1, -1, error=56), described("/good", 10, 3))
    seen = make_observation(CLUSTER, {1: ONE, 2: half})
    assert seen.offline == ((2, "/bad"),)
    assert [volume.name for volume in seen.volumes] == ["/data/1", "/good"]


@pytest.mark.seed("DISK.40")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_broker_before_kip_827_fails_all(version: int) -> None:
    frame = DESCRIBE_LOG_DIRS.encode_response(answer(described("/o")), version, 7)[4:]
    _, old = DESCRIBE_LOG_DIRS.decode_response(frame, 0, len(frame), version)
    assert "broker 2 does not tell total and usable bytes of /o" in why(CLUSTER, {1: ONE, 2: old})
    assert "KIP-827" in why(CLUSTER, {1: ONE, 2: old})


@pytest.mark.seed("DISK.13", "DISK.40")
def test_a_full_volume_is_a_volume() -> None:
    assert make_observation(fenced(2), {1: answer(described("/full", 100, 0))}).volumes[0].available == 0


# --- servers that don't answer ----------------------------------------------------------------------------------------


SILENT_S = 0.3  # a time limit that is surely met by nobody


@pytest.fixture
def nobody() -> str:
    """An address that refuses."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts (the kernel does) and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture(params=[b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\4\0\0\0\1"], ids=["eof", "http", "frame"])
def rubbish(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address where each connection gets these bytes, then its end."""
    with accepting(lambda sock: sock.sendall(request.param)) as address:
        yield address


def fails(servers: str, timeout_s: float = SILENT_S, **properties: str) -> str:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    said = set()
    source = LogDirs(given, servers, timeout_s)
    for _ in range(2):  # what failed once must not stand in the way of the next time
        with pytest.raises(ObservationFailed) as caught:
            source.observe()
        said.add(str(caught.value))
    with pytest.raises(ObservationFailed):
        active_brokers(given, servers, timeout_s)
    assert not [text for text in said if "\n" in text]
    return said.pop()


@no_descriptors_left
def test_a_refused_connection_is_told_at_once(nobody: str) -> None:
    said = fails(nobody, 60)
    assert said.startswith(f"{nobody}: ")
    assert "ECONNREFUSED" in said


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@no_descriptors_left
def test_a_silent_server_costs_the_time_limit_and_no_more(silent: str, protocol: str) -> None:
    assert fails(silent, security_protocol=protocol) == f"{silent}: no answer in time"


@no_descriptors_left
def test_every_bootstrap_server_has_its_turn(silent: str, nobody: str) -> None:
    said = fails(f"{silent},{nobody}")
    assert f"{silent}: no answer in time" in said
    assert f"{nobody}: " in said


@no_descriptors_left
def test_a_server_that_is_no_broker_is_an_error_in_one_line(rubbish: str) -> None:
    assert fails(rubbish, 60).startswith(f"{rubbish}: ")


@no_descriptors_left
def test_tls_with_a_server_that_speaks_none(rubbish: str) -> None:
    assert "TLS handshake failed: " in fails(rubbish, 60, security_protocol="SSL")


@pytest.mark.parametrize("servers", ["nothing.invalid:9092", "127.0.0.1:port", ""])
@no_descriptors_left
def test_an_address_that_leads_nowhere(servers: str) -> None:
    assert fails(servers, 60)


@no_descriptors_left
def test_close_ends_an_observation_that_another_thread_is_at() -> None:
    said: list[str] = []

    def observe() -> None:
        with pytest.raises(ObservationFailed) as caught:
            source.observe()
        said.append(str(caught.value))

    with socket.create_server(("127.0.0.1", 0)) as server:
        source = LogDirs({}, f"127.0.0.1:{server.getsockname()[1]}", 3600.0)
        thread = threading.Thread(target=observe)
        thread.start()
        sock, _ = server.accept()
        with sock:
            source.close()
            thread.join()
        assert said == ["closed"]
        with pytest.raises(ObservationFailed, match="closed"):
            source.observe()
