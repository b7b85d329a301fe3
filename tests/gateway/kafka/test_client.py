# Connections of our own with a broker that is played: which versions are spoken, who says what before the first
# request, and answers that are none. With real brokers: tests/integration/storage/test_log_dirs.py and
# test_kafka_quotas.py; with silence and rubbish: gateway/storage/test_log_dirs.py.

from __future__ import annotations

import functools
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from gateway.kafka import client as kafka_client
from gateway.kafka.client import BrokerAddress, BrokerClient, BrokerConnection, NoAnswer, UnknownApi, parse_addresses
from protocol import api
from protocol.admin.cluster import METADATA, MetadataBroker, MetadataRequest, MetadataResponse
from protocol.authentication.handshake import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    ApiVersion,
    ApiVersionsResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from protocol.message_codec import ApiCodec
from tests.background import accepting

Answer = Callable[[int, int, bytes], bytes]  # of api key, version, frame without its size
VERSIONS = ((api.METADATA, 0, 13), (api.SASL_HANDSHAKE, 0, 1), (api.SASL_AUTHENTICATE, 0, 2))
SPOKEN = ApiVersionsResponse(0, tuple(ApiVersion(*row) for row in VERSIONS), 0)
FOUND = MetadataResponse((MetadataBroker(1, "b1", 9092, None),), 1, ())
PLAIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "secret",
}


def broker(answer: Answer) -> AbstractContextManager[str]:
    """The address of a server that accepts one connection at a time."""

    def serve(sock: socket.socket) -> None:
        with sock.makefile("rb") as reader:
            while head := reader.read(4):
                frame = reader.read(struct.unpack(">i", head)[0])
                key, version = struct.unpack_from(">hh", frame)
                sock.sendall(answer(key, version, frame))

    return accepting(serve)


def written(spoken: ApiCodec[Any, Any], answer: Any, version: int, frame: bytes) -> bytes:
    return spoken.encode_response(answer, version, struct.unpack_from(">i", frame, 4)[0])


def usual(key: int, version: int, frame: bytes) -> bytes:
    if key == api.API_VERSIONS:
        return written(API_VERSIONS, SPOKEN, version, frame)
    return written(METADATA, FOUND, version, frame)


def ask(address: str, properties: dict[str, str] | None = None, timeout_s: float = 60.0) -> MetadataResponse:
    client = BrokerClient(properties or {}, address, timeout_s, max_answer_bytes=1000)
    return client.run(
        lambda asking: asking.request_any_broker(lambda broker: broker.send_request(METADATA, MetadataRequest(())))
    )


def why(address: str, properties: dict[str, str] | None = None) -> str:
    with pytest.raises(NoAnswer) as caught:
        ask(address, properties)
    assert str(caught.value).startswith(f"{address}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{address}: ")


def test_it_says_who_it_is_and_takes_the_newest_version_that_both_speak() -> None:
    seen: list[tuple[int, int]] = []
    said: list[bytes] = []

    def answer(key: int, version: int, frame: bytes) -> bytes:
        seen.append((key, version))
        said.append(frame)
        return usual(key, version, frame)

    with broker(answer) as address:
        assert ask(address) == FOUND
    assert seen == [(api.API_VERSIONS, 3), (api.METADATA, 1)]
    assert said[0].count(b"produce-gateway") == 2  # client id, software


def test_a_broker_before_kafka_2_4_is_asked_again_in_the_oldest_version() -> None:
    seen: list[tuple[int, int]] = []

    def answer(key: int, version: int, frame: bytes) -> bytes:
        seen.append((key, version))
        if key == api.API_VERSIONS and version > 2:
            return written(API_VERSIONS, ApiVersionsResponse(api.UNSUPPORTED_VERSION, (), 0), 0, frame)
        return usual(key, version, frame)

    with broker(answer) as address:
        assert ask(address) == FOUND
    assert seen == [(api.API_VERSIONS, 3), (api.API_VERSIONS, 0), (api.METADATA, 1)]


@pytest.mark.parametrize("versions", [(), (ApiVersion(api.METADATA, 2, 13),), (ApiVersion(api.METADATA, 0, 0),)])
def test_a_request_that_the_broker_does_not_have(versions: tuple[ApiVersion, ...]) -> None:
    def answer(key: int, version: int, frame: bytes) -> bytes:
        return written(API_VERSIONS, SPOKEN._replace(api_keys=versions), version, frame)

    async def try_it(connection: BrokerConnection) -> str:
        with pytest.raises(UnknownApi) as caught:
            await connection.send_request(METADATA, MetadataRequest(()))
        return str(caught.value)

    with broker(answer) as address:
        said = BrokerClient({}, address, 60.0).run(lambda asking: asking.request_any_broker(try_it))
    assert said.startswith("has no Metadata ")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\0\0\3\xe9", "a size of 1,001 bytes"),
        (b"\xff\xff\xff\xff", "a negative size"),
        (b"\0\0\0\4\0\0\0\x09", "no broker answered: "),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP response"),
    ],
)
def test_an_answer_that_is_none(answer: bytes, reason: str) -> None:
    with broker(lambda *_: answer) as address:
        assert reason in why(address)


def test_an_answer_to_another_request() -> None:
    with broker(lambda _, version, __: API_VERSIONS.encode_response(SPOKEN, version, 77)) as address:
        assert why(address) == "an answer to another request"


def test_an_error_in_place_of_versions() -> None:
    failed = ApiVersionsResponse(api.ERROR_CODES["INVALID_REQUEST"], (), 0)
    with broker(lambda _, version, frame: written(API_VERSIONS, failed, version, frame)) as address:
        assert why(address) == "ApiVersions: error 42 (INVALID_REQUEST)"


# --- SASL -------------------------------------------------------------------------------------------------------------


def authenticating(handshake: SaslHandshakeResponse, authenticated: SaslAuthenticateResponse) -> Answer:
    def answer(key: int, version: int, frame: bytes) -> bytes:
        if key == api.SASL_HANDSHAKE:
            return written(SASL_HANDSHAKE, handshake, version, frame)
        if key == api.SASL_AUTHENTICATE:
            return written(SASL_AUTHENTICATE, authenticated, version, frame)
        return usual(key, version, frame)

    return answer


WELCOME = SaslHandshakeResponse(0, ("PLAIN",))
ACCEPTED = SaslAuthenticateResponse(0, None, b"", 0)


def test_plain_comes_before_the_first_request() -> None:
    tokens: list[bytes] = []

    def answer(key: int, version: int, frame: bytes) -> bytes:
        if key == api.SASL_AUTHENTICATE:
            tokens.append(SASL_AUTHENTICATE.decode_request(frame, 0, len(frame)).body.auth_bytes)
        return authenticating(WELCOME, ACCEPTED)(key, version, frame)

    with broker(answer) as address:
        assert ask(address, PLAIN) == FOUND
    assert tokens == [b"\0me\0secret"]


def test_a_mechanism_that_the_broker_does_not_have_and_those_that_it_has() -> None:
    unsupported = SaslHandshakeResponse(api.ERROR_CODES["UNSUPPORTED_SASL_MECHANISM"], ("OAUTHBEARER", "GSSAPI"))
    with broker(authenticating(unsupported, ACCEPTED)) as address:
        assert why(address, PLAIN) == "error 33 (UNSUPPORTED_SASL_MECHANISM): it has OAUTHBEARER, GSSAPI"
    without = SaslHandshakeResponse(api.ERROR_CODES["ILLEGAL_SASL_STATE"], ())
    with broker(authenticating(without, ACCEPTED)) as address:
        assert "it has no SASL (security.protocol must be PLAINTEXT or SSL there)" in why(address, PLAIN)


def test_a_broker_that_refuses_gives_its_reason() -> None:
    refused = SaslAuthenticateResponse(api.ERROR_CODES["SASL_AUTHENTICATION_FAILED"], "Invalid\nname", b"", 0)
    with broker(authenticating(WELCOME, refused)) as address:
        assert why(address, PLAIN) == "error 58 (SASL_AUTHENTICATION_FAILED): Invalid name"


def test_a_server_of_scram_that_cannot_know_the_password() -> None:
    scram = {**PLAIN, "sasl.mechanism": "SCRAM-SHA-256"}
    with broker(authenticating(WELCOME, ACCEPTED)) as address:
        assert why(address, scram).startswith("SCRAM: ")


# --- several ----------------------------------------------------------------------------------------------------------


def test_all_brokers_are_asked_and_the_first_few_of_those_that_fail_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        nobody = BrokerAddress("127.0.0.1", sock.getsockname()[1])
    with broker(usual) as address:
        host, _, port = address.partition(":")
        brokers = {1: BrokerAddress(host, int(port)), **dict.fromkeys(range(2, 7), nobody)}
        with pytest.raises(NoAnswer) as caught:
            BrokerClient({}, address, 60.0).run(
                lambda asking: asking.request_all_brokers(
                    brokers, lambda each: each.send_request(METADATA, MetadataRequest(()))
                )
            )
    said = str(caught.value)
    assert said.startswith(f"broker 2 ({nobody}): Connection refused (ECONNREFUSED); broker 3 (")
    assert said.endswith("; and 2 more")


def test_each_broker_is_asked_a_question_of_its_own() -> None:
    async def ask(connection: BrokerConnection, name: str) -> tuple[str, MetadataResponse]:
        return name, await connection.send_request(METADATA, MetadataRequest(()))

    with broker(usual) as one, broker(usual) as two:
        brokers = {1: parse_addresses(one)[0], 2: parse_addresses(two)[0]}
        asks = {number: functools.partial(ask, name=f"asked {number}") for number in brokers}
        found = BrokerClient({}, one, 60.0).run(lambda asking: asking.request_each_broker(brokers, asks))
    assert found == {1: ("asked 1", FOUND), 2: ("asked 2", FOUND)}


@pytest.mark.parametrize("servers", ["", " , ", "host", ":9092", "host:port", "host:0", "host:65536"])
def test_texts_that_are_no_address(servers: str) -> None:
    with pytest.raises(NoAnswer, match=r"^bootstrap servers"):
        ask(servers)


def test_a_name_that_is_not_known_is_told_without_a_number() -> None:
    failed = OSError("all attempts to connect failed")
    failed.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert kafka_client._root_cause_text(failed) == "Name or service not known"
