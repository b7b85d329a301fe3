# The words of the parts of a session about one request: what it is, and what becomes of it. Off the fast path only:
# there a request is a few local variables (requests.py).

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from protocol.produce.produce_request import PartitionBatch

# The fates of a request.
FORWARD = 0  # it goes upstream as it is, and `frame` behind it
REPLACE = 1  # `frame` goes upstream in its place; b"": nothing does
ANSWER = 2  # the client gets `frame`, in its turn
HOLD = 3  # it stays where it is until `until`; `frame` goes upstream meanwhile
SKIP = 4  # neither broker nor client hears of it again; nothing behind it may be answered either


class ApiRequest(NamedTuple):
    """A whole request of another API than Produce in buf[start:stop], without its size prefix."""

    buf: bytearray
    start: int
    stop: int
    key: int
    version: int
    correlation: int


class ProduceRequest(NamedTuple):
    """A whole Produce request in buf[start:stop], without its size prefix; `parts` are its partitions as skim gives
    them.
    """

    buf: bytearray
    start: int
    stop: int
    version: int
    correlation: int
    acks: int
    parts: list[PartitionBatch]


class RequestStep(NamedTuple):
    """The decision about a request. `delays_next`: no Produce request after it is decided before the mute ends."""

    action: int
    frame: bytes = b""
    until: float = 0.0
    delays_next: bool = False


FORWARDED = RequestStep(FORWARD)
DROPPED = RequestStep(REPLACE)
SKIPPED = RequestStep(SKIP)
