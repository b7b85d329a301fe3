# Where memory is short, ends connections that hold it without getting on: whose frames don't come, and whose clients
# don't read what they asked for; and, where it is far exceeded, connections that wait for still more. A connection that
# has waited for long is let on, one at a time.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.relay.watch import PATIENCE_S
from gateway.data.shared.budget import EXCESS

if TYPE_CHECKING:
    from gateway.data.relay.links import Link
    from gateway.data.sockets.reactor import Reactor


def relieve(reactor: Reactor[Link], now: float, frame_timeout_s: float) -> None:
    """To be called a few times a second."""
    budget = reactor.budget
    reactor.shared.bound(budget.is_wanted)
    if budget.has_waiters:
        budget.grant()
        for link in list(reactor.links):
            reactor.guard(link, link.check_course, now, frame_timeout_s)
        late = [link for link in reactor.links if link.waits_s(now) > PATIENCE_S]
        for link in sorted(late, key=lambda link: link.waits_s(now), reverse=True):
            reactor.guard(link, link.read_first)  # has an effect on one of them, if on any
    if budget.used > budget.limit:
        idle = [link for link in reactor.links if not link.is_reading(now)]
        idle.sort(key=lambda link: link.session.account.used)
        while idle and budget.used > budget.limit:
            link = idle.pop()
            reactor.guard(link, link.shed)
    if budget.used > budget.limit * EXCESS:
        waiting = [link for link in reactor.links if link.client.inbound.waiting]
        waiting.sort(key=lambda link: (link.session.account.owner.used, link.session.account.used))
        while waiting and budget.used > budget.limit * EXCESS:
            link = waiting.pop()
            reactor.guard(link, link.give_up)
    reactor.settle(now)
