# How many connections clients may have: in all, and from one address. Counts what workers were given and say has ended.
# Knows no socket.

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

CONNECTIONS: Final = "connections"
ADDRESS: Final = "address"
REASONS: Final = (CONNECTIONS, ADDRESS)  # label of the metric


class ConnectionAdmission:
    """Counts connections by address. `most`: connections in all; `most_per_address`: of these, from one address."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._total = 0
        self._addresses: Counter[str] = Counter()
        self._workers: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def set_limits(self, most: int, most_per_address: int) -> None:
        """Change the constructor's limits; existing connections stay."""
        self._most, self._most_per_address = most, most_per_address

    def refusal_reason(self, address: str, *, proxied: bool = False) -> str:
        """Why another connection from that address is too many: one of REASONS, or "": it isn't. Of `proxied` ones the
        client's address isn't known yet (`move_connection` reports it later), so only the total is checked.
        """
        if self._total >= self._most:
            return CONNECTIONS
        return ADDRESS if not proxied and self._addresses[address] >= self._most_per_address else ""

    def add_connection(self, worker: int, address: str) -> None:
        """This worker gets one more connection."""
        self._change_count(worker, address, 1)

    def move_connection(self, worker: int, before: str, address: str) -> str:
        """One of that worker's connections counts for another address from now on. Returns why it is too many there, or
        "".
        """
        if self._workers[worker][before]:  # else the worker is another one by now
            self._change_count(worker, before, -1)
            self._change_count(worker, address, 1)
        return ADDRESS if self._addresses[address] > self._most_per_address else ""

    def end_connections(self, worker: int, addresses: Mapping[str, int]) -> None:
        """That many of the worker's connections have ended."""
        for address, count in addresses.items():
            self._change_count(worker, address, -min(count, self._workers[worker][address]))

    def replace_connections(self, worker: int, addresses: Mapping[str, int]) -> None:
        """Replace that worker's counts by its own report; empty when the worker is gone."""
        self.end_connections(worker, dict(self._workers[worker]))
        del self._workers[worker]
        for address, count in addresses.items():
            self._change_count(worker, address, count)

    def _change_count(self, worker: int, address: str, by: int) -> None:
        self._total += by
        for counter in (self._addresses, self._workers[worker]):
            counter[address] += by
            if not counter[address]:
                del counter[address]
