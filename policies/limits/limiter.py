# A limit that makes its clients wait in one queue: a token bucket that lets a request pass at once and says how long
# to wait afterwards, and that turns away whom it has no room for. The bucket's debt is the queue: no list is kept.
#
# `check_admission` charges nothing, so that a request under several limits can ask all of them first and is charged by
# none where one turns it away; `charge_amount` does. Knows no request and no clock: `now` is seconds on a monotonic
# clock.
#
# Every byte taken is paid back, or a limit could be exceeded by requests large enough. Where all under it are one
# entity, they wait for all of it: they wait for themselves. Strangers would wait for what one of them took, so they
# wait for DEBT_S of it at most. The rest is paid from what they leave, and until then no request as large passes.
#
# A client that can't wait any longer would send again what is turned away. Where it waits only for itself it is let
# pass instead, until DEBT_S are owed: it may have so much in advance, once, and no more than the limit from then on.
# Among independent clients that is so while no other one asks, as far as this worker knows.

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from policies.limits.bucket import TokenBucket
from policies.verdict import DELAYED_BY, MAX_DELAY_MS, MAX_THROTTLE_MS, QUEUE_FULL, WAITED_LONG

if TYPE_CHECKING:
    from policies.decision import ClientPatience

MAX_WAIT_S: Final = MAX_THROTTLE_MS / 1000
MAX_DELAY_S: Final = MAX_DELAY_MS / 1000
MIN_WAIT_S: Final = 0.01  # shorter waits are not worth a timer: the debt stays and the next request waits for both
# Of the wait that isn't worth one, this much is credit: however it is rounded, less than MIN_WAIT_S is owed after it.
CREDIT_S: Final = MIN_WAIT_S * (1.0 - 1e-6)
BURST_S: Final = 1.0  # limits are bytes per second: an idle second's worth may come at once
DEBT_S: Final = 3 * MAX_WAIT_S
ASK_BELOW_S: Final = 0.5  # seconds of credit, of BURST_S, below which traffic has to ask about each request …
ASK_UNTIL_S: Final = 0.75  # … until there is as much again
# Where more connections want to send than MAX_WAIT_S has room for, the same ones would always come just in time. So
# a connection may join a longer queue the longer it was refused: by half of this after this many seconds, never more …
MAX_PATIENCE_S: Final = 5.0
HALF_PATIENCE_S: Final = 60.0
# … and those who are turned away come back after this part of MAX_WAIT_S or more, spread evenly.
_EARLIEST: Final = 0.5
RECHECK_S: Final = 1.0, 2.0  # after which it is asked again: thousands may wait for the same room; and limits change
_GOLDEN: Final = 0.6180339887498949  # fractional parts of its multiples are spread evenly at every length


class AdmissionResult(NamedTuple):
    """`wait_s`: seconds, not bounded; with 0.0 and `admitted` the request passes at once. `late`: only this connection
    can't wait any longer. `room_in_s`: where the queue is full, the seconds until it has room, if no other connection
    joins it.
    """

    admitted: bool
    wait_s: float
    late: bool = False
    room_in_s: float = 0.0

    @property
    def throttle_ms(self) -> int:
        """The wait in milliseconds, as in a verdict."""
        return min(math.ceil(self.wait_s * 1000), MAX_DELAY_MS if self.admitted else MAX_THROTTLE_MS)

    @property
    def outcome(self) -> str:
        """The outcome in the words of a verdict."""
        return DELAYED_BY if self.admitted else WAITED_LONG if self.late else QUEUE_FULL


AT_ONCE: Final = AdmissionResult(True, 0.0)


def recheck_delay_s(room_in: float) -> float:
    """Seconds after which a held request is judged again; `room_in`: see AdmissionResult.room_in_s."""
    soonest, last = RECHECK_S
    return min(max(soonest, room_in), last)


class QueueAdmission:
    """Decides which request may join a limiter's queue, and when the others may try again."""

    __slots__ = ("_spread",)

    def __init__(self) -> None:
        self._spread = 0.0

    def find_refusal(
        self,
        ahead: float,
        after: float,
        may_wait: bool,
        denied_s: float,
        longest: float = DEBT_S,
        owes_more: bool = False,
    ) -> AdmissionResult | None:
        """Why the request may not join the queue; None: it may.

        `ahead`: seconds of debt before it; `after`: including its own size. `may_wait` False: the connection has waited
        as long as it may. `denied_s`: seconds since its first rejection. `longest`: the most seconds of debt that a
        client waits for. `owes_more`: there is more debt than that.

        A request's own size doesn't count against the room, or large requests would never find any among small ones;
        unless no client would wait for all of it. Such a request passes when no request is before it, and nothing is
        owed for others like it.
        """
        room = MAX_WAIT_S + MAX_PATIENCE_S * denied_s / (denied_s + HALF_PATIENCE_S)
        if ahead > room or (after > longest and (ahead >= MIN_WAIT_S or owes_more)):
            self._spread = (self._spread + _GOLDEN) % 1.0
            wait = MAX_WAIT_S * (_EARLIEST + (1.0 - _EARLIEST) * self._spread)
            return AdmissionResult(False, wait, room_in_s=max(MIN_WAIT_S, ahead - room if ahead > room else ahead))
        if not may_wait and ahead >= MIN_WAIT_S:
            return AdmissionResult(False, ahead, late=True)
        return None


class SoleClient:
    """Detects that a single client uses a limit: no other one has asked for DEBT_S, the longest that a client waits."""

    __slots__ = ("_client", "_since")

    def __init__(self) -> None:
        self._client: object = None
        self._since = -math.inf  # the time of the first question behind another client's

    def is_alone(self, client: object, now: float) -> bool:
        """`client`: the client that asks now; None: not known."""
        if client is not None and client != self._client:
            self._since = now if self._client is not None else -math.inf
            self._client = client
        return client is not None and now - self._since >= DEBT_S


class RateLimiter:
    """One limit of `rate` bytes per second for all its clients. `own`: the clients are one entity, which waits for all
    of its debt; otherwise they are independent of each other.
    """

    __slots__ = ("_admission", "_sole_client", "bucket", "own")

    def __init__(self, rate: float, now: float, *, own: bool = False, bucket: TokenBucket | None = None) -> None:
        """
        Raises:
            ValueError: the rate never pays a debt.
        """
        self.own = own
        self.bucket = bucket or TokenBucket(rate, BURST_S, math.inf if own else DEBT_S, now)
        self._admission = QueueAdmission()
        self._sole_client = SoleClient()

    def check_admission(
        self, size: float, now: float, may_wait: bool, denied_s: float, client: object = None
    ) -> AdmissionResult:
        """Whether `size` bytes of `client` may pass, and how long their connection then waits. Charges nothing."""
        bucket = self.bucket
        level, rate = bucket.token_level(now), bucket.rate
        after, longest = max(0.0, (size - level) / rate), bucket.max_debt / rate
        refusal = self._admission.find_refusal(
            max(0.0, -level / rate), after, may_wait, denied_s, longest, bucket.excess_debt > 0.0
        )
        waits_for_itself = self.own or self._sole_client.is_alone(client, now)
        if refusal is not None and (may_wait or not waits_for_itself or bucket.owed_tokens > DEBT_S * rate):
            return refusal
        return AdmissionResult(True, min(after, longest)) if after >= MIN_WAIT_S else AT_ONCE

    def available_credit(self, client: object, now: float) -> float:
        """The bytes that requests of that client may bring together while `check_admission` returns AT_ONCE; 0 or less:
        none. Charges nothing.
        """
        if not self.own:
            self._sole_client.is_alone(client, now)  # it asks
        return self.bucket.token_level(now) + CREDIT_S * self.bucket.rate

    def charge_amount(self, size: float, now: float) -> None:
        """These bytes pass: charge them."""
        self.bucket.consume_tokens(size, now)

    def refund_amount(self, size: float) -> None:
        """These bytes passed, and did not get into the log."""
        self.bucket.refund_tokens(size)


L = TypeVar("L", bound=RateLimiter)


def check_limiters(
    asked: Iterable[tuple[L, float]], patience: ClientPatience, now: float
) -> tuple[AdmissionResult, L | None]:
    """The result of several limiters together, each checked with an amount of its own, and the deciding limiter: a
    refusal, else the longest wait; None: the request passes all of them. Charges nothing.
    """
    worst, whose = AT_ONCE, None
    for limiter, amount in asked:
        answer = limiter.check_admission(amount, now, patience.may_delay, patience.denied_s, patience.client)
        if (not answer.admitted, answer.wait_s) > (not worst.admitted, worst.wait_s):
            worst, whose = answer, limiter
    return worst, whose
