# The admin requests of one connection that control answers, one after the other: what each waits for, and the memory
# that it keeps. Its turn (admin_turn.py) says what is done when; the worker brings its question to control.

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.data import admin_turn
from gateway.data.admin_turn import AdminTurn
from gateway.data.budget import Charge
from gateway.data.steps import ANSWER, FORWARDED, HOLD, Step
from protocol.framing import REQUEST_HEAD
from protocol.pending import ADMIN, PASS
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.channel import Answer
    from gateway.data.budget import Account
    from gateway.data.gate import Gate
    from gateway.data.in_flight import InFlight
    from gateway.data.steps import Request


class AdminRequests:
    """`turn`: None, or that of the request at the head. `peer`: the client's address. `wake`: the link's, to be called
    when a request needn't wait any longer.
    """

    __slots__ = ("_charge", "_gate", "_in_flight", "peer", "turn", "wake")

    def __init__(self, gate: Gate, in_flight: InFlight, account: Account) -> None:
        self._gate = gate
        self._in_flight = in_flight
        self._charge = Charge(account)
        self.turn: AdminTurn | None = None
        self.peer = ""
        self.wake: Callable[[], None] = _nothing

    @property
    def principal(self) -> str:
        """Who asks."""
        return self._gate.principal

    def take(self, request: Request, now: float) -> Step:
        """The request at the head, however often it was looked at before.

        Raises:
            MalformedFrame: it can't be answered.
        """
        world, entries = self._gate.world, self._in_flight.entries
        if self.turn is None:
            most = world.settings.max_admin_request_bytes
            self.turn = AdminTurn(bytes(memoryview(request.buf)[request.start : request.stop]), most)
            self._charge.set(request.stop - request.start)
        turn = self.turn
        try:
            move, frame = turn.move(bool(entries), now)
        except MalformedFrame:
            self.end()
            raise
        if move == admin_turn.FORWARD:
            self.end()
            entries.append((request.correlation, PASS))
            return FORWARDED
        if move == admin_turn.REPLY:
            self.end()
            return Step(ANSWER, frame)
        if move == admin_turn.SEND:
            entries.append((REQUEST_HEAD.unpack_from(frame)[3], ADMIN))
        elif move == admin_turn.ASK:
            world.ask(self)
        return Step(HOLD, frame, turn.until)

    def may_move(self, until: float, now: float) -> bool:
        """Whether the turn, which was to wait until then, needn't wait any longer."""
        return self.turn is not None and (now >= until or self.turn.is_ready(bool(self._in_flight.entries)))

    def tell(self, answer: Answer) -> None:
        """Control's answer, perhaps to a question of a turn that is over."""
        if self.turn is not None and self.turn.tell(answer):
            self.wake()

    def take_answer(self, answer: bytes) -> None:
        """The broker's, to what the turn had sent.

        Raises:
            Unanswerable: it is too large for control.
        """
        if self.turn is not None:
            self._charge.set(len(self.turn.request) + len(answer))
            self.turn.take(answer)

    def end(self) -> None:
        """The turn, if there is one, is over."""
        if self.turn is not None:
            self._gate.world.asked.pop(self.turn.token, None)
            self._charge.set(0)
            self.turn = None


def _nothing() -> None:
    """A session without sockets has no link to wake."""
