from typing import Any

from gateway.data.fast_path import Counted, Terms
from gateway.data.inbound import Shared
from gateway.data.links import Link
from gateway.data.sides import Side
from gateway.data.slices import EventHandler
from gateway.data.tls import Tls
from gateway.data.world import World

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
