# What a changed configuration file changes in a gateway that runs: which keys hold at once, and which take a restart.
# Each key says that itself (`live` in gateway/config/sections/fields.py). One that says nothing takes a restart, since
# what isn't known to follow a change would only look as if it did.
#
# A port that has TLS goes on with it until a restart, whatever its keys become: one line that is missing in a file must
# not have clients, and whoever else comes, speak in plain text.
#
# A key that takes a restart keeps its old value beside the new values of all others, so the two of them together are
# validated once more. Names keys, and never a value: it may be a secret.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from gateway.config.reading.keys import field_in, type_in
from gateway.config.reading.loading import explain_validation
from gateway.config.sections.fields import marks_of
from gateway.config.settings import Settings

KeyPath = tuple[str, ...]
_UNWRITTEN_KEYS: Final = frozenset({"properties"})  # not written in the file: its keys stand beside the others
_MISSING: Final = object()
_TLS_PREFIX: Final = "ssl."  # of the keys of sections/tls.py
_KEYSTORE: Final = "ssl.keystore.location"  # that one without which there is no TLS


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
        if is_live(path) and not _ends_tls(path, old, new):
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
    """The paths that differ, no deeper than what is live as a whole, with the new values."""
    for key in [*old, *(key for key in new if key not in old)]:
        inner, before, after = (*path, key), old.get(key, _MISSING), new.get(key, _MISSING)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict) and not is_live(inner):
            yield from _find_differences(before, after, inner)
        else:
            yield inner, after


def is_live(path: Sequence[str]) -> bool:
    """Whether a change there holds at once: the first key on the way that says yes or no decides."""
    kind: Any = Settings
    for key in path:
        field = field_in(kind, key)
        if field is not None and (live := marks_of(field).live) is not None:
            return live
        kind = type_in(kind, key)
    return False


def _ends_tls(path: KeyPath, old: Any, new: Any) -> bool:
    """Whether it is a key of the TLS of a port that would have none any more."""
    if not path[-1].startswith(_TLS_PREFIX):
        return False
    for key in path[:-1]:
        old, new = old[key], new[key]
    return bool(old[_KEYSTORE] and not new[_KEYSTORE])


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
