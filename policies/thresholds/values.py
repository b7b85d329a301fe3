# Thresholds of the broker side quota (V1): one total per broker, explicit ones per topic, and what is left of the total
# shared evenly by the broker's other topics. An immutable value: a change is a new one, checked as a whole first, so
# nothing is ever half-applied.
#
# What becomes of requests beyond them is up to one of two strategies with one interface: thresholds that reject
# (rejecting.py), or that delay (pacing.py). Knows no traffic: rates are meter.py's. Source: the broker side quota
# proposal (V1), low level design 1.

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from policies.decision import Patience
    from policies.thresholds.broker_meters import TopicMeter
    from policies.verdict import Verdict

from policies.units import exact_rate

TOTAL_KEY: Final = "total.bytes.in.per.sec.threshold"
TOPIC_KEY: Final = "bytes.in.per.sec.threshold"
LARGEST: Final = float(2**63 - 1)  # Kafka's LONG; so no sum of them is ever infinite


class ThresholdError(ValueError):
    """A change of thresholds that can't be: what is wrong, by how much, and what would be right."""


def check(total: float | None, topics: Mapping[str, float]) -> None:
    """Refuse thresholds that contradict each other. Units: bytes per second; `total` None = no limit.

    Raises:
        ThresholdError: a number is no rate or above LARGEST, or the explicit thresholds exceed the total together.
    """
    if total is not None and not 0 < total <= LARGEST:
        raise ThresholdError(f"{TOTAL_KEY}: {_wrong(total)} above 0{_MOST}; leave it out for no limit")
    for topic, threshold in topics.items():
        if not 0 <= threshold <= LARGEST:
            raise ThresholdError(f"{TOPIC_KEY} of topic {topic}: {_wrong(threshold)}, 0 or more{_MOST}")
    explicit = math.fsum(topics.values())
    if total is not None and explicit > total:
        raise ThresholdError(excess_text(explicit, total))


def excess_text(explicit: float, total: float) -> str:
    """What is wrong with topics that have more than the total together."""
    return (
        f"the topics' {TOPIC_KEY} sum up to {exact_rate(explicit)}, which exceeds {TOTAL_KEY} = {exact_rate(total)}"
        f" by {exact_rate(explicit - total)}: lower some of them, or raise the total to at least {exact_rate(explicit)}"
    )


_MOST: Final = f" and at most {2**63 - 1}"


def _wrong(value: float) -> str:
    text = f"{value:g}" if isinstance(value, float) and abs(value) > LARGEST else str(value)
    return f"{text if len(text) <= 30 else text[:29] + '…'} must be a finite number"


class Thresholds:
    """Checked thresholds. Treat as frozen.

    `total`: bytes per second per broker, None = no limit. `explicit`: by topic name.
    `left`: the part of the total that the topics without an explicit threshold share.
    """

    __slots__ = ("explicit", "left", "total")

    def __init__(self, total: float | None, topics: Mapping[str, float], gone: Set[bytes] = frozenset()) -> None:
        """`gone` are deleted topics: their thresholds leave the sum.

        Raises:
            ThresholdError: see `check`.
        """
        check(total, topics if not gone else {name: v for name, v in topics.items() if name.encode() not in gone})
        self.total = total
        self.explicit: dict[bytes, float] = {topic.encode(): value for topic, value in topics.items()}
        used = math.fsum(value for topic, value in self.explicit.items() if topic not in gone)
        self.left = 0.0 if total is None else max(0.0, total - used)

    @classmethod
    def accepted(cls, total: float | None, topics: Mapping[str, float], gone: Set[bytes] = frozenset()) -> Thresholds:
        """What somebody who knew more has accepted already: the sum is not judged again, as by then a topic may have
        been made again that was left out of it.
        """
        return _made(total, {topic.encode(): value for topic, value in topics.items()}, 0.0).without(gone)

    def without(self, gone: Set[bytes]) -> Thresholds:
        """The same, other topics being deleted. Not checked again: a topic that is made once more may take the sum
        above the total, and nobody is there to be refused; then nothing is left to share.
        """
        used = math.fsum(value for topic, value in self.explicit.items() if topic not in gone)
        return _made(self.total, self.explicit, 0.0 if self.total is None else max(0.0, self.total - used))

    def scaled(self, factor: float) -> Thresholds:
        """The same, each limit times `factor` (> 0): what contradicted nothing still does not."""
        explicit = {topic: value * factor for topic, value in self.explicit.items()}
        return _made(None if self.total is None else self.total * factor, explicit, self.left * factor)

    def share(self, topics: int) -> float | None:
        """The implicit threshold where `topics` topics of a broker have no explicit one; None without a total."""
        return None if self.total is None else self.left / max(1, topics)

    def warnings(self) -> tuple[str, ...]:
        """What is allowed but hardly meant."""
        if self.total is None and self.explicit:
            return (
                f"{len(self.explicit)} topics have a {TOPIC_KEY}, but without {TOTAL_KEY} nothing is ever rejected",
            )
        if self.total is not None and self.left == 0:
            return (
                f"the topics' {TOPIC_KEY} use up {TOTAL_KEY} = {exact_rate(self.total)}: the implicit threshold of"
                " every other topic is 0",
            )
        return ()


def _made(total: float | None, explicit: dict[bytes, float], left: float) -> Thresholds:
    made = Thresholds(None, {})
    made.total, made.explicit, made.left = total, explicit, left
    return made


class ThresholdStrategy:
    """What becomes of requests beyond the thresholds of one broker, whose meters tell it what changes. It alone says
    which topics have to be asked about (`TopicMeter.ask_thresholds`).

    `delays`: requests wait for the total, which is ours in part.
    """

    __slots__ = ()
    delays: ClassVar[bool]

    def judge(self, meter: TopicMeter, topic: bytes, size: int, patience: Patience, now: float) -> Verdict | None:
        """What happens to `size` bytes for a topic that has to ask. `topic`: its name; several topics may share a
        meter. Takes nothing.
        """
        raise NotImplementedError

    def take(self, meter: TopicMeter, size: int, now: float) -> None:
        """These pass: charge for them. The caller adds them to `uncounted`."""

    def spare(self, meter: TopicMeter, size: int) -> None:
        """These pass as well, and are charged to no bucket."""

    def is_limiting(self, meter: TopicMeter) -> bool:
        """Whether topic and total were beyond their thresholds when they were last looked at."""
        raise NotImplementedError

    def join(self, meter: TopicMeter) -> None:
        """A topic is new."""

    def lower_share(self) -> None:
        """The implicit share has become smaller, and nothing else has changed."""

    def refresh(self) -> None:
        """Rates or thresholds have changed."""

    def retune(self, now: float) -> None:
        """The total's threshold has changed, or our part of it."""

    def pace(self, now: float) -> None:
        """Called every pacing.PACE_S while anything delays."""

    def close_tick(self, now: float) -> None:
        """Called before the meters tick, as that sets `uncounted` to 0."""

    def take_hunger(self, now: float) -> bool:
        """Whether a request had to wait for the total since the last call, or would have to now."""
        return False

    def release(self) -> None:
        """Mark no topic any more: another strategy takes over."""
        raise NotImplementedError
