# From the file to one frozen and validated value, or to lines that say what is wrong, where, and what would be right.
# Knows no section by name.

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from gateway import yaml_text
from gateway.config.clients import USUAL_PROPERTIES, Client
from gateway.config.sections import Settings
from gateway.suggest import hint


class ConfigError(Exception):
    """The configuration can't be used. `lines`: one finding each, made for a human."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def load(path: Path) -> Settings:
    """Read and validate a configuration file.

    Raises:
        ConfigError: everything that is wrong with it, with file, line and path of each.
    """
    try:
        text = yaml_text.read(path)
    except yaml_text.YamlError as error:
        raise ConfigError([str(error)]) from error
    return parse(text, str(path))


def parse(text: str, source: str = "configuration") -> Settings:
    """Validate YAML text; `source` stands before each finding.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    try:
        data = yaml_text.load(text, source)
    except yaml_text.YamlError as error:
        raise ConfigError([str(error)]) from error
    if not isinstance(data, dict):
        raise ConfigError([f"{source}: keys such as upstream: and listener: are needed at the top level"])
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        lines = yaml_text.Lines(text)
        findings = [_explain(finding, lines, source) for finding in error.errors(include_url=False)]
        raise ConfigError(list(dict.fromkeys(findings))) from error


def _explain(finding: Any, lines: yaml_text.Lines, source: str) -> str:
    loc = tuple(part for part in finding["loc"] if part not in ("[key]", "int", "literal['auto']"))
    path = ".".join(str(part) for part in loc)
    text = finding["msg"].removeprefix("Value error, ")
    place = _named_in(lines, loc, text) if finding["type"] == "value_error" else loc
    where = f"{source}:{lines.line(place)}: "
    match finding["type"]:
        case "extra_forbidden":
            return f"{where}{path}: unknown key{_suggest(loc)}"
        case "missing":
            return f"{where}{path}: is required"
        case "value_error":
            return f"{where}{path}: {text}" if path else f"{where}{text}"
        case "string_type" if finding["loc"][-1:] == ("[key]",):
            return f"{where}{path}: YAML takes this key for no text but {type(loc[-1]).__name__}: put it in quotes"
        case "model_type" | "dict_type":
            return f"{where}{path}: keys with values are needed here, not {finding['input']!r}"
        case _:
            value = "what is there" if "password" in path or "secret" in path else repr(finding["input"])
            return f"{where}{path}: {text.removeprefix('Input ')}, not {value}"


def _suggest(loc: tuple[Any, ...]) -> str:
    known = _keys_at(loc[:-1])
    return f"; {hint(str(loc[-1]), sorted(known))}" if known else ""


def _keys_at(loc: tuple[Any, ...]) -> list[str]:
    model: Any = Settings
    for part in loc:
        if _is_section(model):
            fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
            model = fields.get(str(part))
        else:
            model = (get_args(model) or (None,))[-1]  # dict[str, TopicThreshold]
        if isinstance(model, UnionType):  # Storage | None
            model = get_args(model)[0]
    if not _is_section(model):
        return []
    keys = [field.alias or name for name, field in model.model_fields.items()]
    return [*(key for key in keys if key != "properties"), *USUAL_PROPERTIES] if issubclass(model, Client) else keys


def _is_section(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)


def _named_in(lines: yaml_text.Lines, loc: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """The path with the keys that the text begins with ("storage.soft: …"), as far as they are in the file."""
    rest = text.partition(": ")[0]
    while rest:
        begins = (key for key in lines.keys(loc) if rest == key or rest.startswith((key + ".", key + " ")))
        key = max(begins, key=len, default="")
        if not key:
            break
        loc, rest = (*loc, key), rest[len(key) + 1 :]
    return loc
