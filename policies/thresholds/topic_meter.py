# How much one topic brings to one upstream broker, and whether a limit has to be asked about its next batch.
#
# `TopicMeter.free_to` is that answer for the hot path: beyond it the thresholds have to be asked (rejecting.py,
# pacing.py), a resource group (groups/lines.py), or storage, where it holds some topics only. It is an amount, as
# whoever is asked every now and then would see only afterwards how much has come at once. Knows no request and no
# clock.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from policies.limits.meter import FleetMeter

if TYPE_CHECKING:
    from policies.groups.group_limiters import GroupLimit
    from policies.limits.bucket import TokenBucket
    from policies.limits.limiter import SoleClient
    from policies.thresholds.broker_limits import BrokerLimits


class TopicMeter(FleetMeter):
    """bytesIn of one topic on one broker.

    `free_to`: the level of `uncounted` at which the next batch has to be asked about: `thresholds_free_to`, and then
    `TopicThreshold` (where thresholds reject, it will be rejected), `group_free_to`, and then `GroupLines`, or always,
    where storage holds it (`is_held`). `messages`: counted by the hot path like `uncounted`, for resource groups.
    `explicit_limit`: explicit threshold, None = the broker's implicit share. `is_confirmed`: a broker has said that
    there is such a topic; else it may be a name that a client made up. `pacing_bucket`, `counted_in_bucket`,
    `sole_client`: the pacer's own. `group_limit`, `by_principal`, `group_version`, `counted_in_group`: those of
    GroupLines.
    """

    __slots__ = (
        "_limits",
        "by_principal",
        "counted_in_bucket",
        "counted_in_group",
        "explicit_limit",
        "free_to",
        "group_free_to",
        "group_limit",
        "group_version",
        "is_confirmed",
        "is_held",
        "messages",
        "name",
        "pacing_bucket",
        "sole_client",
        "thresholds_free_to",
    )  # fmt: skip

    def __init__(self, name: bytes, limits: BrokerLimits) -> None:
        super().__init__()
        self.name = name
        self.explicit_limit = limits.explicit_threshold(name)
        self.free_to = self.thresholds_free_to = self.group_free_to = math.inf
        self.is_held = False
        self.messages = 0
        self.is_confirmed = False
        self.pacing_bucket: TokenBucket | None = None
        self.sole_client: SoleClient | None = None
        self.counted_in_bucket = 0
        self.group_limit: GroupLimit | None = None
        self.by_principal = False
        self.group_version = -1
        self.counted_in_group = 0  # of `uncounted`: what its group's lines know of
        self._limits = limits

    @property
    def needs_decision(self) -> bool:
        return self.uncounted >= self.free_to

    @property
    def thresholds_ask(self) -> bool:
        return self.uncounted >= self.thresholds_free_to

    @property
    def group_asks(self) -> bool:
        return self.uncounted >= self.group_free_to

    def set_thresholds_ask(self, asks: bool, credit: float = math.inf) -> None:
        """`credit`: bytes after which they have to be asked in any case."""
        self.thresholds_free_to = -math.inf if asks else self.uncounted + credit
        self._update_free_to()

    def set_group_asks(self, asks: bool, credit: float = math.inf) -> None:
        self.group_free_to = -math.inf if asks else self.uncounted + credit
        self._update_free_to()

    def set_held(self, is_held: bool) -> None:
        """Storage holds it, or does so no more."""
        if is_held != self.is_held:
            self.is_held = is_held
            self._update_free_to()

    def _update_free_to(self) -> None:
        self.free_to = -math.inf if self.is_held else min(self.thresholds_free_to, self.group_free_to)

    def reset_count(self) -> None:
        """`uncounted` begins at 0 again."""
        counted = self.uncounted
        self.uncounted = 0
        self.counted_in_group -= counted
        self.thresholds_free_to -= counted
        self.group_free_to -= counted
        self.free_to -= counted

    def tick(self, ticks: int = 1) -> None:
        counted = self.uncounted
        self.reset_count()
        self.uncounted = counted
        super().tick(ticks)

    @property
    def effective_threshold(self) -> float | None:
        """Bytes per second; None where nothing limits this topic."""
        limit = self._limits.implicit_share if self.explicit_limit is None else self.explicit_limit
        return None if limit == math.inf else limit
