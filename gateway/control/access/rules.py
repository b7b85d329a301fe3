# Which request needs which role: one table, of paths as the API's routes have them. A request without a row needs an
# admin, so a path that somebody forgot is closed; a test compares the table with the routes. docs/rest.md has the table
# for readers, made by `by_need`. Knows no caller.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gateway.access_tokens.roles import Role

LOGIN_PATH: Final = "/login"
METRICS_PATH: Final = "/metrics"
READS: Final = ("GET", "HEAD")


class Rule(NamedTuple):
    """
    Attributes:
        path: {name} stands for one part of a path, {name:path} for any rest.
        role: the least that it needs; NONE: everybody, and nobody is asked for credentials.
        identified: it names people, their addresses, or owners of groups: without credentials in the configuration
            only this machine may ask, with them nobody who has not proven who it is.
        lasting: the least role without an end (`until`) and beyond a preview; None: there is no such difference.
        page: people look at it in a browser: who has to log in is sent there.
    """

    method: str
    path: str
    role: Role
    identified: bool = False
    lasting: Role | None = None
    page: bool = False


def _reads(role: Role, *paths: str, identified: bool = False) -> Iterator[Rule]:
    return (Rule("GET", path, role, identified) for path in paths)


def _thresholds(*paths: str) -> Iterator[Rule]:
    for path in paths:
        yield Rule("GET", path, Role.VIEWER)
        yield Rule("PUT", path, Role.OPERATOR, lasting=Role.ADMIN)
        yield Rule("DELETE", path, Role.ADMIN)


def _group(method: str, path: str) -> Rule:
    """All that the proposal (PIP-82) has of resource groups needs administrators, reading included."""
    return Rule(method, path, Role.ADMIN, identified=True)


_PAGES: Final = (
    *("/topics", "/topic", "/total", "/clients", "/client", "/quotas", "/quota", "/groups", "/group", "/storage"),
    *("/connections", "/decisions", "/explain", "/history"),
)
_GROUPS: Final = ("/admin/v2/resourcegroup", "/admin/v2/resourcegroups")
_PLACES: Final = ("/admin/v2/tenants/{tenant}", "/admin/v2/namespaces/{tenant}/{namespace}")


def _pages() -> Iterator[Rule]:
    """Of the console (gateway/control/admin/console/). What a page shows and changes is asked of the API once more."""
    yield Rule("GET", "/", Role.VIEWER, page=True)
    for page in ("", "/", *_PAGES):
        yield Rule("GET", f"/console{page}", Role.VIEWER, page=True)
    for page in ("/topic", "/total", "/quota"):
        yield Rule("POST", f"/console{page}", Role.OPERATOR, page=True)
    yield Rule("POST", "/console/group", Role.ADMIN, page=True)
    yield Rule("GET", "/console/static/{file:path}", Role.NONE, page=True)
    yield Rule("GET", LOGIN_PATH, Role.NONE, page=True)
    yield Rule("POST", LOGIN_PATH, Role.NONE, page=True)
    yield Rule("POST", "/logout", Role.VIEWER, page=True)


TABLE: Final[tuple[Rule, ...]] = (
    *_reads(Role.NONE, "/healthz", "/readyz", METRICS_PATH),
    *_reads(
        Role.VIEWER,
        *("/v1/status", "/v1/peers", "/v1/clients", "/v1/topics", "/v1/top", "/v1/explain", "/v1/storage"),
        *("/v1/traffic", "/v1/decisions"),
        "/openapi.json",
        *("/v1/thresholds", "/v1/client-quotas", "/v1/client-quotas/effective", "/v1/policies"),
    ),
    *_reads(Role.VIEWER, "/v1/connections", "/v1/policies/history", "/v1/resource-groups", identified=True),
    *_thresholds(
        *("/v1/thresholds/total", "/v1/thresholds/total/{broker}"),
        *("/v1/thresholds/total-out", "/v1/thresholds/total-out/{broker}"),
        "/v1/thresholds/topics/{topic}",
    ),
    Rule("POST", "/v1/client-quotas:alter", Role.OPERATOR, lasting=Role.ADMIN),
    Rule("POST", "/v1/policies:apply", Role.OPERATOR, lasting=Role.ADMIN),
    Rule("PUT", "/v1/storage/override", Role.OPERATOR, lasting=Role.ADMIN),
    Rule("DELETE", "/v1/storage/override", Role.OPERATOR),
    *(
        _group(method, path)
        for groups in _GROUPS
        for method, path in (
            *(("GET", groups), ("GET", f"{groups}/")),
            *((method, f"{groups}/{{resourcegroup}}") for method in ("GET", "PUT", "DELETE")),
        )
    ),
    *(
        _group(method, path)
        for place in _PLACES
        for method, path in (
            *((method, f"{place}/resourcegroup") for method in ("GET", "DELETE")),
            *((method, f"{place}/resourcegroup/{{resourcegroup}}") for method in ("PUT", "POST")),
        )
    ),
    *_pages(),
    Rule("POST", "/v1/reload", Role.OPERATOR),
    Rule("POST", "/v1/session", Role.NONE),
    Rule("GET", "/v1/session", Role.VIEWER),
    Rule("DELETE", "/v1/session", Role.VIEWER),
)
OTHERS: Final = Rule("", "", Role.ADMIN, identified=True)  # what has no row


class Rules:
    """The table, ready to be asked."""

    def __init__(self, table: Iterable[Rule] = TABLE, metrics: Role = Role.NONE) -> None:
        """`metrics`: the least role for METRICS_PATH."""
        self._exact: dict[tuple[str, str], Rule] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Rule]] = []
        for rule in table:
            if rule.path == METRICS_PATH:
                rule = rule._replace(role=metrics)
            if "{" in rule.path:
                self._patterns.append((rule.method, _pattern(rule.path), rule))
            else:
                self._exact[rule.method, rule.path] = rule

    def of(self, method: str, path: str) -> Rule:
        """`path`: decoded, as in an ASGI scope."""
        method = "GET" if method == "HEAD" else method
        found = self._exact.get((method, path))
        if found is not None:
            return found
        fitting = (rule for known, pattern, rule in self._patterns if known == method and pattern.fullmatch(path))
        return next(fitting, OTHERS)


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[a-z_]+(?::path)?\})", path)
    return re.compile("".join(_part(part) for part in parts), re.DOTALL)


def _part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    return ".*" if part.endswith(":path}") else "[^/]+"


def by_need(table: Iterable[Rule] = TABLE) -> dict[str, list[str]]:
    """The table for docs/rest.md, without pages: for each need, in the order of the roles, the requests in Markdown,
    paths of the same methods together.
    """
    rows: dict[tuple[Role, str], dict[str, list[str]]] = {}
    for rule in sorted((rule for rule in table if not rule.page), key=lambda rule: (rule.role, rule.identified)):
        methods = rows.setdefault((rule.role, _needed(rule)), {}).setdefault(rule.path, [])
        methods.append(rule.method)
    return {needed: _by_methods(paths) for (_, needed), paths in rows.items()}


def _by_methods(paths: Mapping[str, list[str]]) -> list[str]:
    found: dict[str, list[str]] = {}
    for path, methods in paths.items():
        found.setdefault(", ".join(f"`{method}`" for method in methods), []).append(f"`{path}`")
    return [f"{methods} {', '.join(same)}" for methods, same in found.items()]


def _needed(rule: Rule) -> str:
    text = rule.role.text
    if rule.identified:
        text += ", identified"
    return f"{text} with `until` or as a preview, else {rule.lasting.text}" if rule.lasting else text
