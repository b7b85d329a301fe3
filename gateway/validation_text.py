# What pydantic finds, in words for whoever wrote the value. Knows neither its place nor whether it is a secret.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# By the first word of a finding's type; the second says how the value differs.
_NEEDED: Final = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "text", "list": "a list",
    "tuple": "a list", "dict": "an object", "model": "an object",
}  # fmt: skip
_WRONG_KINDS: Final = ("type", "parsing", "from_float", "attributes_type")


def describe_finding(finding: Mapping[str, Any]) -> str:
    """What is wrong, for example "a whole number is needed here"; the value isn't repeated.

    Args:
        finding: one of `ValidationError.errors()`.
    """
    kind, _, how = finding["type"].partition("_")
    if kind == "missing":
        return "is required"
    if how in _WRONG_KINDS and kind in _NEEDED:
        return f"{_NEEDED[kind]} is needed here"
    return str(finding["msg"]).removeprefix("Value error, ").removeprefix("Input ")
