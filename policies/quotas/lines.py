# Client quotas at work in one worker: a line (line.py) for each bucket that a connection is under, shared by all
# connections of that bucket. A request waits for the longest of its lines; whichever limit is hit first.
#
# Rates: `bps` holds over all brokers, `broker_bps` and `percent` on each, and `shares` are parts of
# what the broker's total leaves to those who have some, dealt out anew a few times a second by who wants how much
# (max-min fair, weighted). Produce limits are multiplied by the storage factor. A line lives as long as a connection
# uses it or it is not full again: who reconnects finds his debt. It is one entity's own, so the debt is kept (line.py);
# but for the line that strangers share where there are too many of them.
#
# All of them hold over the whole fleet, so a line goes by our part (fleet/lines.py), and shares are parts of our part
# of the total. Knows no session and no clock. Source: KIP-546.

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from policies.decision import Limit, Patience
from policies.fleet.keys import FleetKey, quota_key
from policies.fleet.lines import LOWEST, FleetLine, OurParts
from policies.fleet.shares import fair
from policies.limits.line import BURST_S, MAX_WAIT_S, MIN_WAIT_S, ask_all
from policies.limits.meter import Meter
from policies.quotas.names import Default
from policies.quotas.store import BucketKey, QuotaStore
from policies.quotas.text import entity_text, limit_text
from policies.verdict import Verdict, client_quota

if TYPE_CHECKING:
    from policies.quotas.store import Limit as Quota

DEAL_S: Final = 0.25  # how often `deal` is called while there are shares
IDLE_S: Final = 2.0  # who took nothing for so long leaves his shares to the others
SMOOTH: Final = 0.3  # of a deal's demand that is new: one large batch must not take everybody's rate along
# Shares of the whole total would never pay back what was taken beyond it, and the total's own line, where who comes
# first is served first, would decide instead of them. So less is dealt out, at least half, until it is paid back.
PAYBACK_S: Final = 2.0
HELD_FREE: Final = 0.5  # of his part: what somebody who wants less may take at least until the next deal
UNDEALT: Final = 1e12  # bytes per second: a share of what nobody knows yet; the first deal is DEAL_S away
LEAST_TIME: Final = 1e-6  # seconds per second
MAX_LINES: Final = 10_000
OTHER: Final = "other"
STRANGERS: Final = frozenset(
    {"", "ANONYMOUS"}
)  # users who may be anybody: their names are not known, or there are none
ALL_BROKERS: Final = -2  # in place of a node id; -1 is a broker that isn't known yet


class QuotaRate(NamedTuple):
    """One line of a client quota. `key`: type:unit. `source`: the entity that it is set for, as kafka-quotas prints it.
    `user`, `client_id`: actual names of the clients that share it, None = not by that. `broker` None: all brokers.

    `rate`: taken, one-minute EWMA; `limit`: now in force, storage factor and shares included. Bytes per second; for
    time, seconds per second.
    """

    key: str
    source: str
    user: str | None
    client_id: str | None
    broker: int | None
    rate: float
    limit: float
    waiting: bool


class QuotaLine(FleetLine):
    """The line of one bucket. `rate` in bytes per second, or seconds per second for `percent`.

    `node_id`: of the broker it is for, ALL_BROKERS for all. `quota`: what was configured. `meter`: what was taken.
    `kept`: where it is from when something is taken until it is found full again.
    """

    __slots__ = ("_kept", "demand", "last", "meter", "node_id", "quota", "taken")

    def __init__(
        self, fleet: OurParts, now: float, node_id: int, quota: Quota, factor: float, kept: set[QuotaLine], *, own: bool
    ) -> None:
        least = LEAST_TIME if quota.unit == "percent" else LOWEST
        super().__init__(fleet, _key(quota, node_id), _rate(quota), factor, now, least, own=own)
        self._kept = kept
        self.node_id = node_id
        self.quota = quota
        self.meter = Meter()
        self.taken = 0.0  # since the last deal
        self.demand = 0.0  # bytes per second, smoothed
        self.last = now  # when something was taken

    @property
    def utilization(self) -> float:
        """Taken by limit."""
        return self.meter.rate / self.bucket.rate

    def measured(self) -> QuotaRate:
        """What is taken, and what may be."""
        shared = self.quota.bucket
        user, client_id = (None if isinstance(name, Default) else name for name in (shared.user, shared.client_id))
        broker = None if self.node_id == ALL_BROKERS else self.node_id
        source, bucket = entity_text(self.quota.source), self.bucket
        return QuotaRate(str(shared.key), source, user, client_id, broker, self.meter.rate, bucket.rate, bucket.in_debt)

    @property
    def text(self) -> str:
        """What it is and who shares it, for messages."""
        return limit_text(self.quota)

    def take(self, size: float, now: float) -> None:
        self.bucket.take(size, now)
        self.meter.uncounted += size  # type: ignore[assignment]  # seconds are fractions
        self.note_use(size, now)
        self.taken += size
        self.last = now
        self._kept.add(self)

    def give_back(self, size: float) -> None:
        super().give_back(size)
        self.meter.uncounted -= size  # type: ignore[assignment]
        self.taken -= size


class Lines(Limit):
    """All lines of one connection. Those of Fetch (`consume`) take no part in what is decided about Produce requests,
    and the thread's time (`request`) is taken when it was spent.
    """

    __slots__ = ("consume", "observes", "produce", "request")

    def __init__(
        self,
        produce: tuple[QuotaLine, ...] = (),
        consume: tuple[QuotaLine, ...] = (),
        request: tuple[QuotaLine, ...] = (),
        *,
        observes: bool = False,
    ) -> None:
        self.produce = produce
        self.consume = consume
        self.request = request
        self.observes = observes

    def judge(self, size: int, messages: int, patience: Patience, now: float) -> Verdict | None:
        asked = [*((line, size) for line in self.produce), *((line, 0) for line in self.request)]
        answer, line = ask_all(asked, patience, now)
        if line is None:
            return None
        rates = line.meter.rate, line.bucket.rate
        return client_quota(line.text, answer.throttle_ms, rates, answer.outcome)

    def take(self, size: int, messages: int, now: float) -> None:
        for line in self.produce:
            line.take(size, now)


NONE: Final = Lines()


class QuotaLines:
    """All lines of one worker.

    `version` changes whenever connections have to look up their lines again. `has_shares`: whether `deal` is needed.
    `has_fetch_limits`: whether any quota concerns Fetch.
    """

    def __init__(self, fleet: OurParts | None = None) -> None:
        self.store = QuotaStore()
        self.fleet = fleet or OurParts()
        self.version = 0
        self.observes = False
        self.has_shares = False
        self.has_fetch_limits = False
        self.max_lines = MAX_LINES
        self._factor = 1.0
        self._lines: WeakValueDictionary[tuple[BucketKey, int], QuotaLine] = WeakValueDictionary()
        self._kept: set[QuotaLine] = set()  # not full: they must not be forgotten
        self._dealt = 0.0
        self._others: dict[int, float] = {}  # what those without shares take of each broker, smoothed
        self._ahead: dict[int, float] = {}  # bytes that all have taken of each broker beyond its total; below 0: saved
        self._left: dict[int, float] = {}  # what was dealt out last

    def set_store(self, store: QuotaStore, now: float, *, observes: bool = False) -> None:
        """Go by these quotas from now on."""
        self.store = store
        self.observes = observes
        keys = {key for values in store.entries.values() for key in values}
        self.has_shares = any(key.unit == "shares" for key in keys)
        self.has_fetch_limits = any(key.type != "producer_byte_rate" for key in keys)
        self.version += 1

    def renew(self) -> None:
        """Connections have to look up their lines, and whatever else holds for who they are."""
        self.version += 1

    def set_factor(self, factor: float, now: float) -> None:
        """The storage factor, above 0: times which every produce limit holds."""
        if factor != self._factor:
            self._factor = factor
            for line in list(self._lines.values()):
                if line.key:
                    line.set_limit(line.limit, self._factor_of(line.quota), now)

    def of(self, node_id: int, user: str, client_id: str, now: float) -> Lines:
        """The lines of a connection to that broker."""
        limits = self.store.limits(user, client_id)
        if not (limits.produce or limits.consume or limits.request):
            return NONE
        lines = (tuple(self._line(limit, node_id, now) for limit in kind) for kind in limits)
        return Lines(*lines, observes=self.observes)

    def charge_fetch(self, lines: Lines, size: int, now: float) -> float:
        """A Fetch answer of `size` bytes passes: seconds until the next one may be asked for, at most MAX_WAIT_S; or,
        where quotas are only observed, for how long it would have had to wait.
        """
        for line in lines.consume:
            line.take(size, now)
        longest = 0.0
        for line in (*lines.consume, *lines.request):
            wait = line.wait(now)
            if wait >= MIN_WAIT_S:
                line.hungry = True
                longest = max(longest, wait)
        return min(longest, MAX_WAIT_S)

    def tick(self, ticks: int, now: float) -> None:
        """Close the meters' tick, and forget lines that nobody uses and nobody owes."""
        for line in list(self._lines.values()):
            line.meter.tick(ticks)
            if line.bucket.level(now) >= line.bucket.burst:
                self._kept.discard(line)

    def deal(self, totals: Mapping[int, tuple[float | None, float]], now: float) -> None:
        """Deal shares out. `totals`: by broker, its limit in bytes per second (storage factor included), and what all
        producers took since the last deal. In a fleet the limit is our part of it."""
        elapsed = now - self._dealt
        self._dealt = now
        if elapsed <= 0.0:
            return
        pools: dict[int, list[QuotaLine]] = {}
        for line in self._lines.values():
            if line.quota.unit == "shares" and line.quota.bucket.key.type == "producer_byte_rate":
                pools.setdefault(line.node_id, []).append(line)
        for node_id, lines in pools.items():
            total, taken = totals.get(node_id, (None, 0.0))
            if total is None:  # shares of nothing are no limit: they were refused or warned about when they were set
                self._left.pop(node_id, None)
                for line in lines:
                    line.bucket.set_rate(UNDEALT, now)
                    line.taken = 0.0
                continue
            others = max(0.0, taken - sum(line.taken for line in lines)) / elapsed
            before = self._others.get(node_id, others)
            self._others[node_id] = others = before + SMOOTH * (others - before)
            ahead = self._ahead.get(node_id, 0.0) + taken - total * elapsed
            self._ahead[node_id] = ahead = min(max(ahead, -BURST_S * total), PAYBACK_S * total)
            left = total - others
            left = max(LOWEST, left - min(max(0.0, ahead) / PAYBACK_S, left / 2))
            self._left[node_id] = left
            _deal(lines, left, elapsed, now)

    def rates(self, most: int) -> list[QuotaRate]:
        """The lines that take most of their limits, that one first."""
        busiest = heapq.nlargest(most, self._lines.values(), key=lambda line: line.utilization)
        return [line.measured() for line in busiest]

    def _line(self, limit: Quota, node_id: int, now: float) -> QuotaLine:
        node_id = ALL_BROKERS if limit.unit == "bps" else node_id
        key = (limit.bucket, node_id)
        line = self._lines.get(key)
        # Nobody else's, unless it is everybody's whose name isn't known. (Who says the client id of a quota has to get
        # something into the log to use it up: what doesn't is given back.)
        own = limit.bucket.user not in STRANGERS or limit.bucket.client_id is not None
        if line is None and len(self._lines) >= self.max_lines:
            bucket = limit.bucket  # a client may make names up: the rest shares one line per limit
            own = False
            user, client_id = (None if name is None else OTHER for name in (bucket.user, bucket.client_id))
            limit = limit._replace(bucket=BucketKey(bucket.key, user, client_id))
            key = (limit.bucket, node_id)
            line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = QuotaLine(
                self.fleet, now, node_id, limit, self._factor_of(limit), self._kept, own=own
            )
            if not line.key:
                line.bucket.set_rate(self._left.get(node_id, UNDEALT), now)
            self._kept.add(line)
        elif line.quota is not limit and line.quota != limit:
            line.quota = limit
            if line.key:
                line.set_limit(_rate(limit), self._factor_of(limit), now)
        return line

    def _factor_of(self, limit: Quota) -> float:
        """Times which the configured limit is in force."""
        return self._factor if limit.bucket.key.type == "producer_byte_rate" else 1.0

    def claims(self, now: float) -> dict[int, tuple[float, bool]]:
        """By broker, of those who have shares and use them: how many, and whether one of them had to wait since the
        last call.
        """
        found: dict[int, tuple[float, bool]] = {}
        for line in self._lines.values():
            if not line.key and now - line.last < IDLE_S:
                weight, hungry = found.get(line.node_id, (0.0, False))
                hungry = hungry or line.hungry or line.bucket.wait(now) > 0.0
                line.hungry = False
                found[line.node_id] = weight + line.quota.rate, hungry
        return found


def _rate(quota: Quota) -> float:
    """In the unit of a line: bytes, or seconds, per second."""
    return quota.rate / 100 if quota.unit == "percent" else quota.rate


def _key(quota: Quota, node_id: int) -> FleetKey:
    if quota.unit == "shares":  # the fleet's limit is the total that they are shares of
        return ""
    user, client_id = (None if isinstance(name, Default) else name for name in quota.bucket[1:])
    return quota_key(quota.bucket.key.wire, user, client_id, None if node_id == ALL_BROKERS else node_id)


def _deal(lines: list[QuotaLine], left: float, elapsed: float, now: float) -> None:
    for line in lines:
        rate = line.taken / elapsed
        line.demand += SMOOTH * (rate - line.demand)
        line.taken = 0.0
    active = [line for line in lines if now - line.last < IDLE_S]
    weight = sum(line.quota.rate for line in active)
    wants = [(line.quota.rate, _wanted(line, left)) for line in active]
    for line, rate in zip(active, fair(wants, left), strict=True):
        # Who wants next to nothing is not held to that: wanting more all of a sudden he would be told to wait for
        # seconds, and has his part with the next deal. Not to all of it, or too much is dealt out for too long.
        line.bucket.set_rate(max(LOWEST, rate, HELD_FREE * left * line.quota.rate / weight), now)
    for line in lines:  # who comes back begins with what would be his: the next deal takes it from the others
        if now - line.last >= IDLE_S:
            line.bucket.set_rate(max(LOWEST, left * line.quota.rate / (weight + line.quota.rate)), now)


def _wanted(line: QuotaLine, left: float) -> float:
    """Who waits wants more than he got; others a little more than they took, so that they can grow."""
    return left if line.bucket.in_debt else min(left, 1.25 * line.demand)
