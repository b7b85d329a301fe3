# What a valid configuration allows but hardly means, and what it switches off: warnings. What is refused is refused by
# the sections themselves.

from __future__ import annotations

from typing import Final, Literal

from gateway.config.sections import Settings, Thresholds
from gateway.config.storage import Storage
from gateway.hosts import is_loopback
from policies.thresholds.values import Thresholds as ThresholdRules
from policies.verdict import RETRIED_BY_ALL, THROTTLING_QUOTA_EXCEEDED
from protocol.api import ERROR_NAMES, RETRIABLE

MAX_REQUEST_WAIT_S: Final = 15.0  # in all, delays included (docs/non-obvious.md)


def warnings(settings: Settings) -> list[str]:
    """What is allowed but hardly meant, and what is off."""
    found = list(ThresholdRules(settings.thresholds.total, settings.thresholds.by_topic()).warnings())
    found += _code_warnings(settings.reject_code)
    if settings.mode == "observe":
        found.append("mode observe: nothing is limited, only counted (would_reject, would_delay)")
    elif settings.thresholds.mode == "observe":
        found.append("thresholds.mode observe: thresholds limit nothing, they are only counted")
    if settings.acks0 == "drop":
        found.append("acks0 drop: what is over a limit is lost, and its producers report success")
    if settings.thresholds.on_exceed == "delay" and not settings.thresholds.limits_bytes:
        found.append("thresholds.on_exceed delay: without a total.bytes.in.per.sec.threshold nothing is delayed")
    if "SSL" in settings.upstream.properties.get("security.protocol", "").upper():
        found.append(
            "upstream security.protocol: client connections are relayed to brokers in plaintext in this release, so"
            " the bootstrap servers must lead to a listener without TLS"
        )
    admin = settings.admin
    if not is_loopback(admin.host) and not (admin.tokens or admin.token_file):
        found.append(f"admin.open: whoever reaches {admin.host}:{admin.port} may change policies")
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


def _storage_warnings(settings: Settings) -> list[str]:
    storage = settings.storage
    if storage is None:
        return []
    if storage.off:
        return ["storage.check_interval PT0S: full disks are not looked for"]
    found = []
    if settings.mode != "observe" and storage.mode == "observe":
        found.append("storage.mode observe: full disks hold nothing back, what they would is only counted")
    if storage.source == "snapshots" and storage.reads.fail_safe == "OPEN":
        found.append("storage.snapshots.fail_safe OPEN: a broker whose snapshots are missing is taken to have room")
    if storage.soft and not storage.hard and storage.brings_no_limits:
        found.append(
            "storage.soft: without a hard limit producers are held only when a volume is full to the last byte"
        )
    if storage.fallback == 1.0 and storage.source != "snapshots":
        found.append(
            f"storage: throttle.factor.fallback 1.0: when nothing has been learned of the disks for"
            f" {storage.validity:g} s, nothing is held back; 0.0 would pause instead"
        )
    if settings.thresholds.limits_bytes and settings.thresholds.on_exceed == "reject":
        found.append(
            "storage: thresholds.on_exceed reject goes by the average of a minute and lets bursts in that no hard limit"
            " may have room for; delay bounds what is written between two checks"
        )
    return found + _headroom_warnings(storage, settings.thresholds)


def _headroom_warnings(storage: Storage, thresholds: Thresholds) -> list[str]:
    """Whether what is written between two checks has room behind the hard limit, as far as that needs no volume."""
    if storage.factor_source or storage.limit_policy:
        return []
    totals = [*thresholds.by_broker().values(), *([thresholds.total] if thresholds.total is not None else [])]
    if not totals:
        if thresholds.source:
            return []
        return [
            "storage: without a total.bytes.in.per.sec.threshold there is no bound to what is written between two"
            " checks: no hard limit is known to come early enough"
        ]
    hard = storage.hard
    room = hard.level if hard and hard.type == "MinFreeBytes" else storage.min_available_bytes
    written = max(totals) * (storage.check_interval + MAX_REQUEST_WAIT_S)
    if room is None or room >= written:
        return []
    key = "hard" if hard else "min.available.bytes"
    return [
        f"storage.{key}: {room:,.0f} bytes of head-room are less than the {written:,.0f} bytes that"
        f" {max(totals):,.0f} bytes/s bring to a broker within {storage.check_interval:g} s and the"
        f" {MAX_REQUEST_WAIT_S:g} s that a request may be on its way, not counting what replication adds: raise the"
        " limit or check more often"
    ]


def _code_warnings(code: Literal["auto"] | int) -> list[str]:
    if code == "auto" or code in RETRIED_BY_ALL:
        return []
    name = ERROR_NAMES[code]
    if code == THROTTLING_QUOTA_EXCEEDED:
        return [
            f"reject_code {code} ({name}): librdkafka, sarama, aiokafka, KafkaJS and Java before 2.7 give up what is"
            " rejected with it; auto sends it only to those that retry it",
        ]
    if code not in RETRIABLE:
        return [f"reject_code {code} ({name}) is not retriable: clients drop what is rejected"]
    kept = ", ".join(map(str, sorted(RETRIED_BY_ALL)))
    return [
        f"reject_code {code} ({name}): not every client retries it, and idempotent producers are not protected from"
        f" losing records behind it; codes that all retry: {kept}",
    ]
