# A reporter for tests and benchmarks that have everything at hand which is used, and don't note what changed.

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.control.fleet.exchange import reports
from gateway.control.fleet.exchange.reports import Rate
from policies.fleet.keys import FleetKey
from policies.fleet.shares import IDLE, Use


class Reporter(reports.Reporter):
    """Tell it all that is in use now; limits that aren't given are idle."""

    _before: frozenset[FleetKey] = frozenset()

    def say(
        self,
        uses: Mapping[FleetKey, Use],
        rates: Iterable[Rate] = (),
        *,
        workers: int = 1,
        is_turn: bool = True,
    ) -> list[bytes]:
        """A cycle's messages."""
        self.note({**dict.fromkeys(self._before - uses.keys(), IDLE), **uses})
        self._before = frozenset(uses)
        for _ in self.note_rates(rates):
            pass
        return list(self.report(workers=workers, is_turn=is_turn))
