# The disks as a source describes them at every check (the brokers themselves, Prometheus, a plugin): judged, and the
# last valid factor kept for a while [DISK]. Brokers that left with a full volume count on, and those that have just
# joined need no description yet.
#
# Judging and remembering are policies/storage/'s, threads and sources that hang views.py's. Knows no worker and no
# metric.

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import trio

from gateway.storage.views import NEW, NOTHING, BoundedCall, Clock, Inherited, StorageState, rebuilt
from policies.storage import (
    Affected,
    Assessment,
    FactorSource,
    Keeper,
    Last,
    LimitPolicy,
    Memory,
    Newcomers,
    Observation,
    ObservationFailed,
    VolumeSource,
    assess,
    crowded,
    volumes_of,
)
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.storage")


class _Look(NamedTuple):
    """A look that succeeded. `departed`: brokers that count without being active; `excused`: that are active and new,
    and not described yet.
    """

    observation: Observation
    assessment: Assessment
    departed: Mapping[int, Last]
    excused: frozenset[int]
    dirs: dict[tuple[int, str], frozenset[str]]


class Observed:
    """A VolumeSource judged by a policy, or a FactorSource that has judged already."""

    invalid = 0

    def __init__(
        self,
        source: VolumeSource | FactorSource,
        policy: LimitPolicy | None,
        keeper: Keeper,
        clock: Clock,
        *,
        places: bool = False,
        memory: Memory | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """`policy` None: `source` is a FactorSource. `places`: it matters which topics are on which volume. `memory`:
        of brokers that leave; None: they are forgotten at once. `grace_s`: for so long a broker that has joined may
        describe no log dir.
        """
        self._source: Any = source
        self._policy = policy
        self._keeper = keeper
        self._clock = clock
        self._asked = BoundedCall(keeper.interval_s)
        self._assessment = NOTHING
        self._paused = False
        self._brokers: Mapping[int, str] = {}
        self._offline: tuple[tuple[int, str], ...] = ()
        self._connected = False
        self._begun = False
        self._places = places
        self._dirs: Mapping[tuple[int, str], frozenset[str]] = {}
        self._adopted: tuple[Affected, ...] | None = None
        self._memory = memory
        self._departed: Mapping[int, Last] = {}  # of the last look that succeeded
        self._newcomers = Newcomers(grace_s)

    def begin(self, now: float) -> None:
        self._keeper.begin(now, self._asked.limit_s)

    async def check(self, began: float) -> None:
        try:
            factor, why = await (self._ask_factor() if self._policy is None else self._observe(self._policy))
            self._keeper.observed(factor, why, began)
        except ObservationFailed as error:
            self._connected = False
            self._keeper.failed(str(error), self._clock())
            raise
        else:
            self._connected = True
        finally:
            self._begun = True

    async def follow(self, changed: Callable[[], None]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with contextlib.suppress(Exception, SystemExit):
                if callable(close := getattr(self._source, "close", None)):
                    close()

    def see(self, now: float) -> StorageState:
        factor, until = self._keeper.current(now), self._keeper.until(now)
        departed = self._judge_departed(now) if factor.origin == "fallback" and factor.value >= 1 else NOTHING
        remembered = departed.factor < 1
        if remembered:
            # Nothing is known of the others, which the fallback lets in; of these it is known that they left, and how.
            factor = factor._replace(value=departed.factor, why=departed.why)
        return StorageState(
            factor,
            self._assessment,
            until,
            None if until is None else self._keeper.next(now),
            self._brokers,
            self._offline,
            factor.observed_at,
            self._connected,
            factor.origin == "fallback" and factor.value < 1,
            self._begun,
            None if (factor.origin == "fallback" and not remembered) or not self._brokers else {},
            self._dirs,
            self._adopted if factor.origin == "kept" and not self._brokers else None,
            departed if remembered else None,
            self._ends(),
            self._memory.lasts if self._memory is not None else {},
        )

    def adopt(self, held: Inherited, now: float) -> None:
        before = self._keeper.current(now)
        self._keeper.adopt(held.factor, held.until, now)
        adopted = self._keeper.current(now)
        if adopted != before:
            self._paused = adopted.state == "PAUSE"
            self._begun = True
            self._adopted = held.affected
        if self._memory is not None:
            self._memory.adopt(held.lasts)

    def _judge_departed(self, now: float) -> Assessment:
        """The volumes of brokers that left, alone."""
        if self._memory is None or self._policy is None or not self._brokers:
            return NOTHING
        try:
            return assess(volumes_of(self._memory.departed(self._brokers, now)), self._policy, self._paused)
        except ObservationFailed:
            return NOTHING

    def _ends(self) -> dict[int, float]:
        """Until when each of the brokers that left counts."""
        if self._memory is None:
            return {}
        return {
            broker_id: last.left_at + self._memory.forget_after_s
            for broker_id, last in self._departed.items()
            if last.left_at is not None
        }

    async def _observe(self, policy: LimitPolicy) -> tuple[float, str]:
        now, memory = self._clock(), self._memory

        def look() -> _Look:
            observation = rebuilt(self._source.observe())
            active = observation.brokers
            if not active:
                raise ObservationFailed("no broker is active")
            excused = self._newcomers.excused(observation.missing, now)
            if observation.missing - excused:
                ids = ", ".join(map(str, sorted(observation.missing - excused)))
                raise ObservationFailed(f"active broker {ids} did not describe a single log dir")
            departed = {} if memory is None else memory.departed(active, now, observation.registered)
            volumes = [volume for volume in observation.volumes if volume.broker_id in active]
            judged = assess([*volumes, *volumes_of(departed)], policy, self._paused)
            return _Look(observation, judged, departed, excused, self._place(crowded(judged)))

        known = {} if memory is None else memory.lasts
        seen = await self._asked.call(look)
        assessment, active = seen.assessment, seen.observation.brokers
        self._assessment, self._paused = assessment, assessment.paused
        self._brokers = {broker_id: NEW if broker_id in seen.excused else "" for broker_id in sorted(active)}
        self._offline = tuple(sorted(seen.observation.offline))
        kept = {place: topics for place, topics in self._dirs.items() if place[0] in seen.departed}
        self._dirs = kept | seen.dirs
        self._newcomers.note(active, seen.excused, now, seen.observation.registered)
        if memory is not None:
            adopted = {broker_id: last for broker_id, last in memory.lasts.items() if known.get(broker_id) is not last}
            memory.note(assessment, seen.departed)
            memory.adopt(adopted)  # while it looked
            self._departed = {broker_id: last for broker_id, last in seen.departed.items() if broker_id in memory.lasts}
        return assessment.factor, assessment.why

    def _place(self, brokers: frozenset[int]) -> dict[tuple[int, str], frozenset[str]]:
        """The topics on these brokers' volumes; nothing where the source doesn't tell, so all are on each of them."""
        place = getattr(self._source, "place", None) if self._places and brokers else None
        if place is None:
            return {}
        try:
            said = place(brokers)
            return {(int(b), str(name)): frozenset(map(str, topics)) for (b, name), topics in said.items()}
        except ObservationFailed as error:
            log.warning("storage: which topics lie on which volume is not known: %s", one_line(str(error), ERROR_CHARS))
            return {}

    async def _ask_factor(self) -> tuple[float, str]:
        factor = await self._asked.call(lambda: float(self._source.factor()))
        return factor, "" if factor >= 1 else f"the factor source says {factor:g}"
