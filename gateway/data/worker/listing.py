# The list of this worker's connections, for people: who, from where, to which broker, muted until when and why. Made
# when control asks, in steps between which the reactor has its turn; nothing is kept for it between queries.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import trio

from gateway.channel import ConnectionInfo, FindConnections, FoundConnections
from gateway.data.session.session import FETCH_WAIT_REASON
from gateway.system.sockets import host_of_peer
from policies.verdict import STORAGE_PAUSE

if TYPE_CHECKING:
    from gateway.data.relay.links import RelayLink

LINKS_PER_STEP: Final = 200  # links looked at in one go: about a millisecond
MAX_WAITING_QUERIES: Final = 4  # questions; more are not answered


class ConnectionListing:
    """Answers queries for the list of connections. `links`: the open ones. `post`: sends to control. `is_busy`: an
    answer is being made.
    """

    def __init__(self, links: Callable[[], Iterator[RelayLink]], post: Callable[[FoundConnections], object]) -> None:
        self._links = links
        self._post = post
        self.is_busy = False
        self._query_sender, self._query_receiver = trio.open_memory_channel[FindConnections](MAX_WAITING_QUERIES)

    def enqueue_query(self, question: FindConnections) -> None:
        """Answer the query as soon as there is time."""
        try:
            self._query_sender.send_nowait(question)
        except trio.WouldBlock:
            pass  # control waits for a while, and says that this worker is missing

    async def run(self) -> None:
        async for question in self._query_receiver:
            self.is_busy = True
            self._post(await self._answer_query(question))
            self.is_busy = False

    async def _answer_query(self, question: FindConnections) -> FoundConnections:
        links, found, matched = list(self._links()), [], 0
        for first in range(0, len(links), LINKS_PER_STEP):
            now = trio.current_time()
            for link in links[first : first + LINKS_PER_STEP]:
                if not link.is_closed and (shown := describe_link(link, now)) and matches_query(shown, question):
                    matched += 1
                    found.append(shown)
            found.sort(key=sort_key)
            del found[question.limit :]
            await trio.lowlevel.checkpoint()
        return FoundConnections(question.token, len(links), matched, tuple(found))


def describe_link(link: RelayLink, now: float) -> ConnectionInfo:
    """One connection as it is shown."""
    session, client = link.session, link.session.client
    hold = session.hold
    fetch_until = session.fetch_limiter.muted_until
    until = max(hold.muted_until, fetch_until, hold.held_until)
    muted_s = max(0.0, until - now)
    if hold.paused_since:
        why = STORAGE_PAUSE
    elif until == hold.muted_until:
        why = hold.mute_reason
    else:  # what Produce requests waited for last may be long over
        why = FETCH_WAIT_REASON if until == fetch_until else ""
    return ConnectionInfo(
        peer=link.peer,
        broker=client.node_id,
        principal=client.counted_names[0],
        client_id=client.counted_names[1],
        software=" ".join(client.software) if client.software else "",
        age_s=link.age_s(now),
        idle_s=link.idle_s(now),
        in_flight=len(session.in_flight),
        muted_s=muted_s,
        why=why if muted_s else "",
        id=link.connection_id,
    )


def matches_query(shown: ConnectionInfo, question: FindConnections) -> bool:
    """Whether the query asks for this connection."""
    address = host_of_peer(shown.peer)
    wanted = (
        (question.principal, shown.principal),
        (question.client_id, shown.client_id),
        (question.address, address),
        (question.broker, shown.broker),
    )
    return all(name is None or name == value for name, value in wanted) and (not question.muted or shown.muted_s > 0)


def sort_key(shown: ConnectionInfo) -> tuple[float, float, str]:
    """The connection that is muted longest comes first, then the oldest."""
    return -shown.muted_s, -shown.age_s, shown.peer
