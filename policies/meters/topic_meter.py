# How much one topic brings to one upstream broker, and whether a limit has to be asked about its next batch.
#
# `TopicMeter.free_to` is that answer for the hot path: beyond it the thresholds have to be asked, a resource group, or
# storage, where it holds some topics only. It is an amount, as a limit that is asked every now and then would see only
# afterwards how much has come at once.
#
# Knows no limit, no request and no clock: limits write here what the hot path has to know of them.

from __future__ import annotations

import math

from policies.meters.meter import FleetMeter


class TopicMeter(FleetMeter):
    """bytesIn of one topic on one broker.

    `free_to`: the level of `uncounted` at which the next batch has to be asked about: `thresholds_free_to` for
    thresholds (where they reject, it will be rejected), `group_free_to` for resource groups, or always, where storage
    protection affects it (`is_affected`). `messages`: counted by the hot path like `uncounted`, for resource groups.
    `is_confirmed`: a broker has said that there is such a topic; else it may be a name that a client made up.

    `near_rate`: of `peer_rate`, what this gateway's other workers bring.

    Written by thresholds: `explicit_limit`, the topic's own threshold, None = the broker's implicit share;
    `counted_in_bucket`, of `uncounted` what the topic's bucket knows of. Written by resource groups: `by_principal`,
    `group_version`, `counted_in_group`.

    `topic_bucket`, `group_limit`: what thresholds and resource groups keep of this topic; they alone know the types.
    They are here because a look into a dictionary for each request, and forgetting what has gone, would cost more.
    """

    __slots__ = (
        "by_principal",
        "counted_in_bucket",
        "counted_in_group",
        "explicit_limit",
        "free_to",
        "group_free_to",
        "group_limit",
        "group_version",
        "is_affected",
        "is_confirmed",
        "messages",
        "name",
        "near_rate",
        "thresholds_free_to",
        "topic_bucket",
    )  # fmt: skip

    def __init__(self, name: bytes) -> None:
        super().__init__()
        self.name = name
        self.explicit_limit: float | None = None
        self.free_to = self.thresholds_free_to = self.group_free_to = math.inf
        self.is_affected = False
        self.messages = 0
        self.is_confirmed = False
        self.near_rate = 0.0
        self.topic_bucket: object = None
        self.counted_in_bucket = 0
        self.group_limit: object = None
        self.by_principal = False
        self.group_version = -1
        self.counted_in_group = 0  # of `uncounted`: what its group's limiters know of

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

    def set_affected(self, is_affected: bool) -> None:
        """Storage holds it, or does so no more."""
        if is_affected != self.is_affected:
            self.is_affected = is_affected
            self._update_free_to()

    def _update_free_to(self) -> None:
        self.free_to = -math.inf if self.is_affected else min(self.thresholds_free_to, self.group_free_to)

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
