# Who asks. The gate puts it into each request's scope; endpoints read it from there. Knows no credentials.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.access_tokens.roles import Role

KEY: Final = "produce-gateway.caller"  # in a scope

How = Literal["token", "session", "certificate", "machine", "open", "anonymous"]


@dataclass(frozen=True)
class Caller:
    """
    Attributes:
        name: of the token's holder, or the certificate's principal; "": unknown.
        identified: it has proven who it is; or, on a gateway without credentials, that it is on this machine.
        how: open: from another machine, on a gateway without credentials.
        csrf: what a change by this session's pages has to bring; "": no session.
    """

    name: str
    role: Role
    identified: bool
    how: How
    csrf: str = ""


UNKNOWN: Final = Caller("", Role.NONE, False, "anonymous")


def caller_of(scope: Mapping[str, Any]) -> Caller:
    found = scope.get(KEY, UNKNOWN)
    assert isinstance(found, Caller)
    return found
