# Sends workers what they go by, a method for each fact: what is new in it, as snapshots, in one message.

from __future__ import annotations

import trio
from msgspec.structs import replace

from gateway.channel import GroupSnapshot, QuotaSnapshot, Snapshot, StorageSnapshot
from gateway.config import Settings
from gateway.control.context import ControlContext
from gateway.control.facts import ClusterState
from gateway.control.workers.snapshots import groups_of, quota_changes, quotas_of, thresholds_of, worker_settings
from gateway.control.workers.workers import WorkerPool
from policies.definitions.policy_set import PolicySet


class SnapshotPublisher:
    """
    Args:
        loaded: set once the policies changed at run time are known. Until then the snapshots of an earlier control are
            better than what can be sent, and only workers without any get it.
        rollout_key: see policies.definitions.rollout.
    """

    def __init__(self, context: ControlContext, workers: WorkerPool, loaded: trio.Event, rollout_key: bytes) -> None:
        self._context = context
        self._workers = workers
        self._loaded = loaded
        self._rollout_key = rollout_key

    def publish_settings(self, settings: Settings) -> None:
        """The part of the configuration that workers see, except that of policies (`publish_policies`)."""
        self._publish_if_new(worker_settings(settings, self._rollout_key))

    def publish_cluster(self, view: ClusterState) -> None:
        with self._workers.batch_snapshots():
            for message in (view.brokers, view.topics):
                if message is not None:
                    self._publish_if_new(message)

    def publish_policies(self, policies: PolicySet) -> None:
        """The policies, with what the configuration says of how they are enforced."""
        settings = self._context.settings
        thresholds, quotas = thresholds_of(policies, settings), quotas_of(policies, settings)
        groups = groups_of(policies, settings)
        if self._context.was_up and not self._loaded.is_set():
            for snapshot in (thresholds, quotas, groups):
                self._workers.publish_provisional(snapshot)
            return
        with self._workers.batch_snapshots():
            self._publish_if_new(thresholds)
            if self._is_news(quotas):
                known = self._workers.latest_snapshot(QuotaSnapshot)
                self._workers.publish_snapshot(quotas, None if known is None else quota_changes(known, quotas))
            if self._is_news(groups):
                self._workers.publish_snapshot(groups)

    def publish_storage_factor(self, factor: StorageSnapshot | None) -> None:
        if factor is not None:
            self._workers.publish_snapshot(factor)

    def _publish_if_new(self, snapshot: Snapshot) -> None:
        if snapshot != self._workers.latest_snapshot(type(snapshot)):
            self._workers.publish_snapshot(snapshot)

    def _is_news(self, snapshot: QuotaSnapshot | GroupSnapshot) -> bool:
        """A version alone is none: there may be many quotas, and workers read them between requests."""
        known = self._workers.latest_snapshot(type(snapshot))
        return known is None or replace(known, version=snapshot.version) != snapshot
