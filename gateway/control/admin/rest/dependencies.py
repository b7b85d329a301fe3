# What endpoints are handed beside their own parameters, as FastAPI's dependencies: the gateway, the facts about its
# traffic, and who sends the request. A change has an author, and may be more than this one has the rights for.

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import unquote

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from starlette.exceptions import HTTPException

from gateway.access_tokens.roles import AccessRole
from gateway.control.access.caller import caller_of
from gateway.control.access.gate import gate_of
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.admin.rest.facts import TrafficFacts
from gateway.control.admin.rest.json_bodies import StrictJsonRoute
from gateway.control.admin.rest.models import MAX_NAME, Validation
from gateway.control.admin.rest.problems import ERROR_RESPONSES, Finding, RequestRefused
from gateway.http.admin_api import USER_HEADER
from gateway.system.sockets import address_text
from policies.definitions.policy_records import ChangeSource

DAY_S: Final = 86400.0
TEMPORARY_S: Final = 7 * DAY_S  # an on-call's: until the next working day, and not for ever


def set_context(app: FastAPI, gateway: GatewayContext) -> None:
    """The gateway that the endpoints of this application are about."""
    app.state.gateway, app.state.facts = gateway, TrafficFacts(gateway)


# FastAPI runs a dependency that isn't async in a thread.


def make_router() -> APIRouter:
    """For the endpoints of a resource."""
    return APIRouter(
        responses=ERROR_RESPONSES,
        route_class=StrictJsonRoute,
        dependencies=[Depends(_refuse_needless_values)],
    )


async def _refuse_needless_values(request: Request) -> None:
    """An endpoint that has parameters, or a body, refuses other ones by its model. One that has none would pass over
    all of them: a change with ?validate_only=true, where the body has that field, would be made.
    """
    route = request.scope["route"]
    names = [*request.query_params]
    if names and not route.dependant.query_params:
        in_body = ": write it into the body" if route.body_field else ""
        what = f"unknown: {names[0][:MAX_NAME]!r}; {request.method} takes no parameters here{in_body}"
        raise RequestRefused("the request can't be understood: nothing was done", [Finding(where="query", what=what)])
    if not route.body_field and b":" in await request.body():  # a field; some send {} or ""
        what = f"{request.method} takes no body here"
        raise RequestRefused("the request can't be understood: nothing was done", [Finding(where="body", what=what)])


async def _gateway_of(request: Request) -> GatewayContext:
    gateway: GatewayContext = request.app.state.gateway
    return gateway


async def _facts_of(request: Request) -> TrafficFacts:
    facts: TrafficFacts = request.app.state.facts
    return facts


class RequestAuthor:
    """Who sends a request.

    Attributes:
        source: by token or certificate; else the caller's own word, which nothing checks: the log has the address
            beside it.
    """

    def __init__(self, request: Request) -> None:
        who = caller_of(request.scope).name or unquote(request.headers.get(USER_HEADER, ""))[:MAX_NAME]
        self.source = ChangeSource(who, "rest", _peer_of(request))
        self._request = request

    def missing_rights(self, least: AccessRole, *, identified: bool = False) -> str:
        """See AccessGate.missing_rights."""
        return gate_of(self._request.scope).missing_rights(self._request.scope, least, identified=identified)

    def check_lasting(self, until_ms: int | None, *, preview: bool, removes: bool = False) -> None:
        """What soon ends by itself, and what is only tried out, is an operator's; the rest is an admin's. `removes`:
        the change also removes values, which no end brings back.

        Raises:
            HTTPException: 403, the caller is none.
        """
        now_s = self._request.app.state.gateway.clock()
        is_soon = until_ms is not None and until_ms / 1000 - now_s <= TEMPORARY_S
        missing = "" if preview or (is_soon and not removes) else self.missing_rights(AccessRole.ADMIN)
        if missing:
            days = f"{TEMPORARY_S / DAY_S:g} days"
            text = f"{missing}; with until, at most {days} from now, those of operator are enough"
            raise HTTPException(403, f"{text} to set values, not to remove any" if removes else text)


async def _author_of(request: Request) -> RequestAuthor:
    return RequestAuthor(request)


def _peer_of(request: Request) -> str:
    """Of a client behind a proxy no port is known."""
    if request.client is None:
        return ""
    host, port = request.client
    return address_text(host, port) if port else host


Gateway = Annotated[GatewayContext, Depends(_gateway_of)]
Facts = Annotated[TrafficFacts, Depends(_facts_of)]
Requester = Annotated[RequestAuthor, Depends(_author_of)]
How = Annotated[Validation, Query()]
