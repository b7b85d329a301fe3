# Why connections end before their peers end them: by whose fault, under which name that is counted, and what the log
# says.

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import produce_request
from protocol.framing import TooLarge
from protocol.identity import AmbiguousIdentity
from protocol.wire import MalformedFrame, TooManyTags

if TYPE_CHECKING:
    from gateway.data.gate import Gate


class UpstreamError(Exception):
    """The broker said something that can't be matched with what was asked: both sides are closed."""


class Excluded(UpstreamError):
    """What the broker accepted, the gateway doesn't: it is neither's mistake."""


class IdentityChanged(Excluded):
    """The broker accepted another principal on a connection that has one: it is closed."""


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


class EndLog:
    """Tells why one connection ends: to the counters and to the log."""

    __slots__ = ("_gate", "_peer")

    def __init__(self, gate: Gate, peer: str) -> None:
        self._gate = gate
        self._peer = peer

    def closed(self, kind: str, what: str) -> None:
        """The gateway closes it for that reason."""
        software = self._gate.software
        who = f"{self._peer} ({software[0]} {software[1]})" if software else self._peer
        self._gate.world.complain(kind, f"{who}: connection closed: {what}")

    def malformed(self, what: str) -> None:
        """The client sent something that is no request."""
        self._gate.world.ledger.count("requests_malformed")
        self.closed("malformed", what)

    def by_broker(self, error: Exception) -> None:
        """What the broker sent can't be passed on."""
        if isinstance(error, Excluded):
            self.closed("excluded", str(error))
            return
        world = self._gate.world
        world.log("error", f"{self._peer}: broker {self._gate.node_id} sent {error}: connection closed")
        world.ledger.count("upstream_failed")
