# SASL that ends at the gateway, control's side: the client's steps answered, and the steps by which the gateway
# authenticates itself to the broker for that client. A worker brings each step (channel.Ask) and the broker's answers;
# nothing is kept here in between, so a control that was started again goes on where the former one stopped.
#
#   client's step ──► challenge                          SCRAM's first
#                 ──► handshake ──► step … ──► accepted   the broker, on the client's own connection
#                 ──► refused, after a delay
#
# Neither an answer nor the time that it takes reveals whether a user exists. Knows no socket and no session.

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

from gateway.channel import AdminAnswer, AdminQuery, SaslIdentity
from gateway.config import AuthenticationSettings, Settings
from gateway.control.internal_errors import SASL, InternalErrors
from gateway.control.query_tasks import QueryTasks, Reply, TaskShare
from gateway.control.sasl.bearer import BearerTokens, path_of_url, read_keys
from gateway.control.sasl.credentials import (
    DEFAULT,
    BrokerCredentials,
    BrokerTokens,
    CredentialsCommand,
    CredentialsError,
    Records,
    WatchedFile,
    read_broker_credentials,
    read_records,
)
from gateway.control.sasl.decoys import DecoyRecords
from gateway.control.sasl.fair_semaphore import FairSemaphore
from gateway.kafka import oauthbearer, sasl
from gateway.secret_key import derive_key
from gateway.system.sockets import network_of_peer
from policies.text import one_line
from protocol import api
from protocol.authentication import scram
from protocol.authentication.handshake import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from protocol.authentication.scram import HASHES, FirstMessage, ScramRecord, ScramRefused
from protocol.message_codec import DecodedRequest
from protocol.rewriting.identity import UnusableName, principal_name
from protocol.wire import MalformedFrame

log = logging.getLogger("gateway.authentication")

MAX_REQUESTS: Final = 1000  # steps at the same time; what is beyond isn't begun, and its client tries again
MAX_OF_ADDRESS: Final = MAX_REQUESTS // 2  # of these
THREADS: Final = 2  # that compute what passwords are known by, without the interpreter's lock
LOG_AGAIN_S: Final = 10.0
MAX_LOGGED: Final = 50  # different lines in this time
# The longest session that a client is told of. An issuer's token may end in the year 9999, and Java clients count in 64
# bits of nanoseconds, which are 292 years: beyond that they fail (Utils.msToNs), or up to 3.9 count on past the end.
MAX_SESSION_S: Final = 365 * 86400.0
SOFTWARE: Final = b"produce-gateway"
ANONYMOUS: Final = "User:ANONYMOUS"
FAILED: Final = "Authentication failed: invalid credentials"
NOT_HERE: Final = "Authentication failed: the gateway could not authenticate to the broker for this client"
_BUSY: Final = "The gateway can't check credentials at present"
_NONCE_BYTES: Final = 24
_VERSION: Final = 1  # of SaslHandshake and SaslAuthenticate, to brokers: Kafka 2.2 and newer have them
_AUTHENTICATION_FAILED: Final = api.ERROR_CODES["SASL_AUTHENTICATION_FAILED"]


class _ExchangeMemo(msgspec.Struct, array_like=True):
    """The state that the next step needs."""

    stage: Literal["challenged", "offered", "authenticating"]
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
    broker_messages: list[bytes] = []  # by the broker


class _SaslStep(NamedTuple):
    """A query, and the client's request in it; None: the gateway authenticates to the broker for the client."""

    ask: AdminQuery
    request: DecodedRequest[SaslAuthenticateRequest] | None

    def encode_success(self, token: bytes, session_ms: int) -> bytes:
        """The client's response without an error; empty where the client has sent no request."""
        return self.encode_response(SaslAuthenticateResponse(0, None, token, session_ms))

    def encode_response(self, response: SaslAuthenticateResponse) -> bytes:
        request = self.request
        if request is None:
            return b""
        return SASL_AUTHENTICATE.encode_response(response, request.version, request.correlation_id)


class _AuthenticationFailure(Exception):
    """`why`: for the log. `text`: for the client."""

    def __init__(self, why: str, text: str = FAILED, code: int = _AUTHENTICATION_FAILED) -> None:
        super().__init__(why)
        self.text = text
        self.code = code


class SaslAuthenticator:
    """Authenticates clients whose SASL ends at the gateway. `now`: Unix time in seconds."""

    def __init__(
        self,
        settings: AuthenticationSettings,
        secret: bytes,
        spool_dir: Path | None = None,
        now: Callable[[], float] = time.time,
        errors: InternalErrors | None = None,
    ) -> None:
        """`secret`: the gateway's. `spool_dir`: the directory for state that outlives this process."""
        self._settings = settings
        self._now = now
        self._errors = errors or InternalErrors()
        self._tasks = QueryTasks(SASL, self.answer_query, _share_of, self._errors, most=MAX_REQUESTS)
        path, command = settings.credentials_file, settings.credentials_command
        self._file = WatchedFile(path, read_records) if path else None
        self._command = (
            CredentialsCommand(command, settings.credentials_command_timeout, settings.credentials_command_cache)
            if command
            else None
        )
        own = settings.upstream_credentials_file
        self._own = WatchedFile(own, read_broker_credentials) if own else None
        self._bearer = BearerTokens(settings, now) if settings.jwks_url else None
        self._tokens = BrokerTokens()
        self._threads = FairSemaphore(THREADS, THREADS)
        self._decoys = _make_decoys(settings, secret, spool_dir)
        self._logged_at: dict[str, float] = {}  # what was logged lately, and when

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tasks.run)
            if self._bearer is not None:
                nursery.start_soon(self._bearer.run)

    def submit_query(self, ask: AdminQuery, reply: Reply) -> None:
        """Answer in a task. Over the concurrency limit the query is dropped."""
        self._tasks.submit_query(ask, reply)

    async def answer_query(self, ask: AdminQuery) -> AdminAnswer:
        """The next step. A failure is sent after the same delay as in Kafka; a step that can't be read ends the
        connection at once, as at a broker.
        """
        try:
            step = _SaslStep(ask, _read_request(ask.request) if ask.request else None)
        except MalformedFrame as error:
            return AdminAnswer(ask.token, why=f"SaslAuthenticate: {error}", closes="malformed")
        try:
            return await self._answer_step(step)
        except _AuthenticationFailure as error:
            failure = error
        except (ScramRefused, MalformedFrame) as error:
            failure = _AuthenticationFailure(str(error), NOT_HERE if ask.answer else FAILED)
        except CredentialsError as error:
            self._log_problem(str(error))
            failure = _AuthenticationFailure(str(error), _BUSY, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"])
        except Exception as error:
            self._errors.record_error(SASL, ask.peer, error)
            failure = _AuthenticationFailure(
                "an internal error, see the log", _BUSY, api.ERROR_CODES["UNKNOWN_SERVER_ERROR"]
            )
        await trio.sleep(self._settings.failure_delay_ms / 1000)
        client = step.encode_response(SaslAuthenticateResponse(failure.code, failure.text, b"", 0))
        return AdminAnswer(ask.token, client=client, why=str(failure))

    async def _answer_step(self, step: _SaslStep) -> AdminAnswer:
        ask = step.ask
        memo = msgspec.msgpack.decode(ask.memo, type=_ExchangeMemo) if ask.memo else None
        if memo is None and not ask.request:  # who it is was known before: its certificate says it, or an earlier step
            return await self._offer_mechanism(step, _ExchangeMemo("offered", principal=ask.principal))
        if memo is not None and memo.stage == "offered":
            return await self._begin_exchange(step, memo)
        if memo is not None and memo.stage == "authenticating":
            return await self._continue_exchange(step, memo)
        assert step.request is not None
        message = step.request.body.auth_bytes
        if ask.mechanism not in self._settings.mechanisms:
            raise _AuthenticationFailure(f"mechanism {one_line(ask.mechanism)} is not enabled")
        if ask.mechanism in HASHES:
            if memo is None:
                return await self._challenge_client(step, message)
            final = await self._verify_proof(ask, memo, message)
            return await self._accept_client(step, memo.name, final, None)
        if ask.mechanism == "PLAIN":
            return await self._accept_client(
                step, await self._check_plain(message, network_of_peer(ask.peer)), b"", None
            )
        assert self._bearer is not None
        name, until = await self._bearer.check_token(message)
        return await self._accept_client(step, name, b"", until)

    # --- the client ---------------------------------------------------------------------------------------------------

    async def _challenge_client(self, step: _SaslStep, message: bytes) -> AdminAnswer:
        ask = step.ask
        first = scram.read_first_message(message)
        record = await self._scram_record(first.name, ask.mechanism, network_of_peer(ask.peer))
        challenge = scram.make_challenge(first, record, b64encode(secrets.token_bytes(_NONCE_BYTES)))
        memo = _ExchangeMemo("challenged", first.header, first.bare, first.name, first.nonce, challenge)
        return AdminAnswer(ask.token, client=step.encode_success(challenge, 0), memo=msgspec.msgpack.encode(memo))

    async def _verify_proof(self, ask: AdminQuery, memo: _ExchangeMemo, message: bytes) -> bytes:
        record = await self._scram_record(memo.name, ask.mechanism, network_of_peer(ask.peer))
        first = FirstMessage(memo.header, memo.bare, memo.name, memo.client_nonce)
        try:
            return scram.verify_final(HASHES[ask.mechanism], record, first, memo.challenge, message)
        except ScramRefused as error:
            raise _AuthenticationFailure(f"{ask.mechanism} as {one_line(memo.name)}: {error}") from None

    async def _check_plain(self, message: bytes, address: str) -> str:
        parts = message.split(b"\0")
        try:
            if len(parts) != 3 or parts[0] not in (b"", parts[1]) or not parts[1] or not parts[2]:
                raise ScramRefused("the message is not a valid PLAIN message")
            name = parts[1].decode()
        except UnicodeDecodeError:
            raise ScramRefused("its name is not valid UTF-8") from None
        records = await self._find_records(name, "PLAIN", address)
        usual = self._decoys.decoy_mechanisms(name)
        mechanism = next(each for each in HASHES if each in (records or usual))
        decoy = self._decoys.decoy_record(name, mechanism)
        record = records.get(mechanism) or decoy
        knows = functools.partial(scram.matches_password, record, HASHES[mechanism], parts[2])
        async with self._threads.acquire_slot(address):
            is_right = await trio.to_thread.run_sync(knows)
        if not is_right:
            raise _AuthenticationFailure(f"PLAIN as {one_line(name)}: wrong password, or no such user")
        return name

    async def _scram_record(self, name: str, mechanism: str, address: str) -> ScramRecord:
        records = await self._find_records(name, mechanism, address)
        decoy = self._decoys.decoy_record(name, mechanism)  # for users as well, so that both take the same hashes
        return records.get(mechanism) or decoy

    async def _find_records(self, name: str, mechanism: str, address: str) -> Records:
        """Empty: there is no such user."""
        users = await self._file.get() if self._file is not None else {}
        self._decoys.set_users(users)
        try:
            principal_name(name)
        except UnusableName:  # no user has that name, and the refusal takes as long as for any other name
            return {}
        if found := users.get(name):
            return found
        if self._command is None:
            return {}
        given = await self._command.fetch_records(name, mechanism, address)
        if given:
            self._decoys.learn_profile(given)
        return given

    async def _accept_client(self, step: _SaslStep, name: str, final: bytes, until: float | None) -> AdminAnswer:
        """The client's exchange has succeeded."""
        ask = step.ask
        principal = f"User:{name}"
        memo = _ExchangeMemo("offered", principal=principal, final=final, until=until)
        if ask.principal == ANONYMOUS:
            return await self._offer_mechanism(step, memo)
        if ask.principal != principal:
            raise _AuthenticationFailure(
                f"{one_line(principal)} on a connection of {one_line(ask.principal)}",
                "Cannot change principals during re-authentication",
            )
        return self._finish_exchange(step, memo, None)

    # --- the broker ---------------------------------------------------------------------------------------------------

    async def _offer_mechanism(self, step: _SaslStep, memo: _ExchangeMemo) -> AdminAnswer:
        """The first step with the broker, where the gateway authenticates there."""
        if self._own is None:
            return self._finish_exchange(step, memo, 0)
        own = await self._credentials_for(memo.principal)
        memo.nonce = b64encode(secrets.token_bytes(_NONCE_BYTES))
        frame = SASL_HANDSHAKE.encode_request(SaslHandshakeRequest(own.mechanism), _VERSION, 1, SOFTWARE)
        return AdminAnswer(step.ask.token, frame, memo=msgspec.msgpack.encode(memo))

    async def _begin_exchange(self, step: _SaslStep, memo: _ExchangeMemo) -> AdminAnswer:
        ask = step.ask
        offer = SASL_HANDSHAKE.decode_response(ask.answer, 0, len(ask.answer), _VERSION)[1]
        own = await self._credentials_for(memo.principal)
        if offer.error_code:
            raise self._broker_refusal(
                own, f"error {offer.error_code}; it has {', '.join(offer.mechanisms) or 'no SASL'}"
            )
        memo.stage = "authenticating"
        return await self._next_broker_step(ask, memo, own)

    async def _continue_exchange(self, step: _SaslStep, memo: _ExchangeMemo) -> AdminAnswer:
        ask = step.ask
        response = SASL_AUTHENTICATE.decode_response(ask.answer, 0, len(ask.answer), _VERSION)[1]
        own = await self._credentials_for(memo.principal)
        if response.error_code:
            raise self._broker_refusal(own, response.error_message or f"error {response.error_code}")
        memo.broker_messages.append(response.auth_bytes)
        answer = await self._next_broker_step(ask, memo, own)
        return answer if answer.upstream else self._finish_exchange(step, memo, response.session_lifetime_ms)

    async def _next_broker_step(self, ask: AdminQuery, memo: _ExchangeMemo, own: BrokerCredentials) -> AdminAnswer:
        """The gateway's next message of the exchange with the broker; none where it is complete."""
        try:
            async with self._threads.acquire_slot(network_of_peer(ask.peer)):
                message = await trio.to_thread.run_sync(_next_message, own, memo.nonce, memo.broker_messages)
        except sasl.SaslExchangeFailed as error:
            raise self._broker_refusal(own, str(error)) from None
        if message is None:
            return AdminAnswer(ask.token)
        frame = SASL_AUTHENTICATE.encode_request(SaslAuthenticateRequest(message), _VERSION, 2, SOFTWARE)
        return AdminAnswer(ask.token, frame, memo=msgspec.msgpack.encode(memo))

    async def _credentials_for(self, principal: str) -> BrokerCredentials:
        assert self._own is not None
        known = await self._own.get()
        own = known.get(principal) or known.get(DEFAULT)
        if own is None:
            text = f"{self._settings.upstream_credentials_file} has neither {one_line(principal)} nor {DEFAULT}"
            self._log_problem(text)
            raise _AuthenticationFailure(text, NOT_HERE)
        try:
            return await self._tokens.fill_token(own)
        except oauthbearer.NoTokenError as error:
            text = f"no token for brokers, for {one_line(principal)}: {error}"
            self._log_problem(text)
            raise _AuthenticationFailure(text, NOT_HERE) from None

    def _broker_refusal(self, own: BrokerCredentials, what: str) -> _AuthenticationFailure:
        text = f"the broker refuses the gateway's {own.mechanism} as {one_line(own.username)}: {one_line(what)}"
        self._log_problem(text)
        return _AuthenticationFailure(text, NOT_HERE)

    def _finish_exchange(self, step: _SaslStep, memo: _ExchangeMemo, upstream_ms: int | None) -> AdminAnswer:
        ask = step.ask
        left = [memo.until - self._now()] if memo.until is not None else []
        left += [self._settings.max_reauth_ms / 1000] if self._settings.max_reauth_ms and ask.request else []
        session_ms = max(1, int(min(*left, MAX_SESSION_S) * 1000)) if left else 0
        identity = SaslIdentity(memo.principal, session_ms, upstream_ms)
        return AdminAnswer(ask.token, client=step.encode_success(memo.final, session_ms), identity=identity)

    def _log_problem(self, text: str) -> None:
        """Log what an operator has to fix; not again for every client, and not one line for each of many clients."""
        now = time.monotonic()
        said_at = self._logged_at = {said: at for said, at in self._logged_at.items() if now - at < LOG_AGAIN_S}
        if text in said_at or len(said_at) >= MAX_LOGGED:
            return
        said_at[text] = now
        log.error("authentication: %s", text)
        if len(said_at) == MAX_LOGGED:
            log.error("authentication: further ones are not logged for %g s", LOG_AGAIN_S)


def _read_request(request: bytes) -> DecodedRequest[SaslAuthenticateRequest]:
    return SASL_AUTHENTICATE.decode_request(request, 0, len(request))


def _share_of(ask: AdminQuery) -> TaskShare:
    return TaskShare(network_of_peer(ask.peer), MAX_OF_ADDRESS)


def _next_message(own: BrokerCredentials, nonce: bytes, messages: list[bytes]) -> bytes | None:
    """The client's side of the exchange, repeated up to here: with the same nonce the messages are the same."""
    exchange: Any = sasl.start_exchange(own.mechanism, own.username, own.password, nonce)
    message: bytes = next(exchange)
    try:
        for each in messages:
            message = exchange.send(each)
    except StopIteration:
        return None
    return message


def _try_broker_credentials(path: Path) -> None:
    for principal, own in read_broker_credentials(path).items():
        try:
            if own.token_file:
                oauthbearer.read_token_file(own.token_file)
        except oauthbearer.NoTokenError as error:
            raise CredentialsError(f"{path}: {principal}: token_file: {error}") from None


def find_file_faults(settings: AuthenticationSettings) -> list[str]:
    """Faults of the files that the settings name."""
    files: list[tuple[Path | None, Callable[[Path], object]]] = [
        (settings.credentials_file, read_records),
        (settings.upstream_credentials_file, _try_broker_credentials),
    ]
    if settings.jwks_url.startswith("file:"):
        files.append((path_of_url(settings.jwks_url), read_keys))
    faults = []
    for path, read in files:
        try:
            if path is not None:
                read(path)
        except CredentialsError as error:
            faults.append(str(error))
    return faults


def _make_decoys(settings: AuthenticationSettings, secret: bytes, spool_dir: Path | None) -> DecoyRecords:
    # Of other users other decoys: a name whose salt is the same in two files would belong to no user of either.
    users = json.dumps([str(settings.credentials_file), *settings.credentials_command])
    memory = None
    if spool_dir is not None and settings.credentials_command:
        memory = spool_dir / f"credentials-{hashlib.sha256(users.encode()).hexdigest()[:16]}.json"
    return DecoyRecords(derive_key(secret, f"decoys {users}"), memory)


def make_authenticators(settings: Settings, secret: bytes, errors: InternalErrors) -> dict[str, SaslAuthenticator]:
    """By listener, the authenticators of those at which SASL ends; listeners with the same settings share one.
    `secret`: the gateway's.
    """
    made: list[tuple[AuthenticationSettings, SaslAuthenticator]] = []
    found = {}
    for name in settings.all_listeners:
        own = settings.authentication_of(name)
        if own is None:
            continue
        found[name] = next((each for known, each in made if known == own), None) or SaslAuthenticator(
            own, secret, settings.usage_log.spool_dir, errors=errors
        )
        made.append((own, found[name]))
    return found
