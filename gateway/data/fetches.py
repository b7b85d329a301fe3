# Fetch and ShareFetch requests of one connection where some limit concerns them: client quotas (consumer_byte_rate,
# request_percentage) and resource groups with a dispatch limit. What each may ask for, what its answer is charged to,
# what its client is told, and how long the next one waits. Sans-IO.
#
# What quotas are charged is known when an answer begins, what resource groups are charged when it has passed
# (dispatch.py): while not all of an answer is here, its client can only be told what is to be expected.

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.data.dispatch import Dispatch
from gateway.data.hold import MAX_MUTE_S
from protocol import api, fetch_request, produce_request
from protocol.fetch_response import FetchMeter
from protocol.framing import ANSWER_HEAD, unspoken
from protocol.stream import EndpointHider, has_endpoints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.data.gate import Gate
    from gateway.data.steps import Request
    from protocol.pending import Entry

APIS: Final = (api.FETCH, api.SHARE_FETCH)
HEAD: Final = 13  # bytes of an answer up to behind its throttle time: size, correlation id, no tagged fields, and it
BY_QUOTA, BY_GROUP = 1, 2  # what an answer is charged to
_LARGEST: Final = 2**31 - 1
_THROTTLE: Final = struct.Struct(">i")


class _Passing(NamedTuple):
    """An answer that resource groups are charged, while it passes."""

    meter: FetchMeter
    by_id: bool  # its topics are ids
    until: float  # the next request has to wait until then because of quotas …
    would_until: float  # … or would have to, because of what is only observed
    throttle_at: int  # where its throttle time is in the buffer in hand; -1: not all of the answer is there


class Fetches:
    """`mute_until`: until when these requests have to wait."""

    __slots__ = ("_gate", "_passing", "dispatch", "mute_until")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._passing: _Passing | None = None
        self.dispatch: Dispatch | None = None
        self.mute_until = 0.0

    # --- requests -----------------------------------------------------------------------------------------------------

    def ask(self, request: Request, is_over: bool, now: float) -> int | None:
        """What its answer is charged to; None: it has to wait until `mute_until`. `is_over`: it can't wait.

        It may only ask for as much as can be paid for by a bounded wait, or it has to wait itself.

        Raises:
            MalformedFrame: it can't be read.
        """
        gate = self._gate
        world = gate.world
        if not (world.quotas.has_fetch_limits or world.engine.groups.has_dispatch_limits):
            return 0
        client_id = produce_request.client_id(request.buf, request.start, request.stop)  # the header is the same
        if client_id != gate.client_id:
            gate.identify(client_id)
            gate.find_lines(now)
        charges, most = self._ask_quotas(request.key)
        if self._has_dispatch_limit(request):
            charges |= BY_GROUP
            if self.dispatch is None:
                self.dispatch = Dispatch(gate)
            wait = self.dispatch.ask(_topics(request), request.version >= api.FETCH_TOPIC_IDS, now)
            if not world.engine.groups.observes:
                if wait and not is_over:
                    self._mute(wait, now)
                    return None
                most = min(most, self.dispatch.most(now) or _LARGEST)
        if most < _LARGEST:
            cap = fetch_request.cap if request.key == api.FETCH else fetch_request.cap_share
            cap(request.buf, request.start, request.stop, request.version, max(1, most))
        return charges

    def _ask_quotas(self, key: int) -> tuple[int, int]:
        """What to charge, and the most bytes that may be asked for."""
        lines = self._gate.lines
        if key != api.FETCH or not (lines.consume or lines.request):
            return 0, _LARGEST
        if self._gate.world.quotas.observes or not lines.consume:
            return BY_QUOTA, _LARGEST
        return BY_QUOTA, int(min(line.bucket.rate for line in lines.consume) * MAX_MUTE_S)

    def _has_dispatch_limit(self, request: Request) -> bool:
        groups = self._gate.world.engine.groups
        if not groups.has_dispatch_limits or self._gate.exempt:
            return False
        is_readable = request.version >= api.FLOORS[request.key]
        if not is_readable and not groups.observes:  # what is fetched by it can't be charged
            raise unspoken(request.key, request.version)
        return is_readable

    # --- answers ------------------------------------------------------------------------------------------------------

    def begin(self, buf: bytearray, pos: int, end: int, entry: Entry, now: float) -> EndpointHider | None:
        """An answer in buf[pos:end], of which HEAD bytes are here: charge it, and tell its client how long to wait.

        Returns what it has to be fed to while it passes, if anything.
        """
        world = self._gate.world
        _, _, version, key, charges = entry
        size, _ = ANSWER_HEAD.unpack_from(buf, pos)
        at = _throttle_at(buf, pos, size, key, version)
        wait = self._gate.consume(4 + size, now) if charges & BY_QUOTA else 0.0
        would = 0.0
        if world.quotas.observes:
            wait, would = 0.0, wait
        if not charges & BY_GROUP:
            self._delay(wait, would, now)
            _tell(buf, at, wait)
            return EndpointHider(key, version, size) if has_endpoints(key, version) else None
        is_whole = pos + 4 + size <= end
        by_id = key == api.SHARE_FETCH or version >= api.FETCH_TOPIC_IDS
        meter = FetchMeter(key, version, size)
        self._passing = _Passing(meter, by_id, now + wait, now + would, at if is_whole else -1)
        if not is_whole and self.dispatch is not None and not world.engine.groups.observes:
            _tell(buf, at, max(wait, self.dispatch.expect(size, now)))
        return meter

    def pass_on(self, buf: bytearray, is_over: bool, now: float) -> None:
        """More of the answer was fed; when that was its end, the next request waits."""
        passing, dispatch = self._passing, self.dispatch
        if passing is None or dispatch is None:
            return
        meter, by_id, until, would_until, throttle_at = passing
        dispatch.take(meter.taken(), by_id, now)
        if not is_over:
            return
        self._passing = None
        wait, would = max(0.0, until - now), max(0.0, would_until - now)
        owed = dispatch.end(meter.size, now)
        if self._gate.world.engine.groups.observes:
            would = max(would, owed)
        else:
            wait = max(wait, owed)
        self._delay(wait, would, now)
        _tell(buf, throttle_at, wait)

    def close(self) -> None:
        """The connection is over."""
        if self.dispatch is not None:
            self.dispatch.close()

    def _delay(self, wait: float, would: float, now: float) -> None:
        """`would`: how long the next request would have to wait because of what is only observed."""
        if wait:
            self._mute(wait, now)
        elif would:
            self._gate.world.ledger.count("fetches_would_be_delayed")

    def _mute(self, wait: float, now: float) -> None:
        self.mute_until = max(self.mute_until, now + min(wait, MAX_MUTE_S))
        ledger = self._gate.world.ledger
        ledger.count("fetches_delayed")
        ledger.count("fetch_delay_ms", round(wait * 1000))


def _topics(request: Request) -> Iterable[bytes]:
    """Names, or ids, that the request lists: ShareFetch has its topics in a session."""
    if request.key != api.FETCH:
        return ()
    return fetch_request.topics(request.buf, request.start, request.stop, request.version)


def _throttle_at(buf: bytearray, pos: int, size: int, key: int, version: int) -> int:
    """Where the throttle time of the answer at `pos` is; -1: nowhere, or behind tagged fields."""
    is_flexible = key == api.SHARE_FETCH or version >= api.FETCH_FLEXIBLE
    at = pos + 8 + is_flexible  # behind size and correlation id, and then the header's tagged fields
    return -1 if not version or at + 4 > pos + 4 + size or (is_flexible and buf[at - 1]) else at


def _tell(buf: bytearray, at: int, wait: float) -> None:
    """Put seconds into an answer's throttle time, unless it has more."""
    if wait and at >= 0:
        (theirs,) = _THROTTLE.unpack_from(buf, at)
        _THROTTLE.pack_into(buf, at, max(theirs, round(wait * 1000)))
