# Where this worker's connections come from: one that is on its way, how many there are from each address, and how many
# have ended that control doesn't know of. Control counts by the same addresses over all workers.

from __future__ import annotations

import socket
from collections import Counter

from gateway.channel import AcceptedConnection
from gateway.system.sockets import host_of_peer
from protocol.proxy_header import ConnectionEnds


class ArrivingConnection:
    """A client's connection on its way to a broker.

    Attributes:
        accepted: control's message about it.
        connection_id: its id in the log and in the list of connections.
        peer: "address:port" of the client, as far as known.
        address: the address under which it is counted.
        proxied_endpoints: the two ends of the connection that a proxy forwards; None: the client is connected to this
            machine.
        is_refused: control has refused it, and no longer counts it.
    """

    __slots__ = ("accepted", "address", "client", "connection_id", "is_refused", "peer", "proxied_endpoints")

    def __init__(self, accepted: AcceptedConnection, client: socket.socket, id: str = "") -> None:
        self.accepted = accepted
        self.connection_id = id
        self.client = client
        self.peer = accepted.peer
        self.address = accepted.address
        self.proxied_endpoints: ConnectionEnds | None = None
        self.is_refused = False

    @property
    def endpoints(self) -> ConnectionEnds:
        """The client's address and port, and those that it is connected to."""
        if self.proxied_endpoints is not None:
            return self.proxied_endpoints
        own = self.client.getsockname()
        return ConnectionEnds((host_of_peer(self.peer), int(self.peer.rpartition(":")[2])), (own[0], own[1]))

    def log_fields(self, kind: str, reason: str) -> dict[str, str | int]:
        """Fields of a log line about this connection (gateway.log.logs.FIELDS)."""
        about: dict[str, str | int] = {
            "kind": kind,
            "reason": reason,
            "peer": self.peer,
            "listener": self.accepted.listener,
        }
        return {**about, "connection": self.connection_id} if self.connection_id else about


class AddressCounts:
    """Counts a worker's open connections by client address, for control's limits.

    Attributes:
        ended_counts: by address, connections that have ended since the last report to control; below 0: some were
            reported that control had counted itself.
    """

    def __init__(self) -> None:
        self._open_counts: Counter[str] = Counter()
        self.ended_counts: Counter[str] = Counter()

    def reset_for_control(self) -> dict[str, int]:
        """Start over for a new control process; returns the open connections by address, which control has to know."""
        self.ended_counts.clear()
        return dict(self._open_counts)

    def add_connection(self, address: str) -> None:
        """Count one more connection from this address."""
        self._open_counts[address] += 1

    def remove_connection(self, address: str, *, is_told: bool = True) -> None:
        """One connection from this address has ended. `is_told`: whether the next report to control has it."""
        self._decrement_count(address)
        if is_told:
            self.ended_counts[address] += 1

    def record_refusal(self, address: str) -> None:
        """Control refused a connection that had ended before: both have counted its end."""
        self.ended_counts[address] -= 1

    def move_connection(self, before: str, address: str) -> None:
        """A connection turned out to come from another address; the caller reports that to control at once."""
        self._decrement_count(before)
        self._open_counts[address] += 1

    def _decrement_count(self, address: str) -> None:
        self._open_counts[address] -= 1
        if not self._open_counts[address]:
            del self._open_counts[address]
