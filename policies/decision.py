# How several limits become one verdict: what a limit is, what all limits together say about one request, and what each
# of them is charged for the part of the request that passes.
#
# A limit is asked once per request, about everything that the request brings under it, and asking takes nothing: a
# request that one limit turns away is charged by none. The gateway, the what-if replay and explain all use this module,
# so they agree on which limits there are, in which order they are asked, and which verdict counts.
#
# Knows no wire format, no session and no clock. The caller says which limits a partition is under.

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from policies.usage import DELAYED
from policies.verdict import DELAY, HOLD, PROTECTED_TOPIC, REJECT, Verdict

Mode = Literal["enforce", "observe"]

# Part of a request, for one partition: topic, partition index, bytes, messages; further fields belong to the caller.
P = TypeVar("P", bound=tuple[bytes, int, int, int, *tuple[int, ...]])
PartitionKey = tuple[bytes, int]  # its topic and partition index
RefusedPartitions = dict[PartitionKey, Verdict]
LimitNote = tuple[P, str, str, int]  # part, one of usage.NOTES, reason, milliseconds

STRICTNESS: Final[Mapping[str, int]] = {DELAY: 0, REJECT: 1, HOLD: 2}  # HOLD: a delay would let it pass


class ClientPatience(NamedTuple):
    """How long a connection has been kept waiting, and whether it can wait longer.

    `may_delay` False: its oldest request has waited as long as it may, so a request that would have to wait for others
    is rejected. `denied_s`: seconds since the first rejection after which nothing was admitted; where there is not
    enough room for all, the connection that has been denied longest gets it first. `client`: the connection's client;
    None: not known.
    """

    may_delay: bool = True
    denied_s: float = 0.0
    client: object = None


class RequestLimit:
    """One limit, or several of one policy that are charged together. `observes`: its verdicts are only counted. What a
    limit is, and how much of it is used, each kind says itself (limits/description.py).
    """

    __slots__ = ()
    observes = False

    @property
    def mode(self) -> Mode:
        return "observe" if self.observes else "enforce"

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict | None:
        """The verdict on a request of `size` bytes in `messages` messages; None: the limit lets it pass. Charges
        nothing.
        """
        raise NotImplementedError

    def available_credit(self, client: object, now: float) -> tuple[float, float]:
        """The bytes and messages that requests of that client may bring together before `judge_request` would return a
        verdict on them; 0.0: each has to be judged. Charges nothing, and records that the client asks, as
        `judge_request` does.
        """
        return 0.0, 0.0

    def charge_request(self, size: int, messages: int, now: float) -> None:
        """The request passes: charge for it."""

    def record_only(self, size: int, messages: int) -> None:
        """The request passes, and the limit only observes it: it would have rejected it, or its client would not have
        sent it yet.

        Such bytes are metered and not charged, or other clients would have to pay for them. Below 0: they did not get
        into the log.
        """

    def refund_request(self, size: int, messages: int) -> None:
        """The request was charged, and did not get into the log."""


class PartitionLimits(NamedTuple):
    """All limits on one partition, in the order in which they are asked; of equally strict verdicts the first one
    counts.
    """

    storage: RequestLimit | None = None
    quota: RequestLimit | None = None
    group: RequestLimit | None = None
    threshold: RequestLimit | None = None
    plugin: RequestLimit | None = None


NO_LIMITS: Final = PartitionLimits()
ALL_POLICIES: Final = frozenset(PartitionLimits._fields)
NO_POLICIES: Final[frozenset[str]] = frozenset()


class AdmissionCredit(NamedTuple):
    """How much requests may bring together before `decide_request` would return a verdict on any of them: bytes and
    messages of their batches, and bytes of whole requests, which client quotas count.
    """

    limits: PartitionLimits
    size: float
    messages: float
    whole_size: float


class RequestDecision(NamedTuple, Generic[P]):
    """The decision about one request. `refused`: the partitions that are not forwarded. `delay_ms`: how long its client
    has to wait after it. `notes`: actions of limits, taken or only observed, on forwarded partitions. `limits`,
    `uncharged`: for `charge_admitted` and `refund_part`.
    """

    refused: RefusedPartitions
    delay_ms: int
    notes: list[LimitNote[P]]
    limits: Mapping[PartitionKey, PartitionLimits]
    uncharged: Collection[RequestLimit]


def decide_request(
    parts: Sequence[P],
    limits: Mapping[PartitionKey, PartitionLimits],
    patience: ClientPatience,
    now: float,
    *,
    standing: Mapping[PartitionKey, Verdict] = {},
    observed: Collection[str] = NO_POLICIES,
    would_wait: bool = False,
    one_fate: bool = False,
) -> RequestDecision[P]:
    """Ask all limits about one request. Charges nothing: see `charge_admitted`.

    Args:
        parts: the request without `standing`, each partition once.
        limits: those of each partition; a partition that is not listed has none.
        standing: partitions that are refused independently of any limit.
        observed: fields of PartitionLimits that are not enforced for this client; their verdicts are only counted.
        would_wait: the client would not have sent this yet if all limits were enforced, so those that only observe are
            not charged.
        one_fate: if the client has to send some partitions again, it has to send all of them again.
    """
    verdicts: dict[RequestLimit, Verdict] = {}
    spared: set[RequestLimit] = set()
    for limit, (size, messages, is_observed) in _loads_by_limit(parts, limits, observed).items():
        why = limit.judge_request(size, messages, patience, now)
        if why is not None:
            why = verdicts[limit] = replace(why, observed_only=True) if is_observed else why
            is_observed = why.observed_only
        # The caller may forward a refused part nevertheless (acks=0, in a gateway that stops): it is charged too.
        if is_observed and (would_wait or (why is not None and why.action != DELAY)):
            spared.add(limit)
    refused, delay_ms, notes = dict(standing), 0, []
    for part in parts if verdicts else ():
        why = strictest_verdict(verdicts.get(limit) for limit in limits.get(part[:2], NO_LIMITS) if limit is not None)
        if why is None:
            continue
        if why.observed_only:
            notes.append((part, why.would_outcome, why.reason, why.throttle_ms))
        elif why.action == DELAY:
            notes.append((part, DELAYED, why.reason, why.throttle_ms))
            delay_ms = max(delay_ms, why.throttle_ms)
        else:
            refused[part[:2]] = why
    if one_fate:
        # What is refused for good doesn't come again, so it is no reason to refuse others. Where others are to come
        # again it waits for them: a client may go by the first error of an answer, and give all of it up.
        shared = next((why for why in refused.values() if why.reason != PROTECTED_TOPIC), None)
        if shared is not None:
            for key, why in refused.items():
                if why.reason == PROTECTED_TOPIC:
                    refused[key] = replace(why, deferred=True)
            for part in parts:
                refused.setdefault(part[:2], shared)
            delay_ms, notes = 0, []  # of what would have passed
    return RequestDecision(refused, delay_ms, notes, limits, spared)


def charge_admitted(decision: RequestDecision[P], parts: Iterable[P], now: float) -> None:
    """Charge every limit for these parts of the request, which are forwarded."""
    for limit, (size, messages, _) in _loads_by_limit(parts, decision.limits).items():
        if limit in decision.uncharged:
            limit.record_only(size, messages)
        else:
            limit.charge_request(size, messages, now)


def find_credit(
    limits: PartitionLimits, client: object, now: float, observed: Collection[str] = NO_POLICIES
) -> AdmissionCredit | None:
    """What may pass under these limits now without being judged; None: each request has to be judged. Charges nothing:
    see `spend_credit`.
    """
    if observed and any(getattr(limits, policy) is not None for policy in observed):
        return None
    size = messages = whole_size = math.inf
    for limit in limits:
        if limit is None:
            continue
        if limit.observes:
            return None
        of_size, of_messages = limit.available_credit(client, now)
        messages = min(messages, of_messages)
        if limit is limits.quota:
            whole_size = of_size
        else:
            size = min(size, of_size)
    return AdmissionCredit(limits, size, messages, whole_size)


def spend_credit(limits: PartitionLimits, size: int, messages: int, whole_size: int, now: float) -> None:
    """Requests within the credit of these limits pass: charge for them."""
    for limit in limits:
        if limit is not None:
            limit.charge_request(whole_size if limit is limits.quota else size, messages, now)


def refund_credit(limits: PartitionLimits, size: int, messages: int) -> None:
    """These requests were charged by `spend_credit`, and did not get into the log."""
    for limit in limits:
        if limit is not None:
            limit.refund_request(size, messages)


def refund_part(decision: RequestDecision[P], part: P) -> None:
    """This part was forwarded, and did not get into the log: refund its charge to each limit."""
    _, _, size, messages, *_ = part
    for limit in decision.limits.get(part[:2], NO_LIMITS):
        if limit is None:
            continue
        if limit in decision.uncharged:
            limit.record_only(-size, -messages)
        else:
            limit.refund_request(size, messages)


def strictest_verdict(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The verdict that counts among several on the same batch; None if there is none. An enforced one beats an observed
    one; then a hold beats a rejection, and a rejection a delay; then the longest throttle wins; of equals the first.
    """
    return max((verdict for verdict in verdicts if verdict is not None), key=_strictness_rank, default=None)


def _strictness_rank(verdict: Verdict) -> tuple[bool, int, int]:
    action = STRICTNESS.get(verdict.action, STRICTNESS[REJECT])  # a plugin may misspell it
    return not verdict.observed_only, action, verdict.throttle_ms


def _loads_by_limit(
    parts: Iterable[P], limits: Mapping[PartitionKey, PartitionLimits], observed: Collection[str] = NO_POLICIES
) -> dict[RequestLimit, tuple[int, int, bool]]:
    """Bytes and messages of these parts under each limit, and whether the limit only observes."""
    if not limits:
        return {}
    sums: dict[int, tuple[PartitionLimits, int, int]] = {}  # many partitions of a topic are under the very same
    for part in parts:
        under = limits.get(part[:2], NO_LIMITS)
        _, size, messages = sums.get(id(under), (under, 0, 0))
        sums[id(under)] = under, size + part[2], messages + part[3]
    loads: dict[RequestLimit, tuple[int, int, bool]] = {}
    for under, size, messages in sums.values():
        for policy, limit in zip(PartitionLimits._fields, under, strict=True):
            if limit is not None:
                before = loads.get(limit)
                if before is None:
                    loads[limit] = size, messages, limit.observes or policy in observed
                else:
                    loads[limit] = size + before[0], messages + before[1], before[2]
    return loads
