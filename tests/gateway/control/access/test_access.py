# Who may do what on the admin port: over HTTP, with tokens, sessions and without any credentials.

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
import trio
from pytest_trio import trio_fixture

from gateway.access_tokens.roles import AccessRole
from gateway.access_tokens.tokens import format_token_line
from gateway.config import Admin
from gateway.control.access.failures import MAX_BURST, FailedAttempts
from gateway.control.access.gate import AccessGate, gate_of
from gateway.control.access.holders import CredentialHolders
from gateway.control.access.making import make_gate
from gateway.control.access.rules import ACCESS_TABLE, DEFAULT_RULE, AccessRule, AccessRules
from gateway.control.access.sessions import BrowserSessions
from gateway.control.admin.rest.api import describe_api
from gateway.control.admin.rest.dependencies import TEMPORARY_S
from gateway.control.http_server import serve_http
from gateway.policy_document import read_document
from gateway.supervisor import open_listener
from policies.units import format_time
from tests.gateway.control.admin.rest_server import JSON, NOW_MS, Server

OLD = "old-0123456789abcdef"  # a token itself, as in earlier releases
TOKENS = {name: f"{name}-0123456789abcdef" for name in ("vera", "otto", "anna")}
ROLES = {"vera": AccessRole.VIEWER, "otto": AccessRole.OPERATOR, "anna": AccessRole.ADMIN}
LINES = [OLD, *(format_token_line(name, ROLES[name], token) for name, token in TOKENS.items())]
SOON = format_time(round(NOW_MS + TEMPORARY_S * 1000))
LATER = format_time(round(NOW_MS + TEMPORARY_S * 1000 + 1000))
SITE = {"Origin": "http://127.0.0.1", "Host": "127.0.0.1"}
GOLD = {"groups": {"gold": {"publishRateInMsgs": 1}}, "tenants": {"acme": "gold"}}


def by(name: str, **more: str) -> dict[str, str]:
    return {**JSON, "Authorization": f"Bearer {TOKENS.get(name, name)}", **more}


class Port(Server):
    """With a gate of its own, that counts what it refuses, and that sees every request come from `peer`."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.peer = "127.0.0.1"
        self.limits = FailedAttempts(burst=1000)
        self.configure(LINES)

    def configure(self, *holders: Any, **more: Any) -> None:
        self.gate = AccessGate(CredentialHolders(*holders), failures=self.limits, count=self.refused.append, **more)

    def application(self) -> Any:
        app = super().application()

        async def from_peer(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "client": (self.peer, 1)} if scope["type"] == "http" else scope, receive, send)

        return from_peer


@trio_fixture
async def port(nursery: trio.Nursery) -> AsyncIterator[Any]:
    """Serves what it is when a test calls `up`."""
    port = Port()
    port.up = lambda: nursery.start_soon(  # type: ignore[attr-defined]
        serve_http, open_listener("127.0.0.1", port.port), port.application()
    )
    yield port


async def status(port: Port, method: str, path: str, headers: dict[str, str], body: Any = None) -> int:
    return int((await port.raw(method, path, body, headers))[0])


# --- the table --------------------------------------------------------------------------------------------------------


def routes() -> set[tuple[str, str]]:
    """Of the API, those that OpenAPI doesn't list included."""
    app = describe_api(Server().gateway())
    found = {(method, str(each.path)) for each in app.routes for method in each.methods - {"HEAD"}}  # type: ignore[attr-defined]
    listed = {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}
    assert listed <= found
    return found


def test_the_table_has_every_route_of_the_api_and_no_other() -> None:
    beside = {("GET", path) for path in ("/metrics", "/healthz", "/readyz", "/v1/storage")}
    pages = {(rule.method, rule.path) for rule in ACCESS_TABLE if rule.page}
    assert {(rule.method, rule.path) for rule in ACCESS_TABLE} - pages == routes() | beside
    assert len({(rule.method, rule.path) for rule in ACCESS_TABLE}) == len(ACCESS_TABLE)


@pytest.mark.seed("82.41")
def test_no_change_is_open_but_a_login() -> None:
    for rule in ACCESS_TABLE:
        if rule.method != "GET":
            assert rule.role >= AccessRole.OPERATOR or rule.path in ("/v1/session", "/login", "/logout")
        if rule.path.startswith("/admin/v2/"):
            assert (rule.role, rule.identified) == (AccessRole.ADMIN, True)


@pytest.mark.seed("82.41")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/nothing"), ("PUT", "/v1/thresholds"), ("OPTIONS", "/v1/thresholds"), ("GET", "/v1/thresholds/"),
        ("PUT", "/v1/thresholds/topics/a/b"), ("GET", "//v1/thresholds"), ("GET", "/v1/thresholds/total/7\n/x"),
        ("get", "/v1/thresholds"), ("GET", "/V1/thresholds"), ("GET", ""),
    ],
)  # fmt: skip
def test_what_has_no_row_needs_an_identified_admin(method: str, path: str) -> None:
    assert AccessRules().rule_for(method, path) is DEFAULT_RULE
    assert (DEFAULT_RULE.role, DEFAULT_RULE.identified) == (AccessRole.ADMIN, True)


def test_a_row_is_found_by_its_pattern() -> None:
    rules = AccessRules(
        [AccessRule("GET", "/a/{b}/c", AccessRole.VIEWER), AccessRule("GET", "/static/{file:path}", AccessRole.NONE)]
    )
    assert rules.rule_for("GET", "/a/x/c").role is AccessRole.VIEWER
    assert rules.rule_for("HEAD", "/a/x\n.+/c").role is AccessRole.VIEWER
    assert rules.rule_for("GET", "/static/x/y.js").role is AccessRole.NONE
    assert rules.rule_for("GET", "/a//c") is rules.rule_for("GET", "/a/x/y/c") is DEFAULT_RULE


# --- with tokens ------------------------------------------------------------------------------------------------------

ASKED = {"{broker}": "7", "{topic}": "clicks", "{resourcegroup}": "gold", "{tenant}": "acme", "{namespace}": "orders"}


async def pass_gate(gate: AccessGate, method: str, path: str, headers: dict[str, str]) -> int:
    """The answer's status: 200 of what is behind the gate, or its own."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": pairs}
    await gate.guard_application(behind)({**scope, "client": ("127.0.0.1", 1)}, None, send)
    return statuses[0]


@pytest.mark.seed("82.41", "82.47")
async def test_every_request_needs_the_role_of_its_row() -> None:
    refused: list[str] = []
    gate = AccessGate(CredentialHolders(LINES), count=refused.append)
    for rule in ACCESS_TABLE:
        path = rule.path
        for name, value in ASKED.items():
            path = path.replace(name, value)
        for who, role in {"": AccessRole.NONE, **ROLES}.items():
            may = role >= rule.role or (not who and rule.role is AccessRole.VIEWER and not rule.identified)
            answer = await pass_gate(gate, rule.method, path, by(who) if who else JSON)
            assert answer == (200 if may else 403 if who else 303 if rule.page else 401), (rule, who)
    assert set(refused) == {"missing", "role"}


async def test_where_certificates_are_the_only_credentials_this_machine_has_no_rights_by_itself() -> None:
    gate = AccessGate(CredentialHolders(principals={"User:CN=ops": AccessRole.ADMIN}))
    assert await pass_gate(gate, "POST", "/no/row/has/it", JSON) == 401


async def test_an_operator_s_limits_end_soon(port: Any) -> None:
    port.up()
    value = '{"value": "5MB"}'
    place = "/v1/thresholds/topics/clicks"
    for until, may in ((SOON, True), (LATER, False), (None, False)):
        said = f'{{"value": "5MB", "until": "{until}"}}' if until else value
        assert await status(port, "PUT", place, by("otto"), said) == (200 if may else 403)
        assert await status(port, "PUT", f"{place}?validate_only=true", by("otto"), said) == 200
        assert await status(port, "PUT", place, by("anna"), said) == 200
    assert await status(port, "DELETE", place, by("otto")) == 403
    answer = (await port.ask("PUT", place, {"value": 1}, by("otto")))[1]
    assert answer["detail"] == (
        "admin rights are needed, and otto has those of operator; with until, at most 7 days from now, those of"
        " operator are enough"
    )


async def test_an_operator_s_quotas_and_documents_end_as_well_and_prune_nothing(port: Any) -> None:
    port.up()
    entity = {"entity": [{"type": "user", "name": "bob"}], "ops": [{"key": "producer_byte_rate", "value": "1MB"}]}
    ends = {**entity, "entity": [{"type": "user", "name": "eve"}], "until": SOON}
    for given, may in (([ends], True), ([ends, entity], False), ([entity], False)):
        answer = await port.ask("POST", "/v1/client-quotas:alter", {"alterations": given}, by("otto"))
        assert answer[0] == (200 if may else 403)
        preview = {"alterations": given, "validate_only": True}
        assert (await port.ask("POST", "/v1/client-quotas:alter", preview, by("otto")))[0] == 200
    document = {"document": {"thresholds": {"total": "20MB"}}}
    for more, may in (({"until": SOON}, True), ({}, False), ({"prune": True, "until": SOON}, False),
                      ({"until": LATER}, False), ({"dry_run": True}, True)):  # fmt: skip
        assert (await port.ask("POST", "/v1/policies:apply", {**document, **more}, by("otto")))[0] == (
            200 if may else 403
        )
    groups = {"document": {"resource_groups": GOLD}, "until": SOON}
    status, said = await port.ask("POST", "/v1/policies:apply", groups, by("otto"))
    assert (status, "is not yours to change" in said["detail"]) == (403, True)
    assert (await port.ask("POST", "/v1/policies:apply", groups, by("anna")))[0] == 200


async def test_an_operator_removes_no_quota_beside_one_that_ends(port: Any) -> None:
    port.up()
    place, bob = "/v1/client-quotas:alter", [{"type": "user", "name": "bob"}]
    kept, other = "producer_byte_rate", {"key": "consumer_byte_rate", "value": "1MB"}
    lasting = {"alterations": [{"entity": bob, "ops": [{"key": kept, "value": "2MB"}]}]}
    assert (await port.ask("POST", place, lasting, by("anna")))[0] == 200
    removal = {"entity": bob, "ops": [other, {"key": kept, "value": None}], "until": SOON}
    status, said = await port.ask("POST", place, {"alterations": [removal]}, by("otto"))
    assert (status, said["detail"].rpartition("; ")[2]) == (
        403, "with until, at most 7 days from now, those of operator are enough to set values, not to remove any"
    )  # fmt: skip
    left = (await port.ask("GET", "/v1/client-quotas", headers=by("otto")))[1]["entries"]
    assert {"user=bob": {kept: 2e6}} == {
        each["text"].strip("{}"): each["values"] for each in left if "bob" in each["text"]
    }
    preview = {"alterations": [removal], "validate_only": True}
    assert (await port.ask("POST", place, preview, by("otto")))[0] == 200
    assert (await port.ask("POST", place, {"alterations": [removal]}, by("anna")))[0] == 200


async def test_a_change_is_recorded_with_the_name_of_its_token(port: Any) -> None:
    port.up()
    change = ("PUT", "/v1/thresholds/topics/clicks", {"value": "5MB", "until": SOON})
    for headers in (by("anna"), by("anna", **{"Produce-Gateway-User": "mallory"}),
                    by(OLD, **{"Produce-Gateway-User": "bob"})):  # fmt: skip
        assert (await port.ask(*change, headers))[0] == 200
    assert [source.who for source in port.policies.sources] == ["anna", "anna", "bob"]
    changed = await port.ask("GET", "/v1/policies/history", headers=by("vera"))
    assert changed[1]["changes"][-1]["who"] == "anna"


async def test_only_a_bearer_token_that_is_known_is_one(port: Any) -> None:
    port.up()
    anna = TOKENS["anna"]
    for said in (f"Bearer {anna[:-1]}", f"Bearer {anna}x", f"Bearer {anna.upper()}", f"Bearer {'é' * 20}",
                 "Bearer " + "x" * 9000):  # fmt: skip
        headers = {**JSON, "Authorization": said.encode().decode("latin-1")}
        for path in ("/v1/connections", "/v1/status"):  # also where nothing would be needed: it is a mistake
            answer, kind, body = await port.raw("GET", path, None, headers)
            assert (answer, kind) == (401, "application/problem+json")
            assert b"the token is not valid: bring one of admin.tokens or admin.token_file" in body
    for said in (anna, f"Basic {anna}", f"Bearer{anna}", "Bearer", "Bearer "):
        headers = {**JSON, "Authorization": said}
        assert await status(port, "GET", "/v1/connections", headers) == 401
        assert await status(port, "GET", "/v1/status", headers) == 200
    assert await status(port, "GET", "/v1/connections", {"Authorization": f"bearer  {anna} "}) == 200


async def test_a_refusal_has_no_token_in_it_and_says_how_to_authenticate(
    port: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port.up()
    answer = await trio.to_thread.run_sync(lambda: _head(port, {"Authorization": "Bearer secret-0123456789"}))
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="produce-gateway", error="invalid_token"'
    assert "secret" not in caplog.text
    assert [(record.__dict__["kind"], record.__dict__["reason"]) for record in caplog.records] == [
        ("admin-refused", "token")  # by which the log bounds lines
    ]
    said = "the token is not valid: bring one of admin.tokens or admin.token_file"
    assert f"admin: 127.0.0.1: GET /v1/connections: {said}" in caplog.text


def _head(port: Port, headers: dict[str, str]) -> Any:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=20)
    connection.request("GET", "/v1/connections", headers=headers)
    try:
        return connection.getresponse()
    finally:
        connection.close()


async def test_anonymous_callers_read_nothing_where_that_is_configured(port: Any) -> None:
    port.configure(LINES, anonymous=AccessRole.NONE, metrics=AccessRole.VIEWER)
    port.up()
    for path in ("/v1/status", "/v1/thresholds", "/openapi.json", "/metrics", "/v1/session"):
        assert await status(port, "GET", path, {}) == 401
        assert await status(port, "GET", path, by("vera")) == 200
    for path in ("/healthz", "/readyz"):
        assert await status(port, "GET", path, {}) == 200
        assert await status(port, "GET", path, by("x" * 20)) == 200


async def test_storage_is_shown_with_whether_the_caller_is_identified(port: Any) -> None:
    port.up()
    for path in ("/v1/storage", "/v1/storage?&"):  # the second one is answered by the framework
        for who in ({}, by("vera")):
            assert await status(port, "GET", path, who) == 200
    assert port.identified == [False, True] * 2


async def test_a_body_that_anybody_may_send_is_small(port: Any) -> None:
    port.up()
    assert await status(port, "POST", "/v1/session", JSON, '{"token": "vera-0123456789abcdef"}') == 200
    assert await status(port, "POST", "/v1/session", JSON, '{"token": "' + 70_000 * "x" + '"}') == 413
    chunked = {**JSON, "Transfer-Encoding": "chunked"}
    assert await status(port, "POST", "/v1/session", chunked, "2\r\n{}\r\n0\r\n\r\n") == 413


async def test_a_wrong_token_keeps_nobody_from_what_is_open(port: Any) -> None:
    port.up()
    assert await status(port, "GET", "/metrics", by("x" * 20)) == 200


async def test_who_one_is(port: Any) -> None:
    port.up()
    shown = (await port.ask("GET", "/v1/session", headers=by("otto")))[1]
    assert shown == {"name": "otto", "role": "operator", "identified": True, "how": "token", "csrf_token": ""}
    shown = (await port.ask("GET", "/v1/session"))[1]
    assert shown == {"name": "", "role": "viewer", "identified": False, "how": "anonymous", "csrf_token": ""}


# --- too many failures ------------------------------------------------------------------------------------------------


async def test_an_address_with_too_many_wrong_tokens_has_to_wait_and_no_other(port: Any) -> None:
    port.limits = FailedAttempts(burst=3, every_s=1000)
    port.configure(LINES)
    port.up()
    for expected in (401, 401, 401, 429, 429):
        assert await status(port, "GET", "/v1/status", by("x" * 20)) == expected
    answer = await trio.to_thread.run_sync(lambda: _head(port, by("anna")))
    assert answer.status == 429
    assert 900 <= int(answer.headers["Retry-After"]) <= 1000
    assert await status(port, "GET", "/v1/status", JSON) == 200  # without one
    assert await status(port, "POST", "/v1/session", JSON, f'{{"token": "{TOKENS["anna"]}"}}') == 429
    port.peer = "192.0.2.7"
    assert await status(port, "GET", "/v1/status", by("anna")) == 200
    assert port.refused == ["token"] * 3 + ["limited"] * 4


INGRESS = "10.0.0.5"
PROXIES = (ipaddress.ip_network("10.0.0.0/24"),)


async def test_wrong_tokens_of_a_client_behind_an_ingress_keep_nobody_else_out(
    port: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port.gate = make_gate(Admin(tokens=tuple(LINES), trusted_proxies=("10.0.0.0/24",)), port.refused.append)
    port.peer = INGRESS
    port.up()
    for number in range(MAX_BURST):  # the ingress appends where it was connected from; what is before, its client wrote
        forged = {"X-Forwarded-For": f"192.0.2.{number}, 198.51.100.{number}, 203.0.113.9"}
        assert await status(port, "GET", "/v1/status", by("x" * 20, **forged)) == 401
    own, other = {"X-Forwarded-For": "192.0.2.1, 203.0.113.9"}, {"X-Forwarded-For": "203.0.113.10"}
    assert await status(port, "GET", "/v1/status", by("anna", **own)) == 429
    assert await status(port, "GET", "/v1/status", by("anna", **other)) == 200
    assert await status(port, "GET", "/v1/status", by("anna")) == 200  # the ingress itself
    assert "admin: 203.0.113.9: GET /v1/status: the token is not valid" in caplog.text
    assert {record.__dict__["peer"] for record in caplog.records} == {"203.0.113.9"}
    port.peer = "10.0.9.5"  # in no listed network: it is a client like any other, wherever it says it is
    for _ in range(MAX_BURST):
        assert await status(port, "GET", "/v1/status", by("x" * 20, **other)) == 401
    assert await status(port, "GET", "/v1/status", by("anna", **other)) == 429


async def test_a_change_is_recorded_with_its_client_s_address_and_not_the_ingress_s(port: Any) -> None:
    port.configure(LINES, proxies=PROXIES)
    port.peer = INGRESS
    port.up()
    for field in ("127.0.0.1, 203.0.113.9", "nonsense", "2001:db8::1"):
        assert await status(port, *CHANGE[:2], by("anna", **{"X-Forwarded-For": field}), *CHANGE[3:]) == 200
    assert [source.peer for source in port.policies.sources] == ["203.0.113.9", f"{INGRESS}:1", "2001:db8::1"]


async def test_without_credentials_a_client_behind_a_proxy_on_this_machine_is_not_on_it(port: Any) -> None:
    port.configure(proxies=(ipaddress.ip_network("127.0.0.1"), *PROXIES))
    port.up()
    groups = ("GET", "/admin/v2/resourcegroup")
    for field, expected in (
        ("203.0.113.9", 403), ("127.0.0.1, 203.0.113.9", 403), ("127.0.0.1", 200), ("unknown", 403),
        ("127.0.0.1, fe80::1%eth0", 403), ("_hidden, 127.0.0.1", 403),
    ):  # fmt: skip
        assert await status(port, *groups, {**JSON, "X-Forwarded-For": field}) == expected
    port.peer = INGRESS
    assert await status(port, *groups, {**JSON, "X-Forwarded-For": "127.0.0.1"}) == 403


# --- sessions ---------------------------------------------------------------------------------------------------------


async def log_in(port: Port, name: str, **more: str) -> tuple[dict[str, str], dict[str, Any]]:
    """(the headers that its browser sends, who it is)."""
    import http.client
    import json

    def ask() -> tuple[int, str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=20)
        connection.request("POST", "/v1/session", json.dumps({"token": TOKENS[name]}), {**JSON, **more})
        answer = connection.getresponse()
        try:
            return answer.status, answer.getheader("Set-Cookie", ""), json.loads(answer.read())
        finally:
            connection.close()

    status, cookie, said = await trio.to_thread.run_sync(ask)
    assert status == 200
    head, *attributes = cookie.split("; ")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    return {**JSON, "Cookie": f"theirs=a b, =;;; {head}", **SITE}, said


async def test_a_session_has_the_role_of_its_token_and_ends_by_logout(port: Any) -> None:
    port.up()
    cookie, said = await log_in(port, "otto")
    assert (said["name"], said["role"], said["how"]) == ("otto", "operator", "session")
    assert await status(port, "GET", "/v1/connections", cookie) == 200
    assert await status(port, "GET", "/admin/v2/resourcegroup", cookie) == 403
    assert await status(port, "DELETE", "/v1/session", cookie) == 403
    csrf = {"X-CSRF-Token": said["csrf_token"]}
    assert await status(port, "DELETE", "/v1/session", {**cookie, **csrf}) == 204
    assert await status(port, "GET", "/v1/connections", cookie) == 401


async def test_a_change_within_a_session_needs_its_csrf_token(port: Any) -> None:
    port.up()
    cookie, said = await log_in(port, "anna")
    other = (await log_in(port, "anna"))[1]
    body = '{"value": "5MB"}'
    for given, expected in (
        ("", 403), ("x", 403), ("é", 403), (other["csrf_token"], 403), (said["csrf_token"], 200),
    ):  # fmt: skip
        headers = {**cookie, "X-CSRF-Token": given.encode().decode("latin-1")}
        assert await status(port, "PUT", "/v1/thresholds/total", headers, body) == expected
        foreign = {**headers, "Origin": "http://evil.example"}
        assert await status(port, "PUT", "/v1/thresholds/total", foreign, body) == 403
    # In a form as well: what comes after the gate is that the API takes no forms.
    for given, expected in (("", 403), (other["csrf_token"], 403), (said["csrf_token"], 415)):
        headers = {**cookie, "Content-Type": "application/x-www-form-urlencoded"}
        form = urlencode({"a": "b", "csrf_token": given})
        assert await status(port, "POST", "/v1/policies:apply", headers, form) == expected
    assert await status(port, "POST", "/v1/policies:apply", headers, "a=" + "x" * 70_000) == 413
    assert set(port.refused) == {"csrf", "origin", ""}


async def test_a_session_is_over_as_soon_as_its_token_is(port: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("\n".join(LINES[1:]))
    port.configure((), path)
    port.up()
    (anna, _), (vera, _) = await log_in(port, "anna"), await log_in(port, "vera")
    fresh = tmp_path / "fresh"
    fresh.write_text(format_token_line("anna", AccessRole.VIEWER, TOKENS["anna"]))
    fresh.replace(path)
    assert await status(port, "GET", "/v1/connections", vera) == 401
    assert await status(port, "GET", "/v1/connections", anna) == 200
    assert await status(port, "GET", "/admin/v2/resourcegroup", anna) == 403  # its role is that of now
    path.write_text("\n".join(LINES[1:]))
    assert await status(port, "GET", "/v1/connections", vera) == 401


async def test_a_wrong_token_begins_no_session_and_a_foreign_page_none_either(port: Any) -> None:
    port.up()
    body = f'{{"token": "{TOKENS["anna"]}"}}'
    assert await status(port, "POST", "/v1/session", JSON, '{"token": "wrong-0123456789abcdef"}') == 401
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        assert await status(port, "POST", "/v1/session", {**JSON, **headers}, body) == 403
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        assert await status(port, "POST", "/v1/session", {"Content-Type": kind}, body) == 403
        assert await status(port, "POST", "/v1/session", {"Content-Type": kind, **SITE}, body) == 415
    assert port.refused == ["token"] + ["origin"] * 5


def test_a_session_ends_by_idleness_and_by_age() -> None:
    names = iter(str(n) for n in range(100))
    sessions = BrowserSessions(idle_s=10, absolute_s=25, make=lambda: next(names))
    name, session = sessions.create_session(b"t", 0)
    for now in (9, 18, 24.9):
        assert sessions.find_session(name, now) == session
    assert sessions.find_session(name, 25) is None
    name, session = sessions.create_session(b"t", 100)
    assert sessions.find_session(name, 109.9) == session
    assert sessions.find_session(name, 119.9) is None
    assert sessions.find_session(name, 110) is None  # gone
    assert sessions.find_session("", 110) is sessions.find_session("x", 110) is None
    name, _ = sessions.create_session(b"t", 200)
    sessions.end_session(name)
    sessions.end_session("x")
    assert sessions.find_session(name, 200) is None
    assert len(sessions) == 0


def test_sessions_are_bounded_in_all_and_for_each_token() -> None:
    sessions = BrowserSessions(most=4, most_of_one=2)
    first, second, third = (sessions.create_session(b"a", now)[0] for now in (1, 2, 3))
    assert sessions.find_session(first, 4) is None
    others = [sessions.create_session(bytes([n]), 5)[0] for n in range(2)]
    assert sessions.find_session(second, 6) is not None  # used last
    sessions.create_session(b"c", 7)
    assert (len(sessions), sessions.find_session(third, 8)) == (4, None)
    assert all(sessions.find_session(name, 8) for name in (second, *others))


def test_ids_and_csrf_tokens_are_random_and_long() -> None:
    sessions = BrowserSessions()
    made = [sessions.create_session(b"a", 0) for _ in range(20)]
    texts = {name for name, _ in made} | {session.csrf for _, session in made}
    assert len(texts) == 40
    assert min(map(len, texts)) >= 43  # 256 bits


# --- pages ------------------------------------------------------------------------------------------------------------

PAGES = (
    AccessRule("GET", "/login", AccessRole.NONE, page=True),
    AccessRule("POST", "/login", AccessRole.NONE, page=True),
    AccessRule("GET", "/topics", AccessRole.VIEWER, identified=True, page=True),
    AccessRule("POST", "/topics", AccessRole.ADMIN, page=True),
)
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Host": "127.0.0.1", "Origin": "http://127.0.0.1"}


class Pages:
    """What is behind the gate gets a form, or logs in with its field `token`."""

    def __init__(self) -> None:
        self.gate = AccessGate(CredentialHolders(LINES), table=PAGES)
        self.received: list[dict[str, list[str]]] = []

    async def ask(
        self, method: str, path: str, headers: dict[str, str], form: dict[str, str] | None = None, query: bytes = b""
    ) -> tuple[int, dict[str, str]]:
        answer: list[Any] = []
        parts = [urlencode(form or {}).encode()]

        async def receive() -> Any:
            return {"type": "http.request", "body": parts.pop(0)}

        async def send(message: Any) -> None:
            answer.append(message)

        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": pairs}
        scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 9190), "scheme": "http"}
        await self.gate.guard_application(self._behind)(scope, receive, send)
        return answer[0]["status"], {name.decode(): value.decode() for name, value in answer[0]["headers"]}

    async def _behind(self, scope: Any, receive: Any, send: Any) -> None:
        status, headers = 200, []
        if scope["method"] == "POST":
            self.received.append(parse_qs((await receive())["body"].decode()))
            if scope["path"] == "/login":
                answered = await gate_of(scope).log_in(scope, self.received[-1]["token"][0])
                status, headers = (answered.status if answered.problem else 303), answered.headers
        await send({"type": "http.response.start", "status": status, "headers": headers})


async def test_a_browser_is_sent_to_the_login_and_back() -> None:
    pages = Pages()
    status, headers = await pages.ask("GET", "/topics", {}, query=b"by=rate&x=%26")
    assert (status, headers["location"]) == (303, "/login?next=/topics%3Fby%3Drate%26x%3D%2526")
    status, headers = await pages.ask("GET", "/topics", {"HX-Request": "true"})
    assert (status, headers["hx-redirect"], "location" in headers) == (401, "/login", False)
    status, headers = await pages.ask("POST", "/topics", FORM)
    assert (status, headers["location"]) == (303, "/login?next=/")
    assert (await pages.ask("GET", "/login", {}))[0] == 200


async def test_a_form_within_a_session_brings_the_csrf_token_and_reaches_the_page_whole() -> None:
    pages = Pages()
    for token, expected in (("x" * 20, 401), (TOKENS["anna"], 303)):
        status, headers = await pages.ask("POST", "/login", FORM, {"token": token})
        assert status == expected
    cookie = {"Cookie": headers["set-cookie"].partition(";")[0]}
    (session,) = [kept.session for kept in pages.gate._sessions._entries.values()]
    for csrf, expected in (("", 403), ("x", 403), (session.csrf, 200)):
        form = {"topic": "a & b", "csrf_token": csrf}
        assert (await pages.ask("POST", "/topics", {**FORM, **cookie}, form))[0] == expected
    assert pages.received[2:] == [{"topic": ["a & b"], "csrf_token": [session.csrf]}]
    foreign = {**FORM, **cookie, "Origin": "http://evil.example"}
    assert (await pages.ask("POST", "/topics", foreign, form))[0] == 403
    assert (await pages.ask("GET", "/topics", cookie))[0] == 200


async def test_a_form_without_a_session_has_to_say_which_page_it_is_of() -> None:
    """As its browser would send it for a page of any site: with a certificate, or from this machine."""
    pages = Pages()
    pages.gate = AccessGate(table=PAGES)
    form = {"topic": "a"}
    assert (await pages.ask("POST", "/topics", FORM, form))[0] == 200
    unsaid = {"Content-Type": FORM["Content-Type"], "Host": "127.0.0.1"}
    assert (await pages.ask("POST", "/topics", unsaid, form))[0] == 403
    assert (await pages.ask("POST", "/topics", {**unsaid, "Sec-Fetch-Site": "same-origin"}, form))[0] == 200
    assert (await pages.ask("POST", "/topics", {**unsaid, "Sec-Fetch-Site": "same-site"}, form))[0] == 403


# --- without credentials in the configuration -------------------------------------------------------------------------

CHANGE = ("PUT", "/v1/thresholds/total", JSON, '{"value": "20MB"}')


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
async def test_without_credentials_a_client_on_this_machine_is_an_admin(port: Any, peer: str) -> None:
    port.configure()
    port.peer = peer
    port.up()
    for path in ("/admin/v2/resourcegroup", "/v1/connections", "/v1/status"):
        assert await status(port, "GET", path, by("anna")) == 200  # a token means nothing
    assert await status(port, *CHANGE) == 200
    assert (await port.ask("POST", "/v1/session", {"token": TOKENS["anna"]}))[0] == 403


@pytest.mark.seed("82.47")
@pytest.mark.parametrize("peer", ["192.0.2.7", "10.0.0.1", "::2", "::ffff:192.0.2.7", "", "localhost"])
async def test_without_credentials_others_do_all_for_which_nobody_has_to_say_who_he_is(port: Any, peer: str) -> None:
    port.configure(anonymous=AccessRole.NONE)
    port.peer = peer
    port.up()
    for path in ("/admin/v2/resourcegroup", "/v1/connections", "/v1/policies/history", "/v1/resource-groups"):
        said = await port.ask("GET", path)
        assert said[0] == 403
        assert "this gateway has no admin.tokens or admin.token_file" in said[1]["detail"]
    assert await status(port, "GET", "/v1/status", JSON) == 200
    assert await status(port, *CHANGE) == 200


async def test_a_document_is_no_way_around_the_rights_to_groups(port: Any) -> None:
    port.configure()
    port.peer = "192.0.2.7"
    port.up()
    apply = "/v1/policies:apply"
    before = port.policies.policies = port.policies.policies.apply_values(read_document({"resource_groups": GOLD}))
    for document, more in (
        ({"resource_groups": {"groups": {"silver": {}}}}, {}),
        ({"resource_groups": {"tenants": {"other": "gold"}}}, {}),
        ({"resource_groups": {"namespaces": {"acme/orders": "gold"}}}, {}),
        ({"resource_groups": {"groups": {"silver": {}}}}, {"dry_run": True}),
        ({}, {"prune": True}),
    ):
        answer, said = await port.ask("POST", apply, {"document": document, **more})
        assert answer == 403
        assert "is not yours to change" in said["detail"]
        assert "admin.tokens or admin.token_file" in said["detail"]
    assert port.policies.policies is before
    kept = {"thresholds": {"total": "20MB"}, "resource_groups": GOLD}
    answer, said = await port.ask("POST", apply, {"document": kept, "prune": True})  # changes no group
    assert (answer, [each["kind"] for each in said["ops"]]) == (200, ["broker"])


async def test_a_client_without_rights_is_told_so_before_anything_else(port: Any) -> None:
    port.up()
    for method, path, headers in (
        ("PUT", "/admin/v2/resourcegroup/gold", {"Content-Type": "text/plain"}),
        ("PUT", "/admin/v2/resourcegroup/gold?a=1&a=2", JSON),
        ("POST", "/admin/v2/tenants/acme/resourcegroup/gold", {}),
    ):
        answer, _, body = await port.raw(method, path, b"{}", headers)
        assert answer == 401
        assert b"Authorization: Bearer TOKEN" in body


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_a_file_that_can_not_be_read_gives_nobody_a_role_until_it_can(
    port: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.control")
    path = tmp_path / "tokens"
    port.configure([OLD], path)
    port.up()
    for _ in range(2):
        said = await port.ask("GET", "/v1/connections", headers=by("anna"))
        assert "as the token file can't be read" in said[1]["detail"]
    assert await status(port, "GET", "/v1/connections", by(OLD)) == 200  # those of the configuration stay
    path.write_text(LINES[3])
    assert await status(port, "GET", "/v1/connections", by("anna")) == 200
    path.write_text("")
    assert await status(port, "GET", "/v1/connections", by("anna")) == 401
    said = [record.getMessage() for record in caplog.records if "admin.token_file" in record.getMessage()[:20]]
    assert said[:2] == [
        f"admin.token_file: {path}: No such file or directory: no token of it is valid",
        "admin.token_file can be read again",
    ]
    assert said[2].startswith(f"admin.token_file: {path}: there is no token in it: ")
