# Where this worker's connections come from: one that is on its way, how many there are from each address, and how many
# have ended that control has not been told of. Control counts by the same addresses over all workers.

from __future__ import annotations

import socket
from collections import Counter

from gateway.channel import Accepted
from gateway.system.sockets import host_of_peer
from protocol.proxy_header import Ends


class Arriving:
    """A client's connection on its way to a broker.

    Attributes:
        accepted: what control said of it.
        id: of this connection in the log and in the list of connections.
        peer: "address:port" of the client, as far as known.
        address: what it is counted by.
        passed_on: the ends of the connection that a proxy passes on; None: the client is connected to this machine.
        is_refused: control has refused it, and counts it no more.
    """

    __slots__ = ("accepted", "address", "client", "id", "is_refused", "passed_on", "peer")

    def __init__(self, accepted: Accepted, client: socket.socket, id: str = "") -> None:
        self.accepted = accepted
        self.id = id
        self.client = client
        self.peer = accepted.peer
        self.address = accepted.address
        self.passed_on: Ends | None = None
        self.is_refused = False

    @property
    def ends(self) -> Ends:
        """The client's, and the one that it is connected to."""
        if self.passed_on is not None:
            return self.passed_on
        own = self.client.getsockname()
        return Ends((host_of_peer(self.peer), int(self.peer.rpartition(":")[2])), (own[0], own[1]))

    def fields(self, kind: str, reason: str) -> dict[str, str | int]:
        """For a line of the log about it (gateway.log.logs.FIELDS)."""
        about: dict[str, str | int] = {
            "kind": kind,
            "reason": reason,
            "peer": self.peer,
            "listener": self.accepted.listener,
        }
        return {**about, "connection": self.id} if self.id else about


class Addresses:
    """
    Attributes:
        ended: by address, connections that have ended since control was told.
    """

    def __init__(self) -> None:
        self._present: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def begin(self) -> dict[str, int]:
        """There is a new control; by address, the connections that it has to know of."""
        self.ended.clear()
        return dict(self._present)

    def add(self, address: str) -> None:
        """There is one more."""
        self._present[address] += 1

    def end(self, address: str, *, is_told: bool = True) -> None:
        """One of them has ended; control has to be told, unless it knows."""
        self._take(address)
        if is_told:
            self.ended[address] += 1

    def move(self, before: str, address: str) -> None:
        """One of them turned out to come from elsewhere; control has to be told at once."""
        self._take(before)
        self._present[address] += 1

    def _take(self, address: str) -> None:
        self._present[address] -= 1
        if not self._present[address]:
            del self._present[address]
