from typing import Any

from gateway.data.fast_path import Counted, Terms
from gateway.data.inbound import Inbound, Shared
from gateway.data.links import Link
from gateway.data.outbound import Outbound
from gateway.data.slices import EventHandler
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
        inbound: Inbound,
        outbound: Outbound,
        counted: Counted | None,
        client_fd: int,
        upstream_fd: int,
    ) -> None: ...
    def shut(self) -> None: ...
    def handle(self, fd: int, events: int, now: float) -> None: ...
