# Writes gateway/worker_config.py: what workers get of the configuration, made of the fields that say `workers=True`.
# Workers don't import gateway/config, which takes pydantic, and 15 MB of memory with it.
#
#   python -m tools.worker_config

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from gateway.config import Settings
from gateway.config.reading.keys import is_section, unwrap_type
from gateway.config.sections.fields import marks_of

MODULE: Final = Path(__file__).parent.parent / "gateway" / "worker_config.py"
HEAD: Final = """\
# What workers get of the configuration: the settings whose fields in gateway/config/ say `workers=True`, with their
# types and defaults. Written by `python -m tools.worker_config`; write nothing here. What each means is on its field.

from __future__ import annotations

from typing import Literal

import msgspec
"""


class _Key(NamedTuple):
    """A key that workers get. `is_whole`: of a section, all of its keys."""

    name: str
    field: FieldInfo
    is_whole: bool


def make_module() -> str:
    """The module's text."""
    return "\n\n".join([HEAD, *_structs(Settings, is_whole=False)])


def _keys(section: Any, *, is_whole: bool) -> list[_Key]:
    """
    Raises:
        TypeError: some keys are marked of a section that may be missing, or that there are several of.
    """
    found = []
    for name, field in section.model_fields.items():
        if is_whole or marks_of(field).workers:
            found.append(_Key(name, field, True))
        elif any(_keys(inner, is_whole=False) for inner in _sections_in(field.annotation)):
            if not is_section(field.annotation):
                raise TypeError(f"{name}: workers can get all of its keys or none: write workers=True there")
            found.append(_Key(name, field, False))
    return found


def _structs(section: Any, *, is_whole: bool) -> Iterator[str]:
    """Those that are in it, then its own."""
    keys = _keys(section, is_whole=is_whole)
    for key in keys:
        for inner in _sections_in(key.field.annotation):
            yield from _structs(inner, is_whole=key.is_whole)
    lines = [f"class {_struct_name(section)}(msgspec.Struct, frozen=True, kw_only=True):"]
    for key in keys:
        unit = marks_of(key.field).unit
        line = f"    {key.name}: {_type_text(key.field.annotation)}{_default_text(key)}"
        lines.append(f"{line}  # {unit}" if unit else line)
    yield "\n".join(lines) + "\n"


def _struct_name(section: Any) -> str:
    return "WorkerConfig" if section is Settings else f"Worker{section.__name__}"


def _sections_in(kind: Any) -> Iterator[Any]:
    kind = unwrap_type(kind)
    if is_section(kind):
        yield kind
    elif get_origin(kind) is not Literal:
        for each in get_args(kind):
            yield from _sections_in(each)


def _type_text(kind: Any) -> str:
    """
    Raises:
        TypeError: workers can't be sent such a value.
    """
    args, origin = get_args(kind), get_origin(kind)
    if kind is Ellipsis:
        return "..."
    if kind in (bool, int, float, str):
        return str(kind.__name__)
    if kind is type(None):
        return "None"
    if is_section(kind):
        return _struct_name(kind)
    if origin is Literal:
        return f"Literal[{', '.join(map(_value_text, args))}]"
    if origin in (types.UnionType, Union):
        return " | ".join(map(_type_text, args))
    if origin in (tuple, dict):
        return f"{origin.__name__}[{', '.join(map(_type_text, args))}]"
    if (inner := unwrap_type(kind)) is not kind:
        return _type_text(inner)
    raise TypeError(f"workers can't be sent {kind}")


def _default_text(key: _Key) -> str:
    if not key.is_whole and all(_default_text(inner) for inner in _keys(key.field.annotation, is_whole=False)):
        return f" = {_struct_name(key.field.annotation)}()"
    if key.field.is_required():
        return ""
    default = key.field.default
    return f" = {_struct_name(type(default))}()" if is_section(type(default)) else f" = {_value_text(default)}"


def _value_text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    MODULE.write_text(make_module(), "utf-8")
