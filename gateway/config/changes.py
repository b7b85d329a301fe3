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

from gateway.config.loading import explained
from gateway.config.sections import Settings
from policies.thresholds.values import OUT_KEY, TOTAL_KEY

Path = tuple[str, ...]
_ANY: Final = "*"
_OF_LISTENERS: Final[tuple[Path, ...]] = (
    ("advertised_host",),
    ("advertised_port",),
    ("advertised_broker_host_pattern",),
    ("brokers", _ANY, "advertised_host"),
    ("brokers", _ANY, "advertised_port"),
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
LIVE: Final[tuple[Path, ...]] = (
    *(
        ("thresholds", key)
        for key in (TOTAL_KEY, OUT_KEY, "brokers", "topics", "on_exceed", "burst", "mode", "enforce_percent")
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
    *(("listener", *path) for path in _OF_LISTENERS),
    *(("listeners", _ANY, *path) for path in _OF_LISTENERS),
    ("log",),
    ("reload_interval",),
    ("shutdown_delay",),
    ("drain_timeout",),
)
# Of the above, what is fixed all the same.
FIXED: Final[tuple[Path, ...]] = (
    ("limits", "max_client_metrics"),
    ("limits", "max_topic_metrics"),
    ("log", "format"),  # of the parent's lines too
)
_SILENT: Final = frozenset({"properties"})  # not written in the file: its keys stand beside the others
_MISSING: Final = object()


class Changes(NamedTuple):
    """`settings`: the configuration that is to run from here on. `live`: keys that changed with it; `pending`: those
    whose new values wait for a restart; each as the file writes them, in its order. `problems`: why the one can't be
    without the other; then `settings` is the old one.
    """

    settings: Settings
    live: tuple[str, ...]
    pending: tuple[str, ...]
    problems: tuple[str, ...] = ()


def compare(running: Settings, wanted: Settings) -> Changes:
    """What becomes of `running` when the file says `wanted`."""
    old, new = (json.loads(each.model_dump_json(by_alias=True)) for each in (running, wanted))
    merged = dict(old)
    live, pending = [], []
    for path, value in _differing(old, new, ()):
        if _is_live(path):
            live.append(_name(path))
            _put(merged, path, value)
        else:
            pending.append(_name(path))
    if merged == new:
        return Changes(wanted, tuple(live), ())
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        return Changes(running, tuple(live), tuple(pending), tuple(explained(error)))
    return Changes(settings, tuple(live), tuple(pending))


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """The paths that differ, no deeper than what is live or fixed as a whole, with the new values."""
    for key in [*old, *(key for key in new if key not in old)]:
        inner, before, after = (*path, key), old.get(key, _MISSING), new.get(key, _MISSING)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict) and not _is_whole(inner):
            yield from _differing(before, after, inner)
        else:
            yield inner, after


def _is_whole(path: Path) -> bool:
    """Whether it is live, and nothing in it is fixed."""
    return _is_live(path) and not any(_begins(fixed, path) for fixed in FIXED)


def _is_live(path: Path) -> bool:
    if any(_begins(path, fixed) for fixed in FIXED):
        return False
    return any(_begins(path, live) for live in LIVE)


def _begins(path: Path, with_: Path) -> bool:
    return len(path) >= len(with_) and all(
        mine in (part, _ANY) or part == _ANY for part, mine in zip(path, with_, strict=False)
    )


def _put(merged: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Copies what it changes."""
    node = merged
    for part in path[:-1]:
        node[part] = node = dict(node[part])
    if value is _MISSING:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = value


def _name(path: Path) -> str:
    return ".".join(part for part in path if part not in _SILENT)
