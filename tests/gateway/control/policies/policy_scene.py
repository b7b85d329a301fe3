# A scene for tests of policies in control: a real policy service over a file, and a cluster that says what the test
# wants of brokers' quotas and of topics.

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import trio

from gateway.control.facts import PublishedCluster
from gateway.control.policies.service import OUTCOMES
from gateway.control.policies.store import FileStore
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import PolicyKey, PolicyOperation, PolicyValue, TopicId, TopicIds
from policies.quotas.store import QuotaStore
from policies.thresholds.sums import CommittedTotal, TopicPlaces
from tests.gateway.control.contexts import Surroundings, make_context, make_policy_service, set_places

EVE = ChangeSource("User:eve", "kafka")


class PolicyMetrics:
    """What a service shows."""

    def __init__(self) -> None:
        self.version = -1
        self.up = False
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.excess: dict[str, float] = {}

    def show_policy_version(self, version: int) -> None:
        self.version = version

    def show_policy_store(self, up: bool) -> None:
        self.up = up

    def show_committed(self, committed: Mapping[str, CommittedTotal]) -> None:
        self.excess = {broker: each.excess for broker, each in committed.items()}

    def count_policy_change(self, outcome: str) -> None:
        self.outcomes[outcome] += 1


class PolicyScene(Surroundings):
    """A policy service. `upstream`: what brokers enforce themselves; `ids`: that the cluster has, by topic."""

    def __init__(self, path: Path, base: dict[PolicyKey, float], cluster: PublishedCluster | None = None) -> None:
        self.metrics = PolicyMetrics()
        self.context = make_context(metrics=self.metrics, cluster=cluster)
        self.upstream: QuotaStore | None = None
        self.ids: dict[str, TopicId] = {}
        self.store = FileStore(path, base)
        self.service = make_policy_service(self.context, self.store, self)

    async def set(self, values: Mapping[PolicyKey, PolicyValue | None], until_ms: int | None = None) -> None:
        """As another client does it."""
        await self.service.alter_policies([PolicyOperation(*item, until_ms) for item in values.items()], EVE)

    @property
    def changes(self) -> dict[PolicyKey, PolicyValue]:
        return dict(self.service.policies.changes)

    @property
    def places(self) -> TopicPlaces | None:
        return self.context.facts.cluster.latest.places

    @places.setter
    def places(self, places: TopicPlaces | None) -> None:
        set_places(self.context, places)

    async def fetch_quotas(self) -> QuotaStore | None:
        await trio.lowlevel.checkpoint()
        return self.upstream

    async def fetch_topic_ids(self, topics: Collection[str]) -> TopicIds:
        await trio.lowlevel.checkpoint()
        return {name: topic_id for name, topic_id in self.ids.items() if name in topics}
