# The configuration's JSON Schema, for editors, and for the reference page that is made of it.

from __future__ import annotations

from typing import Any, Final

from gateway.config.sections.fields import SettingMarks
from gateway.config.settings import Settings

# Bounds of a type that is converted first (a size, a port): pydantic has their names and not JSON Schema's.
_BOUND_NAMES: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def described_schema() -> dict[str, Any]:
    """The configuration's JSON Schema, each key with its meaning."""
    schema: dict[str, Any] = _rename_bounds(Settings.model_json_schema(by_alias=True))
    for section in (schema, *schema["$defs"].values()):
        for field in section.get("properties", {}).values():
            field.pop("title", None)
            if "$ref" in field:  # beside it older validators see nothing
                field["allOf"] = [{"$ref": field.pop("$ref")}]
            for mark in SettingMarks._fields:
                field.pop(mark)
    return schema


def _rename_bounds(value: Any) -> Any:
    if isinstance(value, list):
        return [_rename_bounds(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {_BOUND_NAMES.get(key, key): _rename_bounds(each) for key, each in value.items()}
