# Limits that hold for more than one gateway: what each of them may take. Max-min fair by what gateways take and whether
# they want more, computed at once from the reports of all, not approached in steps (tests/policies/groups/pip82.py is
# the seed's step function; docs/shares.md compares the two).
#
# A hungry gateway has waited because of the limit: it wants everything. A content one is counted at what it takes, so
# that the hungry ones together have the rest of the limit to the byte; it may take a little more, to grow. An idle one
# keeps a floor. The workers of a gateway need no allocation: they share one bucket (shared_bucket.py).
#
# Knows no session, no message, no topic and no clock: `now` is seconds on a monotonic clock. Source: PIP-82.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

# Above the limit, for members that grow or begin: together less than the tenth that a fleet may be wrong by, even when
# all members use it in the same second.
HEADROOM: Final = 0.1  # of the limit: all content members together may exceed what they are counted at by this much
FLOORS: Final = 0.04  # of the limit: kept by all idle members together
GROWTH_HEADROOM: Final = 0.25  # of a member's rate: it gets more headroom than this only when all others have as much
# A hungry member may be allocated more than it takes: its producers wait for another one as well, and it is content
# again a moment later. So what is missing from the sum while a connection waits is granted on top, out of the headroom,
# until nothing is missing.
CATCH_UP: Final = 0.3  # per second, of what is missing
FADE_S: Final = 3.0  # so that all gateways get the same result, whenever each of them began
MISSING: Final = 0.08  # of the limit, at most: a rate that is rising is reported late
ENOUGH: Final = 0.005  # of the limit: less than this counts as nothing, or the swings of rates would add up
SETTLE_S: Final = 3.0  # after the first member waits, and after an event: the shortfall then resolves itself
FORGET_S: Final = 5.0  # without a waiting member
TOLERANCE: Final = 0.002  # a share that changed by less isn't sent again …
IDLE_TOLERANCE: Final = 0.1  # … nor one that changed by less than this, to a member that takes nothing
# Without the exchange shares stay for as long as a new leader or a restarted broker takes; then they go in a straight
# line to what can't be wrong in sum.
FROZEN_S: Final = 10.0
DECAY_S: Final = 30.0
_DECAY_STEPS: Final = 30
_MIN_WEIGHT: Final = 1e-9


class LimitDemand(NamedTuple):
    """The demand of one worker, or of all of a gateway, for one limit. `rate`: per second, smoothed over about a
    second. `hungry`: a connection has to wait because of the limit now. `weight`: among other hungry members. `topics`:
    with traffic. `claim`: what it has a right to before others, per second, as far as it wants it. Rate 0 and not
    hungry: idle.
    """

    rate: float
    hungry: bool = False
    weight: float = 1.0
    topics: int = 0
    claim: float = 0.0

    @property
    def is_idle(self) -> bool:
        return not self.hungry and self.rate <= 0.0


class ShareGrant(NamedTuple):
    """The rate, per second, that one gateway may take of one limit; `fallback`: the rate to use when control sends
    nothing any more. `rate` below 0: there is no such limit.
    """

    rate: float
    fallback: float


IDLE: Final = LimitDemand(0.0)
REVOKED: Final = ShareGrant(-1.0, -1.0)


class FairShare(NamedTuple):
    """`base`: a member's own share; all bases together are the limit. `headroom`: how much more it may take."""

    base: float
    headroom: float


def max_min_fair(wants: Sequence[tuple[float, float]], left: float) -> list[float]:
    """Divide `left` by max-min fairness among members with (weight, wanted). The rest that none wants goes to all by
    weight.
    """
    rates = [0.0] * len(wants)
    # The member that wants least for its weight gets all it wants first; after the first that can't, none can.
    order = sorted(range(len(wants)), key=lambda i: wants[i][1] / wants[i][0])
    weights = list(accumulate([wants[i][0] for i in reversed(order)]))  # of those from each place on
    for i in order:
        weight, wanted = wants[i]
        if wanted > left * weight / weights[-1]:
            level = left / weights[-1]
            for j in order[-len(weights) :]:
                rates[j] = level * wants[j][0]
            return rates
        rates[i] = wanted
        left -= wanted
        weights.pop()
    total = sum([weight for weight, _ in wants])
    return [rate + left * weight / total for rate, (weight, _) in zip(rates, wants, strict=True)]


def split_limit(
    uses: Sequence[LimitDemand], limit: float, headroom: float, members: int | None = None
) -> list[FairShare]:
    """Each member's share of `limit`, which all together may exceed by `headroom`. `members`: how many share it,
    including those not in `uses`. Claims come first, and the rest is divided fairly among those that want more. While
    no member is hungry, the unused rest is divided evenly, so that a member that begins has a share to begin with.
    """
    claims = [0.0] * len(uses)
    taken = sum([use.rate for use in uses if not use.hungry])
    if taken <= limit and not any(use.hungry for use in uses):
        spare = limit - taken
        each = spare / max(1, len(uses) if members is None else members)
        bases = [use.rate + each for use in uses]
        headroom = max(0.0, headroom - spare)
        level = math.inf
    else:
        claims = _fit_claims(uses, limit)
        bases = claims.copy()
        active = [i for i, use in enumerate(uses) if not use.is_idle]
        wants = [(uses[i].weight, math.inf if uses[i].hungry else max(0.0, uses[i].rate - claims[i])) for i in active]
        for i, got in zip(active, max_min_fair(wants, max(0.0, limit - sum(claims))), strict=True):
            bases[i] += got
        level = max([(bases[i] - claims[i]) / uses[i].weight for i in active])  # what hungry members get, per weight
    rooms = [0.0] * len(uses)
    if headroom > 0.0:
        growing = [i for i, use in enumerate(uses) if not use.hungry and 0.0 < use.rate <= bases[i]]
        wants = [(uses[i].weight, GROWTH_HEADROOM * uses[i].rate) for i in growing]
        for i, room in zip(growing, max_min_fair(wants, headroom), strict=True):
            # No more than if it were hungry: nothing jumps when a hungry member becomes content.
            rooms[i] = min(room, max(0.0, claims[i] + level * uses[i].weight - bases[i]))
    return [FairShare(base, room) for base, room in zip(bases, rooms, strict=True)]


def _fit_claims(uses: Sequence[LimitDemand], limit: float) -> list[float]:
    """Each member's claim as far as it is used, all of them reduced alike where they are more than the limit."""
    claims = [use.claim if use.hungry else min(use.claim, use.rate) for use in uses]
    claimed = sum(claims)
    return [claim * limit / claimed for claim in claims] if claimed > limit else claims


def sum_demands(uses: Iterable[LimitDemand]) -> LimitDemand:
    """The demand of one gateway's workers, which share one bucket."""
    active = [use for use in uses if not use.is_idle]
    if len(active) == 1:
        return active[0]
    return LimitDemand(
        sum([use.rate for use in active]),
        any(use.hungry for use in active),
        sum([use.weight for use in active]) / max(1, len(active)) if active else 1.0,
        sum([use.topics for use in active]),
        sum([use.claim for use in active]),
    )


class PeerDemands(Protocol):
    """Reports that gateways send each other. The exchange keeps them (gateway/control/fleet/exchange/peers.py); this
    class only reads them. Rates are finite and not below 0, weights above 0.
    """

    @property
    def peer_count(self) -> int:
        """The number of other gateways."""

    def demands_for(self, key: str) -> list[LimitDemand]:
        """The demand of each of them for a limit, where it has any."""

    def published_demand(self, key: str) -> LimitDemand:
        """This gateway's demand for the limit, as the others count it."""


class _WorkerDemands:
    """The demand of this gateway's workers for each limit; idle limits too, until they are removed."""

    def __init__(self) -> None:
        self._workers: dict[str, dict[str, LimitDemand]] = {}
        self.users: dict[str, set[str]] = {}  # by key: workers that have reported it
        self._silent: set[str] = set()

    def demand_for(self, key: str) -> LimitDemand:
        """The demand of all workers together, without those that are silent."""
        return sum_demands(self._workers[worker][key] for worker in self.users.get(key, set()) - self._silent)

    def mark_silent(self, worker: str, is_silent: bool) -> Iterator[str]:
        """See `ShareAllocator.mark_worker_silent`. Yields the worker's keys."""
        (self._silent.add if is_silent else self._silent.discard)(worker)
        yield from self._workers.get(worker, {})

    def update_worker(self, worker: str, uses: Mapping[str, LimitDemand], *, whole: bool) -> Iterator[str]:
        """See `ShareAllocator.update_demand`. Yields the keys whose demand may have changed."""
        known = self._workers.setdefault(worker, {})
        for key, use in uses.items():
            if self._set_demand(worker, key, use):
                yield key
        if whole:
            for key in [key for key, use in known.items() if not use.is_idle and key not in uses]:
                self._set_demand(worker, key, IDLE)
                yield key

    def _set_demand(self, worker: str, key: str, use: LimitDemand) -> bool:
        known = self._workers[worker]
        if key not in known:
            if use.is_idle:
                return False
            self.users.setdefault(key, set()).add(worker)
        known[key] = use._replace(weight=max(_MIN_WEIGHT, use.weight))
        return True

    def forget_worker(self, worker: str) -> Iterator[str]:
        """The worker ended. Yields its keys."""
        self._silent.discard(worker)
        for key in self._workers.pop(worker, {}):
            self.users[key].discard(worker)
            if not self.users[key]:
                del self.users[key]
            yield key

    def drop_idle(self, key: str) -> None:
        """Drop a limit that was removed: traffic brings ever new names of quotas' buckets."""
        users = self.users.get(key, set())
        for worker in [worker for worker in users if self._workers[worker][key].is_idle]:
            del self._workers[worker][key]
            users.discard(worker)
        if not users:
            self.users.pop(key, None)


class _CatchUpShares:
    """The part of each limit that is granted on top, because all gateways together take less than the limit while one
    of them waits; negative where they take more.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, float]] = {}  # of the limit; when that was found
        self._revisited = -math.inf  # when all of them were looked at

    def extra_for(self, key: str) -> float:
        return self._found.get(key, (0.0, 0.0))[0]

    def forget_key(self, key: str) -> None:
        self._found.pop(key, None)

    def clear_keys(self) -> None:
        self._found.clear()

    def catch_up(self, key: str, taken: float, by_others: float, now: float) -> None:
        """A connection waits while all gateways together take this fraction of the limit; `by_others`: without this
        one. No more is withheld than others take: our own bucket holds us to the limit, while our rate as it is
        measured swings around it.
        """
        extra, then = self._found.get(key, (0.0, -math.inf))
        if now - then > FORGET_S:
            extra, then = 0.0, now + SETTLE_S
        missing = min(max(-MISSING, 1.0 - ENOUGH - taken), MISSING)
        elapsed = min(max(0.0, now - then), 1.0)
        extra += elapsed * (CATCH_UP * missing - extra / FADE_S)
        self._found[key] = min(max(-MISSING, -by_others, extra), MISSING), max(then, now)

    def keys_to_revisit(self, is_hungry: Callable[[str], bool], now: float) -> list[str]:
        """Once a second: the limits to allocate again because their unused rest may stay the same, which triggers
        nothing else.
        """
        if now - self._revisited < 1.0:
            return []
        self._revisited = now
        hungry = [key for key in self._found if is_hungry(key)]
        for key in self._found.keys() - hungry:
            if now - self._found[key][1] > FORGET_S:
                del self._found[key]
        return hungry


class ShareAllocator:
    """One gateway's control process on limits that it shares with others: the demand of its workers, the gateway's own
    that follows, and its peers' (`PeerDemands`).

    The exchange calls `mark_peers_changed` and `mark_published` when a report has changed.

    `frozen_at`: the time since which the exchange is away; None: it isn't. `is_urgent`: this gateway has begun or ended
    to want more of a limit, and peers don't know; the exchange sets it to False when it reports that.

    Nothing is allocated before the first `thaw_shares` or `freeze_shares`: a control that was started again knows no
    peer yet, and would allocate all of every limit.
    """

    def __init__(self, peers: PeerDemands) -> None:
        self.frozen_at: float | None = None
        self.is_urgent = False
        self._waits = True
        self._limits: dict[str, float] = {}
        self._demand = _WorkerDemands()
        self._peers = peers
        self._last_peer_count = 0  # at the last allocation
        self._active_demands: dict[str, LimitDemand] = {}  # what all workers take, by key; idle ones aren't here
        self._granted: dict[str, ShareGrant] = {}  # to workers
        self._unpublished: set[str] = set()  # keys that are to be published
        self._is_published = False  # whether others count with what was published
        self._dirty: set[str] = set()  # keys to be allocated again
        self._keep: set[str] = set()  # while frozen: keys whose share as it was is to be found yet …
        self._kept: dict[str, FairShare] = {}  # … and what it is
        self._extra = _CatchUpShares()
        self._step = 0  # of the decay

    @property
    def gateway_count(self) -> int:
        """The number of gateways that share, as far as known; at least 1."""
        return 1 + self._peers.peer_count

    @property
    def grants(self) -> Mapping[str, ShareGrant]:
        """All shares that workers have."""
        return self._granted

    # --- what is known ---

    def update_limits(self, limits: Mapping[str, float | None]) -> None:
        """Set these limits, by fleet key: per second, above 0; None: there is none any more. All others stay."""
        for key, limit in limits.items():
            if limit == self._limits.get(key):
                continue
            if limit is None:
                del self._limits[key]
            else:
                self._limits[key] = limit
            self._extra.forget_key(key)
            self._dirty.add(key)

    def update_demand(self, worker: str, uses: Mapping[str, LimitDemand], *, whole: bool = False) -> None:
        """Apply that worker's demand: the changes, or all of it (`whole`: keys that are not listed are idle)."""
        for key in self._demand.update_worker(worker, uses, whole=whole):
            self._refresh_demand(key)

    def forget_worker(self, worker: str) -> None:
        """The worker ended."""
        for key in self._demand.forget_worker(worker):
            self._refresh_demand(key)

    def mark_worker_silent(self, worker: str, is_silent: bool) -> None:
        """The worker reports nothing at all, so it takes nothing; or it does again, and what it reported counts."""
        for key in self._demand.mark_silent(worker, is_silent):
            self._refresh_demand(key)

    def mark_peers_changed(self, keys: Iterable[str] | None = None) -> None:
        """Peers have another demand for these limits; None: a gateway came or went."""
        if keys is None:
            self._mark_all_dirty()
        else:
            self._dirty.update([key for key in keys if key in self._demand.users])

    def mark_published(self, keys: Iterable[str]) -> None:
        """Peers count another demand of this gateway for these limits from now on. The gateway itself uses the same
        value (`PeerDemands.published_demand`), or all shares would not add up to the limit. Until the first call it
        uses its present demand.
        """
        if not self._is_published:
            self._is_published = True
            self._mark_all_dirty()
        self._dirty.update([key for key in keys if key in self._demand.users])

    def freeze_shares(self, now: float) -> None:
        """The exchange is down. This gateway's share of each limit stays for FROZEN_S, and then goes to an even share,
        among all gateways known last, in DECAY_S.
        """
        if self.frozen_at is None:
            self._keep = set() if self._waits else self._demand.users.keys() & self._limits.keys()
            self.frozen_at, self._step, self._waits = now, 0, False
            self._mark_all_dirty()

    def thaw_shares(self, now: float) -> None:
        """The exchange is back, or up for the first time."""
        if self.frozen_at is not None or self._waits:
            self.frozen_at, self._waits = None, False
            self._keep, self._kept = set(), {}
            self._mark_all_dirty()

    # --- what follows ---

    def drain_changes(self, most: int | None = None) -> dict[str, LimitDemand]:
        """At most `most` of this gateway's demands that changed since the last call, to be published. `has_changes`
        says whether there are more.
        """
        found = {key: self._active_demands.get(key, IDLE) for key in _pop_keys(self._unpublished, most)}
        self._unpublished = self._unpublished or set()  # an emptied set keeps its memory
        return found

    @property
    def has_changes(self) -> bool:
        return bool(self._unpublished)

    @property
    def is_behind(self) -> bool:
        """Whether the last `allocate_shares` could not process all changed limits."""
        return bool(self._dirty) and not self._waits

    @property
    def is_settled(self) -> bool:
        """Whether nothing changes with time: no worker takes anything, and others know."""
        if self._active_demands or self._unpublished or self._dirty or self.is_urgent:
            return False
        return self.frozen_at is None or self._step == _DECAY_STEPS

    def allocate_shares(self, now: float, most: int | None = None) -> dict[str, ShareGrant]:
        """The shares that changed since workers got them. Call it a few times a second, and again at once while
        `is_behind`, which it may be only where it processes at most `most` limits at once.
        """
        grants: dict[str, ShareGrant] = {}
        if self._waits:
            return grants
        if self._peers.peer_count != self._last_peer_count:
            self._last_peer_count = self._peers.peer_count
            self._mark_all_dirty()
        self._decay_shares(now)
        self._dirty.update(self._extra.keys_to_revisit(lambda key: self._active_demands.get(key, IDLE).hungry, now))
        gateways = self.gateway_count
        for key in _pop_keys(self._dirty, most):
            limit = self._limits.get(key)
            if limit is None or key not in self._demand.users:
                if self._granted.pop(key, None) is not None:
                    grants[key] = REVOKED
                self._demand.drop_idle(key)
                continue
            own = self._active_demands.get(key, IDLE)
            if self.frozen_at is None and gateways > 1 and own.hungry and limit > 0.0:
                self._catch_up(key, limit, now)
            rate, fallback = self.share_of(key), limit / gateways
            before = self._granted.get(key, REVOKED)
            slack = IDLE_TOLERANCE if own.is_idle else TOLERANCE
            if before.fallback != fallback or abs(rate - before.rate) > slack * before.rate:
                self._granted[key] = grants[key] = ShareGrant(rate, fallback)
        self._dirty = self._dirty or set()
        return grants

    def share_of(self, key: str, limit: float | None = None) -> float:
        """This gateway's present share of a limit; 0.0 where there is none. `limit`: the value of one that this gateway
        takes nothing of, and that `update_limits` therefore doesn't list.
        """
        limit = self._limits.get(key, limit)
        if limit is None:
            return 0.0
        if self.gateway_count == 1:
            return limit
        return _bounded_rate(self._current_share(key, limit), limit, FLOORS * limit / self.gateway_count)

    def _current_share(self, key: str, limit: float) -> FairShare:
        """This gateway's share, by whichever method applies now."""
        if self.frozen_at is None:
            return self._compute_share(key, limit)
        if key in self._keep:
            self._keep.discard(key)
            self._kept[key] = self._compute_share(key, limit)
        equal = limit / self.gateway_count
        share = self._kept.get(key, FairShare(equal, 0.0))
        done = self._step / _DECAY_STEPS
        return FairShare(min(limit, share.base) * (1 - done) + equal * done, share.headroom * (1 - done))

    def _catch_up(self, key: str, limit: float, now: float) -> None:
        """A connection here waits: determine how much less than the limit all gateways together take."""
        by_others = sum([use.rate for use in self._peers.demands_for(key)]) / limit
        self._extra.catch_up(key, by_others + self._counted_demand(key).rate / limit, by_others, now)

    def _compute_share(self, key: str, limit: float) -> FairShare:
        whole, headroom = limit * (1.0 + self._extra.extra_for(key)), limit * HEADROOM
        if not self._peers.peer_count:
            return FairShare(whole, headroom)
        return split_limit(
            [*self._peers.demands_for(key), self._counted_demand(key)], whole, headroom, self.gateway_count
        )[-1]

    def _counted_demand(self, key: str) -> LimitDemand:
        """This gateway's demand as others count it."""
        if self._is_published and self._peers.peer_count:
            return self._peers.published_demand(key)
        return self._active_demands.get(key, IDLE)

    def _refresh_demand(self, key: str) -> None:
        use = self._demand.demand_for(key)
        self._dirty.add(key)
        if use == self._active_demands.get(key, IDLE):
            return
        published = self._peers.published_demand(key)
        self.is_urgent |= (use.hungry, use.is_idle) != (published.hungry, published.is_idle)
        if use.is_idle:
            self._active_demands.pop(key, None)
        else:
            self._active_demands[key] = use
        self._unpublished.add(key)

    def _decay_shares(self, now: float) -> None:
        if self.frozen_at is not None:
            over = (now - self.frozen_at - FROZEN_S) / DECAY_S
            step = min(_DECAY_STEPS, max(0, math.floor(over * _DECAY_STEPS)))
            if step != self._step:
                self._step = step
                self._mark_all_dirty()

    def _mark_all_dirty(self) -> None:
        self._extra.clear_keys()
        self._dirty.update(self._demand.users)


def _pop_keys(keys: set[str], most: int | None) -> Iterator[str]:
    """Remove and yield that many keys; None: all that are present now."""
    for _ in range(len(keys) if most is None else min(most, len(keys))):
        yield keys.pop()


def _bounded_rate(share: FairShare, limit: float, floor: float) -> float:
    return max(floor, min(limit, share.base + share.headroom))
