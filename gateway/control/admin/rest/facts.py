# The facts about a running gateway's traffic by which explain, effective quotas and lists of topics are worked out:
# policies, limits as workers have them, rates, and what other gateways bring. Gathered on the event loop, so that they
# are of one moment. Knows no request.

from __future__ import annotations

from collections.abc import Mapping

from gateway import channel
from gateway.control.admin.rest.context import GatewayContext
from policies import explain
from policies.definitions.policy_set import PolicySet
from policies.groups.finder import GroupResolver
from policies.quotas.store import QuotaStore


class TrafficFacts:
    def __init__(self, gateway: GatewayContext) -> None:
        self._gateway = gateway
        self._finder: tuple[PolicySet, tuple[str, str], GroupResolver] | None = None

    def gather(self) -> explain.ExplainInputs:
        """All that needs no subject: without groups, brokers' own quotas and shared limits."""
        latest, fleet = self._gateway.latest_snapshot, self._gateway.fleet_status()
        topics, rates = latest(channel.TopicSnapshot), latest(channel.WorkerRates)
        known = explain.ExplainInputs(
            self._gateway.policies.policies,
            self._gateway.base_origin,
            {} if topics is None else topics.leads,
            now_ms=self._gateway.now_ms,
            counted_since_ms=self._gateway.recent.since_ms,
            unheard=(fleet.problem or f"topic {fleet.topic} is silent") if fleet.enabled and not fleet.up else "",
        )
        if rates is not None:
            partial = len(rates.quotas) >= channel.MAX_QUOTA_RATES
            known = known._replace(rates=explain.MeterRates(rates.brokers, rates.quotas, partial, rates.groups))
        if (policy := latest(channel.ThresholdPolicy)) is not None:
            known = known._replace(
                on_exceed=policy.on_exceed,
                burst_s=policy.burst_s,
                threshold_mode=policy.mode,
                rollout=known.rollout._replace(threshold=policy.enforce_percent),
            )
        if (quotas := latest(channel.QuotaSnapshot)) is not None:
            rollout = known.rollout._replace(quota=quotas.enforce_percent)
            known = known._replace(quota_mode=quotas.mode, rollout=rollout)
        if (factor := latest(channel.StorageSnapshot)) is not None:
            known = known._replace(storage=factor.factor, storage_mode=factor.mode, affected=factor.affected)
        if (settings := latest(channel.WorkerSettings)) is not None:
            known = known._replace(
                observe=settings.mode == "observe",
                rollout_key=settings.rollout_key,
                internal_principals=settings.internal.principals,
                internal_client_ids=settings.internal.client_ids,
                internal_clients=[(each.principal, each.client_id) for each in settings.internal.clients],
                protected_topics=settings.protected_topics,
                plugins=settings.policies,
            )
        return known

    def find_other_names(self, theirs: QuotaStore | None) -> str:
        """Why `theirs`, the brokers' quotas of a user, may not be those of clients with its name here; "": they are, or
        there are none.
        """
        other_names = self._gateway.other_names() if theirs is not None and theirs.entries else ""
        return f"{other_names}; those shown are of the name here" if other_names else ""

    def gather_groups(self) -> explain.ExplainInputs:
        """All that resource groups need."""
        known = self._with_groups(self.gather())
        return known._replace(rates=known.rates._replace(fleet=self._gateway.fleet_uses(None)))

    async def gather_for(self, subject: explain.ExplainSubject) -> explain.ExplainInputs:
        """All that one explanation needs."""
        theirs, problem = await self._gateway.fetch_broker_quotas()
        known = self._with_groups(self.gather())
        problem = problem or self.find_other_names(theirs)
        known = known._replace(broker_quotas=theirs or QuotaStore(), broker_quotas_problem=problem)
        fleet = self._gateway.fleet_uses(explain.shared_limit_keys(subject, known))
        brokers = [node for node in known.subject_brokers(subject) if node is not None]
        brought = self._gateway.peer_rates(subject.topic, brokers)
        return known._replace(rates=known.rates._replace(fleet=fleet, peer_rates=brought))

    def gather_topics(
        self,
    ) -> tuple[explain.ExplainInputs, Mapping[str, explain.TopicFlow], Mapping[str, Mapping[str, explain.TopicFlow]]]:
        """What `explain.topic_statuses` takes."""
        known = self.gather()
        known = known._replace(rates=known.rates._replace(peer_traffic=self._gateway.peer_broker_rates()))
        others: dict[str, dict[str, explain.TopicFlow]] = {}
        for gateway, traffic in self._gateway.peer_traffic().items():
            for topic, flow in traffic.topics.items():
                others.setdefault(topic, {})[gateway] = flow
        return known, self._gateway.recent.topic_flows(known.now_ms), others

    def _with_groups(self, known: explain.ExplainInputs) -> explain.ExplainInputs:
        latest = self._gateway.latest_snapshot(channel.GroupSnapshot) or channel.GroupSnapshot(0)
        policies = known.policies
        patterns = (latest.topic_pattern, latest.principal_pattern)
        if self._finder is None or self._finder[:2] != (policies, patterns):  # there may be many namespaces
            finder = GroupResolver(*patterns, policies.tenant_groups(), policies.namespace_groups())
            self._finder = (policies, patterns, finder)
        rollout = known.rollout._replace(group=latest.enforce_percent)
        return known._replace(finder=self._finder[2], group_mode=latest.mode, rollout=rollout)
