# Who a client is, from its own bytes and the broker's verdict; kio writes the frames.

from __future__ import annotations

import base64
import json
import struct
import unicodedata
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol import api
from protocol.rewriting.identity import (
    UNKNOWN_PRINCIPAL,
    AmbiguousIdentity,
    SaslClaim,
    SaslFollower,
    SaslRefused,
    UnusableName,
    accepted_principal,
    principal_name,
    read_software,
)
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


def claim(sasl: SaslFollower, token: bytes, version: int = 2) -> SaslClaim:
    frame = authenticate(token, version)
    return sasl.read_claim(frame, 0, len(frame))


def shaken(mechanism: str) -> SaslFollower:
    sasl = SaslFollower()
    frame = handshake(mechanism)
    assert sasl.on_handshake(frame, 0, len(frame)) == 1
    return sasl


def named(mechanism: str, token: bytes) -> str:
    """Whom a first message claims to be."""
    return claim(shaken(mechanism), token).principal


def exchange(mechanism: str, *steps: tuple[bytes, bytes, int], version: int = 2) -> list[str | None]:
    """What each answer makes known; a step is (the client's token, the broker's token, the broker's error code)."""
    sasl, known = shaken(mechanism), []
    for sent, received, error in steps:
        frame = authenticated(received, version, error)
        try:
            known.append(accepted_principal(frame, 0, len(frame), claim(sasl, sent, version)))
        except SaslRefused:
            known.append(None)
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
    assert read_software(buf, 4, 4 + len(frame)) == (name, release)


# Behind the names in version 5 (KIP-1242): cluster id and node id, as kafka-clients 4.4.0 and franz-go send them.
WHERE = (
    b"\x00\xff\xff\xff\xff\x00",  # to a bootstrap server
    b"\x175L6g3nShT-eMCtK--X86sw\x00\x00\x00\x02\x00",
    b"\x05main\x00\x00\x00\x00\x01\x5a\x01x",  # with a tagged field
)


@pytest.mark.parametrize("where", WHERE)
def test_a_client_that_says_which_node_it_means_says_its_name(where: bytes, kind: Buffers) -> None:
    frame = versions_request(5, "kgo", "v1.23.0", where)
    buf = kind(b"1234" + frame + b"more")
    assert read_software(buf, 4, 4 + len(frame)) == ("kgo", "v1.23.0")
    for cut in range(len(frame)):
        with pytest.raises(MalformedFrame):
            read_software(frame, 0, cut)
    with pytest.raises(MalformedFrame):
        read_software(frame + b"\0", 0, len(frame) + 1)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_requests_have_no_name(version: int) -> None:
    frame = request(api.API_VERSIONS, version)
    assert read_software(frame, 0, len(frame)) is None


def test_a_version_above_ours_still_tells_its_name() -> None:
    frame = versions_request(6, "kgo", "v1.22.2", WHERE[-1] + b"whatever comes")
    assert read_software(frame, 0, len(frame)) == ("kgo", "v1.22.2")


@pytest.mark.parametrize("name", ["", "-kgo", "kgo.", "two words", "line\nbreak", "é", "x" * 129])
def test_names_that_a_broker_refuses_or_that_can_not_be_printed_are_none(name: str) -> None:
    for frame in (versions_request(3, name, "1.0"), versions_request(3, "kgo", name)):
        assert read_software(frame, 0, len(frame)) is None


@pytest.mark.parametrize("version", range(5))
def test_a_software_request_cut_anywhere_or_too_long_is_malformed(version: int) -> None:
    fields = {"client_software_name": "kgo", "client_software_version": "v1"} if version >= 3 else {}
    frame = request(api.API_VERSIONS, version, **fields)
    for cut in range(len(frame)):
        with pytest.raises(MalformedFrame):
            read_software(frame, 0, cut)
    with pytest.raises(MalformedFrame):
        read_software(frame + b"\0", 0, len(frame) + 1)


# --- SASL: handshake --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", HANDSHAKES)
@pytest.mark.parametrize("client_id", [None, "", "app"])
def test_the_version_of_a_handshake_is_told(version: int, client_id: str | None, kind: Buffers) -> None:
    frame = request(api.SASL_HANDSHAKE, version, client_id, mechanism="PLAIN")
    assert SaslFollower().on_handshake(kind(b"1234" + frame + b"more"), 4, 4 + len(frame)) == version


@pytest.mark.parametrize("version", HANDSHAKES)
def test_a_handshake_cut_anywhere_or_too_long_is_malformed(version: int) -> None:
    frame = handshake("SCRAM-SHA-256", version)
    for cut in range(len(frame)):
        with pytest.raises(MalformedFrame):
            SaslFollower().on_handshake(frame, 0, cut)
    with pytest.raises(MalformedFrame):
        SaslFollower().on_handshake(frame + b"\0", 0, len(frame) + 1)


def test_a_handshake_without_a_mechanism_is_malformed() -> None:
    frame = handshake("")
    frame = frame[:-2] + b"\xff\xff"
    with pytest.raises(MalformedFrame):
        SaslFollower().on_handshake(frame, 0, len(frame))


# --- SASL: PLAIN ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", AUTHENTICATES)
@pytest.mark.parametrize("token", [b"\0alice\0secret", b"alice\0alice\0secret", b"\0alice\0\xff"])
def test_plain_is_known_when_the_broker_accepts(version: int, token: bytes) -> None:
    assert exchange("PLAIN", (token, b"", 0), version=version) == ["User:alice"]


@pytest.mark.parametrize("version", AUTHENTICATES)
def test_plain_is_not_known_when_the_broker_refuses(version: int) -> None:
    assert exchange("PLAIN", (b"\0alice\0wrong", b"", 58), version=version) == [None]


@pytest.mark.parametrize("token", [b"", b"alice", b"\0alice", b"\0\0x", b"a\0b\0c\0d", b"\0" * 100_000])
def test_a_message_the_broker_refuses_as_plain_names_no_principal(token: bytes) -> None:
    assert named("PLAIN", token) == UNKNOWN_PRINCIPAL


@pytest.mark.parametrize("token", [b"\0\xff\0x", b"\0\xed\xa0\x80\0x", b"\0" + b"a" * 1025 + b"\0x"])
def test_a_plain_name_that_brokers_repair_or_that_is_too_long_is_ambiguous(token: bytes) -> None:
    with pytest.raises(AmbiguousIdentity):
        named("PLAIN", token)


def test_names_keep_their_case_and_their_letters() -> None:
    assert named("PLAIN", b"\0Alice \xc3\xa9\0s") == "User:Alice é"
    assert named("PLAIN", b"\0" + "é".encode() * 1024 + b"\0s") == "User:" + "é" * 1024


@pytest.mark.parametrize("mechanism", ["plain", "Plain", "PLAIN ", "SCRAM-sha-256", "SCRAM-SHA-1", "oauthbearer"])
def test_a_mechanism_in_another_spelling_is_not_kafkas(mechanism: str) -> None:
    token = {"P": b"\0alice\0s", "S": b"n,,n=alice,r=x", "O": bearer(jwt({"sub": "alice"}))}[mechanism[0].upper()]
    assert claim(shaken(mechanism), token) == (2, b"", UNKNOWN_PRINCIPAL)


def test_nothing_secret_is_kept() -> None:
    sasl = shaken("PLAIN")
    known = claim(sasl, b"\0alice\0hunter2")
    assert "hunter2" not in repr([known, *(getattr(sasl, name) for name in SaslFollower.__slots__)])


# --- SASL: SCRAM ------------------------------------------------------------------------------------------------------

SERVER_FIRST = b"r=nonceSERVER,s=c2FsdA==,i=4096"
FINAL = (b"c=biws,r=nonceSERVER,p=cHJvb2Y=", b"v=c2lnbmF0dXJl", 0)


@pytest.mark.parametrize("version", AUTHENTICATES)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_is_known_with_the_servers_signature_only(mechanism: str, version: int) -> None:
    first = (b"n,,n=alice,r=nonce", SERVER_FIRST, 0)
    assert exchange(mechanism, first, FINAL, version=version) == [None, "User:alice"]


@pytest.mark.parametrize(
    ("message", "principal"),
    [
        (b"n,,n=a=2Cb=3Dc,r=x", "User:a,b=c"),
        (b"n,,n=a=3D2C,r=x", "User:a=2C"),
        (b"n,,n=a=2C3D,r=x", "User:a,3D"),
        (b"n,a=alice,n=alice,r=x", "User:alice"),
        (b"n,,n=alice,r=x,other=1", "User:alice"),
        (b"n,,n=alice,r=x,other==", "User:alice"),
        # a delegation token: its owner is known to the broker only
        (b"n,,n=tokenid,r=x,tokenauth=true", UNKNOWN_PRINCIPAL),
        (b"n,,n=tokenid,r=x,other=1,tokenauth=TRUE", UNKNOWN_PRINCIPAL),
        (b"n,,n=alice,r=x,tokenauth=yes", "User:alice"),
        (b"n,,n=alice,r=x,other=tokenauth=true", "User:alice"),
    ],
)
def test_scram_names(message: bytes, principal: str) -> None:
    assert exchange("SCRAM-SHA-512", (message, SERVER_FIRST, 0), FINAL) == [None, principal]


@pytest.mark.parametrize(
    "message",
    [
        b"nonsense",
        b"n,,n=,r=x",
        b"n,,n=a=2c,r=x",
        b"n,,n=\xc3\xa9,r=x",
        b"y,,n=alice,r=x",
        b"n,,n=alice,r=x,",
        b"n,,n=alice,r=x,a1=b",
        b"n,,n=alice,r=x,other=",
        b"n,,n=alice,r=x\n",
    ],
)
def test_a_message_the_broker_refuses_as_scram_names_no_principal(message: bytes) -> None:
    assert named("SCRAM-SHA-256", message) == UNKNOWN_PRINCIPAL


@pytest.mark.parametrize(
    "message",
    [
        b"n,,m=x,n=mallory,r=abc",
        b"n,,n=mallory,r=abc,tokenauth=true,tokenauth=false",
        b"n,,n=mallory,r=abc,TokenAuth=true",
        b"n,,n=mallory,r=abc,x=1,X=2",
        b"n,,n=mallory,r=abc" + b"".join(b",x%c%c=1" % (a, b) for a in b"abcdefghij" for b in b"abcdefg"),
        b"n,,n=" + b"a" * 1025 + b",r=abc",
    ],
)
def test_scram_that_could_be_read_in_two_ways_is_ambiguous(message: bytes) -> None:
    with pytest.raises(AmbiguousIdentity):
        named("SCRAM-SHA-256", message)


@pytest.mark.parametrize(("token", "error"), [(b"", 58), (b"e=invalid-proof", 0), (b"v=c2ln", 58)])
def test_scram_that_fails_at_the_end_is_not_known(token: bytes, error: int) -> None:
    final = (b"c=biws,r=n,p=x", token, error)
    assert exchange("SCRAM-SHA-256", (b"n,,n=alice,r=n", SERVER_FIRST, 0), final) == [None, None]


def test_the_second_message_of_an_exchange_names_no_other_principal() -> None:
    sasl = shaken("SCRAM-SHA-256")
    messages = (b"n,,n=mallory,r=x", b"n,,n=alice,r=x", b"c=biws,r=x,p=x")
    assert [claim(sasl, message).principal for message in messages] == ["User:mallory"] * 3


# --- SASL: OAUTHBEARER ------------------------------------------------------------------------------------------------


def jwt(claims: Any, header: dict[str, str] | None = None) -> bytes:
    text = claims if isinstance(claims, str) else json.dumps(claims, ensure_ascii=False)
    parts = [json.dumps({"alg": "none", **(header or {})}), text, "signature"]
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


def test_a_first_refused_token_does_not_name_the_second() -> None:
    """The broker takes another token in the same exchange."""
    steps = [(bearer(jwt({"sub": name})), answer, 0) for name, answer in (("alice", b'{"status":""}'), ("bob", b""))]
    assert exchange("OAUTHBEARER", *steps) == [None, "User:bob"]


@pytest.mark.parametrize("message", [b"n,,", b"n,a=alice,", b"n,a=a=2Cb,", b"n,a=\x01,"])
@pytest.mark.parametrize("scheme", [b"Bearer", b"bearer", b"BEARER "])
def test_bearer_headers_as_the_broker_takes_them(message: bytes, scheme: bytes) -> None:
    assert named("OAUTHBEARER", message + bearer(jwt({"sub": "alice"}), scheme)[3:]) == "User:alice"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01traceId=5\x01\x01",
        bearer(b""),
        bearer(b"opaque"),
        bearer(b"a.b"),
        bearer(b"a.b.c.d.e"),
        bearer(b"a.!!.c"),
        bearer(jwt({"name": "alice"})),
        bearer(jwt({"sub": ""})),
        bearer(jwt({"sub": "alice"}), b"Basic"),
        bearer(jwt({"sub": "alice"}))[:-1],
        bearer(jwt({"sub": "alice"})) + b"x",
        b"y" + bearer(jwt({"sub": "alice"}))[1:],
    ],
)
def test_a_token_that_does_not_name_its_principal_is_unknown_even_if_accepted(token: bytes) -> None:
    assert exchange("OAUTHBEARER", (token, b"", 0)) == [UNKNOWN_PRINCIPAL]


def bearers(*fields: bytes) -> bytes:
    return b"n,,\x01" + b"".join(field + b"\x01" for field in fields) + b"\x01"


MALLORY = b"Bearer " + jwt({"sub": "mallory"})
REPLICATOR = b"Bearer " + jwt({"sub": "replicator"})


@pytest.mark.parametrize(
    "token",
    [
        bearers(b"auth=" + REPLICATOR, b"auth=" + MALLORY),
        bearers(b"AUTH=" + REPLICATOR, b"auth=" + MALLORY),
        bearers(b"Auth=" + MALLORY),
        bearers(b"auth=" + MALLORY, b"traceId=1", b"traceId=2"),
        bearers(b"auth=" + MALLORY, b"traceId=1", b"traceid=2"),
        bearer(jwt('{"sub":"mallory","sub":"replicator"}')),
        bearer(jwt('{"sub":"mallory","\\u0073ub":"replicator"}')),
        bearer(jwt('{"sub":"mallory"}{"sub":"replicator"}')),
        bearer(jwt('\ufeff{"sub":"mallory"}')),
        bearer(jwt('{"sub":"\\ud800"}')),
        bearer(jwt("not json")),
        bearer(jwt("[" * 100_000)),
        bearer(jwt([1])),
        bearer(jwt([["sub", "mallory"]])),
        bearer(jwt({"sub": 5})),
        bearer(jwt({"sub": True})),
        bearer(jwt({"sub": None})),
        bearer(jwt({"sub": " mallory"})),
        bearer(jwt({"sub": "mallory\0"})),
        bearer(jwt({"sub": "a" * 1025})),
        bearer(jwt({"sub": "mallory"}, {"cty": "JWT"})),
        bearer(jwt({"sub": "mallory"}).replace(b".", b".~")),
        bearer(b"e30.e30A.x"),  # one character too many
        bearer(b"e30..x"),
    ],
)
def test_a_token_that_could_be_read_in_two_ways_is_ambiguous(token: bytes) -> None:
    with pytest.raises(AmbiguousIdentity):
        named("OAUTHBEARER", token)


def test_both_alphabets_of_base64_are_read() -> None:
    token = jwt({"sub": "ü?>~"})
    assert b"_" in token or b"-" in token
    assert named("OAUTHBEARER", bearer(token)) == "User:ü?>~"
    assert named("OAUTHBEARER", bearer(token.replace(b"-", b"+").replace(b"_", b"/"))) == "User:ü?>~"


def test_a_nested_object_has_a_sub_of_its_own() -> None:
    assert named("OAUTHBEARER", bearer(jwt({"act": {"sub": "bob"}, "sub": "alice"}))) == "User:alice"


@given(st.binary(max_size=200))
def test_any_bytes_for_a_token_give_a_principal_or_unknown_or_are_ambiguous(token: bytes) -> None:
    for mechanism in ("PLAIN", "OAUTHBEARER", "SCRAM-SHA-256"):
        try:
            principal = named(mechanism, token)
        except AmbiguousIdentity:
            continue
        assert principal == UNKNOWN_PRINCIPAL or principal.startswith("User:")


# --- SASL: the rest ---------------------------------------------------------------------------------------------------


def test_gssapi_is_unknown_and_accepted_with_its_last_answer_only() -> None:
    assert exchange("GSSAPI", (b"ticket", b"reply", 0), (b"", b"layers", 0), (b"layer", b"", 0)) == [
        None,
        None,
        UNKNOWN_PRINCIPAL,
    ]


def test_a_mechanism_of_ones_own_is_unknown_with_its_first_answer() -> None:
    """Some tell something with their only answer, others have more steps: only the broker knows the last one."""
    assert exchange("SOMETHING-OF-ONES-OWN", (b"n,,n=alice,r=x", b'{"version":1}', 0)) == [UNKNOWN_PRINCIPAL]
    assert exchange("SOMETHING-OF-ONES-OWN", (b"n,,n=alice,r=x", b"", 58)) == [None]


def test_a_new_handshake_begins_a_new_exchange() -> None:
    sasl = shaken("SCRAM-SHA-256")
    assert claim(sasl, b"n,,n=alice,r=x") == (2, b"SCRAM-SHA-256", "User:alice")
    frame = handshake("SCRAM-SHA-512")
    sasl.on_handshake(frame, 0, len(frame))
    assert claim(sasl, b"n,,n=bob,r=x", 1) == (1, b"SCRAM-SHA-512", "User:bob")
    frame = handshake("PLAIN")
    sasl.on_handshake(frame, 0, len(frame))
    assert claim(sasl, b"\0carol\0x", 0) == (0, b"PLAIN", "User:carol")


def test_an_answer_says_nothing_of_another_claim() -> None:
    """Mallory sends a second handshake and alice's name before the answer that accepts herself."""
    sasl = shaken("PLAIN")
    mallorys = claim(sasl, b"\0mallory\0right")
    frame = handshake("PLAIN")
    sasl.on_handshake(frame, 0, len(frame))
    claim(sasl, b"\0alice\0wrong")
    frame = authenticated(b"")
    assert accepted_principal(frame, 0, len(frame), mallorys) == "User:mallory"


def test_authentication_without_a_handshake_is_malformed() -> None:
    with pytest.raises(MalformedFrame):
        claim(SaslFollower(), b"\0alice\0s")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI", "OTHER"])
def test_no_token_is_longer_than_what_a_broker_reads(mechanism: str) -> None:
    assert named(mechanism, bytes(512 * 1024)) == UNKNOWN_PRINCIPAL
    with pytest.raises(AmbiguousIdentity):
        named(mechanism, bytes(512 * 1024 + 1))


@pytest.mark.parametrize("version", AUTHENTICATES)
def test_authentication_cut_anywhere_or_too_long_is_malformed(version: int, kind: Buffers) -> None:
    asked, answered = authenticate(b"\0alice\0secret", version), authenticated(b"token", version)
    for cut in [*range(len(asked)), len(asked) + 1]:
        with pytest.raises(MalformedFrame):
            shaken("PLAIN").read_claim(kind(asked + b"\0"), 0, cut)
    for cut in [*range(len(answered)), len(answered) + 1]:
        with pytest.raises(MalformedFrame):
            accepted_principal(kind(answered + b"\0"), 0, cut, SaslClaim(version, b"PLAIN", "User:alice"))


# --- names that the gateway gives -------------------------------------------------------------------------------------


@given(st.one_of(st.text(alphabet=st.characters(), max_size=12), st.binary(max_size=12)))
def test_a_principal_s_name_is_text_that_everything_can_hold(text: str | bytes) -> None:
    try:
        name = principal_name(text)
    except UnusableName:
        return
    assert name == (text.decode() if isinstance(text, bytes) else text)
    assert name.encode().decode() == name == name.strip() != ""
    assert not {unicodedata.category(char) for char in name} & {"Cc", "Cs", "Cf", "Cn", "Co", "Zl", "Zp"}


@pytest.mark.parametrize(
    "name", ["alice", "CN=alice,OU=x", "日本語", "Zoë", "a b", "\u3000".join("ab"), "x" * 1024, "anonymous"]
)
def test_names_that_clients_may_have(name: str) -> None:
    assert principal_name(name) == principal_name(name.encode()) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "0 characters"),
        ("x" * 1025, "1025 characters"),
        (b"\xff", "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
        ("\ud800", r"U\+D800"),
        ("a\0", r"U\+0000"),
        ("a\u2028b", r"U\+2028"),
        ("a\u202eb", r"U\+202E"),
        ("a\U0005f600", r"U\+5F600"),
        (" a", "space"),
        ("ANONYMOUS", "not authenticated"),
    ],
)
def test_names_that_nobody_may_have(name: str | bytes, why: str) -> None:
    with pytest.raises(UnusableName, match=why):
        principal_name(name)
