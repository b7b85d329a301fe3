# What a changed configuration file changes in a gateway that runs: which keys hold at once, and which take a restart.
# Those that hold at once are listed here, since what isn't known to follow a change would only look as if it did.
#
# A key that takes a restart keeps its old value beside the new values of all others, so the two of them together are
# validated once more. Names keys, and never a value: it may be a secret.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from gateway.config.reading.loading import explain_validation
from gateway.config.settings import Settings
from policies.thresholds.values import TOTAL_KEY, TOTAL_OUT_KEY

KeyPath = tuple[str, ...]
_ANY_KEY: Final = "*"
_LIVE_LISTENER_KEYS: Final[tuple[KeyPath, ...]] = (
    ("advertised_host",),
    ("advertised_port",),
    ("advertised_broker_host_pattern",),
    ("brokers", _ANY_KEY, "advertised_host"),
    ("brokers", _ANY_KEY, "advertised_port"),
    ("sni", "bootstrap_address"),
    ("sni", "advertised_broker_address_pattern"),
    ("ssl.keystore.location",),
    ("ssl.key.location",),
    ("ssl.key.password",),
    ("ssl.truststore.location",),
    ("ssl.client.auth",),
    ("ssl.enabled.protocols",),
    ("ssl.principal.mapping.rules",),
    ("proxy_protocol",),
)
LIVE_KEYS: Final[tuple[KeyPath, ...]] = (
    *(
        ("thresholds", key)
        for key in (TOTAL_KEY, TOTAL_OUT_KEY, "brokers", "topics", "on_exceed", "burst", "mode", "enforce_percent")
    ),
    ("client_quotas",),
    ("client_quotas_mode",),
    ("client_quotas_enforce_percent",),
    ("client_quotas_api",),
    ("resource_groups",),
    ("internal",),
    ("mode",),
    ("acks0",),
    ("reject_code",),
    ("unknown_apis",),
    ("limits",),
    ("upstream", "connect_timeout"),
    ("upstream", "metadata_refresh"),
    *(("listener", *path) for path in _LIVE_LISTENER_KEYS),
    *(("listeners", _ANY_KEY, *path) for path in _LIVE_LISTENER_KEYS),
    ("log",),
    ("reload_interval",),
    ("shutdown_delay",),
    ("drain_timeout",),
)
# Of the above, what is fixed all the same.
FIXED_KEYS: Final[tuple[KeyPath, ...]] = (
    ("limits", "max_client_metrics"),
    ("limits", "max_topic_metrics"),
    ("log", "format"),  # of the parent's lines too
)
_UNWRITTEN_KEYS: Final = frozenset({"properties"})  # not written in the file: its keys stand beside the others
_MISSING: Final = object()


class ConfigChanges(NamedTuple):
    """`settings`: the configuration that is to run from here on. `live`: keys that changed with it; `pending`: those
    whose new values wait for a restart; each as the file writes them, in its order. `problems`: why the one can't be
    without the other; then `settings` is the old one.
    """

    settings: Settings
    live: tuple[str, ...]
    pending: tuple[str, ...]
    problems: tuple[str, ...] = ()


def compare_settings(running: Settings, wanted: Settings) -> ConfigChanges:
    """What becomes of `running` when the file says `wanted`."""
    old, new = (json.loads(each.model_dump_json(by_alias=True)) for each in (running, wanted))
    merged = dict(old)
    live, pending = [], []
    for path, value in _find_differences(old, new, ()):
        if _is_live(path):
            live.append(_path_text(path))
            _set_value(merged, path, value)
        else:
            pending.append(_path_text(path))
    if merged == new:
        return ConfigChanges(wanted, tuple(live), ())
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        return ConfigChanges(running, tuple(live), tuple(pending), tuple(explain_validation(error)))
    return ConfigChanges(settings, tuple(live), tuple(pending))


def _find_differences(old: Mapping[str, Any], new: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """The paths that differ, no deeper than what is live or fixed as a whole, with the new values."""
    for key in [*old, *(key for key in new if key not in old)]:
        inner, before, after = (*path, key), old.get(key, _MISSING), new.get(key, _MISSING)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict) and not _is_whole(inner):
            yield from _find_differences(before, after, inner)
        else:
            yield inner, after


def _is_whole(path: KeyPath) -> bool:
    """Whether it is live, and nothing in it is fixed."""
    return _is_live(path) and not any(_has_prefix(fixed, path) for fixed in FIXED_KEYS)


def _is_live(path: KeyPath) -> bool:
    if any(_has_prefix(path, fixed) for fixed in FIXED_KEYS):
        return False
    return any(_has_prefix(path, live) for live in LIVE_KEYS)


def _has_prefix(path: KeyPath, with_: KeyPath) -> bool:
    return len(path) >= len(with_) and all(
        mine in (part, _ANY_KEY) or part == _ANY_KEY for part, mine in zip(path, with_, strict=False)
    )


def _set_value(merged: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Copies what it changes."""
    node = merged
    for part in path[:-1]:
        node[part] = node = dict(node[part])
    if value is _MISSING:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = value


def _path_text(path: KeyPath) -> str:
    return ".".join(part for part in path if part not in _UNWRITTEN_KEYS)
