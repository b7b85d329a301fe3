# Where memory is short, ends connections that hold it without getting on: whose frames don't come, and whose clients
# don't read what they asked for; and, where it is far exceeded, connections that wait for still more. A connection that
# has waited for long is let on, one at a time.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.relay.watch import PATIENCE_S, LateConnection
from gateway.data.shared.budget import EXCESS_FACTOR

if TYPE_CHECKING:
    from gateway.data.relay.links import RelayLink
    from gateway.data.sockets.reactor import SocketReactor


def relieve_memory(reactor: SocketReactor[RelayLink], now: float, frame_timeout_s: float) -> None:
    """To be called a few times a second."""
    budget = reactor.budget
    reactor.shared.limit_reads(budget.is_contended)
    if budget.has_waiters:
        budget.resume_waiters()
        for link in list(reactor.links):
            reactor.call_guarded(link, link.check_frame_progress, now, frame_timeout_s)
        late = [link for link in reactor.links if link.client.inbound.memory_wait_s(now) > PATIENCE_S]
        for link in sorted(late, key=lambda link: link.client.inbound.memory_wait_s(now), reverse=True):
            reactor.call_guarded(
                link, link.client.inbound.prioritize_reading
            )  # has an effect on one of them, if on any
    if budget.used_bytes > budget.limit_bytes:
        idle = [link for link in reactor.links if not link.is_client_reading(now)]
        idle.sort(key=lambda link: link.session.account.used_bytes)
        while idle and budget.used_bytes > budget.limit_bytes:
            link = idle.pop()
            used = link.session.account.used_bytes
            why = f"memory is short, and the client does not read the {used} bytes held for it"
            reactor.call_guarded(link, link.close_late, LateConnection("slow_reader", why))
    if budget.used_bytes > budget.limit_bytes * EXCESS_FACTOR:
        waiting = [link for link in reactor.links if link.client.inbound.waits_for_memory]
        waiting.sort(key=lambda link: (link.session.account.owner.used_bytes, link.session.account.used_bytes))
        while waiting and budget.used_bytes > budget.limit_bytes * EXCESS_FACTOR:
            link = waiting.pop()
            used = link.session.account.used_bytes
            why = f"memory is used up, and this connection waits for more while it holds {used} bytes"
            reactor.call_guarded(link, link.close_late, LateConnection("memory", why))
    reactor.run_deferred(now)
