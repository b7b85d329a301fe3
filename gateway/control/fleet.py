# Limits that hold for more than one process, in the control process: what its workers take of them and what other
# gateways say goes in, each worker's part comes out, several times a second and at once when somebody comes or goes.
#
# Two sums of shares: of what holds over all gateways, and of what holds over this gateway's workers. A worker without
# any others is told once that it is alone, and nothing else. How shares are found is policies/fleet/shares.py's, how
# gateways hear of each other is the exchange's. Knows no sockets and no topic.

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Final, Literal

import trio

from gateway.channel import Demand, OtherRates, Parts, Rates
from gateway.control.fleet_keys import Keys
from gateway.control.fleet_rates import FleetRates, Sums, differ
from gateway.control.metrics import FleetMetrics
from gateway.fleet.exchange import Exchange, FleetParty, Heard, Present, Rate
from policies.explain import FleetUse
from policies.fleet import shares
from policies.fleet.keys import FleetKey
from policies.policy_set import PolicySet
from policies.thresholds.broker_meters import Others

log = logging.getLogger("gateway.fleet")

DEAL_S: Final = 0.25
VALID_CYCLES: Final = 3  # so long parts hold without being renewed …
LEAST_VALID_S: Final = 5.0  # … but a control that was killed should be there again before …
LEAST_SHARED_S: Final = 3.0  # … and other gateways wait for nobody
LEASE_CYCLES: Final = 2  # others give the parts away of whom they have heard nothing for so long
SETTLE_CYCLES: Final = 2
SETTLE_HERE_S: Final = 1.0  # the same where only this gateway's workers share: two looks of theirs, and a deal
RENEW_S: Final = 1.0
TICK_S: Final = 5.0  # of the meters
OTHERS_S: Final = 0.5  # others' rates are told at most so often
UNSURE_S: Final = 2 * TICK_S  # everybody has said by now what he brings: that it is nothing must be told once, too
SWEEP_S: Final = 15.0
MOST_DEALT: Final = 150  # limits at once, some 5 ms: others want their turn, too
MOST_TOLD: Final = 300  # usages at once to the exchange
LISTEN_CYCLES: Final = 1.25  # everybody who lives has said something in this time
MOST_LISTEN_S: Final = 3.0
WORKERS_S: Final = 2.0  # an earlier control's workers are all back by then
KNOWN_S: Final = 5.0  # it wasn't reached for so long since the start: it is away

State = Literal["local", "shared", "frozen", "fallback"]


Post = Callable[[Parts | OtherRates], bool]


class _Knows(Enum):
    """What a worker knows of its parts."""

    NOTHING = auto()  # it has only begun, and must not take itself for the only one
    FORMER = auto()  # what an earlier control told it, or that a floor is left until more is known
    EVEN = auto()  # that nobody can be heard: an even part of each limit
    PARTS = auto()  # its parts
    GAPS = auto()  # its parts but those that it missed while it didn't read

    def told_early(self, is_over: bool) -> _Knows:
        """What it knows once it was told what holds before anything is dealt; the same: it needn't be told.

        `is_over`: nobody could be heard for so long that all gateways have gone to even parts.
        """
        if is_over:
            return _Knows.EVEN
        return _Knows.FORMER if self is _Knows.NOTHING else self


class _Worker:
    """One worker: how to reach it, and what it knows of the others."""

    def __init__(self, post: Post, knows: _Knows, now: float) -> None:
        self.post = post
        self.knows = knows
        self.others: Sums | None = None  # None: only an earlier control knows
        self.at = now


class FleetControl:
    """Deals parts out. `run` has to be running; everything else is a plain call from anywhere in this process.

    `known`: whether others can be heard, or nobody can; before, nothing is dealt. `has_limits`: whether there is
    anything to be dealt.

    Args:
        exchange: makes what brings other gateways' usage; None: limits hold for this gateway alone.
        cycle_s: how often the exchange says something.
        patient: workers have parts from an earlier control, so wait for the exchange, however long that takes.
        clock: `time.monotonic`, which workers go by as well.
    """

    def __init__(
        self,
        metrics: FleetMetrics,
        *,
        exchange: Callable[[FleetParty], Exchange] | None = None,
        cycle_s: float = 1.0,
        patient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cycle_s = cycle_s
        self._patient = patient
        self._clock = clock
        self._has_totals = self.has_limits = False
        self._keys = Keys(PolicySet())
        self._fleet = shares.Dealer(exchanges=exchange is not None)
        self._here = shares.Dealer()
        self._brought = FleetRates()
        self._workers: dict[int, _Worker] = {}
        self._members = 0  # as workers were told
        self._last_members = 1  # as they were told by an earlier control
        self._renew_at = 0.0
        self._wake = trio.Event()
        self._others_stale = self._rates_stale = False
        self._brings_news = False
        self._down_since: float | None = None
        self._listens_until = math.inf
        self._began = clock()
        self.known = trio.Event()
        self._metrics = metrics
        self._exchange = None if exchange is None else exchange(self)
        if self._exchange is None:
            self.known.set()
        else:
            self._fleet.listen(self._exchange.peers)
        self._show()

    # --- what workers say, and policies -------------------------------------------------------------------------------

    def set_policies(self, policies: PolicySet) -> None:
        self._brings_news = True
        self._has_totals = policies.total() is not None or bool(policies.totals())
        self.has_limits = self._has_totals or bool(policies.quotas().entries) or any(policies.groups().values())
        self._keys.set_policies(policies)
        self._wake.set()

    @property
    def exchange(self) -> Exchange | None:
        """None: limits hold for this gateway alone. It has to be running."""
        return self._exchange

    def join(self, worker: int, post: Post, members: int = 1) -> None:
        """This worker can be told things with `post` (False: it doesn't read just now). It was told nothing yet but, by
        an earlier control, that `members` processes share.
        """
        if worker in self._workers:
            self.leave(worker)
        self._last_members = max(self._last_members, members)
        knows = _Knows.NOTHING if members == 1 else _Knows.FORMER
        self._workers[worker] = _Worker(post, knows, self._clock())
        self._others_stale = True
        self._fleet.add_worker(str(worker))
        self._here.add_worker(str(worker))
        self._members = 0  # everybody is told, this one above all
        self.look()

    def leave(self, worker: int) -> None:
        if self._workers.pop(worker, None) is not None:
            self._fleet.forget_worker(str(worker))
            self._here.forget_worker(str(worker))
            self._keys.forget_worker(worker)
            self._brought.set_worker(worker, None)
            self._others_stale = self._brings_news = True
            self._wake.set()

    def take_demand(self, worker: int, demand: Demand) -> None:
        name = str(worker)
        fleet: dict[str, shares.Use] = {}
        here: dict[str, shares.Use] = {}
        for key, use in demand.uses.items():
            if self._keys.use(worker, key, idle=use.is_idle):
                (here if self._keys.is_here(key) else fleet)[key] = use
        self._fleet.take_demand(name, fleet, whole=demand.whole)
        self._here.take_demand(name, here, whole=demand.whole)
        if demand.whole:
            self._keys.set_busy(worker, [*fleet, *here])
            self._fleet.retell(name)  # it has no parts, or only old ones
            self._here.retell(name)
        if any(use.hungry for use in demand.uses.values()):
            self._wake.set()

    def take_rates(self, worker: int, rates: Rates) -> None:
        if worker in self._workers:
            self._brought.set_worker(worker, rates)
            self._others_stale = self._brings_news = True

    # --- other gateways -----------------------------------------------------------------------------------------------

    def present(self) -> Present:
        """What this gateway takes, and brings to brokers: for the others, a few limits at once."""
        uses = self._fleet.changes(MOST_TOLD)
        rates = list(self._rates()) if self._brings_news else None
        self._brings_news = False
        return Present(uses, rates, len(self._workers), self._fleet.has_changes)

    def _rates(self) -> Iterator[Rate]:
        for node_id, broker in self._brought.own().items() if self._has_totals else ():
            yield Rate(node_id, None, broker.rate)
            for topic, rate in broker.topics.items():
                yield Rate(node_id, topic.decode(), rate)

    def publish(self, keys: Iterable[FleetKey]) -> None:
        """Others count with what was told last from now on; it is something else for these."""
        self._fleet.published(keys)

    def hear(self, heard: Heard) -> None:
        """Another gateway has said something."""
        if heard.left:
            self.forget(heard.peer)
            return
        if heard.keys:
            self._fleet.heard(heard.keys)
        if heard.keys or self._fleet.members != self._members:
            self._wake.set()
        if heard.rates:
            self._hear_rates()

    def forget(self, peer: str) -> None:
        """It was silent for too long, or has said goodbye."""
        log.info("gateway %s is gone: what it had is shared by who is left", peer.partition("#")[0])
        self._fleet.heard()
        self._hear_rates()
        self._wake.set()

    def _hear_rates(self) -> None:
        self._others_stale = self._rates_stale = True  # summed up when they are told: there may be many

    def follow_exchange(self, up: bool) -> None:
        """Whether others can be heard, and can hear us."""
        now = self._clock()
        if not up:
            self._lose_exchange("" if self._exchange is None else self._exchange.problem)
        elif self.known.is_set():
            self._find_exchange()
        else:
            self._listens_until = now + min(LISTEN_CYCLES * self._cycle_s, MOST_LISTEN_S)

    def _find_exchange(self) -> None:
        now = self._clock()
        if self._down_since is not None:
            log.info("limits hold over all gateways again, after %.0f s", now - self._down_since)
        self._down_since, self._listens_until = None, math.inf
        self._fleet.thaw(now)
        self._hear_rates()
        self.known.set()
        self._wake.set()

    def _lose_exchange(self, why: str) -> None:
        self._listens_until = math.inf
        if self._down_since is not None:
            return
        self._down_since = now = self._clock()
        if self._patient and not self.known.is_set():
            log.warning(
                "no exchange with other gateways (%s): workers go on with what they have, and after %g s with 1/%d of"
                " each limit",
                why, shares.FROZEN_S + shares.DECAY_S, self._last_members,
            )  # fmt: skip
            return
        log.warning(
            "no exchange with other gateways (%s): parts of limits stay for %g s, then go to 1/%d of each for a worker",
            why, shares.FROZEN_S, self._fleet.members,
        )  # fmt: skip
        self._fleet.freeze(now)
        self.known.set()
        self._wake.set()

    def limit_of(self, key: FleetKey) -> float | None:
        """Of one that this gateway takes of."""
        return self._keys.fleet.get(key)

    # --- for people ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """How limits are shared."""
        if self._exchange is None:
            return "local"
        if self._down_since is None:
            return "shared"
        frozen_at = self._fleet.frozen_at
        is_over = frozen_at is None or self._clock() - frozen_at >= shares.FROZEN_S + shares.DECAY_S
        return "fallback" if is_over else "frozen"

    def uses(self, keys: Iterable[FleetKey] | None = None) -> dict[FleetKey, FleetUse]:
        """What all gateways take of these limits, or of all that this one takes of, and what this one may take."""
        wanted = [*self._keys.fleet, *self._keys.here] if keys is None else keys
        found = {}
        for key in wanted:
            for limits, fleet in ((self._keys.fleet, self._fleet), (self._keys.here, self._here)):
                if key in limits:
                    found[key] = FleetUse(fleet.taken(key), fleet.share(key))
        return found

    def _show(self) -> None:
        self._metrics.state = self.state
        self._metrics.gauges.update(
            fleet_peers=self._fleet.peers,
            fleet_members=self._fleet.members,
            fleet_exchange_up=float(self._exchange is not None and self._exchange.up),
        )
        if self._exchange is not None:
            self._metrics.sent, self._metrics.sent_bytes = self._exchange.sent, self._exchange.sent_bytes
            self._metrics.received, self._metrics.received_bytes = (
                self._exchange.received,
                self._exchange.received_bytes,
            )
            self._metrics.dropped = self._exchange.dropped

    # --- what follows -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deal until cancelled."""
        swept_at = others_at = self._clock()
        while True:
            self._wake = trio.Event()
            self.look()
            now = self._clock()
            if self._others_stale and now - others_at >= OTHERS_S:
                others_at = now
                self.tell_others()
            if now - swept_at >= SWEEP_S:
                swept_at = now
                self.sweep()
            with trio.move_on_after(0.0 if self.is_behind else DEAL_S):
                await self._wake.wait()

    def look(self) -> None:
        """See whether others can be heard, and deal."""
        now = self._clock()
        if now >= self._listens_until:
            self._find_exchange()
        elif not self.known.is_set() and now - self._began >= KNOWN_S and self._listens_until == math.inf:
            self._lose_exchange("it was not reached so far")
        self.deal()
        self._show()

    @property
    def is_behind(self) -> bool:
        """Whether the last `deal` left something to the next one, which should be at once."""
        return self._fleet.members > 1 and (self._fleet.is_behind or self._here.is_behind)

    def deal(self) -> None:
        """Find shares for what is known now, and tell workers what is new to them."""
        now = self._clock()
        began, self._keys.began = self._keys.began, False
        changed = self._keys.refresh()
        if (began or changed) and self._exchange is not None and self._fleet.peers:
            self._exchange.hurry()
        if changed:
            self._fleet.set_limits(self._keys.fleet)
            self._here.set_limits(self._keys.here)
        if not self.known.is_set() or self._awaits_workers(now):
            self._tell_early(now)
            return
        members = self._fleet.members
        if members == 1:
            self._tell_alone()
            return
        parts = self._fleet.deal(now, MOST_DEALT)
        for name, own in self._here.deal(now, MOST_DEALT).items():
            parts.setdefault(name, {}).update(own)
        renew = members != self._members or now >= self._renew_at
        if renew:
            self._members = members
            self._renew_at = now + RENEW_S
        settle_s = SETTLE_CYCLES * self._cycle_s if self._fleet.peers else SETTLE_HERE_S
        lease_s, least_s = None, LEAST_VALID_S
        if self._fleet.peers and self._fleet.frozen_at is None:
            lease_s, least_s = LEASE_CYCLES * self._cycle_s, LEAST_SHARED_S
        valid_until = now + max(least_s, VALID_CYCLES * self._cycle_s)
        for number, worker in self._workers.items():
            told = parts.get(str(number), {})
            if told or renew:
                had_gaps = worker.knows is _Knows.GAPS
                is_read = worker.post(Parts(told, members, valid_until, settle_s, lease_s))
                worker.knows = _Knows.PARTS if is_read else _Knows.GAPS
                if is_read and had_gaps:
                    self._fleet.retell(str(number))
                    self._here.retell(str(number))

    def _awaits_workers(self, now: float) -> bool:
        """Those who came first must not have the parts of those who come a moment later."""
        misses_some = self._patient and self._exchange is None and len(self._workers) < self._last_members
        return misses_some and now - self._began < WORKERS_S

    def _tell_early(self, now: float) -> None:
        """While nobody knows who shares, workers go on with what an earlier control told them, and without one with a
        floor: what is theirs others may have by now. Where nobody could be heard for so long that all gateways have
        gone to even parts, so do these.
        """
        members = max(self._last_members, len(self._workers))
        if not self._patient or members == 1:
            return
        is_over = self._down_since is not None and now - self._down_since >= shares.FROZEN_S + shares.DECAY_S
        lease_s = LEASE_CYCLES * self._cycle_s if self._exchange is not None and not is_over else None
        for worker in self._workers.values():
            knows = worker.knows.told_early(is_over)
            if knows is not worker.knows:
                worker.knows = knows
                worker.post(Parts({}, members, None if lease_s is None else now, lease_s=lease_s))

    def _tell_alone(self) -> None:
        if self._members != 1 and self._workers:
            self._members = 1
            for worker in self._workers.values():
                worker.post(Parts())

    def sweep(self) -> None:
        """Forget what nobody uses; now and then."""
        now = self._clock()
        self._keys.sweep(now)

    def tell_others(self) -> None:
        """What everybody else brings, to whom it is news."""
        now = self._clock()
        self._others_stale = False
        if self.state == "fallback" and self._fleet.peers:
            own = max(1, len(self._workers))
            self._brought.assume_peers((self._fleet.members - own) / own)
        elif self._rates_stale and self._exchange is not None:
            self._rates_stale = False
            rates = self._exchange.peers.rates()
            self._brought.set_peers(
                {
                    node_id: Others(total, {topic.encode(): rate for topic, rate in topics.items()})
                    for node_id, (total, topics) in rates.items()
                }
            )
        members = self._fleet.members
        for number, worker in self._workers.items():
            others = {} if members == 1 else self._brought.others_of(number)
            known, age = worker.others or {}, now - worker.at
            is_unsure = worker.others is None and age >= UNSURE_S
            if is_unsure or differ(others, known) or (others != known and age >= TICK_S):
                if worker.post(OtherRates(others, members)):
                    worker.others, worker.at = others, now
                else:
                    self._others_stale = True
            elif worker.others is None or others != known:
                self._others_stale = True
