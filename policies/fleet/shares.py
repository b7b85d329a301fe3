# Limits that hold for more than one process: what each gateway, and each of its workers, may take of them. Max-min fair
# by what members take and whether they want more, computed at once from what everybody tells, not approached in steps
# (tests/policies/pip82.py is the seed's step function; docs/shares.md compares the two).
#
# A hungry member has waited because of the limit: it wants everything. A content one is counted at what it takes, so
# that the hungry ones together have the rest of the limit to the byte; it may take a little more, to grow. An idle one
# keeps a floor. Members of the first split are gateways; of the second, by the same function, a gateway's own workers.
#
# Knows no session, no message, no topic and no clock: `now` is seconds on a monotonic clock. Source: PIP-82.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

# Above the limit, for who wants to grow and for who begins: together less than the tenth that a fleet may be wrong by,
# also when everybody makes use of it in the same second.
HEADROOM: Final = 0.04  # of the limit: by so much content members may exceed what they are counted at, all together
FLOORS: Final = 0.04  # of the limit: what members keep while they are idle, all together
GROW: Final = 0.25  # of what somebody takes: more headroom than that only when all others have as much
# A hungry member may be dealt more than it takes: its producers wait for another one as well, and it is content again a
# moment later. So what is missing from the sum while somebody waits is dealt on top, out of the headroom, until nothing
# is missing.
CATCH_UP: Final = 0.15  # per second, of what is missing
MISSING: Final = 0.1  # of the limit, at most: what rises just now is told late
ENOUGH: Final = 0.005  # of the limit: so little is nothing, or what rates swing by would add up
SETTLE_S: Final = 3.0  # after the first who waits, and after an event: what is missing then comes by itself
FORGET_S: Final = 5.0  # without anybody who waits
TOLERANCE: Final = 0.002  # a part that changed by less isn't told anew …
IDLE_TOLERANCE: Final = 0.1  # … nor by less than that to who takes nothing
# Without the exchange shares stay for as long as a new leader or a restarted broker takes; then they go in a straight
# line to what can't be wrong in sum.
FROZEN_S: Final = 10.0
DECAY_S: Final = 30.0
_DECAY_STEPS: Final = 30
_LIGHTEST: Final = 1e-9


class Use(NamedTuple):
    """What one worker, or all of a gateway, take of one limit. `rate`: per second, smoothed over about a second.
    `hungry`: somebody had to wait because of it within the last half second. `weight`: among others that are hungry.
    `topics`: with traffic. Rate 0 and not hungry: idle.
    """

    rate: float
    hungry: bool = False
    weight: float = 1.0
    topics: int = 0

    @property
    def is_idle(self) -> bool:
        return not self.hungry and self.rate <= 0.0


class Part(NamedTuple):
    """What one worker may take of one limit per second; `fallback`: the same when nobody says anything any more. `rate`
    below 0: there is no such limit.
    """

    rate: float
    fallback: float


IDLE: Final = Use(0.0)
GONE: Final = Part(-1.0, -1.0)


class Share(NamedTuple):
    """`base`: a member's own, all bases together are the limit. `headroom`: how much more it may take."""

    base: float
    headroom: float


def fair(wants: Sequence[tuple[float, float]], left: float) -> list[float]:
    """Max-min fair: `left` for takers of (weight, wanted). What nobody wants goes to all by weight."""
    rates = [0.0] * len(wants)
    # Who wants least for his weight is the first to have all he wants; behind the first who can't, nobody can.
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


def split(
    uses: Sequence[Use], limit: float, headroom: float, workers: Sequence[int], members: int | None = None
) -> list[Share]:
    """Everybody's share of `limit`, which all together may exceed by `headroom`.

    `workers`: how many processes each of `uses` stands for; `members`: of everybody, also of who isn't in `uses`.
    What nobody takes while nobody is hungry is everybody's alike, so that who begins has something to begin with.
    """
    taken = sum([use.rate for use in uses if not use.hungry])
    if taken <= limit and not any(use.hungry for use in uses):
        spare = limit - taken
        each = spare / max(1, sum(workers) if members is None else members)
        bases = [use.rate + each * count for use, count in zip(uses, workers, strict=True)]
        headroom = max(0.0, headroom - spare)
        level = math.inf
    else:
        bases = [0.0] * len(uses)
        active = [i for i, use in enumerate(uses) if not use.is_idle]
        wants = [(uses[i].weight, math.inf if uses[i].hungry else uses[i].rate) for i in active]
        for i, got in zip(active, fair(wants, limit), strict=True):
            bases[i] = got
        level = max([bases[i] / uses[i].weight for i in active])  # what hungry ones have, per weight
    rooms = [0.0] * len(uses)
    if headroom > 0.0:
        growing = [i for i, use in enumerate(uses) if not use.hungry and 0.0 < use.rate <= bases[i]]
        wants = [(uses[i].weight, GROW * uses[i].rate) for i in growing]
        for i, room in zip(growing, fair(wants, headroom), strict=True):
            # No more than if he were hungry: nothing jumps where who is content turns so.
            rooms[i] = min(room, max(0.0, level * uses[i].weight - bases[i]))
    return [Share(base, room) for base, room in zip(bases, rooms, strict=True)]


def parts(uses: Sequence[Use], limit: float) -> list[float]:
    """What each of these workers may take per second, when they are all that share `limit`."""
    floor = FLOORS * limit / max(1, len(uses))
    return [_part(share, limit, floor) for share in split(uses, limit, HEADROOM * limit, [1] * len(uses))]


def as_one(uses: Sequence[Use], others: Sequence[Use], limit: float) -> Use:
    """What workers of one gateway take, in one row, to share `limit` with `others`.

    Where only some are hungry, the row is hungry, and its weight is as much as gives the gateway what all of its
    workers would have if others knew each of them: so who is content may become hungry or the reverse, and nothing
    jumps where what he wants is about what he could have.
    """
    active = [use for use in uses if not use.is_idle]
    rate = sum([use.rate for use in active])
    weight = sum([use.weight for use in active])
    topics = sum([use.topics for use in active])
    hungry = sum([use.weight for use in active if use.hungry])
    if 0.0 < hungry < weight and limit < math.inf and any(use.hungry for use in others):
        wants = [(use.weight, math.inf if use.hungry else use.rate) for use in (*active, *others) if not use.is_idle]
        rates = fair(wants, limit)
        level = next(got / w for got, (w, wanted) in zip(rates, wants, strict=True) if wanted == math.inf)
        weight = sum(rates[: len(active)]) / level if level > 0.0 else hungry
    elif hungry:
        weight = hungry
    return Use(rate, hungry > 0.0, weight if active else 1.0, topics)


class Peers(Protocol):
    """What gateways have told each other: the exchange keeps it (gateway/fleet/peers.py), it is only read here. Rates
    are finite and not below 0, weights above 0.
    """

    @property
    def living(self) -> int:
        """Gateways beside this one."""

    @property
    def workers(self) -> int:
        """Of those, together."""

    def of(self, key: str) -> tuple[list[Use], list[int]]:
        """What each of them takes of a limit, where that is anything, and how many workers each of these has."""

    def told(self, key: str) -> Use:
        """What this gateway takes of it, as the others count it."""


class _NoPeers:
    """There are no others."""

    living = workers = 0

    def of(self, key: str) -> tuple[list[Use], list[int]]:
        return [], []

    def told(self, key: str) -> Use:
        return IDLE


class Dealer:
    """What one gateway's control process knows of limits that it shares: what its workers take of them, what follows
    for each of these, and where to read what its peers take.

    Whoever keeps what peers say calls `heard` and `published` when something of it has changed.

    `frozen_at`: since when the exchange is away; None: it isn't.

    With an exchange (`exchanges`) nothing is dealt before the first `thaw` or `freeze`: a control that was started
    again knows no peer yet, and would deal out all of every limit.
    """

    def __init__(self, peers: Peers | None = None, *, exchanges: bool = False) -> None:
        self.frozen_at: float | None = None
        self._waits = exchanges
        self._limits: dict[str, float] = {}
        self._workers: dict[str, _Worker] = {}
        self._users: dict[str, list[_Worker]] = {}  # by key: who ever took of it, while he lives
        self._peers: Peers = _NoPeers() if peers is None else peers
        self._publishes = peers is not None
        self._population = (0, 0, 0)  # at the last deal: peers, their workers, our own
        self._live: dict[str, Use] = {}  # what all workers take, by key; idle ones aren't here
        self._stale: set[str] = set()  # keys whose entry in _live has to be made anew
        self._news: set[str] = set()  # keys that are to be published
        self._is_told = False  # whether others count with what was published
        self._dirty: set[str] = set()  # keys to be dealt anew
        self._gone: set[str] = set()  # limits that were removed: their workers have to be told
        self._keep: set[str] = set()  # while frozen: keys whose share as it was is to be found yet …
        self._kept: dict[str, Share] = {}  # … and what it is
        self._extra: dict[str, tuple[float, float]] = {}  # of the limit, dealt on top; when that was found
        self._revisited = -math.inf  # when all of _extra was looked at
        self._step = 0  # of the decay

    @property
    def members(self) -> int:
        """Workers of all gateways, as far as known; at least 1."""
        return max(1, len(self._workers) + self._peers.workers)

    @property
    def peers(self) -> int:
        """Other gateways that live."""
        return self._peers.living

    # --- what is known ---

    def listen(self, peers: Peers) -> None:
        """Read what others take from there, and tell them what we take."""
        self._peers = peers
        self._publishes = True

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """All limits, by fleet key: per second, above 0."""
        for key in self._limits.keys() - limits.keys():
            self._gone.add(key)
        changed = [key for key, limit in limits.items() if self._limits.get(key) != limit]
        for key in [key for key in self._extra if self._limits.get(key) != limits.get(key)]:
            del self._extra[key]
        self._gone.difference_update(changed)
        self._limits = dict(limits)
        self._dirty.update(changed)
        self._reweigh(changed)

    def add_worker(self, worker: str) -> None:
        """It runs, and was told nothing yet."""
        if worker not in self._workers:
            self._workers[worker] = _Worker(worker)
            self._everything()

    def retell(self, worker: str) -> None:
        """What that worker was told last it may not have, or not any more."""
        if worker in self._workers:
            self._workers[worker].told.clear()
            self._dirty.update(self._workers[worker].uses)

    def take_demand(self, worker: str, uses: Mapping[str, Use], *, whole: bool = False) -> None:
        """What that worker takes: what changed, or all of it (`whole`: what isn't listed is idle)."""
        self.add_worker(worker)
        known = self._workers[worker]
        for key, use in uses.items():
            self._use(known, key, use)
        if whole:
            for key in [key for key, use in known.uses.items() if not use.is_idle and key not in uses]:
                self._use(known, key, IDLE)

    def forget_worker(self, worker: str) -> None:
        """It ended: its parts are the others', and one of the same name begins without any."""
        gone = self._workers.pop(worker, None)
        if gone is None:
            return
        for key in gone.uses:
            self._users[key].remove(gone)
            if not self._users[key]:
                del self._users[key]
            self._stale.add(key)
            self._dirty.add(key)
        self._everything()

    def heard(self, keys: Iterable[str] | None = None) -> None:
        """Peers take something else of these limits; None: somebody came or went."""
        if keys is None:
            self._everything()
        else:
            used = [key for key in keys if key in self._users]
            self._dirty.update(used)
            self._reweigh(used)

    def published(self, keys: Iterable[str]) -> None:
        """Others count with something else from now on where this gateway takes of these. It counts itself with the
        same (`Peers.told`), or the shares of all would not make up the limit. Until the first call it counts with what
        is so.
        """
        if not self._is_told:
            self._is_told = True
            self._everything()
        self._dirty.update([key for key in keys if key in self._users])

    def freeze(self, now: float) -> None:
        """The exchange is away. What this gateway has of each limit stays for FROZEN_S, and goes to the part that its
        workers are of all last known ones in DECAY_S more; its workers still share it by what they want.
        """
        if self.frozen_at is None:
            self._keep = set() if self._waits else self._users.keys() & self._limits.keys()
            self.frozen_at, self._step, self._waits = now, 0, False
            self._everything()

    def thaw(self, now: float) -> None:
        """The exchange is back, or has begun."""
        if self.frozen_at is not None or self._waits:
            self.frozen_at, self._waits = None, False
            self._keep, self._kept = set(), {}
            self._everything()

    # --- what follows ---

    def changes(self, most: int | None = None) -> dict[str, Use]:
        """What this gateway takes of limits where that is something else than when it was asked last, to be published:
        of at most so many. `has_changes` says whether there are more.
        """
        for key in _some(self._stale, most):
            self._refresh(key)
        found = {key: self._live.get(key, IDLE) for key in _some(self._news, most)}
        self._stale, self._news = self._stale or set(), self._news or set()  # an emptied set keeps its memory
        return found

    @property
    def has_changes(self) -> bool:
        return bool(self._stale or self._news)

    @property
    def is_behind(self) -> bool:
        """Whether the last `deal` had more to look at than it might."""
        return bool(self._dirty) and not self._waits

    def deal(self, now: float, most: int | None = None) -> dict[str, dict[str, Part]]:
        """By worker, the parts that changed since they were told. Call it a few times a second, and again at once while
        it `is_behind`, which it may be only where it looks at `most` limits at once.
        """
        told: dict[str, dict[str, Part]] = {}
        if self._waits:
            return told
        population = self._peers.living, self._peers.workers, len(self._workers)
        if population != self._population:
            self._population = population
            self._everything()
        for key in self._gone:
            for worker in self._users.get(key, ()):
                if worker.told.pop(key, None) is not None:
                    told.setdefault(worker.name, {})[key] = GONE
            self._drop_idle(key)
        self._gone.clear()
        self._decay(now)
        self._revisit(now)
        members = self.members
        for key in _some(self._dirty, most):
            limit = self._limits.get(key)
            users = self._users.get(key)
            if key in self._stale:
                self._stale.discard(key)
                self._refresh(key)
            if limit is None or not users:
                continue
            if self.frozen_at is None and members > 1 and self._live.get(key, IDLE).hungry:
                self._catch_up(key, limit, now)
            fallback = limit / members
            for worker, rate in zip(users, self._rates(key, limit, users), strict=True):
                before = worker.told.get(key, GONE)
                slack = IDLE_TOLERANCE if worker.uses[key].is_idle else TOLERANCE
                if before.fallback != fallback or abs(rate - before.rate) > slack * before.rate:
                    part = worker.told[key] = Part(rate, fallback)
                    told.setdefault(worker.name, {})[key] = part
        self._dirty, self._stale = self._dirty or set(), self._stale or set()
        return told

    def share(self, key: str) -> float:
        """What this gateway has of a limit just now, for people; 0.0 where there is none."""
        limit = self._limits.get(key)
        if limit is None:
            return 0.0
        return _part(self._gateway(key, limit), limit, FLOORS * limit * len(self._workers) / self.members)

    def taken(self, key: str) -> float:
        """What all gateways take of it, as far as known, for people."""
        return self._one(key).rate + sum(use.rate for use in self._peers.of(key)[0])

    def _rates(self, key: str, limit: float, users: Sequence[_Worker]) -> list[float]:
        if self.members == 1:
            return [limit]
        base, headroom = self._gateway(key, limit)
        uses = [worker.uses[key] for worker in users]
        own, counted = self._live.get(key, IDLE), self._counted(key)
        if counted is not own and not counted.hungry and (own.hungry or own.rate > base):
            base, headroom = base + headroom, 0.0  # others don't know yet: all of it is for whoever wants it here
        shares = split(uses, base, headroom, [1] * len(uses), len(self._workers))
        floor = FLOORS * limit / self.members
        return [_part(share, limit, floor) for share in shares]

    def _gateway(self, key: str, limit: float) -> Share:
        """This gateway's share, by whichever way it is found at present."""
        if self.frozen_at is None:
            return self._share(key, limit)
        if key in self._keep:
            self._keep.discard(key)
            self._kept[key] = self._share(key, limit)
        equal = limit * len(self._workers) / self.members
        share = self._kept.get(key, Share(equal, 0.0))
        done = self._step / _DECAY_STEPS
        return Share(min(limit, share.base) * (1 - done) + equal * done, share.headroom * (1 - done))

    def _catch_up(self, key: str, limit: float, now: float) -> None:
        """Somebody here waits: see what all together take less than the limit."""
        extra, then = self._extra.get(key, (0.0, -math.inf))
        if now - then > FORGET_S:
            extra, then = 0.0, now + SETTLE_S
        others = self._peers.of(key)[0]
        taken = sum([use.rate for use in others]) + self._counted(key).rate
        rooms = GROW * sum([use.rate for use in others if not use.hungry])  # for these to grow, of the same headroom
        missing = min(max(-MISSING, 1.0 - ENOUGH - taken / limit), MISSING)
        extra += CATCH_UP * min(max(0.0, now - then), 1.0) * missing
        self._extra[key] = min(max(0.0, extra), max(0.0, HEADROOM - rooms / limit)), max(then, now)

    def _revisit(self, now: float) -> None:
        """What is missing may stay the same, which is no news."""
        if now - self._revisited < 1.0:
            return
        self._revisited = now
        for key, (_, then) in list(self._extra.items()):
            if self._live.get(key, IDLE).hungry:
                self._dirty.add(key)
            elif now - then > FORGET_S:
                del self._extra[key]

    def _share(self, key: str, limit: float) -> Share:
        extra = self._extra.get(key, (0.0, 0.0))[0]
        whole, headroom = limit * (1.0 + extra), limit * (HEADROOM - extra)
        if not self._peers.living:
            return Share(whole, headroom)
        uses, workers = self._peers.of(key)
        uses.append(self._counted(key))
        workers.append(len(self._workers))
        return split(uses, whole, headroom, workers, self.members)[-1]

    def _counted(self, key: str) -> Use:
        """This gateway as others count it."""
        if self._is_told and self._peers.living:
            return self._peers.told(key)
        return self._live.get(key, IDLE)

    def _one(self, key: str) -> Use:
        uses = [worker.uses[key] for worker in self._users.get(key, ())]
        others: Sequence[Use] = ()
        if len(uses) > 1 and any(use.hungry for use in uses):  # else nobody weighs anything
            others = self._peers.of(key)[0]
        return as_one(uses, others, self._limits.get(key, math.inf))

    def _use(self, worker: _Worker, key: str, use: Use) -> None:
        if key not in worker.uses:
            if use.is_idle:
                return
            self._users.setdefault(key, []).append(worker)
        worker.uses[key] = use._replace(weight=max(_LIGHTEST, use.weight))
        self._stale.add(key)
        self._dirty.add(key)
        if use.is_idle and key not in self._limits:
            self._drop_idle(key)

    def _drop_idle(self, key: str) -> None:
        """Of a limit that is gone: traffic brings ever new names of quotas' buckets."""
        users = self._users.get(key, ())
        for worker in [worker for worker in users if worker.uses[key].is_idle and key not in worker.told]:
            del worker.uses[key]
            self._users[key].remove(worker)
        if key in self._users and not self._users[key]:
            del self._users[key]

    def _refresh(self, key: str) -> None:
        use = self._one(key)
        if use == self._live.get(key, IDLE):
            return
        if use.is_idle:
            del self._live[key]
        else:
            self._live[key] = use
        if self._publishes:
            self._news.add(key)

    def _decay(self, now: float) -> None:
        if self.frozen_at is not None:
            over = (now - self.frozen_at - FROZEN_S) / DECAY_S
            step = min(_DECAY_STEPS, max(0, math.floor(over * _DECAY_STEPS)))
            if step != self._step:
                self._step = step
                self._everything()

    def _everything(self) -> None:
        self._extra.clear()
        self._dirty.update(self._users)
        self._reweigh(self._users)

    def _reweigh(self, keys: Iterable[str]) -> None:
        """Several workers are one row, and its weight depends on the limit and on what others take."""
        if len(self._workers) > 1:
            self._stale.update([key for key in keys if len(self._users.get(key, ())) > 1])


def _some(keys: set[str], most: int | None) -> Iterator[str]:
    """Take so many out; None: all that are there now."""
    for _ in range(len(keys) if most is None else min(most, len(keys))):
        yield keys.pop()


class _Worker:
    __slots__ = ("name", "told", "uses")

    def __init__(self, name: str) -> None:
        self.name = name
        self.uses: dict[str, Use] = {}
        self.told: dict[str, Part] = {}


def _part(share: Share, limit: float, floor: float) -> float:
    return max(floor, min(limit, share.base + share.headroom))
