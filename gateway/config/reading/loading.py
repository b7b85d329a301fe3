# From the file to one frozen and validated value, or to lines that say what is wrong, where, and what would be right.
# Knows no section by name, but the one key that must be there.
#
# One fault hides others: a section with a misspelt key isn't looked at as a whole. So what was refused is taken out,
# and the rest is looked at again, until it can be used; what only follows from the part that was taken out isn't said.
# The rest is also what `check` goes on with.

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from gateway import yaml_text
from gateway.config.reading import environment
from gateway.config.reading.keys import keys_at
from gateway.config.reading.secret_files import SecretFiles
from gateway.config.sections.fields import FieldFaults
from gateway.config.settings import Settings
from gateway.name_hints import find_nearest_name, name_hint
from gateway.validation_text import describe_finding

_MAX_ROUNDS: Final = 20  # each takes out at least one key; with 10,000 client quotas each takes a second
_PLACEHOLDER_SERVER: Final = "localhost:9092"  # in place of servers that can't be used
# Keys whose values are never repeated: an error is read by others, in a CI's log or the journal.
_SECRET_KEY: Final = re.compile(r"passw|secret|token|credential|jaas|oauthbearer|\.pem\b|\boptions\b", re.IGNORECASE)

KeyPath = tuple[Any, ...]


class ConfigFinding(NamedTuple):
    """One fault, made for a human. `line`: in the file, from 1; None: of no line. `variable`: of the environment, where
    it is at fault.
    """

    line: int | None
    text: str
    variable: str = ""

    @property
    def sort_key(self) -> tuple[int, str, str]:
        return self.line or 0, self.variable, self.text


class _SettingFault(NamedTuple):
    """`key_path`: in the data. `is_certain`: a key or its value is wrong, not what a section says as a whole."""

    key_path: KeyPath
    text: str
    is_certain: bool


class ConfigError(Exception):
    """The configuration can't be used.

    Attributes:
        findings: what is wrong.
        lines: the same as text, each with its place.
        usable_settings: the configuration without what is wrong with it; None: there is none.
        sources: where its keys are; None: nowhere.
        secret_files: those of its secrets.
    """

    def __init__(
        self,
        source: str,
        findings: Sequence[ConfigFinding],
        rest: Settings | None = None,
        missing: Sequence[str] = (),
        *,
        sources: ConfigSources | None = None,
        files: tuple[Path, ...] = (),
    ) -> None:
        self.sources = sources
        self.secret_files = files
        self.findings = tuple(findings)
        self.lines = [_finding_text(source, finding) for finding in findings]
        self.usable_settings = rest
        self._missing_names = tuple(missing)
        super().__init__("\n".join(self.lines))

    def explains_fault(self, text: str) -> bool:
        """Whether a fault of `rest` is only that what is wrong isn't in it."""
        return _mentions_name(text, self._missing_names)


class ConfigSources:
    """Where a configuration comes from: the places of its keys in the file's text, and in the environment."""

    def __init__(self, text: str, given: Sequence[environment.EnvironmentValue] = ()) -> None:
        self._lines = yaml_text.YamlLines(text)
        self._variables = {each.key_path: each.variable for each in given}

    def given_keys(self, place: KeyPath) -> list[str]:
        """Those that are given there."""
        size = len(place)
        inner = [each[size] for each in self._variables if len(each) > size and each[:size] == place]
        return [*self._lines.find_keys(place), *inner]

    def make_finding(self, place: KeyPath, text: str) -> ConfigFinding:
        """With the place of that key, or of what it is in."""
        for depth in range(len(place), 0, -1):
            if variable := self._variables.get(tuple(map(str, place[:depth]))):
                return ConfigFinding(None, text, variable)
        return ConfigFinding(self._lines.find_line(place), text)

    def locate_finding(self, text: str) -> ConfigFinding:
        """With the place of the key that it begins with ("upstream.sasl.password: …"); none where there is none."""
        place = _key_path_in(self, (), text)
        return self.make_finding(place, text) if place else ConfigFinding(None, text)


class ParsedConfig(NamedTuple):
    """A configuration that can be used. `secret_files`: those of its secrets."""

    settings: Settings
    sources: ConfigSources
    secret_files: tuple[Path, ...]


def load_settings(path: Path) -> Settings:
    """Read and validate a configuration file, with the environment's variables before it.

    Raises:
        ConfigError: everything that is wrong with it, with file, line and path of each.
    """
    return parse_all(read_config_file(path), str(path), os.environ).settings


def read_config_file(path: Path) -> str:
    """The file's text; "-": that of standard input.

    Raises:
        ConfigError: it can't be read.
    """
    try:
        return yaml_text.read_input(str(path))
    except yaml_text.YamlError as error:
        raise ConfigError("", [ConfigFinding(None, str(error))]) from error


def parse_settings(text: str, source: str = "configuration") -> Settings:
    """Validate YAML text; `source` stands before each finding.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    return parse_all(text, source).settings


def parse_all(text: str, source: str, environ: Mapping[str, str] = MappingProxyType({})) -> ParsedConfig:
    """The same, with variables of the environment before the text.

    Raises:
        ConfigError: everything that is wrong with both.
    """
    try:
        data = yaml_text.load_yaml(text, source)
    except yaml_text.YamlError as error:
        raise ConfigError("", [ConfigFinding(None, str(error))]) from error
    given, faults = environment.read_variables(environ)
    if data is None and given:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(
            source, [ConfigFinding(None, "keys such as upstream: and listener: are needed at the top level")]
        )
    sources = ConfigSources(text, given)
    secrets = SecretFiles()
    try:
        data = secrets.resolve_secrets(environment.overlay_values(data, given))
    except RecursionError as error:
        raise ConfigError(source, [ConfigFinding(None, "sections are nested too deeply in each other")]) from error
    findings = [ConfigFinding(None, fault.text, fault.variable) for fault in faults]
    findings += [sources.make_finding(fault.key_path, fault.text) for fault in secrets.faults]
    rest, missing = None, ["".join(fault.key_path[-1:]) for fault in secrets.faults]
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        found, rest, more = _collect_faults(data, error, sources, missing)
        findings += [sources.make_finding(fault.key_path, fault.text) for fault in found]
        missing += more
    else:
        if not findings:
            return ParsedConfig(settings, sources, secrets.files)
        rest = settings
    findings = sorted(dict.fromkeys(findings), key=lambda finding: finding.sort_key)
    raise ConfigError(source, findings, rest, missing, sources=sources, files=secrets.files)


def explain_validation(error: ValidationError) -> list[str]:
    """What is wrong, of no place."""
    return [fault.text for fault in _explain_errors(error, ConfigSources(""))]


def _finding_text(source: str, finding: ConfigFinding) -> str:
    if finding.variable:
        return f"{finding.variable}: {finding.text}"
    where = source if finding.line is None else f"{source}:{finding.line}"
    return f"{where}: {finding.text}" if source else finding.text


def _collect_faults(
    data: Any, error: ValidationError, lines: ConfigSources, without: Sequence[str]
) -> tuple[list[_SettingFault], Settings | None, list[str]]:
    """All findings with their places, what can be used of the data, and the names that are missing in that. `without`:
    those that are missing already.
    """
    faults: list[_SettingFault] = []
    missing: list[str] = list(without)
    for _ in range(_MAX_ROUNDS):
        found = list(_explain_errors(error, lines))
        # Of the later ones those that are about what is there: "no limit is given" may come of what is missing.
        faults += [
            each for each in found if not missing or (each.is_certain and not _mentions_name(each.text, missing))
        ]
        missing += [name for each in found for name in _fault_names(each)]
        fewer = _remove_values(data, {each.key_path for each in found})
        if fewer == data:
            return faults, None, missing
        data = fewer
        try:
            return faults, Settings.model_validate(data), missing
        except ValidationError as next_error:
            error = next_error
    return faults, None, missing


def _fault_names(fault: _SettingFault) -> Iterator[str]:
    """By which others would speak of what is wrong: its last key, and the one that was meant."""
    keys = [part for part in fault.key_path if isinstance(part, str)]
    yield from keys[-1:]
    yield from re.findall(r"did you mean (\S+)\?", fault.text)


def _mentions_name(text: str, names: Sequence[str]) -> bool:
    return any(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def _remove_values(data: Any, places: set[KeyPath]) -> Any:
    """The data without these, a list as a whole; and with servers, since nothing can be without."""
    fewer = dict(data)
    for place in places:
        node = fewer
        for depth, part in enumerate(place):
            inner = node.get(part)
            if depth == len(place) - 1 or not isinstance(inner, dict):
                node.pop(part, None)
                break
            node[part] = node = dict(inner)
    upstream = fewer.get("upstream")
    return {
        **fewer,
        "upstream": {"bootstrap_servers": _PLACEHOLDER_SERVER, **(upstream if isinstance(upstream, dict) else {})},
    }


def _explain_errors(error: ValidationError, lines: ConfigSources) -> Iterator[_SettingFault]:
    found: list[Any] = error.errors(include_url=False)
    meant = {
        (*loc[:-1], _nearest_key(loc)) for loc in (each["loc"] for each in found if each["type"] == "extra_forbidden")
    }
    for finding in found:
        if finding["type"] == "missing" and finding["loc"] in meant:
            continue  # it is there, but misspelt
        loc = tuple(part for part in finding["loc"] if part not in ("[key]", "int", "literal['auto']"))
        if loc[1:2] == ("properties",) and "properties" not in lines.given_keys(loc[:1]):
            loc = (loc[0], *loc[2:])  # written beside the others
        loc = _as_written(loc, lines)
        path = ".".join(str(part) for part in loc)
        if finding["type"] != "value_error":
            yield _SettingFault(loc, _fault_text(finding, loc, path), True)
            continue
        several = finding["ctx"]["error"]
        for text in several.texts if isinstance(several, FieldFaults) else [str(several)]:
            place = _key_path_in(lines, loc, text)
            yield _SettingFault(place, f"{path}: {text}" if path else text, place != loc)


def _as_written(loc: KeyPath, lines: ConfigSources) -> KeyPath:
    """Without the number of an only element that is written without its list."""
    found: KeyPath = ()
    for part in loc:
        keys = lines.given_keys(found) if part == 0 else []
        if not keys or "0" in keys:
            found = (*found, part)
    return found


def _fault_text(finding: Any, loc: KeyPath, path: str) -> str:
    match finding["type"]:
        case "extra_forbidden":
            return f"{path}: unknown key{_key_hint(loc)}"
        case "string_type" if finding["loc"][-1:] == ("[key]",):
            return f"{path}: YAML takes this key for no text but {type(loc[-1]).__name__}: put it in quotes"
        case "model_type" | "dict_type":
            return f"{path}: keys with values are needed here, not {_kind_text(finding['input'])}{_known_keys(loc)}"
        case "tuple_type" | "list_type":
            given, known = _kind_text(finding["input"]), _known_keys(loc)
            if known and not isinstance(finding["input"], dict):
                return f"{path}: keys with values, or a list of such, are needed here, not {given}{known}"
            return f"{path}: a list is needed here, not {given}: write it in brackets"
        case kind:
            value = "" if kind == "missing" else f", not {_value_text(finding['input'], path)}"
            hint = ": put it in quotes" if kind == "string_type" and type(finding["input"]) in (int, float) else ""
            return f"{path}: {describe_finding(finding)}{value}{hint}"


def _value_text(value: Any, path: str) -> str:
    """The value, unless that may be a secret."""
    if isinstance(value, dict | list):
        return _kind_text(value)
    if isinstance(value, bool):
        return f"{value}, as which YAML reads {'yes, on and true' if value else 'no, off and false'} without quotes"
    if value is None:
        return "an empty value"
    return "what is there" if _SECRET_KEY.search(path) else repr(value)


def _kind_text(value: Any) -> str:
    """For where keys or a list belong: whatever stands there instead may be what should have been a secret's value."""
    if isinstance(value, dict | list):
        return "keys with values" if isinstance(value, dict) else "a list"
    return "text" if isinstance(value, str) else "a number" if type(value) in (int, float) else repr(value)


def _known_keys(loc: KeyPath) -> str:
    known = keys_at(loc)
    return f"; known here: {', '.join(sorted(known))}" if known else ""


def _nearest_key(loc: KeyPath) -> str | None:
    return find_nearest_name(str(loc[-1]), keys_at(loc[:-1]))


def _key_hint(loc: tuple[Any, ...]) -> str:
    known, name = keys_at(loc[:-1]), str(loc[-1])
    if len(loc) == 1 and find_nearest_name(name, known) is None:
        sections = [section for section in known if name in keys_at((section,))]
        if sections:
            return f"; it is a key of {' and of '.join(sections)}: indent it there"
    return f"; {name_hint(name, sorted(known))}" if known else ""


def _key_path_in(lines: ConfigSources, loc: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """The path with the keys that the text begins with ("storage.soft: …"), as far as they are in the file."""
    rest = text.partition(": ")[0]
    while rest:
        begins = (key for key in lines.given_keys(loc) if rest == key or rest.startswith((key + ".", key + " ")))
        key = max(begins, key=len, default="")
        if not key:
            break
        loc, rest = (*loc, key), rest[len(key) + 1 :]
    return loc
