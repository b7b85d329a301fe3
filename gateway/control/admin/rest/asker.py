# Who asks, as changes are noted down with it, and whether a change is more than the asker may make.

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from fastapi import Request
from starlette.exceptions import HTTPException

from gateway.access_tokens.roles import AccessRole
from gateway.control.access.caller import caller_of
from gateway.control.access.gate import gate_of
from gateway.control.admin.rest.context import GatewayContext
from gateway.system.sockets import address_text
from policies.definitions.policy_records import ChangeSource

USER_HEADER: Final = "produce-gateway-user"  # the user of a command, percent-encoded; not verified
MAX_NAME: Final = 200
DAY_S: Final = 86400.0
TEMPORARY_S: Final = 7 * DAY_S  # an on-call's: until the next working day, and not for ever


def source_of(request: Request) -> ChangeSource:
    """Who asks, by token or certificate; else the asker's own word, which nothing checks: the log has the address
    beside it.
    """
    who = caller_of(request.scope).name or unquote(request.headers.get(USER_HEADER, ""))[:MAX_NAME]
    return ChangeSource(who, "rest", _peer_of(request))


def _peer_of(request: Request) -> str:
    """Of a client behind a proxy no port is known."""
    if request.client is None:
        return ""
    host, port = request.client
    return address_text(host, port) if port else host


def check_lasting(request: Request, until_ms: int | None, gateway: GatewayContext, *, preview: bool) -> None:
    """What soon ends by itself, and what is only tried out, is an operator's; the rest is an admin's.

    Raises:
        HTTPException: 403, the caller is none.
    """
    is_soon = until_ms is not None and until_ms / 1000 - gateway.clock() <= TEMPORARY_S
    missing = "" if preview or is_soon else gate_of(request.scope).missing_rights(request.scope, AccessRole.ADMIN)
    if missing:
        days = f"{TEMPORARY_S / DAY_S:g} days"
        raise HTTPException(403, f"{missing}; with until, at most {days} from now, those of operator are enough")
