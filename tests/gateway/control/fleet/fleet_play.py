# A reporter for tests and benchmarks that have everything at hand which is used, and don't note what changed.

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.control.fleet.exchange import reports
from gateway.control.fleet.exchange.reports import ThresholdRate
from policies.fleet.keys import FleetKey
from policies.fleet.shares import IDLE, LimitDemand


class Reporter(reports.UsageReporter):
    """Tell it all that is in use now; limits that aren't given are idle."""

    _before: frozenset[FleetKey] = frozenset()

    def say(
        self,
        uses: Mapping[FleetKey, LimitDemand],
        rates: Iterable[ThresholdRate] = (),
        *,
        workers: int = 1,
        is_turn: bool = True,
    ) -> list[bytes]:
        """A cycle's messages."""
        self.record_demands({**dict.fromkeys(self._before - uses.keys(), IDLE), **uses})
        self._before = frozenset(uses)
        for _ in self.record_rates(rates):
            pass
        return list(self.make_report(workers=workers, is_turn=is_turn))
