# A worker on stage with everything on: settings, thresholds, quotas, resource groups and storage as control would send
# them, sessions fed with bytes as links feed them, time that passes when the play says so (player.py). The worker is
# the real one with its own tasks by the clock, and so is its control (control.py), at the other end of a real channel;
# no client and no broker has a socket.
#
# A play is a list of operations (`Op`) that says everything: saved, cut down and played again it does the same. After
# each of them the rules below are looked at; a broken one is a `Violation`. What the rules are judged by is independent
# of the gateway: frames are told apart by their sizes, Produce is read by frames.offered.

from __future__ import annotations

import gc
import re
import struct
import sys
import time
import traceback
import types
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast
from unicodedata import category

import msgspec
import trio
from trio._core import _run as _scheduler
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.channel import (
    AdminQuery,
    BrokerTable,
    DemandReport,
    GroupSnapshot,
    LogMessage,
    QuotaSnapshot,
    StorageSnapshot,
    ThresholdPolicy,
    TopicSnapshot,
    ToWorker,
    UsageInterval,
    WorkerRates,
    WorkerSettings,
)
from gateway.data.pending.pending import LOCAL
from gateway.data.session.gate import ProduceGate
from gateway.data.session.session import ClientSession
from gateway.data.session.termination import SaslTermination
from gateway.data.shared.budget import MemoryBudget
from gateway.data.shared.errors import AuthenticationFailed, TooManyConnections, UpstreamError
from gateway.data.shared.ledger import UsageLedger
from gateway.data.shared.worker_state import WorkerState
from gateway.data.worker.worker import DataWorker
from gateway.worker_config import WorkerLimits
from policies.engine import PolicyEngine
from policies.meters.meter import RateMeter
from policies.quotas.quota_limiters import QuotaLimiters
from policies.usage import NOTES
from policies.verdict import DELAY, REJECT, Verdict
from protocol import api
from protocol.framing import check_request_head
from protocol.produce import produce_request
from protocol.wire import MalformedFrame
from tests.gateway.data.play import account
from tests.hostile.fuzzing.control import Control, Ended, Faults, folder, replayable
from tests.hostile.traffic.frames import SASL, batch_bytes, offered, split

MAX_UP = 4 * 2**20  # bytes of a message to control
MAX_TEXT = 1000  # characters of a line for the log
BOUNDS = {"topic": 249, "client_id": 256, "principal": 256, "software": 128}
FORWARDED = ("accepted", "duplicate", "unacknowledged", "errored", "unanswered")  # of policies.usage.OUTCOMES
OWN_ID = 0x7FFF0000  # correlation ids of the gateway's own requests begin here
ANONYMOUS = "User:ANONYMOUS"
SETTLES = 50  # rounds in which everything comes to rest
_SNAPSHOTS = (
    WorkerSettings,
    BrokerTable,
    TopicSnapshot,
    ThresholdPolicy,
    QuotaSnapshot,
    GroupSnapshot,
    StorageSnapshot,
)
_SHARED = (
    WorkerState,
    MemoryBudget,
    PolicyEngine,
    UsageLedger,
    QuotaLimiters,
    RateMeter,
    type,
    types.FunctionType,
    types.ModuleType,
)

MAX_PRINCIPAL = 1024 + len("User:")


class Violation(AssertionError):
    """A rule is broken."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")


class Op(msgspec.Struct, array_like=True, omit_defaults=True):
    """One step of a play.

    control: `data` says what it is like (Start), before anything else, and when it is to be killed and started again.
    down: `data` is a message to the worker. open:
    connection `number` to broker `value`; `data`: the principal that its certificate makes. client, broker: these bytes
    arrive from that side; a broker's are not what Kafka would say if `value` is set. time: `value` seconds pass. gone,
    drain, short: what a link would tell the session.
    """

    what: str
    number: int = 0
    data: bytes = b""
    value: float = 0.0


class Start(msgspec.Struct, array_like=True):
    """What a control is started with."""

    tells_brokers: bool = False
    max_reauth_ms: int = 0


_decode_down = msgspec.msgpack.Decoder(ToWorker).decode
_decode_start = msgspec.msgpack.Decoder(Start).decode


class Plugin:
    """A policy of the operator's own that has something to say about some."""

    def decide(
        self,
        node_id: int,
        topic: bytes,
        partition: int,
        producer_id: int,
        size: int,
        principal: str,
        client_id: str,
        now: float,
    ) -> Verdict | None:
        if partition == 3:
            return Verdict(REJECT if size % 2 else DELAY, "own", text="the operator's own", throttle_ms=100)
        return None


class Cost:
    """What handling bytes took: process time, and what one connection held."""

    def __init__(self) -> None:
        self.inputs = 0  # that sessions were given, of clients and brokers
        self.bytes = 0
        self.seed = 0  # of the play in hand
        self.slowest = (0.0, 0)  # seconds of one call, and of which play
        self.dearest = (0.0, 0)  # seconds per MB, of calls with at least DEAR_BYTES
        self.most_held = 0
        self.ends: Counter[str] = Counter()  # how connections ended

    DEAR_BYTES = 20_000

    def add(self, seconds: float, size: int) -> None:
        self.bytes += size
        if seconds > self.slowest[0]:
            self.slowest = seconds, self.seed
        if size >= self.DEAR_BYTES and seconds / size * 1e6 > self.dearest[0]:
            self.dearest = seconds / size * 1e6, self.seed

    def merge(self, other: Cost) -> None:
        self.inputs += other.inputs
        self.bytes += other.bytes
        self.slowest = max(self.slowest, other.slowest)
        self.dearest = max(self.dearest, other.dearest)
        self.most_held = max(self.most_held, other.most_held)
        self.ends += other.ends


class Connection:
    """A session, fed as links.py feeds it. `forwarded`: frames that went upstream since somebody has looked."""

    def __init__(self, number: int, session: ClientSession) -> None:
        self.number = number
        self.session = session
        self.unread = b""  # in the socket while the session holds
        self.unhandled = b""
        self.is_parked = False
        self.is_finishing = False  # behind a malformed frame
        self.answers_left = b""
        self.owed: deque[int] = deque()  # correlation ids, in the order of the requests
        self.forwarded: list[bytes] = []
        self.heard: list[bytes] = []  # answers while its SASL ends at the gateway and hasn't ended, likewise
        self.head = b""  # of the answer that is on its way to the client
        self.left = 0  # bytes of it that are still to come
        self._part = b""
        self.is_broker_honest = True
        self.may_be_authenticated = False
        self.asked_sasl: set[int] = set()  # correlation ids of SaslAuthenticate that went upstream

    @property
    def ends_here(self) -> bool:
        """Its SASL ends at the gateway."""
        return isinstance(self.session.authentication, SaslTermination)

    def hear(self, data: bytes) -> None:
        """Keep what the client needs for its next step."""
        if self.ends_here and not self.session.authentication.is_authenticated:
            self._part += data
            whole = split(self._part)
            self.heard += whole
            self._part = self._part[sum(map(len, whole)) :]

    @property
    def is_silent(self) -> bool:
        """Some requests of this connection are not answered any more."""
        return self.session.hold.is_abandoned


class Play:
    """Performs operations. `offered` and `sent` (upstream, whole batches) count bytes as the rules see them, `outcomes`
    as the worker says.
    """

    def __init__(
        self, worker: DataWorker, cost: Cost, faults: Faults | None = None, folder: Path | None = None
    ) -> None:
        """`faults`: of its control, which keeps its files in `folder`."""
        self.worker = worker
        self.cost = cost
        self.control: Control | None = None
        self._faults = faults
        self.folder = folder
        self.nursery: trio.Nursery | None = None
        self.connections: dict[int, Connection] = {}
        self.offered = 0
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self.messages: deque[Any] = deque()  # to control, not looked at yet

    # --- control ------------------------------------------------------------------------------------------------------

    def begin(self, control: Control, nursery: trio.Nursery) -> None:
        """That control is there from here on."""
        self.control = control
        nursery.start_soon(control.run, self.worker, self.messages.append, nursery)

    async def settle(self) -> None:
        """Let everything come to rest that messages between worker and control lead to.

        Raises:
            Ended, Violation: see `look_at_control`.
        """
        for _ in range(SETTLES):
            await wait_all_tasks_blocked()
            self.look_at_control()
            for one in list(self.connections.values()):
                self._resume(one)
            if not self.messages:
                return
            self.look_at_messages()
        raise Violation("control", "it never comes to rest")

    def look_at_control(self) -> None:
        """
        Raises:
            Ended: it would have come to its end.
            Violation: it has had an error of its own, or owes somebody an answer.
        """
        control = self.control
        if control is None:
            return
        if control.ended is not None:
            raise Ended(first_of(control.ended)) from control.ended
        if self._faults is not None and self._faults.found:
            found = self._faults.found.pop()
            raise Violation("error of its own", f"{found.splitlines()[-1]}\n{found}")
        for where in control.errors[:1]:
            raise Violation("error of its own", where)
        for ask in control.late[:1]:
            raise Violation("unanswered", f"{ask.mechanism or 'admin request'} {ask.request[:60]!r}")
        for ask in control.repeated[:1]:
            raise Violation("asked again", f"{ask.mechanism or 'admin request'} {ask.request[:60]!r}")
        for principal in control.principals:
            is_printable = all(char.isprintable() or category(char) == "Zs" for char in principal)
            self.expect("names", len(principal) <= MAX_PRINCIPAL and is_printable, f"{principal[:60]!r}")

    async def ask_well(self) -> None:
        """Whatever was asked, a good client is answered.

        Raises:
            Violation: it isn't.
        """
        if self.control is not None:
            self.control.ask_well()
            await self.settle()
            self.expect("others", self.control.answers_well, "a good client's questions are not answered well")

    def look_at_messages(self) -> None:
        while self.messages:
            message = self.messages.popleft()
            size = len(msgspec.msgpack.encode(message))
            self.expect("message size", size <= MAX_UP, f"{type(message).__name__} of {size} bytes")
            match message:
                case UsageInterval():
                    for row in message.rows:
                        if row.outcome not in NOTES:
                            self.outcomes[row.outcome] += row.bytes
                        for name, most in BOUNDS.items():
                            value = getattr(row, name)
                            self.expect("names", len(value) <= most, f"{name} of {len(value)} characters")
                case WorkerRates():
                    topics = (topic.topic for broker in message.brokers for topic in broker.topics)
                    clients = (quota.client_id for quota in message.quotas if quota.client_id)
                    self._look_at_names(chain(topics, clients), BOUNDS["client_id"])
                    self._look_at_names((quota.user for quota in message.quotas if quota.user), MAX_PRINCIPAL)
                    for text in message.warnings:
                        self._look_at_text(text)
                case DemandReport():
                    self._look_at_names(message.demands, 2 * BOUNDS["client_id"] + 100)
                case LogMessage():
                    self._look_at_text(message.text)
                case AdminQuery():
                    self._look_at_names((message.principal,), MAX_PRINCIPAL)

    def _look_at_names(self, names: Any, most: int) -> None:
        for name in names:
            self.expect("names", len(name) <= most, f"{len(name)} characters: {name[:50]!r}")

    def _look_at_text(self, text: str) -> None:
        self.expect("log text", len(text) <= MAX_TEXT and text.isprintable(), f"{len(text)} characters: {text[:80]!r}")

    def expect(self, rule: str, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(rule, what)

    # --- operations ---------------------------------------------------------------------------------------------------

    @property
    def world(self) -> WorkerState:
        return self.worker.configured_plane.world

    async def do(self, op: Op, clock: MockClock) -> None:
        """Perform one operation; what it is about may be gone when a play was cut down: then nothing happens.

        Raises:
            Violation: a rule is broken.
        """
        connection = self.connections.get(op.number)
        if op.what == "time":
            clock.jump(op.value)
            await self.settle()
        elif op.what == "control":
            assert self.nursery is not None
            assert self.folder is not None
            start, before = _decode_start(op.data), self.control
            if before is not None:
                await before.kill()
            self.begin(Control(self.folder, start.tells_brokers, start.max_reauth_ms, before=before), self.nursery)
            await self.settle()
        elif op.what == "down":
            message = _decode_down(op.data)
            if isinstance(message, _SNAPSHOTS) and self.control is not None:
                self.control.workers.publish_snapshot(message)
                await self.settle()
            else:
                self.worker.handle_control_message(message)
        elif op.what == "open":
            if connection is None:
                self._open(op)
        elif connection is not None:
            self._do(connection, op)
        if self.messages:
            await self.settle()

    def _open(self, op: Op) -> None:
        session = ClientSession(self.world, int(op.value), account(), trio.current_time())
        session.admin_requests.peer = f"10.0.0.{op.number % 250}:{op.number}"
        try:
            if op.data:
                session.authentication.accept_certificate(op.data.decode())
        except TooManyConnections:
            session.close()
        else:
            self.connections[op.number] = Connection(op.number, session)

    def _do(self, connection: Connection, op: Op) -> None:
        session = connection.session
        match op.what:
            case "client":
                connection.unread += op.data
                self._resume(connection)
            case "broker":
                connection.is_broker_honest = connection.is_broker_honest and not op.value
                self._answered(connection, op.data)
            case "gone":
                session.hold.is_client_gone = True
            case "drain":
                session.hold.is_draining = True
                self._resume(connection)
            case "short":
                session.hold.is_memory_short = not session.hold.is_memory_short
            case "close":
                self._close(connection, "closed")

    async def finish(self) -> None:
        """End everything; the sums must agree then.

        Raises:
            Violation: they don't, or a connection held too much.
        """
        await self.ask_well()
        for connection in list(self.connections.values()):
            self._close(connection, "closed")
        self.worker.configured_plane.intervals.close_interval(final=True)
        await self.settle()
        told = sum(self.outcomes.values())
        if told != self.offered:
            raise Violation("accounts", f"{self.offered} bytes were offered, counted are {told}: {dict(self.outcomes)}")
        told = sum(self.outcomes[outcome] for outcome in FORWARDED)
        if told != self.sent:
            raise Violation("accounts", f"{self.sent} bytes were forwarded, counted are {told}: {dict(self.outcomes)}")

    # --- a connection -------------------------------------------------------------------------------------------------

    def _resume(self, connection: Connection) -> None:
        """Let the session handle what waits for it, where a link would."""
        session = connection.session
        now = trio.current_time()
        while not connection.is_finishing:
            if connection.is_parked:
                if not session.may_resume(now):
                    return
            elif not connection.unread:
                return
            data = connection.unhandled + connection.unread
            self.cost.inputs += bool(connection.unread)
            connection.unread = b""
            if not self._handle(connection, data, now) or connection.is_parked:
                return

    def _handle(self, connection: Connection, data: bytes, now: float) -> bool:
        """Show the session these bytes. False: the connection handles nothing further."""
        session, world = connection.session, self.world
        buf = bytearray(data)
        before = world.ledger.request_count
        guarded = self._guarded(connection)
        malformed = None
        began = time.process_time()
        pos = 0
        try:
            pos = session.on_client_bytes(buf, 0, len(buf), now)
            if pos < len(buf) and not session.hold.held_until:
                check_request_head(buf, pos, len(buf), world.limits.max_request_bytes)
        except MalformedFrame as error:
            malformed = error
        self.cost.add(time.process_time() - began, len(data))
        upstream = b"".join(session.to_upstream)
        session.to_upstream.clear()
        many = world.ledger.request_count - before
        handled = split(data)[:many]
        self._forwarded(connection, handled, upstream)
        for frame in handled:
            self._note_handled(connection, frame)
        if isinstance(malformed, AuthenticationFailed) and len(data) > pos + 12:  # the client has been told
            connection.owed += (struct.unpack_from(">i", frame, 8)[0] for frame in split(data)[many : many + 1])
        self._told_client(connection)
        self._check_gate(session.gate)
        still = None if guarded is None else self._guarded(connection)  # control may have let it in meanwhile
        if still is not None:
            self.expect("before authentication", guarded == still, "it was counted")
        if malformed is not None:
            world.log("warning", f"connection closed: {malformed}")
            connection.is_finishing = True
            connection.is_parked, connection.unhandled = False, b""
            if session.is_idle:
                self._close(connection, "malformed")
            return False
        if sum(map(len, handled)) != pos:
            raise Violation("requests", f"{pos} bytes were handled, {len(handled)} requests counted")
        connection.unhandled = bytes(buf[pos:])
        connection.is_parked = bool(buf[pos:]) and bool(session.hold.held_until or session.in_flight.is_full)
        return True

    def _note_handled(self, connection: Connection, frame: bytes) -> None:
        key, _, correlation = struct.unpack_from(">hhi", frame, 4)
        if key == api.PRODUCE:
            offer = offered(frame)
            self.offered += offer.size
            if not offer.acks:
                return
        connection.owed.append(correlation)

    def _forwarded(self, connection: Connection, handled: list[bytes], upstream: bytes) -> None:
        """What goes upstream was sent by the client, in this order, but for what the gateway asks itself."""
        frames = split(upstream)
        if sum(map(len, frames)) != len(upstream):
            raise Violation("forwarded", f"{len(upstream)} bytes are not whole frames")
        sent = iter(handled)
        for frame in frames:
            if not self._is_own(connection, frame):
                for one in sent:
                    if one == frame or _is_part(frame, one):
                        break
                else:
                    raise Violation("forwarded", f"nobody has sent {frame[:60]!r}")
            key, _, correlation = struct.unpack_from(">hhi", frame, 4)
            if key == api.PRODUCE:
                self._check_produce(frame)
            if key == api.SASL_AUTHENTICATE and not connection.ends_here:
                connection.asked_sasl.add(correlation)
            if self._is_guarded(connection):
                self.expect("before authentication", key in SASL, f"API key {key} was forwarded")
        connection.forwarded += frames

    def _is_own(self, connection: Connection, frame: bytes) -> bool:
        key, version, correlation = struct.unpack_from(">hhi", frame, 4)
        is_lookup = key == api.METADATA and version in (1, 12) and correlation >= OWN_ID
        return is_lookup or (self.control is not None and frame in self.control.told)

    def _check_produce(self, frame: bytes) -> None:
        offer = offered(frame)
        self.sent += sum(batch_bytes(records) for _, _, records in offer.parts)
        world = self.world
        by_id = offer.version >= api.PRODUCE_TOPIC_IDS
        for topic, _, _ in offer.parts:
            name = world.cluster.topic_ids.get(topic) if by_id else topic
            if name is None:
                limits = world.engine.groups.has_groups or world.protected_topics
                self.expect("nameless", not limits, f"forwarded: {topic!r}")
            else:
                self.expect("protected", name not in world.protected_topics, f"forwarded: {name!r}")

    def _check_gate(self, gate: ProduceGate) -> None:
        names, ids = self.world.protected_topics, self.world.cluster.topic_ids
        if names:
            self.expect("protected", names.isdisjoint(gate.topics.by_name), "in gate.topics.by_name")
            is_free = all(ids.get(topic_id) not in names for topic_id in gate.topics.by_id)
            self.expect("protected", is_free, "in gate.topics.by_id")

    def _is_guarded(self, connection: Connection) -> bool:
        if connection.ends_here:
            authentication = connection.session.authentication
            if authentication.is_authenticated and authentication.sasl_demand.wants_sasl:
                principal = connection.session.client.principal
                self.expect("identity", self.control is not None and principal in self.control.principals, principal)
            return authentication.is_outstanding
        return self.world.settings.upstream_sasl and not connection.may_be_authenticated

    def _guarded(self, connection: Connection) -> tuple[int, ...] | None:
        """What nothing may change before authentication; None where there is none to wait for."""
        if not self._is_guarded(connection):
            return None
        gate, ledger = connection.session.gate, self.world.ledger
        return gate.broker.total.uncounted, len(gate.topics.by_name), len(gate.topics.by_id), ledger.size_bytes

    def _answered(self, connection: Connection, data: bytes) -> None:
        session = connection.session
        self.cost.inputs += 1
        data = connection.answers_left + data
        self._note_sasl(connection, data)
        buf = bytearray(data)
        began = time.process_time()
        failed = False
        try:
            pos = session.on_upstream_bytes(buf, 0, len(buf), trio.current_time())
            connection.answers_left = bytes(buf[pos:])
        except (UpstreamError, MalformedFrame) as error:
            self.world.log("error", f"broker sent {error}: connection closed")
            failed = True
            if connection.is_broker_honest and type(error) in (UpstreamError, MalformedFrame):  # not one of who it is
                raise Violation("answers", f"of an honest broker: {error}") from error
        self.cost.add(time.process_time() - began, len(data))
        self._told_client(connection)
        if failed:
            self._close(connection, "upstream")
        elif connection.is_finishing and session.is_idle:
            self._close(connection, "malformed")
        else:
            if session.in_flight.oldest_kind == LOCAL:
                raise Violation("answers", "one of the gateway's own waits for nothing")
            if session.is_idle and not connection.is_silent and connection.owed:
                raise Violation("answers", f"nothing is under way, and {len(connection.owed)} answers are owed")
            self._resume(connection)

    def _note_sasl(self, connection: Connection, data: bytes) -> None:
        """Whatever might be taken for an acceptance lets this connection do what only others may."""
        if connection.asked_sasl and not connection.may_be_authenticated:
            for correlation in connection.asked_sasl:
                for found in re.finditer(re.escape(struct.pack(">i", correlation)), data):
                    if b"\0\0" in data[found.end() : found.end() + 8]:
                        connection.may_be_authenticated = True

    def _told_client(self, connection: Connection) -> None:
        """Whole answers only, each for the oldest request that is owed one."""
        to_client = connection.session.to_client
        if not to_client:
            return
        data = b"".join(to_client)
        to_client.clear()
        connection.hear(data)
        while data:
            if connection.left:
                passed = min(connection.left, len(data))
                connection.left -= passed
                data = data[passed:]
                continue
            missing = 8 - len(connection.head)
            connection.head, data = connection.head + data[:missing], data[missing:]
            if len(connection.head) < 8:
                return
            size, correlation = struct.unpack(">ii", connection.head)
            connection.head, connection.left = b"", size - 4
            if not connection.owed or connection.owed.popleft() != correlation:
                raise Violation("answers", f"one with correlation id {correlation} is not the next that is owed")

    def _close(self, connection: Connection, why: str) -> None:
        session = connection.session
        self.cost.ends[why] += 1
        if self.cost.ends.total() % 64 == 1:
            self.cost.most_held = max(self.cost.most_held, held_bytes(session))
        guarded = self._guarded(connection)
        parked = None
        if connection.is_parked:
            buf = bytearray(connection.unhandled)
            parked = (buf, 0, len(buf))
            if not session.authentication.is_outstanding:
                self.offered += _discarded(connection.unhandled, self.world.limits)
        session.close(parked)
        if guarded is not None:
            self.expect("unauthenticated end", guarded == self._guarded(connection), "it was counted")
        del self.connections[connection.number]


def only(error: BaseException) -> BaseException:
    """What is left when groups of one are opened."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def first_of(error: BaseException) -> str:
    """What a control died of, and where."""
    one = only(error)
    at = traceback.extract_tb(one.__traceback__)[-1]
    return f"{type(one).__name__} at {Path(at.filename).name}:{at.lineno} {at.name}: {str(one)[:200]}"


def _is_part(frame: bytes, sent: bytes) -> bool:
    """Whether `frame` is what the gateway may make of a request: Produce without some partitions, a smaller Fetch."""
    key = struct.unpack_from(">h", sent, 4)[0]
    if frame[4:12] != sent[4:12]:
        return False
    if key in (api.FETCH, api.SHARE_FETCH) and len(frame) == len(sent):
        changed = [at for at, (one, other) in enumerate(zip(frame, sent, strict=True)) if one != other]
        return changed[-1] - changed[0] < 8
    if key != api.PRODUCE:
        return False
    whole, part = offered(sent), offered(frame)
    rest = iter(whole.parts)
    return part.head == whole.head and bool(part.parts) and all(one in rest for one in part.parts)


def _discarded(data: bytes, limits: WorkerLimits) -> int:
    """Bytes offered by the requests that a connection had read and not handled; none behind one that is broken."""
    size = 0
    for frame in split(data):
        try:
            check_request_head(frame, 0, len(frame), limits.max_request_bytes)
            key, version = struct.unpack_from(">hh", frame, 4)
            if key == api.PRODUCE and 3 <= version <= 13:
                produce_request.skim_request(
                    frame, 4, len(frame), limits.max_partitions_per_request
                )  # says only whether it may be read
                size += offered(frame).size
        except MalformedFrame:
            break
    return size


def held_bytes(session: ClientSession) -> int:
    """About what a session keeps for itself, in bytes of Python objects."""
    seen: set[int] = set()
    found = [cast("object", session)]
    size = 0
    while found:
        one = found.pop()
        if id(one) in seen or (one is not session and isinstance(one, _SHARED)):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        found += gc.get_referents(one)
    return size


# --- performing -------------------------------------------------------------------------------------------------------


def tasks_of(worker: DataWorker) -> tuple[Callable[[], Awaitable[None]], ...]:
    """What a worker does by the clock."""
    plane = worker.configured_plane
    return (plane.periodic_tasks.run, plane.storage_follower.run)


def perform(next_op: Callable[[Play], Op | None], cost: Cost) -> list[Op]:
    """Play what `next_op` says, until it says None, and finish. Returns the operations.

    Raises:
        Violation, or whatever came out of the gateway that mustn't: with the operations so far as `trace`.
    """
    trace: list[Op] = []

    async def run(faults: Faults) -> None:
        worker = DataWorker(cast("Any", None), 0)
        try:
            with folder() as path:
                play = Play(worker, cost, faults, path)
                async with trio.open_nursery() as play.nursery:
                    worker.handle_control_message(
                        WorkerSettings(1, "gw")
                    )  # something that tasks by the clock can begin with
                    for task in tasks_of(worker):
                        play.nursery.start_soon(task)
                    while (op := next_op(play)) is not None:
                        trace.append(op)
                        await play.do(op, clock)
                    await play.finish()
                    play.nursery.cancel_scope.cancel()
        finally:
            with suppress(OSError):
                worker.configured_plane.connections.reactor._poller.close()

    clock = MockClock()
    _scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # as Hypothesis does: the same play, whoever else has played
    _scheduler._r.seed(0)
    try:
        with replayable() as faults:
            trio.run(run, faults, clock=clock)
    except BaseException as error:
        error = only(error)
        error.trace = trace  # type: ignore[attr-defined]
        raise error from None
    return trace


def again(ops: list[Op]) -> None:
    """Play these operations once more."""
    rest = iter(ops)
    perform(lambda _: next(rest, None), Cost())
