# Sessions of browsers: begun with a token, ended by a logout; and who one is, which programs may ask as well. The
# session itself is the gate's (access/).

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.access_tokens.tokens import MAX_TOKEN_LENGTH
from gateway.control.access.caller import AdminCaller, caller_of
from gateway.control.access.gate import LoginOutcome, gate_of
from gateway.control.admin.rest.problems import problem_response


class GivenToken(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=MAX_TOKEN_LENGTH)


class ShownCaller(BaseModel):
    """`name`: of the token, or the certificate's principal; "": unknown. `identified`: it has proven who it is, or that
    it is on this machine where there are no credentials. `csrf_token`: to be sent with changes; "": no session.
    """

    name: str
    role: str
    identified: bool
    how: str
    csrf_token: str


def add_paths(app: FastAPI) -> None:
    @app.post("/v1/session", response_model=ShownCaller)
    async def log_in(given: GivenToken, request: Request, response: Response) -> Response | ShownCaller:
        """Begin a session: the answer has its cookie."""
        answered = await gate_of(request.scope).log_in(request.scope, given.token)
        if answered.caller is None:
            wait = {"Retry-After": str(answered.retry_after_s)} if answered.retry_after_s else None
            return problem_response(answered.status, answered.problem, headers=wait)
        _add_headers(response, answered)
        return _show_caller(answered.caller)

    @app.get("/v1/session")
    async def get_caller(request: Request) -> ShownCaller:
        """Who asks, and what that one may."""
        return _show_caller(caller_of(request.scope))

    @app.delete("/v1/session", status_code=204)
    async def log_out(request: Request, response: Response) -> None:
        """End the session."""
        _add_headers(response, gate_of(request.scope).log_out(request.scope))


def _add_headers(response: Response, answered: LoginOutcome) -> None:
    for name, value in answered.headers:
        response.headers.append(name.decode(), value.decode())


def _show_caller(caller: AdminCaller) -> ShownCaller:
    return ShownCaller(
        name=caller.name,
        role=caller.role.label,
        identified=caller.identified,
        how=caller.auth_method,
        csrf_token=caller.csrf,
    )
