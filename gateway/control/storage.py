# Storage protection in the control process: looks at the cluster's disks on a fixed schedule, and tells workers the
# throttle factor whenever it changes or holds for longer. Workers enforce its end themselves, so a control that died
# leaves nothing behind that doesn't expire; one that was started again goes on with what workers still hold.
#
# Owns the schedule, the log lines, the metrics and what REST shows. What holds is the view's (storage/views.py) and
# policies/storage.py's; who gets told is a callable.

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import trio
from msgspec.structs import replace

from gateway import channel, config
from gateway.control.metrics import StorageMetrics
from gateway.storage.views import Clock, Inherited, StorageState, StorageView
from policies.storage import Factor, Finding, ObservationFailed
from policies.text import one_line

log = logging.getLogger("gateway.storage")

# Expiries that differ by less are the same, two clocks stand behind those of snapshots; but never by so much that one
# of them ends before the next check.
SAME_S: Final = 0.5
SAME_SHARE: Final = 0.1  # of the interval
MAX_REASONS: Final = 20  # that are told one by one while nothing can be observed


class StorageControl:
    """Keeps the factor. `run` has to be running; `adopt` and `status` may be called at any time.

    Args:
        settings: the section `storage`.
        eye: how the disks are looked at.
        metrics: of storage.
        tell: gets every change.
        observe: tell workers to count only.
        has_limits: whether there is a produce limit that a factor between 0 and 1 can lower.
        restarted: workers may hold a factor from before. Until the first of them has said (`adopt`), nobody is told
            what holds without data, so it is no news.
        held: what one of them has said already.
        clock: `time.monotonic`, which workers go by as well; `wall`: Unix time.
    """

    def __init__(
        self,
        settings: config.Storage,
        eye: StorageView,
        metrics: StorageMetrics,
        *,
        tell: Callable[[channel.Storage], None],
        observe: bool = False,
        has_limits: Callable[[], bool] = lambda: True,
        restarted: bool = False,
        held: channel.Storage | None = None,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self._settings = settings
        self._eye = eye
        self._metrics = metrics
        self._tell = tell
        self._mode: Literal["enforce", "observe"] = "observe" if observe else settings.mode
        self._has_limits = has_limits
        self._awaits_worker = restarted
        self._clock, self._wall = clock, wall
        self._told: channel.Storage | None = None
        if held is not None:
            self._take_over(held, clock())
        self._sight = eye.see(clock())
        self._armed = trio.Event()
        self._next_check = clock()
        self._failures = 0  # since the last success
        self._reasons: set[str] = set()  # of them
        self._problem = ""
        self._invalid = 0
        self._logged: tuple[Any, ...] = ()
        self._offline: frozenset[tuple[int, str]] = frozenset()
        self._idle_soft: frozenset[str] = frozenset()  # volumes with a soft limit that has no effect
        self._bare: frozenset[str] = frozenset()  # volumes without a limit
        self._lacking = False
        self._settle()

    async def run(self) -> None:
        """Look and tell until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._eye.follow, self._settle)
            nursery.start_soon(self._follow_expiry)
            await self._check_on_schedule()

    def adopt(self, held: channel.Storage | None) -> None:
        """A worker's, from before this control was started; None: it holds none. Counts until something has been seen.

        To be called before that worker is told anything.
        """
        self._awaits_worker = False
        if held is None:
            self._settle()
            return
        now = self._clock()
        self._take_over(held, now)
        sight = self._eye.see(now)
        is_news = not self._is_told(self._message(sight))
        if is_news:
            self._logged = _key(sight)  # by the line below
        self._settle()
        if is_news:
            log.info("storage: going on with what workers hold: %s", _describe(self._sight.factor))

    def _take_over(self, held: channel.Storage, now: float) -> None:
        factor, until = held.factor, held.valid_until
        if until is not None and until <= now:
            factor, until = held.following, None
        self._eye.adopt(Inherited(factor, until), now)

    # --- when ---------------------------------------------------------------------------------------------------------

    async def _check_on_schedule(self) -> None:
        """At the start and at every whole interval after it; those that a slow check runs into are left out."""
        start, interval = self._clock(), self._settings.check_interval
        while True:
            await self._check()
            passed = math.floor((self._clock() - start) / interval + 1e-9) + 1
            self._next_check = start + passed * interval
            await trio.sleep(max(0.0, self._next_check - self._clock()))

    async def _check(self) -> None:
        try:
            await self._eye.check(self._clock())
        except ObservationFailed as error:
            self._note_failure(str(error))
        else:
            self._note_success()
        self._settle()
        if not self._failures:
            self._metrics.count_violated(self._sight.assessment.violated)

    async def _follow_expiry(self) -> None:
        while True:
            self._armed = trio.Event()
            until = self._sight.until
            with trio.move_on_after(math.inf if until is None else max(0.0, until - self._clock())):
                await self._armed.wait()
                continue
            self._settle()

    def _settle(self) -> None:
        """See what holds now, and say so to everyone whom it concerns."""
        sight = self._sight = self._eye.see(self._clock())
        self._armed.set()
        message = self._message(sight)
        if not self._is_told(message):
            self._told = message
            self._tell(message)
        self._show(sight)
        if sight.begun and not (self._awaits_worker and _is_lacking(sight.factor)):
            self._note(sight)

    def _is_told(self, message: channel.Storage) -> bool:
        return _same(message, self._told, min(SAME_S, SAME_SHARE * self._settings.check_interval))

    def _message(self, sight: StorageState) -> channel.Storage:
        factor, following = (each._replace(observed_at=None) for each in (sight.factor, sight.next or sight.factor))
        return channel.Storage(factor, self._mode, sight.until, following)

    # --- log ----------------------------------------------------------------------------------------------------------

    def _note_failure(self, reason: str) -> None:
        self._metrics.count_observation("failed")
        self._problem = reason
        self._failures += 1
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            log.warning("storage: the disks could not be observed: %s", reason)

    def _note_success(self) -> None:
        self._metrics.count_observation("ok")
        if self._failures:
            log.info("storage: the disks are observed again, after %d failures", self._failures)
        self._failures = 0
        self._reasons.clear()
        self._problem = ""

    def _note(self, sight: StorageState) -> None:
        """One line for what is news."""
        factor = sight.factor
        lacking = _is_lacking(factor)
        if lacking and not self._lacking:
            self._metrics.count_fallback()
        self._lacking = lacking
        key = _key(sight)
        if key != self._logged:
            first, self._logged = not self._logged, key
            quiet = factor.state == "OPEN" and not lacking
            log.log(logging.INFO if quiet else logging.WARNING, "storage: %s", self._news(sight, first))
        self._note_volumes(sight)

    def _news(self, sight: StorageState, first: bool) -> str:
        if sight.factor.state == "OPEN" and sight.factor.origin == "valid":
            seen = f", {len(sight.brokers)} brokers, {len(sight.assessment.findings)} log dirs" if sight.brokers else ""
            return ("OPEN" if first else "OPEN again") + seen
        held = " (observe: nothing is held back)" if self._mode == "observe" and sight.factor.value < 1 else ""
        return _describe(sight.factor) + held

    def _note_volumes(self, sight: StorageState) -> None:
        gone = {each for each in self._offline if each[0] not in sight.brokers}  # nobody knows until its broker is back
        offline = frozenset(sight.offline) | gone
        for broker_id, log_dir in sorted(offline - self._offline):
            log.warning("storage: broker %d log dir %s is offline: left out", broker_id, one_line(log_dir))
        for broker_id, log_dir in sorted(self._offline - offline):
            log.info("storage: broker %d log dir %s is not offline any more", broker_id, one_line(log_dir))
        self._offline = offline
        findings = sight.assessment.findings
        idle = frozenset() if self._has_limits() else frozenset(str(f.volume) for f in findings if _throttles(f))
        if idle and not self._idle_soft:
            log.warning(
                "storage: the soft limit of %s has no effect, because no produce limit exists: set"
                " thresholds.total.bytes.in.per.sec.threshold, or producer_byte_rate in client_quotas", _some(idle),
            )  # fmt: skip
        self._idle_soft = idle
        self._metrics.gauges["storage_soft_limit_without_effect"] = float(bool(idle))
        bare = frozenset(str(f.volume) for f in findings if f.soft_free is None and f.hard_free is None)
        if bare and not self._bare:
            log.warning("storage: %s: no limit, so not protected: set storage.hard", _some(bare))
        self._bare = bare

    # --- metrics, REST ------------------------------------------------------------------------------------------------

    def _show(self, sight: StorageState) -> None:
        metrics, findings = self._metrics, sight.assessment.findings
        metrics.state = sight.factor.state
        metrics.show_volumes(findings, sight.brokers)
        metrics.gauges.update(
            storage_throttle_factor=sight.factor.value,
            storage_no_data_throttling=float(sight.lacks_data),
            storage_source_connected=float(sight.connected),
            storage_active_brokers=len(sight.brokers),
            storage_active_log_dirs=len(findings),
            storage_offline_log_dirs=len(sight.offline),
        )
        if sight.observed_at is not None:
            metrics.gauges["storage_observed_timestamp_seconds"] = self._unix(sight.observed_at)
        metrics.count_observation("invalid", self._eye.invalid - self._invalid)
        self._invalid = self._eye.invalid

    def status(self) -> dict[str, Any]:
        """What GET /v1/storage shows. Sizes in bytes, limits as free bytes, times in seconds."""
        now, sight, settings = self._clock(), self._eye.see(self._clock()), self._settings
        factor = sight.factor
        return {
            "enabled": True,
            "source": f"factor_source {settings.factor_source}" if settings.factor_source else settings.source,
            "mode": self._mode,
            "factor": factor.value,
            "state": factor.state,
            "origin": factor.origin,
            "why": factor.why,
            "observed_at": None if sight.observed_at is None else _iso(self._unix(sight.observed_at)),
            "age_s": None if sight.observed_at is None else round(now - sight.observed_at, 3),
            "next": None if sight.until is None or sight.next is None else {
                "in_s": round(sight.until - now, 3),
                "factor": sight.next.value,
                "state": sight.next.state,
                "origin": sight.next.origin,
                "why": sight.next.why,
            },
            "check_interval_s": settings.check_interval,
            "next_check_s": round(max(0.0, self._next_check - now), 3),
            "connected": sight.connected,
            "problem": self._problem,
            "soft_limit_without_effect": bool(self._idle_soft),
            "brokers": _brokers(sight),
        }  # fmt: skip

    def _unix(self, at: float) -> float:
        return self._wall() - (self._clock() - at)


OFF: Final[Mapping[str, Any]] = {"enabled": False}


def make_status(control: StorageControl | None) -> Callable[[], Mapping[str, Any]]:
    """What GET /v1/storage shows, also where there is no storage protection."""
    return (lambda: OFF) if control is None else control.status


def _is_lacking(factor: Factor) -> bool:
    return factor.origin in ("fallback", "fail-safe")


def _key(sight: StorageState) -> tuple[Any, ...]:
    """What is one event in the log: another one is another line."""
    factor = sight.factor
    if not _is_lacking(factor):
        return factor.state, "valid", ()
    return factor.state, factor.origin, tuple(sight.brokers.items())


def _same(new: channel.Storage, old: channel.Storage | None, within_s: float) -> bool:
    if old is None or (new.valid_until is None) != (old.valid_until is None):
        return False
    if new.valid_until is None or old.valid_until is None:
        return new == old
    return abs(new.valid_until - old.valid_until) < within_s and replace(new, valid_until=old.valid_until) == old


def _describe(factor: Factor) -> str:
    origin = "" if factor.origin == "valid" else f" ({factor.origin})"
    return f"{factor.state}{origin}, every produce limit x {factor.value:.3g}" + (
        f": {factor.why}" if factor.why else ""
    )


def _throttles(finding: Finding) -> bool:
    return finding.release_free is not None


def _some(names: frozenset[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{min(names)}{more}"


def _brokers(sight: StorageState) -> list[dict[str, Any]]:
    volumes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for volume, factor, soft, hard in sight.assessment.findings:
        volumes[volume.broker_id].append(
            {
                "name": volume.name,
                "total_bytes": volume.total,
                "available_bytes": volume.available,
                "consumed_bytes": volume.consumed,
                "soft_limit_bytes": soft,
                "hard_limit_bytes": hard,
                "factor": factor,
            }
        )
    offline: dict[int, list[str]] = defaultdict(list)
    for broker_id, log_dir in sight.offline:
        offline[broker_id].append(log_dir)
    return [
        {"id": broker_id, "unknown": reason, "volumes": volumes[broker_id], "offline": offline[broker_id]}
        for broker_id, reason in sight.brokers.items()
    ]


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
