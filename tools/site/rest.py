# The reference of the REST API: its OpenAPI document as tables. docs/rest.md says what the paths are for.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import httpx
import trio

from gateway.control.admin.rest.api import make_api
from gateway.control.admin.rest.context import Gateway
from tools.site.tables import cell, code, table

HEAD: Final = """\
# Every path of the REST API

Made of the program: its OpenAPI document, which a running gateway has at `/openapi.json`. [REST API](../rest.md) says
what the paths are for, who may use them and what errors look like.

"""


class _Anything:
    """In place of a gateway's parts: paths are only described here, never asked."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __call__(self, *_: object, **__: object) -> _Anything:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    api = make_api(cast("Gateway", _Anything()))

    async def ask() -> dict[str, Any]:
        transport = httpx.ASGITransport(app=cast("Any", api))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return cast("dict[str, Any]", (await client.get("/openapi.json")).raise_for_status().json())

    return trio.run(ask)


def page() -> str:
    """The page, in Markdown."""
    said = document()
    shapes = said["components"]["schemas"]
    paths = "\n".join(
        _operation(method.upper(), path, operation)
        for path, operations in said["paths"].items()
        for method, operation in operations.items()
    )
    models = "\n".join(_model(name, shapes[name]) for name in sorted(shapes))
    return f"{HEAD}## Paths\n\n{paths}\n## Bodies\n\n{models}"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"### {method} {path}\n"]
    if text := operation.get("description"):
        lines.append(cell(text) + "\n")
    parameters = [
        (code(each["name"]), each["in"], _kind(each.get("schema", {})), cell(_said(each)))
        for each in operation.get("parameters", ())
    ]
    if parameters:
        lines.append(table(("Parameter", "In", "Value", "Meaning"), parameters))
    if body := operation.get("requestBody"):
        lines.append(f"Takes {_content(body)}.\n")
    good: Mapping[str, Any] = next(
        (each for number, each in operation["responses"].items() if number.startswith("2")), {}
    )
    lines.append(f"Answers {_content(good)}.\n")
    return "\n".join(lines)


def _said(parameter: Mapping[str, Any]) -> str:
    text = parameter.get("description") or parameter.get("schema", {}).get("description", "")
    return f"Required. {text}".strip() if parameter.get("required") else str(text)


def _content(body: Mapping[str, Any]) -> str:
    schemas = [each.get("schema", {}) for each in body.get("content", {}).values()]
    return " or ".join(_kind(schema) for schema in schemas) or "nothing"


def _model(name: str, shape: Mapping[str, Any]) -> str:
    lines = [f"### {name}\n"]
    if text := shape.get("description"):
        lines.append(cell(text) + "\n")
    rows = [(code(key), _kind(field), cell(field.get("description", ""))) for key, field in _fields(shape)]
    if rows:
        lines.append(table(("Field", "Value", "Meaning"), rows))
    return "\n".join(lines)


def _fields(shape: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(shape.get("properties", {}).items())


def _kind(schema: Mapping[str, Any]) -> str:
    """A type in words, those of this document as links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_kind(each) for each in schema[key]))
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    if "const" in schema:
        return code(str(schema["const"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"by name: {_kind(schema['additionalProperties'])}"
    return str(schema.get("type", "anything"))
