# One request as the parts of a session hand it on, and what becomes of it. Off the fast path only: there a request is a
# few local variables (fast_path.pyx).

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from protocol.produce.produce_request import PartitionBatch

StepAction = Literal["forward", "replace", "answer", "hold", "skip"]
FORWARD: Final = "forward"  # it goes upstream as it is, and `frame` behind it
REPLACE: Final = "replace"  # `frame` goes upstream in its place; b"": nothing does
ANSWER: Final = "answer"  # the client gets `frame`, in its turn
HOLD: Final = "hold"  # it stays where it is until `until`; `frame` goes upstream meanwhile
SKIP: Final = "skip"  # neither broker nor client hears of it again; nothing behind it may be answered either


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

    action: StepAction
    frame: bytes = b""
    until: float = 0.0
    delays_next: bool = False


FORWARDED = RequestStep(FORWARD)
DROPPED = RequestStep(REPLACE)
SKIPPED = RequestStep(SKIP)
