# Requests that librdkafka doesn't have (DescribeLogDirs, DescribeProducers, the client quotas), by connections of our
# own.
#
# Each run has connections of its own, driven by the thread that asks, and one deadline from the resolver to the last
# byte: nothing is left to break, leak or go stale between two runs a minute apart. An error names the brokers that gave
# no answer. The messages are protocol/'s, and the asking module knows their meaning; this one knows how any broker, or
# each of several, is asked.

from __future__ import annotations

import errno
import functools
import os
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple, TypeVar

import trio

from gateway.kafka import sasl
from gateway.kafka.access import BrokerAccess, SaslCredentials, parse_access
from gateway.kafka.oauthbearer import MECHANISM, NoTokenError, TokenCache, client_first_message
from gateway.system.sockets import address_text
from gateway.tls.broker_tls import CLOSED_AT_ONCE, BrokerTls, explain_tls_failure
from gateway.tls.certificates import PEER_CLOSED_ERRORS
from protocol import api as tables
from protocol.authentication.handshake import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from protocol.describe import guess_protocol
from protocol.message_codec import ApiCodec
from protocol.wire import INT32, MalformedFrame

SOFTWARE: Final = "produce-gateway"
MAX_RESPONSE_BYTES: Final = 10_000_000
RECEIVE_BYTES: Final = 65_536
MAX_NAMED_FAILURES: Final = 3  # in a message; of the rest, the number

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


class NoAnswer(Exception):
    """No broker answered, or none with the right answer: one line that names them."""


class UnknownApi(NoAnswer):
    """The broker doesn't have this request in a version that we speak."""


_NO_SASL: Final = "it has no SASL (security.protocol must be PLAINTEXT or SSL there)"


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return address_text(self.host, self.port)


class BrokerConnection:
    """To one broker, one request at a time."""

    def __init__(self, stream: trio.abc.Stream, client_id: str, max_answer_bytes: int) -> None:
        self._stream = stream
        self._client_id = client_id.encode()
        self._max_answer_bytes = max_answer_bytes
        self._correlation_id = 0
        self._received = bytearray()
        self._versions: dict[int, tuple[int, int]] = {}

    async def negotiate_session(self, credentials: SaslCredentials | None) -> None:
        """Say and hear all that comes before the first request: versions, credentials."""
        await self._learn_versions()
        if credentials is not None:
            await self._authenticate(credentials)

    async def send_request(self, api: ApiCodec[Q, A], body: Q) -> A:
        """The answer, in the newest version that both speak.

        Raises:
            UnknownApi: there is none.
            NoAnswer, MalformedFrame, OSError, trio.BrokenResourceError: it doesn't come.
        """
        lowest, highest = self._versions.get(api.key, (0, -1))
        spoken = min(highest, api.highest)
        if spoken < max(lowest, api.lowest):
            raise UnknownApi(f"has no {api.name} in a version that the gateway speaks")
        return self._decode_response(api, await self._exchange_frames(api, body, spoken), spoken)

    def supports_version(self, api: ApiCodec[Any, Any], version: int) -> bool:
        """Whether `send_request` uses that version, or a newer one."""
        return min(self._versions.get(api.key, (0, -1))[1], api.highest) >= version

    async def _learn_versions(self) -> None:
        ours = ApiVersionsRequest(SOFTWARE, _release())
        for spoken in (3, 0):  # 3 names our software (KIP-511); brokers before Kafka 2.4 answer error 35, in version 0
            frame = await self._exchange_frames(API_VERSIONS, ours, spoken)
            if spoken == 0 or frame[4:6] != tables.UNSUPPORTED_VERSION.to_bytes(2, "big"):
                break
        answer = self._decode_response(API_VERSIONS, frame, spoken)
        if answer.error_code:
            raise NoAnswer(f"ApiVersions: {error_text(answer.error_code)}")
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    async def _authenticate(self, credentials: SaslCredentials) -> None:
        offer = await self.send_request(SASL_HANDSHAKE, SaslHandshakeRequest(credentials.mechanism))
        if offer.error_code:
            known = f"it has {', '.join(offer.mechanisms)}" if offer.mechanisms else _NO_SASL
            raise NoAnswer(f"{error_text(offer.error_code)}: {known}")
        exchange = sasl.start_exchange(*credentials)
        try:
            message = next(exchange)
            while True:
                answer = await self.send_request(SASL_AUTHENTICATE, SaslAuthenticateRequest(message))
                if answer.error_code:
                    why = " ".join((answer.error_message or "").split())
                    raise NoAnswer(": ".join(filter(None, (error_text(answer.error_code), why))))
                message = exchange.send(answer.auth_bytes)
        except StopIteration:
            return
        except sasl.SaslExchangeFailed as error:
            raise NoAnswer(str(error)) from error

    async def _exchange_frames(self, api: ApiCodec[Q, Any], body: Q, spoken: int) -> bytes:
        self._correlation_id += 1
        await self._stream.send_all(api.encode_request(body, spoken, self._correlation_id, self._client_id))
        await self._receive_until(4)
        (size,) = INT32.unpack_from(self._received)
        if not 4 <= size <= self._max_answer_bytes:
            raise NoAnswer(f"not a Kafka response but {guess_protocol(bytes(self._received))}")
        await self._receive_until(4 + size)
        frame = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        return frame

    def _decode_response(self, api: ApiCodec[Any, A], frame: bytes, spoken: int) -> A:
        correlation_id, answer = api.decode_response(frame, 0, len(frame), spoken)
        if correlation_id != self._correlation_id:
            raise NoAnswer("an answer to another request")
        return answer

    async def _receive_until(self, size: int) -> None:
        while len(self._received) < size:
            data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise NoAnswer("the connection ended before an answer")
            self._received += data


BrokerRequest = Callable[[BrokerConnection], Awaitable[T]]


class BrokerClient:
    """Constructing it connects nowhere, but reads the files that properties name.

    Args:
        properties: how to reach and trust the brokers, by librdkafka's names; see `gateway.kafka.access`.
        bootstrap_servers: `host:port,host:port`.
        timeout_s: for one `run` in all.
        max_answer_bytes: a larger one is refused.

    Raises:
        InvalidProperties: one line.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        bootstrap_servers: str,
        timeout_s: float,
        max_answer_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        parse_access(properties)
        self._properties = dict(properties)
        self._bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._tokens = TokenCache()
        self._lock = threading.Lock()
        self._cancellers: set[Callable[[], None]] = set()  # of what is running
        self._closed = False

    def run(self, ask: Callable[[RequestRound], Awaitable[T]]) -> T:
        """The result of `ask`. Blocks for `timeout_s` at most; from any thread that runs no trio.

        Raises:
            NoAnswer: one line.
        """
        try:
            access = parse_access(self._properties)  # loaded again each time: certificates are renewed
            if access.token_source is not None:
                first_message = client_first_message(
                    self._tokens.get_token(access.token_source), access.token_source.extensions
                )
                access = access._replace(credentials=SaslCredentials(MECHANISM, "", first_message.decode()))
        except (ValueError, NoTokenError) as error:
            raise NoAnswer(str(error)) from error
        return trio.run(self._run, access, ask)

    def close(self) -> None:
        """End the calls of other threads, and all later ones, with NoAnswer."""
        with self._lock:
            self._closed = True
            for end in self._cancellers:
                end()

    async def _run(self, access: BrokerAccess, ask: Callable[[RequestRound], Awaitable[T]]) -> T:
        with trio.CancelScope() as scope:
            end = functools.partial(trio.lowlevel.current_trio_token().run_sync_soon, scope.cancel)
            with self._lock:
                if self._closed:
                    raise NoAnswer("closed")
                self._cancellers.add(end)
            try:
                until = trio.current_time() + self._timeout_s
                return await ask(
                    RequestRound(access, parse_addresses(self._bootstrap_servers), until, self._max_answer_bytes)
                )
            finally:
                with self._lock:
                    self._cancellers.discard(end)
        raise NoAnswer("closed")


class RequestRound:
    """One `run`: the brokers that it may ask, until its deadline."""

    def __init__(self, access: BrokerAccess, servers: list[BrokerAddress], until: float, max_answer_bytes: int) -> None:
        self._access = access
        self._servers = servers
        self._deadline = until
        self._max_answer_bytes = max_answer_bytes

    async def request_any_broker(self, ask: BrokerRequest[T], *, more_follows: bool = False) -> T:
        """The answer of the first bootstrap server that gives one, in random order. Each has its share of the time;
        with `more_follows` one share is left over.

        Raises:
            NoAnswer: why not, for each of them.
        """
        failed: list[str] = []
        for tried, server in enumerate(random.sample(self._servers, len(self._servers))):
            now = trio.current_time()
            until = now + (self._deadline - now) / (len(self._servers) - tried + more_follows)
            try:
                return await self._request_broker(server, ask, until)
            except NoAnswer as error:
                failed.append(f"{server}: {error}")
        raise NoAnswer("; ".join(sorted(failed)))

    async def request_all_brokers(self, brokers: Mapping[int, BrokerAddress], ask: BrokerRequest[T]) -> dict[int, T]:
        """The answers of all these brokers, asked the same at the same time: a slow one costs only its own time.

        Raises:
            NoAnswer: one didn't give any; the first few of those are named.
        """
        return await self.request_each_broker(brokers, dict.fromkeys(brokers, ask))

    async def request_each_broker(
        self, brokers: Mapping[int, BrokerAddress], asks: Mapping[int, BrokerRequest[T]]
    ) -> dict[int, T]:
        """The same, with a question of its own for each."""
        answers: dict[int, T] = {}
        failed: dict[int, str] = {}

        async def ask_one(broker_id: int, address: BrokerAddress) -> None:
            try:
                answers[broker_id] = await self._request_broker(address, asks[broker_id], self._deadline)
            except NoAnswer as error:
                failed[broker_id] = f"broker {broker_id} ({address}): {error}"

        async with trio.open_nursery() as nursery:
            for broker_id, address in brokers.items():
                nursery.start_soon(ask_one, broker_id, address)
        if failed:
            more = f"; and {len(failed) - MAX_NAMED_FAILURES} more" if len(failed) > MAX_NAMED_FAILURES else ""
            raise NoAnswer("; ".join(failed[broker_id] for broker_id in sorted(failed)[:MAX_NAMED_FAILURES]) + more)
        return answers

    async def _request_broker(self, address: BrokerAddress, ask: BrokerRequest[T], until: float) -> T:
        try:
            with trio.fail_at(until):
                async with self._open_connection(address) as connection:
                    return await ask(connection)
        except trio.TooSlowError:
            raise NoAnswer("no answer in time") from None
        except MalformedFrame as error:
            raise NoAnswer(f"no broker answered: {error}") from error
        except (OSError, UnicodeError, trio.BrokenResourceError) as error:  # UnicodeError: a name that no host can have
            cause = error.__cause__
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, PEER_CLOSED_ERRORS):  # in TLS 1.3 a refusal
                raise NoAnswer(
                    explain_tls_failure(cause, address.host, self._access.broker_tls or BrokerTls())
                ) from error
            raise NoAnswer(_root_cause_text(error)) from error

    @asynccontextmanager
    async def _open_connection(self, address: BrokerAddress) -> AsyncIterator[BrokerConnection]:
        stream: trio.abc.Stream = await trio.open_tcp_stream(address.host, address.port)
        try:
            if self._access.tls_context is not None:
                stream = tls = trio.SSLStream(stream, self._access.tls_context, server_hostname=address.host)
                await _do_handshake(tls, address.host, self._access.broker_tls)
            connection = BrokerConnection(stream, self._access.client_id, self._max_answer_bytes)
            await connection.negotiate_session(self._access.credentials)
            yield connection
        finally:
            await trio.aclose_forcefully(stream)


def error_text(code: int) -> str:
    """Kafka's name of an error, and its number."""
    return f"error {code} ({tables.ERROR_NAMES.get(code, 'unknown')})"


def parse_addresses(bootstrap_servers: str) -> list[BrokerAddress]:
    """The servers of a list `host:port,host:port`.

    Raises:
        NoAnswer: an address is not valid.
    """
    found = []
    for server in filter(None, (part.strip() for part in bootstrap_servers.split(","))):
        host, _, port = server.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise NoAnswer(f"bootstrap servers {bootstrap_servers}: {server} is not a valid host:port")
        found.append(BrokerAddress(host.strip("[]"), int(port)))
    if not found:
        raise NoAnswer("bootstrap servers: none is given")
    return found


async def _do_handshake(tls: trio.SSLStream[trio.abc.Stream], host: str, trust: BrokerTls | None) -> None:
    try:
        await tls.do_handshake()
    except trio.BrokenResourceError as error:
        cause = error.__cause__
        if isinstance(cause, PEER_CLOSED_ERRORS) or not isinstance(cause, ssl.SSLError):
            raise NoAnswer(f"TLS handshake failed: {CLOSED_AT_ONCE}") from error
        raise NoAnswer(f"TLS handshake failed: {explain_tls_failure(cause, host, trust or BrokerTls())}") from error
    except OSError as error:
        raise NoAnswer(f"TLS handshake failed: {_root_cause_text(error)}") from error


def _root_cause_text(error: BaseException) -> str:
    """The innermost cause, in one line."""
    while (cause := error.__cause__) is not None:
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    if isinstance(error, ConnectionError) and error.errno is not None:
        return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
    text = str(error.strerror if isinstance(error, socket.gaierror) else error)
    return " ".join(text.split()) or type(error).__name__


def _release() -> str:
    try:
        return version(SOFTWARE)
    except PackageNotFoundError:
        return "unknown"
