# A reporter for tests and benchmarks that have everything at hand which is used, and don't note what changed.

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.fleet import reports
from gateway.fleet.form import Usage
from gateway.fleet.reports import NOBODY, Rate, Wants
from policies.fleet.keys import FleetKey
from policies.fleet.shares import IDLE


class Reporter(reports.Reporter):
    """Is told all that is used now; what isn't given is idle."""

    _before: frozenset[FleetKey] = frozenset()

    def say(
        self,
        uses: Mapping[FleetKey, Usage],
        rates: Iterable[Rate] = (),
        *,
        workers: int = 1,
        wants: Wants = NOBODY,
        is_turn: bool = True,
    ) -> list[bytes]:
        """A cycle's messages."""
        self.note({**dict.fromkeys(self._before - uses.keys(), IDLE), **uses})
        self._before = frozenset(uses)
        for _ in self.note_rates(rates):
            pass
        return list(self.report(workers=workers, wants=wants, is_turn=is_turn))
