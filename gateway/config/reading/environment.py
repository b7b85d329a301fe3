# The configuration's keys as variables of the environment, which stand before those of the file:
# PRODUCE_GATEWAY_ADMIN__PORT is admin.port. "__" stands between a section and its key, "_" for any of "_", "." and "-",
# and upper case for lower: a variable's name has nothing else. A name of the operator's own, as of a topic, is taken as
# it is written. The value is YAML, as it would be in the file; text is taken as it is, and a list of texts may be
# written with commas.
#
# NAME_FILE: the value is in that file, as container platforms give secrets.
#
# Kubernetes gives each pod variables that tell of services (enableServiceLinks), and those of a service with the name
# of ours begin as ours do. They are no mistake of anybody's.

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_args, get_origin

from gateway import yaml_text
from gateway.config.reading.keys import is_section, is_text, type_in, unwrap_type
from gateway.config.sections.clients import CLIENT_PROPERTIES, KNOWN_PROPERTIES, Client
from gateway.config.settings import Settings
from gateway.name_hints import name_hint

VARIABLE_PREFIX: Final = "PRODUCE_GATEWAY_"
_SECTION_SEPARATOR: Final = "__"
_FILE_SUFFIX: Final = "_FILE"
# Of commands and of the demo: no keys of the configuration.
OTHER_VARIABLES: Final = frozenset({"PRODUCE_GATEWAY_TOKEN_FILE", "PRODUCE_GATEWAY_CACHE", "PRODUCE_GATEWAY_MAVEN"})
# With the value: PORT alone is a URL, and what is a number there is the operator's, with one "_" for two.
_SERVICE_VARIABLE: Final = re.compile(
    r"(?:_?[A-Z0-9]+_)*"
    r"(?:(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?)=.*|PORT=[a-z]+://.*)"
)

KeyPath = tuple[str, ...]


class EnvironmentValue(NamedTuple):
    """A variable that gives the key at `key_path` a value."""

    key_path: KeyPath
    variable: str
    value: Any


class EnvironmentFault(NamedTuple):
    variable: str
    text: str


def read_variables(environ: Mapping[str, str]) -> tuple[list[EnvironmentValue], list[EnvironmentFault]]:
    """Those that are ours, whole sections before what is in them; and what is wrong with some."""
    given, faults = [], []
    for variable in sorted(environ):
        rest = variable.removeprefix(VARIABLE_PREFIX)
        if (
            rest == variable
            or variable in OTHER_VARIABLES
            or (_SECTION_SEPARATOR not in rest and _SERVICE_VARIABLE.fullmatch(f"{rest}={environ[variable]}"))
        ):
            continue
        try:
            given.append(_parse_variable(variable, rest.split(_SECTION_SEPARATOR), environ[variable]))
        except ValueError as error:
            faults.append(EnvironmentFault(variable, str(error)))
    first: dict[KeyPath, str] = {}
    for each in given:
        if (other := first.setdefault(each.key_path, each.variable)) != each.variable:
            faults.append(EnvironmentFault(each.variable, f"{'.'.join(each.key_path)}: is given by {other} as well"))
    given.sort(key=lambda each: len(each.key_path))
    return given, faults


def overlay_values(data: Mapping[Any, Any], given: list[EnvironmentValue]) -> dict[Any, Any]:
    """The file's data with these. What is no section in the file stays as it is, to be refused."""
    laid = dict(data)
    for place, _, value in given:
        node = laid
        for part in place[:-1]:
            key = _key_in(node, part)
            inner = node.get(key)
            if inner is not None and not isinstance(inner, dict):
                break
            node[key] = node = dict(inner or {})
        else:
            node[_key_in(node, place[-1])] = value
    return laid


def _key_in(section: Mapping[Any, Any], name: str) -> Any:
    """The section's own key, which YAML may have made a number (a broker's id)."""
    return name if name in section else next((key for key in section if str(key) == name), name)


def _parse_variable(variable: str, segments: list[str], text: str) -> EnvironmentValue:
    """
    Raises:
        ValueError: there is no such key, or its value is no YAML.
    """
    kind: Any = Settings
    place: list[str] = []
    is_file = False
    for depth, segment in enumerate(segments):
        found = _find_key(kind, segment)
        if found is None and depth == len(segments) - 1 and segment.upper().endswith(_FILE_SUFFIX):
            found = _find_key(kind, segment[: -len(_FILE_SUFFIX)])
            found, is_file = (found, True) if found and is_text(found[1]) else (None, False)
        found = found or _find_property(kind, segment)
        if found is None:
            raise ValueError(_unknown_key_text(kind, place, segment))
        key, kind = found
        place.append(key)
    if is_file:
        return EnvironmentValue(tuple(place), variable, {"file": text})
    return EnvironmentValue(tuple(place), variable, _parse_value(kind, text, variable))


def _find_key(kind: Any, segment: str) -> tuple[str, Any] | None:
    """The key that is meant, with the type of its value."""
    kind = unwrap_type(kind)
    if get_origin(kind) is dict:
        return (segment, get_args(kind)[-1]) if segment else None
    if not is_section(kind):
        return None
    wanted = _normalize_key(segment)
    for name, field in kind.model_fields.items():
        key = field.alias or name
        if _normalize_key(key) == wanted and key != "properties":
            return key, type_in(kind, key)
    known = KNOWN_PROPERTIES if issubclass(kind, Client) else ()
    return next(((key, str) for key in known if _normalize_key(key) == wanted), None)


def _find_property(kind: Any, segment: str) -> tuple[str, Any] | None:
    """One of librdkafka's that is not in our list."""
    kind, key = unwrap_type(kind), _normalize_key(segment).replace("_", ".")
    return (key, str) if is_section(kind) and issubclass(kind, Client) and key.startswith(CLIENT_PROPERTIES) else None


def _normalize_key(key: str) -> str:
    return re.sub(r"[.-]", "_", key).lower()


def _unknown_key_text(kind: Any, place: list[str], segment: str) -> str:
    kind = unwrap_type(kind)
    if not is_section(kind):
        return f"{'.'.join(place)} has no keys, so there is none named {segment.lower()}"
    keys = sorted(field.alias or name for name, field in kind.model_fields.items())
    path = ".".join([*place, segment.lower()])
    return f"{path}: unknown key; {name_hint(segment.lower(), keys)}"


def _parse_value(kind: Any, text: str, variable: str) -> Any:
    if is_text(kind):
        return text
    kind = unwrap_type(kind)
    if not text.strip():  # as of ${NAME:-}; the file's whole section would be gone
        raise ValueError("is empty: unset it, or write null for the default in place of what the file has")
    if get_origin(kind) is tuple and is_text(get_args(kind)[0]) and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return yaml_text.load_yaml(text, variable)
    except yaml_text.YamlError as error:
        raise ValueError(str(error).removeprefix(variable).lstrip(":0123456789 ")) from error
