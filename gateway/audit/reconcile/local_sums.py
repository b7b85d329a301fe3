# The sums of reconcile.py, of records that are added one after the other, without Spark.

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gateway.audit.reconcile.reconcile import AdditionBounds, CountedUsage, UsageSum, make_counted
from policies import usage

if TYPE_CHECKING:
    from gateway.audit.records.decoding import UsageRecord

_ACCEPTED, _MAYBE = 0, 2  # where their bytes are in a sum; the messages are behind them


class AdditionCollector:
    """A RecordCollector (gateway/audit/local/records.py)."""

    def __init__(self, bounds: AdditionBounds) -> None:
        self._bounds = bounds
        self._sums: defaultdict[tuple[str, bool], list[int]] = defaultdict(lambda: [0] * 4)  # by topic, certain

    def add_record(self, record: UsageRecord) -> None:
        """Add a record that counts."""
        is_certain = self._bounds.is_certain(record.start_ms, record.end_ms)
        if is_certain is None:
            return
        for row in record.rows:
            sums = self._sums[row.topic, is_certain]
            if row.outcome == "accepted":
                at = _ACCEPTED
            elif usage.may_be_appended(row.outcome, row.reason):
                at = _MAYBE
            else:
                continue
            sums[at] += row.bytes
            sums[at + 1] += row.messages

    def make_counted(self) -> dict[str, CountedUsage]:
        """The additions to logs, by topic."""
        return make_counted(
            (topic, is_certain, UsageSum(*sums[:_MAYBE]), UsageSum(*sums[_MAYBE:]))
            for (topic, is_certain), sums in self._sums.items()
        )
