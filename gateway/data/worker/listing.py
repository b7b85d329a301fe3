# The list of this worker's connections, for people: who, from where, to which broker, muted until when and why. Made
# when control asks, in steps between which the reactor has its turn; nothing is kept for it while nobody asks.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import trio

from gateway.channel import Connection, FindConnections, FoundConnections
from gateway.system.sockets import host_of_peer

if TYPE_CHECKING:
    from gateway.data.relay.links import Link

STEP: Final = 200  # links looked at in one go: about a millisecond
MAX_WAITING: Final = 4  # questions; more are not answered


class Listing:
    """`links`: the open ones. `post`: to control. `is_busy`: an answer is being made."""

    def __init__(self, links: Callable[[], Iterator[Link]], post: Callable[[FoundConnections], object]) -> None:
        self._links = links
        self._post = post
        self.is_busy = False
        self._ask, self._asked = trio.open_memory_channel[FindConnections](MAX_WAITING)

    def take(self, question: FindConnections) -> None:
        """Answer it as soon as there is time."""
        try:
            self._ask.send_nowait(question)
        except trio.WouldBlock:
            pass  # control waits for a while, and says that this worker is missing

    async def run(self) -> None:
        async for question in self._asked:
            self.is_busy = True
            self._post(await self._answer(question))
            self.is_busy = False

    async def _answer(self, question: FindConnections) -> FoundConnections:
        links, found, matched = list(self._links()), [], 0
        for first in range(0, len(links), STEP):
            now = trio.current_time()
            for link in links[first : first + STEP]:
                if not link.closed and (shown := describe(link, now)) and matches(shown, question):
                    matched += 1
                    found.append(shown)
            found.sort(key=order)
            del found[question.limit :]
            await trio.lowlevel.checkpoint()
        return FoundConnections(question.token, len(links), matched, tuple(found))


def describe(link: Link, now: float) -> Connection:
    """One connection as it is shown."""
    session, client = link.session, link.session.client
    hold = session.hold
    until = max(hold.mute_until, session.fetches.mute_until, hold.until)
    muted_s = max(0.0, until - now)
    why = "storage-pause" if hold.paused_since else hold.why
    return Connection(
        peer=link.peer,
        broker=client.node_id,
        principal=client.names[0],
        client_id=client.names[1],
        software=" ".join(client.software) if client.software else "",
        age_s=link.age_s(now),
        idle_s=link.idle_s(now),
        in_flight=len(session.in_flight),
        muted_s=muted_s,
        why=why if muted_s else "",
        id=link.id,
    )


def matches(shown: Connection, question: FindConnections) -> bool:
    """Whether it is asked for."""
    address = host_of_peer(shown.peer)
    wanted = (
        (question.principal, shown.principal),
        (question.client_id, shown.client_id),
        (question.address, address),
        (question.broker, shown.broker),
    )
    return all(name is None or name == value for name, value in wanted) and (not question.muted or shown.muted_s > 0)


def order(shown: Connection) -> tuple[float, float, str]:
    """The longest muted first, then the oldest."""
    return -shown.muted_s, -shown.age_s, shown.peer
