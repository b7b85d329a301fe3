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
from gateway.cli_support.suggest import hint, nearest
from gateway.config import environment
from gateway.config.fields import Findings
from gateway.config.keys import keys_at
from gateway.config.secret_files import SecretFiles
from gateway.config.sections import Settings

_ROUNDS: Final = 20  # each takes out at least one key; with 10,000 client quotas each takes a second
_ANYWHERE: Final = "localhost:9092"  # in place of servers that can't be used
# Keys whose values are never repeated: an error is read by others, in a CI's log or the journal.
_SECRET: Final = re.compile(r"passw|secret|token|credential|jaas|oauthbearer|\.pem\b|\boptions\b", re.IGNORECASE)

Place = tuple[Any, ...]


class Finding(NamedTuple):
    """One fault, made for a human. `line`: in the file, from 1; None: of no line. `variable`: of the environment, where
    it is at fault.
    """

    line: int | None
    text: str
    variable: str = ""

    @property
    def order(self) -> tuple[int, str, str]:
        return self.line or 0, self.variable, self.text


class _Fault(NamedTuple):
    """`place`: in the data. `is_certain`: a key or its value is wrong, not what a section says as a whole."""

    place: Place
    text: str
    is_certain: bool


class ConfigError(Exception):
    """The configuration can't be used.

    Attributes:
        findings: what is wrong.
        lines: the same as text, each with its place.
        rest: the configuration without what is wrong with it; None: there is none.
        sources: where its keys are; None: nowhere.
        files: those of its secrets.
    """

    def __init__(
        self,
        source: str,
        findings: Sequence[Finding],
        rest: Settings | None = None,
        missing: Sequence[str] = (),
        *,
        sources: Sources | None = None,
        files: tuple[Path, ...] = (),
    ) -> None:
        self.sources = sources
        self.files = files
        self.findings = tuple(findings)
        self.lines = [_placed(source, finding) for finding in findings]
        self.rest = rest
        self._missing = tuple(missing)
        super().__init__("\n".join(self.lines))

    def explains(self, text: str) -> bool:
        """Whether a fault of `rest` is only that what is wrong isn't in it."""
        return _mentions(text, self._missing)


class Sources:
    """Where a configuration comes from: the places of its keys in the file's text, and in the environment."""

    def __init__(self, text: str, given: Sequence[environment.Given] = ()) -> None:
        self._lines = yaml_text.Lines(text)
        self._variables = {each.place: each.variable for each in given}

    def keys(self, place: Place) -> list[str]:
        """Those that are given there."""
        size = len(place)
        inner = [each[size] for each in self._variables if len(each) > size and each[:size] == place]
        return [*self._lines.keys(place), *inner]

    def finding(self, place: Place, text: str) -> Finding:
        """With the place of that key, or of what it is in."""
        for depth in range(len(place), 0, -1):
            if variable := self._variables.get(tuple(map(str, place[:depth]))):
                return Finding(None, text, variable)
        return Finding(self._lines.line(place), text)

    def locate(self, text: str) -> Finding:
        """With the place of the key that it begins with ("upstream.sasl.password: …"); none where there is none."""
        place = _named_in(self, (), text)
        return self.finding(place, text) if place else Finding(None, text)


class Parsed(NamedTuple):
    """A configuration that can be used. `files`: those of its secrets."""

    settings: Settings
    sources: Sources
    files: tuple[Path, ...]


def load(path: Path) -> Settings:
    """Read and validate a configuration file, with the environment's variables before it.

    Raises:
        ConfigError: everything that is wrong with it, with file, line and path of each.
    """
    return parse_all(read(path), str(path), os.environ).settings


def read(path: Path) -> str:
    """The file's text.

    Raises:
        ConfigError: it can't be read.
    """
    try:
        return yaml_text.read(path)
    except yaml_text.YamlError as error:
        raise ConfigError("", [Finding(None, str(error))]) from error


def parse(text: str, source: str = "configuration") -> Settings:
    """Validate YAML text; `source` stands before each finding.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    return parse_all(text, source).settings


def parse_all(text: str, source: str, environ: Mapping[str, str] = MappingProxyType({})) -> Parsed:
    """The same, with variables of the environment before the text.

    Raises:
        ConfigError: everything that is wrong with both.
    """
    try:
        data = yaml_text.load(text, source)
    except yaml_text.YamlError as error:
        raise ConfigError("", [Finding(None, str(error))]) from error
    given, faults = environment.read(environ)
    if data is None and given:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(source, [Finding(None, "keys such as upstream: and listener: are needed at the top level")])
    sources = Sources(text, given)
    secrets = SecretFiles()
    data = secrets.resolve(environment.lay_over(data, given))
    findings = [Finding(None, fault.text, fault.variable) for fault in faults]
    findings += [sources.finding(fault.place, fault.text) for fault in secrets.faults]
    rest, missing = None, ["".join(fault.place[-1:]) for fault in secrets.faults]
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        found, rest, more = _look_further(data, error, sources, missing)
        findings += [sources.finding(fault.place, fault.text) for fault in found]
        missing += more
    else:
        if not findings:
            return Parsed(settings, sources, secrets.files)
        rest = settings
    findings = sorted(dict.fromkeys(findings), key=lambda finding: finding.order)
    raise ConfigError(source, findings, rest, missing, sources=sources, files=secrets.files)


def explained(error: ValidationError) -> list[str]:
    """What is wrong, of no place."""
    return [fault.text for fault in _explain(error, Sources(""))]


def _placed(source: str, finding: Finding) -> str:
    if finding.variable:
        return f"{finding.variable}: {finding.text}"
    where = source if finding.line is None else f"{source}:{finding.line}"
    return f"{where}: {finding.text}" if source else finding.text


def _look_further(
    data: Any, error: ValidationError, lines: Sources, without: Sequence[str]
) -> tuple[list[_Fault], Settings | None, list[str]]:
    """All findings with their places, what can be used of the data, and the names that are missing in that. `without`:
    those that are missing already.
    """
    told: list[_Fault] = []
    missing: list[str] = list(without)
    for _ in range(_ROUNDS):
        found = list(_explain(error, lines))
        # Of the later ones those that are about what is there: "no limit is given" may come of what is missing.
        told += [each for each in found if not missing or (each.is_certain and not _mentions(each.text, missing))]
        missing += [name for each in found for name in _names(each)]
        fewer = _without(data, {each.place for each in found})
        if fewer == data:
            return told, None, missing
        data = fewer
        try:
            return told, Settings.model_validate(data), missing
        except ValidationError as next_error:
            error = next_error
    return told, None, missing


def _names(fault: _Fault) -> Iterator[str]:
    """By which others would speak of what is wrong: its last key, and the one that was meant."""
    keys = [part for part in fault.place if isinstance(part, str)]
    yield from keys[-1:]
    yield from re.findall(r"did you mean (\S+)\?", fault.text)


def _mentions(text: str, names: Sequence[str]) -> bool:
    return any(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def _without(data: Any, places: set[Place]) -> Any:
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
    return {**fewer, "upstream": {"bootstrap_servers": _ANYWHERE, **(upstream if isinstance(upstream, dict) else {})}}


def _explain(error: ValidationError, lines: Sources) -> Iterator[_Fault]:
    found: list[Any] = error.errors(include_url=False)
    meant = {(*loc[:-1], _meant(loc)) for loc in (each["loc"] for each in found if each["type"] == "extra_forbidden")}
    for finding in found:
        if finding["type"] == "missing" and finding["loc"] in meant:
            continue  # it is there, but misspelt
        loc = tuple(part for part in finding["loc"] if part not in ("[key]", "int", "literal['auto']"))
        if loc[1:2] == ("properties",) and "properties" not in lines.keys(loc[:1]):
            loc = (loc[0], *loc[2:])  # written beside the others
        loc = _as_written(loc, lines)
        path = ".".join(str(part) for part in loc)
        if finding["type"] != "value_error":
            yield _Fault(loc, _text(finding, loc, path), True)
            continue
        several = finding["ctx"]["error"]
        for text in several.texts if isinstance(several, Findings) else [str(several)]:
            place = _named_in(lines, loc, text)
            yield _Fault(place, f"{path}: {text}" if path else text, place != loc)


def _as_written(loc: Place, lines: Sources) -> Place:
    """Without the number of an only element that is written without its list."""
    found: Place = ()
    for part in loc:
        keys = lines.keys(found) if part == 0 else []
        if not keys or "0" in keys:
            found = (*found, part)
    return found


def _text(finding: Any, loc: Place, path: str) -> str:
    text = finding["msg"].removeprefix("Input ")
    match finding["type"]:
        case "extra_forbidden":
            return f"{path}: unknown key{_suggest(loc)}"
        case "missing":
            return f"{path}: is required"
        case "string_type" if finding["loc"][-1:] == ("[key]",):
            return f"{path}: YAML takes this key for no text but {type(loc[-1]).__name__}: put it in quotes"
        case "model_type" | "dict_type":
            return f"{path}: keys with values are needed here, not {_kind(finding['input'])}"
        case "tuple_type" | "list_type":
            return f"{path}: a list is needed here, not {_kind(finding['input'])}: write it in brackets"
        case _:
            return f"{path}: {text}, not {_shown(finding['input'], path)}"


def _shown(value: Any, path: str) -> str:
    """The value, unless that may be a secret."""
    if isinstance(value, dict | list):
        return _kind(value)
    if isinstance(value, bool):
        return f"{value}, as which YAML reads {'yes, on and true' if value else 'no, off and false'} without quotes"
    return "what is there" if _SECRET.search(path) else repr(value)


def _kind(value: Any) -> str:
    """For where keys or a list belong: whatever stands there instead may be what should have been a secret's value."""
    if isinstance(value, dict | list):
        return "keys with values" if isinstance(value, dict) else "a list"
    return "text" if isinstance(value, str) else "a number" if type(value) in (int, float) else repr(value)


def _meant(loc: Place) -> str | None:
    return nearest(str(loc[-1]), keys_at(loc[:-1]))


def _suggest(loc: tuple[Any, ...]) -> str:
    known, name = keys_at(loc[:-1]), str(loc[-1])
    if len(loc) == 1 and nearest(name, known) is None:
        sections = [section for section in known if name in keys_at((section,))]
        if sections:
            return f"; it is a key of {' and of '.join(sections)}: indent it there"
    return f"; {hint(name, sorted(known))}" if known else ""


def _named_in(lines: Sources, loc: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """The path with the keys that the text begins with ("storage.soft: …"), as far as they are in the file."""
    rest = text.partition(": ")[0]
    while rest:
        begins = (key for key in lines.keys(loc) if rest == key or rest.startswith((key + ".", key + " ")))
        key = max(begins, key=len, default="")
        if not key:
            break
        loc, rest = (*loc, key), rest[len(key) + 1 :]
    return loc
