# SASL that ends at the gateway, control's side: the client's steps answered, and the steps by which the gateway
# authenticates itself to the broker for that client. A worker brings each step (channel.Ask) and the broker's answers;
# nothing is kept here in between, so a control that was started again goes on where the former one stopped.
#
#   client's step ──► challenge                          SCRAM's first
#                 ──► handshake ──► step … ──► accepted   the broker, on the client's own connection
#                 ──► refused, after a delay
#
# What a client is told doesn't say whether a user exists, nor does how long it takes. Knows no socket and no session.

from __future__ import annotations

import functools
import hashlib
import json
import logging
import secrets
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import trio

from gateway.channel import Answer, Ask, Identity
from gateway.config import AuthenticationSettings, Settings
from gateway.control.internal_errors import SASL, InternalErrors
from gateway.control.question_tasks import QuestionTasks, Reply, Share
from gateway.control.sasl.bearer import BearerTokens, file_of, read_keys
from gateway.control.sasl.credentials import (
    DEFAULT,
    BrokerCredentials,
    BrokerTokens,
    Command,
    CredentialsError,
    Records,
    Watched,
    read_broker_credentials,
    read_records,
)
from gateway.control.sasl.decoys import Decoys
from gateway.control.sasl.turns import Turns
from gateway.kafka import oauthbearer, sasl
from gateway.secret_key import derive_key
from gateway.system.sockets import network_of
from policies.text import one_line
from protocol import api, scram
from protocol.admin import Request
from protocol.handshake import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SaslAuthenticateAnswer,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from protocol.identity import UnusableName, principal_name
from protocol.scram import HASHES, First, Record, Refused
from protocol.wire import MalformedFrame

log = logging.getLogger("gateway.authentication")

MAX_REQUESTS: Final = 1000  # steps at the same time; what is beyond isn't begun, and its client tries again
MAX_OF_ADDRESS: Final = MAX_REQUESTS // 2  # of these
THREADS: Final = 2  # that compute what passwords are known by, without the interpreter's lock
SAY_AGAIN_S: Final = 10.0
MAX_SAID: Final = 50  # different lines in this time
SOFTWARE: Final = b"produce-gateway"
ANONYMOUS: Final = "User:ANONYMOUS"
FAILED: Final = "Authentication failed: invalid credentials"
NOT_HERE: Final = "Authentication failed: the gateway could not authenticate to the broker for this client"
_BUSY: Final = "The gateway can't check credentials at present"
_NONCE_BYTES: Final = 24
_VERSION: Final = 1  # of SaslHandshake and SaslAuthenticate, to brokers: Kafka 2.2 and newer have them
_AUTHENTICATION_FAILED: Final = api.ERROR_CODES["SASL_AUTHENTICATION_FAILED"]


class _Memo(msgspec.Struct, array_like=True):
    """The state that the next step needs again."""

    stage: Literal["challenged", "offered", "told"]
    # Of the client's exchange.
    header: bytes = b""
    bare: bytes = b""
    name: str = ""
    client_nonce: bytes = b""
    challenge: bytes = b""
    # Once it has come to its end: who the client is, and what it gets when the broker has accepted the gateway.
    principal: str = ""
    final: bytes = b""
    until: float | None = None  # Unix time at which its credentials expire
    # Of the exchange with the broker.
    nonce: bytes = b""
    said: list[bytes] = []  # by the broker


class _Step(NamedTuple):
    """A question, and the client's request in it; None: the broker is to be told who the client is."""

    ask: Ask
    request: Request[SaslAuthenticateRequest] | None

    def accept(self, token: bytes, session_ms: int) -> bytes:
        """The client's answer where there is no error; nothing where it has asked nothing."""
        return self.reply(SaslAuthenticateAnswer(0, None, token, session_ms))

    def reply(self, said: SaslAuthenticateAnswer) -> bytes:
        request = self.request
        if request is None:
            return b""
        return SASL_AUTHENTICATE.encode_answer(said, request.version, request.correlation_id)


class _Failure(Exception):
    """`why`: for the log. `text`: for the client."""

    def __init__(self, why: str, text: str = FAILED, code: int = _AUTHENTICATION_FAILED) -> None:
        super().__init__(why)
        self.text = text
        self.code = code


class Authenticator:
    """`now`: Unix time in seconds."""

    def __init__(
        self,
        settings: AuthenticationSettings,
        secret: bytes,
        spool_dir: Path | None = None,
        now: Callable[[], float] = time.time,
        errors: InternalErrors | None = None,
    ) -> None:
        """`secret`: the gateway's. `spool_dir`: where to keep what has to last longer than this process."""
        self._settings = settings
        self._now = now
        self._errors = errors or InternalErrors()
        self._tasks = QuestionTasks(SASL, self.answer, _share_of, self._errors, most=MAX_REQUESTS)
        path, command = settings.credentials_file, settings.credentials_command
        self._file = Watched(path, read_records) if path else None
        self._command = (
            Command(command, settings.credentials_command_timeout, settings.credentials_command_cache)
            if command
            else None
        )
        own = settings.upstream_credentials_file
        self._own = Watched(own, read_broker_credentials) if own else None
        self._bearer = BearerTokens(settings, now) if settings.jwks_url else None
        self._tokens = BrokerTokens()
        self._threads = Turns(THREADS, THREADS)
        self._decoys = _make_decoys(settings, secret, spool_dir)
        self._said_at: dict[str, float] = {}  # what was logged lately, and when

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tasks.run)
            if self._bearer is not None:
                nursery.start_soon(self._bearer.run)

    def take(self, ask: Ask, reply: Reply) -> None:
        """Answer in a task. With too many at once the question stays without an answer."""
        self._tasks.start(ask, reply)

    async def answer(self, ask: Ask) -> Answer:
        """The next step. A failure comes after the delay that Kafka has for it; what can't be read ends the connection
        at once, as at a broker.
        """
        try:
            step = _Step(ask, _read(ask.request) if ask.request else None)
        except MalformedFrame as error:
            return Answer(ask.token, why=f"SaslAuthenticate: {error}", closes="malformed")
        try:
            return await self._answer(step)
        except _Failure as error:
            failure = error
        except (Refused, MalformedFrame) as error:
            failure = _Failure(str(error), NOT_HERE if ask.answer else FAILED)
        except CredentialsError as error:
            self._complain(str(error))
            failure = _Failure(str(error), _BUSY, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"])
        except Exception as error:
            self._errors.note(SASL, ask.peer, error)
            failure = _Failure("an internal error, see the log", _BUSY, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"])
        await trio.sleep(self._settings.failure_delay_ms / 1000)
        client = step.reply(SaslAuthenticateAnswer(failure.code, failure.text, b"", 0))
        return Answer(ask.token, client=client, why=str(failure))

    async def _answer(self, step: _Step) -> Answer:
        ask = step.ask
        memo = msgspec.msgpack.decode(ask.memo, type=_Memo) if ask.memo else None
        if memo is None and not ask.request:  # who it is was known before: its certificate says it, or an earlier step
            return await self._offer(step, _Memo("offered", principal=ask.principal))
        if memo is not None and memo.stage == "offered":
            return await self._tell(step, memo)
        if memo is not None and memo.stage == "told":
            return await self._hear(step, memo)
        assert step.request is not None
        message = step.request.body.auth_bytes
        if ask.mechanism not in self._settings.mechanisms:
            raise _Failure(f"mechanism {one_line(ask.mechanism)} is not enabled")
        if ask.mechanism in HASHES:
            if memo is None:
                return await self._challenge(step, message)
            final = await self._verify(ask, memo, message)
            return await self._accept(step, memo.name, final, None)
        if ask.mechanism == "PLAIN":
            return await self._accept(step, await self._check_plain(message, network_of(ask.peer)), b"", None)
        assert self._bearer is not None
        name, until = await self._bearer.check(message)
        return await self._accept(step, name, b"", until)

    # --- the client ---------------------------------------------------------------------------------------------------

    async def _challenge(self, step: _Step, message: bytes) -> Answer:
        ask = step.ask
        first = scram.read_first(message)
        record = await self._record(first.name, ask.mechanism, network_of(ask.peer))
        said = scram.challenge(first, record, b64encode(secrets.token_bytes(_NONCE_BYTES)))
        memo = _Memo("challenged", first.header, first.bare, first.name, first.nonce, said)
        return Answer(ask.token, client=step.accept(said, 0), memo=msgspec.msgpack.encode(memo))

    async def _verify(self, ask: Ask, memo: _Memo, message: bytes) -> bytes:
        record = await self._record(memo.name, ask.mechanism, network_of(ask.peer))
        first = First(memo.header, memo.bare, memo.name, memo.client_nonce)
        try:
            return scram.verify(HASHES[ask.mechanism], record, first, memo.challenge, message)
        except Refused as error:
            raise _Failure(f"{ask.mechanism} as {one_line(memo.name)}: {error}") from None

    async def _check_plain(self, message: bytes, address: str) -> str:
        parts = message.split(b"\0")
        try:
            if len(parts) != 3 or parts[0] not in (b"", parts[1]) or not parts[1] or not parts[2]:
                raise Refused("the message is none of PLAIN's")
            name = parts[1].decode()
        except UnicodeDecodeError:
            raise Refused("the name in it is no UTF-8") from None
        records = await self._find(name, "PLAIN", address)
        usual = self._decoys.mechanisms(name)
        mechanism = next(each for each in HASHES if each in (records or usual))
        decoy = self._decoys.record(name, mechanism)
        record = records.get(mechanism) or decoy
        knows = functools.partial(scram.knows, record, HASHES[mechanism], parts[2])
        async with self._threads.take(address):
            is_right = await trio.to_thread.run_sync(knows)
        if not is_right:
            raise _Failure(f"PLAIN as {one_line(name)}: wrong password, or no such user")
        return name

    async def _record(self, name: str, mechanism: str, address: str) -> Record:
        records = await self._find(name, mechanism, address)
        decoy = self._decoys.record(name, mechanism)  # for users as well, so that both take the same hashes
        return records.get(mechanism) or decoy

    async def _find(self, name: str, mechanism: str, address: str) -> Records:
        """Empty: there is no such user."""
        users = await self._file.get() if self._file is not None else {}
        self._decoys.set_users(users)
        try:
            principal_name(name)
        except UnusableName:  # nobody is called that, and to be refused takes as long as with any other name
            return {}
        if found := users.get(name):
            return found
        if self._command is None:
            return {}
        given = await self._command.ask(name, mechanism, address)
        if given:
            self._decoys.note(given)
        return given

    async def _accept(self, step: _Step, name: str, final: bytes, until: float | None) -> Answer:
        """The client's exchange has come to its end."""
        ask = step.ask
        principal = f"User:{name}"
        memo = _Memo("offered", principal=principal, final=final, until=until)
        if ask.principal == ANONYMOUS:
            return await self._offer(step, memo)
        if ask.principal != principal:
            raise _Failure(
                f"{one_line(principal)} on a connection of {one_line(ask.principal)}",
                "Cannot change principals during re-authentication",
            )
        return self._end(step, memo, None)

    # --- the broker ---------------------------------------------------------------------------------------------------

    async def _offer(self, step: _Step, memo: _Memo) -> Answer:
        """The first step with the broker, where it is to be told anything."""
        if self._own is None:
            return self._end(step, memo, 0)
        own = await self._own_of(memo.principal)
        memo.nonce = b64encode(secrets.token_bytes(_NONCE_BYTES))
        frame = SASL_HANDSHAKE.encode_request(SaslHandshakeRequest(own.mechanism), _VERSION, 1, SOFTWARE)
        return Answer(step.ask.token, frame, memo=msgspec.msgpack.encode(memo))

    async def _tell(self, step: _Step, memo: _Memo) -> Answer:
        ask = step.ask
        offer = SASL_HANDSHAKE.decode_answer(ask.answer, 0, len(ask.answer), _VERSION)[1]
        own = await self._own_of(memo.principal)
        if offer.error_code:
            raise self._not_here(own, f"error {offer.error_code}; it has {', '.join(offer.mechanisms) or 'no SASL'}")
        memo.stage = "told"
        return await self._say(ask, memo, own)

    async def _hear(self, step: _Step, memo: _Memo) -> Answer:
        ask = step.ask
        said = SASL_AUTHENTICATE.decode_answer(ask.answer, 0, len(ask.answer), _VERSION)[1]
        own = await self._own_of(memo.principal)
        if said.error_code:
            raise self._not_here(own, said.error_message or f"error {said.error_code}")
        memo.said.append(said.auth_bytes)
        answer = await self._say(ask, memo, own)
        return answer if answer.upstream else self._end(step, memo, said.session_lifetime_ms)

    async def _say(self, ask: Ask, memo: _Memo, own: BrokerCredentials) -> Answer:
        """The gateway's next message of the exchange; none where that is over."""
        try:
            async with self._threads.take(network_of(ask.peer)):
                message = await trio.to_thread.run_sync(_next_message, own, memo.nonce, memo.said)
        except sasl.ExchangeFailed as error:
            raise self._not_here(own, str(error)) from None
        if message is None:
            return Answer(ask.token)
        frame = SASL_AUTHENTICATE.encode_request(SaslAuthenticateRequest(message), _VERSION, 2, SOFTWARE)
        return Answer(ask.token, frame, memo=msgspec.msgpack.encode(memo))

    async def _own_of(self, principal: str) -> BrokerCredentials:
        assert self._own is not None
        known = await self._own.get()
        own = known.get(principal) or known.get(DEFAULT)
        if own is None:
            text = f"{self._settings.upstream_credentials_file} has neither {one_line(principal)} nor {DEFAULT}"
            self._complain(text)
            raise _Failure(text, NOT_HERE)
        try:
            return await self._tokens.fill(own)
        except oauthbearer.NoToken as error:
            text = f"no token for brokers, for {one_line(principal)}: {error}"
            self._complain(text)
            raise _Failure(text, NOT_HERE) from None

    def _not_here(self, own: BrokerCredentials, what: str) -> _Failure:
        text = f"the broker refuses the gateway's {own.mechanism} as {one_line(own.username)}: {one_line(what)}"
        self._complain(text)
        return _Failure(text, NOT_HERE)

    def _end(self, step: _Step, memo: _Memo, upstream_ms: int | None) -> Answer:
        ask = step.ask
        left = [memo.until - self._now()] if memo.until is not None else []
        left += [self._settings.max_reauth_ms / 1000] if self._settings.max_reauth_ms and ask.request else []
        session_ms = max(1, int(min(left) * 1000)) if left else 0
        identity = Identity(memo.principal, session_ms, upstream_ms)
        return Answer(ask.token, client=step.accept(memo.final, session_ms), identity=identity)

    def _complain(self, text: str) -> None:
        """Log what an operator has to mend; the same not with every client, nor a line for each of many clients."""
        now = time.monotonic()
        said_at = self._said_at = {said: at for said, at in self._said_at.items() if now - at < SAY_AGAIN_S}
        if text in said_at or len(said_at) >= MAX_SAID:
            return
        said_at[text] = now
        log.error("authentication: %s", text)
        if len(said_at) == MAX_SAID:
            log.error("authentication: more of that is not logged within these %g s", SAY_AGAIN_S)


def _read(request: bytes) -> Request[SaslAuthenticateRequest]:
    return SASL_AUTHENTICATE.decode_request(request, 0, len(request))


def _share_of(ask: Ask) -> Share:
    return Share(network_of(ask.peer), MAX_OF_ADDRESS)


def _next_message(own: BrokerCredentials, nonce: bytes, said: list[bytes]) -> bytes | None:
    """The client's side of the exchange, up to here once more: with the same nonce it says the same."""
    exchange: Any = sasl.exchange(own.mechanism, own.username, own.password, nonce)
    message: bytes = next(exchange)
    try:
        for each in said:
            message = exchange.send(each)
    except StopIteration:
        return None
    return message


def _try_broker_credentials(path: Path) -> None:
    for principal, own in read_broker_credentials(path).items():
        try:
            if own.token_file:
                oauthbearer.read_token(own.token_file)
        except oauthbearer.NoToken as error:
            raise CredentialsError(f"{path}: {principal}: token_file: {error}") from None


def try_files(settings: AuthenticationSettings) -> list[str]:
    """The faults of the files that the settings name."""
    files: list[tuple[Path | None, Callable[[Path], object]]] = [
        (settings.credentials_file, read_records),
        (settings.upstream_credentials_file, _try_broker_credentials),
    ]
    if settings.jwks_url.startswith("file:"):
        files.append((file_of(settings.jwks_url), read_keys))
    faults = []
    for path, read in files:
        try:
            if path is not None:
                read(path)
        except CredentialsError as error:
            faults.append(str(error))
    return faults


def _make_decoys(settings: AuthenticationSettings, secret: bytes, spool_dir: Path | None) -> Decoys:
    # Of other users other decoys: a name whose salt is the same in two files would be nobody's in either.
    users = json.dumps([str(settings.credentials_file), *settings.credentials_command])
    memory = None
    if spool_dir is not None and settings.credentials_command:
        memory = spool_dir / f"credentials-{hashlib.sha256(users.encode()).hexdigest()[:16]}.json"
    return Decoys(derive_key(secret, f"decoys {users}"), memory)


def make_authenticators(settings: Settings, secret: bytes, errors: InternalErrors) -> dict[str, Authenticator]:
    """By listener, those of which SASL ends here; listeners with the same settings have the same one. `secret`: the
    gateway's.
    """
    made: list[tuple[AuthenticationSettings, Authenticator]] = []
    found = {}
    for name in settings.all_listeners:
        own = settings.authentication_of(name)
        if own is None:
            continue
        found[name] = next((each for known, each in made if known == own), None) or Authenticator(
            own, secret, settings.usage_log.spool_dir, errors=errors
        )
        made.append((own, found[name]))
    return found
