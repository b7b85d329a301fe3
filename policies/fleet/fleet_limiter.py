# Limits that hold over more than this process. Over all workers of this gateway, one bucket does (shared_bucket.py),
# in memory that they share (page.py). Over all gateways, each of them goes by its share of a limit: control knows
# the demand of all and allocates shares; this module only keeps them, and multiplies them by what makes a limit
# smaller at the moment (the storage factor). A limit without a share yet begins with an even one.
#
# Alone (`gateways` 1) every limit is whole and shares are not looked at.
#
# When control no longer allocates shares, limiters use the fallback that they were given for that case: an even share;
# or, if the other gateways have taken over our share, a floor, and all shares are forgotten: they belong to others by
# then.
#
# A gateway that is idle, or takes little, has a small share, and gets its true one a cycle or two after its clients
# have begun to wait. So until then a client waits no longer than that, whatever the limiter owes; the debt stays. By
# the share of an idle gateway, a client waited 7 s after a pause of 0.3 s, and the share was unused meanwhile.
#
# Knows no traffic, no clock and no other member.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakValueDictionary

from policies.fleet.shared_bucket import SharedBucket
from policies.fleet.shares import FLOORS, ShareGrant
from policies.limits.bucket import UNSTARTED, TokenBucket
from policies.limits.description import NOT_SHARED, FleetUse, LimitLevel
from policies.limits.limiter import (
    AT_ONCE,
    BURST_S,
    DEBT_S,
    MAX_DELAY_S,
    MAX_WAIT_S,
    MIN_WAIT_S,
    AdmissionResult,
    RateLimiter,
)

if TYPE_CHECKING:
    from policies.fleet.keys import FleetKey
    from policies.fleet.page import PageRow, SharedPage
    from policies.limits.limit_use import LimitMeter, LimitUse

# Who takes from a limiter, and what its rate is: this worker, any rate that the caller sets; all workers of this
# gateway, the whole limit; the workers of all gateways, this gateway's share of the limit.
LimitScope = Literal["worker", "gateway", "fleet"]

MIN_RATE: Final = 1.0  # per second: a limiter needs a rate, also where nothing is left
# Seconds of a share that can be saved: fewer than of a whole limit, since all members may spend their savings in the
# same second; and when our share becomes smaller, another member has what we had saved of it. With a second it was 1.13
# times the limit behind each short stall, and 1.2 times for 2.5 s after shares changed.
SHARED_BURST_S: Final = 0.25
USED_UP_S: Final = 0.05  # a limiter that has saved less than this is used up
HUNGER_S: Final = 0.1  # a client that waited may take this long after its wait to send again
# A client with one request at a time waits only for itself, and from afar it comes back when something has been saved
# again. If that took no longer than this part of its wait, it would take more if it could: without this rule one with
# requests of 0.85 s of the limit had 0.6 to 0.75 of it for half a minute, beside idle gateways. With a half, gateways
# that use 0.8 of their shares in requests of 2 s of them counted as hungry, too.
RETURN_PART: Final = 0.25
RETURN_S: Final = 0.5  # … and no longer than this
RECOVERY_S: Final = 10.0  # after control is back, until portions of thresholds are where they are used again
SLICE_MAX_AGE_S: Final = 2.0  # a worker that has reported nothing for this long takes nothing


class FleetShares:
    """This gateway's share of every limit, and the page that its workers share. `gateways`: how many share, this one
    included; `processes`: workers of all of them. `settle_s`: 0 while the gateway is alone. `provisional_until`: until
    `settle_s` after gateways came or went, or grants were revoked. `recovering_until`: others have this gateway's
    shares, or had them a moment ago; infinite while control is lost. `limiters`: by key, those that span all gateways
    and that no caller applies shares to. `page`: None where this worker is the only one.
    """

    def __init__(self, page: SharedPage | None = None) -> None:
        self.gateways = self.processes = 1
        self.settle_s = 0.0
        self.provisional_until = self.recovering_until = -math.inf
        self.page = page if page is not None and page.workers > 1 else None
        self._lasting_page = page
        self.limiters: WeakValueDictionary[FleetKey, FleetLimiter] = WeakValueDictionary()
        self._grants: dict[FleetKey, ShareGrant] = {}
        self._slices: dict[str, PageRow] = {}
        self._slice_reports: dict[str, tuple[float, float, float]] = {}  # by this worker, of its slices, and when
        self._falls_back = False
        self._is_lost = False

    @property
    def worker_count(self) -> int:
        """Workers of this gateway, which share its buckets."""
        return 1 if self.page is None else self.page.workers

    @property
    def has_others(self) -> bool:
        """Whether other workers, here or elsewhere, keep the same limits."""
        return self.worker_count > 1 or self.gateways > 1

    @property
    def burst_s(self) -> float:
        """Seconds of its rate that a bucket may save."""
        return SHARED_BURST_S if self.gateways > 1 else BURST_S

    def share_of(self, key: FleetKey, limit: float) -> float:
        """This gateway's share of `limit` (the whole one, as configured); never more than that."""
        if self.gateways == 1:
            return limit
        if self._is_lost:
            return FLOORS * limit / self.gateways
        grant = self._grants.get(key)
        if grant is None:
            return limit / self.gateways
        return min(limit, grant.fallback if self._falls_back else grant.rate)

    def make_bucket(
        self,
        key: FleetKey,
        rate: float,
        burst_s: float,
        debt_s: float,
        now: float = UNSTARTED,
        *,
        limit: float,
        lasts: bool = False,
    ) -> tuple[TokenBucket, int]:
        """A bucket for all workers of this gateway, and how many such buckets there are: 1; where the page has no room,
        each worker has its own. `rate` to `now`: see TokenBucket; `limit`: see SharedBucket. `lasts`: where this worker
        is the only one, the process that replaces it goes on with the bucket, too: a new one that begins full would let
        its burst pass once more. Else it begins with a new one, which is faster.
        """
        page = self._lasting_page if lasts else self.page
        if page is None:
            return TokenBucket(rate, burst_s, debt_s, now), 1
        row = page.acquire_row(key)
        if row is None:
            return TokenBucket(rate / page.workers, burst_s, debt_s, now), page.workers
        return SharedBucket(rate, burst_s, debt_s, now, row, page.ahead_s, limit), 1

    def read_slices(self, name: str, now: float) -> tuple[float, float]:
        """The latest reports of this gateway's other workers on a limit that they share: the rate that they take in any
        case, and the weight of the clients there that want more.
        """
        page, row = self.page, self._slices.get(name)
        if page is None or row is None:
            return 0.0, 0.0
        taken, weights, _ = _sum_recent(row, now + page.ahead_s)
        rate, weight, at = self._slice_reports[name]
        own = (rate, weight) if at >= now - SLICE_MAX_AGE_S else (0.0, 0.0)
        return max(0.0, taken - own[0]), max(0.0, weights - own[1])

    def update_slice(self, name: str, limit: float, taken: float, weight: float, wants: bool, now: float) -> float:
        """The rate, per second, that this worker may take of `limit`, which it shares with this gateway's other
        workers.

        It is the rate that the worker takes in any case, and of the rest a share by the weight of its clients that want
        more, or an even share where no worker has such clients. `taken`, `weight`: the worker's own. `wants` False: it
        begins with as much as if it wanted more, which the others don't count.
        """
        report = taken, weight if wants else 0.0
        sums = self.sum_reports(name, (*report, 0.0), now)
        if sums is None:
            return limit / self.worker_count
        self._slice_reports[name] = *report, now
        left, weights = max(0.0, limit - sums[0]), sums[1]
        if not weights:
            return taken + left / self.worker_count
        return taken + left * weight / (weights if wants else weights + weight)

    def sum_reports(self, name: str, own: tuple[float, float, float], now: float) -> tuple[float, float, float] | None:
        """Report three numbers to this gateway's other workers. Returns the sums over all workers, by their latest
        reports; None where the page has no room.
        """
        page = self.page
        if page is None:
            return own
        row = self._slices.get(name) or page.acquire_row(f"slice {name}")
        if row is None:
            return None
        self._slices[name] = row
        row.write_view(own[0], now + page.ahead_s, own[1], own[2])
        return _sum_recent(row, now + page.ahead_s)

    def update_grants(
        self, grants: Mapping[FleetKey, ShareGrant], gateways: int, settle_s: float, now: float, *, whole: bool = False
    ) -> None:
        """Apply new shares; those not mentioned stay, or are removed if `whole`. A rate below 0 removes one."""
        if whole:
            self._grants.clear()
        for key, grant in grants.items():
            if grant.rate < 0.0:
                self._grants.pop(key, None)
            else:
                self._grants[key] = grant
        others_came = gateways != self.gateways
        everything = others_came or self._falls_back or whole
        if self._is_lost:
            self.recovering_until = now + RECOVERY_S
        self._falls_back = self._is_lost = False
        self.gateways = max(1, gateways)
        self.settle_s = settle_s if self.gateways > 1 else 0.0
        if others_came:
            self.provisional_until = now + self.settle_s
        if everything:
            self._apply_shares(now)
            return
        for key in grants:
            changed = self.limiters.get(key)
            if changed is not None:
                changed.apply_share(now)

    def use_fallback(self, now: float) -> None:
        """Control has sent nothing for too long."""
        if not self._falls_back:
            self._falls_back = True
            self._apply_shares(now)

    def revoke_grants(self, now: float) -> None:
        """Control has sent nothing, and other gateways have this one's shares: until control sends new ones, a floor is
        left, as for an idle gateway. That may end soon, so at first a connection waits no longer than `settle_s`.
        """
        if not self._is_lost:
            self._falls_back = self._is_lost = True
            self.recovering_until = math.inf
            self._grants.clear()
            self.provisional_until = now + self.settle_s
            self._apply_shares(now)

    def _apply_shares(self, now: float) -> None:
        for limiter in list(self.limiters.values()):
            limiter.apply_share(now)

    @property
    def uses_fallback(self) -> bool:
        """Whether control has sent nothing for too long."""
        return self._falls_back


def _sum_recent(row: PageRow, at: float) -> tuple[float, float, float]:
    """The sums over all workers that have reported lately. `at`: by the clock that all workers read."""
    said = [view for view in row.read_views() if view[1] >= at - SLICE_MAX_AGE_S]
    return sum([view[0] for view in said]), sum([view[2] for view in said]), sum([view[3] for view in said])


class FleetLimiter(RateLimiter):
    """One limit that spans more than this process.

    Attributes:
        limit: the whole one, as configured; times `factor` it is in force.
        key: of the limit; "" where the scope is "worker".
        spent: the total taken by this worker, in the unit of `bucket`. `reported`: what its reader had seen of that.
        hungry_until: a connection waits for the limit until then, or was rejected then.
        topics: how many have traffic.

    Debts are bytes: the share and the factor change, debts don't. A lower limit takes effect at once. Waiting
    connections come back at the old pace, so here the debt stays as well; but only as long as a connection waits, or as
    paying it would have taken before, since nothing passes meanwhile.
    """

    __slots__ = ("__weakref__", "_bucket_count", "_burst_s", "_hungry_since", "_min_rate", "_return_s", "_waits_until",
                 "_was_used_up", "factor", "fleet", "hungry_until", "key", "limit", "reported", "scope", "spent",
                 "topics")  # fmt: skip

    def __init__(
        self,
        fleet: FleetShares,
        key: FleetKey,
        limit: float,
        factor: float,
        now: float,
        least: float = MIN_RATE,
        *,
        own: bool = False,
        scope: LimitScope = "fleet",
        bucket_name: str = "",
        burst_s: float | None = None,
        lasts: bool = False,
    ) -> None:
        """`now`: see TokenBucket. `bucket_name`: where several buckets go by the share of this key; then the caller
        applies new shares (`apply_share`) and reports the demand. `burst_s`: seconds of its rate that the bucket may
        save; None: as limits of the fleet do. `lasts`: see `FleetShares.make_bucket`.
        """
        self.fleet = fleet
        self.key = key
        self.limit = limit
        self.factor = factor
        self.scope = scope
        self._min_rate = least
        self._bucket_count = 1
        self._burst_s = burst_s if scope == "fleet" else BURST_S
        rate, debt_s = self._present_rate(), math.inf if own else DEBT_S
        saved_s = fleet.burst_s if self._burst_s is None else self._burst_s
        if scope == "worker":
            bucket = TokenBucket(rate, saved_s, debt_s, now)
        else:
            bucket, self._bucket_count = fleet.make_bucket(
                bucket_name or key, rate, saved_s, debt_s, now, limit=limit, lasts=lasts
            )
        super().__init__(rate, now, own=own, bucket=bucket)
        self.spent = self.reported = 0.0
        self.hungry_until = -math.inf
        self.topics = 0
        self._hungry_since = -math.inf  # when a connection had to wait after a pause in which none did
        self._was_used_up = False  # when something was taken last
        self._waits_until = -math.inf  # the end of the last wait …
        self._return_s = 0.0  # … after which a client comes back soon
        if scope == "fleet":
            if not bucket_name:
                fleet.limiters[key] = self
            if now != UNSTARTED:
                self.apply_share(now)

    def check_admission(
        self, size: float, now: float, may_wait: bool, denied_s: float, client: object = None
    ) -> AdmissionResult:
        answer = super().check_admission(size, now, may_wait, denied_s, client)
        if answer is AT_ONCE:
            return answer
        used_up = self.is_used_up(now)
        longest = self.max_wait_s(now, used_up=used_up)
        if answer.wait_s > longest:
            answer = answer._replace(wait_s=longest, room_in_s=min(answer.room_in_s, longest))
        self.record_wait(answer.wait_s, now, used_up=used_up)
        return answer

    def wait_after_charge(self, now: float) -> float:
        """Seconds that the last client has to wait; 0.0: none."""
        wait = self.debt_wait_s(now)
        if wait < MIN_WAIT_S:
            return 0.0
        self.record_wait(min(wait, MAX_WAIT_S), now, used_up=self._was_used_up)
        return wait

    def is_used_up(self, now: float) -> bool:
        """A request that is too large for its limiter waits for itself; one that finds the limiter used up waits for
        others. So does one of a client that comes back soon after its wait.
        """
        return self.bucket.token_level(now) < USED_UP_S * self.bucket.rate or self._returned_after_s(now) > 0.0

    def _returned_after_s(self, now: float) -> float:
        """Seconds from the end of the last wait, if a client that comes now comes back soon; otherwise 0.0."""
        after_s = now - self._waits_until
        return after_s if 0.0 < after_s < self._return_s else 0.0

    def record_wait(self, wait: float, now: float, *, used_up: bool) -> None:
        """A connection waits for so long. `used_up`: because the limiter was used up before."""
        wait = min(wait, MAX_DELAY_S)
        if used_up:
            until = now + wait + HUNGER_S + self._returned_after_s(now)  # it will take as long to come back
            if now - self.hungry_until > self.fleet.settle_s:
                self._hungry_since = now
            self.hungry_until = max(self.hungry_until, until)
        self._waits_until, self._return_s = now + wait, min(RETURN_PART * wait, RETURN_S)

    def charge_amount(self, size: float, now: float) -> None:
        self._was_used_up = self.is_used_up(now)
        self.bucket.consume_tokens(size, now)
        self.spent += size

    def refund_amount(self, size: float) -> None:
        self.bucket.refund_tokens(size)
        self.spent -= size

    def debt_wait_s(self, now: float) -> float:
        """Seconds until the debt is paid, but no more than `max_wait_s`; 0.0 without one."""
        wait = self.bucket.debt_wait_s(now)
        return min(wait, self.max_wait_s(now, used_up=self._was_used_up)) if wait else 0.0

    def max_wait_s(self, now: float, *, used_up: bool) -> float:
        """The most seconds that a connection may have to wait: unbounded, unless the limiter's rate is provisional, as
        no connection has waited for long enough to have the share that follows from it, or as the share may become
        smaller during this wait, which isn't for others (`used_up`: see record_wait).
        """
        settle_s = 0.0 if self.scope == "gateway" else self.fleet.settle_s
        is_hungry = now - self.hungry_until <= settle_s and now - self._hungry_since >= settle_s
        provisional = now < self.fleet.provisional_until or not (used_up and is_hungry)
        return settle_s if settle_s > 0.0 and provisional else math.inf

    @property
    def whole_rate(self) -> float:
        """The rate, per second, that all gateways may take together."""
        return self.limit * self.factor

    @property
    def gateway_rate(self) -> float:
        """The rate, per second, that all workers of this gateway may take together."""
        return self.bucket.rate * self._bucket_count

    def measure_use(self, meter: LimitMeter, now: float) -> LimitUse:
        """The limit as it stands at this gateway. `meter`: of what this worker took."""
        wait_s = self.debt_wait_s(now)
        return meter.measure_use(self.gateway_rate, wait_s, waiting=wait_s > 0.0 or now < self.hungry_until)

    def describe_level(
        self, what: str, origin: str, use: LimitUse | None, fleet: FleetUse = NOT_SHARED, unit: str = "bytes/s"
    ) -> LimitLevel:
        """The limit as a number to compare a rate with. `use`: by all workers of this gateway, None: not known, its
        `limit` None: none of them has this limit yet. `fleet`: of the limit as configured.
        """
        limit = self.gateway_rate if use is None or use.limit is None else use.limit
        rate, wait_s = (None, 0.0) if use is None else (use.rate, use.wait_s)
        fleet = fleet.scaled_by(self.factor)
        return LimitLevel(what, origin, self.limit, limit, rate, unit, wait_s, self.whole_rate, fleet=fleet)

    def set_limit(self, limit: float, factor: float, now: float) -> None:
        """Set another limit or factor."""
        owed_s, before = self.bucket.debt_wait_s(now), self.limit
        self.limit = limit
        self.factor = factor
        self.apply_share(now)
        self.bucket.follow_limit(before, limit, max(owed_s, MAX_WAIT_S) * self.bucket.rate)

    def apply_share(self, now: float) -> None:
        """Apply this gateway's present share."""
        if self._burst_s is None:
            self.bucket.set_burst(self.fleet.burst_s, now)
        self.bucket.set_rate(self._present_rate(), now)

    @property
    def is_outdated(self) -> bool:
        """Whether this gateway's share is another than at the last `apply_share`."""
        return self.bucket.rate != self._present_rate()

    def _present_rate(self) -> float:
        """This gateway's share, or what its buckets have of that where it has several."""
        share = self.fleet.share_of(self.key, self.limit) if self.scope == "fleet" else self.limit
        return max(self._min_rate, share * self.factor / self._bucket_count)
