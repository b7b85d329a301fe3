# Foreign sources and policies, called so that nothing they do ends or delays the process: sources in a thread, for a
# limited time, and any error as a failed observation. What they return is made into our own types. Knows no schedule.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import trio

from policies.storage import (
    LimitPolicy,
    Observation,
    ObservationFailed,
    Volume,
    VolumeKey,
    VolumeLimit,
    check_limit,
)
from policies.text import ERROR_CHARS, one_line

# a source that has not answered by then, or by the next check if that is later, has failed
SOURCE_TIMEOUT_S: Final = 30.0
LARGEST: Final = 2**63 - 1  # bytes: a long
T = TypeVar("T")


class BoundedCall:
    """Calls of one source, one at a time, each in a thread and over after `limit_s`; any error is a failed observation.

    A call that hangs can't be ended. Its thread is left behind, and the next ones fail until it comes back.
    """

    def __init__(self, interval_s: float) -> None:
        self.limit_s = max(SOURCE_TIMEOUT_S, interval_s)
        self._thread = trio.CapacityLimiter(1)  # its own: no other threads can keep it waiting, nor it others

    async def call_source(self, source: Callable[[], T]) -> T:
        if self._thread.borrowed_tokens:
            raise ObservationFailed("the source has not answered an earlier request")
        with trio.move_on_after(self.limit_s):
            return await trio.to_thread.run_sync(self._run_source, source, abandon_on_cancel=True, limiter=self._thread)
        raise ObservationFailed(f"no answer within {self.limit_s:g} s")

    def _run_source(self, source: Callable[[], T]) -> T:
        try:
            return source()
        except ObservationFailed as error:
            raise ObservationFailed(one_line(str(error), ERROR_CHARS) or "the source doesn't say why") from error
        except BaseException as error:  # a plugin's mistake must not end the gateway, nor its sys.exit()
            raise ObservationFailed(
                one_line(f"{type(error).__name__}: {error}", ERROR_CHARS).removesuffix(":")
            ) from error


class GuardedPolicy(LimitPolicy):
    """A foreign policy; any exception of it is a failed observation."""

    def __init__(self, policy: LimitPolicy) -> None:
        self._policy = policy

    def breaches_hard_limit(self, volume: Volume) -> bool:
        return self._call_policy(lambda: bool(self._policy.breaches_hard_limit(volume)))

    def breaches_soft_limit(self, volume: Volume) -> bool:
        return self._call_policy(lambda: bool(self._policy.breaches_soft_limit(volume)))

    def quota_factor(self, volume: Volume) -> float:
        return self._call_policy(lambda: float(self._policy.quota_factor(volume)))

    def levels(self, volume: Volume) -> tuple[float | None, float | None]:
        def ask() -> tuple[float | None, float | None]:
            soft, hard = self._policy.levels(volume)
            return _finite_level(soft), _finite_level(hard)

        return self._call_policy(ask)

    def _call_policy(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (Exception, SystemExit) as error:
            text = f"limit policy {type(self._policy).__name__}: {type(error).__name__}: {error}"
            raise ObservationFailed(one_line(text, ERROR_CHARS)) from error


def _finite_level(level: Any) -> float | None:
    """A level of a foreign policy.

    Raises:
        ValueError: it is not a number of bytes.
    """
    found = None if level is None else float(level)
    if found is not None and not -LARGEST <= found <= LARGEST:
        raise ValueError(f"the level {found} is not a number of bytes")
    return found


def rebuild_observation(observed: Observation) -> Observation:
    """A source's observation, of our own types, whatever types it uses for numbers and names. In the source's thread.

    Raises:
        ObservationFailed: a size that is none, or a volume that is there twice and not the same.
        TypeError, ValueError, AttributeError, OverflowError: there is something else than the type has.
    """
    brokers = frozenset(int(each) for each in observed.brokers)
    volumes: dict[VolumeKey, Volume] = {}
    for each in observed.volumes:
        volume = Volume(
            int(each.broker_id), str(each.name), int(each.total), int(each.available),
            _rebuild_limit(each.soft, "soft"), _rebuild_limit(each.hard, "hard"),
        )  # fmt: skip
        if max(abs(volume.total), abs(volume.available)) > LARGEST:
            raise ObservationFailed(f"{volume}: its size or its free space is not a number of bytes")
        if volumes.setdefault(volume.key, volume) != volume:
            raise ObservationFailed(f"{volume} is there twice, with different values")
    offline = tuple((int(broker_id), str(log_dir)) for broker_id, log_dir in observed.offline)
    node_ids = getattr(observed, "registered", None)  # a source's own type may be older
    registered = None if node_ids is None else frozenset(int(each) for each in node_ids)
    return Observation(brokers, tuple(volumes.values()), offline, registered)


def _rebuild_limit(limit: VolumeLimit | None, what: str) -> VolumeLimit | None:
    return None if limit is None else check_limit(VolumeLimit(limit.type, float(limit.level)), what)
