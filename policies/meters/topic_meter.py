# How much one topic brings to one upstream broker, and whether a limit has to be asked about its next batch.
#
# `TopicMeter.ask_at` is that answer for the hot path: from there on the thresholds have to be asked, a resource group,
# or storage, where it holds some topics only. It is an amount, as a limit that is asked every now and then would see
# only afterwards how much has come at once.
#
# Knows no limit, no request and no clock: limits write here what the hot path has to know of them.

from __future__ import annotations

import math
from typing import Any, Final

from policies.meters.meter import FleetMeter

# Credits that no number of bytes uses up, or brings back.
ALWAYS_ASK: Final = -math.inf
NEVER_ASK: Final = math.inf


class TopicMeter(FleetMeter):
    """bytesIn of one topic on one broker.

    Attributes:
        ask_at: the level of `uncounted` from which on the next batch has to be asked about: the lower one of
            `ask_thresholds_at` and `ask_group_at`, those of thresholds and of the topic's resource group; always,
            where storage protection affects it (`is_affected`).
        messages: counted by the hot path like `uncounted`, for resource groups.
        is_confirmed: a broker has said that there is such a topic; else it may be a name that a client made up.
        near_rate: of `peer_rate`, what this gateway's other workers bring.
        explicit_limit: written by thresholds: the topic's own one; None: the broker's implicit share.
        topic_bucket: the thresholds' bucket of this topic. `counted_in_bucket`: of `uncounted`, what that has seen.
        group_limit: the resource group's limit, of version `group_version`. `counted_in_group`: of `uncounted`, what
            that has seen. `by_principal`: the client's principal says which group it is, not the topic.

    The types of `topic_bucket` and `group_limit` are known to their writers alone. They are here because a look into a
    dictionary for each request, and forgetting what has gone, would cost more.
    """

    __slots__ = (
        "ask_at",
        "ask_group_at",
        "ask_thresholds_at",
        "by_principal",
        "counted_in_bucket",
        "counted_in_group",
        "explicit_limit",
        "group_limit",
        "group_version",
        "is_affected",
        "is_confirmed",
        "messages",
        "name",
        "near_rate",
        "topic_bucket",
    )  # fmt: skip

    def __init__(self, name: bytes) -> None:
        super().__init__()
        self.name = name
        self.explicit_limit: float | None = None
        self.ask_at = self.ask_thresholds_at = self.ask_group_at = NEVER_ASK
        self.is_affected = False
        self.messages = 0
        self.is_confirmed = False
        self.near_rate = 0.0
        self.topic_bucket: Any = None
        self.counted_in_bucket = 0
        self.group_limit: Any = None
        self.by_principal = False
        self.group_version = -1
        self.counted_in_group = 0

    @property
    def needs_decision(self) -> bool:
        return self.uncounted >= self.ask_at

    @property
    def thresholds_ask(self) -> bool:
        return self.uncounted >= self.ask_thresholds_at

    @property
    def group_asks(self) -> bool:
        return self.uncounted >= self.ask_group_at

    @property
    def thresholds_always_ask(self) -> bool:
        return self.ask_thresholds_at == ALWAYS_ASK

    def set_thresholds_credit(self, credit: float) -> None:
        """`credit`: the bytes that may come before the thresholds have to be asked."""
        self.ask_thresholds_at = self.uncounted + credit
        self._update_ask_at()

    def set_group_credit(self, credit: float) -> None:
        """The same for the resource group."""
        self.ask_group_at = self.uncounted + credit
        self._update_ask_at()

    def set_affected(self, is_affected: bool) -> None:
        """Storage holds it, or does so no more."""
        if is_affected != self.is_affected:
            self.is_affected = is_affected
            self._update_ask_at()

    def _update_ask_at(self) -> None:
        self.ask_at = ALWAYS_ASK if self.is_affected else min(self.ask_thresholds_at, self.ask_group_at)

    def reset_count(self) -> None:
        """`uncounted` begins at 0 again."""
        counted = self.uncounted
        self.uncounted = 0
        self.counted_in_group -= counted
        self.ask_thresholds_at -= counted
        self.ask_group_at -= counted
        self.ask_at -= counted

    def tick(self, ticks: int = 1) -> None:
        counted = self.uncounted
        self.reset_count()
        self.uncounted = counted
        super().tick(ticks)
