# The core of one client connection: bytes in, bytes out, no socket, no clock, no await.
#
# The link (links.py) feeds it what it has read and sends what it leaves in `to_upstream` and `to_client`:
#   on_client    requests. What is admitted stays in one untouched run of the caller's buffer; a run is cut only where a
#                request is stripped of partitions, answered here, or has to wait.
#   on_upstream  answers, matched with `pending` in order. Untouched answers stay in one run as well.
# A session that has to wait (a mute, a topic id without a name) stops before the request in question and says until
# when in `hold_until`; the link parks the rest and calls again. What may pass and how it is counted is the gate's
# (gate.py). `now` is the link's monotonic clock in seconds.

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from gateway.data import admin_turn
from gateway.data.admin_turn import AdminTurn
from gateway.data.budget import Unaccounted
from gateway.data.fetches import Fetches
from gateway.data.gate import Gate
from policies.usage import DELAYED
from policies.verdict import PROTECTED_TOPIC, STORAGE_PAUSE, UNKNOWN_TOPIC_ID
from protocol import api, fetch_request, produce_request, produce_response, rewrite
from protocol.fetch_response import FetchMeter
from protocol.framing import (
    ANSWER_HEAD,
    MAX_API_KEY,
    MIN_REQUEST,
    REQUEST_HEAD,
    TooLarge,
    check_request_head,
    largest,
)
from protocol.identity import UNKNOWN, AmbiguousIdentity, Claim, Sasl, accepted, software
from protocol.pending import ADMIN, CAP, LOCAL, OURS, PASS, PRODUCE, REWRITE, SASL, STREAM, Entry, Pending
from protocol.stream import EndpointHider, has_endpoints
from protocol.wire import MalformedFrame, TooManyTags, int16

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.channel import Answer
    from gateway.data.budget import Account
    from gateway.data.world import World
    from policies.decision import Decision, Refused
    from protocol.produce_request import Partition

MAX_PENDING = 1000  # requests in flight on one connection before it is no longer read; clients send 1 to 5
PARTITION_BYTES = 200  # what one partition of a request keeps until its answer, about
FEW_PARTITIONS = 16  # so many are not worth counting
MAX_UNAUTHENTICATED = 10  # requests in flight before authentication: clients send one at a time
# What a broker takes before authentication (SaslServerAuthenticator): ApiVersions and the two steps of SASL (KIP-152).
BEFORE_AUTHENTICATION = frozenset({api.API_VERSIONS, api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE})
# Errors in answers to SaslHandshake that only a broker gives that wants SASL: none, and UNSUPPORTED_SASL_MECHANISM. One
# that doesn't says ILLEGAL_SASL_STATE.
HANDSHAKE_ANSWERED = frozenset({0, 33})
NEVER_PASSES = frozenset({PROTECTED_TOPIC, UNKNOWN_TOPIC_ID})  # however long it waits: acks=0 is not held for it
MAX_MUTE_S = 10.0  # franz-go gives a request up after 20 s, others after 30 s (docs/clients.md) …
MAX_WAIT_S = 15.0  # … so that no request waits longer than this in all, those queued before it included
MIN_HOLD_S = 0.05
LARGEST = 2**31 - 1
LOOK_AGAIN_S = 1.0  # at acks=0 in a pause: memory may have become short
LOOKUP_S = 1.0  # for asking the broker about a topic id that nobody here knows
ANSWERED = 1e-9  # in place of the time until which an answer is waited for
LOOKUP_VERSION = 12  # of Metadata: the first that can be asked by topic id
CONNECTION_LOST = "connection-lost"  # policies.usage.REASONS
ACKS0_LIMIT = "acks0-limit"
FETCHES = (api.FETCH, api.SHARE_FETCH)
BY_QUOTA, BY_GROUP = 1, 2  # what a Fetch answer is charged to, as bits of its entry's fifth place
THROTTLE = struct.Struct(">i")
FIRST_LOOKUP_ID = 0x7FFF0000  # correlation ids of our own requests; a few of them, in turn
LOOKUP_IDS = 0x8000

_BY_ID = api.PRODUCE_TOPIC_IDS
_OLDEST_PRODUCE, _NEWEST_PRODUCE = api.FLOORS[api.PRODUCE], api.CAPS[api.PRODUCE]


class UpstreamError(Exception):
    """The broker said something that can't be matched with what was asked: both sides are closed."""


class Excluded(UpstreamError):
    """What the broker accepted, the gateway doesn't: it is neither's mistake."""


class IdentityChanged(Excluded):
    """The broker accepted somebody else on a connection that it had accepted somebody on: it is closed."""


class TooManyConnections(Excluded):
    """Its principal has as many connections as one may have."""


class Unauthenticated(MalformedFrame):
    """A request that has to come behind authentication, or makes no sense before it."""


def close_reason(error: Exception) -> str:
    """What the end of a connection because of `error` is counted under: one of gateway.channel.COUNTS."""
    for kind, reason in _CLOSE_REASONS.items():
        if isinstance(error, kind):
            return reason
    return "disconnects_upstream" if isinstance(error, UpstreamError) else "disconnects_malformed"


_CLOSE_REASONS: dict[type[Exception], str] = {
    Unauthenticated: "disconnects_unauthenticated",
    AmbiguousIdentity: "disconnects_identity",
    IdentityChanged: "disconnects_identity",
    TooManyConnections: "disconnects_principal_limit",
    TooLarge: "disconnects_too_large",
    produce_request.TooManyPartitions: "disconnects_too_large",
    TooManyTags: "disconnects_too_large",
}


class Session:
    """One client connection, joined to one upstream connection of broker `node_id`.

    Attributes:
        to_upstream, to_client: what must be sent next, in order: memoryviews of the caller's buffer, or bytes. The link
            empties them after every call.
        hold_until: 0.0, or until when the request at the head of the unread input must wait.
        client_gone: the link saw, after a pause, that the client has closed. What it doesn't wait for any more is
            discarded: it has been sent again elsewhere, and would be written twice. acks=0 is forwarded.
        draining: no new requests: they are discarded unforwarded (acks=0 passes), so that clients send them elsewhere.
        drained_at: when the client's socket was last seen empty: no unread request is older.
        memory_short: others wait for memory: what is held here without an end has to go.
        paused_since: 0.0, or since when the request at the head is held because a disk is full.
        turn: None, or the admin request at the head, which control answers.
        account: the link's: what memory is charged to.
        authenticated: the broker has accepted who this is (SASL). Where brokers want that, nothing else passes before.
        is_waiting: nothing more may be read before an answer: to a step of SASL, or, while memory is short, to a
            request of many partitions.
        peer, wake: the link's: the client's address, and what to call when a request needn't wait any longer.
    """

    __slots__ = (
        "_delayed",
        "_fetch_wait",
        "_fetches",
        "_hider",
        "_holds",
        "_lookup_deadline",
        "_lookup_id",
        "_lookup_until",
        "_meter",
        "_skipped",
        "_stream_left",
        "_substitute",
        "_throttle_at",
        "_turn_bytes",
        "account",
        "authenticated",
        "client_gone",
        "drained_at",
        "draining",
        "fetch_mute_until",
        "gate",
        "hold_until",
        "is_waiting",
        "memory_short",
        "mute_until",
        "paused_since",
        "peer",
        "pending",
        "sasl",
        "to_client",
        "to_upstream",
        "turn",
        "wake",
        "world",
    )

    def __init__(self, world: World, node_id: int, now: float = 0.0) -> None:
        self.world = world
        self.account: Account | Unaccounted = Unaccounted()
        self.authenticated = False
        self.is_waiting = False
        self.gate = Gate(world, node_id)
        self.pending = Pending()
        self.to_upstream: list[Any] = []
        self.to_client: list[Any] = []
        self.sasl: Sasl | None = None
        self.hold_until = 0.0
        self.mute_until = 0.0
        self.fetch_mute_until = 0.0
        self.drained_at = now
        self.client_gone = False
        self.draining = False
        self.memory_short = False
        self.paused_since = 0.0
        self.turn: AdminTurn | None = None
        self._turn_bytes = 0
        self.peer = ""
        self.wake: Callable[[], None] = _nothing
        self._delayed = False
        self._holds = False  # the acks=0 request at the head waits already
        self._skipped = False
        self._stream_left = 0  # bytes of the answer in progress that are still to come
        self._hider: EndpointHider | None = None
        self._meter: FetchMeter | None = None  # the same object, where the answer in progress is metered
        self._fetches: Fetches | None = None
        self._fetch_wait = (0.0, 0.0)  # what quotas say about that answer: until when, and as observed until when
        self._throttle_at = -1  # where its throttle time is in the buffer in hand, if all of it is there
        self._substitute: bytes | None = None  # goes upstream in place of the request in hand
        self._lookup_id = FIRST_LOOKUP_ID
        self._lookup_deadline = 0.0  # of one look, and of all for the request in hand
        self._lookup_until = 0.0

    # --- requests -----------------------------------------------------------------------------------------------------

    def on_client(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Handle the whole requests in buf[pos:end]; return where the first unhandled byte is.

        Raises:
            MalformedFrame: the connection must be closed. Requests before the broken one are handled, it isn't.
        """
        world, gate, entries = self.world, self.gate, self.pending.entries
        if world.wants_sasl and not self.authenticated:
            return self._before_authentication(buf, pos, end, now)
        if gate.epoch != world.ledger.epoch:
            gate.renew()
        if gate.lines_version != world.quotas.version:
            gate.find_lines(now)
        self.hold_until = 0.0
        if self.is_waiting:
            return pos
        muted = self.mute_until > now and not self.draining
        special = (
            gate.limited or self.client_gone or self.draining or world.engine.guards_storage or bool(world.plugins)
        )
        max_bytes, most = world.settings.max_request_bytes, world.settings.max_partitions_per_request
        by_name, by_id, total, fence = gate.meters, gate.meters_by_id, gate.broker.total, gate.fence
        asks = gate.rejected.asks
        read_head, skim = REQUEST_HEAD.unpack_from, produce_request.skim
        run = pos
        produced = 0
        try:
            while end - pos >= 12:
                size, key, version, correlation = read_head(buf, pos)
                stop = pos + 4 + size
                if not MIN_REQUEST <= size <= max_bytes or not 0 <= key <= MAX_API_KEY:
                    check_request_head(buf, pos, end, max_bytes)
                if stop > end or len(entries) >= MAX_PENDING:
                    break
                if key == 0:
                    if muted:
                        self.hold_until = self.mute_until
                        break
                    if not _OLDEST_PRODUCE <= version <= _NEWEST_PRODUCE:
                        raise _unspoken(key, version)
                    _, acks, client_id, _, parts = skim(buf, pos + 4, stop, most)
                    if client_id != gate.client_id:
                        gate.identify(client_id)
                        gate.find_lines(now)
                        special = special or gate.limited
                    # The fast way: one partition of a topic that is known here and within its limit.
                    if len(parts) == 1 and acks and not fence.entries and not special:
                        part = parts[0]
                        meter = (by_id if version >= _BY_ID else by_name).get(part[0])
                        if meter is not None and not meter.over:
                            if asks and part[4] < 0 and gate.awaits(parts, version):
                                parts = _with_checksums(buf, pos + 4, stop, parts)
                            meter.uncounted += part[2]
                            meter.messages += part[3]
                            total.uncounted += part[2]
                            entries.append((correlation, PRODUCE, version, parts, None, 0))
                            produced += 1
                            pos = stop
                            continue
                    forwarded = self._on_produce(buf, pos + 4, stop, version, correlation, acks, parts, now)
                    if self._delayed:  # what is behind a delayed request stays parked and undecided
                        self._delayed, muted = False, self.mute_until > now
                elif self.fetch_mute_until > now and key in FETCHES and not (self.draining or self.client_gone):
                    self.hold_until = self.fetch_mute_until
                    break
                elif self._skipped:
                    forwarded = False  # behind a request that will never be answered: nothing may be answered
                else:
                    forwarded = self._on_other(buf, pos + 4, stop, key, version, correlation, now)
                    special = special or gate.limited  # a Fetch may have come under another client id
                produced += 1
                if not forwarded:
                    self._cut(buf, run, pos)
                    run = stop
                    if self._substitute is not None:
                        self.to_upstream.append(self._substitute)
                        self._substitute = None
                    if self.hold_until:
                        produced -= 1
                        run = pos
                        break
                pos = stop
                if self.is_waiting:
                    break
            else:
                check_request_head(buf, pos, end, max_bytes)
        finally:
            self._cut(buf, run, pos)
            if produced:
                world.ledger.count("requests", produced)
        return pos

    def _before_authentication(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Requests of a connection that the broker knows nobody behind: only those that lead there, one step at a time.

        As SaslServerAuthenticator has it. None of them is metered, and none takes part in any limit.
        """
        max_bytes = self.world.settings.max_request_bytes
        entries = self.pending.entries
        run = pos
        produced = 0
        try:
            while not self.is_waiting:
                length = check_request_head(buf, pos, end, max_bytes)
                if not length:
                    break
                _, key, version, correlation = REQUEST_HEAD.unpack_from(buf, pos)
                if key not in BEFORE_AUTHENTICATION:
                    raise Unauthenticated(f"{api.NAMES.get(key, key)} before authentication")
                if key == api.SASL_AUTHENTICATE and self.sasl is None:
                    raise Unauthenticated("SaslAuthenticate without a SaslHandshake before it")
                if pos + length > end:
                    break
                if len(entries) >= MAX_UNAUTHENTICATED:
                    raise Unauthenticated(f"{len(entries)} requests at once before authentication")
                # Behind a request that will never be answered nothing may be: it was discarded before SASL was learned.
                skipped = self._skipped
                if skipped or not self._on_other(buf, pos + 4, pos + length, key, version, correlation, now):
                    self._cut(buf, run, pos)
                    run = pos + length
                pos += length
                produced += 1
        finally:
            self._cut(buf, run, pos)
            if produced:
                self.world.ledger.count("requests", produced)
        return pos

    @property
    def is_full(self) -> bool:
        """Nothing more may be taken from the client before something is answered."""
        return self.is_waiting or len(self.pending.entries) >= MAX_PENDING

    def _cut(self, buf: bytearray, start: int, stop: int) -> None:
        if stop > start:
            self.to_upstream.append(memoryview(buf)[start:stop])

    def _on_other(
        self, buf: bytearray, start: int, stop: int, key: int, version: int, correlation: int, now: float
    ) -> bool:
        """Note what a request other than Produce is owed; False when it was answered here."""
        max_bytes = self.world.settings.max_request_bytes
        if stop - start > largest(key, max_bytes) or version < 0:
            check_request_head(buf, start - 4, stop, max_bytes)
        cap = api.CAPS.get(key)
        entry: Entry = (correlation, PASS)
        if key == api.API_VERSIONS:
            if cap is not None and version > cap:
                self._answer(rewrite.unsupported_api_versions(correlation))
                return False
            self.gate.introduce(software(buf, start, stop))
            entry = (correlation, CAP, version)
        elif cap is not None and version > cap:
            raise _unspoken(key, version)
        elif key in rewrite.REWRITES:
            entry = (correlation, REWRITE, version, key)
        elif has_endpoints(key, version):
            entry = (correlation, STREAM, version, key)
        elif key in self.world.managed or self.turn is not None:
            return self._take_turn(buf, start, stop, correlation, now)
        elif key == api.SASL_HANDSHAKE:
            self.sasl = Sasl()
            if self.sasl.on_handshake(buf, start, stop) == 0:
                raise MalformedFrame("SaslHandshake version 0: raw tokens would follow; this client must use version 1")
            entry = (correlation, SASL, version, None)
            self.is_waiting = True
        elif key == api.SASL_AUTHENTICATE:
            if self.sasl is None:
                raise Unauthenticated("SaslAuthenticate without a SaslHandshake before it")
            entry = (correlation, SASL, version, self.sasl.claim(buf, start, stop))
            self.is_waiting = True
        if key in FETCHES and (self.world.quotas.has_fetch_limits or self.world.engine.groups.has_dispatch_limits):
            charges = self._charge_fetch(buf, start, stop, key, version, now)
            if self.hold_until:
                return False
            if charges:
                entry = (correlation, STREAM if charges & BY_GROUP else entry[1], version, key, charges)
        self.pending.entries.append(entry)
        return True

    def _charge_fetch(self, buf: bytearray, start: int, stop: int, key: int, version: int, now: float) -> int:
        """What its answer is charged to. It may only ask for as much as can be paid for by a bounded wait, or it has to
        wait itself (`hold_until`).
        """
        gate = self.gate
        client_id = produce_request.client_id(buf, start, stop)  # of any request, as its header is the same
        if client_id != gate.client_id:
            gate.identify(client_id)
            gate.find_lines(now)
        charges, most = 0, LARGEST
        lines = gate.lines
        if key == api.FETCH and (lines.consume or lines.request):
            charges = BY_QUOTA
            if lines.consume and not self.world.quotas.observes:
                most = min(most, int(min(line.bucket.rate for line in lines.consume) * MAX_MUTE_S))
        groups = self.world.engine.groups
        by_group = groups.has_dispatch_limits and not gate.exempt
        if by_group and version < api.FLOORS[key]:  # what is fetched by it can't be read
            if not groups.observes:
                raise _unspoken(key, version)
            by_group = False
        if by_group:
            charges |= BY_GROUP
            if self._fetches is None:
                self._fetches = Fetches(gate)
            topics = fetch_request.topics(buf, start, stop, version) if key == api.FETCH else ()
            wait = self._fetches.ask(topics, version >= api.FETCH_TOPIC_IDS, now)
            if not groups.observes:
                if wait and not (self.draining or self.client_gone):
                    self._mute_fetch(wait, now)
                    self.hold_until = self.fetch_mute_until
                    return charges
                most = min(most, self._fetches.most(now) or LARGEST)
        if most < LARGEST:
            cap = fetch_request.cap if key == api.FETCH else fetch_request.cap_share
            cap(buf, start, stop, version, max(1, most))
        return charges

    def _mute_fetch(self, wait: float, now: float) -> None:
        self.fetch_mute_until = max(self.fetch_mute_until, now + min(wait, MAX_MUTE_S))
        self.world.ledger.count("fetches_delayed")
        self.world.ledger.count("fetch_delay_ms", round(wait * 1000))

    def _answer(self, frame: bytes) -> None:
        self.pending.answer_locally(frame, self.to_client)
        self.world.ledger.count("answers_local")

    # --- an admin request that control answers ------------------------------------------------------------------------

    def _take_turn(self, buf: bytearray, start: int, stop: int, correlation: int, now: float) -> bool:
        """True: forward it as it is. False: it has been answered, or it waits for its turn's next move."""
        if self.turn is None:
            most = self.world.settings.max_admin_request_bytes
            self.turn = AdminTurn(bytes(memoryview(buf)[start:stop]), most)
            self._charge_turn(stop - start)
        turn = self.turn
        try:
            move, frame = turn.move(bool(self.pending.entries), now)
        except MalformedFrame:
            self._end_turn()
            raise
        if move == admin_turn.FORWARD:
            self._end_turn()
            self.pending.entries.append((correlation, PASS))
            return True
        if move == admin_turn.REPLY:
            self._end_turn()
            self._answer(frame)
            return False
        if move == admin_turn.SEND:
            self._substitute = frame
            self.pending.entries.append((REQUEST_HEAD.unpack_from(frame)[3], ADMIN, 0))
        elif move == admin_turn.ASK:
            self.world.ask(self)
        self.hold_until = turn.until
        return False

    def turn_moves(self, now: float) -> bool:
        """Whether the admin request at the head needn't wait any longer."""
        return self.turn is not None and (now >= self.hold_until or self.turn.is_ready(bool(self.pending.entries)))

    def tell(self, answer: Answer) -> None:
        """Control's answer, perhaps to a question of a turn that is over."""
        if self.turn is not None and self.turn.tell(answer):
            self.wake()

    def _end_turn(self) -> None:
        if self.turn is not None:
            self.world.asked.pop(self.turn.token, None)
            self._charge_turn(0)
            self.turn = None

    def _charge_turn(self, size: int) -> None:
        """So much is kept for it now."""
        self.account.charge(size - self._turn_bytes)
        self._turn_bytes = size

    # --- a Produce request that is not the common case ----------------------------------------------------------------

    def _on_produce(
        self,
        buf: bytearray,
        start: int,
        stop: int,
        version: int,
        correlation: int,
        acks: int,
        parts: list[Partition],
        now: float,
    ) -> bool:
        """True: forward it as it is. False: it waits (`hold_until`), `_substitute` takes its place, or nothing does."""
        gate = self.gate
        if version >= api.PRODUCE_TOPIC_IDS and not self._names_known(parts, acks, now):
            return False
        if gate.rejected.asks and gate.awaits(parts, version):
            parts = _with_checksums(buf, start, stop, parts)
        if acks and (self.client_gone or self.draining):
            gate.count(parts, version, "discarded")
            self._skipped = True
            return False
        if self._pause(acks, parts, version, now):
            return False
        wait_ms = max(0, round((self.mute_until - now) * 1000))
        may_delay = not acks or now < self.drained_at + MAX_WAIT_S
        judged = gate.judge(parts, version, now, wait_ms=wait_ms, may_delay=may_delay)
        refused, delay_ms = judged.refused, judged.delay_ms
        if refused and not acks:
            unforgiven = self._delay_unacknowledged(refused, now)
            if self.hold_until:
                held_ms = round((self.hold_until - now) * 1000)
                gate.note_held(parts, version, refused, held_ms, first=not self._holds)
                self._holds = True
                return False
            refused = unforgiven
        self._holds = False
        if judged.notes:
            gate.note(judged.notes, version)
        if delay_ms:
            self._delay(delay_ms, acks, now)
        if refused:
            self._reject(buf, start, stop, version, correlation, acks, parts, judged, refused, now)
            return False
        gate.admit(judged, parts, version, now)
        if acks:
            self._owe(parts)
            self.pending.entries.append((correlation, PRODUCE, version, parts, None, delay_ms))
        else:
            gate.send_unacknowledged(parts, version, delay_ms)
        return True

    def _pause(self, acks: int, parts: list[Partition], version: int, now: float) -> bool:
        """True: the request is held because a disk is full (or dropped: acks=0, at the end or when memory is short).

        No longer than its client may be kept: then it is rejected with the rest of what `judge` finds. acks=0 waits on.
        """
        gate = self.gate
        pause = gate.paused()
        if pause is not None and (acks or self.world.settings.acks0 == "delay"):
            if not acks and (self.draining or self.memory_short):  # nobody can be told
                gate.count(parts, version, "dropped", CONNECTION_LOST if self.draining else ACKS0_LIMIT)
                return True
            until = self.drained_at + MAX_WAIT_S if acks else now + LOOK_AGAIN_S
            if now < until:
                self.hold_until = until
                self.paused_since = self.paused_since or now
                return True
        elif self.paused_since:
            held_ms = round((now - self.paused_since) * 1000)
            gate.note([(part, DELAYED, STORAGE_PAUSE, held_ms) for part in parts], version)
        self.paused_since = 0.0
        return False

    def resume(self, now: float) -> bool:
        """Writes are not paused any more. True: there is a request that waited for that."""
        if self.paused_since and self.hold_until:
            self.hold_until = now
            return True
        return False

    def _delay(self, delay_ms: int, acks: int, now: float) -> None:
        """The request in hand passes; the next Produce request of this connection waits."""
        until = now + min(delay_ms / 1000, MAX_MUTE_S)
        if acks:  # no client times out on acks=0: only there may waits add up
            until = min(until, self.drained_at + MAX_WAIT_S)
        self._mute_until(until)
        self._delayed = True

    def _delay_unacknowledged(self, refused: Refused, now: float) -> Refused:
        """acks=0 waits, unless the operator wants it dropped: every client reports success for what is lost, and none
        times out on it. What is left refused (a topic that nobody may produce to, or nobody knows) can't be told to
        anyone.
        """
        for_good = {key: why for key, why in refused.items() if why.reason in NEVER_PASSES}
        if self.world.settings.acks0 == "drop" or self.memory_short:
            return refused
        if self.client_gone or self.draining or len(for_good) == len(refused):
            return for_good
        wait = min(why.throttle_ms for key, why in refused.items() if key not in for_good) / 1000
        self._mute_until(now + max(MIN_HOLD_S, min(wait, MAX_MUTE_S)))
        self.hold_until = self.mute_until
        return refused

    def _reject(
        self,
        buf: bytearray,
        start: int,
        stop: int,
        version: int,
        correlation: int,
        acks: int,
        parts: list[Partition],
        judged: Decision[Partition],
        refused: Refused,
        now: float,
    ) -> None:
        """Forward what is left of the request, if anything, and tell the client the rest in the same answer."""
        gate = self.gate
        if acks and any(part[4] < 0 and part[6] < 0 for part in parts):  # to recognise what comes again
            parts = _with_checksums(buf, start, stop, parts)
        admitted = [part for part in parts if part[:2] not in refused]
        stopped = [part for part in parts if part[:2] in refused]
        if acks:
            gate.refuse(stopped, version, refused, now)
        else:
            dropped: dict[str, list[Partition]] = {}  # nobody can be told
            for part in stopped:
                reason = refused[part[:2]].reason
                dropped.setdefault(reason if reason in NEVER_PASSES else ACKS0_LIMIT, []).append(part)
            for reason, some in dropped.items():
                gate.count(some, version, "dropped", reason)
        rows = [(topic, index, gate.code(why), why.text) for (topic, index), why in refused.items()]
        throttle_ms = max(judged.delay_ms, *(why.throttle_ms for why in refused.values()))
        if throttle_ms and acks:
            # Bounded twice: a single mute, and what the oldest unread request has waited already. Requests that are
            # read already are still decided at once: they would only wait for the same answer.
            until = min(now + throttle_ms / 1000, now + MAX_MUTE_S, self.drained_at + MAX_WAIT_S)
            if until > now:
                self._mute_until(until)
        if admitted:
            gate.admit(judged, admitted, version, now)
            self._substitute = produce_request.strip(buf, start, stop, refused.keys())
            if acks:
                self._owe(admitted)
                self.pending.entries.append((correlation, PRODUCE, version, admitted, rows, throttle_ms))
                self.world.ledger.count("answers_merged")
            else:
                gate.send_unacknowledged(admitted, version, judged.delay_ms)
        elif acks:
            self._answer(produce_response.local(version, correlation, rows, throttle_ms))

    def _owe(self, parts: list[Partition]) -> None:
        """These wait for their answer, and keep memory meanwhile."""
        if len(parts) > FEW_PARTITIONS:
            self.account.charge(len(parts) * PARTITION_BYTES)
            self.is_waiting = self.is_waiting or self.account.is_short

    def _release(self, parts: list[Partition]) -> None:
        if len(parts) > FEW_PARTITIONS:
            self.account.discharge(len(parts) * PARTITION_BYTES)
            self.is_waiting = self.is_waiting and any(entry[1] == SASL for entry in self.pending.entries)

    def _mute_until(self, until: float) -> None:
        """Hold later Produce requests until then; several reasons to mute do not add up, the longest wins."""
        if until > self.mute_until:
            self.mute_until = until
            self.world.ledger.count("mutes")

    def _names_known(self, parts: list[Partition], acks: int, now: float) -> bool:
        """True when every topic id of the request has a name, or no broker could tell it in time: then those without
        are refused, since one may be a topic that nobody may produce to, and each may have a limit. Where nobody can be
        told so (acks=0), it is asked for again and again before they are dropped.
        """
        missing = self.gate.nameless(parts)
        if not missing:
            self._lookup_deadline = self._lookup_until = 0.0
            return True
        if not self._lookup_until:
            self._lookup_until = now + (LOOKUP_S if acks else MAX_WAIT_S)
            self._ask_names(missing, now)
        elif now >= self._lookup_deadline:
            if acks or self.draining or self.client_gone or now >= self._lookup_until:
                self.world.ledger.count("topic_ids_unknown")
                self._lookup_deadline = self._lookup_until = 0.0
                return True
            if self._lookup_deadline == ANSWERED:
                self._lookup_deadline = now + LOOKUP_S  # the answer to the next look is not another one at once
            else:
                self._ask_names(missing, now)
        self.hold_until = self._lookup_deadline
        return False

    def _ask_names(self, topic_ids: frozenset[bytes], now: float) -> None:
        # On the client's own connection: it needs no rights that the client doesn't have.
        self._lookup_id = FIRST_LOOKUP_ID + (self._lookup_id + 1) % LOOKUP_IDS
        self._lookup_deadline = now + LOOKUP_S
        self._substitute = rewrite.metadata_by_id_request(self._lookup_id, LOOKUP_VERSION, sorted(topic_ids))
        self.pending.entries.append((self._lookup_id, OURS, LOOKUP_VERSION))

    # --- answers ------------------------------------------------------------------------------------------------------

    def on_upstream(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Handle what the broker sent in buf[pos:end]; return where the first unhandled byte is.

        Raises:
            UpstreamError, MalformedFrame: both sides must be closed.
        """
        gate, pending, out = self.gate, self.pending, self.to_client
        if gate.epoch != self.world.ledger.epoch:
            gate.renew()
        entries = pending.entries
        run = pos
        try:
            while pos < end:
                if self._stream_left:
                    pos = self._stream(buf, pos, end, now)
                    if self._stream_left:
                        break
                    # Only now: a local answer must not come between the parts of this one.
                    entries.popleft()
                    if entries and entries[0][1] == LOCAL:
                        self._emit(buf, run, pos)
                        run = pos
                        pending.release(out)
                    continue
                if end - pos < 8:
                    break
                size, correlation = ANSWER_HEAD.unpack_from(buf, pos)
                if size < 4:
                    raise UpstreamError(f"an answer with a size of {size} bytes")
                if not entries or entries[0][0] != correlation:
                    raise UpstreamError(f"an answer with correlation id {correlation} that nobody waits for")
                entry = entries[0]
                kind = entry[1]
                stop = pos + 4 + size
                if kind in (PASS, STREAM):
                    if len(entry) == 5:
                        if not self._throttle_fetch(buf, pos, end, entry, size, now):
                            break  # its head is not whole yet
                    else:
                        self._meter = None
                        self._hider = EndpointHider(entry[3], entry[2], size) if kind == STREAM else None
                    self._stream_left = size
                    pos += 4
                    continue
                if stop > end:
                    break
                if kind == PRODUCE:
                    rows, endpoints = produce_response.skim(buf, pos + 4, stop, entry[2])
                    changed = entry[4] or entry[5] or endpoints
                    frame = self._produce_answer(buf, pos + 4, stop, entry, endpoints) if changed else None
                    gate.settle(entry[3], entry[2], rows, 0 if entry[4] else entry[5])  # only what the client will see
                    if len(entry[3]) > FEW_PARTITIONS:
                        self._release(entry[3])
                else:
                    frame = self._other_answer(buf, pos, stop, entry)
                entries.popleft()
                if frame is not None or (entries and entries[0][1] == LOCAL):
                    self._emit(buf, run, pos if frame is not None else stop)
                    run = stop
                    if frame:
                        out.append(frame)
                    pending.release(out)
                pos = stop
        finally:  # answers before a broken one are the client's
            self._emit(buf, run, pos)
        return pos

    def _throttle_fetch(self, buf: bytearray, pos: int, end: int, entry: Entry, size: int, now: float) -> bool:
        """Charge a Fetch answer, tell its client how long to wait, and hold its next Fetch request as long.

        False: too little of it is here. What resource groups are charged is known when it has passed; while not all of
        it is here its client can only be told what is to be expected.
        """
        _, kind, version, key, charges = entry
        flexible = key == api.SHARE_FETCH or version >= api.FETCH_FLEXIBLE
        at = pos + 8  # of the throttle time: behind size and correlation id, and then the header's tagged fields
        if flexible:
            at += 1
        stop = pos + 4 + size
        if end < min(at + 4, stop):
            return False
        wait = self.gate.consume(4 + size, now) if charges & BY_QUOTA else 0.0
        if not version or at + 4 > stop or (flexible and buf[at - 1]):
            at = -1
        observes = self.world.quotas.observes
        self._meter = self._hider = None
        if not charges & BY_GROUP:
            self._hider = EndpointHider(key, version, size) if kind == STREAM else None
            self._delay_fetch(*((0.0, wait) if observes else (wait, 0.0)), now)
            _tell(buf, at, 0.0 if observes else wait)
        else:
            self._hider = self._meter = FetchMeter(key, version, size)
            self._fetch_wait = (now, now + wait) if observes else (now + wait, now)
            self._throttle_at = at if stop <= end else -1
            if stop > end and self._fetches is not None and not self.world.engine.groups.observes:
                _tell(buf, at, max(0.0 if observes else wait, self._fetches.expect(size, now)))
        return True

    def _delay_fetch(self, wait: float, would: float, now: float) -> None:
        """`would`: how long it would have to wait because of what is only observed."""
        if wait:
            self._mute_fetch(wait, now)
        elif would:
            self.world.ledger.count("fetches_would_be_delayed")

    def _emit(self, buf: bytearray, start: int, stop: int) -> None:
        if stop > start:
            self.to_client.append(memoryview(buf)[start:stop])

    def _produce_answer(self, buf: bytearray, start: int, stop: int, entry: Entry, endpoints: bool) -> bytes:
        _, _, version, _, rows, throttle_ms = entry
        if endpoints:
            frame = produce_response.rewrite_endpoints(buf, start, stop, version, self.world.addresses)
            buf, start, stop = bytearray(frame), 4, len(frame)
        return produce_response.merge(buf, start, stop, version, rows or [], throttle_ms)

    def _other_answer(self, buf: bytearray, pos: int, stop: int, entry: Entry) -> bytes | None:
        """None: pass the (possibly patched) bytes on. b"": the client gets nothing. Else: send this instead."""
        world, kind, version = self.world, entry[1], entry[2]
        if kind == REWRITE:
            frame, withheld = rewrite.REWRITES[entry[3]](buf, pos + 4, stop, version, world.addresses, world.topic_ids)
            if withheld:
                world.ledger.count("brokers_withheld", len(withheld))
                world.want_metadata()
            return frame
        if kind == ADMIN:
            if self.turn is not None:
                self._charge_turn(len(self.turn.request) + stop - pos - 4)
                self.turn.take(bytes(memoryview(buf)[pos + 4 : stop]))
            return b""
        if kind == CAP:
            return rewrite.cap_api_versions(buf, pos + 4, stop, version, world.settings.unknown_apis == "hide")
        if kind == SASL:
            self._on_sasl_answer(buf, pos + 4, stop, entry[3])
            return None
        rewrite.metadata(buf, pos + 4, stop, version, world.addresses, world.topic_ids)  # OURS: only to learn from
        if entry[0] == self._lookup_id and self._lookup_deadline:  # not a late answer to a lookup that was given up
            self._lookup_deadline = ANSWERED  # what it didn't tell, nobody will: look once more
            self.hold_until = 0.0
        return b""

    def _on_sasl_answer(self, buf: bytearray, start: int, stop: int, claim: Claim | None) -> None:
        """`claim`: what the request named, None where it was a handshake."""
        self.is_waiting = False
        if claim is None:
            error, _ = int16(buf, start + 4, stop)
            if error in HANDSHAKE_ANSWERED:
                self.world.wants_sasl = True
            return
        principal = accepted(buf, start, stop, claim)
        if principal is None:
            return
        known = self.gate.principal
        if not self.authenticated:
            self._enter(principal)
        elif principal != known and UNKNOWN not in (principal, known):
            # No broker does that (KIP-368): one of us has read the name wrongly.
            raise IdentityChanged(f"{principal} was accepted on a connection of {known}")

    def _enter(self, principal: str) -> None:
        self.authenticated = True
        self.gate.authenticate(principal)
        if principal == UNKNOWN:  # which may be many: only the broker can tell them apart
            return
        self.account.rename(principal)
        world = self.world
        world.principals[principal] += 1
        most = world.settings.max_connections_per_principal
        if world.principals[principal] > most:
            raise TooManyConnections(f"{principal} has {most} connections already")

    def _stream(self, buf: bytearray, pos: int, end: int, now: float) -> int:
        """Pass on what is here of an answer that is not kept whole."""
        stop = min(end, pos + self._stream_left)
        if self._hider is not None:
            stop -= self._hider.feed(buf, pos, stop)
        self._stream_left -= stop - pos
        if self._meter is not None:
            self._take_fetched(buf, self._meter, now)
        if not self._stream_left and self._hider is not None and self._hider.lost:
            self.world.ledger.count("answers_not_followed")
        return stop

    def _take_fetched(self, buf: bytearray, meter: FetchMeter, now: float) -> None:
        """Charge the groups what has passed; at the answer's end, hold the next Fetch request."""
        fetches = self._fetches
        if fetches is None:
            return
        _, _, version, key, _ = self.pending.entries[0]
        fetches.take(meter.taken(), key == api.SHARE_FETCH or version >= api.FETCH_TOPIC_IDS, now)
        if self._stream_left:
            return
        wait, would = (max(0.0, until - now) for until in self._fetch_wait)
        owed = fetches.end(meter.size, now)
        if self.world.engine.groups.observes:
            would = max(would, owed)
        else:
            wait = max(wait, owed)
        self._delay_fetch(wait, would, now)
        _tell(buf, self._throttle_at, wait)
        self._throttle_at = -1

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing is owed to the client and nothing is under way."""
        return not self.pending.entries and self.turn is None

    def wants_whole(self) -> bool:
        """Whether the answer that comes next is handled whole, not streamed: the link must make room for it."""
        entries = self.pending.entries
        return not self._stream_left and bool(entries) and entries[0][1] not in (PASS, STREAM)

    def close(self, parked: tuple[bytearray, int, int] | None = None, *, by_broker: bool = False) -> None:
        """Settle the accounts: what was forwarded and not answered, and what was read and never forwarded."""
        gate = self.gate
        if by_broker:
            gate.retract_unacknowledged()
        if gate.epoch != self.world.ledger.epoch:
            gate.renew()
        for entry in self.pending.entries:
            if entry[1] == PRODUCE:
                self._release(entry[3])
                gate.count(entry[3], entry[2], "unanswered")
                gate.retract(entry[3], entry[2])
        self.pending.entries.clear()
        if self._fetches is not None:
            self._fetches.close()
        self._end_turn()
        if self.authenticated and gate.principal != UNKNOWN:
            left = self.world.principals[gate.principal] - 1
            self.world.principals[gate.principal] = left
            if not left:
                del self.world.principals[gate.principal]
        if parked is not None and (self.authenticated or not self.world.wants_sasl):
            self._discard(*parked)

    def _discard(self, buf: bytearray, pos: int, end: int) -> None:
        settings = self.world.settings
        max_bytes, most = settings.max_request_bytes, settings.max_partitions_per_request
        try:
            while (length := check_request_head(buf, pos, end, max_bytes)) and pos + length <= end:
                _, key, version, _ = REQUEST_HEAD.unpack_from(buf, pos)
                if key == 0 and _OLDEST_PRODUCE <= version <= _NEWEST_PRODUCE:
                    _, acks, client_id, _, parts = produce_request.skim(buf, pos + 4, pos + length, most)
                    if client_id != self.gate.client_id:
                        self.gate.identify(client_id)
                    if self.gate.rejected.asks and self.gate.awaits(parts, version):
                        parts = _with_checksums(buf, pos + 4, pos + length, parts)
                    if acks:
                        self.gate.count(parts, version, "discarded")
                    else:  # its client believes that it was sent, and will not send it again
                        self.gate.count(parts, version, "dropped", CONNECTION_LOST)
                pos += length
        except MalformedFrame:
            return  # never forwarded, and no Produce request: nothing to account for


def _with_checksums(buf: bytearray, start: int, stop: int, parts: list[Partition]) -> list[Partition]:
    """The partitions of that request; those without a producer id have their batch's CRC in place of a sequence."""
    checksums = produce_request.checksums(buf, start, stop, parts)
    return [
        (*part[:6], checksum, part[7]) if part[4] < 0 else part for part, checksum in zip(parts, checksums, strict=True)
    ]


def _tell(buf: bytearray, at: int, wait: float) -> None:
    """Put seconds into an answer's throttle time, unless it has more."""
    if wait and at >= 0:
        (theirs,) = THROTTLE.unpack_from(buf, at)
        THROTTLE.pack_into(buf, at, max(theirs, round(wait * 1000)))


def _nothing() -> None:
    """Nobody sleeps."""


def _unspoken(key: int, version: int) -> MalformedFrame:
    # Only a client that ignores our ApiVersions answer sends this; a broker closes such a connection as well.
    low, high = api.FLOORS.get(key, 0), api.CAPS[key]
    return MalformedFrame(f"{api.NAMES[key]} version {version}: versions {low} to {high} are spoken")
