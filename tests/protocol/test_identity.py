# Who a client is, from its own bytes and the broker's verdict; kio writes the frames.

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol import api
from protocol.identity import UNKNOWN, Sasl, software
from protocol.wire import MalformedFrame
from tests.protocol.kio_messages import answer_class, answer_header, encode, kio_encode, request_class

Buffers = Callable[[bytes], Any]
HANDSHAKES = [0, 1]
AUTHENTICATES = [0, 1, 2]
UNKNOWN_FIELDS = [(90, b"new"), (200, b"")]


def request(api_key: int, version: int, client_id: str | None = "app", **fields: Any) -> bytes:
    cls = request_class(api_key, version)
    text = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    head = struct.pack(">hhi", api_key, version, 77) + text
    return head + (b"\x01\x5a\x01h" if cls.__flexible__ else b"") + kio_encode(cls(**fields))


def handshake(mechanism: str, version: int = 1) -> bytes:
    return request(api.SASL_HANDSHAKE, version, mechanism=mechanism)


def authenticate(token: bytes, version: int = 2) -> bytes:
    return request(api.SASL_AUTHENTICATE, version, auth_bytes=token)


def authenticated(token: bytes, version: int = 2, error: int = 0) -> bytes:
    cls = answer_class(api.SASL_AUTHENTICATE, version)
    lifetime = {"session_lifetime": timedelta(seconds=60)} if version >= 1 else {}
    message = cls(error_code=ErrorCode(error), error_message="no" if error else None, auth_bytes=token, **lifetime)
    return answer_header(cls, 77) + encode(message, {"SaslAuthenticateResponse": UNKNOWN_FIELDS})


def exchange(mechanism: str, *steps: tuple[bytes, bytes, int], version: int = 2) -> list[str | None]:
    """What each answer makes known; a step is (the client's token, the broker's token, the broker's error code)."""
    sasl, known = Sasl(), []
    frame = handshake(mechanism)
    assert sasl.on_handshake(frame, 0, len(frame)) == 1
    for sent, received, error in steps:
        frame = authenticate(sent, version)
        sasl.on_authenticate(frame, 0, len(frame))
        frame = authenticated(received, version, error)
        known.append(sasl.on_authenticated(frame, 0, len(frame)))
    return known


# --- software ---------------------------------------------------------------------------------------------------------

NAMES = [
    ("apache-kafka-java", "4.1.0"),
    ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"),
    ("kgo", "v1.22.2"),
    ("kafka-python", "3.0.12"),
    ("x", "1"),
]


def versions_request(version: int, name: str, release: str, behind: bytes = b"") -> bytes:
    frame = request(api.API_VERSIONS, min(version, 4), client_software_name=name, client_software_version=release)
    return frame[:2] + struct.pack(">h", version) + (frame[4:-1] + behind if behind else frame[4:])


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(("name", "release"), NAMES)
def test_software_says_its_name_and_version(version: int, name: str, release: str, kind: Buffers) -> None:
    frame = versions_request(version, name, release)
    buf = kind(b"1234" + frame + b"more")
    assert software(buf, 4, 4 + len(frame)) == (name, release)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_requests_have_no_name(version: int) -> None:
    frame = request(api.API_VERSIONS, version)
    assert software(frame, 0, len(frame)) is None


def test_a_version_above_ours_still_tells_its_name() -> None:
    """franz-go asks with version 5 first: cluster id and node id stand behind the names (measured)."""
    frame = versions_request(5, "kgo", "v1.22.2", b"\x00\xff\xff\xff\xff\x00")
    assert software(frame, 0, len(frame)) == ("kgo", "v1.22.2")


@pytest.mark.parametrize("name", ["", "-kgo", "kgo.", "two words", "line\nbreak", "é", "x" * 129])
def test_names_that_a_broker_refuses_or_nobody_could_print_are_none(name: str) -> None:
    for frame in (versions_request(3, name, "1.0"), versions_request(3, "kgo", name)):
        assert software(frame, 0, len(frame)) is None


@pytest.mark.parametrize("version", range(5))
def test_a_software_request_cut_anywhere_or_too_long_is_malformed(version: int) -> None:
    fields = {"client_software_name": "kgo", "client_software_version": "v1"} if version >= 3 else {}
    frame = request(api.API_VERSIONS, version, **fields)
    for cut in range(len(frame)):
        with pytest.raises(MalformedFrame):
            software(frame, 0, cut)
    with pytest.raises(MalformedFrame):
        software(frame + b"\0", 0, len(frame) + 1)


# --- SASL: handshake --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", HANDSHAKES)
@pytest.mark.parametrize("client_id", [None, "", "app"])
def test_the_version_of_a_handshake_is_told(version: int, client_id: str | None, kind: Buffers) -> None:
    frame = request(api.SASL_HANDSHAKE, version, client_id, mechanism="PLAIN")
    assert Sasl().on_handshake(kind(b"1234" + frame + b"more"), 4, 4 + len(frame)) == version


@pytest.mark.parametrize("version", HANDSHAKES)
def test_a_handshake_cut_anywhere_or_too_long_is_malformed(version: int) -> None:
    frame = handshake("SCRAM-SHA-256", version)
    for cut in range(len(frame)):
        with pytest.raises(MalformedFrame):
            Sasl().on_handshake(frame, 0, cut)
    with pytest.raises(MalformedFrame):
        Sasl().on_handshake(frame + b"\0", 0, len(frame) + 1)


# --- SASL: PLAIN ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", AUTHENTICATES)
@pytest.mark.parametrize("token", [b"\0alice\0secret", b"alice\0alice\0secret", b"\0alice\0"])
def test_plain_is_known_when_the_broker_accepts(version: int, token: bytes) -> None:
    assert exchange("PLAIN", (token, b"", 0), version=version) == ["User:alice"]


def test_plain_is_not_known_when_the_broker_refuses() -> None:
    assert exchange("PLAIN", (b"\0alice\0wrong", b"", 58)) == [None]


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice",
        b"\0alice",
        b"bob\0alice\0secret",
        b"\0\xff\0x",
        b"\0\0x",
        b"a\0b\0c\0d",
        b"\0" + b"a" * 1025 + b"\0x",
    ],
)
def test_what_does_not_read_as_plain_is_unknown_even_if_accepted(token: bytes) -> None:
    assert exchange("PLAIN", (token, b"", 0)) == [UNKNOWN]


def test_the_mechanism_is_matched_without_regard_to_case_and_names_keep_theirs() -> None:
    assert exchange("plain", (b"\0Alice \xc3\xa9\0s", b"", 0)) == ["User:Alice é"]


def test_nothing_secret_is_kept() -> None:
    sasl = Sasl()
    frame = handshake("PLAIN")
    sasl.on_handshake(frame, 0, len(frame))
    frame = authenticate(b"\0alice\0hunter2")
    sasl.on_authenticate(frame, 0, len(frame))
    assert "hunter2" not in repr([getattr(sasl, name) for name in Sasl.__slots__])


# --- SASL: SCRAM ------------------------------------------------------------------------------------------------------

SERVER_FIRST = b"r=nonceSERVER,s=c2FsdA==,i=4096"


@pytest.mark.parametrize("version", AUTHENTICATES)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_is_known_with_the_servers_signature_only(mechanism: str, version: int) -> None:
    first = (b"n,,n=alice,r=nonce", SERVER_FIRST, 0)
    final = (b"c=biws,r=nonceSERVER,p=cHJvb2Y=", b"v=c2lnbmF0dXJl", 0)
    assert exchange(mechanism, first, final, version=version) == [None, "User:alice"]


@pytest.mark.parametrize(
    ("message", "principal"),
    [
        (b"n,,n=a=2Cb=3Dc,r=x", "User:a,b=c"),
        (b"n,,n=a=3D2C,r=x", "User:a=2C"),
        (b"n,a=alice,n=alice,r=x", "User:alice"),
        (b"n,,n=alice,r=x,other=1", "User:alice"),
        (b"n,,n=tokenid,r=x,tokenauth=true", UNKNOWN),  # a delegation token: its owner is known to the broker only
        (b"n,,m=ext,n=alice,r=x", UNKNOWN),
        (b"n,,n=,r=x", UNKNOWN),
        (b"nonsense", UNKNOWN),
    ],
)
def test_scram_names(message: bytes, principal: str) -> None:
    final = (b"c=biws,r=nonceSERVER,p=cHJvb2Y=", b"v=c2lnbmF0dXJl", 0)
    assert exchange("SCRAM-SHA-512", (message, SERVER_FIRST, 0), final) == [None, principal]


@pytest.mark.parametrize(("token", "error"), [(b"", 58), (b"e=invalid-proof", 0), (b"v=c2ln", 58)])
def test_scram_that_fails_at_the_end_is_not_known(token: bytes, error: int) -> None:
    assert exchange("SCRAM-SHA-256", (b"n,,n=alice,r=n", SERVER_FIRST, 0), (b"c=biws,r=n,p=x", token, error)) == [
        None,
        None,
    ]


# --- SASL: OAUTHBEARER ------------------------------------------------------------------------------------------------


def jwt(claims: Any) -> bytes:
    parts = [json.dumps({"alg": "none"}), claims if isinstance(claims, str) else json.dumps(claims), "signature"]
    return b".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in parts)


def bearer(token: bytes, scheme: bytes = b"Bearer") -> bytes:
    return b"n,,\x01auth=" + scheme + b" " + token + b"\x01traceId=5\x01\x01"


@pytest.mark.parametrize("version", AUTHENTICATES)
@pytest.mark.parametrize("name", ["alice", "a" * 100, "ünï", "a b"])
def test_the_subject_of_a_token_is_known_when_the_broker_accepts(name: str, version: int) -> None:
    token = bearer(jwt({"sub": name, "exp": 1}))
    assert exchange("OAUTHBEARER", (token, b"", 0), version=version) == [f"User:{name}"]


def test_a_refused_token_has_error_code_0_in_its_first_answer() -> None:
    """The broker says why in JSON, the client acknowledges with one byte, and only then comes the error (RFC 7628)."""
    steps = ((bearer(jwt({"sub": "alice"})), b'{"status":"invalid_token"}', 0), (b"\x01", b"", 58))
    assert exchange("OAUTHBEARER", *steps) == [None, None]


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,\x01\x01",
        bearer(b""),
        bearer(b"a.b"),
        bearer(b"a.!!.c"),
        bearer(jwt("not json")),
        bearer(jwt("[" * 100_000)),
        bearer(jwt([1])),
        bearer(jwt({"name": "alice"})),
        bearer(jwt({"sub": 5})),
        bearer(jwt({"sub": ""})),
        bearer(jwt({"sub": "alice"}), b"Basic"),
        bearer(jwt({"sub": "alice", "x": "y" * 300_000})),
    ],
)
def test_a_token_that_does_not_say_whose_it_is_is_unknown_even_if_accepted(token: bytes) -> None:
    assert exchange("OAUTHBEARER", (token, b"", 0)) == [UNKNOWN]


@given(st.binary(max_size=200))
def test_any_bytes_for_a_token_give_a_principal_or_unknown(token: bytes) -> None:
    for mechanism in ("PLAIN", "OAUTHBEARER"):
        (principal,) = exchange(mechanism, (token, b"", 0))
        assert principal == UNKNOWN or (principal or "").startswith("User:")
        assert exchange("SCRAM-SHA-256", (token, b"v=", 0))[0] is not None


# --- SASL: the rest ---------------------------------------------------------------------------------------------------


def test_other_mechanisms_are_unknown() -> None:
    assert exchange("GSSAPI", (b"ticket", b"", 0)) == [UNKNOWN]
    assert exchange("SOMETHING-OF-ONES-OWN", (b"n,,n=alice,r=x", b"", 0)) == [UNKNOWN]


def test_a_second_name_sent_behind_the_first_does_not_take_its_place() -> None:
    """Mallory authenticates as herself and sends alice's name before the answer is there."""
    sasl = Sasl()
    frame = handshake("PLAIN")
    sasl.on_handshake(frame, 0, len(frame))
    for token in (b"\0mallory\0right", b"\0alice\0wrong"):
        frame = authenticate(token)
        sasl.on_authenticate(frame, 0, len(frame))
    answers = [authenticated(b""), authenticated(b"", error=58)]
    assert [sasl.on_authenticated(frame, 0, len(frame)) for frame in answers] == ["User:mallory", None]


def test_a_second_scram_exchange_sent_behind_the_first_does_not_take_its_place() -> None:
    sasl = Sasl()
    frame = handshake("SCRAM-SHA-256")
    sasl.on_handshake(frame, 0, len(frame))
    for token in (b"n,,n=mallory,r=x", b"c=biws,r=x,p=x", b"n,,n=alice,r=x"):
        frame = authenticate(token)
        sasl.on_authenticate(frame, 0, len(frame))
    answers = [authenticated(SERVER_FIRST), authenticated(b"v=x"), authenticated(b"", error=34)]
    known = [sasl.on_authenticated(frame, 0, len(frame)) for frame in answers]
    assert known == [None, "User:mallory", None]


def test_a_connection_authenticates_again() -> None:
    sasl, known = Sasl(), []
    for user in (b"alice", b"alice"):
        for frame in (handshake("PLAIN"), authenticate(b"\0" + user + b"\0s")):
            (sasl.on_handshake if frame[1] == api.SASL_HANDSHAKE else sasl.on_authenticate)(frame, 0, len(frame))
        frame = authenticated(b"")
        known.append(sasl.on_authenticated(frame, 0, len(frame)))
    assert known == ["User:alice", "User:alice"]


def test_an_answer_without_a_request_is_malformed() -> None:
    frame = authenticated(b"")
    with pytest.raises(MalformedFrame):
        Sasl().on_authenticated(frame, 0, len(frame))


@pytest.mark.parametrize("version", AUTHENTICATES)
def test_authentication_cut_anywhere_or_too_long_is_malformed(version: int, kind: Buffers) -> None:
    asked, answered = authenticate(b"\0alice\0secret", version), authenticated(b"token", version)
    for frame, is_request in ((asked, True), (answered, False)):
        for cut in [*range(len(frame)), len(frame) + 1]:
            sasl = Sasl()
            sasl.on_authenticate(asked, 0, len(asked))
            with pytest.raises(MalformedFrame):
                (sasl.on_authenticate if is_request else sasl.on_authenticated)(kind(frame + b"\0"), 0, cut)
