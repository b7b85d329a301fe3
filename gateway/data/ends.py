# Why connections end before their peers end them: by whose fault, and under which name that is counted.

from __future__ import annotations

from protocol import produce_request
from protocol.framing import TooLarge
from protocol.identity import AmbiguousIdentity
from protocol.wire import MalformedFrame, TooManyTags


class UpstreamError(Exception):
    """The broker said something that can't be matched with what was asked: both sides are closed."""


class Excluded(UpstreamError):
    """What the broker accepted, the gateway doesn't: it is neither's mistake."""


class IdentityChanged(Excluded):
    """The broker accepted somebody else on a connection that it had accepted somebody on: it is closed."""


class TooManyConnections(Excluded):
    """Its principal has as many connections as one may have."""


class Unauthenticated(MalformedFrame):
    """A request that has to come behind authentication, or makes no sense before it."""


_REASONS: dict[type[Exception], str] = {
    Unauthenticated: "disconnects_unauthenticated",
    AmbiguousIdentity: "disconnects_identity",
    IdentityChanged: "disconnects_identity",
    TooManyConnections: "disconnects_principal_limit",
    TooLarge: "disconnects_too_large",
    produce_request.TooManyPartitions: "disconnects_too_large",
    TooManyTags: "disconnects_too_large",
    UpstreamError: "disconnects_upstream",
}


def close_reason(error: Exception) -> str:
    """What the end of a connection because of `error` is counted under: one of gateway.channel.COUNTS."""
    return next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "disconnects_malformed")
