# Limits that hold for more than one process: what each gateway, and each of its workers, may take of them. Max-min fair
# by what members take and whether they want more, computed at once from what everybody tells, not approached in steps
# (policies/pip82.py is the seed's step function; docs/shares.md compares the two).
#
# A hungry member has waited because of the limit: it wants everything. A content one is counted at what it takes, so
# that the hungry ones together have the rest of the limit to the byte; it may take a little more, to grow. An idle one
# keeps a floor. Members of the first split are gateways; of the second, by the same function, a gateway's own workers.
#
# Knows no session, no message, no topic and no clock: `now` is seconds on a monotonic clock. Source: PIP-82.

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

# Above the limit, for who wants to grow and for who begins: together less than the tenth that a fleet may be wrong by,
# also when everybody makes use of it in the same second.
HEADROOM: Final = 0.04  # of the limit: by so much content members may exceed what they are counted at, all together
FLOORS: Final = 0.04  # of the limit: what members keep while they are idle, all together
GROW: Final = 0.25  # of what somebody takes: more headroom than that only when all others have as much
TOLERANCE: Final = 0.002  # a part that changed by less isn't told anew …
IDLE_TOLERANCE: Final = 0.1  # … nor by less than that to who takes nothing
# Without the exchange shares stay for as long as a new leader or a restarted broker takes; then they go in a straight
# line to what can't be wrong in sum.
FROZEN_S: Final = 10.0
DECAY_S: Final = 30.0
_DECAY_STEPS: Final = 30
# Without a message for so long a peer's share is the others': two are missing, though they may take some time on their
# way. Who is thought dead and isn't has his share twice, who is thought to live and doesn't leaves some of it unused.
FORGET_CYCLES: Final = 2.3
ECHO_CYCLES: Final = 1.3  # the exchange must have worked for so long since, or it is silent, not the peer
# Its numbers are kept a little longer: who was only late goes on where he was, instead of telling everything again.
PURGE_CYCLES: Final = 6
_LIGHTEST: Final = 1e-9
_MOST: Final = 1e30  # per second: nothing that a peer says is more, and sums of it stay numbers


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


class Fleet:
    """What one gateway's control process knows of limits that it shares: what its workers and its peers take of them,
    and what follows for each of its workers.

    `frozen_at`: since when the exchange is away; None: it isn't.

    With an exchange (`exchanges`) nothing is dealt before the first `thaw` or `freeze`: a control that was started
    again knows no peer yet, and would deal out all of every limit.
    """

    def __init__(self, *, exchanges: bool = False) -> None:
        self.frozen_at: float | None = None
        self._waits = exchanges
        self._limits: dict[str, float] = {}
        self._workers: dict[str, _Worker] = {}
        self._users: dict[str, list[_Worker]] = {}  # by key: who ever took of it, while he lives
        self._peers = _Peers()
        self._live: dict[str, Use] = {}  # what all workers take, by key; idle ones aren't here
        self._told: dict[str, Use] | None = None  # the same as others count with it
        self._stale: set[str] = set()  # keys whose entry in _live has to be made anew
        self._dirty: set[str] = set()  # keys to be dealt anew
        self._gone: set[str] = set()  # limits that were removed: their workers have to be told
        self._kept: dict[str, Share] = {}  # while frozen
        self._step = 0  # of the decay
        self._purged_at = -math.inf

    @property
    def members(self) -> int:
        """Workers of all gateways, as far as known; at least 1."""
        return max(1, len(self._workers) + self._peers.workers)

    @property
    def peers(self) -> int:
        """Other gateways that live."""
        return self._peers.living

    # --- what is known ---

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """All limits, by fleet key: per second, above 0."""
        for key in self._limits.keys() - limits.keys():
            self._gone.add(key)
        for key, limit in limits.items():
            if self._limits.get(key) != limit:
                self._gone.discard(key)
                self._dirty.add(key)
        self._limits = dict(limits)

    def add_worker(self, worker: str) -> None:
        """It runs, and was told nothing yet."""
        if worker not in self._workers:
            self._workers[worker] = _Worker(worker)
            self._everything()

    def retell(self, worker: str) -> None:
        """What that worker was told last may not have reached it."""
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

    def take_report(self, peer: str, uses: Mapping[str, Use], workers: int, now: float, *, whole: bool = False) -> None:
        """A peer lives and has so many workers; what it takes: what changed, or all of it (`whole`). An idle entry
        takes the peer out of that key. A message without entries keeps it alive.
        """
        before = self.members
        if self._peers.hear(peer, workers, now) or self.members != before:
            self._everything()
        self._touch([key for key, use in uses.items() if self._peers.put(peer, key, use, now)])
        if whole:
            self._touch(self._peers.drop(peer, keep=uses.keys()))

    def forget_peer(self, peer: str) -> None:
        """It said goodbye."""
        self._peers.drop(peer)
        self._peers.forget(peer)
        self._everything()

    def expire(self, now: float, cycle: float, every: int = 5, echo_at: float | None = None) -> list[str]:
        """Forget peers of whom nothing was heard for FORGET_CYCLES, and entries that should have been repeated every
        `every` cycles and were not; returns those peers. Call it as often as `deal`.

        `echo_at`: when a message of our own last came back through the exchange; None: it can't fall silent. Nobody is
        forgotten while it is away, nor because of it: a broker that stops for three seconds makes all peers silent.
        """
        if self.frozen_at is not None:
            return []
        alive_at = now if echo_at is None else max(echo_at, self._peers.heard_at)
        before = min(now - FORGET_CYCLES * cycle, alive_at - ECHO_CYCLES * cycle)
        gone = self._peers.lose(before, now - PURGE_CYCLES * cycle)
        if gone:
            self._everything()
        if now - self._purged_at >= cycle * every:
            self._purged_at = now
            self.purge(now, cycle, every)
        return gone

    def purge(self, now: float, cycle: float, every: int = 5) -> None:
        """Forget entries that should have been repeated every `every` cycles and were not: for whoever knows by himself
        which peers live, and calls no `expire`. Costs a look at every entry.
        """
        if self.frozen_at is None:
            self._touch(self._peers.purge(now - cycle * (every + FORGET_CYCLES)))

    def freeze(self, now: float) -> None:
        """The exchange is away. What this gateway has of each limit stays for FROZEN_S, and goes to the part that its
        workers are of all last known ones in DECAY_S more; its workers still share it by what they want.
        """
        if self.frozen_at is None:
            self._refresh()
            keys = [] if self._waits else [key for key in self._users if key in self._limits]
            self._kept = {key: self._share(key, self._limits[key]) for key in keys}
            self.frozen_at, self._step, self._waits = now, 0, False
            self._everything()

    def thaw(self, now: float) -> None:
        """The exchange is back, or has begun: peers have two cycles from now on to be heard of."""
        if self.frozen_at is not None or self._waits:
            self.frozen_at, self._waits = None, False
            self._kept = {}
            self._peers.excuse(now)
            self._everything()

    # --- what follows ---

    def own(self) -> Mapping[str, Use]:
        """What this gateway takes, to be published: every key that isn't idle. Not to be changed."""
        self._refresh()
        if self._peers.living:
            for key, use in self._live.items():
                if use.hungry and len(self._users[key]) > 1:
                    self._live[key] = self._one(key)
        return self._live

    def published(self, uses: Mapping[str, Use]) -> None:
        """What others count with from now on: every key's use as it was last published. This gateway counts itself with
        the same, or the shares of all would not make up the limit. Until the first call it counts with what is so.
        """
        before = self._told
        self._told = dict(uses)
        if self._peers.living:
            self._touch([key for key in self._users if before is None or before.get(key) != uses.get(key)])

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
        for key in self._gone:
            for worker in self._users.get(key, ()):
                if worker.told.pop(key, None) is not None:
                    told.setdefault(worker.name, {})[key] = GONE
            self._drop_idle(key)
        self._gone.clear()
        self._decay(now)
        members = self.members
        for _ in range(len(self._dirty) if most is None else min(most, len(self._dirty))):
            key = self._dirty.pop()
            limit = self._limits.get(key)
            users = self._users.get(key)
            if key in self._stale:
                self._stale.discard(key)
                self._refresh_one(key)
            if limit is None or not users:
                continue
            fallback = limit / members
            for worker, rate in zip(users, self._rates(key, limit, users), strict=True):
                before = worker.told.get(key, GONE)
                slack = IDLE_TOLERANCE if worker.uses[key].is_idle else TOLERANCE
                if before.fallback != fallback or abs(rate - before.rate) > slack * before.rate:
                    part = worker.told[key] = Part(rate, fallback)
                    told.setdefault(worker.name, {})[key] = part
        return told

    def share(self, key: str) -> float:
        """What this gateway has of a limit just now, for people; 0.0 where there is none."""
        limit = self._limits.get(key)
        if limit is None:
            return 0.0
        self._refresh()
        return _part(self._gateway(key, limit), limit, FLOORS * limit * len(self._workers) / self.members)

    def taken(self, key: str) -> float:
        """What all gateways take of it, as far as known, for people."""
        self._refresh()
        return self._live.get(key, IDLE).rate + sum(use.rate for use in self._peers.of(key)[0])

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
        equal = limit * len(self._workers) / self.members
        share = self._kept.get(key, Share(equal, 0.0))
        done = self._step / _DECAY_STEPS
        return Share(min(limit, share.base) * (1 - done) + equal * done, share.headroom * (1 - done))

    def _share(self, key: str, limit: float) -> Share:
        if not self._peers.living:
            return Share(limit, HEADROOM * limit)
        uses, workers = self._peers.of(key)
        uses.append(self._counted(key))
        workers.append(len(self._workers))
        return split(uses, limit, HEADROOM * limit, workers, self.members)[-1]

    def _counted(self, key: str) -> Use:
        """This gateway as others count it."""
        if self._told is None or not self._peers.living:
            return self._live.get(key, IDLE)
        return self._told.get(key, IDLE)

    def _one(self, key: str) -> Use:
        uses = [worker.uses[key] for worker in self._users.get(key, ())]
        return as_one(uses, self._peers.of(key)[0], self._limits.get(key, math.inf))

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

    def _refresh(self) -> None:
        for key in self._stale:
            self._refresh_one(key)
        self._stale.clear()

    def _refresh_one(self, key: str) -> None:
        use = self._one(key)
        if use.is_idle:
            self._live.pop(key, None)
        else:
            self._live[key] = use

    def _decay(self, now: float) -> None:
        if self.frozen_at is not None:
            over = (now - self.frozen_at - FROZEN_S) / DECAY_S
            step = min(_DECAY_STEPS, max(0, math.floor(over * _DECAY_STEPS)))
            if step != self._step:
                self._step = step
                self._everything()

    def _everything(self) -> None:
        self._dirty.update(self._users)

    def _touch(self, keys: Iterable[str]) -> None:
        self._dirty.update([key for key in keys if key in self._users])


class _Worker:
    __slots__ = ("name", "told", "uses")

    def __init__(self, name: str) -> None:
        self.name = name
        self.uses: dict[str, Use] = {}
        self.told: dict[str, Part] = {}


class _Peers:
    """What other gateways said. One array per key, for there may be many keys: a row per peer that takes of it."""

    # number of the peer, rate, hungry, weight, topics, when: single precision is better than a tenth
    _ROW: Final = 6

    def __init__(self) -> None:
        self.workers = 0
        self.living = 0
        self._rows: dict[str, array[float]] = {}
        self._numbers: dict[str, int] = {}
        self._seen: dict[int, float] = {}
        self._counts: dict[int, int] = {}  # workers of those that live
        self._next = 0
        self.heard_at = -math.inf
        self._began: float | None = None  # times are kept from here, where single precision is enough

    def hear(self, peer: str, workers: int, now: float) -> bool:
        """Whether it is new, or was thought dead."""
        if self._began is None:
            self._began = now
        number = self._numbers.get(peer)
        if number is None:
            number = self._numbers[peer] = self._next
            self._next += 1
        is_new = number not in self._counts
        self._seen[number] = self.heard_at = now
        self._counts[number] = max(1, workers)
        self._count()
        return is_new

    def put(self, peer: str, key: str, use: Use, now: float) -> bool:
        """Whether anything is different now."""
        number = self._numbers[peer]
        rows = self._rows.get(key)
        at = -1 if rows is None else self._find(rows, number)
        if use.is_idle:
            if rows is not None and at >= 0:
                self._cut(key, rows, at)
            return at >= 0
        if not (0.0 <= use.rate <= _MOST and _LIGHTEST <= use.weight <= _MOST):
            return False  # no numbers of a fleet's: who sends them changes nothing for the others
        row = array("f", (number, use.rate, use.hungry, use.weight, use.topics, now - (self._began or 0.0)))
        if rows is None:
            self._rows[key] = row
            return True
        if at < 0:
            rows.extend(row)
            return True
        same = rows[at : at + self._ROW - 1] == row[:-1]
        rows[at : at + self._ROW] = row
        return not same

    def of(self, key: str) -> tuple[list[Use], list[int]]:
        """What living peers take of it, and how many workers each of those has."""
        rows = self._rows.get(key)
        uses: list[Use] = []
        workers: list[int] = []
        if rows is not None:
            columns = iter(rows)
            for number, rate, hungry, weight, topics, _ in zip(*[columns] * self._ROW, strict=True):
                count = self._counts.get(int(number))
                if count is not None:
                    uses.append(Use(rate, hungry > 0.0, weight, int(topics)))
                    workers.append(count)
        return uses, workers

    def drop(self, peer: str, keep: Iterable[str] = ()) -> list[str]:
        """Take it out of every key but those; returns the keys where it was."""
        number = self._numbers.get(peer)
        if number is None:
            return []
        kept = set(keep)
        return self._cut_all({key for key in self._rows if key not in kept}, lambda rows, at: rows[at] == number)

    def forget(self, peer: str) -> None:
        number = self._numbers.pop(peer, -1)
        self._seen.pop(number, None)
        self._counts.pop(number, None)
        self._count()

    def lose(self, before: float, purge_before: float) -> list[str]:
        """Who wasn't heard of since `before` lives no longer; since `purge_before`, nothing of him is kept."""
        gone = [p for p, n in self._numbers.items() if n in self._counts and self._seen[n] < before]
        for peer in gone:
            del self._counts[self._numbers[peer]]
        for peer in [p for p, n in self._numbers.items() if n not in self._counts and self._seen[n] < purge_before]:
            self.drop(peer)
            self.forget(peer)
        self._count()
        return gone

    def purge(self, before: float) -> list[str]:
        """Drop what living peers said before that and never again."""
        since = before - (self._began or 0.0)
        last = self._ROW - 1
        return self._cut_all(
            list(self._rows), lambda rows, at: rows[at + last] < since and int(rows[at]) in self._counts
        )

    def excuse(self, now: float) -> None:
        """Nobody could be heard of until now."""
        for number in self._counts:
            self._seen[number] = now
        for rows in self._rows.values():
            for at in range(self._ROW - 1, len(rows), self._ROW):
                rows[at] = now - (self._began or 0.0)

    def _cut_all(self, keys: Iterable[str], goes: Callable[[array[float], int], bool]) -> list[str]:
        cut = []
        for key in keys:
            rows = self._rows[key]
            for at in range(len(rows) - self._ROW, -1, -self._ROW):
                if goes(rows, at):
                    self._cut(key, rows, at)
                    cut.append(key)
        return cut

    def _cut(self, key: str, rows: array[float], at: int) -> None:
        del rows[at : at + self._ROW]
        if not rows:
            self._rows.pop(key, None)

    def _find(self, rows: array[float], number: int) -> int:
        return next((at for at in range(0, len(rows), self._ROW) if rows[at] == number), -1)

    def _count(self) -> None:
        self.living = len(self._counts)
        self.workers = sum(self._counts.values())


def _part(share: Share, limit: float, floor: float) -> float:
    return max(floor, min(limit, share.base + share.headroom))
