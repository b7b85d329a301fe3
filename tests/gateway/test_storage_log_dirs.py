# What DescribeCluster and DescribeLogDirs answers come to, and what becomes of librdkafka's properties. The shapes are
# kafka-python's `to_dict` of what Kafka 4.3.1 answered (in version 3 for a broker before KIP-827). Servers that don't
# answer are sockets of the test's own; the real ones are in tests/integration/test_log_dirs.py.

from __future__ import annotations

import copy
import logging
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.log_dirs import InvalidProperties, LogDirs, active, active_brokers, client_configs, observation
from policies.storage import Observation, ObservationFailed, Volume
from tests.leftovers import no_descriptors_left, threads_of

CLUSTER: dict[str, Any] = {
    "throttle_time_ms": 0,
    "error_code": 0,
    "error_message": None,
    "endpoint_type": 1,
    "cluster_id": "HeDkDJlTSJiZz_8b_4d9KA",
    "controller_id": 1,
    "brokers": [
        {"broker_id": 1, "host": "127.0.0.1", "port": 30182, "rack": None, "is_fenced": False},
        {"broker_id": 2, "host": "127.0.0.1", "port": 30183, "rack": None, "is_fenced": False},
    ],
    "authorized_operations": None,
}


def described(name: str, total: int = 270_553_174_016, usable: int = 79_420_157_952, error: int = 0) -> dict[str, Any]:
    sizes = {"total_bytes": total, "usable_bytes": usable, "is_cordoned": False}
    return {"error_code": error, "log_dir": name, "topics": [], **sizes}


def answer(*log_dirs: dict[str, Any], error: int = 0) -> dict[str, Any]:
    return {"throttle_time_ms": 0, "error_code": error, "results": list(log_dirs)}


ONE = answer(described("/data/1"))
TWO = answer(described("/data/2", 1000, 10))


def fenced(*broker_ids: int) -> dict[str, Any]:
    cluster = copy.deepcopy(CLUSTER)
    for broker in cluster["brokers"]:
        broker["is_fenced"] = broker["broker_id"] in broker_ids
    return cluster


def why(cluster: dict[str, Any], answers: dict[int, dict[str, Any]]) -> str:
    with pytest.raises(ObservationFailed) as caught:
        observation(cluster, answers)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_every_log_dir_of_every_broker_is_a_volume() -> None:
    both = answer(described("/data/a", 5, 4), described("/data/b", 7, 0))
    volumes = (Volume(1, "/data/a", 5, 4), Volume(1, "/data/b", 7, 0), Volume(2, "/data/2", 1000, 10))
    assert observation(CLUSTER, {2: TWO, 1: both}) == Observation(frozenset({1, 2}), volumes)


def test_a_fenced_broker_is_not_active_and_need_not_answer() -> None:
    seen = observation(fenced(2), {1: ONE})
    assert seen.brokers == {1}
    assert [volume.broker_id for volume in seen.volumes] == [1]


def test_a_fenced_broker_that_answers_nevertheless_does_not_count() -> None:
    assert [volume.broker_id for volume in observation(fenced(2), {1: ONE, 2: TWO}).volumes] == [1]


def test_versions_before_2_name_only_active_brokers() -> None:
    cluster = copy.deepcopy(CLUSTER)
    for broker in cluster["brokers"]:
        del broker["is_fenced"]
    assert active(cluster) == {1, 2}


def test_no_active_broker_at_all_is_no_view() -> None:
    assert why(fenced(1, 2), {}) == "DescribeCluster names no active broker"


def test_an_error_instead_of_brokers() -> None:
    refused = {**CLUSTER, "error_code": 31, "brokers": []}
    assert why(refused, {}).startswith("DescribeCluster: error 31 (CLUSTER_AUTHORIZATION_FAILED)")


def test_an_active_broker_without_an_answer_fails_all() -> None:
    assert why(CLUSTER, {1: ONE}) == "broker 2 is active but did not describe its log dirs"


def test_a_missing_right_is_named() -> None:
    said = why(CLUSTER, {1: ONE, 2: answer(error=31)})
    assert said.startswith("broker 2: DescribeLogDirs: error 31 (CLUSTER_AUTHORIZATION_FAILED): allow")


def test_a_broker_that_describes_nothing_is_no_view() -> None:
    assert why(CLUSTER, {1: ONE, 2: answer()}).startswith("broker 2 describes no log dir")


def test_an_offline_log_dir_is_left_out_and_listed() -> None:
    half = answer(described("/bad", -1, -1, error=56), described("/good", 10, 3))
    seen = observation(CLUSTER, {1: ONE, 2: half})
    assert seen.offline == ((2, "/bad"),)
    assert [volume.name for volume in seen.volumes] == ["/data/1", "/good"]


def test_any_other_error_of_a_log_dir_fails_all() -> None:
    said = why(CLUSTER, {1: ONE, 2: answer(described("/gone", -1, -1, error=-1), described("/good"))})
    assert said == "broker 2: log dir /gone: error -1 (UNKNOWN_SERVER_ERROR)"


@pytest.mark.parametrize("sizes", [{}, {"total_bytes": -1, "usable_bytes": -1}, {"total_bytes": 5, "usable_bytes": -1}])
def test_a_broker_before_kip_827_fails_all(sizes: dict[str, int]) -> None:
    old = {
        "throttle_time_ms": 0,
        "error_code": 0,
        "results": [{"error_code": 0, "log_dir": "/o", "topics": []} | sizes],
    }
    assert "broker 2 does not tell total and usable bytes of /o" in why(CLUSTER, {1: ONE, 2: old})
    del old["error_code"]  # versions 1 and 2
    assert "KIP-827" in why(CLUSTER, {1: ONE, 2: old})


def test_a_volume_of_no_size_says_nothing() -> None:
    assert "0 bytes in total" in why(CLUSTER, {1: ONE, 2: answer(described("/fuse", 0, 0))})


def test_a_full_volume_is_a_volume() -> None:
    assert observation(fenced(2), {1: answer(described("/full", 100, 0))}).volumes[0].available == 0


# --- properties -------------------------------------------------------------------------------------------------------


def refused(**properties: str) -> str:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    with pytest.raises(InvalidProperties) as caught:
        LogDirs(given, "127.0.0.1:1")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_given_is_plaintext() -> None:
    assert client_configs({})["security_protocol"] == "PLAINTEXT"


@pytest.mark.parametrize("key", ["sasl.mechanism", "sasl.mechanisms"])
def test_sasl_has_kafka_pythons_names(key: str) -> None:
    given = {"security.protocol": "sasl_plaintext", key: "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}
    configs = client_configs(given)
    assert configs["security_protocol"] == "SASL_PLAINTEXT"
    assert configs["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (configs["sasl_plain_username"], configs["sasl_plain_password"]) == ("u", "p")


def test_how_librdkafka_uses_its_sockets_is_passed_over() -> None:
    assert client_configs({"socket.keepalive.enable": "true", "broker.address.family": "v4"}) == client_configs({})


def test_an_unknown_property_is_named_beside_those_that_are_known() -> None:
    said = refused(ssl_truststore_location="/trust.jks")
    assert said.startswith("ssl.truststore.location: ")
    assert "ssl.ca.location" in said
    assert "sasl.username" in said
    assert "/trust.jks" not in said  # it might be a password


def test_what_can_be_said_of_sasl_without_connecting() -> None:
    assert refused(security_protocol="TLS").startswith("security.protocol: must be one of PLAINTEXT, SSL,")
    assert refused(security_protocol="SASL_SSL").startswith("sasl.mechanism: must be one of PLAIN,")
    bearer = refused(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER")
    assert bearer.startswith("sasl.mechanism: must be one of PLAIN,")
    plain = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    assert refused(**plain, sasl_password="hidden") == "sasl.username: needed with sasl.mechanism PLAIN"
    assert refused(**plain, sasl_username="u") == "sasl.password: needed with sasl.mechanism PLAIN"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, its key, and the same key behind a password."""
    folder = tmp_path_factory.mktemp("pki")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    made = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *made], check=True, capture_output=True)
    locked = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", str(folder / "key.pem")]
    subprocess.run([*locked, "-out", str(folder / "locked.pem")], check=True, capture_output=True)
    return folder


def test_tls_verifies_host_and_certificate_unless_told_otherwise(pki: Path) -> None:
    ca = {"security.protocol": "SSL", "ssl.ca.location": str(pki / "cert.pem")}
    context = client_configs(ca)["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert context.cert_store_stats()["x509"] == 1
    pem = {"security.protocol": "SSL", "ssl.ca.pem": (pki / "cert.pem").read_text()}
    assert client_configs(pem)["ssl_context"].cert_store_stats()["x509"] == 1

    context = client_configs({**ca, "ssl.endpoint.identification.algorithm": "none"})["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
    context = client_configs({**ca, "enable.ssl.certificate.verification": "false"})["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)


def test_files_of_tls_are_tried_without_connecting(pki: Path, tmp_path: Path) -> None:
    nothing, text = str(tmp_path / "nothing.pem"), tmp_path / "text.pem"
    text.write_text("no certificate")
    assert refused(security_protocol="SSL", ssl_ca_location=nothing) == (
        f"ssl.ca.location: {nothing}: No such file or directory"
    )
    assert refused(security_protocol="SSL", ssl_ca_location=str(text)).startswith(f"ssl.ca.location: {text}: ")
    own = {"security_protocol": "SSL", "ssl_certificate_location": str(pki / "cert.pem")}
    assert refused(**own, ssl_key_location=nothing).startswith(f"ssl.key.location: {nothing}: No such")
    assert refused(security_protocol="SSL", ssl_key_location=nothing).startswith("ssl.certificate.location: needed")
    assert "ssl.key.password" in refused(**own, ssl_key_location=str(pki / "locked.pem"))
    wrong = refused(**own, ssl_key_location=str(pki / "locked.pem"), ssl_key_password="wrong-one")
    assert "ssl.key.password" in wrong
    assert "wrong-one" not in wrong
    given = {key.replace("_", "."): value for key, value in own.items()}
    client_configs({**given, "ssl.key.location": str(pki / "locked.pem"), "ssl.key.password": "secret"})


def test_tls_files_that_vanish_later_fail_the_observation_only(pki: Path, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes((pki / "cert.pem").read_bytes())
    source = LogDirs({"security.protocol": "SSL", "ssl.ca.location": str(ca)}, "127.0.0.1:1")
    ca.unlink()
    with pytest.raises(ObservationFailed, match=r"^ssl\.ca\.location: .*No such file"):
        source.observe()


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
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                with sock:
                    sock.sendall(request.param)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def _no_leftovers(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither threads nor a line of kafka-python's log remain."""
    before = threads_of("kafka")
    with caplog.at_level(logging.DEBUG):
        yield
    assert threads_of("kafka") <= before
    assert not [record for record in caplog.get_records("call") if record.name.startswith("kafka")]


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


@pytest.mark.usefixtures("_no_leftovers")
@no_descriptors_left
def test_a_refused_connection_is_told_at_once(nobody: str) -> None:
    said = fails(nobody, 60)
    assert said.startswith(f"{nobody}: ")
    assert "ECONNREFUSED" in said


@pytest.mark.usefixtures("_no_leftovers")
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@no_descriptors_left
def test_a_silent_server_costs_the_time_limit_and_no_more(silent: str, protocol: str) -> None:
    assert fails(silent, security_protocol=protocol) == f"{silent}: no answer in time"


@pytest.mark.usefixtures("_no_leftovers")
@no_descriptors_left
def test_every_bootstrap_server_has_its_turn(silent: str, nobody: str) -> None:
    said = fails(f"{silent},{nobody}")
    assert f"{silent}: no answer in time" in said
    assert f"{nobody}: " in said


@pytest.mark.usefixtures("_no_leftovers")
@no_descriptors_left
def test_what_is_no_broker_is_an_error_in_one_line(rubbish: str) -> None:
    assert fails(rubbish, 5).startswith(f"{rubbish}: ")


@pytest.mark.usefixtures("_no_leftovers")
@no_descriptors_left
def test_tls_with_what_speaks_none(rubbish: str) -> None:
    assert "Handshake failed" in fails(rubbish, 5, security_protocol="SSL")


@pytest.mark.usefixtures("_no_leftovers")
@pytest.mark.parametrize("servers", ["nothing.invalid:9092", "127.0.0.1:port", ""])
@no_descriptors_left
def test_an_address_that_leads_nowhere(servers: str) -> None:
    assert fails(servers, 5)


@pytest.mark.usefixtures("_no_leftovers")
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
