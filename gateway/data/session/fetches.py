# Fetch and ShareFetch requests of one connection where some limit concerns them: client quotas (consumer_byte_rate,
# request_percentage) and resource groups with a dispatch limit. Says what each may ask for, what its answer is charged
# to, the throttle time that its client gets, and how long the next one waits. Sans-IO.
#
# The charge to quotas is known when an answer begins, that to resource groups when it has passed (dispatch.py): while
# not all of an answer is here, its client can only get an estimate. So one Fetch at a time is sent: each answer has at
# least one batch, and hundreds of requests sent ahead would be charged behind all of their answers only.

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.data.pending.hold import MAX_MUTE_S
from gateway.data.session.dispatch import GroupDispatch
from policies.decision import ClientPatience
from protocol import api
from protocol.fetch import fetch_request
from protocol.fetch.fetch_response import FetchMeter
from protocol.framing import RESPONSE_HEAD, unsupported_version
from protocol.produce import produce_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.data.pending.hold import RequestHold
    from gateway.data.pending.pending import PendingEntry
    from gateway.data.pending.steps import ApiRequest
    from gateway.data.shared.client import ConnectedClient
    from policies.quotas.quota_limiters import ConnectionQuotaLimit

FETCH_APIS: Final = (api.FETCH, api.SHARE_FETCH)
# bytes of an answer up to behind its session's id: size, correlation id, no tagged fields, throttle time, error, and it
RESPONSE_HEAD_BYTES: Final = 19
BY_QUOTA, BY_GROUP, BY_BROKER_TOTAL = 1, 2, 4  # what an answer is charged to; of what consumers take of its broker
_LARGEST: Final = 2**31 - 1
_THROTTLE: Final = struct.Struct(">i")
_SESSION: Final = struct.Struct(">6xi")  # behind throttle time and error


class _PromisedResponse(NamedTuple):
    """A response under client quotas that is to come: those that its request was under, in what version and by what
    client id (later requests may have another one), and how many bytes it may have; 0: any number.
    """

    quota_limit: ConnectionQuotaLimit
    quotas_version: int
    client_id: str
    size: int


class _PassingResponse(NamedTuple):
    """A response that is charged to resource groups while it passes."""

    meter: FetchMeter
    by_id: bool  # its topics are ids
    until: float  # the next request has to wait until then because of quotas …
    would_until: float  # … or would have to, because of what is only observed
    throttle_at: int  # where its throttle time is in the buffer in hand; -1: not all of the answer is there


class FetchLimiter:
    """Client quotas and dispatch limits on the Fetch requests of one connection. `muted_until`: the time until which
    these requests have to wait.
    """

    __slots__ = ("_awaits_response", "_client", "_denied_since", "_hold", "_last_response_bytes", "_owed_count",
                 "_passing", "_promised", "_session_id", "_would_wait_until", "dispatch", "muted_until")  # fmt: skip

    def __init__(self, client: ConnectedClient, hold: RequestHold) -> None:
        self._client = client
        self._hold = hold
        self._owed_count = 0  # answers under a limit that are to come
        self._session_id = 0  # of the last answer with one
        self._awaits_response = False  # the request at the head waits for one of them
        self._passing: _PassingResponse | None = None
        self.dispatch: GroupDispatch | None = None
        self.muted_until = 0.0
        self._would_wait_until = 0.0  # if what is only observed were enforced
        self._denied_since = 0.0  # the first Fetch since then found no room under a quota
        self._last_response_bytes = 0  # bytes of the last answer under a quota
        self._promised: deque[_PromisedResponse] = deque()  # for each answer under a quota that is to come

    # --- requests -----------------------------------------------------------------------------------------------------

    def refuse_session(self, request: ApiRequest, now: float) -> bytes:
        """The answer to a request that goes on with a session of another connection, where resource groups limit it:
        its topics would not be known. b"": it is none.

        Raises:
            MalformedFrame: the request can't be read.
        """
        if request.key != api.FETCH or not self._client.world.engine.groups.has_dispatch_limits:
            return b""
        self._refresh_client(request, now)
        if not self._has_dispatch_limit(request) or "group" in self._client.observed_policies:
            return b""
        session_id, epoch = fetch_request.read_session(request.buf, request.start, request.stop, request.version)
        if epoch <= 0 or session_id == self._session_id:
            return b""
        return fetch_request.session_not_found(request.version, request.correlation)

    def admit_fetch(self, request: ApiRequest, now: float) -> int | None:
        """The kinds of limits that the response is charged to; None: the request has to wait until `muted_until`.

        The request may ask only for as many bytes as a bounded wait can pay for. The broker returns at least one batch,
        so the debt may be larger; then the next request waits.

        Raises:
            MalformedFrame: the request can't be read.
        """
        client = self._client
        world = client.world
        if not (world.quotas.has_fetch_limits or world.engine.groups.has_dispatch_limits):
            return 0
        if self.muted_until > now:
            return None
        self._refresh_client(request, now)
        charges, most = BY_BROKER_TOTAL if world.quotas.counts_fetches else 0, _LARGEST
        quota_limit = client.quota_limit
        has_quota = bool(quota_limit.consume_limiters or quota_limit.time_limiters)
        has_group = self._has_dispatch_limit(request)
        observes = "quota" in client.observed_policies
        is_held = (has_quota and not observes) or (has_group and "group" not in client.observed_policies)
        if is_held and self._owed_count:
            self._awaits_response, self.muted_until = True, now + MAX_MUTE_S
            return None
        if has_quota and not observes and not self._has_quota_room(quota_limit, now):
            return None
        if has_group:
            charges |= BY_GROUP
            if self.dispatch is None:
                self.dispatch = GroupDispatch(client)
            wait = self.dispatch.wait_before_fetch(
                _requested_topics(request), _names_by_id(request.key, request.version), now
            )
            if "group" not in client.observed_policies:
                if wait:
                    self._mute_fetches(wait, now)
                    return None
                most = min(most, self.dispatch.max_fetch_bytes(now) or _LARGEST)
        if has_quota:
            charges |= BY_QUOTA
            promised = 0 if observes else quota_limit.reserve_fetch(now)
            self._promised.append(
                _PromisedResponse(quota_limit, client.quotas_version, client.counted_names[1], promised)
            )
            most = min(most, promised or _LARGEST)
        if most < _LARGEST:
            cap = fetch_request.cap_fetch if request.key == api.FETCH else fetch_request.cap_share_fetch
            cap(request.buf, request.start, request.stop, request.version, max(1, most))
        self._owed_count += bool(has_quota or has_group)
        return charges

    def _refresh_client(self, request: ApiRequest, now: float) -> None:
        """Go by the client id of the request: limits and exemptions may be by it."""
        client = self._client
        client_id = produce_request.read_client_id(request.buf, request.start, request.stop)  # the header is the same
        if client_id != client.client_id:
            client.set_client_id(client_id)
            client.refresh_limits(now)

    def _has_quota_room(self, quota_limit: ConnectionQuotaLimit, now: float) -> bool:
        """Whether client quotas let a Fetch pass now; otherwise it has to wait."""
        denied_s = now - self._denied_since if self._denied_since else 0.0
        answer = quota_limit.check_fetch(self._last_response_bytes, ClientPatience(denied_s=denied_s), now)
        if answer.admitted:
            self._denied_since = 0.0
            return True
        self._denied_since = self._denied_since or now
        self._mute_fetches(answer.wait_s, now)
        return False

    def _has_dispatch_limit(self, request: ApiRequest) -> bool:
        groups = self._client.world.engine.groups
        if not groups.has_dispatch_limits or self._client.is_exempt:
            return False
        is_readable = request.version >= api.LOWEST_VERSIONS[request.key]
        if not is_readable and "group" not in self._client.observed_policies:  # what is fetched by it can't be charged
            raise unsupported_version(request.key, request.version)
        return is_readable

    # --- answers ------------------------------------------------------------------------------------------------------

    def begin_response(self, buf: bytearray, pos: int, end: int, entry: PendingEntry, now: float) -> FetchMeter | None:
        """Charge the response in buf[pos:end], of which RESPONSE_HEAD_BYTES are present, and write its throttle time.
        Returns the meter to feed while it passes, where resource groups are charged.
        """
        client = self._client
        _, _, version, key, charges = entry
        size, _ = RESPONSE_HEAD.unpack_from(buf, pos)
        at = _throttle_position(buf, pos, size, key, version)
        wait, would = 0.0, max(0.0, self._would_wait_until - now)
        if key == api.FETCH and version >= fetch_request.SESSIONS and at >= 0 and at + 10 <= pos + 4 + size:
            self._session_id = _SESSION.unpack_from(buf, at)[0] or self._session_id
        if charges & BY_BROKER_TOTAL:
            client.world.quotas.record_fetched(client.node_id, 4 + size)
        if charges & BY_QUOTA:
            quota_limit, quotas_version, client_id, promised = self._promised.popleft()
            quota_limit.release_fetch(promised)
            if quotas_version != client.world.quotas.version:  # one that has been removed makes nobody wait
                quota_limit = client.find_quota_limit(client_id, now)
            self._last_response_bytes = 4 + size
            if "quota" not in client.observed_policies:
                wait = quota_limit.charge_fetch(4 + size, now)
            elif would:  # it would not have asked for it yet
                quota_limit.record_fetch_only(4 + size)
            else:
                would = quota_limit.charge_fetch(4 + size, now)
        if not charges & BY_GROUP:
            if charges & BY_QUOTA:
                self._end_owed_response()
            self._delay_next(wait, would, now)
            _write_throttle_time(buf, at, wait)
            return None
        is_whole = pos + 4 + size <= end
        by_id = _names_by_id(key, version)
        meter = FetchMeter(key, version, size)
        self._passing = _PassingResponse(meter, by_id, now + wait, now + would, at if is_whole else -1)
        if not is_whole and self.dispatch is not None and "group" not in client.observed_policies:
            _write_throttle_time(buf, at, max(wait, self.dispatch.expected_wait(size, now)))
        return meter

    def charge_passed(self, buf: bytearray, is_over: bool, now: float) -> None:
        """More of the response was fed to its meter; after its last byte the next request waits."""
        passing, dispatch = self._passing, self.dispatch
        assert passing is not None
        assert dispatch is not None
        meter, by_id, until, would_until, throttle_at = passing
        observes = "group" in self._client.observed_policies
        dispatch.charge_topics(meter.drain_topics(), by_id, now, would_wait=observes and now < self._would_wait_until)
        if not is_over:
            return
        self._passing = None
        wait, would = max(0.0, until - now), max(0.0, would_until - now)
        owed = dispatch.end_response(meter.size, now)
        if observes:
            would = max(would, owed)
        else:
            wait = max(wait, owed)
        self._end_owed_response()
        self._delay_next(wait, would, now)
        _write_throttle_time(buf, throttle_at, wait)

    def close(self) -> None:
        """The connection has ended."""
        while self._promised:
            promised = self._promised.popleft()
            promised.quota_limit.release_fetch(promised.size)
        if self.dispatch is not None:
            self.dispatch.close()

    def _end_owed_response(self) -> None:
        self._owed_count -= 1
        if self._awaits_response:
            self._awaits_response, self.muted_until = False, 0.0
            self._hold.held_until = 0.0

    def _delay_next(self, wait: float, would: float, now: float) -> None:
        """`would`: the seconds that the next request would have to wait for limits that are only observed."""
        self._would_wait_until = now + would
        if wait:
            self._mute_fetches(wait, now)
        elif would:
            self._client.world.ledger.count_event("fetches_would_be_delayed")

    def _mute_fetches(self, wait: float, now: float) -> None:
        self.muted_until = max(self.muted_until, now + min(wait, MAX_MUTE_S))
        ledger = self._client.world.ledger
        ledger.count_event("fetches_delayed")
        ledger.count_event("fetch_delay_ms", round(wait * 1000))


def _requested_topics(request: ApiRequest) -> Iterable[bytes]:
    """Names, or ids, of the topics in the request."""
    read = fetch_request.read_topics if request.key == api.FETCH else fetch_request.read_share_topics
    return read(request.buf, request.start, request.stop, request.version)


def _names_by_id(key: int, version: int) -> bool:
    return key == api.SHARE_FETCH or version >= api.FETCH_TOPIC_IDS


def _throttle_position(buf: bytearray, pos: int, size: int, key: int, version: int) -> int:
    """The position of the throttle time in the response at `pos`; -1: none, or it comes after tagged fields."""
    is_flexible = key == api.SHARE_FETCH or version >= api.FETCH_FLEXIBLE
    at = pos + 8 + is_flexible  # behind size and correlation id, and then the header's tagged fields
    return -1 if not version or at + 4 > pos + 4 + size or (is_flexible and buf[at - 1]) else at


def _write_throttle_time(buf: bytearray, at: int, wait: float) -> None:
    """Write seconds into a response's throttle time, unless it already has more."""
    if wait and at >= 0:
        (theirs,) = _THROTTLE.unpack_from(buf, at)
        _THROTTLE.pack_into(buf, at, max(theirs, round(wait * 1000)))
