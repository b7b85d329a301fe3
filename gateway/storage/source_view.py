# The disks as a source describes them at every check (the brokers themselves, Prometheus, a plugin): judged, and the
# last valid factor kept for a while [DISK]. Brokers that left with a full volume count on, and those that have just
# joined need no description yet.
#
# Judging and keeping are policies/storage/'s, threads and sources that hang guarding.py's. Knows no worker and no
# metric.

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import trio

from gateway.channel import StorageSnapshot
from gateway.storage.guarding import BoundedCall, rebuild_observation
from gateway.storage.views import NEW_BROKER, NO_ASSESSMENT, Clock, StorageViewState
from policies.storage import (
    AffectedTopics,
    FactorKeeper,
    FactorSource,
    KeptVolumes,
    LimitPolicy,
    NewBrokers,
    Observation,
    ObservationFailed,
    VolumeAssessment,
    VolumeKeeper,
    VolumeKey,
    VolumeSource,
    assess_volumes,
    crowded_brokers,
    departed_volumes,
)
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.storage")


class _CheckResult(NamedTuple):
    """A check that succeeded. `departed`: brokers that count without being active; `new`: that are active and new, and
    not described yet.
    """

    observation: Observation
    assessment: VolumeAssessment
    departed: Mapping[int, KeptVolumes]
    new: frozenset[int]
    dirs: dict[VolumeKey, frozenset[str]]


class VolumeSourceView:
    """A VolumeSource judged by a policy, or a FactorSource that has judged already."""

    invalid_records = 0

    def __init__(
        self,
        source: VolumeSource | FactorSource,
        policy: LimitPolicy | None,
        keeper: FactorKeeper,
        clock: Clock,
        *,
        places: bool = False,
        forget_after_s: float | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """`policy` None: `source` is a FactorSource. `places`: it matters which topics are on which volume.
        `forget_after_s`: how long the volumes of brokers that left are kept; None: not at all. `grace_s`: for so long a
        broker that has joined may describe no log dir.
        """
        self._source: Any = source
        self._policy = policy
        self._keeper = keeper
        self._clock = clock
        self._source_call = BoundedCall(keeper.interval_s)
        self._seen = StorageViewState(keeper.current_factor(-math.inf))  # by the last check that succeeded
        self._paused = False
        self._connected = False
        self._has_checked = False
        self._needs_topics = places
        self._adopted: tuple[AffectedTopics, ...] | None = None
        self._volumes = VolumeKeeper(forget_after_s)
        self._departed: Mapping[int, KeptVolumes] = {}  # of the last check that succeeded
        self._newcomers = NewBrokers(grace_s)

    def begin_check(self, now: float) -> None:
        self._keeper.begin_observation(now, self._source_call.limit_s)

    async def run_check(self, began: float) -> None:
        try:
            factor, why = await (self._ask_factor() if self._policy is None else self._observe_volumes(self._policy))
            self._keeper.record_observation(factor, why, began)
        except ObservationFailed as error:
            self._connected = False
            self._keeper.record_failure(str(error), self._clock())
            raise
        else:
            self._connected = True
        finally:
            self._has_checked = True

    async def run_between_checks(self, changed: Callable[[], None]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with contextlib.suppress(Exception, SystemExit):
                if callable(close := getattr(self._source, "close", None)):
                    close()

    def current_state(self, now: float) -> StorageViewState:
        factor, until, brokers = self._keeper.current_factor(now), self._keeper.changes_at(now), self._seen.brokers
        is_fallback = factor.origin == "fallback"
        departed = self._judge_departed(now) if is_fallback and factor.value >= 1 else NO_ASSESSMENT
        decides = departed.factor < 1
        if decides:
            # Nothing is known of the others, which the fallback lets in; of these it is known that they left, and how.
            factor = factor._replace(value=departed.factor, why=departed.reason_text)
        return self._seen._replace(
            factor=factor,
            until=until,
            next=None if until is None else self._keeper.next_factor(now),
            connected=self._connected,
            lacks_data=is_fallback and factor.value < 1,
            begun=self._has_checked,
            unknown=None if (is_fallback and not decides) or not brokers else {},
            affected=self._adopted if factor.origin == "kept" and not brokers else None,
            decisive=departed if decides else None,
            departed=self._volumes.departure_ends(self._departed),
            kept_volumes=self._volumes.kept_volumes,
        )

    def adopt_factor(self, kept: StorageSnapshot, now: float) -> None:
        before = self._keeper.current_factor(now)
        self._keeper.adopt_factor(kept.factor, kept.valid_until, now)
        adopted = self._keeper.current_factor(now)
        if adopted != before:
            self._paused = adopted.state == "PAUSE"
            self._has_checked = True
            self._adopted = kept.affected
        self._volumes.adopt_volumes(kept.kept_volumes)

    def _judge_departed(self, now: float) -> VolumeAssessment:
        """The volumes of brokers that left, alone."""
        if self._policy is None or not self._seen.brokers:
            return NO_ASSESSMENT
        departed = departed_volumes(self._volumes.find_departed(self._seen.brokers, now))
        try:
            return assess_volumes(departed, self._policy, self._paused)
        except ObservationFailed:
            return NO_ASSESSMENT

    async def _observe_volumes(self, policy: LimitPolicy) -> tuple[float, str]:
        now = self._clock()

        def observe() -> _CheckResult:
            observation = rebuild_observation(self._source.observe())
            active = observation.brokers
            if not active:
                raise ObservationFailed("no broker is active")
            new = self._newcomers.excused_brokers(observation.missing, now)
            if observation.missing - new:
                ids = ", ".join(map(str, sorted(observation.missing - new)))
                raise ObservationFailed(f"active broker {ids} did not describe a single log dir")
            departed = self._volumes.find_departed(active, now, observation.registered)
            volumes = [volume for volume in observation.volumes if volume.broker_id in active]
            judged = assess_volumes([*volumes, *departed_volumes(departed)], policy, self._paused)
            return _CheckResult(observation, judged, departed, new, self._place_topics(crowded_brokers(judged)))

        before = self._volumes.kept_volumes
        seen = await self._source_call.call_source(observe)
        assessment, active = seen.assessment, seen.observation.brokers
        self._paused = assessment.paused
        kept_dirs = {key: topics for key, topics in self._seen.dirs.items() if key[0] in seen.departed}
        self._seen = self._seen._replace(
            assessment=assessment,
            brokers={broker_id: NEW_BROKER if broker_id in seen.new else "" for broker_id in sorted(active)},
            offline=tuple(sorted(seen.observation.offline)),
            dirs=kept_dirs | seen.dirs,
        )
        self._newcomers.record_active(active, seen.new, now, seen.observation.registered)
        adopted = {b: each for b, each in self._volumes.kept_volumes.items() if before.get(b) is not each}
        self._volumes.record_assessment(assessment, seen.departed)
        self._volumes.adopt_volumes(adopted)  # meanwhile
        self._departed = {b: each for b, each in seen.departed.items() if b in self._volumes.kept_volumes}
        return assessment.factor, assessment.reason_text

    def _place_topics(self, brokers: frozenset[int]) -> dict[VolumeKey, frozenset[str]]:
        """The topics on these brokers' volumes; nothing where the source doesn't tell, so all are on each of them."""
        place = getattr(self._source, "place", None) if self._needs_topics and brokers else None
        if place is None:
            return {}
        try:
            placed = place(brokers)
            return {(int(b), str(name)): frozenset(map(str, topics)) for (b, name), topics in placed.items()}
        except ObservationFailed as error:
            log.warning(
                "storage: the placement of topics on volumes is not known: %s", one_line(str(error), ERROR_CHARS)
            )
            return {}

    async def _ask_factor(self) -> tuple[float, str]:
        factor = await self._source_call.call_source(lambda: float(self._source.factor()))
        return factor, "" if factor >= 1 else f"the factor source says {factor:g}"
