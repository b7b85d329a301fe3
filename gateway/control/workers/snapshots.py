# The snapshots that workers get, made from the configuration and from the policies in force. Knows no worker, no
# sockets and no clock.

from __future__ import annotations

from typing import cast

import msgspec
from msgspec.structs import asdict, replace

from gateway.channel import (
    PROTOCOL,
    GroupSnapshot,
    ListenerSettings,
    QuotaChanges,
    QuotaSnapshot,
    TerminatedSasl,
    ThresholdPolicy,
    WorkerSettings,
)
from gateway.config import AuthenticationSettings, Settings
from gateway.control.policies.kafka_admin.admin_service import managed_apis
from gateway.worker_config import WorkerConfig
from policies.decision import Mode
from policies.definitions.policy_set import PolicySet
from policies.groups.group_limiters import GroupLimitValues
from policies.quotas.names import Entity, QuotaKey


def worker_settings(settings: Settings, rollout_key: bytes) -> WorkerSettings:
    config, workers = msgspec.convert(settings, WorkerConfig, from_attributes=True), settings.worker_count
    limits = replace(
        config.limits,
        max_buffered_bytes=max(config.limits.max_buffered_bytes // workers, config.limits.max_request_bytes),
        max_connections_per_principal=max(1, config.limits.max_connections_per_principal // workers),
    )
    return WorkerSettings(
        PROTOCOL,
        settings.gateway_name,
        **asdict(replace(config, limits=limits)),
        protected_topics=settings.gateway_topics,
        managed_apis=managed_apis(settings.client_quotas_api),
        listeners={
            name: ListenerSettings(
                listener.tls,
                listener.server_names,
                listener.advertised_hosts if listener.tls else (),
                _own_sasl(settings.authentication_of(name)),
            )
            for name, listener in settings.all_listeners.items()
        },
        rollout_key=rollout_key,
        upstream_tls=settings.upstream.tls,
        upstream_sasl=settings.upstream.wants_sasl,
    )


def _own_sasl(own: AuthenticationSettings | None) -> TerminatedSasl | None:
    return None if own is None else TerminatedSasl(own.mechanisms, own.upstream_credentials_file is not None)


def thresholds_of(policies: PolicySet, settings: Settings) -> ThresholdPolicy:
    """The thresholds in force."""
    mode = _effective_mode(settings, settings.thresholds.mode, settings.thresholds.enforce_percent)
    return ThresholdPolicy(
        policies.version,
        policies.broker_total(),
        dict(policies.topic_thresholds()),
        settings.thresholds.on_exceed,
        mode,
        policies.broker_totals(),
        settings.thresholds.enforce_percent,
        settings.thresholds.burst,
    )


def quotas_of(policies: PolicySet, settings: Settings) -> QuotaSnapshot:
    """The client quotas in force."""
    entries = cast("dict[Entity, dict[QuotaKey, float]]", dict(policies.quota_store().entries))  # never changed
    mode = _effective_mode(settings, settings.client_quotas_mode, settings.client_quotas_enforce_percent)
    return QuotaSnapshot(
        policies.version,
        entries,
        mode,
        settings.client_quotas_enforce_percent,
        total_out=policies.broker_total_out(),
        totals_out=policies.broker_totals_out(),
    )


def quota_changes(previous: QuotaSnapshot, wanted: QuotaSnapshot) -> QuotaChanges | None:
    """The changes that make one store of the other; None: all entries are shorter, or something else differs."""
    if replace(previous, version=wanted.version, entries=wanted.entries) != wanted:
        return None
    before, after = previous.entries, wanted.entries
    changed = {entity: values for entity, values in after.items() if before.get(entity) != values}
    changed |= {entity: {} for entity in before if entity not in after}
    return QuotaChanges(changed) if 2 * len(changed) < len(after) else None


def groups_of(policies: PolicySet, settings: Settings) -> GroupSnapshot:
    """The resource groups in force. A tenant or namespace attached to a group that isn't there (see
    PolicySet.collect_warnings) is in one without limits: its tenant's would not be right either.
    """
    limits, section = policies.group_limits(), settings.resource_groups
    tenants, namespaces = dict(policies.tenant_groups()), dict(policies.namespace_groups())
    missing = {*tenants.values(), *namespaces.values()} - limits.keys()
    return GroupSnapshot(
        policies.version,
        {name: GroupLimitValues.from_rates(limits.get(name, {})) for name in (*limits, *sorted(missing))},
        tenants,
        namespaces,
        section.topic_pattern,
        section.principal_pattern,
        _effective_mode(settings, section.mode, section.enforce_percent),
        section.enforce_percent,
    )


def _effective_mode(settings: Settings, own: Mode, enforce_percent: float) -> Mode:
    """The effective mode of a policy; one that is enforced for 0 % of the clients is observed, and measured as such."""
    return "observe" if settings.mode == "observe" or not enforce_percent else own
