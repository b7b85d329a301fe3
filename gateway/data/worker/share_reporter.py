# The worker's side of limits that several gateways share: applies the shares that control sends, and reports what this
# worker takes of each limit and where it wants more.
#
# Where this gateway is alone it reports nothing. When control has said nothing for too long, the worker goes by the
# fallback that control sent. While other gateways can be heard, that is next to nothing: they consider a silent gateway
# dead within two cycles, and share what was its own. How shares are allocated is policies/fleet/shares.py's.

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from gateway.channel import DemandReport, LimitShares, ToControl
from gateway.data.worker.idle import IdleWatch
from policies.fleet import demand
from policies.fleet.keys import FleetKey, total_key, total_out_key
from policies.fleet.shares import FLOORS
from policies.quotas.quota_limiters import NO_CLAIM, QuotaLimiters

if TYPE_CHECKING:
    from policies.engine import PolicyEngine

MAX_PER_MESSAGE = 500  # usages in one message: control has other workers to serve
LATE_S = 1.0  # control's new message comes a moment after the former one has expired


class ShareReporter:
    """Connects control with the shared limiters of one worker. `post` sends a message to control and says whether it
    was posted; `log` is the worker's.
    """

    def __init__(
        self,
        engine: PolicyEngine,
        post: Callable[[ToControl], bool],
        log: Callable[[str, str], None],
        is_heard: Callable[[], bool],
        idle_watch: IdleWatch,
    ) -> None:
        self._engine = engine
        self._post = post
        self._log = log
        self._is_control_reading = is_heard
        self._idle_watch = idle_watch
        self._demand = demand.DemandMeter()
        self._totals: dict[FleetKey, int] = {}  # what brokers had got at the last look
        self._is_alone = True
        self._reports_all = True  # the next report has to name everything
        self._valid_until: float | None = None
        self._lease_s: float | None = None
        self._is_control_lost = False  # control has ended
        self._shares_changed = trio.Event()
        self._fleet_joined = trio.Event()

    def apply_shares(self, news: LimitShares, now: float) -> None:
        fleet = self._engine.fleet
        fleet.update_grants(news.grants, news.gateways, news.settle_s, now, whole=news.whole)
        self._engine.apply_shares(now)
        self._valid_until, self._lease_s, self._is_control_lost = news.valid_until, news.lease_s, False
        self._shares_changed.set()
        if fleet.gateways > 1:
            self._fleet_joined.set()

    def on_control_started(self) -> None:
        """There is a new control process, which knows nothing of this worker."""
        self._reports_all = True
        self._idle_watch.wake_sleepers()

    def on_control_lost(self) -> None:
        """Control is gone; from now on other gateways hear nothing of this one."""
        if self._lease_s is not None and not self._is_control_lost:
            self._is_control_lost = True
            until = time.monotonic() + self._lease_s
            self._valid_until = until if self._valid_until is None else min(until, self._valid_until)
            self._shares_changed.set()  # `watch_expiry` has to check again

    async def run_reports(self, quotas: QuotaLimiters) -> None:
        """Report the demand for each limit to control, while there is another gateway to share with."""
        while True:
            self._fleet_joined = trio.Event()
            if self._engine.fleet.gateways == 1:
                self._reports_all = self._is_alone = True
                await self._fleet_joined.wait()
            if self._is_control_reading():
                self.report_demand(quotas, trio.current_time())
            if self._reports_all or not self._demand.is_idle(trio.current_time()):
                await trio.sleep(demand.SAMPLE_S)
            else:
                await self._idle_watch.sleep(demand.SAMPLE_S)

    def report_demand(self, quotas: QuotaLimiters, now: float) -> None:
        """Measure the demand since the last measurement, and report the changes to control."""
        if self._is_alone:  # first look
            self._is_alone = False
            self._totals = {total_key(node_id): broker.total_bytes for node_id, broker in self._engine.brokers.items()}
            self._totals |= {total_out_key(node_id): fetched for node_id, fetched in quotas.fetched_bytes.items()}
            for limiter in list(self._engine.fleet.limiters.values()):
                limiter.reported = limiter.spent
        self._record_totals(quotas, now)
        for key, limiter in list(self._engine.fleet.limiters.items()):
            if key not in self._totals:  # the limiter of all producers, while disks fill up
                self._demand.record_limiter(limiter, now)
        if self._reports_all:
            self._demand.forget_reports()
        uses = list(self._demand.collect_changes(now).items())
        for at in range(0, len(uses), MAX_PER_MESSAGE) if uses else range(self._reports_all):
            # A limit that the first one doesn't list is idle, until a further one says otherwise.
            if not self._post(DemandReport(dict(uses[at : at + MAX_PER_MESSAGE]), self._reports_all)):
                self._reports_all = True
                return
            self._reports_all = False

    def _record_totals(self, quotas: QuotaLimiters, now: float) -> None:
        """Record the bytes produced to, or fetched from, brokers whose total is shared: by requests that wait for it,
        or by shares of it.
        """
        before, self._totals = self._totals, {}
        claims = quotas.share_claims(now)
        for node_id, broker in self._engine.brokers.items():
            claim = claims.get(node_id, NO_CLAIM)
            shares_total = broker.limits.shares_total
            if not (shares_total or node_id in claims):
                continue
            key = total_key(node_id)
            taken = self._totals[key] = broker.total_bytes
            size = taken - before.get(key, taken)
            # Where requests wait for the total, those of clients without shares wait for it too.
            first = max(broker.limits.claimed_rate, claim.content + (0.0 if shares_total else claim.others))
            factor = broker.limits.thresholds.effect.factor
            self._demand.record_use(
                key,
                max(0.0, size / factor),
                broker.limits.is_hungry(now) or claim.hungry,
                now,
                weight=claim.weight or 1.0,
                claim=first / factor,
            )
        for node_id, claim in quotas.share_claims(now, "consumer_byte_rate").items():
            key = total_out_key(node_id)
            fetched = self._totals[key] = quotas.fetched_bytes.get(node_id, 0)
            self._demand.record_use(
                key,
                float(fetched - before.get(key, fetched)),
                claim.hungry,
                now,
                weight=claim.weight or 1.0,
                claim=claim.content + claim.others,
            )

    async def watch_expiry(self) -> None:
        """Apply the fallback when control has sent nothing for too long."""
        while True:
            changed = self._shares_changed = trio.Event()
            timeout_s = math.inf
            if (
                self._valid_until is not None
                and self._engine.fleet.gateways > 1
                and not self._engine.fleet.uses_fallback
            ):
                late_s = LATE_S if self._is_control_reading() and not self._is_control_lost else 0.0
                timeout_s = max(0.0, self._valid_until + late_s - time.monotonic())
            with trio.move_on_after(timeout_s) as waiting:
                await changed.wait()
            if waiting.cancelled_caught:
                self._apply_fallback(trio.current_time())

    def _apply_fallback(self, now: float) -> None:
        if self._lease_s is None:
            self._engine.fleet.use_fallback(now)
            self._log("warning", "limits of the fleet: no update arrived in time: the fallback applies")
        else:
            self._engine.fleet.revoke_grants(now)
            self._reports_all = True  # the next control has to send all shares again
            self._idle_watch.wake_sleepers()
            self._log(
                "warning",
                "limits of the fleet: no update arrived in time, and other gateways divide this one's shares: until"
                f" control is back, this gateway keeps {FLOORS:.0%} of an even share of each limit",
            )
        self._engine.apply_shares(now)
