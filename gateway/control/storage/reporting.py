# The log lines and counts of storage protection: each failure, change and finding once, when it is news.
#
# Knows no schedule and no worker; the state comes from control/storage/storage_control.py.

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from gateway.control.metrics import StorageMetrics
from gateway.storage.views import StorageViewState
from policies.storage import AffectedTopics, FactorState, StorageFactor, VolumeFinding
from policies.text import one_line

log = logging.getLogger("gateway.storage")

MAX_NAMED: Final = 3  # volumes in one line
MAX_REASONS: Final = 20  # that are listed one by one while nothing can be observed


class StorageLog:
    """Log lines and metrics of storage protection.

    `problem`: why the last check failed, "" where it did not. `throttles_nothing`: there is a soft limit, or a factor
    between 0 and 1, and no produce limit that it could lower.

    Args:
        has_limits: whether there is a produce limit that a factor between 0 and 1 can lower.
    """

    def __init__(self, metrics: StorageMetrics, has_limits: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._has_limits = has_limits
        self.problem = ""
        self._failures = 0  # since the last success
        self._reasons: set[str] = set()  # of them
        self._invalid = 0
        self._logged: tuple[Any, ...] = ()
        self._lacking = False
        self._offline: frozenset[tuple[int, str]] = frozenset()
        self.throttles_nothing = False
        self._bare: frozenset[str] = frozenset()  # volumes without a limit
        self._departed: frozenset[int] = frozenset()  # brokers that count without being active

    # --- checks -------------------------------------------------------------------------------------------------------

    def record_failure(self, reason: str) -> None:
        """An observation failed."""
        self._metrics.count_observation("failed")
        self.problem = reason
        self._failures += 1
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            log.warning("storage: the disks could not be observed: %s", reason)

    def record_success(self) -> None:
        """An observation succeeded."""
        self._metrics.count_observation("ok")
        if self._failures:
            log.info("storage: the disks are observed again, after %d failures", self._failures)
        self._failures = 0
        self._reasons.clear()
        self.problem = ""

    def count_violated(self, state: StorageViewState) -> None:
        """Count the volumes at their hard limit after a check that succeeded; `update_metrics` comes first."""
        self._metrics.count_violated(state.assessment.hard_limit_findings)

    # --- what holds ---------------------------------------------------------------------------------------------------

    def mark_logged(self, state: StorageViewState) -> None:
        """This state is logged already, in other words."""
        self._logged = _event_key(state)

    def log_changes(self, state: StorageViewState, *, observes: bool) -> None:
        """This state is in force: log one line if it is news. `observes`: workers only count."""
        factor = state.factor
        lacking = is_substitute(factor)
        if lacking and not self._lacking:
            self._metrics.count_fallback()
        self._lacking = lacking
        key = _event_key(state)
        if key != self._logged:
            first, self._logged = not self._logged, key
            quiet = factor.state == "OPEN" and not lacking
            fields = {"kind": "storage-state", "state": factor.state, "factor": factor.value, "reason": factor.origin}
            text = _state_text(state, first, observes)
            log.log(logging.INFO if quiet else logging.WARNING, "storage: %s", text, extra=fields)
        self._log_departed(state)
        self._log_volumes(state)

    def _log_departed(self, state: StorageViewState) -> None:
        departed = frozenset(state.departed)
        for broker_id in sorted(departed - self._departed):
            log.warning(
                "storage: broker %d left with a volume at its limit: its last state holds until it is back, or for"
                " storage.forget_after", broker_id,
            )  # fmt: skip
        for broker_id in sorted(self._departed - departed):
            what = "is back" if broker_id in state.brokers else "left, and is forgotten now"
            log.info("storage: broker %d %s", broker_id, what)
        self._departed = departed

    def _log_volumes(self, state: StorageViewState) -> None:
        gone = {each for each in self._offline if each[0] not in state.brokers}  # not known until its broker is back
        offline = frozenset(state.offline) | gone
        for broker_id, log_dir in sorted(offline - self._offline):
            log.warning("storage: broker %d log dir %s is offline: left out", broker_id, one_line(log_dir))
        for broker_id, log_dir in sorted(self._offline - offline):
            log.info("storage: broker %d log dir %s is not offline any more", broker_id, one_line(log_dir))
        self._offline = offline
        self._log_effect(state)
        findings = state.assessment.findings
        bare = frozenset(str(f.volume) for f in findings if f.soft_free is None and f.hard_free is None)
        if bare and not self._bare:
            log.warning("storage: %s: no limit, so not protected: set storage.hard", _name_some(bare))
        self._bare = bare

    def _log_effect(self, state: StorageViewState) -> None:
        soft = frozenset(str(f.volume) for f in state.assessment.findings if _is_throttling(f))
        what = f"the soft limit of {_name_some(soft)}" if soft else ""
        if state.factor.state == "THROTTLE":
            what = what or f"the factor {state.factor.value:.3g} ({state.factor.origin})"
        throttles_nothing = bool(what) and not self._has_limits()
        if throttles_nothing and not self.throttles_nothing:
            log.warning(
                "storage: %s has no effect, because no produce limit exists: set"
                " thresholds.total.bytes.in.per.sec.threshold, or producer_byte_rate in client_quotas", what,
            )  # fmt: skip
        self.throttles_nothing = throttles_nothing
        self._metrics.gauges["storage_throttle_without_effect"] = float(throttles_nothing)

    def update_metrics(
        self,
        state: StorageViewState,
        observed_at: float | None,
        invalid: int,
        override: FactorState | None,
        *,
        observes: bool,
    ) -> None:
        """Set the metrics to this state. `observed_at`: Unix time. `invalid`: records so far that were not valid
        snapshots. `override`: the state that the operator set; None: there is no override. `observes`: see
        `log_changes`.
        """
        metrics, findings = self._metrics, state.assessment.findings
        metrics.state, metrics.override = state.factor.state, override
        metrics.show_volumes(findings, state.brokers)
        metrics.gauges.update(
            storage_throttle_factor=state.factor.value,
            storage_enforced=float(not observes),
            storage_no_data_throttling=float(state.lacks_data),
            storage_source_connected=float(state.connected),
            storage_active_brokers=len(state.brokers),
            storage_active_log_dirs=sum(not each.volume.left for each in findings),
            storage_remembered_brokers=len(state.departed),
            storage_offline_log_dirs=len(state.offline),
            storage_affected_topics=sum(len(each.topics) for each in state.affected or ()),
        )
        if observed_at is not None:
            metrics.gauges["storage_observed_timestamp_seconds"] = observed_at
        metrics.count_observation("invalid", invalid - self._invalid)
        self._invalid = invalid


def is_substitute(factor: StorageFactor) -> bool:
    """Whether the factor stands in for an unknown one."""
    return factor.origin in ("fallback", "fail-safe")


def _event_key(state: StorageViewState) -> tuple[Any, ...]:
    """Identifies an event in the log: another key is another line."""
    factor = state.factor
    if not is_substitute(factor):
        return (
            factor.state,
            "operator" if factor.origin == "operator" else "valid",
            tuple((each.key, each.state) for each in state.affected or ()),
        )
    return factor.state, factor.origin, tuple(state.brokers.items())


def _state_text(state: StorageViewState, first: bool, observes: bool) -> str:
    if state.factor.state == "OPEN" and state.factor.origin == "valid":
        seen = f", {len(state.brokers)} brokers, {len(state.assessment.findings)} log dirs" if state.brokers else ""
        return ("OPEN" if first else "OPEN again") + seen
    effect = " (observe: nothing is held back)" if observes and state.factor.value < 1 else ""
    return describe_state(state) + effect


def describe_state(state: StorageViewState) -> str:
    """One line about the state."""
    factor, affected = state.factor, state.affected
    head = factor.state if factor.origin == "valid" else f"{factor.state} ({factor.origin})"
    if affected is not None and factor.state != "OPEN":
        more = f"; and {len(affected) - MAX_NAMED} more volumes" if len(affected) > MAX_NAMED else ""
        return f"{head}: " + "; ".join(_describe_volume(each) for each in affected[:MAX_NAMED]) + more
    return f"{head}, every produce limit x {factor.value:.3g}" + (f": {factor.why}" if factor.why else "")


def _describe_volume(each: AffectedTopics) -> str:
    """One line about the effect of one volume."""
    what = "paused" if each.value <= 0 else f"share each broker's total x {each.value:.3g}"
    topics = "1 topic is" if len(each.topics) == 1 and each.value <= 0 else f"{len(each.topics):,} topics"
    verb = " are" if each.value <= 0 and len(each.topics) != 1 else ""
    return f"{topics}{verb} {what}: {each.why}"


def _is_throttling(finding: VolumeFinding) -> bool:
    return finding.release_free is not None


def _name_some(names: frozenset[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{min(names)}{more}"
