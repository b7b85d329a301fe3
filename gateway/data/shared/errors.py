# The errors that end connections, by whose fault that is, and under which name each is counted.

from __future__ import annotations

from gateway.data.shared.admin_turn import ControlFailed
from protocol.framing import RequestTooLarge
from protocol.produce import produce_request
from protocol.rewriting.identity import AmbiguousIdentity
from protocol.wire import MalformedFrame, TooManyTags


class UpstreamError(Exception):
    """The broker's bytes can't be matched with the requests: both sides are closed."""


class ClientExcluded(UpstreamError):
    """The gateway refuses a client that the broker accepted; neither side is at fault."""


class IdentityChanged(ClientExcluded):
    """The broker accepted another principal on a connection that already has one: it is closed."""


class TooManyConnections(ClientExcluded):
    """The client's principal has as many connections as it may have."""


class BrokerSpeaksTls(UpstreamError):
    """The broker answered with a TLS alert: it speaks TLS, but the configuration says that it doesn't."""


class UnauthenticatedRequest(MalformedFrame):
    """A request that must come after authentication, or that is out of order before it."""


class AuthenticationFailed(UnauthenticatedRequest):
    """SASL at the gateway failed; the client has its answer."""


_CLOSE_REASONS: dict[type[Exception], str] = {
    UnauthenticatedRequest: "disconnects_unauthenticated",
    AmbiguousIdentity: "disconnects_identity",
    IdentityChanged: "disconnects_identity",
    TooManyConnections: "disconnects_principal_limit",
    RequestTooLarge: "disconnects_too_large",
    produce_request.TooManyPartitions: "disconnects_too_large",
    TooManyTags: "disconnects_too_large",
    UpstreamError: "disconnects_upstream",
    ControlFailed: "disconnects_error",
}


def close_reason(error: Exception) -> str:
    """The counter (one of gateway.channel.COUNT_NAMES) of connections that end because of such an error."""
    return next((reason for kind, reason in _CLOSE_REASONS.items() if isinstance(error, kind)), "disconnects_malformed")
