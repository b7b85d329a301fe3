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
    from policies.groups.lines import GroupSide
    from policies.limits.bucket import Bucket
    from policies.limits.line import SoleClient
    from policies.thresholds.broker_limits import BrokerLimits


class TopicMeter(FleetMeter):
    """bytesIn of one topic on one broker.

    `free_to`: the level of `uncounted` at which the next batch has to be asked about: `thresholds_to`, and then
    `TopicThreshold` (where thresholds reject, it will be rejected), `group_to`, and then `GroupLines`, or always, where
    storage holds it (`is_held`). `messages`:
    counted by the hot path like `uncounted`, for resource groups. `limit`: explicit threshold, None = the broker's
    implicit share. `vouched`: a broker has said that there is such a topic; else it may be a name that a client made
    up. `bucket`, `seen`, `sole_client`: the pacer's own. `side`, `by_principal`, `group_version`, `settled`: those of
    GroupLines.
    """

    __slots__ = ("_limits", "bucket", "by_principal", "free_to", "group_to", "group_version", "is_held", "limit",
                 "messages", "name", "seen", "settled", "side", "sole_client", "thresholds_to", "vouched")  # fmt: skip

    def __init__(self, name: bytes, limits: BrokerLimits) -> None:
        super().__init__()
        self.name = name
        self.limit = limits.explicit(name)
        self.free_to = self.thresholds_to = self.group_to = math.inf
        self.is_held = False
        self.messages = 0
        self.vouched = False
        self.bucket: Bucket | None = None
        self.sole_client: SoleClient | None = None
        self.seen = 0
        self.side: GroupSide | None = None
        self.by_principal = False
        self.group_version = -1
        self.settled = 0  # of `uncounted`: what its group's lines know of
        self._limits = limits

    @property
    def over(self) -> bool:
        return self.uncounted >= self.free_to

    @property
    def thresholds_ask(self) -> bool:
        return self.uncounted >= self.thresholds_to

    @property
    def group_asks(self) -> bool:
        return self.uncounted >= self.group_to

    def ask_thresholds(self, asks: bool, credit: float = math.inf) -> None:
        """`credit`: bytes after which they have to be asked in any case."""
        self.thresholds_to = -math.inf if asks else self.uncounted + credit
        self._find_free()

    def ask_group(self, asks: bool, credit: float = math.inf) -> None:
        self.group_to = -math.inf if asks else self.uncounted + credit
        self._find_free()

    def hold(self, is_held: bool) -> None:
        """Storage holds it, or does so no more."""
        if is_held != self.is_held:
            self.is_held = is_held
            self._find_free()

    def _find_free(self) -> None:
        self.free_to = -math.inf if self.is_held else min(self.thresholds_to, self.group_to)

    def count_anew(self) -> None:
        """`uncounted` begins at 0 again."""
        counted = self.uncounted
        self.uncounted = 0
        self.settled -= counted
        self.thresholds_to -= counted
        self.group_to -= counted
        self.free_to -= counted

    def tick(self, ticks: int = 1) -> None:
        counted = self.uncounted
        self.count_anew()
        self.uncounted = counted
        super().tick(ticks)

    @property
    def threshold(self) -> float | None:
        """Bytes per second; None where nothing limits this topic."""
        limit = self._limits.share if self.limit is None else self.limit
        return None if limit == math.inf else limit
