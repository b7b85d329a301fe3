# The admin requests of one connection that control answers, one after the other: what each waits for, and the memory
# that it keeps. Its turn (admin_turn.py) says what is done when; the worker brings its question to control.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.pending.pending import ADMIN, PASS
from gateway.data.pending.steps import ANSWER, FORWARDED, HOLD, RequestStep
from gateway.data.shared import admin_turn
from gateway.data.shared.admin_turn import AdminTurn
from gateway.data.shared.budget import MemoryCharge
from protocol import api, topic_deletion
from protocol.framing import REQUEST_HEAD
from protocol.wire import MalformedFrame

_THRESHOLD_SUFFIX = b".per.sec.threshold"  # in each config key of topics and brokers that the gateway keeps

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.channel import AdminAnswer
    from gateway.data.pending.in_flight import InFlightRequests
    from gateway.data.pending.steps import ApiRequest
    from gateway.data.shared.budget import MemoryAccount
    from gateway.data.shared.client import ConnectedClient
    from gateway.data.shared.worker_state import WorkerState


class AdminRequests:
    """`turn`: None, or that of the request at the head. `peer`: the client's address. `wake_link`: the link's, to be
    called when a request needn't wait any longer.
    """

    __slots__ = ("_charge", "_client", "_in_flight", "peer", "turn", "wake_link")

    def __init__(self, client: ConnectedClient, in_flight: InFlightRequests, account: MemoryAccount) -> None:
        self._client = client
        self._in_flight = in_flight
        self._charge = MemoryCharge(account)
        self.turn: AdminTurn | None = None
        self.peer = ""
        self.wake_link: Callable[[], None] = _do_nothing

    @property
    def principal(self) -> str:
        """The client's principal."""
        return self._client.principal

    @property
    def listener(self) -> str:
        """Where the client is connected."""
        return self._client.listener

    def handle_request(self, request: ApiRequest, now: float) -> RequestStep:
        """The request at the head, however often it was looked at before.

        Raises:
            MalformedFrame: it can't be answered.
        """
        turn = self.turn
        if turn is None:
            most = self._client.world.settings.max_admin_request_bytes
            turn = AdminTurn(bytes(memoryview(request.buf)[request.start : request.stop]), most)
            self.begin_turn(turn)
        move, frame = self.advance_turn(turn, now)
        if move == admin_turn.FORWARD_REQUEST:
            self._in_flight.append((request.correlation, PASS))
            return FORWARDED
        return (
            RequestStep(ANSWER, frame) if move == admin_turn.REPLY_TO_CLIENT else RequestStep(HOLD, frame, turn.until)
        )

    def begin_turn(self, turn: AdminTurn) -> None:
        """The request at the head has this turn."""
        self.turn = turn
        self._charge.update_size(len(turn.request))

    def advance_turn(self, turn: AdminTurn, now: float) -> tuple[int, bytes]:
        """The turn's next step (AdminTurn.move), begun. The caller sends the frame; after FORWARD and REPLY the turn is
        over.

        Raises:
            MalformedFrame: it can't be answered.
        """
        in_flight = self._in_flight
        try:
            move, frame = turn.next_step(bool(in_flight), now)
        except MalformedFrame:
            self._end_turn()
            raise
        if move in (admin_turn.FORWARD_REQUEST, admin_turn.REPLY_TO_CLIENT):
            self._end_turn()
        elif move == admin_turn.SEND_TO_BROKER:
            in_flight.append((REQUEST_HEAD.unpack_from(frame)[3], ADMIN))
        elif move == admin_turn.QUERY_CONTROL:
            self._client.world.control_queries.send_query(self)
        return move, frame

    def can_advance(self, until: float, now: float) -> bool:
        """Whether the turn, which was to wait until that time, needn't wait any longer."""
        return self.turn is not None and (now >= until or self.turn.is_ready(bool(self._in_flight)))

    @property
    def is_sasl_answered(self) -> bool:
        """The broker has answered a step of SASL, perhaps as its last word, and control says soon what the client is
        told.
        """
        return self.turn is not None and self.turn.is_sasl_answered

    def on_control_answer(self, answer: AdminAnswer) -> None:
        """Take control's answer, perhaps to a question of a turn that is over."""
        if self.turn is not None and self.turn.on_control_answer(answer):
            self.wake_link()

    def on_broker_answer(self, answer: bytes) -> None:
        """Take the broker's answer to the frame that the turn had sent.

        Raises:
            Unanswerable: it is too large for control.
        """
        if self.turn is not None:
            self._charge.update_size(len(self.turn.request) + len(answer))
            self.turn.on_broker_answer(answer)

    def _end_turn(self) -> None:
        """End the turn, if there is one."""
        if self.turn is not None:
            self._client.world.control_queries.pending.pop(self.turn.token, None)
            self._charge.update_size(0)
            self.turn = None

    def close(self) -> None:
        """The connection ends, and its turn with it."""
        self._end_turn()
        self.wake_link = _do_nothing  # else it would keep its link


def concerns_control(request: ApiRequest, world: WorkerState) -> bool:
    """Whether control has to be asked about a request of an API that it answers. Most topics are created without a key
    of the gateway's, or deleted without a threshold, and for them it needn't be there.
    """
    if request.key == api.CREATE_TOPICS:
        return request.buf.find(_THRESHOLD_SUFFIX, request.start, request.stop) >= 0
    return request.key != api.DELETE_TOPICS or _deletes_thresholds(request, world)


def _deletes_thresholds(request: ApiRequest, world: WorkerState) -> bool:
    """Whether it may delete topics that have one. One that is large is read by control, and one that is larger than
    that reads is nobody's: the broker's answer to it would be lost.
    """
    thresholds, size = world.engine.topic_thresholds, request.stop - request.start
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


def _do_nothing() -> None:
    """A session without sockets, or that has ended, has no link to wake."""
