# Storage protection in the control process: observes the cluster's disks on a fixed schedule, and sends workers the
# throttle factor whenever it changes or holds for longer. Workers enforce its end themselves, so a control that died
# leaves nothing behind that doesn't expire; one that was started again goes on with what workers still hold.
#
# Owns the schedule. The view (gateway/storage/views.py) and policies/storage/ say what holds; what REST shows is
# status.py's, log lines and metrics are reporting.py's; the receiver is a callable.

from __future__ import annotations

import logging
import math
from typing import Any, Final, Literal

import trio
from msgspec.structs import replace

from gateway import channel, config
from gateway.control.storage.context import StorageContext
from gateway.control.storage.forecast import DiskForecast
from gateway.control.storage.override import ActiveOverride
from gateway.control.storage.reporting import StorageLog, describe_state, is_substitute
from gateway.control.storage.status import StorageFacts, show_storage
from gateway.storage.views import StorageView, StorageViewState
from policies.storage import (
    ObservationFailed,
    ReplicaPlacement,
    apply_override,
    find_affected,
    topic_matcher,
)

log = logging.getLogger("gateway.storage")

# Expiries that differ by less are the same, two clocks stand behind those of snapshots; but never by so much that one
# of them ends before the next check.
SAME_S: Final = 0.5
SAME_SHARE: Final = 0.1  # of the interval


class StorageControl:
    """Determines the storage factor, and sends it to workers. `run` has to be running; everything else may be called at
    any time.

    Args:
        context: what the rest of control knows. If an earlier control was up, no worker gets the factor that applies
            without data until the first of them has reported its own (`adopt_factor`).
        view: the view of the disks.
    """

    def __init__(self, context: StorageContext, view: StorageView) -> None:
        control = context.control
        assert control.settings.storage is not None
        metrics = control.metrics.create_storage_series()
        self._context = context
        self._control = control
        self._settings = control.settings.storage
        metrics.gauges["storage_usual_age_seconds"] = _usual_age_s(self._settings)
        self._view = view
        self._log = StorageLog(metrics, self._has_limits)
        self._forecast = DiskForecast(context, metrics, self._broker_total)
        self._awaits_worker = control.was_up
        self._clock, self._wall = control.monotonic, control.unix_time
        self._kept_override: channel.StorageSnapshot | None = None  # by a worker, from before control was started
        self._is_exempt = topic_matcher(self._settings.exempt_topics)
        self._published: channel.StorageSnapshot | None = None
        self._state = self._current_state(self._clock())
        self._armed = trio.Event()
        self._next_check = self._clock()

    async def run(self) -> None:
        """Observe and publish until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._view.run_between_checks, self.refresh)
            nursery.start_soon(self._follow_expiry)
            await self._check_on_schedule()

    def adopt_factor(self, reported: channel.StorageSnapshot | None) -> None:
        """A worker's factor from before this control process started; None: it has none. It applies until the first
        observation. Call it before that worker gets any message.
        """
        self._awaits_worker = False
        if reported is None:
            self.refresh()
            return
        now = self._clock()
        self._keep_factor(reported, now)
        state = self._current_state(now)
        is_news = not self._is_published(self._make_message(state))
        if is_news:
            self._log.mark_logged(state)  # the line below says it
        self.refresh()
        if is_news:
            log.info("storage: continuing with the factor that workers hold: %s", describe_state(self._state))

    def refresh(self) -> None:
        """Determine the factor in force, and send it to all receivers. Called whenever what it depends on may have
        changed.
        """
        state = self._state = self._current_state(self._clock())
        self._armed.set()
        message = self._make_message(state)
        if not self._is_published(message):
            self._published = message
            self._control.facts.storage_factor.publish(message)
        at = state.factor.observed_at
        observed_at = None if at is None else self._unix_time(at)
        active = self._context.find_override()
        override = None if active is None else active.override.state
        observes = self._mode == "observe"
        self._log.update_metrics(state, observed_at, self._view.invalid_records, override, observes=observes)
        if state.begun and not (self._awaits_worker and is_substitute(state.factor)):
            self._log.log_changes(state, observes=observes)

    @property
    def _mode(self) -> Literal["enforce", "observe"]:
        return "observe" if self._control.settings.mode == "observe" else self._settings.mode

    def _has_limits(self) -> bool:
        """Whether there is a produce limit that a factor between 0 and 1 can lower."""
        policies = self._control.facts.policies.latest
        if self._settings.scope == "affected":
            return policies.broker_total() is not None or bool(policies.broker_totals())
        return config.limits_production(policies.effective_values())

    def _broker_total(self, broker_id: int) -> float | None:
        """The most bytes per second that the broker's producers get; None: no bound. A rejecting threshold lets bursts
        in, so it is none.
        """
        settings = self._control.settings
        is_bound = settings.thresholds.on_exceed == "delay" and "observe" not in (
            settings.mode,
            settings.thresholds.mode,
        )
        return self._control.facts.policies.latest.broker_total(broker_id) if is_bound else None

    def _keep_factor(self, reported: channel.StorageSnapshot, now: float) -> None:
        if reported.factor.origin == "operator" and (reported.valid_until or 0.0) > now:
            self._kept_override = reported
        has_ended = reported.valid_until is not None and reported.valid_until <= now
        if has_ended or reported.factor.origin == "operator":
            reported = replace(reported, factor=reported.following, valid_until=None, affected=None)
        self._view.adopt_factor(reported, now)

    # --- when ---------------------------------------------------------------------------------------------------------

    async def _check_on_schedule(self) -> None:
        """Check at the start and at every whole interval after it; a slow check skips those that it overlaps."""
        start, interval = self._clock(), self._settings.check_interval
        while True:
            await self._check_disks()
            passed = math.floor((self._clock() - start) / interval + 1e-9) + 1
            self._next_check = start + passed * interval
            await trio.sleep(max(0.0, self._next_check - self._clock()))

    async def _check_disks(self) -> None:
        began = self._clock()
        self._view.begin_check(began)
        self.refresh()
        try:
            await self._view.run_check(began)
        except ObservationFailed as error:
            self._log.record_failure(str(error))
            self.refresh()
        else:
            self._log.record_success()
            self.refresh()
            self._log.count_violated(self._state)
            self._forecast.record_observation(self._state, began)

    async def _follow_expiry(self) -> None:
        while True:
            self._armed = trio.Event()
            until = self._state.until
            with trio.move_on_after(math.inf if until is None else max(0.0, until - self._clock())):
                await self._armed.wait()
                continue
            self.refresh()

    def _current_state(self, now: float) -> StorageViewState:
        """The state in force, with the topics that it affects, after the operator's override if there is one."""
        state, kept, context = self._observed_state(now), self._kept_override, self._context
        if (
            kept is not None
            and kept.valid_until is not None
            and now < kept.valid_until
            and not context.knows_overrides()
        ):
            factor = kept.factor._replace(observed_at=state.factor.observed_at)
            return state._replace(
                factor=factor, until=kept.valid_until, next=state.factor, affected=kept.affected, begun=True
            )
        active = context.find_override()
        return state if active is None else self._with_override(state, active, now)

    def _with_override(self, state: StorageViewState, active: ActiveOverride, now: float) -> StorageViewState:
        factor, affected, _ = apply_override(
            active.override, active.why, state.factor, state.affected, state.assessment,
            by_topic=self._settings.scope == "affected",
        )  # fmt: skip
        ends = now + active.left_s
        until, following = (
            (ends, state.factor) if state.until is None or ends < state.until else (state.until, state.next)
        )
        if active.override.state == "PAUSE" or active.override.force:
            until, following = ends, state.factor  # whatever becomes of the disks
        affected = None if affected is None else tuple(affected)
        return state._replace(factor=factor, affected=affected, until=until, next=following, begun=True)

    def _observed_state(self, now: float) -> StorageViewState:
        """The state without the operator's override."""
        state = self._view.current_state(now)
        if self._settings.scope == "cluster":
            return state._replace(affected=None)
        if state.affected is not None:
            return state
        replicas = self._control.facts.cluster.latest.replicas
        placement = None if replicas is None else ReplicaPlacement(replicas, state.dirs)
        assessment = state.assessment if state.decisive is None else state.decisive
        return state._replace(affected=find_affected(assessment, placement, state.unknown, self._is_exempt))

    def _is_published(self, message: channel.StorageSnapshot) -> bool:
        return _is_same(message, self._published, min(SAME_S, SAME_SHARE * self._settings.check_interval))

    def _make_message(self, state: StorageViewState) -> channel.StorageSnapshot:
        factor, following = (each._replace(observed_at=None) for each in (state.factor, state.next or state.factor))
        return channel.StorageSnapshot(
            factor, self._mode, state.until, following, state.affected, dict(state.kept_volumes)
        )

    # --- REST ---------------------------------------------------------------------------------------------------------

    def status(self, identified: bool = True) -> dict[str, Any]:
        """The response of GET /v1/storage. `identified`: whether the caller is; others don't learn who overrides."""
        now = self._clock()
        override = self._context.find_override()
        if override is not None and not identified:
            override = override._replace(author="")
        state = self._current_state(now)
        at = state.factor.observed_at
        return show_storage(
            StorageFacts(
                self._settings,
                self._mode,
                state,
                self._forecast.describe_volumes(state),
                override,
                now,
                None if at is None else self._unix_time(at),
                max(0.0, self._next_check - now),
                self._log.problem,
                self._log.throttles_nothing,
            )
        )

    def _unix_time(self, at: float) -> float:
        return self._wall() - (self._clock() - at)


def _usual_age_s(settings: config.Storage) -> float:
    """How old the last observation may be as long as all goes well."""
    intervals_s = 2 * settings.check_interval
    return max(intervals_s, settings.snapshot_settings.max_age) if settings.source == "snapshots" else intervals_s


def _is_same(new: channel.StorageSnapshot, old: channel.StorageSnapshot | None, within_s: float) -> bool:
    if old is None or (new.valid_until is None) != (old.valid_until is None):
        return False
    if new.valid_until is None or old.valid_until is None:
        return new == old
    return abs(new.valid_until - old.valid_until) < within_s and replace(new, valid_until=old.valid_until) == old
