# A worker's settings, with keys of the configuration's sections by short names.

from __future__ import annotations

from typing import Any

from gateway.channel import PROTOCOL, WorkerSettings
from gateway.worker_config import WorkerInternal, WorkerLimits, WorkerUpstream

_SECTIONS: dict[str, Any] = {"limits": WorkerLimits, "internal": WorkerInternal, "upstream": WorkerUpstream}


def made_settings(**values: Any) -> WorkerSettings:
    """`values`: fields of WorkerSettings; KEY of the section `limits`; SECTION_KEY of another one."""
    own: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.partition("_")
        if name in WorkerLimits.__struct_fields__:
            sections.setdefault("limits", {})[name] = value
        elif section in _SECTIONS and key in _SECTIONS[section].__struct_fields__:
            sections.setdefault(section, {})[key] = value
        else:
            own[name] = value
    return WorkerSettings(PROTOCOL, "gw", **own, **{name: _SECTIONS[name](**keys) for name, keys in sections.items()})
