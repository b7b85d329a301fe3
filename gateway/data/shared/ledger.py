# The worker's counters: bytes, messages, requests, delay and repeats by (broker, topic, principal, client id, outcome,
# reason, resource group, client software).
#
# Owned by the data path and read by it alone: sessions keep a reference to the rows that they touch and add to them
# without a look-up. `close_interval` ends an interval by starting a new dictionary and raising `epoch`; a session that
# sees another epoch forgets its rows (and its meters: see `advance_epoch`). So rows that are no longer used vanish.
#
# Compiled where a C compiler is (setup.py), as each event looks at the epoch: ledger.pxd has its types in C.

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from gateway.channel import UsageRow
from gateway.data.shared.latencies import LatencyMeter
from policies.usage import NOTES

OTHER_NAME = "other"

# Of one interval, about: it goes to control in one message, and is kept until that is on disk. Beyond it what happens
# is counted without names.
MAX_INTERVAL_BYTES = 8 * 2**20
_ROW_BYTES = 128  # of a row besides its names: numbers, outcome and reason

# A row's counters, by their places; delay in milliseconds. UNKNOWN_REPEAT_…: those of the bytes and messages for
# which it is not known whether they are repeats (policies.idempotence.repeats).
BYTES, MESSAGES, REQUESTS, DELAY, REPEATS, UNKNOWN_REPEAT_BYTES, UNKNOWN_REPEAT_MESSAGES = range(7)
RowCounts = list[int]
_ZERO_COUNTS: Final = (0,) * 7

_RowKey = tuple[int, str, str, str, str, str, str, str]


class UsageLedger:
    """Counts of one worker since the last `close_interval`. `max_names`: the most clients, and topics, in one interval.
    `request_count`: `count_event("requests")`, for callers that count many at a time.
    """

    __slots__ = (
        "_clients",
        "_rows",
        "_topics",
        "counts",
        "epoch",
        "latencies",
        "max_names",
        "request_count",
        "size_bytes",
    )

    def __init__(self, max_names: int = 10_000) -> None:
        self.epoch = 0
        self.size_bytes = 0  # bytes, about
        self.request_count = 0
        self.counts: dict[str, int] = {}
        self.latencies = LatencyMeter(self.advance_epoch)
        self._rows: dict[_RowKey, RowCounts] = {}
        self._clients: set[tuple[str, str, str]] = set()
        self._topics: set[str] = set()
        self.max_names = max_names

    def find_row(
        self,
        broker: int,
        topic: str,
        principal: str,
        client_id: str,
        outcome: str,
        reason: str = "",
        group: str = "",
        software: str = "",
    ) -> RowCounts:
        """The counters of that key in the current interval, created at 0.

        Client ids and software names are free text, there may be a principal per session, and topics need not exist.
        Beyond `max_names` clients or topics in one interval, or MAX_INTERVAL_BYTES of rows, the rest is counted under
        `other`, so that a client can't fill memory, disk and usage topic with names. The caller bounds the length of
        names.
        """
        key = (broker, topic, principal, client_id, outcome, reason, group, software)
        row = self._rows.get(key)
        if row is not None:
            return row
        if self.size_bytes >= MAX_INTERVAL_BYTES:
            topic = principal = client_id = software = OTHER_NAME
        client = (principal, client_id, software)
        if client not in self._clients:
            if len(self._clients) >= self.max_names:
                principal = client_id = software = OTHER_NAME
            else:
                self._clients.add(client)
        if topic not in self._topics:
            if len(self._topics) >= self.max_names:
                topic = OTHER_NAME
            else:
                self._topics.add(topic)
        key = (broker, topic, principal, client_id, outcome, reason, group, software)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = list(_ZERO_COUNTS)
            self.size_bytes += _ROW_BYTES + 2 * (len(topic) + len(principal) + len(client_id) + len(software))
        return row

    def count_event(self, name: str, n: int = 1) -> None:
        """Add to one of `gateway.channel.COUNT_NAMES`."""
        self.counts[name] = self.counts.get(name, 0) + n

    def advance_epoch(self) -> None:
        """Make every session look up its rows, its meters and other cached state again: meters may have gone."""
        self.epoch += 1

    def close_interval(self) -> tuple[tuple[UsageRow, ...], dict[str, int]]:
        """End the interval: return everything counted since the last call, and start over."""
        rows = tuple(row for key, counts in self._rows.items() if any(counts) for row in _make_rows(key, counts))
        if self.request_count:
            self.count_event("requests", self.request_count)
        counts = self.counts
        self._rows, self._clients, self._topics, self.counts = {}, set(), set(), {}
        self.size_bytes = self.request_count = 0
        self.epoch += 1
        return rows, counts


def _make_rows(key: _RowKey, counts: RowCounts) -> list[UsageRow]:
    """One row, or two where some bytes are known to be repeats: the first has the requests and the delay."""
    broker, topic, principal, client_id, outcome, reason, group, software = key
    size, messages, requests, delay_ms, repeats, untold, untold_messages = counts
    names = (broker, topic, principal, client_id, outcome, reason)
    row = UsageRow(*names, size, messages, requests, delay_ms, group, software, repeats)
    if outcome in NOTES:  # these bytes have an outcome as well, and their repeats are counted there
        return [replace(row, repeats=None)]
    if not untold:
        return [row]
    if untold == size:
        return [replace(row, repeats=None)]
    rest = replace(row, bytes=untold, messages=untold_messages, requests=0, delay_ms=0, repeats=None)
    return [replace(row, bytes=size - untold, messages=messages - untold_messages), rest]
