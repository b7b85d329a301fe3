# The console as an ASGI application: which path is which page, the headers of every answer, the files that pages load.
#
# A page asked for by htmx (HX-Request) is answered with its live part alone. A form is answered by the page with what
# came of it, or, once a change is made, by a redirect to the page. Who may come here is the gate's before it (access/).

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from http import HTTPStatus
from importlib import resources
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import trio

from gateway.control.admin.console import edits, pages
from gateway.control.admin.console.api_client import ApiClient, Application
from gateway.control.admin.console.rendering import ConsoleTemplates, make_url
from gateway.control.asgi import Header, read_body, send_response
from gateway.http.admin_api import AdminRequest, ApiError

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
STATIC: Final = "/console/static/"
MAX_FORM: Final = 64 * 2**10
FORM_TIMEOUT_S: Final = 60.0
_MEDIA_TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_FILES: Final = ("style.css", "console.js", "icon.svg", "htmx-2.0.11/htmx.min.js")
_HTML: Final = "text/html; charset=utf-8"
# referrer-policy: with no-referrer a browser would not say in Origin that a form is from here.
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class _ConsoleResponse(NamedTuple):
    status: int
    kind: str = ""
    body: bytes = b""
    headers: tuple[Header, ...] = ()


class _StaticFile(NamedTuple):
    kind: str
    body: bytes
    version: str


def make_console(application: Application) -> Application:
    """The console, which asks this application for everything that it shows."""
    return _ConsoleSite(application).serve_request


class _ConsoleSite:
    def __init__(self, application: Application) -> None:
        self._application = application
        self._templates = _load_templates()
        self._files = {STATIC + name: _load_file(name) for name in _FILES}
        self._shared = {
            "nav": [page for page in pages.PAGES.values() if page.nav],
            "static": {name: make_url(STATIC + name, v=self._files[STATIC + name].version) for name in _FILES},
        }

    async def serve_request(self, scope: Any, receive: Any, send: Any) -> None:
        method, path = scope["method"], scope["path"]
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if path in self._files:
            answer = self._serve_file(path, given) if method in ("GET", "HEAD") else _not_allowed()
        elif path in ("/", "/console"):
            answer = _redirect(pages.ROOT)
        else:
            answer = await self._handle_request(scope, given, receive)
        headers = (*answer.headers, *_HEADERS)
        await send_response(scope, send, answer.status, answer.kind, answer.body, headers)

    async def _handle_request(self, scope: Any, given: Mapping[str, str], receive: Any) -> _ConsoleResponse:
        method, path = scope["method"], scope["path"]
        api = ApiClient(self._application, scope)
        page = pages.PAGES.get(path)
        if method == "POST":
            body = await read_body(receive, MAX_FORM, FORM_TIMEOUT_S)
            if body is None:
                return _text_response(413, f"a form may have {MAX_FORM} bytes, within {FORM_TIMEOUT_S:g} s")
            form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
            if path == LOGIN:
                return await self._log_in(api, form)
            if path == LOGOUT:
                await self._load_common(api)
                await api.send(AdminRequest("DELETE", "/v1/session"))
                return _redirect(LOGIN, tuple(api.cookies))
            if page is not None and path in edits.EDITS:
                return await self._handle_form(api, page, given, form, is_part=_is_part(scope))
            return _not_allowed()
        if method not in ("GET", "HEAD"):
            return _not_allowed()
        if path == LOGIN:
            return await self._render_page("login.html", 200, {"next": given.get("next", ""), "problem": ""})
        return await self._show_page(api, page, given, scope)

    # --- pages --------------------------------------------------------------------------------------------------------

    async def _show_page(
        self, api: ApiClient, page: pages.ConsolePage | None, given: Mapping[str, str], scope: Any
    ) -> _ConsoleResponse:
        here = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        try:
            common = await self._load_common(api)
            if page is None:
                raise ApiError(404, f"there is no page {scope['path']}")
            values = {**common, "page": page, "here": here, "given": given, **await page.load(api, given)}
        except ApiError as error:
            return await self._show_problem(api, error, here, is_part=_is_part(scope))
        saved = given.get("saved", "")
        values |= {"outcome": None, "saved": saved if saved.isdigit() else ""}
        if page.every_s and _is_part(scope):
            return await self._render_part(page.template, "live", values)
        return await self._render_page(page.template, 200, values)

    async def _handle_form(
        self,
        api: ApiClient,
        page: pages.ConsolePage,
        given: Mapping[str, str],
        form: Mapping[str, str],
        *,
        is_part: bool,
    ) -> _ConsoleResponse:
        here = make_url(page.path, **{name: value for name, value in given.items() if name != "saved"})
        try:
            common = await self._load_common(api)
            outcome = await edits.make_edit(api, page.path, given, form, common["status"]["at_ms"])
            if outcome.done:
                return _redirect(make_url(page.path, **{**given, "saved": str(outcome.version)}))
            values = {**common, "page": page, "here": here, "given": given, "outcome": outcome, "saved": ""}
            if is_part:
                return await self._render_part("parts.html", "outcome", values)
            status = 422 if outcome.problem else 200
            return await self._render_page(page.template, status, {**values, **await page.load(api, given)})
        except ApiError as error:
            return await self._show_problem(api, error, here, is_part=is_part)

    async def _load_common(self, api: ApiClient) -> dict[str, Any]:
        """What every page shows: who looks at it, and the gateway in short."""
        session = await api.get("/v1/session")
        api.csrf = session["csrf_token"]
        return {"session": session, "status": await api.get("/v1/status")}

    async def _show_problem(self, api: ApiClient, error: ApiError, here: str, *, is_part: bool) -> _ConsoleResponse:
        if error.status == 401:
            login = make_url(LOGIN, next=here)
            if is_part:  # htmx would follow a redirect, and show the login inside of the page, anew with each look
                return _text_response(401, "log in first", ((b"hx-redirect", login.encode()),))
            return _redirect(login)
        try:
            common = await self._load_common(api)
        except ApiError:
            return _text_response(error.status, error.detail)
        title = HTTPStatus(error.status).phrase
        page = pages.ConsolePage("", "problem.html", title, pages.load_overview)
        values = {**common, "page": page, "here": here, "error": error, "outcome": None, "saved": ""}
        return await self._render_page("problem.html", error.status, values)

    async def _render_page(self, template: str, status: int, values: Mapping[str, Any]) -> _ConsoleResponse:
        text = await trio.to_thread.run_sync(self._templates.render_page, template, {**self._shared, **values})
        return _ConsoleResponse(
            status, _HTML, text.encode(), ((b"cache-control", b"no-store"), (b"vary", b"hx-request"))
        )

    async def _render_part(self, template: str, block: str, values: Mapping[str, Any]) -> _ConsoleResponse:
        text = await trio.to_thread.run_sync(self._templates.render_block, template, block, {**self._shared, **values})
        return _ConsoleResponse(200, _HTML, text.encode(), ((b"cache-control", b"no-store"), (b"vary", b"hx-request")))

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def _log_in(self, api: ApiClient, form: Mapping[str, str]) -> _ConsoleResponse:
        place = form.get("next", "")
        try:
            await api.send(AdminRequest("POST", "/v1/session", body={"token": form.get("token", "").strip()}))
        except ApiError as error:
            problem = "Bring a token." if error.status == 422 else error.detail
            status = 401 if error.status == 422 else error.status
            return await self._render_page("login.html", status, {"next": place, "problem": problem})
        return _redirect(_own_path(place), tuple(api.cookies))

    # --- files --------------------------------------------------------------------------------------------------------

    def _serve_file(self, path: str, given: Mapping[str, str]) -> _ConsoleResponse:
        """For ever under the address that has its version."""
        found = self._files[path]
        is_versioned = given.get("v") == found.version
        keep = b"public, max-age=31536000, immutable" if is_versioned else b"no-cache"
        return _ConsoleResponse(200, found.kind, found.body, ((b"cache-control", keep),))


@functools.cache
def _load_templates() -> ConsoleTemplates:
    return ConsoleTemplates()


def _own_path(place: str) -> str:
    """A path of this server's; a browser reads "//host" and "/\\host" as another one's."""
    is_path = place.startswith("/") and not place.startswith(("//", "/\\")) and place.isprintable()
    return place if is_path and place.isascii() else pages.ROOT


def _load_file(name: str) -> _StaticFile:
    body = (resources.files("gateway.control.admin.console") / "static" / name).read_bytes()
    return _StaticFile(_MEDIA_TYPES[name.rpartition(".")[2]], body, hashlib.sha256(body).hexdigest()[:12])


def _is_part(scope: Any) -> bool:
    return any(name == b"hx-request" for name, _ in scope["headers"])


def _redirect(place: str, headers: tuple[Header, ...] = ()) -> _ConsoleResponse:
    return _ConsoleResponse(303, "", b"", ((b"location", place.encode()), (b"cache-control", b"no-store"), *headers))


def _not_allowed() -> _ConsoleResponse:
    return _text_response(405, "this page does not support that method")


def _text_response(status: int, text: str, headers: tuple[Header, ...] = ()) -> _ConsoleResponse:
    return _ConsoleResponse(
        status, "text/plain; charset=utf-8", f"{text}\n".encode(), ((b"cache-control", b"no-store"), *headers)
    )
