# A crowd in front of one worker: hostile clients on real sockets, plain or with TLS, perhaps through a proxy (PROXY
# protocol), which the real control (control.py) hands over to it, and behind it a broker that lies, stalls and resets.
# Among them is one good client with a good broker, whose connection must live on. Memory is short.
#
# Rules: no exception that nobody expects, least of all one that ends control; no message to control that breaks the
# rules of plays.py; the good client gets every answer, in order; when all have gone no memory is held.

from __future__ import annotations

import functools
import socket
import ssl
import struct
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import trio
from trio.testing import wait_all_tasks_blocked

from gateway.channel import (
    AcceptedConnection,
    BrokerTable,
    FindConnections,
    GroupSnapshot,
    ListenerSettings,
    LogMessage,
    QuotaSnapshot,
    TerminatedSasl,
    ThresholdPolicy,
    TopicSnapshot,
    UpstreamBroker,
)
from gateway.data.worker.worker import DataWorker
from gateway.listener_names import DEFAULT_LISTENER
from gateway.tls.certificates import ListenerTls
from policies.groups.group_limiters import GroupLimitValues
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from protocol import api
from tests.certificates import Authority
from tests.gateway.data.made_settings import made_settings
from tests.gateway.data.play import other_request, request
from tests.hostile.fuzzing.control import Control, Faults, folder, replayable
from tests.hostile.fuzzing.player import Answers
from tests.hostile.fuzzing.plays import Cost, Play, Violation, only
from tests.hostile.traffic import frames, logins, managing
from tests.hostile.traffic.frames import IDS, PROTECTED, STRANGE, numbered
from tests.hostile.traffic.logins import Login
from tests.protocol import produce_cases as cases

GOOD, BAD = 2, 1  # brokers
SLACK = 16 * 2**20  # what was read already has to stay somewhere
DEADLINE_S = 30.0  # milliseconds on a machine that does nothing else
_ENDS = b"\xcb\0\x71\x09\x0a\0\0\x01\x04\xd2\x23\x84"
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HEADERS = (
    b"PROXY TCP4 203.0.113.9 10.0.0.1 1234 9092\r\n",
    b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n",
    b"PROXY UNKNOWN\r\n",
    _SIGNATURE + b"\x21\x11\0\x0c" + _ENDS,
    _SIGNATURE + b"\x20\0\0\0",
    _SIGNATURE + b"\x21\x11\x01\0" + _ENDS + bytes(244),
    b"",
)
GONE = (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError, OSError)


@functools.cache
def _certificates() -> tuple[Authority, ListenerTls]:
    authority = Authority(Path(tempfile.mkdtemp(prefix="produce-gateway-fuzz-")))
    certificate, key = authority.sign("gateway")
    return authority, ListenerTls(str(certificate), str(key))


class Crowd:
    """One worker, its brokers and whoever comes."""

    def __init__(self, seed: int, cost: Cost, faults: Faults, path: Path) -> None:
        self.rng = rng = Random(seed)
        self.cost = cost
        self.tls = rng.random() < 0.4
        self.sasl = rng.random() < 0.4
        self.own = TerminatedSasl(logins.MECHANISMS, rng.random() < 0.5) if rng.random() < 0.4 else None
        self.proxied = rng.random() < 0.3
        self.bugs: list[Exception] = []
        self.good_answers: list[int] = []
        self.worker = DataWorker(cast("Any", None), 0)
        self.play = Play(self.worker, cost, faults, path)  # which looks at the messages to control
        self.control = Control(
            path, self.own is not None and self.own.authenticates_upstream, most=rng.choice((3, 6, 1000))
        )
        self._corpus = frames.corpus()

    async def run(self) -> None:
        reactor: Any = None
        try:
            async with trio.open_nursery() as nursery:
                brokers = [await self._listen(nursery, serve) for serve in (self._serve_badly, self._serve_well)]
                self._configure(brokers)
                self.play.begin(self.control, nursery)
                while not self.control.workers.connected or self.worker.plane is None:
                    await wait_all_tasks_blocked()
                    self.play.look_at_control()
                plane = self.worker.configured_plane
                reactor = plane.connections.reactor
                reactor.on_bug = lambda _link, bug: self.bugs.append(bug)
                for task in (reactor.run, reactor.run_timers, plane.periodic_tasks.run, plane.listing.run):
                    nursery.start_soon(task)
                with trio.move_on_after(DEADLINE_S) as limit:
                    async with trio.open_nursery() as clients:
                        clients.start_soon(self._be_good)
                        clients.start_soon(self._inquire)
                        for _ in range(self.rng.randint(1, 6)):
                            clients.start_soon(self._quietly, self._be_bad)
                if limit.cancelled_caught:
                    raise Violation("others", f"the good client got {len(self.good_answers)} answers")
                for link in list(reactor.links):
                    reactor.call_guarded(link, link.close, "disconnects_drain")
                reactor.run_deferred(trio.current_time())
                self.play.look_at_messages()
                if self.bugs:
                    raise self.bugs[0]
                self.control.ask_well()
                with trio.fail_after(DEADLINE_S):
                    while not self.control.answers_well:
                        self.play.look_at_control()
                        await wait_all_tasks_blocked(0.001)
                self.play.look_at_control()
                if reactor.budget.used_bytes:
                    raise Violation("memory", f"{reactor.budget.used_bytes} bytes are held for nobody")
                nursery.cancel_scope.cancel()
        finally:
            if reactor is not None and not getattr(reactor._poller, "closed", False):
                reactor._poller.close()

    def _configure(self, brokers: list[int]) -> None:
        rng, obey = self.rng, self.control.workers.publish_snapshot
        obey(
            made_settings(
                upstream_connect_timeout=DEADLINE_S,  # brokers are in this process, which may stand still itself
                max_buffered_bytes=rng.choice((100_000, 700_000, 2**26)),
                max_request_bytes=2**20,
                internal_client_ids=("good",),
                protected_topics=PROTECTED,
                acks0=rng.choice(("delay", "drop")),
                managed_apis=rng.choice(((), tuple(managing.APIS))),
                listeners={DEFAULT_LISTENER: ListenerSettings(_certificates()[1] if self.tls else None, sasl=self.own)},
                upstream_sasl=self.sasl,
            )
        )
        numbered = list(enumerate(brokers, 1))
        told = {DEFAULT_LISTENER: {n: ("gateway", 1) for n, _ in numbered}}
        obey(BrokerTable((), tuple(UpstreamBroker(n, "127.0.0.1", port) for n, port in numbered), told))
        obey(TopicSnapshot({1: ("clicks", "free"), 2: ("calm",)}, {topic_id: name for name, topic_id in IDS.items()}))
        obey(ThresholdPolicy(1, rng.choice((None, 1000.0)), {"clicks": 200.0}, rng.choice(("reject", "delay"))))
        rate = QuotaKey("producer_byte_rate", "broker_bps")
        obey(QuotaSnapshot(1, {Entity(DEFAULT): {rate: 2000.0}} if rng.random() < 0.5 else {}))
        obey(
            GroupSnapshot(1, {"gold": GroupLimitValues(500.0)}, {"red": "gold"})
            if rng.random() < 0.5
            else GroupSnapshot(1)
        )

    # --- brokers ------------------------------------------------------------------------------------------------------

    async def _listen(self, nursery: trio.Nursery, serve: Callable[[trio.SocketStream], Awaitable[None]]) -> int:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        nursery.start_soon(trio.serve_listeners, functools.partial(self._quietly, serve), [listener])
        return int(listener.socket.getsockname()[1])

    async def _quietly(self, play: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await play(*args)
        except* (*GONE, ssl.SSLError):
            pass  # whoever speaks to a peer that has gone

    async def _serve_well(self, stream: trio.SocketStream) -> None:
        answers = Answers(Random(1), sasl=self.sasl)

        async def serve(frame: bytes) -> None:
            key, version, correlation = struct.unpack_from(">hhi", frame, 4)
            if key == api.SASL_AUTHENTICATE:
                await stream.send_all(frames.sasl_answer(version, correlation, 0, b""))
            elif key == api.SASL_HANDSHAKE:
                await stream.send_all(frames.handshake_answer(correlation))
            elif (answer := answers.to(frame)) is not None:
                await stream.send_all(answer)

        await _read(stream, serve, lambda: 65_536)

    async def _serve_badly(self, stream: trio.SocketStream) -> None:
        rng = self.rng
        answers, lies, resets = Answers(rng, sasl=self.sasl), rng.choice((0.0, 0.0, 0.3)), rng.choice((0.0, 0.0, 0.1))

        async def serve(frame: bytes) -> None:
            answer = answers.to(frame)
            if answer is not None and rng.random() < 0.97:
                # From one handshake that is answered the gateway learns for all brokers that clients authenticate.
                is_believed = frame[4:6] == b"\0\x11" and not self.sasl
                if rng.random() < lies and not is_believed:
                    answer = answers.lie_to(frame, answer)
                if rng.random() < 0.05 and frame[4:6] == b"\0\x0c":  # Heartbeat, whose answer nobody reads here
                    answer = cases.framed(frame[8:12] + bytes(300_000))
                await self._say(stream, answer)
            if rng.random() < resets:
                _end(stream, reset=rng.random() < 0.5)

        await _read(stream, serve, lambda: rng.choice((7, 3000, 65_536)))

    # --- clients ------------------------------------------------------------------------------------------------------

    async def _connect(self, broker: int) -> trio.SocketStream:
        listener = socket.create_server(("127.0.0.1", 0))
        far = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
        near, _ = listener.accept()
        listener.close()
        if self.rng.random() < 0.3:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.cost.ends["on sockets"] += 1
        accepted = AcceptedConnection(broker, "127.0.0.1:1", self.proxied)
        await self.control.workers.hand_over_connection(near, accepted)
        if self.proxied:
            with suppress(*GONE):
                await far.send_all(self._header(broker == GOOD))
        return far

    def _header(self, good: bool) -> bytes:
        """Of the PROXY protocol: the good client has an address of its own."""
        rng = self.rng
        if good:
            return b"PROXY TCP4 198.51.100.1 10.0.0.1 1234 9092\r\n"
        header = rng.choice(HEADERS)
        return frames.mutate(rng, bytes(4) + header, bytes(4) + HEADERS[0])[4:] if rng.random() < 0.4 else header

    async def _inquire(self) -> None:
        """Somebody looks at the connections meanwhile."""
        for name in (None, *self.rng.sample(STRANGE, 3)):
            await self.control.workers.inquiries.find_connections(
                FindConnections(limit=3, principal=name, client_id=name)
            )

    async def _be_good(self) -> None:
        try:
            await self._as_client(GOOD, self._ask_well)
        except (Violation, *GONE) as error:
            said = [message.text for message in self.play.messages if isinstance(message, LogMessage)][-5:]
            raise Violation("others", f"the good client: {error}; {said}") from error

    async def _be_bad(self) -> None:
        await self._as_client(BAD, self._ask_badly)

    async def _as_client(self, broker: int, ask: Callable[[Any, trio.SocketStream], Awaitable[None]]) -> None:
        below = await self._connect(broker)
        stream: trio.abc.Stream = below
        if self.tls and (broker == GOOD or self.rng.random() < 0.95):
            context = _certificates()[0].client_context()
            stream = trio.SSLStream(below, context, server_hostname="localhost", https_compatible=True)
        try:
            await ask(stream, below)
        finally:
            _end(below, reset=self.rng.random() < 0.3)

    async def _ask_well(self, stream: Any, _below: trio.SocketStream) -> None:
        login = frames.login("alice") if self.sasl and self.own is None else []
        if self.own is not None:
            login = [frames.handshake(b"PLAIN"), frames.authenticate(b"\0alice\0alice-secret")]
        asked = [other_request(9, key=18, version=0), request(9, {"calm": [0]}, client_id="good"), other_request(9)]
        asked += [request(9, {"calm": [0]}, client_id="good", values=(bytes(50_000),)), *asked]
        for wanted, frame in enumerate((*login, *asked), 1):
            await stream.send_all(numbered(frame, wanted))
            self.cost.inputs += 1
            head = await _exactly(stream, 8)
            size, correlation = struct.unpack(">ii", head)
            await _exactly(stream, size - 4)
            self.good_answers.append(correlation)
            if correlation != wanted:
                raise Violation("others", f"answers {self.good_answers}")

    async def _ask_badly(self, stream: Any, below: trio.SocketStream) -> None:
        rng, corpus = self.rng, self._corpus
        script = frames.login(rng.choice(frames.USERS)) if rng.random() < 0.5 else []
        if self.own is not None:
            script = list(Login(rng).frames)
        broken = rng.choice((0.0, 0.05, 0.5))
        with trio.move_on_after(0.2):  # a client that doesn't read may never get rid of it all
            async with trio.open_nursery() as nursery:
                if rng.random() < 0.8:
                    nursery.start_soon(self._quietly_read, stream)
                for correlation in range(1, rng.randint(2, 30)):
                    pool = corpus.produce if rng.random() < 0.6 else corpus.others
                    frame = script.pop(0) if script else rng.choice(pool)
                    if not script and rng.random() < 0.05:
                        frame = managing.request(rng)
                    if rng.random() < 0.05:
                        frame = request(9, {"free": [0]}, values=(bytes(rng.choice((40_000, 300_000))),))
                    frame = numbered(frame, correlation)
                    if rng.random() < broken:
                        frame = frames.mutate(rng, frame, rng.choice(pool))
                    self.cost.inputs += 1
                    try:
                        await self._say(stream, frame)
                    except GONE:
                        break
                if rng.random() < 0.3 and stream is below:
                    await below.send_eof()
                if rng.random() < 0.5:
                    nursery.cancel_scope.cancel()

    async def _quietly_read(self, stream: Any) -> None:
        with suppress(*GONE, ssl.SSLError):
            while await stream.receive_some(self.rng.choice((5, 1000, 65_536))):
                await trio.lowlevel.checkpoint()

    async def _say(self, stream: Any, data: bytes) -> None:
        budget = self.worker.configured_plane.connections.reactor.budget
        self.play.expect(
            "answer size",
            budget.used_bytes <= budget.limit_bytes + SLACK,
            f"{budget.used_bytes} of {budget.limit_bytes} bytes",
        )
        if self.rng.random() < 0.2:
            at = self.rng.randint(0, len(data))
            await stream.send_all(data[:at])
            await trio.lowlevel.checkpoint()
            data = data[at:]
        await stream.send_all(data)


async def _read(stream: trio.SocketStream, serve: Callable[[bytes], Awaitable[None]], most: Callable[[], int]) -> None:
    data = bytearray()
    while piece := await stream.receive_some(most()):
        data += piece
        for frame in frames.split(bytes(data)):
            del data[: len(frame)]
            await serve(frame)


async def _exactly(stream: Any, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise trio.BrokenResourceError(f"it ended {size - len(data)} bytes before its answer")
        data += piece
    return bytes(data)


def _end(stream: trio.SocketStream, *, reset: bool) -> None:
    if reset and stream.socket.fileno() >= 0:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def gather(seed: int, cost: Cost) -> None:
    """Play one crowd.

    Raises:
        Violation, or what came out of the gateway that mustn't.
    """

    async def run(faults: Faults) -> None:
        with folder() as path:
            await Crowd(seed, cost, faults, path).run()

    try:
        with replayable() as faults:
            trio.run(run, faults)
    except BaseException as error:
        raise only(error) from None
