# What the log and the counters say of connections that end before their peers end them.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.data.shared.errors import BrokerSpeaksTls, ClientExcluded
from gateway.system.sockets import broker_text
from gateway.tls.broker_tls import SPEAKS_TLS

if TYPE_CHECKING:
    from gateway.data.shared.client import ConnectedClient

CONNECTION_CLOSED: Final = "connection-closed"  # the kind of such lines


class DisconnectLog:
    """Counts and logs why one connection ends. `connection_id`: its id in the log."""

    __slots__ = ("_client", "_peer", "connection_id")

    def __init__(self, client: ConnectedClient, peer: str) -> None:
        self._client = client
        self._peer = peer
        self.connection_id = ""

    def log_close(self, kind: str, what: str) -> None:
        """The gateway closes the connection for that reason."""
        software = self._client.software
        who = f"{self._peer} ({software[0]} {software[1]})" if software else self._peer
        self._client.world.log_client_warning(kind, f"{who}: connection closed: {what}", self._log_fields(kind))

    def _log_fields(self, reason: str) -> dict[str, str | int]:
        client = self._client
        principal, client_id = client.counted_names
        return {
            "kind": CONNECTION_CLOSED,
            "reason": reason,
            "connection": self.connection_id,
            "peer": self._peer,
            "listener": client.listener,
            "broker": client.node_id,
            "principal": principal,
            "client_id": client_id,
            "software": " ".join(client.software or ()),
        }

    def log_malformed(self, what: str) -> None:
        """The client's bytes are not a valid request."""
        self._client.world.ledger.count_event("requests_malformed")
        self.log_close("malformed", what)

    def log_broker_fault(self, error: Exception) -> None:
        """The broker's bytes can't be passed on to the client."""
        if isinstance(error, ClientExcluded):
            self.log_close("excluded", str(error))
            return
        world = self._client.world
        broker = broker_text(self._client.node_id)
        if isinstance(error, BrokerSpeaksTls):
            world.log_client_warning(
                f"{broker} speaks TLS",
                f"{self._peer}: {broker}: connection closed: {SPEAKS_TLS}",
                self._log_fields("upstream"),
            )
            world.ledger.count_event("upstream_failed")
            return
        text = f"{self._peer}: {broker} sent {error}: connection closed"
        world.log("error", text, self._log_fields("upstream"))
        world.ledger.count_event("upstream_failed")
