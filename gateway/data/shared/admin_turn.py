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

from protocol import api, wire
from protocol.admin import refusal
from protocol.wire import MalformedFrame

if TYPE_CHECKING:
    from gateway.channel import AdminAnswer, SaslIdentity

CONTROL_TIMEOUT_S = 10.0  # for control to answer; clients give a request up after 30 s
# The same for requests that are too large to be refused: control needs seconds for thousands of entries, and once it is
# late nothing is left but to close the connection.
LARGE_CONTROL_TIMEOUT_S = 25.0
BROKER_RECHECK_S = 60.0  # between two looks at a broker that doesn't answer: the client gives up, not the gateway
MAX_REFUSED_BYTES = 16 * 1024  # of a request that is read here, to be refused: 300 quotas, 4 ms
MAX_RESPONSE_BYTES = 64 * 2**20

_CHANGING_APIS = frozenset(
    {api.ALTER_CONFIGS, api.INCREMENTAL_ALTER_CONFIGS, api.ALTER_CLIENT_QUOTAS, api.CREATE_TOPICS}
)

# States.
WAITING_FOR_EARLIER = 0
CONTROL_QUERIED = 1
CONTROL_ANSWERED = 2
BROKER_QUERIED = 3
BROKER_ANSWERED = 4

# The next step.
WAIT = 0
QUERY_CONTROL = 1
FORWARD_REQUEST = 2
SEND_TO_BROKER = 3
REPLY_TO_CLIENT = 4


class UnanswerableRequest(MalformedFrame):
    """The request can neither be forwarded nor answered: its connection must be closed, as a broker does that shuts
    down.
    """


class ControlFailed(UnanswerableRequest):
    """Control could not answer because of a bug of its own."""


class AdminTurn:
    """`request`: the frame without its size prefix. `token`: of the question that control has not answered, 0: none.

    `lost_controls`: control processes that ended while they had the question. `until`: the time to look again, whatever
    happens; `next_step` keeps it. `mechanism`: of the step of SASL that `request`
    is; then control's last answer says in `identity` who the client is, or in `why` what is wrong with it.
    """

    __slots__ = (
        "_control_answer", "answer", "identity", "lost_controls", "mechanism", "memo", "request", "state",
        "token", "until", "why",
    )  # fmt: skip

    def __init__(self, request: bytes, max_bytes: int, mechanism: str = "", memo: bytes = b"") -> None:
        """
        Raises:
            UnanswerableRequest: the request is larger than that: control would be busy with it for long.
        """
        if len(request) > max_bytes:
            raise UnanswerableRequest(f"{_api_name(request)} of {len(request)} bytes, at most {max_bytes} are allowed")
        self.request = request
        self.mechanism = mechanism
        self.memo = memo
        self.answer = b""
        self.identity: SaslIdentity | None = None
        self.why = ""
        self.state = WAITING_FOR_EARLIER
        self.token = 0
        self.lost_controls = 0
        self.until = math.inf
        self._control_answer: AdminAnswer | None = None

    def is_ready(self, owes: bool) -> bool:
        """Whether `next_step` has a step other than WAIT. `owes`: earlier requests have not been answered yet."""
        return self.state in (CONTROL_ANSWERED, BROKER_ANSWERED) or (self.state == WAITING_FOR_EARLIER and not owes)

    @property
    def is_sasl_answered(self) -> bool:
        """Control has the broker's answer to a step of SASL, or will have it at once."""
        return bool(self.mechanism and self.answer) and self.state in (
            BROKER_ANSWERED,
            CONTROL_QUERIED,
            CONTROL_ANSWERED,
        )

    def next_step(self, owes: bool, now: float) -> tuple[int, bytes]:
        """The next step, and the frame of SEND_TO_BROKER and REPLY_TO_CLIENT. The turn is over after REPLY_TO_CLIENT
        and FORWARD_REQUEST.

        Raises:
            UnanswerableRequest: see there.
        """
        if self.state == CONTROL_ANSWERED:
            return self._apply_control_answer(now)
        if self.state == BROKER_ANSWERED or (self.state == WAITING_FOR_EARLIER and not owes):
            self.state, self.until, self.lost_controls = CONTROL_QUERIED, now + self._control_timeout_s, 0
            return QUERY_CONTROL, b""
        if self.state == CONTROL_QUERIED and now >= self.until:
            return self._step_without_control()
        if self.state != CONTROL_QUERIED:
            self.until = now + BROKER_RECHECK_S
        return WAIT, b""

    def _apply_control_answer(self, now: float) -> tuple[int, bytes]:
        answer, self._control_answer = self._control_answer, None
        assert answer is not None
        if answer.closes:
            raise ControlFailed(answer.why) if answer.closes == "error" else UnanswerableRequest(answer.why)
        self.identity, self.why, self.memo = answer.identity, answer.why, answer.memo
        if answer.client:
            return REPLY_TO_CLIENT, answer.client
        if not answer.upstream:
            return FORWARD_REQUEST, b""
        self.answer = b""
        self.state, self.until = BROKER_QUERIED, now + BROKER_RECHECK_S
        return SEND_TO_BROKER, answer.upstream

    def on_control_answer(self, answer: AdminAnswer) -> bool:
        """Control's answer. False: it belongs to a query that is no longer open."""
        if self.state != CONTROL_QUERIED or answer.token != self.token:
            return False
        self._control_answer, self.state, self.token = answer, CONTROL_ANSWERED, 0
        return True

    def on_broker_answer(self, answer: bytes) -> None:
        """The broker's answer to the turn's frame, without its size prefix.

        Raises:
            UnanswerableRequest: it is too large for control.
        """
        if len(answer) > MAX_RESPONSE_BYTES:
            raise UnanswerableRequest(f"{len(answer)} bytes as the answer to {_api_name(self.request)}")
        self.answer, self.state = answer, BROKER_ANSWERED

    def _step_without_control(self) -> tuple[int, bytes]:
        """The step to take when control does not answer. A deletion of topics doesn't depend on control: it removes
        their thresholds when topics of these names exist again.
        """
        if _api_key(self.request) != api.DELETE_TOPICS:
            return REPLY_TO_CLIENT, self._refuse_request()
        return (REPLY_TO_CLIENT, wire.with_size_prefix(self.answer)) if self.answer else (FORWARD_REQUEST, b"")

    @property
    def _control_timeout_s(self) -> float:
        return CONTROL_TIMEOUT_S if len(self.request) <= MAX_REFUSED_BYTES else LARGE_CONTROL_TIMEOUT_S

    def _refuse_request(self) -> bytes:
        """Refuse the request: control is down, or too slow. Control may still make the change that it was last asked
        for, so the client has to check.
        """
        size = len(self.request)
        if not size:
            raise UnanswerableRequest(
                f"the gateway did not authenticate to the broker for the client within {CONTROL_TIMEOUT_S:.0f} s"
            )
        if size > MAX_REFUSED_BYTES:
            raise UnanswerableRequest(
                f"no answer to {_api_name(self.request)} of {size} bytes within {LARGE_CONTROL_TIMEOUT_S:.0f} s"
            )
        text = f"the gateway's control process did not answer within {CONTROL_TIMEOUT_S:.0f} s"
        if _api_key(self.request) in _CHANGING_APIS:  # without a memo it was never asked to do anything
            text += "; check whether the change was made" if self.memo else "; nothing was changed"
        self.why = text
        try:
            return refusal.refuse_request(self.request, api.REQUEST_TIMED_OUT, text)
        except MalformedFrame as error:
            raise UnanswerableRequest(str(error)) from error


def _api_key(request: bytes) -> int:
    return int.from_bytes(request[:2], "big")


def _api_name(request: bytes) -> str:
    return api.API_NAMES[_api_key(request)]
