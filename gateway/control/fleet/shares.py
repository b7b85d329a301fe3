# Limits that hold for more than one gateway, in the control process: what its workers take of them and what other
# gateways say goes in, this gateway's part comes out, several times a second and at once when somebody comes or goes.
# Workers share it among themselves (policies/fleet/page.py), so a gateway that is alone has nothing to deal out.
#
# And the rates of V1's thresholds: each worker is told what all others bring. How shares are found is
# policies/fleet/shares.py's, how gateways hear of each other is the exchange's. Knows no sockets and no topic.

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, Literal

import trio

from gateway.channel import Demand, OtherRates, Parts, Rates
from gateway.control.fleet.exchange.exchange import Exchange, FleetParty, Heard, Present
from gateway.control.fleet.exchange.form import NO_TRAFFIC, GatewayTraffic, Place
from gateway.control.fleet.limits_in_use import Keys
from gateway.control.fleet.peer_rates import RateTeller
from gateway.control.fleet.reachability import Reach
from gateway.control.metrics import FleetMetrics
from policies.definitions.policy_set import PolicySet
from policies.explain import FleetUse
from policies.fleet import shares
from policies.fleet.keys import FleetKey
from policies.text import one_line

log = logging.getLogger("gateway.fleet")

DEAL_S: Final = 0.1
VALID_CYCLES: Final = 3  # so long parts hold without being renewed …
LEAST_VALID_S: Final = 5.0  # … but a control that was killed should be there again before …
LEAST_SHARED_S: Final = 3.0  # … and other gateways don't wait for it
LEASE_CYCLES: Final = 2  # peers give away the parts of a gateway that has been silent for this long
SETTLE_CYCLES: Final = 2
RENEW_S: Final = 1.0
OTHERS_S: Final = 0.5  # others' rates are told at most so often
SWEEP_S: Final = 15.0
MOST_DEALT: Final = 150  # limits at once, some 5 ms: others want their turn, too
MOST_TOLD: Final = 300  # usages at once to the exchange

State = Literal["local", "shared", "frozen", "fallback"]


Post = Callable[[Parts | OtherRates], bool]


class _Knows(Enum):
    """The parts of this gateway as a worker knows them."""

    NOTHING = auto()  # it has only begun, or missed something while it didn't read
    FORMER = auto()  # what an earlier control told it, or that a floor is left until more is known
    EVEN = auto()  # that no peer can be heard: an even part of each limit
    PARTS = auto()  # all parts
    ALONE = auto()  # that there is no other gateway

    def told_early(self, is_over: bool) -> _Knows:
        """Its knowledge once it was told the parts that hold before anything is dealt; the same: it needn't be told.

        `is_over`: no gateway could be heard for so long that all have gone to even parts.
        """
        if is_over:
            return _Knows.EVEN
        return _Knows.FORMER if self is _Knows.NOTHING else self


class _Member:
    """One worker: the way to reach it, and its knowledge of this gateway's parts."""

    def __init__(self, post: Post, knows: _Knows) -> None:
        self.post = post
        self.knows = knows


class FleetControl:
    """Tells workers their parts. `run` has to be running; everything else is a plain call from anywhere in this
    process.

    Attributes:
        exchange: None: limits hold for this gateway alone. It has to be running.
        reach: whether others can be heard; before that is known, nothing is dealt.
        rates: the rates that others bring to brokers.
        has_limits: whether there is anything to be dealt.

    Args:
        exchange: makes the exchange that brings other gateways' usage; None: limits hold for this gateway alone.
        cycle_s: how often the exchange says something.
        patient: workers have parts from an earlier control, so wait for the exchange, however long that takes.
        clock: `time.monotonic`, which workers go by as well.
        traffic: the busiest topics and clients of this gateway.
    """

    def __init__(
        self,
        metrics: FleetMetrics,
        *,
        exchange: Callable[[FleetParty], Exchange] | None = None,
        cycle_s: float = 1.0,
        patient: bool = False,
        clock: Callable[[], float] = time.monotonic,
        traffic: Callable[[], GatewayTraffic] = GatewayTraffic,
    ) -> None:
        self.has_limits = False
        self.reach = Reach(cycle_s, clock(), patient=patient)
        self.rates = RateTeller(clock)
        self._traffic = traffic
        self._cycle_s = cycle_s
        self._patient = patient
        self._clock = clock
        self._keys = Keys(PolicySet())
        self._workers: dict[int, _Member] = {}
        self._gateways = 0  # as workers were told
        self._last_gateways = 1  # as they were told by an earlier control
        self._renew_at = 0.0
        self._wake = trio.Event()
        self._metrics = metrics
        self.exchange = None if exchange is None else exchange(self)
        self._dealer = None if self.exchange is None else shares.Dealer(self.exchange.peers)
        if self._dealer is None:
            self.reach.known.set()
        self._show()

    # --- what workers say, and policies -------------------------------------------------------------------------------

    def set_policies(self, policies: PolicySet) -> None:
        has_totals = policies.total() is not None or bool(policies.totals())
        self.rates.set_totals(has_totals)
        self.has_limits = has_totals or bool(policies.quotas().entries) or any(policies.groups().values())
        self._keys.set_policies(policies)
        self._wake.set()

    def join(self, worker: int, post: Post, gateways: int = 1) -> None:
        """This worker can be told things with `post` (False: it doesn't read just now). It was told nothing yet but, by
        an earlier control, that `gateways` share.
        """
        if worker in self._workers:
            self.leave(worker)
        self._last_gateways = max(self._last_gateways, gateways)
        knows = _Knows.NOTHING if gateways == 1 else _Knows.FORMER
        self._workers[worker] = _Member(post, knows)
        self.rates.join(worker, post)
        self._gateways = 0  # all workers are told, this one above all
        self.look()
        self.tell_others()  # before its first client: a meter that others had already doesn't begin with its whole rate

    def leave(self, worker: int) -> None:
        if self._workers.pop(worker, None) is not None:
            if self._dealer is not None:
                self._dealer.forget_worker(str(worker))
            self._keys.forget_worker(worker)
            self.rates.leave(worker)
            self.tell_others()  # before its clients come to them
            self._wake.set()

    def take_demand(self, worker: int, demand: Demand) -> None:
        if self._dealer is None:
            return
        uses = {key: use for key, use in demand.uses.items() if self._keys.use(worker, key, idle=use.is_idle)}
        self._dealer.take_demand(str(worker), uses, whole=demand.whole)
        if demand.whole:
            self._keys.set_busy(worker, uses)
            told = self._workers.get(worker)
            if told is not None and told.knows is _Knows.PARTS:
                told.knows = _Knows.NOTHING  # it may have none any more, or only old ones
        if self._dealer.is_urgent:
            self._wake.set()

    def take_rates(self, worker: int, rates: Rates) -> None:
        """The rates that it brings to brokers."""
        self.rates.take(worker, rates)

    # --- other gateways -----------------------------------------------------------------------------------------------

    def present(self) -> Present:
        """The usage of this gateway, and its rates to brokers: for the others, a few limits at once."""
        assert self._dealer is not None
        self._dealer.is_urgent = False
        uses = self._dealer.changes(MOST_TOLD)
        return Present(uses, self.rates.news(), len(self._workers), self._dealer.has_changes)

    def traffic(self) -> GatewayTraffic:
        """The busiest topics and clients of this gateway: for the others, if there are any."""
        return NO_TRAFFIC if self._dealer is None or self._dealer.gateways == 1 else self._traffic()

    def publish(self, keys: Iterable[FleetKey]) -> None:
        """Others count with the last told usage from now on; it is something else for these."""
        assert self._dealer is not None
        self._dealer.published(keys)

    def hear(self, heard: Heard) -> None:
        """Another gateway has said something."""
        if heard.left:
            self.forget(heard.peer)
            return
        assert self._dealer is not None
        if heard.keys:
            self._dealer.heard(heard.keys)
        if heard.keys or self._dealer.gateways != self._gateways:
            self._wake.set()
        if heard.rates:
            self.rates.hear()

    def forget(self, peer: str) -> None:
        """It was silent for too long, or has said goodbye."""
        log.info("gateway %s is gone: the others share its parts", one_line(peer.rsplit("#", 1)[0]))
        assert self._dealer is not None
        self._dealer.heard()
        self.rates.forget()
        self._wake.set()

    def follow_exchange(self, up: bool) -> None:
        """Whether others can be heard, and can hear us."""
        now = self._clock()
        self._change_reach(
            self.reach.follow(up, now), now, "" if self.exchange is None else self.exchange.health.problem
        )

    def _change_reach(self, is_heard: bool | None, now: float, why: str = "") -> None:
        """`why`: the reason why no gateway can be heard."""
        if is_heard is None:
            return
        assert self._dealer is not None
        if is_heard:
            self._dealer.thaw(now)
            self.rates.hear()
        elif self.reach.known.is_set():
            if self._dealer.gateways == 1:
                log.warning("no exchange with other gateways (%s): none is known, so each limit stays whole here", why)
            else:
                log.warning(
                    "no exchange with other gateways (%s): parts of limits stay for %g s, then go to 1/%d of each",
                    why, shares.FROZEN_S, self._dealer.gateways,
                )  # fmt: skip
            self._dealer.freeze(now)
        else:
            log.warning(
                "no exchange with other gateways (%s): workers go on with the parts they have, and after %g s with 1/%d"
                " of each limit",
                why, shares.FROZEN_S + shares.DECAY_S, self._last_gateways,
            )  # fmt: skip
        self._wake.set()

    def limit_of(self, key: FleetKey) -> float | None:
        """Of one that this gateway takes of."""
        return self._keys.limits.get(key)

    # --- for people ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The way limits are shared."""
        if self._dealer is None:
            return "local"
        if self.reach.down_since is None:
            return "shared"
        frozen_at = self._dealer.frozen_at
        is_over = frozen_at is None or self._clock() - frozen_at >= shares.FROZEN_S + shares.DECAY_S
        return "fallback" if is_over else "frozen"

    def uses(self, keys: Iterable[FleetKey] | None = None) -> dict[FleetKey, FleetUse]:
        """This gateway's part of these limits, or of all that it takes of, and what others take of each."""
        dealer, exchange = self._dealer, self.exchange
        if dealer is None or exchange is None or dealer.gateways == 1:  # then every limit is whole here
            return {}
        found = {}
        for key in self._keys.limits if keys is None else keys:
            limit = self._keys.limit_of(key)
            if limit is not None:
                found[key] = FleetUse(dealer.share(key, limit), exchange.peers.takers(key), dealer.gateways)
        return found

    def brought(self, topic: str, brokers: Iterable[int]) -> dict[tuple[int, str | None], FleetUse]:
        """The rates that other gateways bring to these brokers, and to that topic there."""
        exchange, gateways = self.exchange, 1 if self._dealer is None else self._dealer.gateways
        if exchange is None or gateways == 1:
            return {}
        places = [Place(broker, name) for broker in brokers for name in (None, topic)]
        return {place: FleetUse(None, exchange.peers.brought(place), gateways) for place in places}

    def others_traffic(self) -> Mapping[str, GatewayTraffic]:
        """The busiest topics and clients of other gateways, by their names."""
        return {} if self.exchange is None else self.exchange.peers.traffic()

    @property
    def _members(self) -> int:
        """Workers of all gateways; at least 1."""
        peers = 0 if self.exchange is None else self.exchange.peers.workers
        return max(1, len(self._workers) + peers)

    def _show(self) -> None:
        self._metrics.state = self.state
        self._metrics.gauges.update(
            fleet_peers=0.0 if self.exchange is None else self.exchange.peers.living,
            fleet_members=self._members,
            fleet_exchange_up=float(self.exchange is not None and self.exchange.health.up),
        )
        if (exchange := self.exchange) is not None:
            self._metrics.sent, self._metrics.sent_bytes = exchange.writer.sent, exchange.writer.sent_bytes
            self._metrics.received, self._metrics.received_bytes = exchange.received, exchange.received_bytes
            self._metrics.dropped = dict(exchange.peers.counts)

    # --- what follows -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deal until cancelled."""
        swept_at = others_at = self._clock()
        while True:
            self._wake = trio.Event()
            self.look()
            now = self._clock()
            if self.rates.is_due and now - others_at >= OTHERS_S:
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
        self._change_reach(self.reach.look(now), now, "it was not reached so far")
        self.deal()
        self._show()

    @property
    def is_behind(self) -> bool:
        """Whether the last `deal` left something to the next one, which should be at once."""
        return self._dealer is not None and self._dealer.gateways > 1 and self._dealer.is_behind

    def deal(self) -> None:
        """Find this gateway's parts from the present usage, and tell workers the parts that are new to them."""
        if self._dealer is None or self.exchange is None:
            return
        now = self._clock()
        began, self._keys.began = self._keys.began, False
        changed = self._keys.refresh()
        if (began or changed or self._dealer.is_urgent) and self._dealer.gateways > 1:
            self.exchange.hurry()
        if changed:
            self._dealer.set_limits(self._keys.limits)
        if not self.reach.known.is_set():
            self._tell_early(now)
            return
        gateways = self._dealer.gateways
        if gateways == 1:
            self._tell_alone()
            return
        news = self._dealer.deal(now, MOST_DEALT)
        renew = gateways != self._gateways or now >= self._renew_at
        if renew:
            self._gateways = gateways
            self._renew_at = now + RENEW_S
        lease_s, least_s = None, LEAST_VALID_S
        if self._dealer.frozen_at is None:
            lease_s, least_s = LEASE_CYCLES * self._cycle_s, LEAST_SHARED_S
        valid_until = now + max(least_s, VALID_CYCLES * self._cycle_s)
        for worker in self._workers.values():
            is_new = worker.knows is not _Knows.PARTS
            if news or renew or is_new:
                parts = dict(self._dealer.parts) if is_new else news
                settle_s = SETTLE_CYCLES * self._cycle_s
                is_read = worker.post(Parts(parts, gateways, valid_until, settle_s, lease_s, whole=is_new))
                worker.knows = _Knows.PARTS if is_read else _Knows.NOTHING

    def _tell_early(self, now: float) -> None:
        """While the sharing gateways are not known, workers go on with the parts that an earlier control told them, and
        without one with a floor: others may have their parts by now. Where no gateway could be heard for so long that
        all have gone to even parts, so do these.
        """
        if not self._patient or self._last_gateways == 1:
            return
        down_since = self.reach.down_since
        is_over = down_since is not None and now - down_since >= shares.FROZEN_S + shares.DECAY_S
        lease_s = None if is_over else LEASE_CYCLES * self._cycle_s
        for worker in self._workers.values():
            knows = worker.knows.told_early(is_over)
            parts = Parts({}, self._last_gateways, None if is_over else now, lease_s=lease_s)
            if knows is not worker.knows and worker.post(parts):
                worker.knows = knows

    def _tell_alone(self) -> None:
        self._gateways = 1
        for worker in self._workers.values():
            if worker.knows is not _Knows.ALONE and worker.post(Parts(whole=True)):
                worker.knows = _Knows.ALONE

    def sweep(self) -> None:
        """Forget unused limits; now and then."""
        now = self._clock()
        self._keys.sweep(now)

    def tell_others(self) -> None:
        """Tell workers the rates of all others, where they are news."""
        can_be_heard = self.state != "fallback" or self._members <= max(1, len(self._workers))
        self.rates.tell(self._members, self._peers_rates if can_be_heard else None)

    def _peers_rates(self) -> Mapping[int, tuple[float, Mapping[str, float]]]:
        return {} if self.exchange is None else self.exchange.peers.rates()
