# The API's answers to requests that it can't fulfil: problem documents (RFC 9457) that say what is wrong, where, and
# what would be right. Knows no path and no policy.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator
from starlette.exceptions import HTTPException

from gateway.control.policies.store import StoreError
from gateway.policy_document import DocumentError
from gateway.validation_text import describe_finding
from policies.definitions.policy_values import InvalidPolicy, PolicyError
from policies.quotas.names import QuotaError

MEDIA_TYPE: Final = "application/problem+json"
MAX_ERRORS: Final = 100


def _make_encodable(value: object) -> object:
    """JSON may bring half a character, which no answer can hold as it is."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_make_encodable)]


class Finding(BaseModel):
    """`where`: a path into the request, or a policy's key."""

    where: _Text
    what: _Text


class Problem(BaseModel):
    """RFC 9457. `errors`: each fault, with a right value."""

    type: str = "about:blank"
    title: str
    status: int
    detail: _Text
    errors: list[Finding] = []


ERROR_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": Problem} for code in (400, 401, 403, 404, 412, 413, 415, 422, 429, 503)
}


class RequestRefused(HTTPException):
    """The request can't be, for these reasons."""

    def __init__(self, detail: str, errors: list[Finding], status: int = 422) -> None:
        super().__init__(status, detail)
        self.errors = errors


def install_handlers(app: FastAPI) -> None:
    """Let every error of this application be a problem document."""
    app.exception_handler(HTTPException)(_on_http)
    app.exception_handler(RequestValidationError)(_on_invalid)
    for kind in (PolicyError, InvalidPolicy, QuotaError, DocumentError, StoreError):
        app.exception_handler(kind)(_on_refused)
    app.exception_handler(Exception)(_on_bug)


def problem_response(
    status: int, detail: str, errors: Iterable[Finding] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=list(errors))
    return JSONResponse(problem.model_dump(), status, headers, MEDIA_TYPE)


async def _on_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code == 404 and detail == "Not Found":
        detail = "no such path: GET /openapi.json lists them"
    elif error.status_code == 405:
        detail = f"here are {(error.headers or {}).get('Allow') or 'other methods'}: see GET /openapi.json"
    elif error.status_code == 400:
        detail = "the body can't be read as JSON"
    return problem_response(error.status_code, detail, getattr(error, "errors", ()), error.headers)


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = []
    unreadable = False
    for each in error.errors()[:MAX_ERRORS]:
        unreadable |= each["type"] == "json_invalid"
        what = describe_finding(each)
        if each["type"] == "json_invalid":
            what = f"no JSON: {each['ctx']['error']} at character {each['loc'][-1]}"
        found.append(Finding(where=".".join(map(str, each["loc"])), what=what))
    return problem_response(400 if unreadable else 422, "the request can't be understood: nothing was done", found)


async def _on_refused(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, StoreError):
        return problem_response(503, f"policies can't be changed just now: {error}")
    if isinstance(error, PolicyError):
        return problem_response(
            422, "refused, nothing was changed", [Finding(where=str(f.key), what=f.message) for f in error.faults]
        )
    if isinstance(error, DocumentError):
        found = [Finding(where=where, what=what) for where, what in error.findings]
        return problem_response(422, "the document can't be used, nothing was changed", found)
    return problem_response(422, str(error))


async def _on_bug(_: Request, error: Exception) -> JSONResponse:
    return problem_response(500, "a fault of the gateway's own: its log says more")
