# The admin requests of one connection that control answers, one after the other: what each waits for, and the memory
# that it keeps. Its turn (admin_turn.py) says what is done when; the worker brings its question to control.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.pending.pending import ADMIN, PASS
from gateway.data.pending.steps import ANSWER, FORWARDED, HOLD, Step
from gateway.data.shared import admin_turn
from gateway.data.shared.admin_turn import AdminTurn
from gateway.data.shared.budget import Charge
from protocol import api, topic_deletion
from protocol.framing import REQUEST_HEAD
from protocol.wire import MalformedFrame

_OF_OURS = b".per.sec.threshold"  # in each config key of topics and brokers that the gateway keeps

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.channel import Answer
    from gateway.data.pending.in_flight import InFlight
    from gateway.data.pending.steps import Request
    from gateway.data.shared.budget import Account
    from gateway.data.shared.client import Client
    from gateway.data.shared.world import World


class AdminRequests:
    """`turn`: None, or that of the request at the head. `peer`: the client's address. `wake`: the link's, to be called
    when a request needn't wait any longer.
    """

    __slots__ = ("_charge", "_client", "_in_flight", "peer", "turn", "wake")

    def __init__(self, client: Client, in_flight: InFlight, account: Account) -> None:
        self._client = client
        self._in_flight = in_flight
        self._charge = Charge(account)
        self.turn: AdminTurn | None = None
        self.peer = ""
        self.wake: Callable[[], None] = _nothing

    @property
    def principal(self) -> str:
        """The client's principal."""
        return self._client.principal

    @property
    def listener(self) -> str:
        """Where the client is connected."""
        return self._client.listener

    def take(self, request: Request, now: float) -> Step:
        """The request at the head, however often it was looked at before.

        Raises:
            MalformedFrame: it can't be answered.
        """
        turn = self.turn
        if turn is None:
            most = self._client.world.settings.max_admin_request_bytes
            turn = AdminTurn(bytes(memoryview(request.buf)[request.start : request.stop]), most)
            self.begin(turn)
        move, frame = self.move(turn, now)
        if move == admin_turn.FORWARD:
            self._in_flight.append((request.correlation, PASS))
            return FORWARDED
        return Step(ANSWER, frame) if move == admin_turn.REPLY else Step(HOLD, frame, turn.until)

    def begin(self, turn: AdminTurn) -> None:
        """The request at the head has this turn."""
        self.turn = turn
        self._charge.set(len(turn.request))

    def move(self, turn: AdminTurn, now: float) -> tuple[int, bytes]:
        """The turn's next step (AdminTurn.move), begun. The caller sends the frame; after FORWARD and REPLY the turn is
        over.

        Raises:
            MalformedFrame: it can't be answered.
        """
        in_flight = self._in_flight
        try:
            move, frame = turn.move(bool(in_flight), now)
        except MalformedFrame:
            self._end()
            raise
        if move in (admin_turn.FORWARD, admin_turn.REPLY):
            self._end()
        elif move == admin_turn.SEND:
            in_flight.append((REQUEST_HEAD.unpack_from(frame)[3], ADMIN))
        elif move == admin_turn.ASK:
            self._client.world.questions.ask(self)
        return move, frame

    def may_move(self, until: float, now: float) -> bool:
        """Whether the turn, which was to wait until that time, needn't wait any longer."""
        return self.turn is not None and (now >= until or self.turn.is_ready(bool(self._in_flight)))

    @property
    def is_judged(self) -> bool:
        """The broker has answered a step of SASL, perhaps as its last word, and control says soon what the client is
        told.
        """
        return self.turn is not None and self.turn.is_judged

    def tell(self, answer: Answer) -> None:
        """Take control's answer, perhaps to a question of a turn that is over."""
        if self.turn is not None and self.turn.tell(answer):
            self.wake()

    def take_answer(self, answer: bytes) -> None:
        """Take the broker's answer to the frame that the turn had sent.

        Raises:
            Unanswerable: it is too large for control.
        """
        if self.turn is not None:
            self._charge.set(len(self.turn.request) + len(answer))
            self.turn.take(answer)

    def _end(self) -> None:
        """End the turn, if there is one."""
        if self.turn is not None:
            self._client.world.questions.open.pop(self.turn.token, None)
            self._charge.set(0)
            self.turn = None

    def close(self) -> None:
        """The connection ends, and its turn with it."""
        self._end()
        self.wake = _nothing  # else it would keep its link


def concerns_control(request: Request, world: World) -> bool:
    """Whether control has to be asked about a request of an API that it answers. Most topics are created without a key
    of the gateway's, or deleted without a threshold, and for them it needn't be there.
    """
    if request.key == api.CREATE_TOPICS:
        return request.buf.find(_OF_OURS, request.start, request.stop) >= 0
    return request.key != api.DELETE_TOPICS or _deletes_thresholds(request, world)


def _deletes_thresholds(request: Request, world: World) -> bool:
    """Whether it may delete topics that have one. One that is large is read by control, and one that is larger than
    that reads is nobody's: the broker's answer to it would be lost.
    """
    thresholds, size = world.engine.thresholds, request.stop - request.start
    if not thresholds or size > world.settings.max_admin_request_bytes:
        return False
    if size > admin_turn.MAX_REFUSED_BYTES:
        return True
    try:
        topics = topic_deletion.decode_request(request.buf, request.start, request.stop).body.topics
    except MalformedFrame:  # the broker will name its fault
        return False
    names = world.cluster.topic_ids
    return any(
        (topic_id not in names or names[topic_id] in thresholds) if name is None else name.encode() in thresholds
        for name, topic_id in topics
    )


def _nothing() -> None:
    """A session without sockets, or that has ended, has no link to wake."""
