# Limits that hold for more than one gateway, in the control process: what its workers take of them and what other
# gateways say goes in, this gateway's share comes out, several times a second and at once when a gateway comes or goes.
# Workers share it among themselves (policies/fleet/page.py), so a gateway that is alone has nothing to allocate.
#
# And the rates of V1's thresholds: each worker gets the rates of all others. How shares are found is
# policies/fleet/shares.py's, how gateways hear of each other is the exchange's. Knows no sockets and no topic.

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, Literal

import trio

from gateway.channel import DemandReport, LimitShares, PeerRates, WorkerRates
from gateway.control.context import ControlContext
from gateway.control.fleet.exchange.exchange import FleetParty, GatewayUsage, PeerNews, UsageExchange
from gateway.control.fleet.exchange.usage_codec import NO_TRAFFIC, GatewayTraffic, RatePlace
from gateway.control.fleet.limits_in_use import LimitsInUse
from gateway.control.fleet.peer_rates import NOTICED, RatePublisher
from gateway.control.fleet.reachability import PeerReachability
from gateway.control.metrics import FleetMetrics
from policies.definitions.policy_set import PolicySet
from policies.fleet import shares
from policies.fleet.keys import FleetKey
from policies.limits.description import OTHER_GATEWAYS, FleetUse
from policies.meters.broker_meters import QUIET_RATE
from policies.text import one_line

log = logging.getLogger("gateway.fleet")

ALLOCATE_INTERVAL_S: Final = 0.1
SETTLED_INTERVAL_S: Final = 0.4  # while nothing changes; less than MAX_STEP_S, as a sleep may take longer
VALID_CYCLES: Final = 3  # so long shares hold without being renewed …
LEAST_VALID_S: Final = 5.0  # … but a control that was killed should be there again before …
LEAST_SHARED_S: Final = 3.0  # … and other gateways don't wait for it
LEASE_CYCLES: Final = 2  # peers give away the shares of a gateway that has been silent for this long
SETTLE_CYCLES: Final = 2
RENEW_S: Final = 1.0
PEER_RATES_INTERVAL_S: Final = 0.5  # others' rates are sent at most this often
SWEEP_S: Final = 15.0
SILENT_S: Final = 5.0  # a worker that sends nothing for this long is stopped: each sends something every second
MAX_STEP_S: Final = 0.5  # counted of the time between two looks: a control that was stopped itself has read nothing
MAX_ALLOCATED: Final = 150  # limits at once, some 5 ms: others want their turn, too
MAX_LOOKED_UP: Final = 300  # limits at once, likewise, when policies have changed
MAX_REPORTED: Final = 300  # usages at once to the exchange

State = Literal["local", "shared", "frozen", "fallback"]


Post = Callable[[LimitShares | PeerRates], bool]


class _WorkerKnowledge(Enum):
    """This gateway's shares as a worker knows them."""

    NOTHING = auto()  # it has only begun, or missed something while it didn't read
    FORMER = auto()  # what an earlier control sent it, or that a floor is left until more is known
    EVEN = auto()  # that no peer can be heard: an even share of each limit
    SHARES = auto()  # all shares
    ALONE = auto()  # that there is no other gateway

    def after_early_publish(self, is_over: bool) -> _WorkerKnowledge:
        """Its knowledge once it has the shares that apply before anything is allocated; the same: nothing to send.

        `is_over`: no gateway could be heard for so long that all have gone to even shares.
        """
        if is_over:
            return _WorkerKnowledge.EVEN
        return _WorkerKnowledge.FORMER if self is _WorkerKnowledge.NOTHING else self


class _MemberWorker:
    """One worker: how to send to it, the shares that it knows, and for how long it has sent nothing."""

    def __init__(self, post: Post, knows: _WorkerKnowledge) -> None:
        self.post = post
        self.knows = knows
        self.silent_s = 0.0
        self.is_silent = False  # for so long that what it used doesn't count


class FleetControl:
    """Sends workers their shares. `run` has to be running; everything else is a plain call from anywhere in this
    process.

    Attributes:
        exchange: None: limits hold for this gateway alone. It has to be running.
        reach: whether others can be heard; before that is known, nothing is allocated.
        rates: the rates that others bring to brokers.
        has_limits: whether there is anything to be allocated.

    Args:
        exchange: makes the exchange that brings other gateways' usage; None: limits hold for this gateway alone.
        traffic: the busiest topics and clients of this gateway.
    """

    def __init__(
        self,
        context: ControlContext,
        metrics: FleetMetrics,
        *,
        exchange: Callable[[FleetParty], UsageExchange] | None = None,
        traffic: Callable[[], GatewayTraffic] = GatewayTraffic,
    ) -> None:
        self.has_limits = False
        self._clock = context.monotonic
        self._cycle_s = context.settings.usage_interval
        self._patient = context.was_up  # workers have shares, so wait for the exchange, however long that takes
        self.reach = PeerReachability(self._cycle_s, self._clock(), patient=self._patient)
        self.rates = RatePublisher(self._clock)
        self._traffic = traffic
        self._limits_in_use = LimitsInUse(PolicySet())
        self._workers: dict[int, _MemberWorker] = {}
        self._gateways = 0  # as sent to workers
        self._parent = context.link
        # As sent by an earlier control. If all workers ended with it, only the parent knows.
        self._last_gateways = context.link.kept.gateways
        self._renew_at = 0.0
        self._refreshed_at = self._clock()
        self._wake = trio.Event()
        self._is_idle = False  # `run` waits longer
        self._metrics = metrics
        self.exchange = None if exchange is None else exchange(self)
        self._allocator = None if self.exchange is None else shares.ShareAllocator(self.exchange.peers)
        if self._allocator is None:
            self.reach.decided.set()
        self._update_metrics()

    # --- what workers say, and policies -------------------------------------------------------------------------------

    def set_policies(self, policies: PolicySet) -> None:
        has_totals = policies.broker_total() is not None or bool(policies.broker_totals())
        self.rates.set_totals(has_totals)
        self.has_limits = has_totals or bool(policies.quota_store().entries) or any(policies.group_limits().values())
        self._limits_in_use.set_policies(policies)
        self._wake.set()

    def add_worker(self, worker: int, post: Post, gateways: int = 1) -> None:
        """`post` sends to this worker (False: it doesn't read just now). It has got nothing yet but, from
        an earlier control, that `gateways` share.
        """
        if worker in self._workers:
            self.remove_worker(worker)
        self._last_gateways = max(self._last_gateways, gateways)
        knows = _WorkerKnowledge.NOTHING if gateways == 1 else _WorkerKnowledge.FORMER
        self._workers[worker] = _MemberWorker(post, knows)
        self.rates.add_worker(worker, post)
        self._gateways = 0  # all workers get it, this one above all
        self.refresh_shares()
        # before its first client: a meter that others had already doesn't begin with its whole rate
        self.publish_peer_rates()

    def remove_worker(self, worker: int) -> None:
        if self._workers.pop(worker, None) is not None:
            if self._allocator is not None:
                self._allocator.forget_worker(str(worker))
            self._limits_in_use.forget_worker(worker)
            self.rates.remove_worker(worker)
            self.publish_peer_rates()  # before its clients come to them
            self._wake.set()

    def record_heard(self, worker: int) -> None:
        """The worker has sent a message, whatever it is."""
        member = self._workers[worker]
        member.silent_s = 0.0
        if member.is_silent:
            self._mark_silent(worker, member, is_silent=False)

    def is_silent(self, worker: int) -> bool:
        """Whether the worker has sent nothing for SILENT_S, so that it is stopped."""
        return self._workers[worker].is_silent

    def _mark_silent(self, worker: int, member: _MemberWorker, *, is_silent: bool) -> None:
        """Others must not wait for a worker that is stopped, and whose clients take nothing."""
        member.is_silent = is_silent
        if self._allocator is not None:
            self._allocator.mark_worker_silent(str(worker), is_silent)
        if is_silent:
            log.warning("worker %d has sent nothing for %g s: others get what it used of limits", worker, SILENT_S)
            self.rates.suspend_worker(worker)
        else:
            log.info("worker %d reports again", worker)
        self._wake.set()

    def _check_silence(self, now: float) -> None:
        elapsed, self._refreshed_at = min(now - self._refreshed_at, MAX_STEP_S), now
        for number, member in self._workers.items():
            member.silent_s += elapsed
            if member.silent_s >= SILENT_S and not member.is_silent:
                self._mark_silent(number, member, is_silent=True)

    def record_demand(self, worker: int, demand: DemandReport) -> None:
        if self._allocator is None:
            return
        uses = {
            key: use
            for key, use in demand.demands.items()
            if self._limits_in_use.record_use(worker, key, idle=use.is_idle)
        }
        self._allocator.update_demand(str(worker), uses, whole=demand.whole)
        if demand.whole:
            self._limits_in_use.set_busy(worker, uses)
            told = self._workers.get(worker)
            if told is not None and told.knows is _WorkerKnowledge.SHARES:
                told.knows = _WorkerKnowledge.NOTHING  # it may have none any more, or only old ones
        if self._allocator.is_urgent:
            self._wake.set()

    def record_rates(self, worker: int, rates: WorkerRates) -> None:
        """The worker's rates to brokers."""
        self.rates.set_worker_rates(worker, rates)
        self._wake_idle()

    # --- other gateways -----------------------------------------------------------------------------------------------

    def current_usage(self) -> GatewayUsage:
        """This gateway's usage, and its rates to brokers, for its peers: a few limits at a time."""
        assert self._allocator is not None
        self._allocator.is_urgent = False
        uses = self._allocator.drain_changes(MAX_REPORTED)
        return GatewayUsage(uses, self.rates.collect_changed_rates(), len(self._workers), self._allocator.has_changes)

    def busiest_traffic(self) -> GatewayTraffic:
        """This gateway's busiest topics and clients for its peers, if there are any."""
        return NO_TRAFFIC if self._allocator is None or self._allocator.gateway_count == 1 else self._traffic()

    def on_report_published(self, keys: Iterable[FleetKey]) -> None:
        """Peers count with the last reported usage from now on; it changed for these limits."""
        assert self._allocator is not None
        self._allocator.mark_published(keys)

    def on_peer_news(self, heard: PeerNews) -> None:
        """Another gateway has sent news."""
        if heard.left:
            self.on_peer_lost(heard.peer)
            return
        assert self._allocator is not None
        if heard.keys:
            self._allocator.mark_peers_changed(heard.keys)
        if heard.keys or self._allocator.gateway_count != self._gateways:
            self._wake.set()
        if heard.rates:
            self.rates.mark_peers_changed()
            self._wake_idle()

    def on_peer_lost(self, peer: str) -> None:
        """The gateway was silent for too long, or has left."""
        log.info("gateway %s is gone: the others divide its shares", one_line(peer.rsplit("#", 1)[0]))
        assert self._allocator is not None
        self._allocator.mark_peers_changed()
        self.rates.mark_peer_gone()
        self._wake.set()

    def on_exchange_state(self, up: bool) -> None:
        """Whether peers can be received, and can receive from us."""
        now, problem = self._clock(), "" if self.exchange is None else self.exchange.health.problem
        why = problem or "its own messages don't come back"
        self._change_reach(self.reach.on_exchange_state(up, now), now, why)

    def _change_reach(self, is_heard: bool | None, now: float, why: str = "") -> None:
        """`why`: why no gateway can be received."""
        if is_heard is None:
            return
        assert self._allocator is not None
        if is_heard:
            self._allocator.thaw_shares(now)
            self.rates.mark_peers_changed()
        elif self.reach.decided.is_set():
            if self._allocator.gateway_count == 1:
                log.warning("no exchange with other gateways (%s): none is known, so each limit stays whole here", why)
            else:
                log.warning(
                    "no exchange with other gateways (%s): shares of limits stay for %g s, then go to 1/%d of each",
                    why, shares.FROZEN_S, self._allocator.gateway_count,
                )  # fmt: skip
            self._allocator.freeze_shares(now)
        else:
            log.warning(
                "no exchange with other gateways (%s): workers go on with the shares they have, and after %g s with"
                " 1/%d of each limit",
                why, shares.FROZEN_S + shares.DECAY_S, self._last_gateways,
            )  # fmt: skip
        self._wake.set()

    def find_limit(self, key: FleetKey) -> float | None:
        """The size of a limit that this gateway uses."""
        return self._limits_in_use.limits.get(key)

    # --- for people ---------------------------------------------------------------------------------------------------

    @property
    def lacking(self) -> Mapping[str, str]:
        return {} if self.exchange is None else {"exchange": self.exchange.health.problem}

    @property
    def state(self) -> State:
        """How limits are shared."""
        if self._allocator is None:
            return "local"
        if self.reach.down_since is None:
            return "shared"
        frozen_at = self._allocator.frozen_at
        is_over = frozen_at is None or self._clock() - frozen_at >= shares.FROZEN_S + shares.DECAY_S
        return "fallback" if is_over else "frozen"

    def find_uses(self, keys: Iterable[FleetKey] | None = None) -> dict[FleetKey, FleetUse]:
        """This gateway's share of these limits, or of all that it uses, and the use by each other gateway, as far as
        it can hear them.
        """
        allocator, exchange = self._allocator, self.exchange
        if allocator is None or exchange is None or allocator.gateway_count == 1:  # then every limit is whole here
            return {}
        found, are_heard = {}, self.state != "fallback"
        for key in self._limits_in_use.limits if keys is None else keys:
            limit = self._limits_in_use.find_limit(key)
            if limit is not None:
                others = exchange.peers.rates_by_gateway(key) if are_heard else {}
                share = allocator.share_of(key, limit)
                found[key] = FleetUse(share, others, allocator.gateway_count, hears_others=are_heard)
        return found

    def find_peer_rates(self, topic: str, brokers: Iterable[int]) -> dict[tuple[int, str | None], FleetUse]:
        """The rates of other gateways to these brokers, and to that topic there, as workers count them: what no living
        gateway reports (it fades, or none can be heard) is OTHER_GATEWAYS'.
        """
        exchange, gateways = self.exchange, 1 if self._allocator is None else self._allocator.gateway_count
        if exchange is None:
            return {}
        are_heard = self.state != "fallback"
        found: dict[tuple[int, str | None], FleetUse] = {}
        for place in (RatePlace(broker, name) for broker in brokers for name in (None, topic)):
            rate, others = self.rates.peer_rate(*place), exchange.peers.place_rates(place) if are_heard else {}
            left = rate - math.fsum(others.values())
            if left > max(QUIET_RATE, NOTICED * rate):  # else reports came since workers were told
                others[OTHER_GATEWAYS] = left
            if others or gateways > 1:  # alone since lately: the traffic of those that are gone still fades
                found[place] = FleetUse(None, others, max(2, gateways))
        return found

    def peer_traffic(self) -> Mapping[str, GatewayTraffic]:
        """The busiest topics and clients of other gateways, by their names; none while they can't be heard."""
        exchange = self.exchange
        return exchange.peers.traffic_by_gateway() if exchange is not None and exchange.health.is_up else {}

    @property
    def _members(self) -> int:
        """Workers of all gateways; at least 1."""
        peers = 0 if self.exchange is None else self.exchange.peers.worker_count
        return max(1, len(self._workers) + peers)

    def _update_metrics(self) -> None:
        self._metrics.state = self.state
        self._metrics.gauges.update(
            fleet_peers=0.0 if self.exchange is None else self.exchange.peers.peer_count,
            fleet_members=self._members,
            fleet_exchange_up=float(self.exchange is not None and self.exchange.health.is_up),
        )
        if (exchange := self.exchange) is not None:
            self._metrics.sent, self._metrics.sent_bytes = exchange.writer.sent_messages, exchange.writer.sent_bytes
            self._metrics.received, self._metrics.received_bytes = exchange.received_messages, exchange.received_bytes
            self._metrics.dropped = dict(exchange.peers.drop_counts)

    # --- what follows -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Allocate shares until cancelled."""
        swept_at = others_at = self._clock()
        while True:
            self._wake = trio.Event()
            self.refresh_shares()
            now = self._clock()
            if self.rates.is_due and now - others_at >= PEER_RATES_INTERVAL_S:
                others_at = now
                self.publish_peer_rates()
            if now - swept_at >= SWEEP_S:
                swept_at = now
                self.forget_idle_limits()
            self._is_idle = self._is_settled
            interval_s = SETTLED_INTERVAL_S if self._is_idle else 0.0 if self.is_behind else ALLOCATE_INTERVAL_S
            with trio.move_on_after(interval_s):
                await self._wake.wait()
            self._is_idle = False

    @property
    def _is_settled(self) -> bool:
        """Whether nothing changes with time but what nobody waits for."""
        if self.rates.is_due or not self.reach.decided.is_set():
            return False
        if self._allocator is None:
            return True
        if self._limits_in_use.is_behind:
            return False
        return self._allocator.gateway_count == 1 or self._allocator.is_settled

    def _wake_idle(self) -> None:
        """Something has changed: go on with the usual interval."""
        if self._is_idle:
            self._wake.set()

    def refresh_shares(self) -> None:
        """Check whether peers can be received, and allocate."""
        now = self._clock()
        self._check_silence(now)
        self._change_reach(self.reach.check_deadlines(now), now, "it has not been reached yet")
        self.allocate_shares()
        self._update_metrics()

    @property
    def is_behind(self) -> bool:
        """Whether the last `allocate_shares` left something to the next one, which should be at once."""
        if self._allocator is None or self._allocator.gateway_count == 1:
            return False
        return self._allocator.is_behind or self._limits_in_use.is_behind

    def allocate_shares(self) -> None:
        """Determine this gateway's shares from the present usage, and send workers those that are new to them."""
        if self._allocator is None or self.exchange is None:
            return
        now = self._clock()
        changed = self._limits_in_use.refresh_limits(MAX_LOOKED_UP)
        if (changed or self._allocator.is_urgent) and self._allocator.gateway_count > 1:
            self.exchange.report_soon()
        if changed:
            self._allocator.update_limits(changed)
        if not self.reach.decided.is_set():
            self._publish_early(now)
            return
        gateways = self._allocator.gateway_count
        if gateways != self._parent.kept.gateways:
            self._parent.keep(gateways=gateways)
        if gateways == 1:
            self._publish_alone()
            return
        news = self._allocator.allocate_shares(now, MAX_ALLOCATED)
        renew = gateways != self._gateways or now >= self._renew_at
        if renew:
            self._gateways = gateways
            self._renew_at = now + RENEW_S
        lease_s, least_s = None, LEAST_VALID_S
        if self._allocator.frozen_at is None:
            lease_s, least_s = LEASE_CYCLES * self._cycle_s, LEAST_SHARED_S
        valid_until = now + max(least_s, VALID_CYCLES * self._cycle_s)
        for worker in self._workers.values():
            is_new = worker.knows is not _WorkerKnowledge.SHARES
            if news or renew or is_new:
                grants = dict(self._allocator.grants) if is_new else news
                settle_s = SETTLE_CYCLES * self._cycle_s
                is_read = worker.post(LimitShares(grants, gateways, valid_until, settle_s, lease_s, whole=is_new))
                worker.knows = _WorkerKnowledge.SHARES if is_read else _WorkerKnowledge.NOTHING

    def _publish_early(self, now: float) -> None:
        """While the sharing gateways are not known, workers go on with the shares from an earlier control process, or
        without any with a floor: other gateways may have their shares by now. Where no gateway could be received for so
        long that all have gone to even shares, these workers do so too.
        """
        if not self._patient or self._last_gateways == 1:
            return
        down_since = self.reach.down_since
        is_over = down_since is not None and now - down_since >= shares.FROZEN_S + shares.DECAY_S
        lease_s = None if is_over else LEASE_CYCLES * self._cycle_s
        for worker in self._workers.values():
            knows = worker.knows.after_early_publish(is_over)
            shares_now = LimitShares({}, self._last_gateways, None if is_over else now, lease_s=lease_s)
            if knows is not worker.knows and worker.post(shares_now):
                worker.knows = knows

    def _publish_alone(self) -> None:
        self._gateways = 1
        for worker in self._workers.values():
            if worker.knows is not _WorkerKnowledge.ALONE and worker.post(LimitShares(whole=True)):
                worker.knows = _WorkerKnowledge.ALONE

    def forget_idle_limits(self) -> None:
        """Forget unused limits; call it now and then."""
        now = self._clock()
        self._limits_in_use.forget_idle_limits(now)

    def publish_peer_rates(self) -> None:
        """Send workers the rates of all others, where they are new to them."""
        can_be_heard = self.state != "fallback" or self._members <= max(1, len(self._workers))
        self.rates.publish_rates(self._members, self._peer_totals if can_be_heard else None)

    def _peer_totals(self) -> Mapping[int, tuple[float, Mapping[str, float]]]:
        return {} if self.exchange is None else self.exchange.peers.broker_rates()
