# What a link has in place of a shortcut (shortcut.pyx) where that isn't compiled: each event is the link's.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.data.sockets.slices import EventHandler

if TYPE_CHECKING:
    from gateway.data.sockets.sides import Side


class NoShortcut(EventHandler):
    """Its attributes are those of a Shortcut."""

    __slots__ = ("_client_fd", "looks_ahead", "passes_unseen", "takes_requests")

    terms = None

    def __init__(
        self, link: Any, world: Any, shared: Any, client: Side, upstream: Side, counted: Any,
        of_client: Any = None, of_upstream: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(link)
        self._client_fd = client.sock.fileno()

    def shut(self) -> None:
        """It always is."""

    def handle(self, fd: int, events: int, now: float) -> None:
        """One of the two sockets is ready."""
        if fd == self._client_fd:
            self.link.on_client(events, now)
        else:
            self.link.on_upstream(events, now)
