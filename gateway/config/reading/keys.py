# Which keys there are at a place of the configuration, by the sections' own types. Knows no value.

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.sections.clients import USUAL_PROPERTIES, Client
from gateway.config.settings import Settings


def type_at(place: Sequence[object]) -> Any:
    """The type of the value there; None: there can be none."""
    found: Any = Settings
    for part in place:
        found = type_in(found, str(part))
    return found


def type_in(kind: Any, key: str) -> Any:
    """The type of the value that a value of this type has under that key; None: there can be none."""
    kind = unwrap_type(kind)
    if is_section(kind):
        return None if (field := field_in(kind, key)) is None else field.annotation
    if (element := _section_in(kind)) is not None:
        return element if key.isdigit() else type_in(element, key)
    return get_args(kind)[-1] if get_origin(kind) is dict else None


def field_in(kind: Any, key: str) -> FieldInfo | None:
    """What a section of this type says of that key; None: it is no section, or has no such key."""
    kind = unwrap_type(kind)
    fields = kind.model_fields.items() if is_section(kind) else ()
    return next((field for name, field in fields if key == (field.alias or name)), None)


def _section_in(kind: Any) -> Any:
    """Of a list of sections, where one may be written without the list: that section; None: it is something else."""
    elements = get_args(kind)[:1] if get_origin(kind) is tuple else ()
    return next((each for each in elements if is_section(each)), None)


def unwrap_type(kind: Any) -> Any:
    """Without what is said about it, and without None."""
    origin, args = get_origin(kind), get_args(kind)
    may_be_none = origin in (types.UnionType, Union) and args[-1] is type(None)
    return unwrap_type(args[0]) if origin is Annotated or may_be_none else kind


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def is_text(kind: Any) -> bool:
    """Whether a value of this type is taken as it is written."""
    kind = unwrap_type(kind)
    if get_origin(kind) is Literal:
        return all(isinstance(each, str) for each in get_args(kind))
    return kind in (str, Path)


def keys_at(place: Sequence[object]) -> list[str]:
    """Those of the section there; none where there is none. Of librdkafka's properties the usual ones."""
    kind = unwrap_type(type_at(place))
    kind = _section_in(kind) or kind
    if not is_section(kind):
        return []
    keys = [field.alias or name for name, field in kind.model_fields.items()]
    return [*(key for key in keys if key != "properties"), *USUAL_PROPERTIES] if issubclass(kind, Client) else keys
