# Strangers and clumsy clients of the admin server: the real one (server, gate, REST API, console, policy service) on
# a loopback socket, fed with HTTP: every route of the table with strange values in paths, queries, headers
# and bodies, then the same broken, cut and repeated, and HTTP/2, which it doesn't speak.
#
# Rules: no exception comes out of the server, which would end control, none into its log; a request that is whole gets
# an answer, and none of 500; without the token of an operator nobody changes anything, whatever the path looks like; in
# between and at the end a good client gets what it asks for.

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import quote

import h11
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.channel import GroupSnapshot, QuotaSnapshot, ThresholdPolicy
from gateway.config import Admin
from gateway.control import http_server
from gateway.control.access.making import make_gate
from gateway.control.access.rules import ACCESS_TABLE
from gateway.control.admin.application import AdminApplication
from gateway.control.admin.console.site import make_console
from gateway.control.admin.lazy_application import LazyApplication
from gateway.control.admin.rest.api import make_api
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.usage.recent import RecentTraffic
from gateway.control.workers.snapshots import groups_of, quotas_of, thresholds_of
from tests.hostile.fuzzing.control import PLACES, Control, Ended, Faults, folder, replayable, settings_of_a_play
from tests.hostile.fuzzing.plays import Cost, Violation, first_of
from tests.hostile.traffic import frames

ROUTES: Final = tuple(rule for rule in ACCESS_TABLE if rule.path not in ("/healthz", "/readyz"))
TOKENS: Final = {role: f"{role}-token-0123456789" for role in ("viewer", "operator", "admin")}
ROUNDS: Final = 6
VISITORS: Final = 8  # at once
QUIET_S: Final = 0.005  # of the real clock: then what waits for something waits for the time
DEADLINE_S: Final = 3600.0  # by the clock of a play: nothing that a server waits for lasts so long
VALUES: Final[tuple[Any, ...]] = (
    "1MB", "5", "\ud800", "a\ud800b", "\0", "a\nb", "x" * 300, "x" * 20_000, "a/b", "", "<default>", "\U0001f600" * 50,
    "NaN", "1e400", "9" * 400, None, 0, -1, 1e308, 2**63, 2**64, True, [], {}, [[]], {"a": None},
    "9999-12-31T23:59:59Z", "2026-01-01", "clicks", "alice", "producer_byte_rate", float("inf"), float("nan"),
    "../..", "%00", "\u202e",
)  # fmt: skip
RAW: Final = (
    b"", b"{", b"[" * 20_000, b'{"value":' + b"1" * 10_000 + b"}", b"\xff\xfe", b'{"value":"\xff"}', b"null", b"0",
    b'{"value":1e999}', b'{"value":"1MB","value":"2MB"}', b'{"a":' * 5000, b"do=apply&value=9MB&csrf_token=%ff%00",
)  # fmt: skip
_HEADERS: Final[tuple[tuple[str, bytes], ...]] = (
    ("X-Forwarded-For", b"127.0.0.1, \xff"), ("Produce-Gateway-User", b"a%0Ab%ff%ed%a0%80"),
    ("Cookie", b"session=x; ;=;\xff"), ("Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    ("Origin", b"null"), ("Sec-Fetch-Site", b"cross-site"), ("X-CSRF-Token", b"\xe9"), ("Accept", b"*/*;q=\xff"),
    ("Content-Encoding", b"gzip"), ("Accept-Encoding", b"gzip"), ("If-None-Match", b"*"), ("Range", b"bytes=-1"),
    ("Produce-Gateway-User", b"x" * 5000), ("Upgrade", b"websocket"), ("Connection", b"Upgrade"),
    ("Expect", b"100-continue"), ("Upgrade", b"h2c"), ("HTTP2-Settings", b"AAMAAABkAAQAAP__"),
    ("Authorization", b"Bearer \xff"), ("Authorization", b"Basic x"), ("X-" + "y" * 200, b""),
)  # fmt: skip


_AROUND: Final[tuple[Callable[[str], str], ...]] = (  # the gate, perhaps
    lambda path: "/" + path,
    lambda path: path + "/",
    lambda path: "/healthz/.." + path,
    lambda path: "/readyz%2f.." + path,
    lambda path: "/." + path,
    lambda path: path + ";a=b",
    lambda path: path + "%00",
    lambda path: path.replace("/", "%2f"),
    lambda path: path.replace("v", "%76").upper(),
    lambda path: "http://localhost" + path,
    lambda path: "/login/.." + path,
)


class Wish:
    """A request that may be asked for. `may_change`: its token gives the right to change something."""

    def __init__(self, rng: Random) -> None:
        rule = rng.choice(ROUTES)
        self.method = rule.method if rng.random() < 0.9 else rng.choice(("GET", "HEAD", "PUT", "OPTIONS", "FOO", "get"))
        path = rule.path
        while "{" in path:
            before, _, rest = path.partition("{")
            path = before + _quoted(rng) + rest.partition("}")[2]
        if rng.random() < 0.1:
            path = rng.choice(_AROUND)(path)
        names = ("topic", "user", "client_id", "principal", "limit", "page", "minutes", "broker", "name", "until", "x")
        queries = [f"{rng.choice(names)}={_quoted(rng)}" for _ in range(rng.choice((0, 0, 1, 1, 3)))]
        self.target = path + ("?" + "&".join(queries) if queries else "")
        self.body = _body(rng, rule.path) if self.method in ("PUT", "POST", "DELETE") or rng.random() < 0.05 else b""
        kind = b"application/x-www-form-urlencoded" if rule.page else b"application/json"
        self.headers = [("Host", rng.choice((b"localhost", b"127.0.0.1:1", b"localhost", b"evil", b"\xff")))]
        self.headers.append(("Content-Type", kind if rng.random() < 0.95 else b"text/\xff; charset=\xe9"))
        self.may_change = False
        if rng.random() < 0.85:
            role = rng.choice((*TOKENS, "admin", "admin"))
            self.may_change = role != "viewer"
            self.headers.append(("Authorization", b"Bearer " + TOKENS[role].encode()))
        self.headers += rng.sample(_HEADERS, rng.choice((0, 0, 0, 1, 2)))

    def as_http1(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1".encode("ascii", "replace")]
        lines += [name.encode() + b": " + value for name, value in self.headers]
        lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


def _quoted(rng: Random) -> str:
    return quote(str(rng.choice(VALUES)).encode("utf-8", "surrogatepass")[:3000], safe=rng.choice(("", "/", ":=")))


def _body(rng: Random, path: str) -> bytes:
    if rng.random() < 0.1:
        return rng.choice(RAW)

    def value() -> Any:
        return rng.choice(VALUES)

    def text() -> Any:
        return rng.choice(("alice", "clicks", value()))

    rate = rng.choice(("producer_byte_rate", "request_percentage", value()))
    entity = [
        {"type": rng.choice(("user", "client-id", "ip", value())), "name": text()} for _ in range(rng.choice((1, 1, 2)))
    ]
    alteration = {"entity": entity, "ops": [{"key": rate, "value": rng.choice((1000, None, value()))}]}
    document = {
        "thresholds": rng.choice(({"topics": {str(text()): value()}}, {"total": value()}, value())),
        "client_quotas": rng.choice(([{"user": text(), str(rate): value()}], value())),
        "resource_groups": rng.choice(({"groups": {str(text()): {"publishRateInBytes": value()}}}, value())),
    }
    made: Any = {"value": rng.choice(("1MB", "2MB", value())), "until": value()}
    if "quotas:alter" in path:
        made = {"alterations": rng.choice(([alteration], [alteration] * 3, value())), "until": value()}
    elif "policies:apply" in path:
        kept = rng.sample(list(document), rng.choice((0, 1, 1, 3)))
        made = {"document": rng.choice(({key: document[key] for key in kept}, value())), "prune": value()}
    elif "resource" in path:
        made = {key: value() for key in ("publishRateInBytes", "dispatchRateInMsgs", "publishRateInMsgs")}
    elif "override" in path:
        made = {"state": rng.choice(("PAUSE", "NORMAL", value())), "reason": value(), "until": value()}
    elif "session" in path:
        made = {"token": rng.choice((TOKENS["viewer"], value()))}
    made = {key: each for key, each in made.items() if rng.random() < 0.8}
    if path.startswith(("/login", "/logout", "/console")):
        pairs = (f"{key}={quote(str(each).encode('utf-8', 'surrogatepass'))}" for key, each in made.items())
        return "&".join((*pairs, f"do={_quoted(rng)}", f"next={_quoted(rng)}")).encode()
    return json.dumps(made).encode()


# --- the server -------------------------------------------------------------------------------------------------------


def _application(control: Control) -> http_server.Application:
    """As gateway/control/app.py makes it."""
    lines = [f"{role}1:{role}:sha256:{hashlib.sha256(token.encode()).hexdigest()}" for role, token in TOKENS.items()]
    settings = Admin.model_validate({"tokens": lines})
    policies = control.policies

    def latest(kind: Any) -> Any:
        make: Any = {ThresholdPolicy: thresholds_of, QuotaSnapshot: quotas_of, GroupSnapshot: groups_of}.get(kind)
        return make(policies.policies, settings_of_a_play()) if make else control.workers.latest_snapshot(kind)

    gateway = GatewayContext(
        policies, RecentTraffic(), latest, places=lambda: PLACES,
        find_connections=control.workers.inquiries.find_connections,
    )  # fmt: skip
    return AdminApplication(
        control.metrics.render_text,
        list,
        {"/v1/storage": lambda _: {"enabled": False}},
        LazyApplication(lambda: make_api(gateway)),
        hosts=settings.host_names,
        gate=make_gate(settings, lambda reason: None),
        make_console=lambda everything: LazyApplication(lambda: make_console(everything)),
    )


class Web:
    """One admin server, and all who come."""

    def __init__(self, seed: int, cost: Cost, faults: Faults, path: Path) -> None:
        self._rng = Random(seed)
        self._cost = cost
        self._faults = faults
        self._control = Control(path)
        self._ended: BaseException | None = None
        self._address = 1

    async def run(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=100) as sock:
            self._port = sock.getsockname()[1]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._control.run_alone)
                nursery.start_soon(self._serve, socket.socket(fileno=sock.detach()))
                with trio.move_on_after(DEADLINE_S) as limit:
                    for _ in range(ROUNDS):
                        async with trio.open_nursery() as visitors:
                            for _ in range(VISITORS):
                                visitors.start_soon(self.visit, Random(self._rng.random()))
                        self._look()
                        await self._be_good()
                if limit.cancelled_caught:
                    raise Violation("answers", "somebody waits for one for ever")
                nursery.cancel_scope.cancel()

    async def _serve(self, sock: socket.socket) -> None:
        try:
            await http_server.serve_http(sock, _application(self._control))
        except Exception as error:
            self._ended = error

    def _look(self) -> None:
        if self._ended is not None:
            raise Ended(first_of(self._ended)) from self._ended
        if self._faults.found:
            raise Violation("error of its own", self._faults.found.pop())

    async def connect(self) -> trio.SocketStream:
        self._look()
        self._address = self._address % 200 + 1
        sock = trio.socket.socket()
        await sock.bind((f"127.0.0.{self._address}", 0))
        await sock.connect(("127.0.0.1", self._port))
        self._cost.ends["at the admin port"] += 1
        return trio.SocketStream(sock)

    async def _be_good(self) -> None:
        for request in (
            b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"PUT /v1/thresholds/topics/clicks?validate_only=true HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 15\r\nAuthorization: Bearer "
            + TOKENS["admin"].encode()
            + b'\r\n\r\n{"value":"1kB"}',
        ):
            try:
                async with await self.connect() as stream:
                    await stream.send_all(request)
                    status = await _status(stream, "GET")
            except (OSError, trio.BrokenResourceError):
                await wait_all_tasks_blocked()  # it is coming to its end
                self._look()
                raise
            if status != 200:
                raise Violation("others", f"a good client gets {status} to {request[:40]!r}")

    async def visit(self, rng: Random) -> None:
        way = rng.choice((self._ask, self._ask, self._ask, self._break, self._break, self._mix))
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            stream = await self.connect()
            try:
                await way(rng, stream)
            finally:
                if rng.random() < 0.3:
                    with suppress(OSError):
                        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stream.socket.close()

    async def _ask(self, rng: Random, stream: trio.SocketStream) -> None:
        """One whole request."""
        wish = Wish(rng)
        data = wish.as_http1()
        self._cost.inputs += 1
        self._cost.bytes += len(data)
        await stream.send_all(data)
        status = await _status(stream, wish.method)
        self._cost.ends[f"HTTP {status // 100}xx"] += 1
        is_change = wish.method.upper() in ("PUT", "POST", "DELETE", "PATCH") and 200 <= status < 300
        if (
            is_change
            and not wish.may_change
            and not any(word in wish.target for word in ("session", "login", "logout"))
        ):
            raise Violation("rights", f"{status} to {wish.method} {wish.target[:200]}")
        if status == 500:
            raise Violation("500", f"{wish.method} {wish.target[:200]} {wish.body[:200]!r}")

    async def _break(self, rng: Random, stream: trio.SocketStream) -> None:
        """Requests that are broken, cut, glued."""
        for _ in range(rng.choice((1, 1, 3))):
            data, other = Wish(rng).as_http1(), Wish(rng).as_http1()
            draw = rng.random()
            if draw < 0.7:
                data = frames.mutate(rng, bytes(4) + data, bytes(4) + other)[4:]
            elif draw < 0.85:
                data = data[: rng.randrange(len(data))]
            else:
                data = data + other + data[: rng.randrange(len(data))]
            await self._send(stream, data)
        await self._leave(rng, stream)

    async def _mix(self, rng: Random, stream: trio.SocketStream) -> None:
        """HTTP/2 by prior knowledge, which isn't spoken: any frames behind its preface."""
        await self._send(stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        for _ in range(rng.choice((1, 3, 10))):
            payload = rng.randbytes(rng.choice((0, 4, 5, 6, 8, 300)))
            head = struct.pack(">I", len(payload))[1:] + bytes((rng.randint(0, 11), rng.choice((0, 1, 4, 5, 8, 255))))
            await self._send(stream, head + struct.pack(">I", rng.choice((0, 1, 3, 2**31 - 1))) + payload)
        await self._leave(rng, stream)

    async def _send(self, stream: trio.SocketStream, data: bytes) -> None:
        self._cost.inputs += 1
        self._cost.bytes += len(data)
        await stream.send_all(data)

    async def _leave(self, rng: Random, stream: trio.SocketStream) -> None:
        """At once; or behind an end; or when the server has had enough of waiting."""
        draw = rng.random()
        if draw < 0.5:
            return
        if draw < 0.9:
            await stream.send_eof()
        while await stream.receive_some(65_536):
            pass


async def _status(stream: trio.SocketStream, method: str) -> int:
    """Of the whole answer that comes."""
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=10**6)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "x"), ("Connection", "close")]))
    client.send(h11.EndOfMessage())
    status = 0
    while True:
        try:
            event = client.next_event()
        except h11.RemoteProtocolError as error:
            raise Violation("answers", f"{error}") from error
        if event is h11.NEED_DATA:
            data = await stream.receive_some(65_536)
            if not data and not status:
                raise Violation("answers", "the connection ends without one")
            client.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            return 101
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return status


def surf(seed: int, cost: Cost, kind: type[Web] = Web) -> None:
    """Play one of these.

    Raises:
        Ended, Violation, or what came out of the gateway that mustn't.
    """

    async def run(faults: Faults) -> None:
        with folder() as path:
            await kind(seed, cost, faults, path).run()

    try:
        with replayable() as faults:
            trio.run(run, faults, clock=MockClock(autojump_threshold=QUIET_S))
    except BaseException as error:
        found = list(_each(error))
        raise next((one for kind in (Ended, Violation) for one in found if isinstance(one, kind)), found[0]) from None


def _each(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in error.exceptions:
        yield from _each(one)
