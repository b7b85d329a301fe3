# How several limits become one verdict: what a limit is, what all limits together say about one request, and what each
# of them is charged for the part of the request that passes.
#
# A limit is asked once per request, about everything that the request brings under it, and asking takes nothing: a
# request that one limit turns away is charged by none. The gateway, the what-if replay and explain all use this module,
# so they agree on which limits there are, in which order they are asked, and which verdict counts.
#
# Knows no wire format, no session and no clock. The caller says which limits a partition is under.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Generic, NamedTuple, TypeVar

from policies.usage import DELAYED
from policies.verdict import DELAY, HOLD, PROTECTED_TOPIC, REJECT, Verdict

# Part of a request, for one partition: topic, partition index, bytes, messages; further fields belong to the caller.
P = TypeVar("P", bound=tuple[bytes, int, int, int, *tuple[int, ...]])
Key = tuple[bytes, int]  # its topic and partition index
Refused = dict[Key, Verdict]
Note = tuple[P, str, str, int]  # part, one of usage.NOTES, reason, milliseconds

STRICTNESS: Final[Mapping[str, int]] = {DELAY: 0, REJECT: 1, HOLD: 2}  # HOLD: a delay would let it pass


class Patience(NamedTuple):
    """How long a connection has been kept from sending, and whether it can be kept longer.

    `may_delay` False: its oldest request has waited as long as it may, so a request that would have to wait for others
    is rejected. `denied_s`: seconds since its first rejection behind which nothing was admitted; where there is not
    enough for all, a connection that was denied for longer finds room first.
    """

    may_delay: bool = True
    denied_s: float = 0.0


class Limit:
    """One limit, or several of one policy that are charged together. `observes`: its verdicts are only counted."""

    __slots__ = ()
    observes = False

    def judge(self, size: int, messages: int, patience: Patience, now: float) -> Verdict | None:
        """What happens to a request that brings `size` bytes in `messages` messages; None = nothing. Takes nothing."""
        raise NotImplementedError

    def take(self, size: int, messages: int, now: float) -> None:
        """These pass: charge for them."""

    def spare(self, size: int) -> None:
        """These pass although this limit would have rejected them: other clients must not pay for them."""


class Limits(NamedTuple):
    """All limits that one partition is under, in the order in which they are asked; of equally strict verdicts the
    first one counts.
    """

    storage: Limit | None = None
    quota: Limit | None = None
    group: Limit | None = None
    threshold: Limit | None = None
    plugin: Limit | None = None


NO_LIMITS: Final = Limits()


class Decision(NamedTuple, Generic[P]):
    """What happens to one request.

    `refused`: what of it is not forwarded. `delay_ms`: how long its client has to wait after it. `notes`: what the
    limits did, or would have done, to what is forwarded. `limits`, `spared`: for `admit`.
    """

    refused: Refused
    delay_ms: int
    notes: list[Note[P]]
    limits: Mapping[Key, Limits]
    spared: frozenset[Limit]


def decide(
    parts: Sequence[P],
    limits: Mapping[Key, Limits],
    patience: Patience,
    now: float,
    *,
    standing: Mapping[Key, Verdict] = {},
    observes: bool = False,
    one_fate: bool = False,
) -> Decision[P]:
    """Ask all limits about one request. Takes nothing: see `admit`.

    Args:
        parts: the request but for `standing`, each partition once.
        limits: what each of them is under; those that are not in it are under none.
        standing: what is refused whatever the limits say.
        observes: no limit is enforced, all verdicts are only counted.
        one_fate: where some partitions are refused, all are.
    """
    said: dict[Limit, Verdict] = {}
    for limit, (size, messages) in _loads(parts, limits).items():
        why = limit.judge(size, messages, patience, now)
        if why is not None:
            said[limit] = replace(why, observed_only=True) if limit.observes else why
    refused, delay_ms, notes = dict(standing), 0, []
    for part in parts if said else ():
        why = strictest(said.get(limit) for limit in limits.get(part[:2], NO_LIMITS) if limit is not None)
        if why is None:
            continue
        if why.observed_only or observes:
            notes.append((part, why.would, why.reason, why.throttle_ms))
        elif why.action == DELAY:
            notes.append((part, DELAYED, why.reason, why.throttle_ms))
            delay_ms = max(delay_ms, why.throttle_ms)
        else:
            refused[part[:2]] = why
    if one_fate and refused:
        # If one is refused for good, all are: retried, the request would be refused for ever.
        first = min(refused.values(), key=lambda why: why.reason != PROTECTED_TOPIC)
        for part in parts:
            refused.setdefault(part[:2], first)
    # What an enforced limit refused may be forwarded all the same (acks=0 whose client has gone), and is charged then.
    spared = frozenset(limit for limit, why in said.items() if why.action != DELAY and (observes or why.observed_only))
    return Decision(refused, delay_ms, notes, limits, spared)


def admit(decision: Decision[P], parts: Iterable[P], now: float) -> None:
    """Charge every limit for these parts of the request, which are forwarded."""
    for limit, (size, messages) in _loads(parts, decision.limits).items():
        if limit in decision.spared:
            limit.spare(size)
        else:
            limit.take(size, messages, now)


def strictest(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The one that counts among several verdicts on the same batch; None if there is none.

    What is enforced beats what is only observed, then a hold beats a rejection and a rejection a delay, then the longer
    throttle wins; the first of equals.
    """
    return max((verdict for verdict in verdicts if verdict is not None), key=_rank, default=None)


def _rank(verdict: Verdict) -> tuple[bool, int, int]:
    action = STRICTNESS.get(verdict.action, STRICTNESS[REJECT])  # a plugin may misspell it
    return not verdict.observed_only, action, verdict.throttle_ms


def _loads(parts: Iterable[P], limits: Mapping[Key, Limits]) -> dict[Limit, tuple[int, int]]:
    """Bytes and messages that these parts bring under each limit."""
    loads: dict[Limit, tuple[int, int]] = {}
    for part in parts:
        for limit in limits.get(part[:2], NO_LIMITS):
            if limit is not None:
                size, messages = loads.get(limit, (0, 0))
                loads[limit] = size + part[2], messages + part[3]
    return loads
