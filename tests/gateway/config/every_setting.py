# All settings that there are, by the sections' own types.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from gateway.config import Settings
from gateway.config.reading.keys import is_section, unwrap_type

NAME = "NAME"  # in a path, in place of a name that operators choose


def every_setting(kind: Any = Settings, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """The paths of all keys, those of sections as well, and what their sections say of them."""
    kind = unwrap_type(kind)
    if is_section(kind):
        for name, field in kind.model_fields.items():
            inner = (*path, field.alias or name)
            yield inner, field
            yield from every_setting(field.annotation, inner)
    elif get_origin(kind) is dict:
        yield from every_setting(get_args(kind)[-1], (*path, NAME))
    elif get_origin(kind) is tuple:
        yield from every_setting(get_args(kind)[0], (*path, "0"))


def is_number(kind: Any) -> bool:
    """Whether a value of that type is, or may be, one number."""
    kind = unwrap_type(kind)
    return kind in (int, float) or (get_origin(kind) not in (None, dict, tuple) and any(map(is_number, get_args(kind))))
