# The admin requests of one connection that control answers, one after the other: what each waits for, and the memory
# that it keeps. Its turn (admin_turn.py) says what is done when; the worker brings its question to control.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data.pending.pending import ADMIN, PASS
from gateway.data.pending.steps import ANSWER, FORWARDED, HOLD, RequestStep
from gateway.data.shared import admin_turn
from gateway.data.shared.admin_turn import AdminTurn
from gateway.data.shared.budget import MemoryCharge
from protocol import api
from protocol.admin import topic_deletion
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
    """Admin requests of one connection that control answers. `turn`: that of the request at the head, or None. `peer`:
    the client's address. `wake_link`: the link's callback for when a request no longer has to wait.
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
        """The name of the listener that the client is connected to."""
        return self._client.listener

    def handle_request(self, request: ApiRequest, now: float) -> RequestStep:
        """Handle the request at the head; it may have been handled before, without a result yet.

        Raises:
            MalformedFrame: it can't be answered.
        """
        turn = self.turn
        if turn is None:
            most = self._client.world.limits.max_admin_request
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
        """Begin this turn for the request at the head."""
        self.turn = turn
        self._charge.update_size(len(turn.request))

    def advance_turn(self, turn: AdminTurn, now: float) -> tuple[int, bytes]:
        """Take the turn's next step (AdminTurn.next_step). The caller sends the frame; the turn is over after
        REPLY_TO_CLIENT and FORWARD_REQUEST.

        Raises:
            MalformedFrame: the request can't be answered.
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
        """Whether the turn can advance before the time until which it was to wait."""
        return self.turn is not None and (now >= until or self.turn.is_ready(bool(self._in_flight)))

    @property
    def is_sasl_answered(self) -> bool:
        """The broker has answered a step of SASL, perhaps the last one; control will soon say what the client gets."""
        return self.turn is not None and self.turn.is_sasl_answered

    def on_control_answer(self, answer: AdminAnswer) -> None:
        """Control's answer, perhaps to a query of a turn that is over."""
        if self.turn is not None and self.turn.on_control_answer(answer):
            self.wake_link()

    def on_broker_answer(self, answer: bytes) -> None:
        """The broker's answer to the frame that the turn sent.

        Raises:
            UnanswerableRequest: it is too large for control.
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
    """Whether control has to decide about this request, of an API that control answers. Most topics are created without
    a key of the gateway's, or deleted without a threshold; such requests don't need control.
    """
    if request.key == api.CREATE_TOPICS:
        return request.buf.find(_THRESHOLD_SUFFIX, request.start, request.stop) >= 0
    return request.key != api.DELETE_TOPICS or _deletes_thresholds(request, world)


def _deletes_thresholds(request: ApiRequest, world: WorkerState) -> bool:
    """Whether the request may delete topics that have a threshold. Control reads requests that are too large to read
    here. Requests that are too large even for control pass unread, since the broker's answers to them would be lost.
    """
    thresholds, size = world.engine.topic_thresholds, request.stop - request.start
    if not thresholds or size > world.limits.max_admin_request:
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
    """The wake callback of a session without sockets, or of one that has ended."""
