# The errors that end connections, by whose fault that is, and under which name each is counted.

from __future__ import annotations

from gateway.data.shared.admin_turn import ControlFailed
from protocol import produce_request
from protocol.framing import RequestTooLarge
from protocol.identity import AmbiguousIdentity
from protocol.wire import MalformedFrame, TooManyTags


class UpstreamError(Exception):
    """The broker's bytes can't be matched with the requests: both sides are closed."""


class ClientExcluded(UpstreamError):
    """The gateway turns away a client that the broker accepted: it is neither's mistake."""


class IdentityChanged(ClientExcluded):
    """The broker accepted another principal on a connection that has one: it is closed."""


class TooManyConnections(ClientExcluded):
    """Its principal has as many connections as one may have."""


class BrokerSpeaksTls(UpstreamError):
    """The broker answers with an alert of TLS: it speaks that, and we were told that it doesn't."""


class UnauthenticatedRequest(MalformedFrame):
    """A request that has to come behind authentication, or makes no sense before it."""


class AuthenticationFailed(UnauthenticatedRequest):
    """SASL ended at the gateway, and not well; the client has been told."""


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
    """The one of gateway.channel.COUNT_NAMES under which the end of a connection because of `error` is counted."""
    return next((reason for kind, reason in _CLOSE_REASONS.items() if isinstance(error, kind)), "disconnects_malformed")
