# The settings of Strimzi's quotas plugin: its properties' names are those of the released plugin, of [DISK] and of
# [035]. Sources: kafka-quotas-plugin 0.2 to 0.4, the Kafka resource's API (QuotasPluginStrimzi).

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gateway.name_hints import find_nearest_name

PLUGIN_PREFIX: Final = "client.quota.callback.static."
CLASS_KEY: Final = "client.quota.callback.class"
PLUGIN_CLASSES: Final = (
    "io.strimzi.kafka.quotas.StaticQuotaCallback",
    "org.apache.kafka.server.quota.StaticQuotaCallback",
)
ADMIN_PREFIX: Final = PLUGIN_PREFIX + "kafka.admin."
BOOTSTRAP_KEY: Final = ADMIN_PREFIX + "bootstrap.servers"
PRODUCE, FETCH, REQUEST = PLUGIN_PREFIX + "produce", PLUGIN_PREFIX + "fetch", PLUGIN_PREFIX + "request"
EXCLUDED_KEY: Final = PLUGIN_PREFIX + "excluded.principal.name.list"
CHECK_SECONDS: Final = PLUGIN_PREFIX + "storage.check-interval"  # the plugin's
CHECK_ISO: Final = PLUGIN_PREFIX + "storage.check.interval"  # [DISK]
MIN_BYTES: Final = PLUGIN_PREFIX + "storage.per.volume.limit.min.available.bytes"
MIN_RATIO: Final = PLUGIN_PREFIX + "storage.per.volume.limit.min.available.ratio"
FALLBACK_KEY: Final = PLUGIN_PREFIX + "throttle.factor.fallback"
VALIDITY_KEY: Final = PLUGIN_PREFIX + "throttle.factor.validity.duration"
SOFT, HARD = (
    PLUGIN_PREFIX + "storage.soft",
    PLUGIN_PREFIX + "storage.hard",
)  # up to plugin 0.2: used bytes of all volumes together
FREE_BYTES, FREE_PERCENT = ".min-free-bytes", ".min-free-percent"  # [035], behind SOFT and HARD
CLIENT_ID_KEY: Final = PLUGIN_PREFIX + "kafka.clientIdPrefix"
KNOWN_KEYS: Final = (
    PRODUCE, FETCH, REQUEST, EXCLUDED_KEY, CHECK_SECONDS, CHECK_ISO, MIN_BYTES, MIN_RATIO, FALLBACK_KEY, VALIDITY_KEY,
    CLIENT_ID_KEY,
    *(each + what for each in (SOFT, HARD) for what in ("", FREE_BYTES, FREE_PERCENT)),
)  # fmt: skip
# spec.kafka.quotas of `type: strimzi` -> the property that the operator makes of it
QUOTA_FIELDS: Final = {
    "producerByteRate": PRODUCE,
    "consumerByteRate": FETCH,
    "minAvailableBytesPerVolume": MIN_BYTES,
    "minAvailableRatioPerVolume": MIN_RATIO,
    "excludedPrincipals": EXCLUDED_KEY,
}


class ImportRefused(Exception):
    """Nothing to print; the text is one line: the fault, its place, and a right value."""


class ListenerEndpoint(NamedTuple):
    """A listener of the brokers: its bootstrap address, its security.protocol, what to add by hand."""

    address: str = ""
    protocol: str = "PLAINTEXT"
    notes: tuple[str, ...] = ()


class ImportInput(NamedTuple):
    """A file's contents: properties by their names, the brokers' listeners with the best for clients first, remarks for
    standard error.
    """

    properties: dict[str, str]
    listeners: list[ListenerEndpoint]
    remarks: list[str]


def property_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def suggest_key(key: str, known: Iterable[str]) -> str:
    by_end = {each.removeprefix(PLUGIN_PREFIX): each for each in known}
    near = find_nearest_name(key.removeprefix(PLUGIN_PREFIX), by_end, 0.7)
    return f" (did you mean {by_end[near]}?)" if near else ""
