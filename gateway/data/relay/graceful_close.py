# The end of a connection that the gateway ends of its own accord: all that was forwarded is answered, the client is
# told that nothing more comes, and its last bytes are read until it has closed its half. So acks=0, which its client
# takes for sent, is forwarded; and no unread bytes make the kernel reset the connection, which may take answers with
# it. All else that still comes is discarded: the client sends it again on its next connection.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.data.session.session import ClientSession
    from gateway.data.sockets.sides import LinkSide

LINGER_S = 1.0  # that a client has to close its half


class GracefulClose:
    """Of one connection, from when nothing more is taken from its client."""

    __slots__ = ("_client", "_linger_until", "_session")

    def __init__(self, client: LinkSide, session: ClientSession) -> None:
        session.hold.is_draining = True
        self._client = client
        self._session = session
        self._linger_until = 0.0

    def is_lingering(self, now: float, wake_at: Callable[[float], None]) -> bool:
        """Whether the client, which is told now if it wasn't yet, is still to close its half. To be asked when all is
        answered, and again at the time that `wake_at` is called with.
        """
        client = self._client
        if client.has_ended or client.is_peer_gone:
            return False
        if client.is_write_shut:
            return now < self._linger_until
        self._session.stop_answering()
        try:
            client.shutdown_write()
        except OSError:
            return False
        self._linger_until = now + LINGER_S
        wake_at(self._linger_until)
        return True
