# The reference of the configuration: every section with its keys, types, bounds, defaults and meanings, of the JSON
# Schema that `produce-gateway schema` prints; units, and what a reload takes over, of the fields. What keys are for,
# together and with examples, is docs/configuration.md.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gateway.config.changes import is_live
from gateway.config.reading.keys import field_in, type_at
from gateway.config.schema import described_schema
from gateway.config.sections.fields import marks_of
from tools.site.tables import code_cell, escape_cell, markdown_table

PAGE_HEAD: Final = """\
# Every setting

Made of the program: what `produce-gateway schema` prints, by sections. [Configuration](../configuration.md) explains
how they work together. Sizes are written `20MB`, `20MiB` or in bytes; durations `500ms`, `3s`, `1h30m`, `PT1M` or in
seconds. The defaults here are in bytes and seconds. **Reload**: a change holds [at once](../configuration.md#reload);
other keys need a restart.

"""
_TYPE_NAMES: Final = {"integer": "number", "number": "number", "string": "text", "boolean": "true, false"}
_BOUND_TEXTS: Final = (
    ("minimum", "at least {}"), ("exclusiveMinimum", "more than {}"), ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"), ("maxLength", "at most {} characters"),
)  # fmt: skip


KeyPath = tuple[str, ...]


class KeyDescription(NamedTuple):
    """One key of a section. `default`: None where it is required. `is_live`: a reload takes it over."""

    key: str
    kind: str
    default: str | None
    text: str
    is_live: bool


class SectionDescription(NamedTuple):
    """A section, under each path at which it may stand."""

    name: str
    paths: tuple[str, ...]
    rows: tuple[KeyDescription, ...]


def list_sections() -> list[SectionDescription]:
    """All sections, the top first, each once."""
    schema = described_schema()
    sections = {"Settings": schema, **schema["$defs"]}
    paths: dict[str, list[KeyPath]] = {}
    todo: list[tuple[str, KeyPath]] = [("Settings", ())]
    while todo:
        name, path = todo.pop(0)
        if path in paths.setdefault(name, []):
            continue
        paths[name].append(path)
        for key, field in sections[name].get("properties", {}).items():
            todo += [(inner, (*path, key, *steps)) for inner, steps in _sections_of(field)]
    return [
        SectionDescription(name, tuple(map(".".join, found)), _describe_keys(sections[name], found[0]))
        for name, found in paths.items()
    ]


def _sections_of(field: Mapping[str, Any], steps: KeyPath = ()) -> Iterator[tuple[str, KeyPath]]:
    """Names of the sections that a key leads to, and what is in between: NAME for each in a mapping, [] in a list."""
    if "$ref" in field:
        yield field["$ref"].rpartition("/")[2], steps
    for each in (*field.get("allOf", ()), *field.get("anyOf", ())):
        yield from _sections_of(each, steps)
    if isinstance(field.get("additionalProperties"), dict):
        yield from _sections_of(field["additionalProperties"], (*steps, "NAME"))
    if isinstance(field.get("items"), dict):
        yield from _sections_of(field["items"], (*steps, "[]"))


def _describe_keys(section: Mapping[str, Any], path: KeyPath) -> tuple[KeyDescription, ...]:
    required = section.get("required", ())
    place = tuple("0" if part == "[]" else part for part in path)
    return tuple(
        KeyDescription(
            key,
            _type_text(field, _unit_of(place, key)),
            None if key in required else _default_text(field.get("default")),
            field.get("description", ""),
            is_live((*place, key)),
        )
        for key, field in section.get("properties", {}).items()
    )


def _unit_of(place: KeyPath, key: str) -> str:
    field = field_in(type_at(place), key)
    return marks_of(field).unit if field is not None else ""


def _type_text(field: Mapping[str, Any], unit: str = "") -> str:
    if "enum" in field:
        return ", ".join(str(each) for each in field["enum"])
    if "const" in field:
        return str(field["const"])
    if "$ref" in field or "allOf" in field:
        return "section"
    if "anyOf" in field:
        return " or ".join(
            dict.fromkeys(_type_text(each, unit) for each in field["anyOf"] if each.get("type") != "null")
        )
    kind = field.get("type")
    if kind == "array":
        return f"list of {_type_text(field['items'])}" if isinstance(field.get("items"), dict) else "list"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"by name: {_type_text(inner)}" if isinstance(inner, dict) else "mapping"
    bounds = [words.format(f"{field[key]:,}") for key, words in _BOUND_TEXTS if key in field]
    name = _TYPE_NAMES.get(str(kind), "text")
    return ", ".join([f"{name} ({unit})" if unit and name == "number" else name, *bounds])


def _default_text(value: Any) -> str:
    if value in (None, "", [], {}) or isinstance(value, dict):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def make_page() -> str:
    """The page, in Markdown."""
    return PAGE_HEAD + "\n".join(_section_text(place) for place in list_sections())


def _section_text(place: SectionDescription) -> str:
    path = place.paths[0]
    heading = f"## `{path}`" if path else "## The top"
    also = ", ".join(code_cell(each) for each in place.paths[1:])
    rows = [
        (
            code_cell(row.key),
            escape_cell(row.kind),
            "required" if row.default is None else code_cell(row.default),
            "yes" if row.is_live else "",
            escape_cell(row.text),
        )
        for row in place.rows
    ]
    lead = f"The same under {also}.\n\n" if also else ""
    return f"{heading}\n\n{lead}{markdown_table(('Key', 'Value', 'Default', 'Reload', 'Meaning'), rows)}"
