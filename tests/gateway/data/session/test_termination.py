# SASL that ends at the gateway, as a play: a session without sockets between a client and a broker that are played by
# the test, and the real Authenticator in the place of control.

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import yaml

from gateway.channel import AdminAnswer, AdminQuery, ListenerSettings, SaslIdentity, TerminatedSasl
from gateway.config import AuthenticationSettings
from gateway.control.sasl.authentication import FAILED, MAX_LOGGED, MAX_OF_ADDRESS, NOT_HERE, SaslAuthenticator
from gateway.data.session.termination import SaslTermination
from gateway.data.shared.errors import AuthenticationFailed, UnauthenticatedRequest
from gateway.data.shared.worker_state import AdminQuerier
from gateway.kafka import sasl
from gateway.listener_names import DEFAULT_LISTENER
from protocol import api
from protocol.authentication.handshake import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from protocol.authentication.scram import HASHES, ScramRecord, make_record, record_text
from protocol.wire import MalformedFrame
from tests.background import until
from tests.gateway.control.sasl.test_bearer import CLAIMS, jwk, message
from tests.gateway.control.sasl.test_bearer import token as signed
from tests.gateway.data.play import Play, answer, other_request, present, request
from tests.gateway.data.session.sasl_frames import authenticate, handshake

pytestmark = pytest.mark.usefixtures("no_circles")

STEPS = pytest.mark.parametrize("step", [0, 1, 7], ids=["glued", "byte by byte", "by sevens"])
SCRAM = "SCRAM-SHA-256"
ALICE = make_record("sha256", "alice-secret", b"alice's salt", 4096)
BROKERS = make_record("sha512", "broker-secret", b"the broker's salt", 4096)
OWN = {
    "User:alice": {"mechanism": "PLAIN", "username": "tenant-a", "password": "a-secret"},
    "default": {"mechanism": "SCRAM-SHA-512", "username": "others", "password": "broker-secret"},
}


class Stage(Play):
    """`answered`: what control said last."""

    def __init__(self, folder: Path, own: dict[str, Any] | None = None, **settings: Any) -> None:
        credentials = folder / "credentials.yaml"
        credentials.write_text(
            yaml.safe_dump({"alice": {SCRAM: record_text(ALICE)}, "bob": {SCRAM: record_text(ALICE)}})
        )
        given: dict[str, Any] = {
            "sasl.enabled.mechanisms": ["PLAIN", SCRAM],
            "credentials_file": credentials,
            "connection.failed.authentication.delay.ms": 0,
            **settings,
        }
        if own is not None:
            given["upstream_credentials_file"] = folder / "own.yaml"
            given["upstream_credentials_file"].write_text(yaml.safe_dump(own))
        parsed = AuthenticationSettings.model_validate(given)
        sasl = TerminatedSasl(parsed.mechanisms, own is not None)
        super().__init__(listeners={DEFAULT_LISTENER: ListenerSettings(sasl=sasl)})
        self.authenticator = SaslAuthenticator(parsed, b"the gateway's secret")
        self.asked: list[AdminQuerier] = []
        self.world.control_queries._post_query = self.asked.append

    @property
    def termination(self) -> SaslTermination:
        assert isinstance(self.session.authentication, SaslTermination)
        return self.session.authentication

    async def control(self) -> tuple[bytes, bytes]:
        """What goes (upstream, to the client) when control answers its question; nothing where it has none."""
        if not self.world.control_queries.pending:
            return b"", b""
        ((token, asker),) = self.world.control_queries.pending.items()
        turn = present(asker.turn)
        until = 2.0**40
        ask = AdminQuery(
            token, until, asker.peer, asker.principal, turn.request, turn.memo, turn.answer, turn.mechanism
        )
        said = await self.authenticator.answer_query(ask)
        self.world.control_queries.pending.pop(token).on_control_answer(said)
        return self.again()

    async def say(self, data: bytes, step: int = 0) -> tuple[bytes, bytes]:
        upstream, client = self.client(data, step)
        more, local = await self.control()
        return upstream + more, client + local

    async def sign_in(self, mechanism: str, name: str, password: str, step: int = 0) -> tuple[bytes, bytes]:
        """What the broker gets at the end of the client's exchange, and what the client does."""
        upstream, client = await self.say(handshake(mechanism), step)
        assert (upstream, decoded_handshake(client).error_code) == (b"", 0)
        exchange = sasl.start_exchange(mechanism, name, password)
        message = next(exchange)
        while True:
            upstream, client = await self.say(authenticate(message), step)
            if upstream or decoded(client).error_code or not mechanism.startswith("SCRAM"):
                return upstream, client
            try:
                message = exchange.send(decoded(client).auth_bytes)
            except StopIteration:
                return upstream, client

    async def hear(self, frame: bytes) -> tuple[bytes, bytes]:
        """What goes where when the broker has said that."""
        assert self.broker(frame) == b""
        upstream, client = self.again()
        more, local = await self.control()
        return upstream + more, client + local


def write(path: Path, text: str) -> None:
    path.write_text(text)


def decoded(frame: bytes, version: int = 2) -> SaslAuthenticateResponse:
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    correlation, said = SASL_AUTHENTICATE.decode_response(frame, 4, len(frame), version)
    assert correlation == 6
    return said


def decoded_handshake(frame: bytes) -> SaslHandshakeResponse:
    return SASL_HANDSHAKE.decode_response(frame, 4, len(frame), 1)[1]


def offered(*mechanisms: str, error: int = 0) -> bytes:
    return SASL_HANDSHAKE.encode_response(SaslHandshakeResponse(error, mechanisms), 1, 1)


def accepted(token: bytes = b"", error: int = 0, lifetime_ms: int = 0) -> bytes:
    return SASL_AUTHENTICATE.encode_response(SaslAuthenticateResponse(error, None, token, lifetime_ms), 1, 2)


def said_to_broker(frame: bytes) -> bytes:
    """The gateway's message in a SaslAuthenticate request."""
    return SASL_AUTHENTICATE.decode_request(frame, 4, len(frame)).body.auth_bytes


# --- clients ----------------------------------------------------------------------------------------------------------


@STEPS
@pytest.mark.parametrize("mechanism", ["PLAIN", SCRAM])
async def test_a_client_gets_in_with_its_password_and_is_counted_by_its_name(
    tmp_path: Path, mechanism: str, step: int
) -> None:
    stage = Stage(tmp_path)
    upstream, client = await stage.sign_in(mechanism, "alice", "alice-secret", step)
    assert (upstream, decoded(client).error_code) == (b"", 0)
    assert stage.session.client.principal == "User:alice"
    assert stage.world.principal_counts == {"User:alice": 1}
    frame = request(7)
    assert stage.client(frame, step) == (frame, b"")
    assert stage.broker(answer(7)) == answer(7)
    assert {row.principal for row in stage.ledger()} == {"User:alice"}
    stage.session.close()
    assert not stage.world.principal_counts


@pytest.mark.parametrize("mechanism", ["PLAIN", SCRAM])
@pytest.mark.parametrize(("name", "password"), [("alice", "guessed"), ("nobody", "alice-secret"), ("ANONYMOUS", "x")])
async def test_no_failure_tells_whether_there_is_such_a_user(
    tmp_path: Path, mechanism: str, name: str, password: str
) -> None:
    stage = Stage(tmp_path)
    with pytest.raises(AuthenticationFailed, match="wrong password, or no such user"):
        await stage.sign_in(mechanism, name, password)
    said = decoded(stage._take(stage.session.to_client))
    assert (said.error_code, said.error_message) == (api.ERROR_CODES["SASL_AUTHENTICATION_FAILED"], FAILED)
    assert not stage.session.authentication.is_authenticated
    stage.ledger()
    assert stage.counts["authentications_failed"] == 1


def step(version: int, body: bytes, client_id: bytes = b"\0\3app") -> bytes:
    """The frame of a SaslAuthenticate request, whatever its body is."""
    frame = struct.pack(">hhi", api.SASL_AUTHENTICATE, version, 6) + client_id + body
    return struct.pack(">i", len(frame)) + frame


UNREADABLE = {
    "nothing behind the client id": step(1, b"", b"\xff\xff"),
    "nothing, v0": step(0, b""),
    "nothing, v2": step(2, b"\0"),
    "longer than the frame": step(1, b"\0\0\0\x09short"),
    "negative": step(1, b"\x80\0\0\0"),
    "null": step(1, b"\xff\xff\xff\xff"),
    "bytes behind": step(1, b"\0\0\0\1x" + b"more"),
    "a client id beyond the frame": step(1, b"", b"\x7f\xff"),
    "2^32 tags": step(2, b"\0\2x\xff\xff\xff\xff\x0f"),
}


@pytest.mark.parametrize("frame", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_step_that_can_not_be_read_ends_its_connection_and_no_other(tmp_path: Path, frame: bytes) -> None:
    stage = Stage(tmp_path)
    with pytest.raises(MalformedFrame, match="SaslAuthenticate"):
        await stage.say(handshake("PLAIN") + frame)
    assert stage.session.admin_requests.turn is None
    said: list[AdminAnswer] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.authenticator.run)
        await trio.testing.wait_all_tasks_blocked()
        for token, request in enumerate((frame[4:], authenticate(b"\0alice\0alice-secret")[4:])):
            ask = AdminQuery(token, 2.0**40, "192.0.2.1:1", "User:ANONYMOUS", request, mechanism="PLAIN")
            stage.authenticator.submit_query(ask, said.append)
        await until(lambda: len(said) == 2)
        nursery.cancel_scope.cancel()
    assert [(answer.token, answer.closes) for answer in said] == [(0, "malformed"), (1, "")]
    assert said[1].identity == SaslIdentity("User:alice", 0, 0)


def bearer_stage(folder: Path) -> Stage:
    """Where clients bring tokens, as test_bearer.py makes them."""
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [jwk("ES256")]}))
    settings: dict[str, Any] = {
        "sasl.enabled.mechanisms": "OAUTHBEARER, PLAIN",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": CLAIMS["iss"],
    }
    return Stage(folder, **settings)


@pytest.mark.parametrize("name", ["\ud800", "a\u202eb", "a\nb", " a", "", "x" * 1025], ids=ascii)
async def test_a_token_with_a_name_that_nobody_may_have_is_refused(tmp_path: Path, name: str) -> None:
    stage = bearer_stage(tmp_path)
    await stage.say(handshake("OAUTHBEARER"))
    now = time.time()
    text = signed("ES256", sub=name, iat=now - 1, exp=now + 60)
    with pytest.raises(AuthenticationFailed, match="the name in the claim sub"):
        await stage.say(authenticate(message(text)))
    assert decoded(stage._take(stage.session.to_client)).error_message == FAILED


async def test_a_challenge_for_nobody_looks_like_any_other_and_is_always_the_same(tmp_path: Path) -> None:
    async def challenge(name: bytes) -> dict[bytes, bytes]:
        stage = Stage(tmp_path)
        await stage.say(handshake(SCRAM))
        _, client = await stage.say(authenticate(b"n,,n=%b,r=nonce" % name))
        return dict(field.split(b"=", 1) for field in decoded(client).auth_bytes.split(b","))

    known, nobody, again = [await challenge(name) for name in (b"alice", b"nobody", b"nobody")]
    assert known[b"i"] == nobody[b"i"] == again[b"i"]
    assert nobody[b"s"] == again[b"s"] != known[b"s"]
    assert nobody[b"r"] != again[b"r"]


@pytest.mark.parametrize(
    "sent",
    [
        [request()],
        [other_request(1, api.METADATA, 1, struct.pack(">i", -1))],
        [authenticate(b"\0alice\0alice-secret")],
        [handshake("PLAIN"), request()],
        [handshake("OAUTHBEARER"), authenticate(b"x")],
    ],
    ids=["produce", "metadata", "no handshake", "handshake, produce", "mechanism that isn't there"],
)
async def test_nothing_else_passes_before(tmp_path: Path, sent: list[bytes]) -> None:
    stage = Stage(tmp_path)
    for frame in sent[:-1]:
        assert stage.client(frame)[0] == b""
    with pytest.raises(UnauthenticatedRequest):
        stage.client(sent[-1])
    assert stage._take(stage.session.to_upstream) == b""


async def test_versions_may_be_asked_for_before(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    asked = other_request(4, api.API_VERSIONS, 0)
    assert stage.client(asked) == (asked, b"")


def test_raw_tokens_are_refused(tmp_path: Path) -> None:
    frame = other_request(5, api.SASL_HANDSHAKE, 0, b"\0\5PLAIN")
    with pytest.raises(MalformedFrame, match="SaslHandshake v0"):
        Stage(tmp_path).client(frame)


async def test_a_mechanism_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    said = decoded_handshake((await Stage(tmp_path).say(handshake("GSSAPI")))[1])
    assert said == (api.ERROR_CODES["UNSUPPORTED_SASL_MECHANISM"], ("PLAIN", SCRAM))


async def test_what_is_behind_a_step_waits_for_its_answer(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    frame = request(7)
    upstream, client = stage.client(handshake("PLAIN") + authenticate(b"\0alice\0alice-secret") + frame)
    assert (upstream, decoded_handshake(client).error_code) == (b"", 0)
    upstream, client = await stage.control()
    assert (upstream, decoded(client).error_code) == (frame, 0)


# --- brokers ----------------------------------------------------------------------------------------------------------


async def test_the_broker_is_told_before_the_client_and_before_its_requests(tmp_path: Path) -> None:
    stage = Stage(tmp_path, OWN)
    upstream, client = await stage.sign_in(SCRAM, "alice", "alice-secret")
    assert client == b""
    assert SASL_HANDSHAKE.decode_request(upstream, 4, len(upstream)).body.mechanism == "PLAIN"
    upstream, client = await stage.hear(offered("PLAIN"))
    assert (said_to_broker(upstream), client) == (b"\0tenant-a\0a-secret", b"")
    upstream, client = await stage.hear(accepted())
    assert upstream == b""
    assert decoded(client).auth_bytes.startswith(b"v=")  # the gateway proves that it knows the password
    assert stage.session.client.principal == "User:alice"
    assert stage.client(request(7)) == (request(7), b"")


async def tell_by_scram(stage: Stage, upstream: bytes, lifetime_ms: int = 0) -> tuple[bytes, bytes]:
    """The broker's side of SCRAM-SHA-512, lasting that long."""
    from protocol.authentication import scram

    assert SASL_HANDSHAKE.decode_request(upstream, 4, len(upstream)).body.mechanism == "SCRAM-SHA-512"
    upstream, _ = await stage.hear(offered("SCRAM-SHA-512"))
    first = scram.read_first_message(said_to_broker(upstream))
    assert first.name == "others"
    challenged = scram.make_challenge(first, BROKERS, b"brokers")
    upstream, _ = await stage.hear(accepted(challenged))
    verdict = scram.verify_final(HASHES["SCRAM-SHA-512"], BROKERS, first, challenged, said_to_broker(upstream))
    return await stage.hear(accepted(verdict, lifetime_ms=lifetime_ms))


@pytest.mark.parametrize("at", ["handshake", "authenticate"])
async def test_a_broker_that_refuses_the_gateway(tmp_path: Path, at: str, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(tmp_path, OWN)
    await stage.sign_in("PLAIN", "alice", "alice-secret")
    last = offered("GSSAPI", error=33)
    if at == "authenticate":
        await stage.hear(offered("PLAIN"))
        last = accepted(error=58)
    with pytest.raises(AuthenticationFailed, match="the broker refuses the gateway's PLAIN as tenant-a"):
        await stage.hear(last)
    said = decoded(stage._take(stage.session.to_client))
    assert (said.error_code, said.error_message) == (58, NOT_HERE)
    assert not stage.session.authentication.is_authenticated
    assert len(caplog.records) == 1
    assert "a-secret" not in caplog.text


async def test_a_broker_that_does_not_know_the_password_is_not_taken_for_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path, OWN)
    await stage.sign_in("PLAIN", "bob", "alice-secret")
    upstream, _ = await stage.hear(offered("SCRAM-SHA-512"))
    nonce = said_to_broker(upstream).partition(b",r=")[2]
    await stage.hear(accepted(b"r=%bX,s=AAAAAAAAAAAA,i=4096" % nonce))
    with pytest.raises(AuthenticationFailed, match="does not prove"):
        await stage.hear(accepted(b"v=AAAA"))


async def test_a_client_for_whom_the_gateway_has_no_credentials(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"User:somebody": OWN["User:alice"]})
    with pytest.raises(AuthenticationFailed, match=r"own\.yaml has neither User:alice nor default"):
        await stage.sign_in("PLAIN", "alice", "alice-secret")
    assert decoded(stage._take(stage.session.to_client)).error_message == NOT_HERE


async def test_a_principal_that_a_certificate_makes_is_told_before_its_first_request(tmp_path: Path) -> None:
    stage = Stage(tmp_path, OWN, **{"sasl.enabled.mechanisms": [], "credentials_file": None})
    assert not stage.termination.sasl_demand.wants_sasl
    stage.termination.accept_certificate("User:CN=carol")
    first = other_request(7, api.API_VERSIONS, 0)
    upstream, client = await stage.say(first)
    assert client == b""
    upstream, client = await tell_by_scram(stage, upstream)
    assert upstream + stage.again()[0] == first
    assert stage.client(request(8)) == (request(8), b"")


# --- sessions (KIP-368) -----------------------------------------------------------------------------------------------


async def test_a_client_s_session_ends_unless_it_authenticates_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, None, **{"connections.max.reauth.ms": 10_000})
    _, client = await stage.sign_in("PLAIN", "alice", "alice-secret")
    assert decoded(client).session_lifetime_ms == 10_000
    stage.now += 9.9
    assert stage.client(request(7)) == (request(7), b"")
    assert stage.broker(answer(7)) == answer(7)
    await stage.sign_in(SCRAM, "alice", "alice-secret")
    stage.now += 9.9
    assert stage.client(request(8)) == (request(8), b"")
    assert stage.broker(answer(8)) == answer(8)
    stage.now += 0.2
    with pytest.raises(UnauthenticatedRequest, match="Produce before authentication"):
        stage.client(request(9))
    stage.unhandled = b""
    await stage.sign_in("PLAIN", "alice", "alice-secret")  # late, and still its own
    assert stage.client(request(10)) == (request(10), b"")


async def test_a_token_without_an_end_makes_a_session_that_clients_can_count(tmp_path: Path) -> None:
    stage = bearer_stage(tmp_path)
    await stage.say(handshake("OAUTHBEARER"))
    text = signed("ES256", iat=time.time() - 1, exp=253_402_300_799)  # as issuers write "never"
    _, client = await stage.say(authenticate(message(text)))
    said = decoded(client)
    assert said.error_code == 0
    assert 0 < said.session_lifetime_ms * 10**6 < 2**63  # Java's clock


async def test_nobody_becomes_somebody_else(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.sign_in("PLAIN", "alice", "alice-secret")
    with pytest.raises(AuthenticationFailed, match="User:bob on a connection of User:alice"):
        await stage.sign_in("PLAIN", "bob", "alice-secret")
    assert decoded(stage._take(stage.session.to_client)).error_code == 58
    assert stage.session.client.principal == "User:alice"


async def test_the_gateway_s_own_session_is_renewed_before_the_next_request(tmp_path: Path) -> None:
    stage = Stage(tmp_path, OWN)
    upstream, _ = await stage.sign_in("PLAIN", "bob", "alice-secret")
    _, client = await tell_by_scram(stage, upstream, lifetime_ms=100_000)
    assert decoded(client).session_lifetime_ms == 0  # not the client's business
    stage.now += 84.9
    assert stage.client(request(7)) == (request(7), b"")
    stage.now += 0.2
    frame = request(8)
    assert await stage.say(frame[:50]) == (b"", b"")  # half a request needs no broker
    upstream, client = await stage.say(frame[50:])
    assert (upstream, client) == (b"", b"")  # request 7 has no answer yet
    assert stage.broker(answer(7)) == answer(7)
    upstream, client = await stage.say(b"")
    assert client == b""
    upstream, client = await tell_by_scram(stage, upstream, lifetime_ms=6_000)
    assert client == b""
    assert upstream + stage.again()[0] == frame
    stage.now += 2.9  # half of so short a session
    assert stage.client(request(9)) == (request(9), b"")


async def test_a_client_that_authenticates_again_leaves_the_gateway_s_session_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, OWN)
    upstream, _ = await stage.sign_in("PLAIN", "bob", "alice-secret")
    await tell_by_scram(stage, upstream, lifetime_ms=10_000)
    upstream, client = await stage.sign_in("PLAIN", "bob", "alice-secret")
    assert (upstream, decoded(client).error_code) == (b"", 0)
    stage.now += 9.1
    upstream, client = await stage.say(request(7))
    assert SASL_HANDSHAKE.decode_request(upstream, 4, len(upstream)).body.mechanism == "SCRAM-SHA-512"


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_a_control_that_does_not_answer_ends_the_exchange(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.client(handshake("PLAIN"))
    stage.client(authenticate(b"\0alice\0alice-secret"))
    stage.now += 10
    with pytest.raises(AuthenticationFailed, match="did not answer within 10 s"):
        stage.again()
    assert decoded(stage._take(stage.session.to_client)).error_code == api.REQUEST_TIMED_OUT


async def test_no_more_connections_of_one_principal_than_allowed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.world.principal_counts["User:alice"] = stage.world.limits.max_connections_per_principal
    with pytest.raises(AuthenticationFailed, match="connections already"):
        await stage.sign_in("PLAIN", "alice", "alice-secret")


def certified(token: int, peer: str = "192.0.2.1:1") -> AdminQuery:
    """The question about a client that nobody has credentials for."""
    return AdminQuery(token, 2.0**40, peer, f"User:CN={token}", b"", b"", b"", "")


async def test_lines_about_many_clients_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authenticator = Stage(tmp_path, {"User:alice": OWN["User:alice"]}).authenticator
    for token in range(3 * MAX_LOGGED):
        assert (await authenticator.answer_query(certified(token))).why
    assert len(authenticator._logged_at) == MAX_LOGGED
    assert len(caplog.records) == MAX_LOGGED + 1
    assert "neither User:CN=0 nor default" in caplog.text
    assert "further ones are not logged" in caplog.records[-1].message


async def test_one_address_takes_only_a_part_of_the_steps(tmp_path: Path, autojump_clock: object) -> None:
    settings = {"connection.failed.authentication.delay.ms": 5000}
    authenticator = Stage(tmp_path, {"User:alice": OWN["User:alice"]}, **settings).authenticator
    said: list[int] = []
    await authenticator.answer_query(certified(0))  # the file is read, in a thread for which this clock doesn't wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(authenticator.run)
        await trio.testing.wait_all_tasks_blocked()
        for token in range(MAX_OF_ADDRESS + 100):
            authenticator.submit_query(certified(token, f"192.0.2.1:{token}"), lambda answer: said.append(answer.token))
        authenticator.submit_query(certified(-1, "192.0.2.2:1"), lambda answer: said.append(answer.token))
        await trio.sleep(6)
        assert sorted(said) == list(range(-1, MAX_OF_ADDRESS))
        authenticator.submit_query(certified(-2), lambda answer: said.append(answer.token))
        await trio.sleep(6)
        assert said[-1] == -2
        nursery.cancel_scope.cancel()


async def test_a_password_of_nobody_takes_the_work_of_anybody_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []

    def knows(record: ScramRecord, hash_name: str, password: bytes) -> bool:
        done.append((hash_name, record.iterations))
        return False

    monkeypatch.setattr("protocol.authentication.scram.matches_password", knows)
    record = make_record("sha512", "x", b"some more salt", 5000)
    for name in ("alice", "nobody"):
        stage = Stage(tmp_path)
        write(tmp_path / "credentials.yaml", yaml.safe_dump({"alice": {"SCRAM-SHA-512": record_text(record)}}))
        with pytest.raises(AuthenticationFailed):
            await stage.sign_in("PLAIN", name, "guessed")
    assert done == [("sha512", 5000)] * 2
