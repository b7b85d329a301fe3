# The states of a connection: of a link, and of each of its two sides. Which of them may follow which, and what is read
# and sent in each, is said here and nowhere else. links.py goes by these rows, docs/design.md shows them, its picture
# is drawn from them, and tests/gateway/data/relay/test_states.py takes real links through all of them.
#
# A link has one state, and each side has one. The client is read where both the link's state and its side's allow it,
# the broker where its side's does. Backpressure comes on top in every state: a side is not read while the other has
# bytes that it didn't take, the client is not read while it has such bytes itself, and none is while it waits for
# memory.

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What happens to a link.
REQUEST_WAITS: Final = "a request waits"
NONE_WAITS: Final = "no request waits"
SIDE_ENDS: Final = "a side ends or fails"
REQUEST_MALFORMED: Final = "a request is malformed"
DRAIN: Final = "the gateway drains it"
ALL_ANSWERED: Final = "all is answered"
CLOSE: Final = "both sockets are closed"

# What happens to a side.
SHUT_DOWN: Final = "it is told of the end"
PEER_CLOSED: Final = "its peer has closed"
SEND_FAILED: Final = "sending fails"
END_READ: Final = "its end is read"
CONNECTION_LOST: Final = "the connection is lost"


@dataclass(frozen=True, eq=False, slots=True)
class LinkState:
    """One row. In `from_client`, `to_client` and `to_broker` "" means nothing.

    Attributes:
        closes_when_answered: once everything forwarded is answered and sent, the link closes under its `closing_cause`.
        ends: when the state ends of itself, for readers; `after` has all that ends it.
    """

    name: str
    meaning: str
    from_client: str = ""
    to_client: str = ""
    to_broker: str = ""
    ends: str = ""
    closes_when_answered: bool = False

    def after(self, event: str) -> LinkState:
        """The state that follows; the same one where the event changes nothing."""
        return LINK_TRANSITIONS.get((self, event), self)


@dataclass(frozen=True, eq=False, slots=True)
class SideState:
    """One row.

    Attributes:
        is_read: more may come from it.
        is_gone: its peer has closed or reset, whether that was read or not; only an error or a reset is news.
        is_broken: it has failed: nothing that is sent gets there.
    """

    name: str
    meaning: str
    is_read: bool = True
    is_gone: bool = False
    is_broken: bool = False

    def after(self, event: str) -> SideState:
        """The state that follows; the same one where the event changes nothing."""
        return SIDE_TRANSITIONS.get((self, event), self)


RELAYING: Final = LinkState(
    "relaying",
    "Requests and answers pass.",
    from_client="requests",
    to_client="answers",
    to_broker="requests",
    ends="–",
)
WAITING: Final = LinkState(
    "waiting",
    "The next request waits for a limit, for control, or for earlier answers.",
    to_client="answers",
    ends="the wait is over",
)
ENDING: Final = LinkState(
    "ending",
    "A side has ended or failed. Requests read before are answered.",
    to_client="answers",
    to_broker="requests that were read, then the end",
    ends="the broker's end is read, and the client has the answers",
)
REFUSING: Final = LinkState(
    "refusing",
    "A request was malformed.",
    to_client="answers",
    ends="the client has all answers",
    closes_when_answered=True,
)
DRAINING: Final = LinkState(
    "draining",
    "The gateway stops, or the connection is too old.",
    to_client="answers",
    to_broker="acks=0 requests that were read",
    ends="the client has all answers",
    closes_when_answered=True,
)
# acks=0, which its client takes for sent, is forwarded. All else is discarded: the client sends it again on its next
# connection. It is read nevertheless, for unread bytes make the kernel reset the connection, which may take answers
# with it.
LINGERING: Final = LinkState(
    "lingering",
    "The gateway has closed its half, the client not yet.",
    from_client="requests",
    to_broker="acks=0 requests",
    ends="the client has closed its half, or a second is over",
    closes_when_answered=True,
)
CLOSED: Final = LinkState("closed", "Both sockets are closed.")

OPEN: Final = SideState("open", "Bytes go both ways.")
SHUT: Final = SideState("shut", "The gateway has closed its half. More may come.")
LEAVING: Final = SideState("leaving", "Its peer has closed. Bytes that came before are unread.", is_gone=True)
FAILED: Final = SideState(
    "failed", "Nothing can be sent to it. Bytes that came before are unread.", is_gone=True, is_broken=True
)
ENDED: Final = SideState("ended", "Its end was read. Answers may still go to it.", is_read=False, is_gone=True)
LOST: Final = SideState("lost", "Nothing comes from it or goes to it.", is_read=False, is_gone=True, is_broken=True)

LINK_STATES: Final = RELAYING, WAITING, ENDING, REFUSING, DRAINING, LINGERING, CLOSED
SIDE_STATES: Final = OPEN, SHUT, LEAVING, FAILED, ENDED, LOST

# A pair that isn't here changes nothing: a link that refuses or drains goes on so when a side ends, and behind a
# malformed frame there is nothing to linger for.
LINK_TRANSITIONS: Final[dict[tuple[LinkState, str], LinkState]] = {
    (RELAYING, REQUEST_WAITS): WAITING,
    (WAITING, NONE_WAITS): RELAYING,
    **{(state, SIDE_ENDS): ENDING for state in (RELAYING, WAITING)},
    **{(state, REQUEST_MALFORMED): REFUSING for state in (RELAYING, WAITING, ENDING)},
    **{(state, DRAIN): DRAINING for state in (RELAYING, WAITING, ENDING)},
    (DRAINING, ALL_ANSWERED): LINGERING,
    **{(state, CLOSE): CLOSED for state in LINK_STATES if state is not CLOSED},
}
SIDE_TRANSITIONS: Final[dict[tuple[SideState, str], SideState]] = {
    (OPEN, SHUT_DOWN): SHUT,
    **{(state, PEER_CLOSED): LEAVING for state in (OPEN, SHUT)},
    **{(state, SEND_FAILED): FAILED for state in (OPEN, SHUT, LEAVING)},
    (ENDED, SEND_FAILED): LOST,
    **{(state, END_READ): ENDED for state in (OPEN, SHUT, LEAVING)},
    (FAILED, END_READ): LOST,
    **{(state, CONNECTION_LOST): LOST for state in SIDE_STATES if state is not LOST},
}
