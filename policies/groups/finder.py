# The resource group that a topic and principal belong to (PIP-82). A group is attached to tenants and to namespaces;
# Kafka has neither, so a pattern reads them out of the topic's name or, where that says nothing, out of the principal.
# A namespace's group replaces its tenant's: there is no hierarchy.
#
# Patterns are the operator's, names are any client's. So a regular expression is RE2's, which takes time in proportion
# to the name whatever the pattern. A template becomes one of Python's, since it needs a look-ahead, which RE2 lacks;
# there only the end of the topic is ever tried twice. Knows no limit and no traffic, and keeps no answer.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import re2

from policies.text import ERROR_CHARS, one_line

TENANT: Final = "tenant"
NAMESPACE: Final = "namespace"
TOPIC: Final = "topic"
DEFAULT_PATTERN: Final = "{tenant}.{namespace}.{topic}"
MAX_PATTERN_CHARS: Final = 1000  # characters
MAX_NAME_CHARS: Final = 255  # of what is matched: a topic has at most 249; a longer principal has no place

# RE2's messages for syntax that Python has and RE2 lacks, and what to write instead.
_RE2_HINTS: Final = (
    (r"invalid escape sequence: \\\d|.*\(\?P$", "it has no back-references: say what a part may hold, as [^.]+"),
    (
        r"invalid perl operator",
        "it has no look-around, atomic groups or conditions: say what a part may hold, as [^.]+",
    ),
    (r"bad repetition operator", "it needs no possessive repetition: write [^.]+ for [^.]++"),
)
_FIELD: Final = re.compile(r"\{(\w*)\}")


class GroupPatternError(ValueError):
    """An invalid pattern: the text names the fault and a valid form."""


class TenantNamespace(NamedTuple):
    """`namespace` "": only the tenant is known."""

    tenant: str
    namespace: str


_Matcher = Callable[[str], Any]  # to a match of the whole name, or None


class GroupResolver:
    """Resolves the group that is attached to a tenant or namespace. Immutable; caches nothing.

    Attributes:
        by_principal: whether the answer may depend on the principal.
    """

    __slots__ = ("_by_namespace", "_by_tenant", "_find_principal", "_find_topic", "by_principal")

    def __init__(
        self,
        topic_pattern: str,
        principal_pattern: str,
        tenants: Mapping[str, str],
        namespaces: Mapping[str, str],
    ) -> None:
        """Patterns: a template such as {tenant}.{namespace}.{topic}, or a regular expression with groups of these
        names; "" finds nothing.

        Args:
            tenants: group by tenant.
            namespaces: group by "tenant/namespace".

        Raises:
            GroupPatternError: a pattern that can't be.
        """
        self._find_topic = _compile_pattern(topic_pattern)
        self._find_principal = _compile_pattern(principal_pattern)
        self._by_tenant = dict(tenants)
        self._by_namespace: dict[TenantNamespace, str] = {}
        for name, group in namespaces.items():
            tenant, _, namespace = name.partition("/")
            self._by_namespace[TenantNamespace(tenant, namespace)] = group
        self.by_principal = self._find_principal is not None and bool(tenants or namespaces)

    def find_namespace(self, topic: str, principal: str) -> TenantNamespace | None:
        """By the topic's name, or if that has no tenant by the principal, written as in Kafka (User:alice)."""
        return _match_namespace(self._find_topic, topic) or _match_namespace(self._find_principal, principal)

    def find_group(self, topic: str, principal: str) -> str | None:
        """The namespace's group, else its tenant's."""
        if not (self._by_tenant or self._by_namespace):
            return None
        place = self.find_namespace(topic, principal)
        if place is None:
            return None
        return self._by_namespace.get(place) or self._by_tenant.get(place.tenant)


def _match_namespace(find: _Matcher | None, name: str) -> TenantNamespace | None:
    if find is None or len(name) > MAX_NAME_CHARS:
        return None
    try:
        match = find(name)
    except UnicodeEncodeError:  # half a character, which RE2 can't look at
        return None
    if match is None:
        return None
    found = match.groupdict("")
    tenant = found[TENANT]
    return TenantNamespace(tenant, found.get(NAMESPACE, "")) if tenant else None


# --- patterns ---------------------------------------------------------------------------------------------------------


def check_pattern(pattern: str) -> None:
    """
    Raises:
        GroupPatternError: the pattern is not valid.
    """
    _compile_pattern(pattern)


def _compile_pattern(pattern: str) -> _Matcher | None:
    if not pattern:
        return None
    if len(pattern) > MAX_PATTERN_CHARS:
        raise GroupPatternError(f"{len(pattern)} characters: {MAX_PATTERN_CHARS} are the most")
    is_template = any(match[1] in (TENANT, NAMESPACE, TOPIC) for match in _FIELD.finditer(pattern))
    return (_compile_template if is_template else _compile_expression)(pattern)


def _compile_template(pattern: str) -> _Matcher:
    """Tenant and namespace end at the literal text that follows them; the topic takes the rest."""
    parts = _FIELD.split(pattern)  # text, field, text, field, …, text
    texts, fields = parts[::2], parts[1::2]
    for field in fields:
        if field not in (TENANT, NAMESPACE, TOPIC):
            raise GroupPatternError(
                f"{{{field}}} is not part of a template: {{tenant}}, {{namespace}} and {{topic}} are"
            )
        if fields.count(field) > 1:
            raise GroupPatternError(f"{{{field}}} is there twice: write it once")
    if TENANT not in fields:
        raise GroupPatternError(f"{{tenant}} is missing: for example {DEFAULT_PATTERN}")
    if "" in texts[1:-1]:
        raise GroupPatternError(f"two parts without anything between them: write for example {DEFAULT_PATTERN}")
    ends = "|".join(re.escape(text) for text in texts[1:-1])
    some = f"(?:(?!{ends})[^/])+" if ends else "[^/]+"
    made = [re.escape(texts[0])]
    for field, text in zip(fields, texts[1:], strict=True):
        made.append(f"(?P<{field}>{'.+' if field == TOPIC else some})" + re.escape(text))
    return re.compile("".join(made), re.DOTALL).fullmatch


def _compile_expression(pattern: str) -> _Matcher:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = one_line(error.args[0] if isinstance(error, re2.error) else str(error), ERROR_CHARS)
        hint = next((f"; {hint}" for fault, hint in _RE2_HINTS if re.match(fault, reason)), "")
        raise GroupPatternError(f"not a valid regular expression (RE2's): {reason}{hint}") from error
    if TENANT not in compiled.groupindex:
        raise GroupPatternError(
            f"says nothing of a tenant: write a template such as {DEFAULT_PATTERN}, or a regular expression"
            " with (?P<tenant>…) and, where there are any, (?P<namespace>…)"
        )
    unknown = sorted(compiled.groupindex.keys() - {TENANT, NAMESPACE, TOPIC})
    if unknown:
        raise GroupPatternError(f"(?P<{unknown[0]}>…) means nothing: tenant, namespace and topic do")
    for name in compiled.groupindex:
        if len(re.findall(rf"\(\?P?<{name}>", pattern)) > 1:  # RE2 would take the first one
            raise GroupPatternError(f"(?P<{name}>…) is there twice: write it once, with | inside of it")
    find: _Matcher = compiled.fullmatch
    return find
