# The two ways in which control looks at the cluster's disks, each a sight that can be asked at any time what holds:
# `Observed` runs a source at every check and keeps the last valid factor for a while [DISK]; `Snapshots` reads what
# agents wrote beside the brokers and lists the active brokers at every check [035].
#
# Judging is policies/storage.py's; here is what it must not know: threads, two clocks, sources that hang or raise
# whatever they like. Knows no worker, no metric and no log line: control.py's.

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import trio

from policies.storage import (
    Assessment,
    Factor,
    FactorSource,
    Keeper,
    Limit,
    LimitPolicy,
    Observation,
    ObservationFailed,
    Snapshot,
    SnapshotView,
    Volume,
    VolumeSource,
    assess,
    checked,
)
from policies.text import ERROR_CHARS, one_line

ANSWER_S: Final = 30.0  # a source that has not answered by then, or by the next check if that is later, has failed
POLL_S: Final = 0.5  # of the snapshots' reader: it ends so much later than asked to
CLOSE_S: Final = 1.0
READ_S: Final = 10.0  # after a start, for which unread snapshots are not yet news
SHARE: Final = 0.1  # of the time, that judging all volumes may take while snapshots pour in
LARGEST: Final = 2**63 - 1  # bytes: a long
_NOTHING: Final = Assessment(1.0, (), None)
T = TypeVar("T")

Clock = Callable[[], float]


class StorageState(NamedTuple):
    """What holds now. Times are monotonic. `brokers`: the active ones, each with what its snapshot lacks, or "".

    `until`, `next`: when and into what this changes by itself. `begun`: more is behind it than a start.
    `observed_at`: when all that is known was last known to be so; None: never.
    """

    factor: Factor
    assessment: Assessment = _NOTHING
    until: float | None = None
    next: Factor | None = None
    brokers: Mapping[int, str] = MappingProxyType({})
    offline: tuple[tuple[int, str], ...] = ()
    observed_at: float | None = None
    connected: bool = False
    lacks_data: bool = False
    begun: bool = False


class Inherited(NamedTuple):
    """What a worker still holds from before control was restarted."""

    factor: Factor
    until: float | None


class StorageView(Protocol):
    """One of the two."""

    async def check(self, began: float) -> None:
        """Look.

        Raises:
            ObservationFailed: nothing was seen; `see` has taken it into account.
        """

    async def follow(self, changed: Callable[[], None]) -> None:
        """What goes on between checks, until cancelled; `changed` when `see` may say something else."""

    def see(self, now: float) -> StorageState:
        """What holds."""

    def adopt(self, held: Inherited, now: float) -> None:
        """Go on with it until something has been seen."""

    @property
    def invalid(self) -> int:
        """Records that were no snapshots, so far."""


class SnapshotSource(Protocol):
    """What `Snapshots` needs of gateway.storage.snapshots.SnapshotReader."""

    connected: bool
    caught_up: bool
    invalid: int

    def poll(self, timeout_s: float) -> list[tuple[int, Snapshot | None]]: ...

    def close(self) -> None: ...


class BoundedCall:
    """Calls of one source, one at a time, each in a thread and bounded in time; any error is a failed observation.

    A call that hangs can't be ended. Its thread is left behind, and the next ones fail until it comes back.
    """

    def __init__(self, interval_s: float) -> None:
        self._limit_s = max(ANSWER_S, interval_s)
        self._thread = trio.CapacityLimiter(1)  # its own: nobody else's threads can keep it waiting, nor it others

    async def call(self, source: Callable[[], T]) -> T:
        if self._thread.borrowed_tokens:
            raise ObservationFailed("the source has not come back from an earlier question")
        with trio.move_on_after(self._limit_s):
            return await trio.to_thread.run_sync(self._run, source, abandon_on_cancel=True, limiter=self._thread)
        raise ObservationFailed(f"no answer within {self._limit_s:g} s")

    def _run(self, source: Callable[[], T]) -> T:
        try:
            return source()
        except ObservationFailed as error:
            raise ObservationFailed(one_line(str(error), ERROR_CHARS) or "the source doesn't say why") from error
        except BaseException as error:  # a plugin's mistake must not end the gateway, nor its sys.exit()
            raise ObservationFailed(
                one_line(f"{type(error).__name__}: {error}", ERROR_CHARS).removesuffix(":")
            ) from error


class Guarded(LimitPolicy):
    """Somebody else's policy; whatever it raises is a failed observation."""

    def __init__(self, policy: LimitPolicy) -> None:
        self._policy = policy

    def breaches_hard_limit(self, volume: Volume) -> bool:
        return self._guard(lambda: bool(self._policy.breaches_hard_limit(volume)))

    def breaches_soft_limit(self, volume: Volume) -> bool:
        return self._guard(lambda: bool(self._policy.breaches_soft_limit(volume)))

    def quota_factor(self, volume: Volume) -> float:
        return self._guard(lambda: float(self._policy.quota_factor(volume)))

    def levels(self, volume: Volume) -> tuple[float | None, float | None]:
        def ask() -> tuple[float | None, float | None]:
            soft, hard = self._policy.levels(volume)
            return _finite(soft), _finite(hard)

        return self._guard(ask)

    def _guard(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (Exception, SystemExit) as error:
            text = f"limit policy {type(self._policy).__name__}: {type(error).__name__}: {error}"
            raise ObservationFailed(one_line(text, ERROR_CHARS)) from error


def _finite(level: Any) -> float | None:
    """A level of somebody else's.

    Raises:
        ValueError: it is no number of bytes.
    """
    found = None if level is None else float(level)
    if found is not None and not -LARGEST <= found <= LARGEST:
        raise ValueError(f"the level {found} is no number of bytes")
    return found


def rebuilt(said: Observation) -> Observation:
    """What a source said, of our own types, whatever it took for numbers and names. In the source's thread.

    Raises:
        ObservationFailed: a size that is none, or a volume that is there twice and not the same.
        TypeError, ValueError, AttributeError, OverflowError: there is something else than the type has.
    """
    brokers = frozenset(int(each) for each in said.brokers)
    volumes: dict[tuple[int, str], Volume] = {}
    for each in said.volumes:
        volume = Volume(
            int(each.broker_id), str(each.name), int(each.total), int(each.available),
            _rebuilt_limit(each.soft, "soft"), _rebuilt_limit(each.hard, "hard"),
        )  # fmt: skip
        if max(abs(volume.total), abs(volume.available)) > LARGEST:
            raise ObservationFailed(f"{volume}: its size or what is free of it is no number of bytes")
        if volumes.setdefault((volume.broker_id, volume.name), volume) != volume:
            raise ObservationFailed(f"{volume} is there twice, with different values")
    offline = tuple((int(broker_id), str(log_dir)) for broker_id, log_dir in said.offline)
    return Observation(brokers, tuple(volumes.values()), offline)


def _rebuilt_limit(limit: Limit | None, what: str) -> Limit | None:
    return None if limit is None else checked(Limit(limit.type, float(limit.level)), what)


class Observed:
    """A VolumeSource judged by a policy, or a FactorSource that has judged already."""

    invalid = 0

    def __init__(
        self,
        source: VolumeSource | FactorSource,
        policy: LimitPolicy | None,
        keeper: Keeper,
        clock: Clock,
    ) -> None:
        """`policy` None: `source` is a FactorSource."""
        self._source: Any = source
        self._policy = policy
        self._keeper = keeper
        self._clock = clock
        self._asked = BoundedCall(keeper.interval_s)
        self._assessment = _NOTHING
        self._paused = False
        self._brokers: Mapping[int, str] = {}
        self._offline: tuple[tuple[int, str], ...] = ()
        self._connected = False
        self._begun = False

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
        )

    def adopt(self, held: Inherited, now: float) -> None:
        before = self._keeper.current(now)
        self._keeper.adopt(held.factor, held.until, now)
        adopted = self._keeper.current(now)
        if adopted != before:
            self._paused = adopted.state == "PAUSE"
            self._begun = True

    async def _observe(self, policy: LimitPolicy) -> tuple[float, str]:
        def look() -> tuple[Assessment, str, list[int], list[tuple[int, str]]]:
            observation = rebuilt(self._source.observe())
            if not observation.brokers:
                raise ObservationFailed("no broker is active")
            if observation.missing:
                ids = ", ".join(map(str, sorted(observation.missing)))
                raise ObservationFailed(f"active broker {ids} did not describe a single log dir")
            volumes = [volume for volume in observation.volumes if volume.broker_id in observation.brokers]
            judged = assess(volumes, policy, self._paused)
            return judged, judged.why, sorted(observation.brokers), sorted(observation.offline)

        assessment, why, brokers, offline = await self._asked.call(look)
        self._assessment, self._paused = assessment, assessment.paused
        self._brokers, self._offline = dict.fromkeys(brokers, ""), tuple(offline)
        return assessment.factor, why

    async def _ask_factor(self) -> tuple[float, str]:
        factor = await self._asked.call(lambda: float(self._source.factor()))
        return factor, "" if factor >= 1 else f"the factor source says {factor:g}"


class Snapshots:
    """The volume topic and the list of active brokers, by 035's rules.

    A restarted control has read neither at first. Until it has, and as long as what workers hold is valid, that holds.
    """

    def __init__(
        self,
        reader: SnapshotSource,
        list_active: Callable[[], frozenset[int]],
        view: SnapshotView,
        interval_s: float,
        clock: Clock,
        wall: Clock,
        prepare: Callable[[], bool] = lambda: True,
    ) -> None:
        """`prepare`: makes the topic; called in a thread until it says True."""
        self._reader = reader
        self._prepare = prepare
        self._interval_s = interval_s
        self._list_active = list_active
        self._view = view
        self._clock, self._wall = clock, wall
        self._asked = BoundedCall(interval_s)
        self._held: Inherited | None = None
        self._active: tuple[int, ...] = ()
        self._at: dict[int, float] = {}
        self._listed = False
        self._tried = False
        self._began = clock()
        self._begun = False
        self._observed_at: float | None = None

    @property
    def invalid(self) -> int:
        return self._reader.invalid

    async def check(self, began: float) -> None:
        try:
            active = await self._asked.call(self._list_active)
        except ObservationFailed as error:
            self._view.active_failed(str(error))
            raise
        finally:
            self._tried = True
        self._listed = True
        self._active = tuple(sorted(active))
        self._view.active(active, self._clock())

    async def follow(self, changed: Callable[[], None]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_topic)
            await self._read(changed)

    async def _make_topic(self) -> None:
        while True:
            if await trio.to_thread.run_sync(self._prepare, abandon_on_cancel=True):
                return
            await trio.sleep(self._interval_s)

    async def _read(self, changed: Callable[[], None]) -> None:
        """`changed` judges every volume of the cluster, which takes its time where there are thousands: it is not
        called for each record then, but so that there is time for other things.
        """
        is_news, rests_until = False, 0.0
        try:
            while True:
                before = (self._reader.connected, self._reader.caught_up, self._reader.invalid)
                rest = rests_until - time.perf_counter()
                timeout_s = min(POLL_S, max(0.0, rest)) if is_news else POLL_S
                found = await trio.to_thread.run_sync(self._reader.poll, timeout_s)
                for broker_id, snapshot in found:
                    self._put(broker_id, snapshot)
                is_news |= bool(found)
                is_news |= before != (self._reader.connected, self._reader.caught_up, self._reader.invalid)
                began = time.perf_counter()
                if is_news and began >= rests_until:
                    changed()
                    is_news, ended = False, time.perf_counter()
                    rests_until = ended + (ended - began) * (1 / SHARE - 1)
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await trio.to_thread.run_sync(self._reader.close, abandon_on_cancel=True)

    def see(self, now: float) -> StorageState:
        wall = self._wall()
        view = self._view.current(wall, now)
        known = self._listed and self._reader.caught_up
        if not known and self._held is not None and (self._held.until is None or now < self._held.until):
            return StorageState(
                self._held.factor, until=self._held.until, next=view.factor, connected=self._reader.connected
            )
        self._held = None
        valid = view.factor.origin == "valid"
        self._begun |= valid or (self._tried and (self._reader.caught_up or now - self._began >= READ_S))
        if valid:
            self._observed_at = now - max(0.0, wall - min((self._at[b] for b in self._active), default=wall))
        return StorageState(
            view.factor._replace(observed_at=self._observed_at),
            view.assessment,
            self._view.until(wall, now),
            self._view.next(wall, now),
            {broker_id: view.reasons.get(broker_id, "") for broker_id in self._active},
            (),
            self._observed_at,
            self._reader.connected,
            view.lacks_data,
            self._begun,
        )

    def adopt(self, held: Inherited, now: float) -> None:
        """The lowest of what workers hold; a fail-safe only as long as nothing else is known."""
        if held.until is not None and now >= held.until:
            return
        if held.factor.origin in ("valid", "kept"):
            held = Inherited(held.factor._replace(origin="kept"), held.until)
            self._view.paused |= held.factor.value == 0
        if self._held is None or held.factor.value < self._held.factor.value:
            self._held = held

    def _put(self, broker_id: int, snapshot: Snapshot | None) -> None:
        self._view.put(broker_id, snapshot)
        if snapshot is None:
            self._at.pop(broker_id, None)
        else:
            self._at[broker_id] = snapshot.at
