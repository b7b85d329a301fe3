from typing import Any

from gateway.data.relay.links import Link
from gateway.data.session.fast_path import Counted, Terms
from gateway.data.shared.world import World
from gateway.data.sockets.inbound import Shared
from gateway.data.sockets.sides import Side
from gateway.data.sockets.slices import EventHandler
from gateway.data.sockets.tls import Tls

class Seen:
    read_at: float
    answered_at: float
    drained_at: float
    is_drained: bool

class Shortcut(EventHandler):
    link: Any
    terms: Terms | None
    seen: Seen
    takes_requests: bool
    looks_ahead: bool
    passes_unseen: bool
    def __init__(
        self,
        link: Link,
        world: World,
        shared: Shared,
        client: Side,
        upstream: Side,
        counted: Counted | None,
        of_client: Tls | None = None,
        of_upstream: Tls | None = None,
    ) -> None: ...
    def shut(self) -> None: ...
    def handle(self, fd: int, events: int, now: float) -> None: ...
