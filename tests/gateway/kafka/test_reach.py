# What is found out about brokers that don't answer as the properties would have it: with servers that are played, with
# TLS and without. With real brokers: tests/integration/security/test_tls_brokers.py.

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gateway.kafka.client import BrokerAddress, NoAnswer
from gateway.kafka.reach import ReachResult, explain_unreachable, reach_brokers
from protocol import api
from protocol.admin.cluster import METADATA, MetadataBroker, MetadataResponse
from protocol.authentication.handshake import API_VERSIONS
from tests.background import accepting
from tests.certificates import Authority
from tests.gateway.data.relay.tls_stage import server_context
from tests.gateway.kafka.test_client import PLAIN, SPOKEN, written

TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.kafka.reach.PROBE_TIMEOUT_S", TIMEOUT_S)


@pytest.fixture(scope="module")
def server(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("broker")


@contextmanager
def broker(context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a broker that names itself as broker 7; it closes on what is no request, as Kafka does."""

    def serve(sock: socket.socket) -> None:
        with suppress(OSError):
            if context is None:
                answer_all(sock)
                return
            with context.wrap_socket(sock.dup(), server_side=True) as secure:
                answer_all(secure)

    def answer_all(sock: socket.socket) -> None:
        host, port = sock.getsockname()
        with sock.makefile("rb") as reader:
            while head := reader.read(4):
                if head[0]:
                    return  # larger than any request
                frame = reader.read(int.from_bytes(head, "big"))
                key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
                found = MetadataResponse((MetadataBroker(7, host, port, None),), 1, ())
                if key == api.API_VERSIONS:
                    sock.sendall(written(API_VERSIONS, SPOKEN, version, frame))
                else:
                    sock.sendall(written(METADATA, found, version, frame))

    with accepting(serve) as address:
        yield address


def one(address: str, properties: dict[str, str]) -> str:
    """The problem of the only address that is looked at."""
    (found,) = reach_brokers(properties, address, TIMEOUT_S)
    assert str(found).startswith(f"{address}: ")
    assert "\n" not in str(found)
    return found.problem


def test_bootstrap_servers_and_the_brokers_that_they_name_are_tried(
    authority: Authority, server: tuple[Path, Path]
) -> None:
    trusting = {"security.protocol": "SSL", "ssl.ca.location": str(authority.certificate)}
    for context, properties in ((None, {}), (server_context(server), trusting)):
        with broker(context) as address:
            host, _, port = address.rpartition(":")
            where = BrokerAddress(host, int(port))
            assert reach_brokers(properties, address, TIMEOUT_S) == [
                ReachResult(-1, where, ""),
                ReachResult(7, where, ""),
            ]


def test_a_server_with_tls_behind_a_plain_setting(server: tuple[Path, Path]) -> None:
    with broker(server_context(server)) as address:
        assert one(address, {}) == "it speaks TLS (security.protocol must be SSL or SASL_SSL there)"


def test_a_server_without_tls_behind_a_setting_with_it(authority: Authority) -> None:
    with broker() as address:
        said = one(address, {"security.protocol": "SSL", "ssl.ca.location": str(authority.certificate)})
        assert said.startswith("it does not speak TLS (security.protocol must be PLAINTEXT or SASL_PLAINTEXT there")


def test_a_server_of_another_ca(server: tuple[Path, Path], tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    with broker(server_context(server)) as address:
        said = one(address, {"security.protocol": "SSL", "ssl.ca.location": str(other.certificate)})
        assert "its certificate is not signed by a CA in ssl.ca.location" in said


def test_mechanisms_that_are_not_spoken_here_leave_tls_to_be_tried(
    authority: Authority, server: tuple[Path, Path]
) -> None:
    bearer = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    with broker(server_context(server)) as address:
        assert one(address, {**bearer, "ssl.ca.location": str(authority.certificate)}) == ""


def test_properties_that_can_not_be_used_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match=r"^ssl\.ca\.location: .* can't be read: No such file"):
        reach_brokers({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "none")}, "127.0.0.1:1", TIMEOUT_S)


async def test_for_the_log_only_what_is_wrong_is_told(server: tuple[Path, Path]) -> None:
    with broker() as plain, broker(server_context(server)) as secure:
        client = {"bootstrap.servers": "passed over", "log_level": "2"}
        assert await explain_unreachable(client, plain, TIMEOUT_S) == ""
        said = await explain_unreachable(client, f"{plain},{secure}", TIMEOUT_S)
        assert said == f"{secure}: it speaks TLS (security.protocol must be SSL or SASL_SSL there)"
        assert PLAIN["sasl.password"] not in said


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
async def test_a_name_that_no_host_can_have_is_told(host: str) -> None:
    found = await explain_unreachable({}, f"{host}:9092", TIMEOUT_S)
    assert found.startswith(f"{host}:9092: ")
