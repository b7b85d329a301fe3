# Draws docs/connection-states.svg from the table of states (gateway/data/relay/states.py).
#
#     python -m tests.gateway.data.relay.states_picture

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.data.relay import states
from gateway.data.relay.states import (
    ALL_ANSWERED,
    CLOSE,
    CLOSED,
    CONNECTION_LOST,
    DRAIN,
    DRAINING,
    END_READ,
    ENDED,
    ENDING,
    FAILED,
    LEAVING,
    LINGERING,
    LOST,
    NONE_WAITS,
    OPEN,
    PEER_CLOSED,
    REFUSING,
    RELAYING,
    REQUEST_MALFORMED,
    REQUEST_WAITS,
    SEND_FAILED,
    SHUT,
    SHUT_DOWN,
    SIDE_ENDS,
    WAITING,
    LinkState,
    SideState,
)
from tests.pages import DOCS

WIDTH: Final = 110
HEIGHT: Final = 36
Point = tuple[int, int]
State = LinkState | SideState


class Arrow(NamedTuple):
    """From each of `sources` to `target`, at each of `events`; drawn once, through `points`, with its words at `at`."""

    sources: Sequence[State]
    events: Sequence[str]
    target: State
    points: Sequence[Point]
    at: Point
    anchor: str = "middle"


# The middles of boxes, and the frames around those that an arrow leaves together.
BOXES: Final[dict[State, Point]] = {
    RELAYING: (190, 110), WAITING: (190, 210), ENDING: (540, 160), DRAINING: (850, 105), LINGERING: (1090, 105),
    REFUSING: (850, 215), CLOSED: (700, 330),
    OPEN: (190, 490), SHUT: (190, 590), LEAVING: (540, 540), ENDED: (850, 470), FAILED: (850, 610), LOST: (1090, 540),
}  # fmt: skip
FRAMES: Final = (
    (20, 60, 620, 260), (40, 75, 340, 245), (785, 75, 1155, 135),
    (20, 440, 620, 640), (40, 455, 340, 625),
)  # fmt: skip
ARROWS: Final = (
    Arrow([RELAYING], [REQUEST_WAITS], WAITING, [(170, 128), (170, 192)], (164, 164), "end"),
    Arrow([WAITING], [NONE_WAITS], RELAYING, [(210, 192), (210, 128)], (216, 164), "start"),
    Arrow([RELAYING, WAITING], [SIDE_ENDS], ENDING, [(340, 160), (485, 160)], (408, 152)),
    Arrow([RELAYING, WAITING, ENDING], [DRAIN], DRAINING, [(620, 105), (795, 105)], (700, 97)),
    Arrow([RELAYING, WAITING, ENDING], [REQUEST_MALFORMED], REFUSING, [(620, 215), (795, 215)], (700, 207)),
    Arrow([DRAINING], [ALL_ANSWERED], LINGERING, [(905, 105), (1035, 105)], (966, 97)),
    Arrow([RELAYING, WAITING, ENDING], [CLOSE], CLOSED, [(540, 260), (540, 330), (645, 330)], (532, 300), "end"),
    Arrow([REFUSING], [CLOSE], CLOSED, [(850, 233), (850, 322), (755, 322)], (858, 300), "start"),
    Arrow([DRAINING, LINGERING], [CLOSE], CLOSED, [(1090, 135), (1090, 338), (755, 338)], (1098, 300), "start"),
    Arrow([OPEN], [SHUT_DOWN], SHUT, [(190, 508), (190, 572)], (198, 544), "start"),
    Arrow([OPEN, SHUT], [PEER_CLOSED], LEAVING, [(340, 540), (485, 540)], (408, 532)),
    Arrow([OPEN, SHUT, LEAVING], [END_READ], ENDED, [(620, 470), (795, 470)], (700, 462)),
    Arrow([OPEN, SHUT, LEAVING], [SEND_FAILED], FAILED, [(620, 610), (795, 610)], (700, 602)),
    Arrow([OPEN, SHUT, LEAVING], [CONNECTION_LOST], LOST, [(620, 540), (1035, 540)], (850, 532)),
    Arrow([ENDED], [SEND_FAILED, CONNECTION_LOST], LOST, [(905, 470), (1090, 470), (1090, 522)], (1098, 484), "start"),
    Arrow([FAILED], [END_READ, CONNECTION_LOST], LOST, [(905, 610), (1090, 610), (1090, 558)], (1098, 592), "start"),
)


def check_arrows() -> None:
    """
    Raises:
        ValueError: the arrows, or the boxes, are not those of the table.
    """
    table: set[object] = {*states.LINK_TRANSITIONS.items(), *states.SIDE_TRANSITIONS.items()}
    drawn = {(source, event): arrow.target for arrow in ARROWS for source in arrow.sources for event in arrow.events}
    if drawn.items() != table:
        raise ValueError("states.py has other transitions than ARROWS")
    if BOXES.keys() != {*states.LINK_STATES, *states.SIDE_STATES}:
        raise ValueError("states.py has other states than BOXES")


def _text(x: int, y: int, words: str, rest: str = "") -> str:
    return f'<text x="{x}" y="{y}"{rest}>{words}</text>'


def _arrow(arrow: Arrow) -> str:
    points = " ".join(f"{x},{y}" for x, y in arrow.points)
    x, y = arrow.at
    place = f' text-anchor="{arrow.anchor}" font-size="12"'
    words = [_text(x, y + 15 * i, f"or {event}" if i else event, place) for i, event in enumerate(arrow.events)]
    line = f'<polyline points="{points}" fill="none" stroke="#4a6785" stroke-width="1.5" marker-end="url(#end)"/>'
    return "\n".join((line, *words))


def _box(state: State) -> str:
    x, y = BOXES[state]
    left, top = x - WIDTH // 2, y - HEIGHT // 2
    colours = 'fill="#fff8ec" stroke="#b57514"' if state in {RELAYING, OPEN} else 'fill="#eef3f8" stroke="#4a6785"'
    return (
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="8" {colours} stroke-width="1.5"/>\n'
        + _text(x, y + 5, state.name, ' text-anchor="middle" font-weight="bold"')
    )


def draw() -> str:
    """The picture."""
    check_arrows()
    frames = [
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="10" fill="none"'
        ' stroke="#9fb2c6" stroke-dasharray="5 4"/>'
        for left, top, right, bottom in FRAMES
    ]
    return "\n".join(
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1260 665" font-family="Helvetica, Arial, sans-serif"'
            ' font-size="14" fill="#1d2c3b">',
            "<title>States of a connection and of its sides, with the events that lead from one to the next</title>",
            '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
            ' orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#4a6785"/></marker></defs>',
            '<rect width="1260" height="665" fill="#ffffff"/>',
            _text(20, 36, "The link", ' font-size="15" font-weight="bold"'),
            _text(20, 416, "Each side: the client's, the broker's", ' font-size="15" font-weight="bold"'),
            *frames,
            *map(_arrow, ARROWS),
            *map(_box, BOXES),
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    (DOCS / "connection-states.svg").write_text(draw(), "utf-8")
