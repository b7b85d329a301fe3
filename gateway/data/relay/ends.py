# What the log and the counters say of connections that end before their peers end them.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.data.shared.errors import Excluded, SpeaksTls
from gateway.tls.broker_tls import SPEAKS_TLS

if TYPE_CHECKING:
    from gateway.data.shared.client import Client

CLOSED: Final = "connection-closed"  # the kind of such lines


class EndLog:
    """Tells why one connection ends: to the counters and to the log. `connection`: its id there."""

    __slots__ = ("_client", "_peer", "connection")

    def __init__(self, client: Client, peer: str) -> None:
        self._client = client
        self._peer = peer
        self.connection = ""

    def closed(self, kind: str, what: str) -> None:
        """The gateway closes it for that reason."""
        software = self._client.software
        who = f"{self._peer} ({software[0]} {software[1]})" if software else self._peer
        self._client.world.complain(kind, f"{who}: connection closed: {what}", self._fields(kind))

    def _fields(self, reason: str) -> dict[str, str | int]:
        client = self._client
        principal, client_id = client.names
        return {
            "kind": CLOSED,
            "reason": reason,
            "connection": self.connection,
            "peer": self._peer,
            "listener": client.listener,
            "broker": client.node_id,
            "principal": principal,
            "client_id": client_id,
            "software": " ".join(client.software or ()),
        }

    def malformed(self, what: str) -> None:
        """The client sent bytes that are no request."""
        self._client.world.ledger.count("requests_malformed")
        self.closed("malformed", what)

    def by_broker(self, error: Exception) -> None:
        """The broker's bytes can't be passed on."""
        if isinstance(error, Excluded):
            self.closed("excluded", str(error))
            return
        world = self._client.world
        if isinstance(error, SpeaksTls):
            node_id = self._client.node_id
            world.complain(
                f"broker {node_id} speaks TLS",
                f"{self._peer}: broker {node_id}: connection closed: {SPEAKS_TLS}",
                self._fields("upstream"),
            )
            world.ledger.count("upstream_failed")
            return
        text = f"{self._peer}: broker {self._client.node_id} sent {error}: connection closed"
        world.log("error", text, self._fields("upstream"))
        world.ledger.count("upstream_failed")
