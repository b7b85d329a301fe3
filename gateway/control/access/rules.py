# Which request needs which role: one table, of paths as the API's routes have them. A request without a row needs an
# admin, so a forgotten path is closed; a test compares the table with the routes. docs/rest.md has the table
# for readers, made by `requests_by_role`. Knows no caller.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gateway.access_tokens.roles import AccessRole

LOGIN_PATH: Final = "/login"
METRICS_PATH: Final = "/metrics"
READ_METHODS: Final = ("GET", "HEAD")


class AccessRule(NamedTuple):
    """
    Attributes:
        path: {name} stands for one part of a path, {name:path} for any rest.
        role: the least that it needs; NONE: every caller, without credentials.
        identified: it names people, their addresses, or owners of groups: without credentials in the configuration
            only this machine may ask, with them only identified callers.
        lasting: the least role without an end (`until`) and beyond a preview; None: there is no such difference.
        page: people look at it in a browser: who has to log in is sent there.
    """

    method: str
    path: str
    role: AccessRole
    identified: bool = False
    lasting: AccessRole | None = None
    page: bool = False


def _read_rules(role: AccessRole, *paths: str, identified: bool = False) -> Iterator[AccessRule]:
    return (AccessRule("GET", path, role, identified) for path in paths)


def _threshold_rules(*paths: str) -> Iterator[AccessRule]:
    for path in paths:
        yield AccessRule("GET", path, AccessRole.VIEWER)
        yield AccessRule("PUT", path, AccessRole.OPERATOR, lasting=AccessRole.ADMIN)
        yield AccessRule("DELETE", path, AccessRole.ADMIN)


def _group_rule(method: str, path: str) -> AccessRule:
    """All that the proposal (PIP-82) has of resource groups needs administrators, reading included."""
    return AccessRule(method, path, AccessRole.ADMIN, identified=True)


_CONSOLE_PAGES: Final = (
    *("/topics", "/topic", "/total", "/clients", "/client", "/quotas", "/quota", "/groups", "/group", "/storage"),
    *("/connections", "/decisions", "/explain", "/history"),
)
_GROUP_PATHS: Final = ("/admin/v2/resourcegroup", "/admin/v2/resourcegroups")
_ATTACHMENT_PATHS: Final = ("/admin/v2/tenants/{tenant}", "/admin/v2/namespaces/{tenant}/{namespace}")


def _page_rules() -> Iterator[AccessRule]:
    """Of the console (gateway/control/admin/console/). What a page shows and changes is asked of the API once more."""
    yield AccessRule("GET", "/", AccessRole.VIEWER, page=True)
    for page in ("", "/", *_CONSOLE_PAGES):
        yield AccessRule("GET", f"/console{page}", AccessRole.VIEWER, page=True)
    for page in ("/topic", "/total", "/quota"):
        yield AccessRule("POST", f"/console{page}", AccessRole.OPERATOR, page=True)
    yield AccessRule("POST", "/console/group", AccessRole.ADMIN, page=True)
    yield AccessRule("GET", "/console/static/{file:path}", AccessRole.NONE, page=True)
    yield AccessRule("GET", LOGIN_PATH, AccessRole.NONE, page=True)
    yield AccessRule("POST", LOGIN_PATH, AccessRole.NONE, page=True)
    yield AccessRule("POST", "/logout", AccessRole.VIEWER, page=True)


ACCESS_TABLE: Final[tuple[AccessRule, ...]] = (
    *_read_rules(AccessRole.NONE, "/healthz", "/readyz", METRICS_PATH),
    *_read_rules(
        AccessRole.VIEWER,
        *("/v1/status", "/v1/peers", "/v1/clients", "/v1/topics", "/v1/top", "/v1/explain", "/v1/storage"),
        *("/v1/traffic", "/v1/decisions"),
        "/openapi.json",
        *("/v1/thresholds", "/v1/client-quotas", "/v1/client-quotas/effective", "/v1/policies"),
    ),
    *_read_rules(AccessRole.VIEWER, "/v1/connections", "/v1/policies/history", "/v1/resource-groups", identified=True),
    *_threshold_rules(
        *("/v1/thresholds/total", "/v1/thresholds/total/{broker}"),
        *("/v1/thresholds/total-out", "/v1/thresholds/total-out/{broker}"),
        "/v1/thresholds/topics/{topic}",
    ),
    AccessRule("POST", "/v1/client-quotas:alter", AccessRole.OPERATOR, lasting=AccessRole.ADMIN),
    AccessRule("POST", "/v1/policies:apply", AccessRole.OPERATOR, lasting=AccessRole.ADMIN),
    AccessRule("PUT", "/v1/storage/override", AccessRole.OPERATOR, lasting=AccessRole.ADMIN),
    AccessRule("DELETE", "/v1/storage/override", AccessRole.OPERATOR),
    *(
        _group_rule(method, path)
        for groups in _GROUP_PATHS
        for method, path in (
            *(("GET", groups), ("GET", f"{groups}/")),
            *((method, f"{groups}/{{resourcegroup}}") for method in ("GET", "PUT", "DELETE")),
        )
    ),
    *(
        _group_rule(method, path)
        for place in _ATTACHMENT_PATHS
        for method, path in (
            *((method, f"{place}/resourcegroup") for method in ("GET", "DELETE")),
            *((method, f"{place}/resourcegroup/{{resourcegroup}}") for method in ("PUT", "POST")),
        )
    ),
    *_page_rules(),
    AccessRule("POST", "/v1/reload", AccessRole.OPERATOR),
    AccessRule("POST", "/v1/session", AccessRole.NONE),
    AccessRule("GET", "/v1/session", AccessRole.VIEWER),
    AccessRule("DELETE", "/v1/session", AccessRole.VIEWER),
)
DEFAULT_RULE: Final = AccessRule("", "", AccessRole.ADMIN, identified=True)  # what has no row


class AccessRules:
    """The table, ready to be asked."""

    def __init__(self, table: Iterable[AccessRule] = ACCESS_TABLE, metrics: AccessRole = AccessRole.NONE) -> None:
        """`metrics`: the least role for METRICS_PATH."""
        self._exact: dict[tuple[str, str], AccessRule] = {}
        self._patterns: list[tuple[str, re.Pattern[str], AccessRule]] = []
        for rule in table:
            if rule.path == METRICS_PATH:
                rule = rule._replace(role=metrics)
            if "{" in rule.path:
                self._patterns.append((rule.method, _path_pattern(rule.path), rule))
            else:
                self._exact[rule.method, rule.path] = rule

    def rule_for(self, method: str, path: str) -> AccessRule:
        """`path`: decoded, as in an ASGI scope."""
        method = "GET" if method == "HEAD" else method
        found = self._exact.get((method, path))
        if found is not None:
            return found
        fitting = (rule for known, pattern, rule in self._patterns if known == method and pattern.fullmatch(path))
        return next(fitting, DEFAULT_RULE)


def _path_pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[a-z_]+(?::path)?\})", path)
    return re.compile("".join(_part_pattern(part) for part in parts), re.DOTALL)


def _part_pattern(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    return ".*" if part.endswith(":path}") else "[^/]+"


def requests_by_role(table: Iterable[AccessRule] = ACCESS_TABLE) -> dict[str, list[str]]:
    """The table for docs/rest.md, without pages: for each need, in the order of the roles, the requests in Markdown,
    paths of the same methods together.
    """
    rows: dict[tuple[AccessRole, str], dict[str, list[str]]] = {}
    for rule in sorted((rule for rule in table if not rule.page), key=lambda rule: (rule.role, rule.identified)):
        methods = rows.setdefault((rule.role, _role_text(rule)), {}).setdefault(rule.path, [])
        methods.append(rule.method)
    return {needed: _by_methods(paths) for (_, needed), paths in rows.items()}


def _by_methods(paths: Mapping[str, list[str]]) -> list[str]:
    found: dict[str, list[str]] = {}
    for path, methods in paths.items():
        found.setdefault(", ".join(f"`{method}`" for method in methods), []).append(f"`{path}`")
    return [f"{methods} {', '.join(same)}" for methods, same in found.items()]


def _role_text(rule: AccessRule) -> str:
    text = rule.role.label
    if rule.identified:
        text += ", identified"
    return f"{text} with `until` or as a preview, else {rule.lasting.label}" if rule.lasting else text
