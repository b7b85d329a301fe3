# From the configuration to the parts of the policy store, and from policies to what workers are told of them. Beside
# app.py, so that the composition root stays one page. Knows no sockets and no clock.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gateway.channel import GroupLimit, Groups, Policy, Quotas
from gateway.config import Settings
from gateway.policy.store import FileStore, RetriedStore, Store, TopicStore
from policies.group_names import DISPATCH_BYTES, DISPATCH_MSGS, PUBLISH_BYTES, PUBLISH_MSGS
from policies.policy_set import PolicySet


def make_store(settings: Settings, client: Mapping[str, Any], *, patient: bool = False) -> Store:
    """Where policies changed at run time are kept. `client`: librdkafka's properties; `patient`: a file that can't be
    used is tried again.

    Raises:
        StoreError: the file can't be used, and nobody is patient.
    """
    kept, base = settings.policies_store, settings.policy_values()
    if settings.internal_topics == "none":
        path = settings.policies_file
        return RetriedStore(lambda: FileStore(path, base), base) if patient else FileStore(path, base)
    return TopicStore(client, kept.topic, base, replication=kept.replication, member=settings.gateway)


def thresholds_of(policies: PolicySet, settings: Settings) -> Policy:
    """The thresholds in force."""
    mode = _mode(settings, settings.thresholds.mode)
    return Policy(
        policies.version,
        policies.total(),
        policies.topics(),
        settings.thresholds.on_exceed,
        mode,
        policies.totals(),
    )


def quotas_of(policies: PolicySet, settings: Settings) -> Quotas:
    """The client quotas in force."""
    entries = tuple(
        (entity.pairs, {key.wire: value for key, value in values.items()})
        for entity, values in policies.quotas().entries.items()
    )
    return Quotas(policies.version, entries, _mode(settings, settings.client_quotas_mode))


def groups_of(policies: PolicySet, settings: Settings) -> Groups:
    """The resource groups in force. What is attached to a group that isn't there (see PolicySet.warnings) is in one
    without limits: its tenant's would not be right either.
    """
    limits, section = policies.groups(), settings.resource_groups
    tenants, namespaces = dict(policies.tenants()), dict(policies.namespaces())
    missing = {*tenants.values(), *namespaces.values()} - limits.keys()
    return Groups(
        policies.version,
        {name: _limit(limits.get(name, {})) for name in (*limits, *sorted(missing))},
        tenants,
        namespaces,
        section.topic_pattern,
        section.principal_pattern,
        _mode(settings, section.mode),
    )


def _limit(rates: Mapping[str, float]) -> GroupLimit:
    return GroupLimit(*(rates.get(key) for key in (PUBLISH_BYTES, PUBLISH_MSGS, DISPATCH_BYTES, DISPATCH_MSGS)))


def _mode(settings: Settings, own: Literal["enforce", "observe"]) -> Literal["enforce", "observe"]:
    return "observe" if settings.mode == "observe" else own
