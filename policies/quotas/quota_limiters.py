# Client quotas at work in one worker: a limiter for each bucket that a connection is under, shared by all connections
# of that bucket. A request waits for the longest queue of its limiters; whichever limit is hit first.
#
# Rates: `bps` holds over all brokers, `broker_bps` and `percent` on each, and `shares` are parts of what the broker's
# total leaves to the users that have shares, allocated a few times a second by demand (max-min fair, weighted);
# producers and consumers have a total each. Produce limits are multiplied by the storage factor. A limiter lives as
# long as a connection uses it or it is not full again: reconnecting clears no debt. It is one entity's own
# (limits/limiter.py), but for the one that strangers share where there are too many of them.
#
# As in Kafka, a client's own limit counts all that it sends: whole requests, whatever becomes of them. So a limit keeps
# what did not get into the log, but for what strangers might do to each other (`QuotaLimiter.refund_amount`).
#
# All of them hold over the whole fleet, so a limiter goes by our share (fleet/fleet_limiter.py), and `shares` are parts
# of this worker's slice of our share of the total. Knows no session and no clock. Source: KIP-546.

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from policies.decision import ClientPatience, RequestLimit
from policies.fleet.fleet_limiter import MIN_RATE, FleetLimiter, FleetShares, LimitScope
from policies.fleet.keys import FleetKey, quota_key, total_out_key
from policies.fleet.shares import max_min_fair
from policies.limits.description import LimitDescription, LimitLevel, Traffic, known_broker, place_text, scale_text
from policies.limits.limit_use import LimitMeter, LimitUse
from policies.limits.limiter import AT_ONCE, BURST_S, DEBT_S, MAX_WAIT_S, AdmissionResult, check_limiters
from policies.quotas.names import UNNAMED_USERS, DefaultName, QuotaKey, QuotaType
from policies.quotas.store import TOTAL_KEYS, BucketKey, QuotaStore
from policies.quotas.text import entity_text, limit_text
from policies.units import exact_number
from policies.verdict import CLIENT_QUOTA, Verdict, client_quota

if TYPE_CHECKING:
    from policies.decision import Mode
    from policies.limits.description import FleetUse
    from policies.quotas.store import QuotaLimit as Quota

ALLOCATE_S: Final = 0.25  # how often `allocate_shares` is called while there are shares
IDLE_S: Final = 2.0  # a member that took nothing for this long leaves its shares to the others
SMOOTH: Final = 0.3  # weight of the newest demand in an allocation: one large batch must not move all rates
# Shares of the whole total would never pay back what was taken beyond it, and the total's own limiter, where who comes
# first is served first, would decide instead of them. So less is allocated, at least half, until it is paid back.
PAYBACK_S: Final = 2.0
HELD_FREE: Final = 0.5  # of a member's part: the least that one that wants less may take until the next allocation
UNALLOCATED: Final = 1e12  # bytes per second: of a share that isn't known yet; the first allocation is ALLOCATE_S away
# Of what can be owed before a client waits for longer than MAX_WAIT_S, what one Fetch may ask for: a client that comes
# behind others may ask for less and waits longer, and comes at a better time then. No client has to ask for less than
# these seconds, or consumers whose Fetches wait for data would leave nothing to the others.
FETCH_PART: Final = 1 / 3
MIN_FETCH_S: Final = 0.1
# Seconds of debt that refused requests leave in a limit of one entity that any client can claim to be. With DEBT_S its
# next request passes at the end of its client's patience (limits/limiter.py): each has to cost some time.
CLAIMED_DEBT_S: Final = DEBT_S + 2 * MAX_WAIT_S
MIN_TIME_RATE: Final = 1e-6  # seconds per second
MAX_LIMITERS: Final = 10_000
OTHER_NAME: Final = "\0other"  # no client authenticates by such a name; one that takes it has itself to blame
ALL_BROKERS: Final = -2  # in place of a node id; -1 is a broker that isn't known yet
_SCOPES: Final[Mapping[str, LimitScope]] = {
    "percent": "gateway",  # a thread's time is this machine's
    "shares": "worker",  # the fleet's limit is the total that they are shares of
}
_TRAFFIC: Final[Mapping[QuotaType, Traffic]] = {
    "producer_byte_rate": "produce", "consumer_byte_rate": "fetch", "request_percentage": "both",
}  # fmt: skip


class QuotaRate(NamedTuple):
    """The use of one bucket of a client quota. `key`: type:unit. `source`: the entity that the quota is set for, as
    kafka-quotas prints it. `user`, `client_id`: actual names of the clients that share it; None: it does not depend on
    that name. `broker` None: all brokers. `use`: at this gateway; `configured`: the limit as it is set, for all
    gateways, before the storage factor. Bytes per second; for time, seconds per second; for shares, their number.
    `fleet_key`: "" where no other gateway shares it.
    """

    key: str
    source: str
    user: str | None
    client_id: str | None
    broker: int | None
    use: LimitUse
    configured: float
    fleet_key: FleetKey = ""

    @property
    def bucket(self) -> tuple[str, str, str | None, str | None, int | None]:
        """The name of the bucket."""
        return self[:5]


class QuotaLimiter(FleetLimiter):
    """The limiter of one bucket of a client quota. `rate` in bytes per second, or seconds per second for `percent`.
    `node_id`: the broker that it is for, ALL_BROKERS for all. `quota`: the configured value. `meter`: of the amount
    charged. `promised_bytes`: bytes that may come in responses to Fetches in flight. `retained`: the set that it is in
    from its first charge until it is found full again. `hungry_rate`: of shares, what the next allocation gives it at
    least if it wants more until then and others want what they did; 0.0 or less while that is not known.
    """

    __slots__ = (
        "_is_claimed",
        "_retained",
        "charged",
        "demand",
        "hungry_rate",
        "meter",
        "node_id",
        "promised_bytes",
        "quota",
        "used_at",
    )

    def __init__(
        self,
        fleet: FleetShares,
        now: float,
        node_id: int,
        quota: Quota,
        factor: float,
        retained: set[QuotaLimiter],
        *,
        own: bool,
    ) -> None:
        least = MIN_TIME_RATE if quota.unit == "percent" else MIN_RATE
        super().__init__(
            fleet, _limiter_key(quota, node_id), _limiter_rate(quota), factor, now, least, own=own,
            scope=_SCOPES.get(quota.unit, "fleet"),
        )  # fmt: skip
        self._retained = retained
        # Any client can claim to be under it, since no broker has accepted the name of its user.
        self._is_claimed = not own or quota.bucket.user is None or quota.bucket.user in UNNAMED_USERS
        self.node_id = node_id
        self.quota = quota
        self.meter = LimitMeter(now)
        self.promised_bytes = 0
        self.charged = 0.0  # since the last allocation
        self.demand = 0.0  # bytes per second, smoothed
        self.hungry_rate = 0.0
        self.used_at = now  # when something was taken

    def is_active(self, now: float) -> bool:
        """Whether a client uses it, or waits for its debt, which may be worth many seconds."""
        return now - self.used_at < IDLE_S or now < self.hungry_until

    @property
    def utilization(self) -> float:
        """The rate by the limit."""
        return self.meter.observed_rate / self.bucket.rate

    def read_rate(self, now: float) -> QuotaRate:
        """The present use of the bucket."""
        shared = self.quota.bucket
        user, client_id = (
            None if isinstance(name, DefaultName) else name and name.lstrip("\0")
            for name in (shared.user, shared.client_id)
        )
        broker = None if self.node_id == ALL_BROKERS else self.node_id
        fleet_key = self.key if self.scope == "fleet" else ""
        source = entity_text(self.quota.source)
        return QuotaRate(
            str(shared.key), source, user, client_id, broker, self.measure_use(self.meter, now), self.limit, fleet_key
        )

    @property
    def text(self) -> str:
        """The quota and the clients that share it, for messages."""
        return limit_text(self.quota)

    def describe(
        self, measured: QuotaRate | None, origin: str, fleet: FleetUse, mode: Mode, *, is_idle: bool
    ) -> LimitDescription:
        """`measured`: by all workers of this gateway; None: none of them uses it (`is_idle`), or that is not known."""
        key, value, broker = self.quota.bucket.key, self.quota.rate, known_broker(self.node_id)
        use = None if measured is None else measured.use
        if measured is None and is_idle:
            use = LimitUse(0.0, None)
        elif measured is not None and key.unit != "shares" and measured.configured != self.limit:
            use = measured.use._replace(limit=None)  # no client has used it since it was set
        level, note = self.describe_level(self.text, origin, use, fleet), scale_text(self.factor)
        if key.unit == "percent":
            rate = None if use is None else 100 * use.rate
            level = LimitLevel(self.text, origin, value, value, rate, "%", level.wait_s)
            note = "of one thread's time"
        elif key.unit == "shares":
            limit = None if use is None or use.limit is None or use.limit >= UNALLOCATED else use.limit
            level = LimitLevel(self.text, origin, None, limit, level.rate, wait_s=level.wait_s)
            note = (
                f"{exact_number(value)} shares of what {TOTAL_KEYS[key.type]} of {place_text(broker)} leaves,"
                " dealt out by demand"
            )
        waiting = use is not None and use.waiting
        return LimitDescription(CLIENT_QUOTA, broker, (level,), "delay", _TRAFFIC[key.type], mode, waiting, note)

    def charge_amount(self, size: float, now: float) -> None:
        super().charge_amount(size, now)
        self.meter.charged += size
        self.charged += size
        self.used_at = now
        self._retained.add(self)

    def record_only(self, size: float) -> None:
        """The bytes pass, and are only metered."""
        self.meter.uncharged += size

    def refund_amount(self, size: float) -> None:
        """The bytes did not get into the log. They count all the same, as in Kafka. But where any client can claim to
        be under this limit, they leave no more debt than CLAIMED_DEBT_S, or than independent clients wait for.
        Otherwise a client without the right to write could block another one for hours.
        """
        if self._is_claimed:
            too_much = self.bucket.owed_tokens - (CLAIMED_DEBT_S if self.own else DEBT_S) * self.bucket.rate
            if too_much > 0.0:
                super().refund_amount(min(size, too_much))


class ShareLimiter(QuotaLimiter):
    """The same of a quota in shares."""

    __slots__ = ()

    def check_admission(
        self, size: float, now: float, may_wait: bool, denied_s: float, client: object = None
    ) -> AdmissionResult:
        answer = super().check_admission(size, now, may_wait, denied_s, client)
        if not answer.admitted or answer is AT_ONCE:
            return answer
        return answer._replace(wait_s=self._expected_wait_s(answer.wait_s))

    def wait_after_charge(self, now: float) -> float:
        return self._expected_wait_s(super().wait_after_charge(now))

    def _expected_wait_s(self, wait: float) -> float:
        """`wait` is by the present rate, which follows what the client took; its debt makes the next one larger. By the
        present one, a client whose requests are large for it would wait beside a total that nobody uses, and so take
        even less.
        """
        late = wait - ALLOCATE_S
        if late <= 0.0 or self.hungry_rate <= self.bucket.rate:
            return wait
        return ALLOCATE_S + late * self.bucket.rate / self.hungry_rate


class ShareClaim(NamedTuple):
    """What the clients of one worker want of a broker's total. `weight`: the shares of those that want more, or have
    more than these for each of theirs, at all workers of this gateway; where no client wants more, of all. `hungry`:
    one here waits. `content`: bytes per second that the other ones take here; `others`: those of clients without
    shares.
    """

    weight: float = 0.0
    hungry: bool = False
    content: float = 0.0
    others: float = 0.0


NO_CLAIM: Final = ShareClaim()


class UnchargedTraffic:
    """Bytes of one broker that passed and were only metered, since the last allocation: clients that are only observed
    must not use up the total whose shares the others get.
    """

    __slots__ = ("fetched", "produced")

    def __init__(self) -> None:
        self.produced = self.fetched = 0

    def drain_bytes(self, kind: QuotaType) -> int:
        """Return the bytes of one kind, and reset them."""
        if kind == "producer_byte_rate":
            found, self.produced = self.produced, 0
        else:
            found, self.fetched = self.fetched, 0
        return found


class ConnectionQuotaLimit(RequestLimit):
    """All limiters of one connection. Those of Fetch (`consume_limiters`) take no part in decisions about Produce
    requests, and the thread's time (`time_limiters`) is taken when it was spent. `uncharged`: of their broker.
    """

    __slots__ = ("consume_limiters", "produce_limiters", "time_limiters", "uncharged")

    def __init__(
        self,
        produce: tuple[QuotaLimiter, ...] = (),
        consume: tuple[QuotaLimiter, ...] = (),
        request: tuple[QuotaLimiter, ...] = (),
        uncharged: UnchargedTraffic | None = None,
    ) -> None:
        self.produce_limiters = produce
        self.consume_limiters = consume
        self.time_limiters = request
        self.uncharged = uncharged or UnchargedTraffic()

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict | None:
        asked = [
            *((limiter, size) for limiter in self.produce_limiters),
            *((limiter, 0) for limiter in self.time_limiters),
        ]
        answer, limiter = check_limiters(asked, patience, now)
        if limiter is None:
            return None
        return client_quota(limiter.text, answer.throttle_ms, answer.outcome, answer.room_in_s)

    def charge_request(self, size: int, messages: int, now: float) -> None:
        for limiter in self.produce_limiters:
            limiter.charge_amount(size, now)

    def for_request(self, beside: int) -> RequestLimit:
        """The same limit for one request, with `beside` bytes that belong to none of its batches."""
        return _RequestQuotaLimit(self, beside)

    def available_credit(self, client: object, now: float) -> tuple[float, float]:
        """Bytes of whole requests. There is no credit of the thread's time: each request has to be judged."""
        if self.time_limiters:
            return 0.0, 0.0
        return min(
            [limiter.available_credit(client, now) for limiter in self.produce_limiters], default=math.inf
        ), math.inf

    def record_only(self, size: int, messages: int) -> None:
        self.uncharged.produced += size  # below 0 as well: a total has only what got into the log
        for limiter in self.produce_limiters:
            limiter.record_only(max(0, size))

    def refund_request(self, size: int, messages: int) -> None:
        for limiter in self.produce_limiters:
            limiter.refund_amount(size)

    def check_fetch(self, size: int, patience: ClientPatience, now: float) -> AdmissionResult:
        """Whether a Fetch may be sent; its response may be as large as the last one, `size` bytes. An entity has to pay
        for everything that it fetches; independent clients don't wait for all of it.
        """
        asked = [
            *((limiter, 0 if limiter.own else size) for limiter in self.consume_limiters),
            *((limiter, 0) for limiter in self.time_limiters),
        ]
        return check_limiters(asked, patience, now)[0]

    def reserve_fetch(self, now: float) -> int:
        """Bytes that a Fetch may ask for; 0: any number. They count as owed until `release_fetch`; otherwise all
        consumers that start at once would find nothing owed.
        """
        most = math.inf
        for limiter in self.consume_limiters:
            rate = limiter.bucket.rate
            left = MAX_WAIT_S * rate + limiter.bucket.token_level(now) - limiter.promised_bytes
            most = min(most, max(left * FETCH_PART, MIN_FETCH_S * rate))
        if most == math.inf:
            return 0
        size = max(1, int(most))
        for limiter in self.consume_limiters:
            limiter.promised_bytes += size
        return size

    def charge_fetch(self, size: int, now: float) -> float:
        """A Fetch answer of `size` bytes passes: seconds until the next one may be asked for, at most MAX_WAIT_S; or,
        where quotas are only observed, for how long it would have had to wait.
        """
        for limiter in self.consume_limiters:
            limiter.charge_amount(size, now)
        longest = 0.0
        for limiter in (*self.consume_limiters, *self.time_limiters):
            longest = max(longest, limiter.wait_after_charge(now))
        return min(longest, MAX_WAIT_S)

    def record_fetch_only(self, size: int) -> None:
        """A Fetch answer passes that would not have been asked for yet if quotas were enforced."""
        self.uncharged.fetched += size
        for limiter in self.consume_limiters:
            limiter.record_only(size)

    def release_fetch(self, size: int) -> None:
        """The answer for which that much was promised is here, or will never come."""
        for limiter in self.consume_limiters:
            limiter.promised_bytes -= size


NO_QUOTA_LIMIT: Final = ConnectionQuotaLimit()


class _RequestQuotaLimit(RequestLimit):
    """The limiters of a connection, for one request. `beside`: its bytes that are in none of its batches. Kafka's
    quotas count them as well, and a client may send as many as it likes: names, tagged fields, bytes behind a batch.
    """

    __slots__ = ("_beside", "_quota_limit")

    def __init__(self, quota_limit: ConnectionQuotaLimit, beside: int) -> None:
        self._quota_limit = quota_limit
        self._beside = beside

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict | None:
        return self._quota_limit.judge_request(size + self._beside, messages, patience, now)

    def charge_request(self, size: int, messages: int, now: float) -> None:
        self._quota_limit.charge_request(size + self._beside, messages, now)

    def record_only(self, size: int, messages: int) -> None:
        self._quota_limit.record_only(size, messages)
        if size > 0:
            for limiter in self._quota_limit.produce_limiters:
                limiter.record_only(self._beside)

    def refund_request(self, size: int, messages: int) -> None:
        beside, self._beside = self._beside, 0  # once, however many of its partitions come back
        self._quota_limit.refund_request(size + beside, messages)


class _ShareAllocation:
    """The shares allocated, of the total for producers or that for consumers; all but the time by broker."""

    __slots__ = ("allocated_at", "excess_bytes", "left_rates", "other_rates")

    def __init__(self) -> None:
        self.allocated_at = 0.0
        self.other_rates: dict[int, float] = {}  # rate of the clients without shares, smoothed
        self.excess_bytes: dict[int, float] = {}  # bytes that all have taken beyond the total; below 0: saved
        self.left_rates: dict[int, float] = {}  # to those with shares


class QuotaLimiters:
    """All limiters of one worker.

    `version` changes whenever connections have to look up their limiters again. `has_shares`: whether `allocate_shares`
    is needed. `has_fetch_limits`: whether any quota concerns Fetch. `counts_fetches`: whether `fetched_bytes` is
    counted. `fetched_bytes`: bytes that consumers got from each broker while that was needed.
    """

    def __init__(self, fleet: FleetShares | None = None) -> None:
        self.store = QuotaStore()
        self.fleet = fleet or FleetShares()
        self.version = 0
        self.observes = False
        self.has_shares = False
        self.has_fetch_limits = self.counts_fetches = False
        self._shared_types: set[QuotaType] = set()
        self.fetched_bytes: dict[int, int] = {}
        self._uncharged: dict[int, UnchargedTraffic] = {}
        self._counted: dict[int, int] = {}  # of `fetched` at the last allocation
        self._total_out: float | None = None
        self._totals_out: Mapping[int, float] = {}
        self.max_limiters = MAX_LIMITERS
        self._storage_factor = 1.0
        self._limiters: WeakValueDictionary[tuple[BucketKey, int], QuotaLimiter] = WeakValueDictionary()
        self._retained: set[QuotaLimiter] = set()  # not full: they must not be forgotten
        self._allocations: dict[QuotaType, _ShareAllocation] = {
            "producer_byte_rate": _ShareAllocation(),
            "consumer_byte_rate": _ShareAllocation(),
        }

    def set_quotas(self, store: QuotaStore, now: float, *, observes: bool = False) -> None:
        """Go by these quotas from now on."""
        self.store = store
        self.observes = observes
        keys = {key for values in store.entries.values() for key in values}
        self._shared_types = {key.type for key in keys if key.unit == "shares"}
        self.has_shares = bool(self._shared_types)
        self.has_fetch_limits = any(key.type != "producer_byte_rate" for key in keys)
        self.counts_fetches = "consumer_byte_rate" in self._shared_types
        self.version += 1

    def set_totals_out(self, total: float | None, totals: Mapping[int, float]) -> None:
        """Take the totals that consumers have shares of, in bytes per second of each broker; `totals`: of those with
        their own.
        """
        self._total_out, self._totals_out = total, totals

    def record_fetched(self, node_id: int, size: int) -> None:
        """That many bytes go to a consumer."""
        self.fetched_bytes[node_id] = self.fetched_bytes.get(node_id, 0) + size

    def renew_limits(self) -> None:
        """Connections have to look up their limiters again, and all else that holds for their names."""
        self.version += 1

    def set_storage_factor(self, factor: float, now: float) -> None:
        """The storage factor, above 0: times which every produce limit holds."""
        if factor != self._storage_factor:
            self._storage_factor = factor
            for limiter in list(self._limiters.values()):
                if limiter.scope != "worker":
                    limiter.set_limit(limiter.limit, self._factor_of(limiter.quota), now)

    def connection_limit(self, node_id: int, user: str, client_id: str, now: float) -> ConnectionQuotaLimit:
        """The limiters of a connection to that broker."""
        limits = self.store.connection_limits(user, client_id)
        if not (limits.produce or limits.consume or limits.request):
            return NO_QUOTA_LIMIT
        uncharged = self._uncharged.setdefault(node_id, UnchargedTraffic())
        produce, consume, request = (tuple(self.limiter_of(limit, node_id, now) for limit in kind) for kind in limits)
        return ConnectionQuotaLimit(produce, consume, request, uncharged)

    def close_tick(self, now: float) -> None:
        """Close the meters' tick, and forget limiters without users and without debt."""
        for limiter in list(self._limiters.values()):
            limiter.meter.tick(now)
            if limiter.bucket.is_full(now):
                self._retained.discard(limiter)

    def allocate_fetch_shares(self, now: float) -> None:
        """Allocate shares of the bytes that consumers may take."""
        totals: dict[int, tuple[float | None, float]] = {}
        for node_id, fetched in self.fetched_bytes.items():
            total = self._totals_out.get(node_id, self._total_out)
            if total is not None:
                total = self.fleet.share_of(total_out_key(node_id), total)
            totals[node_id] = total, float(fetched - self._counted.get(node_id, 0))
            self._counted[node_id] = fetched
        self.allocate_shares(totals, now, "consumer_byte_rate")

    def allocate_shares(
        self, totals: Mapping[int, tuple[float | None, float]], now: float, kind: QuotaType = "producer_byte_rate"
    ) -> None:
        """Allocate shares. `totals`: by broker, its limit in bytes per second (storage factor included), and the bytes
        that all clients took since the last allocation. In a fleet the limit is our share of it.
        """
        allocation = self._allocations[kind]
        elapsed = now - allocation.allocated_at
        allocation.allocated_at = now
        if elapsed <= 0.0:
            return
        pools: dict[int, list[ShareLimiter]] = {}
        if kind in self._shared_types and self.fleet.has_others:  # what others take here can't be shared elsewhere
            pools = {node_id: [] for node_id in totals}
        for limiter in self._limiters.values():
            if isinstance(limiter, ShareLimiter) and limiter.quota.bucket.key.type == kind:
                pools.setdefault(limiter.node_id, []).append(limiter)
        for node_id, limiters in pools.items():
            total, taken = totals.get(node_id, (None, 0.0))
            if node_id in self._uncharged:
                taken = max(0.0, taken - self._uncharged[node_id].drain_bytes(kind))
            if total is None:  # shares of nothing are no limit: they were refused or warned about when they were set
                allocation.left_rates.pop(node_id, None)
                allocation.other_rates.pop(node_id, None)
                for limiter in limiters:
                    limiter.bucket.set_rate(UNALLOCATED, now)
                    limiter.charged = 0.0
                continue
            others = max(0.0, taken - sum(limiter.charged for limiter in limiters)) / elapsed
            before = allocation.other_rates.get(node_id, others)
            allocation.other_rates[node_id] = others = before + SMOOTH * (others - before)
            total = self._update_slice(f"{kind} {node_id}", limiters, total, others, now)
            left = total - others
            if kind == "producer_byte_rate":  # nothing but shares decides about consumers
                ahead = allocation.excess_bytes.get(node_id, 0.0) + taken - total * elapsed
                allocation.excess_bytes[node_id] = ahead = min(max(ahead, -BURST_S * total), PAYBACK_S * total)
                left -= min(max(0.0, ahead) / PAYBACK_S, left / 2)
            allocation.left_rates[node_id] = left = max(MIN_RATE, left)
            _allocate_rates(limiters, left, elapsed, now)

    def _update_slice(
        self, name: str, limiters: Sequence[ShareLimiter], total: float, others: float, now: float
    ) -> float:
        """This worker's part of a broker's total, `name`: the more, the more shares the clients have that want more
        here. A client that has all that it wants only because others have less for each of their shares is one of
        those, and so is the first in that order where all together take more than the total.
        """
        hungry, satisfied = _split_hungry(limiters, now)
        content = [limiter for limiter in satisfied if limiter.is_active(now)]
        content.sort(key=lambda limiter: -limiter.demand / limiter.quota.rate)
        taken, weights = self.fleet.read_slices(name, now)
        weights += sum([limiter.quota.rate for limiter in hungry])
        left = total - others - taken - sum([limiter.demand for limiter in content])
        count = 0
        for limiter in content:
            if (weights or left >= 0.0) and limiter.demand * weights <= max(0.0, left) * limiter.quota.rate:
                break
            count += 1
            weights += limiter.quota.rate
            left += limiter.demand
        hungry += content[:count]
        del content[:count]
        weight = sum([limiter.quota.rate for limiter in hungry or limiters])
        return self.fleet.update_slice(
            name, total, others + sum([limiter.demand for limiter in content]), weight, bool(hungry), now
        )

    def busiest_rates(self, most: int, now: float) -> list[QuotaRate]:
        """The limiters that take most of their limits, that one first."""
        busiest = heapq.nlargest(most, self._limiters.values(), key=lambda limiter: limiter.utilization)
        return [limiter.read_rate(now) for limiter in busiest]

    def limiter_of(self, limit: Quota, node_id: int, now: float) -> QuotaLimiter:
        """The limiter of a limit on connections to that broker, made if there is none yet."""
        node_id = ALL_BROKERS if limit.unit == "bps" else node_id
        key = (limit.bucket, node_id)
        limiter = self._limiters.get(key)
        # One client's own, unless clients without a known name share it. (A client that merely claims the client id of
        # a quota has to get something into the log to use up more of it than CLAIMED_DEBT_S: see
        # QuotaLimiter.refund_amount.)
        own = limit.bucket.user not in UNNAMED_USERS or limit.bucket.client_id is not None
        if limiter is None and len(self._limiters) >= self.max_limiters:
            bucket = limit.bucket  # a client may make names up: the rest shares one limiter per limit
            own = False
            user, client_id = (None if name is None else OTHER_NAME for name in (bucket.user, bucket.client_id))
            limit = limit._replace(bucket=BucketKey(bucket.key, user, client_id))
            key = (limit.bucket, node_id)
            limiter = self._limiters.get(key)
        if limiter is None:
            kind = ShareLimiter if limit.unit == "shares" else QuotaLimiter
            limiter = self._limiters[key] = kind(
                self.fleet, now, node_id, limit, self._factor_of(limit), self._retained, own=own
            )
            if limiter.scope == "worker":
                limiter.bucket.set_rate(
                    self._allocations[limit.bucket.key.type].left_rates.get(node_id, UNALLOCATED), now
                )
            self._retained.add(limiter)
        elif limiter.quota is not limit and limiter.quota != limit:
            limiter.quota = limit
            if limiter.scope != "worker":
                limiter.set_limit(_limiter_rate(limit), self._factor_of(limit), now)
        return limiter

    def _factor_of(self, limit: Quota) -> float:
        """Times which the configured limit is in force."""
        return quota_factor(limit.bucket.key, self._storage_factor)

    def share_claims(self, now: float, kind: QuotaType = "producer_byte_rate") -> dict[int, ShareClaim]:
        """By broker, what the clients of this worker want of the total that is shared."""
        if kind not in self._shared_types:
            return {}
        others = self._allocations[kind].other_rates
        active: dict[int, list[ShareLimiter]] = {node_id: [] for node_id in others}
        for limiter in self._limiters.values():
            if isinstance(limiter, ShareLimiter) and limiter.quota.bucket.key.type == kind and limiter.is_active(now):
                active.setdefault(limiter.node_id, []).append(limiter)
        return {
            node_id: self._sum_claims(f"{kind} {node_id}", limiters, others.get(node_id, 0.0), now)
            for node_id, limiters in active.items()
        }

    def _sum_claims(self, name: str, limiters: Sequence[ShareLimiter], others: float, now: float) -> ShareClaim:
        hungry, satisfied = _split_hungry(limiters, now)
        weight = sum([limiter.quota.rate for limiter in hungry])
        all_hungry = self._sum_workers(f"hungry {name}", weight, sum([limiter.bucket.rate for limiter in hungry]), now)
        level = all_hungry[1] / all_hungry[0] if all_hungry[0] else 0.0  # bytes per second that one share is worth
        content = 0.0
        for limiter in satisfied:
            if level and limiter.demand <= level * limiter.quota.rate:
                content += limiter.demand
            else:
                weight += limiter.quota.rate
        weight = self._sum_workers(f"weight {name}", weight, 0.0, now)[0]
        return ShareClaim(weight, any(now < limiter.hungry_until for limiter in hungry), content, others)

    def _sum_workers(self, name: str, first: float, second: float, now: float) -> tuple[float, float]:
        sums = self.fleet.sum_reports(name, (first, second, 0.0), now)
        return (first, second) if sums is None else sums[:2]


def quota_factor(key: QuotaKey, storage_factor: float) -> float:
    """Times which a quota is in force. Shares are parts of a total, and the storage factor lowers that."""
    return storage_factor if key.type == "producer_byte_rate" and key.unit != "shares" else 1.0


def _limiter_rate(quota: Quota) -> float:
    """In the unit of a limiter: bytes, or seconds, per second."""
    return quota.rate / 100 if quota.unit == "percent" else quota.rate


def _limiter_key(quota: Quota, node_id: int) -> FleetKey:
    if quota.unit == "shares":
        return ""
    user, client_id = (None if isinstance(name, DefaultName) else name for name in quota.bucket[1:])
    return quota_key(quota.bucket.key.wire_name, user, client_id, None if node_id == ALL_BROKERS else node_id)


def _split_hungry(limiters: Iterable[ShareLimiter], now: float) -> tuple[list[ShareLimiter], list[ShareLimiter]]:
    """Those whose clients want more, and the others, each in their order: there may be thousands."""
    hungry: list[ShareLimiter] = []
    others: list[ShareLimiter] = []
    for limiter in limiters:
        (hungry if limiter.bucket.in_debt or now < limiter.hungry_until else others).append(limiter)
    return hungry, others


def _allocate_rates(limiters: list[ShareLimiter], left: float, elapsed: float, now: float) -> None:
    for limiter in limiters:
        rate = limiter.charged / elapsed
        limiter.demand += SMOOTH * (rate - limiter.demand)
        limiter.charged = 0.0
    active = [limiter for limiter in limiters if limiter.is_active(now)]
    weight = sum(limiter.quota.rate for limiter in active)
    hungry = sum(limiter.quota.rate for limiter in active if limiter.bucket.in_debt)
    spare = left - sum(limiter.demand for limiter in active if not limiter.bucket.in_debt)
    wants = [(limiter.quota.rate, _wanted_rate(limiter, left)) for limiter in active]
    for limiter, rate in zip(active, max_min_fair(wants, left), strict=True):
        own = limiter.quota.rate
        limiter.hungry_rate = 0.0 if limiter.bucket.in_debt else (spare + limiter.demand) * own / (hungry + own)
        # A client that wants next to nothing is not held to that: wanting more all of a sudden it would have to wait
        # for seconds, and has its part with the next allocation. Not to all of it, or too much is allocated for too
        # long.
        limiter.bucket.set_rate(max(MIN_RATE, rate, HELD_FREE * left * own / weight), now)
    for limiter in limiters:  # one that comes back begins with its own share: the next allocation takes it from others
        if not limiter.is_active(now):
            own = limiter.quota.rate
            limiter.hungry_rate = spare * own / (hungry + own)
            limiter.bucket.set_rate(max(MIN_RATE, left * own / (weight + own)), now)


def _wanted_rate(limiter: QuotaLimiter, left: float) -> float:
    """One with waiting clients wants more than it got; others are counted at what they take, so that the former have
    the rest to the byte.
    """
    return left if limiter.bucket.in_debt else min(left, limiter.demand)
