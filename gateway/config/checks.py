# Warnings about values that are valid but hardly meant, and about what they switch off. The sections themselves refuse
# what can't be used.

from __future__ import annotations

import math
from typing import Final, Literal

from gateway.config.addresses import find_port_conflicts
from gateway.config.sections.clients import Upstream
from gateway.config.sections.limits import Limits
from gateway.config.sections.policies import Thresholds
from gateway.config.sections.storage import Storage, limits_production
from gateway.config.settings import Settings
from gateway.listener_names import config_path
from gateway.system.hosts import is_loopback
from gateway.system.sockets import address_text
from gateway.tls.broker_tls import TLS_PROPERTIES
from policies.definitions.rollout import ALL_CLIENTS
from policies.definitions.small_limits import small_limit_warnings
from policies.thresholds.values import excess_text, used_up_text, without_total_text
from policies.verdict import RETRIED_BY_ALL, THROTTLING_QUOTA_EXCEEDED
from protocol.api import ERROR_NAMES, RETRIABLE_ERRORS

MAX_REQUEST_WAIT_S: Final = 15.0  # in all, delays included


def find_warnings(settings: Settings) -> list[str]:
    """Settings that are allowed but hardly meant, and parts that are off."""
    found = _sum_warnings(settings.thresholds) + small_limit_warnings(settings.policy_values())
    found += _user_warnings(settings)
    found += _code_warnings(settings.reject_code)
    if settings.mode == "observe":
        found.append("mode observe: nothing is limited, only counted (would_reject, would_delay)")
    elif settings.thresholds.mode == "observe":
        found.append("thresholds.mode observe: thresholds limit nothing, they are only counted")
    found += _rollout_warnings(settings)
    if settings.acks0 == "drop":
        found.append("acks0 drop: batches over a limit are lost, and their producers report success")
    if settings.thresholds.on_exceed == "delay" and not settings.thresholds.limits_bytes:
        found.append("thresholds.on_exceed delay: without a total.bytes.in.per.sec.threshold nothing is delayed")
    found += _connections_warnings(settings.limits)
    found += _tls_warnings(settings.upstream)
    if settings.upstream.proxy_protocol != "none":
        found.append(
            f"upstream.proxy_protocol {settings.upstream.proxy_protocol}: only clients' connections begin with the"
            " header, the gateway's own clients can't send it: the proxy in front of the brokers must accept both"
        )
    listeners = {config_path(name): listener for name, listener in settings.all_listeners.items()}
    found += find_port_conflicts(settings.upstream, listeners, settings.other_ports)
    admin = settings.admin
    if not is_loopback(admin.host) and not admin.has_credentials:
        found.append(f"admin.open: any client that reaches {address_text(admin.host, admin.port)} may change policies")
    elif not is_loopback(admin.host) and not admin.tls:
        found.append(
            "admin.ssl.keystore.location: tokens come over the network in plain text, unless a proxy before this port"
            " has TLS: write the file with a certificate and its key"
        )
    if settings.internal.client_ids:
        found.append(
            "internal.client_ids: any client can claim such an id and is then never limited: write internal.clients:"
            " [{principal: User:mirror, client_id: mirror}], which wants both"
        )
    found += _storage_warnings(settings)
    if settings.internal_topics == "none":
        found.append(
            "internal_topics none: usage records stay in usage_log.spool_dir and are not published to a topic;"
            " topic ids are learned from clients' metadata only; every limit holds for this gateway alone"
        )
    elif not settings.publishes_usage:
        found.append("resourceUsagePublishToTopic false: every limit holds for this gateway alone")
    return found


def _user_warnings(settings: Settings) -> list[str]:
    """A quota of the user User:alice holds for nobody: of alice, the principal is User:alice."""
    return [
        f"client_quotas.{index}.user: {user}: quotas name users without their type: write {user.partition(':')[2]}"
        for index, entry in enumerate(settings.client_quotas)
        if isinstance(user := entry.get("user"), str) and user.startswith("User:")
    ]


def _connections_warnings(limits: Limits) -> list[str]:
    own, most = limits.max_connections_per_address, limits.max_connections
    if own is None or 2 * own <= most:
        return []
    return [
        f"limits.max_connections_per_address {own:,} of {most:,}: two addresses can take every place, and nobody else"
        " gets in: leave it out for a tenth; clients behind a load balancer have their own addresses with"
        " listener.proxy_protocol"
    ]


def _tls_warnings(upstream: Upstream) -> list[str]:
    """Host names and certificates of brokers that aren't verified, and properties of TLS where there is none."""
    tls = upstream.tls
    if tls is None:
        idle = sorted(key for key in upstream.properties if key in TLS_PROPERTIES)
        return [f"upstream.{idle[0]}: has no effect without security.protocol: SSL, or SASL_SSL"] if idle else []
    if not tls.verifies:
        return ["upstream.enable.ssl.certificate.verification false: any server is taken for a broker"]
    if not tls.checks_name:
        key = "upstream.ssl.endpoint.identification.algorithm"
        return [f"{key} none: any server with a certificate of these CAs is taken for a broker"]
    return []


def _rollout_warnings(settings: Settings) -> list[str]:
    thresholds, groups = settings.thresholds, settings.resource_groups
    steps = (
        ("thresholds.enforce_percent", thresholds.enforce_percent, "thresholds.mode", thresholds.mode),
        ("client_quotas_enforce_percent", settings.client_quotas_enforce_percent,
         "client_quotas_mode", settings.client_quotas_mode),
        ("resource_groups.enforce_percent", groups.enforce_percent, "resource_groups.mode", groups.mode),
    )  # fmt: skip
    found = []
    for key, percent, mode_key, mode in steps:
        observed_by = "mode" if settings.mode == "observe" else mode_key if mode == "observe" else ""
        if percent < ALL_CLIENTS and observed_by:
            found.append(f"{key} {percent:g}: has no effect with {observed_by} observe, which enforces nothing")
        elif not percent:
            found.append(f"{key} 0: as mode observe, no client is limited")
        elif percent < ALL_CLIENTS:
            found.append(f"{key} {percent:g}: all other clients are not limited, only counted")
            if settings.exchanges_usage and settings.secret_key_file is None:
                found.append(
                    f"{key} {percent:g}: of clients without a principal, each gateway limits others: with several"
                    " gateways write secret_key_file: FILE, the same for all"
                )
    return found


def _sum_warnings(thresholds: Thresholds) -> list[str]:
    """A broker's topics are known only when the gateway runs."""
    topics, totals = thresholds.by_topic(), thresholds.by_broker()
    explicit = math.fsum(topics.values())
    found = [without_total_text(len(topics))] if topics and not thresholds.limits_bytes else []
    if thresholds.total is not None:
        totals = {-1: thresholds.total} | totals
    for node_id, total in totals.items():
        name = "" if node_id < 0 else f"brokers.{node_id}: "
        if explicit > total:
            found.append(f"thresholds: {name}{excess_text(explicit, total)}, unless no broker has all of these topics")
        elif topics and explicit == total:
            found.append(f"thresholds: {name}{used_up_text(total)}, on a broker that has all of these topics")
    return found


def _storage_warnings(settings: Settings) -> list[str]:
    storage = settings.storage
    if storage is None:
        return []
    if storage.is_disabled:
        return ["storage.check_interval PT0S: disks are not observed"]
    found = []
    if settings.mode != "observe" and storage.mode == "observe":
        found.append("storage.mode observe: full disks hold nothing back, the gateway only counts what they would")
    if storage.source == "snapshots" and storage.snapshot_settings.fail_safe == "OPEN":
        found.append("storage.snapshots.fail_safe OPEN: a broker whose snapshots are missing is taken to have room")
    if storage.soft and not storage.hard and storage.needs_limits:
        found.append(
            "storage.soft: without a hard limit producers are held only when a volume is full to the last byte"
        )
    if storage.fallback == 1.0 and storage.source != "snapshots":
        found.append(
            f"storage: throttle.factor.fallback 1.0: when nothing has been learned of the disks for"
            f" {storage.validity:g} s, nothing is held back; 0.0 would pause instead"
        )
    found += _whole_volume_warnings(storage) + _effect_warnings(settings, storage)
    if settings.thresholds.limits_bytes and settings.thresholds.on_exceed == "reject" and not settings.thresholds.burst:
        found.append(
            "storage: thresholds.on_exceed reject goes by the average of a minute and lets bursts in that no hard limit"
            " may have room for; delay, or thresholds.burst: 10s, bounds the bytes written between two checks"
        )
    return found + _headroom_warnings(storage, settings.thresholds)


def _whole_volume_warnings(storage: Storage) -> list[str]:
    limits = [("hard", storage.hard), *((f"volumes.{i}.hard", each.hard) for i, each in enumerate(storage.volumes))]
    keys = [key for key, hard in limits if any((each.type, each.level) == ("MinFreePercentage", 1) for each in hard)]
    keys += ["min.available.ratio"] if storage.min_available_ratio == 1 else []
    return [
        f"storage.{key} 1: never more than the whole volume is free, so producers are always held; 0.01 is 1 %"
        for key in keys
    ]


def _effect_warnings(settings: Settings, storage: Storage) -> list[str]:
    """Factors between 0 and 1 that would throttle nothing; soft limits are refused by the sections."""
    if settings.thresholds.limits_bytes or limits_production(settings.policy_values()):
        return []
    found = []
    if 0.0 < storage.fallback < 1.0 and storage.source != "snapshots":
        found.append(f"throttle.factor.fallback {storage.fallback:g}")
    if storage.factor_source:
        found.append(f"factor_source {storage.factor_source}")
    if storage.limit_policy:
        found.append(f"limit_policy {storage.limit_policy}")
    return [
        f"storage: {what}: a factor between 0 and 1 holds nothing back where no produce limit exists: write thresholds:"
        " {total.bytes.in.per.sec.threshold: 20MB}, or producer_byte_rate in client_quotas"
        for what in found
    ]


def _headroom_warnings(storage: Storage, thresholds: Thresholds) -> list[str]:
    """Whether the bytes written between two checks have room behind the hard limit, as far as that needs no volume."""
    if storage.factor_source or storage.limit_policy:
        return []
    totals = [*thresholds.by_broker().values(), *([thresholds.total] if thresholds.total is not None else [])]
    if not totals:
        if thresholds.source:
            return []
        return [
            "storage: without a total.bytes.in.per.sec.threshold there is no bound to the bytes written between"
            " two checks: no hard limit is known to come early enough"
        ]
    hard = storage.hard
    levels = [each.level for each in hard if each.type == "MinFreeBytes"]
    room = max(levels) if levels else storage.min_available_bytes
    written = max(totals) * (storage.check_interval + MAX_REQUEST_WAIT_S)
    if room is None or room >= written:
        return []
    key = "hard" if hard else "min.available.bytes"
    return [
        f"storage.{key}: {room:,.0f} bytes of head-room are less than the {written:,.0f} bytes that"
        f" {max(totals):,.0f} bytes/s bring to a broker within {storage.check_interval:g} s and the"
        f" {MAX_REQUEST_WAIT_S:g} s that a request may be on its way, not counting the bytes that replication"
        " adds: raise the limit or check more often"
    ]


def _code_warnings(code: Literal["auto"] | int) -> list[str]:
    if code == "auto" or code in RETRIED_BY_ALL:
        return []
    name = ERROR_NAMES[code]
    if code == THROTTLING_QUOTA_EXCEEDED:
        return [
            f"reject_code {code} ({name}): librdkafka, sarama, aiokafka, KafkaJS and Java before 2.7 give up"
            " batches rejected with it; auto sends it only to those that retry it",
        ]
    if code not in RETRIABLE_ERRORS:
        return [f"reject_code {code} ({name}) is not retriable: clients drop rejected batches"]
    kept = ", ".join(map(str, sorted(RETRIED_BY_ALL)))
    return [
        f"reject_code {code} ({name}): not every client retries it, and idempotent producers are not protected from"
        f" losing records behind it; codes that all retry: {kept}",
    ]
