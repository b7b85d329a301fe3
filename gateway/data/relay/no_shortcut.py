# What a link has in place of a shortcut (shortcut.pyx) where that isn't compiled: each event is the link's.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.data.sockets.slices import EventHandler

if TYPE_CHECKING:
    from gateway.data.relay.sides import LinkSide


class NoShortcut(EventHandler):
    """Its attributes are those of a Shortcut."""

    __slots__ = ("_client_fd", "forwards_requests", "peeks_request", "splices_unseen")

    terms = None

    def __init__(self, link: Any, world: Any, shared: Any, client: LinkSide, upstream: LinkSide, counted: Any) -> None:
        super().__init__(link)
        self._client_fd = client.sock.fileno()

    def invalidate_terms(self) -> None:
        """It always is."""

    def handle_event(self, fd: int, events: int, now: float) -> None:
        """One of the two sockets is ready."""
        if fd == self._client_fd:
            self.link.on_client_event(events, now)
        else:
            self.link.on_upstream_event(events, now)
