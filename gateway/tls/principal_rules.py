# The principal that a client's certificate makes: Kafka's `ssl.principal.mapping.rules` (KIP-371), with its syntax and
# its results (SslPrincipalMapper), in linear time for each search in a name.
#
# A name that Kafka might map to another principal than this module does gets none: ACLs at the brokers and limits here
# must be about the same client.

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from gateway.tls.java_patterns import LINE_TERMINATORS, JavaPatternError, compile_java
from protocol.authentication.distinguished_name import UnreadableName, subject_of
from protocol.rewriting.identity import JAVA_TRIMMED, UnusableName, principal_name

ANONYMOUS: Final = "User:ANONYMOUS"  # as Kafka calls a client that has not authenticated
DEFAULT_RULE: Final = "DEFAULT"
MAX_RULES_CHARS: Final = 20_000  # characters
_EXAMPLE: Final = r"for example RULE:^CN=([^,]+),.*$/$1/L, DEFAULT"
# SslPrincipalMapper's own, with Java's `.` and `$`.
_ANY: Final = r"[^\n\r\u0085\u2028\u2029]"
_END: Final = r"(?=(?:\r\n|[\n\r\u0085\u2028\u2029])?\Z)"
_RULE: Final = rf"(DEFAULT)|RULE:((\\{_ANY}|[^\\/])*)/((\\{_ANY}|[^\\/])*)/([LU]?){_ANY}*?|({_ANY}*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|{_END})", re.ASCII)
_PARSER: Final = re.compile(_RULE, re.ASCII)
_REFERENCE: Final = re.compile(r"\$([0-9]+)")
_NAMED: Final = re.compile(r"\$\{([A-Za-z][A-Za-z0-9]*)\}")
_OUTSIDE_BMP: Final = 0xF0  # the least first byte in UTF-8


class RuleError(ValueError):
    """These rules can't be used; the text is one line and says what would be right."""


class NoPrincipal(Exception):
    """The certificate makes no principal; the text says why."""


class _MappingRule(NamedTuple):
    pattern: Any  # RE2's; None: DEFAULT
    replacement: tuple[str | int, ...] = ()  # text, and numbers of groups
    case: str = ""  # L, U or ""


class PrincipalRules:
    """The rules in their order: the first that matches says the principal."""

    def __init__(self, text: str = DEFAULT_RULE) -> None:
        """
        Raises:
            RuleError: they can't be used.
        """
        if len(text) > MAX_RULES_CHARS:
            raise RuleError(f"{len(text)} characters, {MAX_RULES_CHARS} are the most")
        rules = map(_parse_rule, (match[1] for match in _SPLITTER.finditer(text.strip(JAVA_TRIMMED))))
        self._rules = [rule for rule in rules if rule is not None]
        if not self._rules:
            raise RuleError(
                f"no rule is there, so no certificate would make a principal: write {DEFAULT_RULE}, or {_EXAMPLE}"
            )

    def principal_of(self, certificate: bytes | None) -> str:
        """`User:…` for a client with that certificate (X.509 in DER); ANONYMOUS for one without.

        Raises:
            NoPrincipal: it makes none.
        """
        if certificate is None:
            return ANONYMOUS
        try:
            name = self.apply_rules(subject_of(certificate))
            return "User:" + (principal_name(name) if name else "")  # without a subject it is `User:`, as at a broker
        except UnreadableName as error:
            raise NoPrincipal(f"the name in the client's certificate can't be read: {error}") from error
        except UnusableName as error:
            raise NoPrincipal(f"the name that the client's certificate makes {error}") from error

    def apply_rules(self, name: str) -> str:
        """The principal's name for a certificate with this distinguished name.

        Raises:
            NoPrincipal: no rule applies.
        """
        encoded = name.encode()
        for rule in self._rules:
            if rule.pattern is None:
                return name
            if not LINE_TERMINATORS.isdisjoint(name):
                raise NoPrincipal(f"the name in the client's certificate has several lines: {name!r:.200}")
            if rule.pattern.fullmatch(encoded):
                return _change_case(_replace_matches(rule, encoded), rule.case)
        raise NoPrincipal(f"no rule of ssl.principal.mapping.rules applies to {name!r:.200}")


def _parse_rule(text: str) -> _MappingRule | None:
    """None: an empty one, which Kafka leaves out."""
    match = _PARSER.match(text)
    if match is None or match.end() < len(text):
        raise RuleError(
            f"{text[:200]!r} is not a valid rule: write {DEFAULT_RULE}, or RULE:pattern/replacement/"
            f" with L or U, {_EXAMPLE}"
        )
    if match[1]:
        return _MappingRule(None)
    if match[2] is None:
        return None
    try:
        pattern = compile_java(match[2])
        return _MappingRule(pattern, _read_replacement(match[4], pattern), match[6])
    except JavaPatternError as error:
        raise RuleError(f"{text[:200]!r}: {error}") from error


# --- replacements, as Matcher.appendReplacement reads them ------------------------------------------------------------


def _read_replacement(text: str, pattern: Any) -> tuple[str | int, ...]:
    if pattern.groups:
        text = _escape_missing_groups(text, pattern.groups)
    found: list[str | int] = []
    at = 0
    while at < len(text):
        if text[at] == "\\":
            if at + 1 == len(text):
                raise JavaPatternError("a replacement that ends with \\: write \\\\ for the character itself")
            found.append(text[at + 1])
            at += 2
        elif text[at] == "$":
            group, at = _read_reference(text, at, pattern)
            found.append(group)
        else:
            found.append(text[at])
            at += 1
    return tuple(found)


def _escape_missing_groups(text: str, groups: int) -> str:
    """References to groups that aren't there made text, as Kafka does it: places are of the text as it was, so with a
    second one it may meet another character.
    """
    value = text
    for match in _REFERENCE.finditer(text):
        if match[1].startswith("0"):
            continue
        if len(match[1]) > 9:
            raise JavaPatternError(f"${match[1][:12]}: no group has that number")
        number = int(match[1])
        while number > groups and number >= 10:
            number //= 10
        if number > groups:
            at = match.start(1) - 1
            value = value[:at] + "\\" + value[at:]
    return value


def _read_reference(text: str, at: int, pattern: Any) -> tuple[int, int]:
    """The group that the $ at this place means, and the place behind it."""
    named = _NAMED.match(text, at)
    if named is not None:
        if named[1] not in pattern.groupindex:
            raise JavaPatternError(f"${{{named[1]}}}: the pattern has no (?<{named[1]}>…)")
        return pattern.groupindex[named[1]], named.end()
    digits = _REFERENCE.match(text, at)
    if digits is None:
        raise JavaPatternError("$ without a number or {name}: write \\$ for the character itself")
    number, end = int(digits[1][0]), at + 2
    for digit in digits[1][1:]:
        if number * 10 + int(digit) > pattern.groups:
            break
        number, end = number * 10 + int(digit), end + 1
    if number > pattern.groups:
        raise JavaPatternError(f"${number}: the pattern has {pattern.groups} groups")
    return number, end


def _replace_matches(rule: _MappingRule, text: bytes) -> str:
    """As String.replaceAll: every match, not the whole, though the whole matches as well."""
    made: list[bytes] = []
    at = done = 0
    while at <= len(text):
        match = rule.pattern.search(text, at)
        if match is None:
            break
        start, end = match.span()
        made.append(text[done:start])
        made.extend(part.encode() if isinstance(part, str) else match[part] or b"" for part in rule.replacement)
        done = at = end
        if start == end:
            if text[end : end + 1] >= bytes((_OUTSIDE_BMP,)):  # Java goes on in the middle of that character
                raise NoPrincipal("a rule matches nothing before a character outside of the basic plane")
            at = _next_character_at(text, end)
    made.append(text[done:])
    return b"".join(made).decode()


def _next_character_at(text: bytes, at: int) -> int:
    """The place behind the character there."""
    at += 1
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at


def _change_case(text: str, case: str) -> str:
    # Whether a Σ ends a word, and so becomes ς, Java judges by halves of such characters.
    if case == "L" and "Σ" in text and max(text) > "\uffff":
        raise NoPrincipal("a rule lowers a Σ in a name with a character outside of the basic plane")
    return text.lower() if case == "L" else text.upper() if case == "U" else text
