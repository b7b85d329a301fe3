# The snapshots that workers are told, made from the configuration and from the policies in force. Knows no worker, no
# sockets and no clock.

from __future__ import annotations

from collections.abc import Mapping

from gateway.channel import PROTOCOL, Groups, Policy, Quotas, WorkerSettings
from gateway.config import Settings
from gateway.control.policies.kafka_admin import managed_apis
from policies.engine import Mode
from policies.groups.lines import GroupLimits
from policies.groups.names import DISPATCH_BYTES, DISPATCH_MSGS, PUBLISH_BYTES, PUBLISH_MSGS
from policies.policy_set import PolicySet


def worker_count(settings: Settings) -> int:
    """The parent has put a number in place of `auto`."""
    return 1 if settings.workers == "auto" else settings.workers


def worker_settings(settings: Settings) -> WorkerSettings:
    limits = settings.limits
    return WorkerSettings(
        protocol=PROTOCOL,
        gateway=settings.gateway,
        max_request_bytes=limits.max_request_bytes,
        max_buffered_bytes=max(limits.max_buffered_bytes // worker_count(settings), limits.max_request_bytes),
        connect_timeout_s=settings.upstream.connect_timeout,
        frame_timeout_s=limits.frame_timeout,
        min_bytes_per_s=limits.min_rate,
        first_byte_timeout_s=limits.first_byte_timeout,
        authentication_timeout_s=limits.authentication_timeout,
        idle_timeout_s=limits.idle_timeout,
        max_connections_per_principal=max(1, limits.max_connections_per_principal // worker_count(settings)),
        max_partitions_per_request=limits.max_partitions_per_request,
        max_admin_request_bytes=limits.max_admin_request,
        reject_code=None if settings.reject_code == "auto" else settings.reject_code,
        unknown_apis=settings.unknown_apis,
        max_client_keys=limits.max_client_keys,
        internal_principals=settings.internal.principals,
        internal_client_ids=settings.internal.client_ids,
        internal_clients=tuple((each.principal, each.client_id) for each in settings.internal.clients),
        protected_topics=settings.own_topics,
        acks0=settings.acks0,
        policies=settings.policies,
        managed_apis=managed_apis(settings.client_quotas_api),
        observe=settings.mode == "observe",
        tls=settings.listener.tls,
        upstream_sasl=settings.upstream.properties.get("security.protocol", "").upper().startswith("SASL"),
    )


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


def _limit(rates: Mapping[str, float]) -> GroupLimits:
    return GroupLimits(*(rates.get(key) for key in (PUBLISH_BYTES, PUBLISH_MSGS, DISPATCH_BYTES, DISPATCH_MSGS)))


def _mode(settings: Settings, own: Mode) -> Mode:
    return "observe" if settings.mode == "observe" else own
