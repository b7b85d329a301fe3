from typing import Any

from gateway.data.relay.links import RelayLink
from gateway.data.relay.sides import LinkSide
from gateway.data.session.fast_path import ForwardingTerms, ResponseCounters
from gateway.data.shared.worker_state import WorkerState
from gateway.data.sockets.inbound import SharedReadBuffer
from gateway.data.sockets.slices import EventHandler

class SocketActivity:
    read_at: float
    answered_at: float
    drained_at: float
    is_drained: bool
    has_passed_request: bool

class Shortcut(EventHandler):
    link: Any
    terms: ForwardingTerms | None
    activity: SocketActivity
    forwards_requests: bool
    peeks_request: bool
    splices_unseen: bool
    def __init__(
        self,
        link: RelayLink,
        world: WorkerState,
        shared: SharedReadBuffer,
        client: LinkSide,
        upstream: LinkSide,
        counted: ResponseCounters | None,
    ) -> None: ...
    def invalidate_terms(self) -> None: ...
    def handle_event(self, fd: int, events: int, now: float) -> None: ...
