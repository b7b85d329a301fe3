# What thresholds do where they are exceeded: reject (rejecting.py) or delay (pacing.py), behind one interface. The
# meters of a broker have one of the two, and tell it what changes.
#
# Whichever it is, it alone says which topics have to be asked about (`TopicMeter.ask_thresholds`). Knows no request.

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from policies.broker_meters import TopicMeter
    from policies.decision import Patience
    from policies.verdict import Verdict


class ThresholdStrategy:
    """`delays`: requests wait for the total, which is ours in part."""

    __slots__ = ()
    delays: ClassVar[bool]

    def judge(self, meter: TopicMeter, topic: bytes, size: int, patience: Patience, now: float) -> Verdict | None:
        """What happens to `size` bytes for a topic that has to ask; `topic`: its name, also where several share a
        meter. Takes nothing.
        """
        raise NotImplementedError

    def take(self, meter: TopicMeter, size: int, now: float) -> None:
        """These pass, and will be added to `uncounted`."""

    def spare(self, meter: TopicMeter, size: int) -> None:
        """These will be added to `uncounted` as well, and nobody has to pay for them."""

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
        """Whether anybody had to wait for the total since the last call, or has to just now."""
        return False

    def release(self) -> None:
        """Ask about no topic any more: it is replaced."""
        raise NotImplementedError
