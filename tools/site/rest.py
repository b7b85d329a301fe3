# The reference of the REST API: its OpenAPI document as tables. docs/rest.md says what the paths are for.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import httpx
import trio

from gateway.control.admin.rest.api import make_api
from gateway.control.admin.rest.context import GatewayContext
from tools.site.tables import code_cell, escape_cell, markdown_table

PAGE_HEAD: Final = """\
# Every path of the REST API

Made of the program: its OpenAPI document, which a running gateway has at `/openapi.json`. [REST API](../rest.md) says
what the paths are for, who may use them and what errors look like.

"""


class _StubGateway:
    """In place of a gateway's parts: paths are only described here, never asked."""

    def __getattr__(self, name: str) -> _StubGateway:
        return self

    def __call__(self, *_: object, **__: object) -> _StubGateway:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def load_openapi() -> dict[str, Any]:
    """The OpenAPI document."""
    api = make_api(cast("GatewayContext", _StubGateway()))

    async def ask() -> dict[str, Any]:
        transport = httpx.ASGITransport(app=cast("Any", api))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return cast("dict[str, Any]", (await client.get("/openapi.json")).raise_for_status().json())

    return trio.run(ask)


def make_page() -> str:
    """The page, in Markdown."""
    said = load_openapi()
    shapes = said["components"]["schemas"]
    paths = "\n".join(
        _operation_section(method.upper(), path, operation)
        for path, operations in said["paths"].items()
        for method, operation in operations.items()
    )
    models = "\n".join(_model_section(name, shapes[name]) for name in sorted(shapes))
    return f"{PAGE_HEAD}## Paths\n\n{paths}\n## Bodies\n\n{models}"


def _operation_section(method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"### {method} {path}\n"]
    if text := operation.get("description"):
        lines.append(escape_cell(text) + "\n")
    parameters = [
        (code_cell(each["name"]), each["in"], _type_text(each.get("schema", {})), escape_cell(_parameter_meaning(each)))
        for each in operation.get("parameters", ())
    ]
    if parameters:
        lines.append(markdown_table(("Parameter", "In", "Value", "Meaning"), parameters))
    if body := operation.get("requestBody"):
        lines.append(f"Takes {_body_types(body)}.\n")
    good: Mapping[str, Any] = next(
        (each for number, each in operation["responses"].items() if number.startswith("2")), {}
    )
    lines.append(f"Answers {_body_types(good)}.\n")
    return "\n".join(lines)


def _parameter_meaning(parameter: Mapping[str, Any]) -> str:
    text = parameter.get("description") or parameter.get("schema", {}).get("description", "")
    return f"Required. {text}".strip() if parameter.get("required") else str(text)


def _body_types(body: Mapping[str, Any]) -> str:
    schemas = [each.get("schema", {}) for each in body.get("content", {}).values()]
    return " or ".join(_type_text(schema) for schema in schemas) or "nothing"


def _model_section(name: str, shape: Mapping[str, Any]) -> str:
    lines = [f"### {name}\n"]
    if text := shape.get("description"):
        lines.append(escape_cell(text) + "\n")
    rows = [
        (code_cell(key), _type_text(field), escape_cell(field.get("description", "")))
        for key, field in _model_fields(shape)
    ]
    if rows:
        lines.append(markdown_table(("Field", "Value", "Meaning"), rows))
    return "\n".join(lines)


def _model_fields(shape: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(shape.get("properties", {}).items())


def _type_text(schema: Mapping[str, Any]) -> str:
    """A type in words, those of this document as links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type_text(each) for each in schema[key]))
    if "enum" in schema:
        return ", ".join(code_cell(str(each)) for each in schema["enum"])
    if "const" in schema:
        return code_cell(str(schema["const"]))
    if schema.get("type") == "array":
        return f"list of {_type_text(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"by name: {_type_text(schema['additionalProperties'])}"
    return str(schema.get("type", "anything"))
