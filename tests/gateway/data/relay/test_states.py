# The table of states (gateway/data/relay/states.py) against real links: scenes that take every arrow of it, and what is
# read and sent in each state; and the picture of it in docs/design.md.

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio

from gateway.data.relay import links
from gateway.data.relay.links import RelayLink
from gateway.data.relay.sides import LinkSide
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
    LINK_STATES,
    LINK_TRANSITIONS,
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
    SIDE_STATES,
    SIDE_TRANSITIONS,
    WAITING,
    LinkState,
    SideState,
)
from gateway.data.sockets.reactor import IN
from tests import variants
from tests.background import until
from tests.gateway.data.play import TOOK, answer, other_answer, other_request, request, with_question
from tests.gateway.data.relay import states_picture
from tests.gateway.data.relay.stage import Stage, passes, receive_exactly, reset, staged
from tests.pages import DOCS

pytestmark = pytest.mark.usefixtures("no_circles")

GARBAGE: Final = b"GET / HTTP/1.1\r\n\r\n"
LARGE: Final = other_answer(1, bytes(60_000))  # more than small kernel buffers hold
RELAY: Final = Path(links.__file__).parent


class Scene:
    """A link, and both its far ends."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.link, self.client, self.broker = stage.connect(small_client=True)

    async def forward(self, frame: bytes = request(1)) -> None:
        """The client sends it, and the broker has it."""
        await passes(self.client, self.broker, frame)

    async def answer(self, frame: bytes = answer(1)) -> None:
        await passes(self.broker, self.client, frame)

    async def wait(self, frames: bytes = request(1)) -> None:
        """The client sends these, and the first Produce of them has to wait."""
        self.stage.mute(self.link)
        await self.client.send_all(frames)
        await self.reach(WAITING)

    async def reach(self, state: LinkState) -> None:
        await until(lambda: self.link.state is state)

    async def reach_sides(self, client: SideState, upstream: SideState) -> None:
        await until(lambda: (self.link.client.state, self.link.upstream.state) == (client, upstream))

    def drain(self) -> None:
        self.link.drain("disconnects_drain", trio.current_time())

    def break_sending(self) -> None:
        """From here on each send to the broker fails; the broker's own bytes still come."""
        self.link.upstream.sock.shutdown(socket.SHUT_WR)

    async def answer_too_much(self) -> None:
        """The broker answers and leaves; the client doesn't read, so the broker isn't read to its end."""
        await self.broker.send_all(LARGE)
        await self.broker.aclose()
        await until(lambda: self.link.upstream.state is LEAVING)
        assert self.link.client.has_unsent

    async def settle(self) -> None:
        """All that may happen has happened."""
        for _ in range(50):
            await trio.lowlevel.checkpoint()


# --- scenes -----------------------------------------------------------------------------------------------------------


class Course(NamedTuple):
    """A scene, and the events that change the state of its link and of each side, in their order."""

    play: Callable[[Scene], Awaitable[None]]
    link: tuple[str, ...]
    client: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()


async def a_wait_and_a_half_close(scene: Scene) -> None:
    await scene.wait()
    scene.stage.end_mute(scene.link)
    assert await receive_exactly(scene.broker, len(request(1))) == request(1)
    await scene.reach(RELAYING)
    await scene.client.send_eof()
    assert await scene.broker.receive_some(1) == b""
    await scene.answer()
    await scene.broker.aclose()
    assert await scene.client.receive_some(1) == b""


async def a_reset_of_an_idle_client(scene: Scene) -> None:
    reset(scene.client)


async def a_reset_of_a_client_that_waits(scene: Scene) -> None:
    await scene.wait()
    reset(scene.client)


async def a_reset_of_a_client_whose_records_are_in_flight(scene: Scene) -> None:
    await scene.forward()
    reset(scene.client)
    assert await scene.broker.receive_some(1) == b""
    await scene.broker.aclose()


async def a_reset_behind_a_half_close(scene: Scene) -> None:
    await scene.forward()
    await scene.client.send_eof()
    await scene.reach(ENDING)
    reset(scene.client)
    await until(lambda: scene.link.client.state is LOST)
    await scene.broker.aclose()


async def a_client_that_leaves_while_it_waits(scene: Scene) -> None:
    await scene.wait(request(1, acks=0))
    await scene.client.send_eof()
    await until(lambda: scene.link.client.state is LEAVING)
    scene.stage.end_mute(scene.link)
    await receive_exactly(scene.broker, len(with_question(request(1, acks=0))))
    assert await scene.broker.receive_some(1) == b""
    await scene.broker.send_all(TOOK)
    await scene.broker.aclose()


async def a_client_that_leaves_while_it_waits_and_resets(scene: Scene) -> None:
    await scene.forward()
    await scene.wait(request(2))
    await scene.client.send_eof()
    await until(lambda: scene.link.client.state is LEAVING)
    reset(scene.client)
    await scene.reach(ENDING)
    await scene.broker.aclose()


async def a_malformed_request(scene: Scene) -> None:
    await scene.forward()
    await scene.client.send_all(GARBAGE)
    await scene.reach(REFUSING)
    await scene.answer()


async def a_malformed_request_behind_one_that_waits(scene: Scene) -> None:
    await scene.wait(request(1) + GARBAGE)
    scene.stage.end_mute(scene.link)
    assert await receive_exactly(scene.broker, len(request(1))) == request(1)
    await scene.reach(REFUSING)
    await scene.answer()


async def a_malformed_request_of_a_client_that_has_left(scene: Scene) -> None:
    await scene.wait(request(1, acks=0) + GARBAGE)
    await scene.client.send_eof()
    await until(lambda: scene.link.client.state is LEAVING)
    scene.stage.end_mute(scene.link)
    await receive_exactly(scene.broker, len(with_question(request(1, acks=0))))
    await scene.reach(REFUSING)
    await scene.broker.send_all(TOOK)


async def a_drain_behind_a_malformed_request(scene: Scene) -> None:
    await scene.forward()
    await scene.client.send_all(GARBAGE)
    await scene.reach(REFUSING)
    scene.drain()
    await scene.client.send_all(request(2, acks=0))
    await scene.answer()
    assert await scene.broker.receive_some(1) == b"", "something behind the malformed request was forwarded"


async def a_drain(scene: Scene) -> None:
    await scene.forward()
    scene.drain()
    await scene.answer()
    assert await scene.client.receive_some(1) == b""
    await scene.client.aclose()


async def a_drain_of_a_client_that_waits(scene: Scene) -> None:
    await scene.wait()
    scene.drain()
    assert await scene.client.receive_some(1) == b""
    await scene.client.aclose()


async def a_drain_of_a_client_that_has_ended(scene: Scene) -> None:
    await scene.forward()
    await scene.client.send_eof()
    await scene.reach(ENDING)
    scene.drain()
    await scene.answer()


async def a_broker_that_leaves_while_its_answer_waits(scene: Scene) -> None:
    await scene.forward(other_request(1))
    await scene.answer_too_much()
    assert await receive_exactly(scene.client, len(LARGE)) == LARGE


async def a_broker_that_leaves_behind_a_half_close(scene: Scene) -> None:
    await scene.forward(other_request(1))
    await scene.client.send_eof()
    await scene.reach_sides(ENDED, SHUT)
    await scene.answer_too_much()
    assert await receive_exactly(scene.client, len(LARGE)) == LARGE


async def a_broker_that_resets(scene: Scene) -> None:
    reset(scene.broker)


async def a_broker_that_resets_behind_a_half_close(scene: Scene) -> None:
    await scene.client.send_eof()
    await scene.reach_sides(ENDED, SHUT)
    reset(scene.broker)


async def a_send_that_fails(scene: Scene) -> None:
    scene.break_sending()
    await scene.client.send_all(request(1))
    await scene.reach_sides(OPEN, FAILED)
    await scene.broker.aclose()


async def a_send_that_fails_and_a_reset(scene: Scene) -> None:
    scene.break_sending()
    await scene.client.send_all(request(1))
    await scene.reach_sides(OPEN, FAILED)
    reset(scene.broker)


async def a_send_that_fails_behind_the_broker_s_last_answer(scene: Scene) -> None:
    await scene.wait(other_request(1) + request(2))
    await receive_exactly(scene.broker, len(other_request(1)))
    await scene.answer_too_much()
    scene.break_sending()
    scene.stage.end_mute(scene.link)
    assert await receive_exactly(scene.client, len(LARGE)) == LARGE


async def a_send_that_fails_behind_the_broker_s_end(scene: Scene) -> None:
    await scene.wait()
    scene.break_sending()
    hold = scene.link.session.hold
    hold.muted_until = hold.held_until = trio.current_time()
    await scene.broker.aclose()


async def a_half_close_that_can_not_be_passed_on(scene: Scene) -> None:
    reset(scene.broker)
    scene.link.on_client_end(True, trio.current_time())  # before the reactor knows of the reset


COURSES: Final = (
    Course(
        a_wait_and_a_half_close, (REQUEST_WAITS, NONE_WAITS, SIDE_ENDS, CLOSE), (END_READ,), (SHUT_DOWN, END_READ)
    ),
    Course(a_reset_of_an_idle_client, (CLOSE,)),
    Course(a_reset_of_a_client_that_waits, (REQUEST_WAITS, CLOSE)),
    Course(
        a_reset_of_a_client_whose_records_are_in_flight, (SIDE_ENDS, CLOSE), (CONNECTION_LOST,), (SHUT_DOWN, END_READ)
    ),
    Course(
        a_reset_behind_a_half_close, (SIDE_ENDS, CLOSE), (END_READ, CONNECTION_LOST), (SHUT_DOWN, END_READ)
    ),
    Course(
        a_client_that_leaves_while_it_waits, (REQUEST_WAITS, SIDE_ENDS, CLOSE), (PEER_CLOSED, END_READ),
        (SHUT_DOWN, END_READ),
    ),
    Course(
        a_client_that_leaves_while_it_waits_and_resets, (REQUEST_WAITS, SIDE_ENDS, CLOSE),
        (PEER_CLOSED, CONNECTION_LOST), (END_READ,),
    ),
    Course(a_malformed_request, (REQUEST_MALFORMED, CLOSE)),
    Course(a_malformed_request_behind_one_that_waits, (REQUEST_WAITS, REQUEST_MALFORMED, CLOSE)),
    Course(
        a_malformed_request_of_a_client_that_has_left, (REQUEST_WAITS, SIDE_ENDS, REQUEST_MALFORMED, CLOSE),
        (PEER_CLOSED, END_READ), (SHUT_DOWN,),
    ),
    Course(a_drain_behind_a_malformed_request, (REQUEST_MALFORMED, CLOSE)),
    Course(a_drain, (DRAIN, ALL_ANSWERED, CLOSE), (SHUT_DOWN, END_READ)),
    Course(a_drain_of_a_client_that_waits, (REQUEST_WAITS, DRAIN, ALL_ANSWERED, CLOSE), (SHUT_DOWN, END_READ)),
    Course(a_drain_of_a_client_that_has_ended, (SIDE_ENDS, DRAIN, CLOSE), (END_READ,), (SHUT_DOWN,)),
    Course(a_broker_that_leaves_while_its_answer_waits, (SIDE_ENDS, CLOSE), (), (PEER_CLOSED, END_READ)),
    Course(
        a_broker_that_leaves_behind_a_half_close, (SIDE_ENDS, CLOSE), (END_READ,), (SHUT_DOWN, PEER_CLOSED, END_READ)
    ),
    Course(a_broker_that_resets, (SIDE_ENDS, CLOSE), (), (CONNECTION_LOST,)),
    Course(a_broker_that_resets_behind_a_half_close, (SIDE_ENDS, CLOSE), (END_READ,), (SHUT_DOWN, CONNECTION_LOST)),
    Course(a_send_that_fails, (SIDE_ENDS, CLOSE), (), (SEND_FAILED, END_READ)),
    Course(a_send_that_fails_and_a_reset, (SIDE_ENDS, CLOSE), (), (SEND_FAILED, CONNECTION_LOST)),
    Course(
        a_send_that_fails_behind_the_broker_s_last_answer, (REQUEST_WAITS, SIDE_ENDS, CLOSE), (),
        (PEER_CLOSED, SEND_FAILED, END_READ),
    ),
    Course(a_send_that_fails_behind_the_broker_s_end, (REQUEST_WAITS, SIDE_ENDS, CLOSE), (), (END_READ, SEND_FAILED)),
    Course(
        a_half_close_that_can_not_be_passed_on, (SIDE_ENDS, CLOSE), (END_READ,),
        (SHUT_DOWN, SEND_FAILED, CONNECTION_LOST),
    ),
)  # fmt: skip


class Recorder:
    """In place of the slot `state` of a class: the events that changed it, by object."""

    def __init__(self, slot: Any, transitions: Mapping[tuple[Any, str], Any], last: list[str]) -> None:
        self._slot = slot
        self._transitions = transitions
        self._last = last
        self.events: dict[int, list[str]] = {}

    def __get__(self, owner: Any, _: Any) -> Any:
        return self._slot.__get__(owner)

    def __set__(self, owner: Any, state: Any) -> None:
        events = self.events.setdefault(id(owner), [])
        if hasattr(owner, "state") and state is not (before := owner.state):
            assert self._transitions[before, self._last[0]] is state, "changed past the table"
            events.append(self._last[0])
        self._slot.__set__(owner, state)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, Recorder]:
    """Of links and of sides."""
    last = [""]
    for kind in (LinkState, SideState):
        after = kind.after

        def noted(state: Any, event: str, after: Any = after) -> Any:
            last[0] = event
            return after(state, event)

        monkeypatch.setattr(kind, "after", noted)
    of_links = Recorder(RelayLink.__dict__["state"], LINK_TRANSITIONS, last)
    of_sides = Recorder(LinkSide.__dict__["state"], SIDE_TRANSITIONS, last)
    monkeypatch.setattr(RelayLink, "state", of_links)
    monkeypatch.setattr(LinkSide, "state", of_sides)
    return of_links, of_sides


@pytest.mark.parametrize("variant", [variants.PURE, variants.COMPILED])
@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.play.__name__)
async def test_real_links_go_through_the_table(
    course: Course, variant: str, recorders: tuple[Recorder, Recorder]
) -> None:
    of_links, of_sides = recorders
    with variants.running(variant):
        async with staged() as stage:
            scene = Scene(stage)
            link = scene.link
            await course.play(scene)
            await scene.reach(CLOSED)
            assert tuple(of_links.events[id(link)]) == course.link
            assert tuple(of_sides.events[id(link.client)]) == course.client
            assert tuple(of_sides.events[id(link.upstream)]) == course.upstream


def test_these_scenes_take_every_arrow() -> None:
    taken: set[tuple[Any, str]] = set()
    for course in COURSES:
        for first, events in ((RELAYING, course.link), (OPEN, course.client), (OPEN, course.upstream)):
            state: Any = first
            for event in events:
                taken.add((state, event))
                state = state.after(event)
    table = LINK_TRANSITIONS.keys() | SIDE_TRANSITIONS.keys()
    assert {(state.name, event) for state, event in taken} == {(state.name, event) for state, event in table}


# --- what is read and sent --------------------------------------------------------------------------------------------


async def _reach(scene: Scene, state: LinkState) -> None:
    """With one request in flight, but where the client was told that nothing more comes."""
    if state is LINGERING:
        scene.drain()
        return
    await scene.forward()
    if state is WAITING:
        scene.stage.mute(scene.link)
        await scene.client.send_all(request(2))
    elif state is ENDING:
        await scene.client.send_eof()
    elif state is REFUSING:
        await scene.client.send_all(GARBAGE)
    elif state is DRAINING:
        scene.drain()
    await scene.reach(state)


@pytest.mark.parametrize("state", LINK_STATES[:-1], ids=lambda state: state.name)
async def test_what_is_read_and_sent_in_each_state(state: LinkState) -> None:
    async with staged() as stage:
        scene = Scene(stage)
        link = scene.link
        await _reach(scene, state)
        assert link.state is state
        assert bool(link.client.event_mask & IN) is (bool(state.from_client) and link.client.state.is_read)
        assert link.upstream.event_mask & IN
        if state is not ENDING:  # where it is the client that has ended
            await scene.client.send_all(request(7))
            await scene.settle()
            assert link.state is state
            assert bool(link.client.unread_bytes) is not bool(state.from_client)
            silent = request(8, {"other": [0]}, acks=0)
            await scene.client.send_all(silent)
            await scene.settle()
            expected = {"requests": request(7) + with_question(silent), "acks=0 requests": with_question(silent)}
            if forwarded := expected.get(state.to_broker, b""):
                assert await receive_exactly(scene.broker, len(forwarded)) == forwarded
        if state.to_client:
            await scene.answer()
        else:
            assert await scene.client.receive_some(1) == b"", "it was told so"
        assert link.state is state or state.closes_when_answered or state is ENDING


@pytest.mark.parametrize("state", SIDE_STATES, ids=lambda state: state.name)
def test_a_side_is_gone_where_it_is_not_read_and_where_nothing_can_be_sent(state: SideState) -> None:
    assert state.is_gone or (state.is_read and not state.is_broken)
    assert (state in {OPEN, SHUT}) is not state.is_gone


def test_a_state_is_changed_by_its_table_only() -> None:
    changes = [
        line.strip()
        for module in sorted(RELAY.glob("*.py"))
        for line in module.read_text("utf-8").splitlines()
        if re.search(r"\bstate(, [\w.]+)? = ", line) and "after(" not in line
    ]
    assert changes == ["self.state = RELAYING", "self.state = OPEN"]


def test_the_picture_is_that_of_the_table() -> None:
    drawn = (DOCS / "connection-states.svg").read_text("utf-8")
    assert drawn == states_picture.draw(), "python -m tests.gateway.data.relay.states_picture draws it"
