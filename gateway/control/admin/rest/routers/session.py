# Sessions of browsers: begun with a token, ended by a logout; and who one is, which programs may ask as well. The
# session itself is the gate's (access/).

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gateway.access_tokens.tokens import MAX_TOKEN_LENGTH
from gateway.control.access.caller import AdminCaller, caller_of
from gateway.control.access.gate import LoginOutcome, gate_of
from gateway.control.admin.rest.dependencies import make_router
from gateway.control.admin.rest.problems import problem_response

router: Final = make_router()


class GivenToken(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=MAX_TOKEN_LENGTH)


class ShownCaller(BaseModel):
    """`name`: of the token, or the certificate's principal; "": unknown. `identified`: it has proven who it is, or that
    it is on this machine where there are no credentials. `csrf_token`: to be sent with changes; "": no session.
    """

    name: str
    role: Annotated[str, BeforeValidator(lambda role: role.label)]
    identified: bool
    how: str = Field(validation_alias="auth_method")
    csrf_token: str = Field(validation_alias="csrf")


@router.post("/v1/session", response_model=ShownCaller)
async def log_in(given: GivenToken, request: Request, response: Response) -> Response | AdminCaller:
    """Begin a session: the answer has its cookie."""
    outcome = await gate_of(request.scope).log_in(request.scope, given.token)
    if outcome.caller is None:
        wait = {"Retry-After": str(outcome.retry_after_s)} if outcome.retry_after_s else None
        return problem_response(outcome.status, outcome.problem, headers=wait)
    _add_headers(response, outcome)
    return outcome.caller


@router.get("/v1/session", response_model=ShownCaller)
async def get_caller(request: Request) -> AdminCaller:
    """Who asks, and what that one may."""
    return caller_of(request.scope)


@router.delete("/v1/session", status_code=204, response_model=None)
async def log_out(request: Request, response: Response) -> None:
    """End the session."""
    _add_headers(response, gate_of(request.scope).log_out(request.scope))


def _add_headers(response: Response, outcome: LoginOutcome) -> None:
    for name, value in outcome.headers:
        response.headers.append(name.decode(), value.decode())
