# Stands before an ASGI application: finds out who asks, says no where the table (rules.py) doesn't allow it, and hands
# all else on with the caller in the scope. Of what a caller brings it takes the first of: a bearer token (RFC 6750),
# the cookie of a session, the certificate of its connection. Nothing of these is in a log line or an answer.
#
# Where the configuration has no credentials, this machine has all rights; others have those that need no identity.

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Set
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote

import trio

from gateway.access_tokens.roles import AccessRole
from gateway.access_tokens.tokens import TokenHolder, hash_token
from gateway.control.access.caller import CALLER_KEY, UNKNOWN_CALLER, AdminCaller, AuthMethod, caller_of
from gateway.control.access.failures import FailedAttempts, retry_after
from gateway.control.access.forwarded import client_address, hides_client
from gateway.control.access.holders import CredentialHolders, NoPrincipal
from gateway.control.access.origin import is_foreign_page, states_origin
from gateway.control.access.rules import ACCESS_TABLE, LOGIN_PATH, READ_METHODS, AccessRule, AccessRules
from gateway.control.access.sessions import BrowserSessions
from gateway.control.asgi import Header, body_bytes, headers_of, read_body, send_response
from gateway.system.hosts import is_loopback
from gateway.system.sockets import Networks
from policies.text import one_line

log = logging.getLogger("gateway.control")

GATE_KEY: Final = "produce-gateway.gate"  # in a scope
CERTIFICATE_KEY: Final = "produce-gateway.certificate"  # in a scope: the client's, verified, X.509 in DER; or None
_PROXY_KEY: Final = "produce-gateway.proxy"  # in a scope: the address of the proxy that this client is behind
MAX_FORM: Final = 64 * 2**10
MAX_TOKEN_CHARS: Final = 4096  # of a token
REFUSED_BODY_TIMEOUT_S: Final = 1.0  # for the body of a request that is refused: who refuses it waits for no stranger
FORM_TIMEOUT_S: Final = 60.0
CSRF_FIELD: Final = "csrf_token"
CSRF_HEADER: Final = "x-csrf-token"
_FORM: Final = "application/x-www-form-urlencoded"
_FORMS: Final = (_FORM, "multipart/form-data", "text/plain")  # what a page of any site can have a browser send
_CREDENTIAL_SETTINGS: Final = "admin.tokens or admin.token_file"

Application = Callable[[Any, Any, Any], Any]


class AccessRefusal(NamedTuple):
    """`reason`: one of failures.REASONS, or "" for refusals that are not counted. `challenge`: for WWW-Authenticate."""

    status: int
    reason: str
    detail: str
    wait_s: float = 0.0
    challenge: str = ""


class LoginOutcome(NamedTuple):
    """The result of a login or logout. `headers`: for the response. `problem` "": it succeeded."""

    headers: list[Header]
    problem: str = ""
    status: int = 200
    retry_after_s: int = 0
    caller: AdminCaller | None = None


class AccessGate:
    """Decides which caller may make which request on the admin port.

    Attributes:
        holders: the credentials that the configuration contains.
    """

    def __init__(
        self,
        holders: CredentialHolders | None = None,
        *,
        anonymous: AccessRole = AccessRole.VIEWER,
        metrics: AccessRole = AccessRole.NONE,
        hosts: Set[str] = frozenset(),
        table: Iterable[AccessRule] = ACCESS_TABLE,
        sessions: BrowserSessions | None = None,
        failures: FailedAttempts | None = None,
        proxies: Networks = (),
        count: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """
        Args:
            anonymous: of callers without credentials, where the configuration has some.
            metrics: the least role for /metrics.
            hosts: as in application.py.
            table: which request needs what.
            proxies: that say where their clients are (forwarded.py).
            count: is called with the reason of each refusal.
        """
        self.holders = holders or CredentialHolders()
        self._anonymous = anonymous
        self._rules = AccessRules(table, metrics)
        self._hosts = hosts
        self._sessions = BrowserSessions() if sessions is None else sessions
        self._failures = FailedAttempts() if failures is None else failures
        self._proxies = proxies
        self._count_refusal = count

    def guard_application(self, app: Application) -> Application:
        """The application behind this gate."""

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            scope = self._with_client(scope)
            headers = headers_of(scope)
            rule = self._rules.rule_for(scope["method"], scope["path"])
            caller, refusal = await self._authorize_request(scope, headers, rule)
            if refusal is None and rule.role is AccessRole.NONE and body_bytes(headers) > MAX_FORM:  # of any caller
                refusal = AccessRefusal(413, "", f"a body here may have {MAX_FORM} bytes")
            if refusal is None and scope["method"] not in READ_METHODS and _needs_csrf(caller):
                receive, refusal = await _check_csrf(caller.csrf, headers, receive)
            if refusal is not None:
                self._record_refusal(scope, refusal)
                if headers.get("content-length", "0") != "0" and refusal.status != 413:
                    # The server closes a connection that is answered before its request is there whole, and the
                    # client's next request on it would fail.
                    await read_body(receive, MAX_FORM, REFUSED_BODY_TIMEOUT_S)
                await _send_refusal(scope, headers, send, refusal, rule)
                return
            await app({**scope, CALLER_KEY: caller, GATE_KEY: self}, receive, send)

        return guarded

    def _with_client(self, scope: Any) -> Any:
        """The scope with the client's address in place of its proxy's."""
        if not self._proxies or not scope.get("client"):
            return scope
        peer, _ = scope["client"]
        address = client_address(peer, scope["headers"], self._proxies)
        return scope if address == peer else {**scope, "client": (address, 0), _PROXY_KEY: peer}

    # --- who asks -----------------------------------------------------------------------------------------------------

    async def _authorize_request(
        self, scope: Any, headers: Mapping[str, str], rule: AccessRule
    ) -> tuple[AdminCaller, AccessRefusal | None]:
        caller = UNKNOWN_CALLER
        if rule.role is not AccessRole.NONE:
            found = await self._identify_caller(scope, headers)
            if isinstance(found, AccessRefusal):
                return caller, found
            caller = found
            missing = self._rights_refusal(caller, rule.role, rule.identified, _client_host(scope))
            if missing is not None:
                return caller, missing
        if scope["method"] not in (*READ_METHODS, "OPTIONS"):
            return caller, self._check_page(scope, headers, caller)
        return caller, None

    async def _identify_caller(self, scope: Any, headers: Mapping[str, str]) -> AdminCaller | AccessRefusal:
        peer = _client_host(scope)
        if not self.holders.has_credentials:
            # A proxy on this machine doesn't make others' requests this machine's.
            proxy = scope.get(_PROXY_KEY, peer)
            here = _is_local(peer) and _is_local(proxy) and not hides_client(proxy, scope["headers"], self._proxies)
            return AdminCaller("", AccessRole.ADMIN, here, "machine" if here else "open")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and given.strip():
            holder = await self._check_token(given.strip(), peer)
            return holder if isinstance(holder, AccessRefusal) else _make_caller(holder, "token")
        return (
            await self._session_caller(headers.get("cookie", ""), scope)
            or self._certificate_caller(scope)
            or AdminCaller("", self._anonymous, False, "anonymous")
        )

    async def _check_token(self, token: str, peer: str) -> TokenHolder | AccessRefusal:
        """The holder of this token. While too many attempts from this address have failed, tokens are not checked."""
        now = trio.current_time()
        wait_s = self._failures.wait_s(peer, now)
        if wait_s:
            return AccessRefusal(429, "limited", "too many tokens from this address were wrong: wait", wait_s)
        if len(token) <= MAX_TOKEN_CHARS:
            holder = await self.holders.find_by_digest(hash_token(token))
            if holder is not None:
                return holder
        self._failures.record_failure(peer, now)
        return AccessRefusal(
            401,
            "token",
            f"the token is not valid{self.holders.problem}: bring one of {_CREDENTIAL_SETTINGS}",
            challenge='error="invalid_token"',
        )

    async def _session_caller(self, cookies: str, scope: Any) -> AdminCaller | None:
        name = _cookie_value(cookies, _cookie_name(scope))
        session = self._sessions.find_session(name, trio.current_time()) if name else None
        if session is None:
            return None
        holder = await self.holders.find_by_digest(session.token)
        if holder is None:
            self._sessions.end_session(name)
            return None
        return _make_caller(holder, "session", session.csrf)

    def _certificate_caller(self, scope: Any) -> AdminCaller | None:
        certificate = scope.get(CERTIFICATE_KEY)
        if certificate is None:
            return None
        try:
            name, role = self.holders.role_of_certificate(certificate)
        except NoPrincipal:
            name, role = "", AccessRole.NONE
        if role is AccessRole.NONE:
            return AdminCaller(name, self._anonymous, False, "certificate")
        return AdminCaller(name, role, True, "certificate")

    # --- whether that one may -----------------------------------------------------------------------------------------

    def missing_rights(self, scope: Any, least: AccessRole, *, identified: bool = False) -> str:
        """The rights that the caller lacks beyond those that the path needs; "": none."""
        missing = self._rights_refusal(caller_of(scope), least, identified, _client_host(scope))
        if missing is None:
            return ""
        self._count_refusal(missing.reason)
        return missing.detail

    def _rights_refusal(
        self, caller: AdminCaller, least: AccessRole, identified: bool, peer: str
    ) -> AccessRefusal | None:
        if caller.role >= least and (caller.identified or not identified):
            return None
        role = least.label
        if caller.auth_method == "open":
            return AccessRefusal(
                403,
                "missing",
                f"{role} rights are needed, and this gateway has no {_CREDENTIAL_SETTINGS}: so only the machine"
                " that it runs on has"
                f" them, not {peer or 'an unknown address'}",
            )
        if caller.identified:
            who = caller.name or "this token"
            return AccessRefusal(403, "role", f"{role} rights are needed, and {who} has those of {caller.role.label}")
        if caller.auth_method == "certificate":
            who = one_line(caller.name) or "this certificate"
            return AccessRefusal(403, "certificate", f"{role} rights are needed, and {who} is not in admin.principals")
        return AccessRefusal(
            401,
            "missing",
            f"{role} rights are needed: send the header Authorization: Bearer TOKEN, with a token of"
            f" {_CREDENTIAL_SETTINGS}; commands"
            " take --token-file",
            challenge='scope="' + role + '"',
        )

    def _check_page(self, scope: Any, headers: Mapping[str, str], caller: AdminCaller) -> AccessRefusal | None:
        """Refuse requests that a foreign page makes a browser send: they come with a session's cookie, a certificate,
        or from this machine.
        """
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_form = scope["method"] == "POST" and kind in _FORMS
        if not is_foreign_page(headers, self._hosts) and (
            not is_form or states_origin(headers) or caller.auth_method == "token"
        ):
            return None
        return AccessRefusal(
            403,
            "origin",
            "a page of another site may not change anything here; a page of this server may, under localhost, an"
            " address, or a name that the gateway knows as its own; programs leave Origin and Sec-Fetch-Site out, and"
            " send JSON",
        )

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def log_in(self, scope: Any, token: str) -> LoginOutcome:
        """Begin a session of this browser, in place of an earlier one."""
        if not self.holders.has_tokens:
            return LoginOutcome([], f"there is nothing to log in with: this gateway has no {_CREDENTIAL_SETTINGS}", 403)
        found = await self._check_token(token.strip(), _client_host(scope))
        if isinstance(found, AccessRefusal):
            self._record_refusal(scope, found)
            return LoginOutcome([], found.detail, found.status, retry_after(found.wait_s) if found.wait_s else 0)
        self._end_session(scope)
        name, session = self._sessions.create_session(found.digest, trio.current_time())
        return LoginOutcome([_set_cookie(scope, name)], caller=_make_caller(found, "session", session.csrf))

    def log_out(self, scope: Any) -> LoginOutcome:
        """End this browser's session, if it has one."""
        self._end_session(scope)
        return LoginOutcome([_set_cookie(scope, "", "; Max-Age=0")])

    def _end_session(self, scope: Any) -> None:
        if name := _cookie_value(headers_of(scope).get("cookie", ""), _cookie_name(scope)):
            self._sessions.end_session(name)

    # --- what was refused ---------------------------------------------------------------------------------------------

    def _record_refusal(self, scope: Any, refusal: AccessRefusal) -> None:
        self._count_refusal(refusal.reason)
        if refusal.reason not in ("missing", "role"):  # no attempt at anything: a browser that isn't logged in
            asked = f"{scope['method']} {one_line(scope['path'])}"
            fields = {"kind": "admin-refused", "reason": refusal.reason, "peer": _client_host(scope)}
            log.warning("admin: %s: %s: %s", _client_host(scope), asked, refusal.detail, extra=fields)


def gate_of(scope: Mapping[str, Any]) -> AccessGate:
    found = scope[GATE_KEY]
    assert isinstance(found, AccessGate)
    return found


def _make_caller(holder: TokenHolder, how: AuthMethod, csrf: str = "") -> AdminCaller:
    return AdminCaller(holder.name, holder.role, True, how, csrf)


def _client_host(scope: Any) -> str:
    return str(scope["client"][0]) if scope.get("client") else ""


def _is_local(peer: str) -> bool:
    return peer != "localhost" and is_loopback(peer.removeprefix("::ffff:") if "." in peer else peer)


# --- cookies ----------------------------------------------------------------------------------------------------------


def _cookie_name(scope: Any) -> str:
    """All ports of a host share cookies, so another gateway's cookie must not be taken for this one's. With TLS no
    other host of the domain can set it.
    """
    port = scope["server"][1] if scope.get("server") else 0
    return f"__Host-produce-gateway-{port}" if scope.get("scheme") == "https" else f"produce-gateway-{port}"


def _set_cookie(scope: Any, value: str, more: str = "") -> Header:
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    text = f"{_cookie_name(scope)}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{more}"
    return b"set-cookie", text.encode()


def _cookie_value(header: str, name: str) -> str:
    """The cookie's value, "" where there is none. Cookies of other applications may have any form."""
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for known, _, value in pairs if known == name), "")


# --- pages' changes ---------------------------------------------------------------------------------------------------


def _needs_csrf(caller: AdminCaller) -> bool:
    return caller.auth_method == "session"


async def _check_csrf(wanted: str, headers: Mapping[str, str], receive: Any) -> tuple[Any, AccessRefusal | None]:
    """Check the token in the header, or in a form; the application receives the body that was read again."""
    given = headers.get(CSRF_HEADER, "")
    if not given and headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM:
        body = await read_body(receive, MAX_FORM, FORM_TIMEOUT_S)
        if body is None:
            return receive, AccessRefusal(413, "", f"a form may have {MAX_FORM} bytes, within {FORM_TIMEOUT_S:g} s")
        given = parse_qs(body.decode("latin-1")).get(CSRF_FIELD, [""])[0]
        receive = _replay_body(body, receive)
    if given and hmac.compare_digest(given.encode(), wanted.encode()):
        return receive, None
    detail = f"a change within a session needs its CSRF token, as the header {CSRF_HEADER} or the field {CSRF_FIELD}"
    return receive, AccessRefusal(403, "csrf", f"{detail}: load the page once more")


def _replay_body(body: bytes, receive: Any) -> Any:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Any:
        return messages.pop() if messages else await receive()

    return receive_again


# --- answers ----------------------------------------------------------------------------------------------------------


async def _send_refusal(
    scope: Any, headers: Mapping[str, str], send: Any, refusal: AccessRefusal, rule: AccessRule
) -> None:
    more: list[Header] = []
    if refusal.status == 401:
        challenge = f'Bearer realm="produce-gateway", {refusal.challenge}'
        more.append((b"www-authenticate", challenge.encode()))
    if refusal.wait_s:
        more.append((b"retry-after", str(retry_after(refusal.wait_s)).encode()))
    if rule.page and refusal.status == 401:
        status, kind, body = 303, "text/plain; charset=utf-8", b"log in first\n"
        more = _login_redirect(scope, headers)
        if "hx-request" in headers:
            status = 401  # htmx would show the login inside of the page
    elif rule.page:
        status, kind, body = refusal.status, "text/plain; charset=utf-8", f"{refusal.detail}\n".encode()
    else:
        status, kind = refusal.status, "application/problem+json"
        title = HTTPStatus(status).phrase
        problem = {"type": "about:blank", "title": title, "status": status, "detail": refusal.detail, "errors": []}
        body = json.dumps(problem).encode()
    await send_response(scope, send, status, kind, body, more)


def _login_redirect(scope: Any, headers: Mapping[str, str]) -> list[Header]:
    """To the login page, and back to this page afterwards. A change is not repeated."""
    path = scope["path"] if scope["method"] in READ_METHODS else "/"
    wanted = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] and path != "/" else "")
    place = f"{LOGIN_PATH}?next={quote(wanted, safe='/')}".encode()
    return [(b"hx-redirect", LOGIN_PATH.encode())] if "hx-request" in headers else [(b"location", place)]
