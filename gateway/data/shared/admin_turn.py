# One admin request that control answers (configs and quotas: policies are changed by Kafka's own tools), from its
# arrival to the client's answer. Sans-IO, and blind: it reads no field of the request. Control says what goes to the
# broker and what to the client, so a request with 10,000 entries costs the worker's only thread a few copies.
#
#   earlier ──► asked ──► told ──┬─► the request passes as it is
#     ▲           ▲              ├─► the client's answer
#   answers of    └── answered ◄─┴─► sent: a frame for the broker, on the client's own connection, so that the broker
#   the requests                     judges it by the client's own rights
#   before it
#
# Requests behind it wait as long: nothing overtakes it. No frame is sent twice; control may be asked twice,
# when it was started again in between.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from protocol import api, refusal, wire
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from gateway.channel import Answer, Identity

ASK_S = 10.0  # for control to answer; clients give a request up after 30 s
# The same for requests that are too large to be refused: control needs seconds for thousands of entries, and once it is
# late nothing is left but to close the connection.
ASK_LARGE_S = 25.0
BROKER_S = 60.0  # between two looks at a broker that doesn't answer: the client gives up, not the gateway
MAX_REFUSED_BYTES = 16 * 1024  # of a request that is read here, to be refused: 300 quotas, 4 ms
MAX_ANSWER_BYTES = 64 * 2**20

_CHANGES = frozenset({api.ALTER_CONFIGS, api.INCREMENTAL_ALTER_CONFIGS, api.ALTER_CLIENT_QUOTAS, api.CREATE_TOPICS})

# States.
EARLIER = 0
ASKED = 1
TOLD = 2
SENT = 3
ANSWERED = 4

# The next step.
WAIT = 0
ASK = 1
FORWARD = 2
SEND = 3
REPLY = 4


class Unanswerable(MalformedFrame):
    """The request can neither be passed on nor answered: its connection must be closed, as by a broker that ends."""


class ControlFailed(Unanswerable):
    """Control could not answer, by a fault of its own."""


class AdminTurn:
    """`request`: the frame without its size prefix. `token`: of the question that control has not answered, 0: none.

    `lost_controls`: control processes that ended while they had the question. `until`: the time to look again, whatever
    happens; `move` keeps it. `mechanism`: of the step of SASL that `request`
    is; then control's last answer says in `identity` who the client is, or in `why` what is wrong with it.
    """

    __slots__ = (
        "_said", "answer", "identity", "lost_controls", "mechanism", "memo", "request", "state", "token", "until",
        "why",
    )  # fmt: skip

    def __init__(self, request: bytes, max_bytes: int, mechanism: str = "", memo: bytes = b"") -> None:
        """
        Raises:
            Unanswerable: the request is larger than that: control would be busy with it for long.
        """
        if len(request) > max_bytes:
            raise Unanswerable(f"{_named(request)} of {len(request)} bytes, at most {max_bytes} are allowed")
        self.request = request
        self.mechanism = mechanism
        self.memo = memo
        self.answer = b""
        self.identity: Identity | None = None
        self.why = ""
        self.state = EARLIER
        self.token = 0
        self.lost_controls = 0
        self.until = math.inf
        self._said: Answer | None = None

    def is_ready(self, owes: bool) -> bool:
        """Whether `move` has anything to say but WAIT. `owes`: earlier requests have no answer yet."""
        return self.state in (TOLD, ANSWERED) or (self.state == EARLIER and not owes)

    @property
    def is_judged(self) -> bool:
        """Control has the broker's answer to a step of SASL, or will have it at once."""
        return bool(self.mechanism and self.answer) and self.state in (ANSWERED, ASKED, TOLD)

    def move(self, owes: bool, now: float) -> tuple[int, bytes]:
        """The next step, and the frame for SEND and REPLY. After FORWARD and REPLY the turn is over.

        Raises:
            Unanswerable: see there.
        """
        if self.state == TOLD:
            return self._obey(now)
        if self.state == ANSWERED or (self.state == EARLIER and not owes):
            self.state, self.until, self.lost_controls = ASKED, now + self._ask_s, 0
            return ASK, b""
        if self.state == ASKED and now >= self.until:
            return self._go_without()
        if self.state != ASKED:
            self.until = now + BROKER_S
        return WAIT, b""

    def _obey(self, now: float) -> tuple[int, bytes]:
        said, self._said = self._said, None
        assert said is not None
        if said.closes:
            raise ControlFailed(said.why) if said.closes == "error" else Unanswerable(said.why)
        self.identity, self.why, self.memo = said.identity, said.why, said.memo
        if said.client:
            return REPLY, said.client
        if not said.upstream:
            return FORWARD, b""
        self.answer = b""
        self.state, self.until = SENT, now + BROKER_S
        return SEND, said.upstream

    def tell(self, answer: Answer) -> bool:
        """Take control's answer. False: it is to a question that isn't open any more."""
        if self.state != ASKED or answer.token != self.token:
            return False
        self._said, self.state, self.token = answer, TOLD, 0
        return True

    def take(self, answer: bytes) -> None:
        """Take the broker's answer to the frame that it was sent, without size prefix.

        Raises:
            Unanswerable: it is too large for control.
        """
        if len(answer) > MAX_ANSWER_BYTES:
            raise Unanswerable(f"{len(answer)} bytes as the answer to {_named(self.request)}")
        self.answer, self.state = answer, ANSWERED

    def _go_without(self) -> tuple[int, bytes]:
        """The step that control's answer should have said. A deletion of topics doesn't depend on it: their thresholds
        are removed when topics of their names are there again.
        """
        if _key(self.request) != api.DELETE_TOPICS:
            return REPLY, self._refuse()
        return (REPLY, wire.framed(self.answer)) if self.answer else (FORWARD, b"")

    @property
    def _ask_s(self) -> float:
        return ASK_S if len(self.request) <= MAX_REFUSED_BYTES else ASK_LARGE_S

    def _refuse(self) -> bytes:
        """Refuse the request: control is away, or has no time. It may still do the last thing that it was asked: the
        client must look.
        """
        size = len(self.request)
        if not size:
            raise Unanswerable(f"the broker could not be told within {ASK_S:.0f} s who the client is")
        if size > MAX_REFUSED_BYTES:
            raise Unanswerable(f"no answer to {_named(self.request)} of {size} bytes within {ASK_LARGE_S:.0f} s")
        text = f"the gateway's control process did not answer within {ASK_S:.0f} s"
        if _key(self.request) in _CHANGES:  # without a memo it was never asked to do anything
            text += ": describe what you changed, it may have been done" if self.memo else ": nothing was changed"
        self.why = text
        try:
            return refusal.refuse(self.request, api.REQUEST_TIMED_OUT, text)
        except MalformedFrame as error:
            raise Unanswerable(str(error)) from error


def _key(request: bytes) -> int:
    return int.from_bytes(request[:2], "big")


def _named(request: bytes) -> str:
    return api.NAMES[_key(request)]
