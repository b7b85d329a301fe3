# The errors that end connections, by whose fault that is, and under which name each is counted.

from __future__ import annotations

from gateway.data.shared.admin_turn import ControlFailed
from protocol import produce_request
from protocol.framing import TooLarge
from protocol.identity import AmbiguousIdentity
from protocol.wire import MalformedFrame, TooManyTags


class UpstreamError(Exception):
    """The broker's bytes can't be matched with the requests: both sides are closed."""


class Excluded(UpstreamError):
    """The gateway turns away a client that the broker accepted: it is neither's mistake."""


class IdentityChanged(Excluded):
    """The broker accepted another principal on a connection that has one: it is closed."""


class TooManyConnections(Excluded):
    """Its principal has as many connections as one may have."""


class SpeaksTls(UpstreamError):
    """The broker answers with an alert of TLS: it speaks that, and we were told that it doesn't."""


class Unauthenticated(MalformedFrame):
    """A request that has to come behind authentication, or makes no sense before it."""


class AuthenticationFailed(Unauthenticated):
    """SASL ended at the gateway, and not well; the client has been told."""


_REASONS: dict[type[Exception], str] = {
    Unauthenticated: "disconnects_unauthenticated",
    AmbiguousIdentity: "disconnects_identity",
    IdentityChanged: "disconnects_identity",
    TooManyConnections: "disconnects_principal_limit",
    TooLarge: "disconnects_too_large",
    produce_request.TooManyPartitions: "disconnects_too_large",
    TooManyTags: "disconnects_too_large",
    UpstreamError: "disconnects_upstream",
    ControlFailed: "disconnects_error",
}


def close_reason(error: Exception) -> str:
    """The name under which the end of a connection because of `error` is counted: one of gateway.channel.COUNTS."""
    return next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "disconnects_malformed")
