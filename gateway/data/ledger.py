# The worker's counters: bytes, messages, requests and delay by (broker, topic, principal, client id, outcome, reason).
#
# Owned by the data path and read by nobody else: sessions keep a reference to the rows that they touch and add to them
# without a look-up. `close` ends an interval by starting a new dictionary and raising `epoch`; a session that sees
# another epoch forgets its rows (and its meters: see `renew`). So rows that nobody uses any more vanish by themselves.

from __future__ import annotations

from gateway.channel import Row

OTHER = "other"
Counts = list[int]  # [bytes, messages, requests, delay in milliseconds]


class Ledger:
    """Counts of one worker since the last `close`."""

    __slots__ = ("_clients", "_max_names", "_rows", "_topics", "counts", "epoch")

    def __init__(self, max_names: int = 10_000) -> None:
        self.epoch = 0
        self.counts: dict[str, int] = {}
        self._rows: dict[tuple[int, str, str, str, str, str], Counts] = {}
        self._clients: set[tuple[str, str]] = set()
        self._topics: set[str] = set()
        self._max_names = max_names

    def row(self, broker: int, topic: str, principal: str, client_id: str, outcome: str, reason: str = "") -> Counts:
        """The counters of that key in the current interval, created at 0.

        Client ids are free text, principals may be one per session, and topics need not exist: beyond `max_names` of
        either in one interval the rest is counted under `other`, so that a client can't fill memory, disk and usage
        topic with names.
        """
        client = (principal, client_id)
        if client not in self._clients:
            if len(self._clients) >= self._max_names:
                principal = client_id = OTHER
            else:
                self._clients.add(client)
        if topic not in self._topics:
            if len(self._topics) >= self._max_names:
                topic = OTHER
            else:
                self._topics.add(topic)
        key = (broker, topic, principal, client_id, outcome, reason)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = [0, 0, 0, 0]
        return row

    def count(self, name: str, n: int = 1) -> None:
        """Add to one of `gateway.channel.COUNTS`."""
        self.counts[name] = self.counts.get(name, 0) + n

    def renew(self) -> None:
        """Make every session look up again what it keeps: meters may have gone."""
        self.epoch += 1

    def close(self) -> tuple[tuple[Row, ...], dict[str, int]]:
        """End the interval: everything counted since the last call, and begin anew."""
        rows = tuple(Row(*key, *row) for key, row in self._rows.items() if any(row))
        counts = self.counts
        self._rows, self._clients, self._topics, self.counts = {}, set(), set(), {}
        self.epoch += 1
        return rows, counts
