# What workers are to go by: the configuration in force, and the policies over it. Both may change while the gateway
# runs, and a worker gets what has changed in one message, so that none goes by half of it.

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from gateway.channel import GroupSnapshot, QuotaSnapshot, ThresholdPolicy, WorkerSettings
from gateway.config import Settings
from gateway.control.fleet.shares import FleetControl
from gateway.control.workers.effects import possible_effects
from gateway.control.workers.snapshots import groups_of, quota_changes, quotas_of, thresholds_of, worker_settings
from gateway.control.workers.workers import WorkerPool
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyValues


class SnapshotPublisher:
    """
    Attributes:
        settings: the configuration in force; another one is published with the next `publish_policies`.

    Args:
        waits: until the policies changed at run time are known, the snapshots of an earlier control are better.
        expect: called with the effects that published policies can have (effects.py).
        rollout_key: see policies.definitions.rollout.
    """

    def __init__(
        self,
        settings: Settings,
        workers: WorkerPool,
        fleet: FleetControl,
        waits: Callable[[], bool],
        expect: Callable[[frozenset[tuple[str, str]]], None],
        rollout_key: bytes,
    ) -> None:
        self.settings = settings
        self._rollout_key = rollout_key
        self._workers = workers
        self._fleet = fleet
        self._awaits_policies = waits
        self._expect_effects = expect
        self._source_thresholds: tuple[float | None, Mapping[str, float]] | None = None

    def publish_policies(self, policies: PolicySet) -> None:
        """Send workers what is new in these policies and in `settings`."""
        settings, tell = self.settings, self._workers.publish_snapshot
        wanted = worker_settings(settings, self._rollout_key)
        snapshots = thresholds_of(policies, settings), quotas_of(policies, settings), groups_of(policies, settings)
        with self._workers.batch_snapshots():
            if wanted != self._workers.latest_snapshot(WorkerSettings):
                tell(wanted)
            if self._awaits_policies():
                for snapshot in snapshots:
                    self._workers.publish_provisional(snapshot)
            else:
                thresholds, quotas, groups = snapshots
                if thresholds != self._workers.latest_snapshot(ThresholdPolicy):
                    tell(thresholds)
                if self._is_news(quotas):
                    told = self._workers.latest_snapshot(QuotaSnapshot)
                    tell(quotas, None if told is None else quota_changes(told, quotas))
                if self._is_news(groups):
                    tell(groups)
        self._fleet.set_policies(policies)
        self._expect_effects(possible_effects(*snapshots, settings))

    def _is_news(self, snapshot: QuotaSnapshot | GroupSnapshot) -> bool:
        """A version alone is none: there may be many quotas, and workers read them between requests."""
        told = self._workers.latest_snapshot(type(snapshot))
        return told is None or replace(told, version=snapshot.version) != snapshot

    # --- the base of changes at run time ------------------------------------------------------------------------------

    def use_source_thresholds(self, total: float | None, topics: Mapping[str, float]) -> None:
        """The operator's source replaces the file's thresholds from now on."""
        self._source_thresholds = total, topics

    def policy_base(self, settings: Settings) -> PolicyValues:
        """The policies of this configuration.

        Raises:
            PolicyError: the source's thresholds are not valid.
        """
        return (
            settings.policy_values()
            if self._source_thresholds is None
            else settings.policy_values_with(*self._source_thresholds)
        )
