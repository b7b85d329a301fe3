# Who asks. The gate puts it into each request's scope; endpoints read it from there. Knows no credentials.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.access_tokens.roles import AccessRole

CALLER_KEY: Final = "produce-gateway.caller"  # in a scope

AuthMethod = Literal["token", "session", "certificate", "machine", "open", "anonymous"]


@dataclass(frozen=True)
class AdminCaller:
    """
    Attributes:
        name: of the token's holder, or the certificate's principal; "": unknown.
        identified: it has proven who it is; or, on a gateway without credentials, that it is on this machine.
        auth_method: open: from another machine, on a gateway without credentials.
        csrf: what a change by this session's pages has to bring; "": no session.
    """

    name: str
    role: AccessRole
    identified: bool
    auth_method: AuthMethod
    csrf: str = ""


UNKNOWN_CALLER: Final = AdminCaller("", AccessRole.NONE, False, "anonymous")


def caller_of(scope: Mapping[str, Any]) -> AdminCaller:
    found = scope.get(CALLER_KEY, UNKNOWN_CALLER)
    assert isinstance(found, AdminCaller)
    return found
