"""The usage log of a year of 30 workers on ten gateways, 100 million records, for figures of growth.

    python -m tests.bench.year_log --records 5000000 | zstd > spool/usage.jsonl.zst    # the first ones

A worker writes a record a second in its hours of each day, which follow each other: at any time three or four are at
work. It has twenty clients, two of which wrote in each second. A gateway begins a new life every two weeks; some lives
end without their last interval, with a note of the loss and a few records written again, and some lack an interval.
All lines are usage.encode_interval's; those of a life and the same clients differ in four numbers only.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from policies import usage
from tests.audit.records import Row

YEAR_START_MS: Final = 1_763_596_800_000  # 2025-11-20T00:00Z
YEAR_RECORDS: Final = 100_000_000
DAYS: Final = 365
WORKERS: Final = 30
GATEWAYS: Final = 10
LIFE_DAYS: Final = 14
CLIENTS: Final = 20  # of a worker
_TURN_S: Final = 86_400 // WORKERS  # after one worker the next one begins
_BUSY_S: Final = YEAR_RECORDS // (WORKERS * DAYS)  # of a worker's day
_OUTCOMES: Final = (("accepted", ""),) * 6 + (("rejected", "topic-threshold"), ("errored", "MESSAGE_TOO_LARGE"))
# Stand for the numbers that change: seq, start_ms, end_ms, and the bytes of the two rows.
_MARKS: Final = (123_456_789_001, 123_456_789_002, 123_456_789_003, 123_456_789_004, 123_456_789_005)


class LogRecord(NamedTuple):
    """A record of the usage log, with its Kafka key and the time at which it was written."""

    key: bytes
    time_ms: int
    line: bytes


def make_year() -> Iterator[LogRecord]:
    """The records of the year in the order of their times."""
    lives = [_Life(worker, 0) for worker in range(WORKERS)]
    for turn in range(DAYS * WORKERS):
        day, worker = divmod(turn, WORKERS)
        if day and day % LIFE_DAYS == lives[worker].gateway:
            yield from lives[worker].end_life((YEAR_START_MS // 1000 + turn * _TURN_S) * 1000)
            lives[worker] = _Life(worker, day)
        at_work = [lives[(worker - back) % WORKERS] for back in range(-(-_BUSY_S // _TURN_S))]
        for second in range(_TURN_S):
            start_ms = YEAR_START_MS + (turn * _TURN_S + second) * 1000
            for life in at_work if second < _BUSY_S % _TURN_S else at_work[:-1]:
                yield life.make_record(start_ms)


class _Life:
    def __init__(self, worker: int, day: int) -> None:
        self.gateway = worker % GATEWAYS
        self._worker = worker
        self._boot = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.gateway} {day}").hex
        self._number = day // LIFE_DAYS + self.gateway
        self._key = usage.record_key(f"gw-{self.gateway}", self._boot, worker)
        self._seq = 0
        self._templates = [self._make_template(client) for client in range(0, CLIENTS, 2)]

    def _make_rows(self, client: int, sizes: tuple[int, ...]) -> list[Row]:
        return [self._make_row(client + i, size) for i, size in enumerate(sizes)]

    def _make_row(self, client: int, size: int) -> Row:
        name = self._worker * CLIENTS + client
        outcome, reason = _OUTCOMES[client % len(_OUTCOMES)]
        return Row(
            client % 12, f"topic-{name % 50}", f"User:team-{name % 200}", f"client-{name}", outcome, reason, size,
            50, 1, group=f"group-{name % 7}", software="librdkafka",
        )  # fmt: skip

    def _encode(self, client: int, seq: int, start_ms: int, end_ms: int, *sizes: int, final: bool = False) -> bytes:
        (line,) = usage.encode_interval(
            f"gw-{self.gateway}", self._boot, self._worker, seq, self._make_rows(client, sizes), start_ms=start_ms,
            end_ms=end_ms, final=final, cluster="kafka-of-the-year",
        )  # fmt: skip
        return line

    def _make_template(self, client: int) -> bytes:
        line = self._encode(client, *_MARKS)
        for mark in _MARKS:
            line = line.replace(b"%d" % mark, b"%d")
        return line

    def make_record(self, start_ms: int) -> LogRecord:
        seq = self._seq
        self._seq += 2 if seq == 5000 and self._number % 10 == 7 else 1  # some lack an interval
        size = seq * 2_654_435_761 % 1_000_000
        end_ms = start_ms + 1000
        line = self._templates[seq % len(self._templates)] % (seq, start_ms, end_ms, size, size // 3)
        return LogRecord(self._key, end_ms, line)

    def end_life(self, now_ms: int) -> Iterator[LogRecord]:
        if self._number % 10 != 3:
            yield LogRecord(self._key, now_ms, self._encode(0, self._seq, now_ms - 1000, now_ms, 1000, 0, final=True))
            return
        gateway = f"gw-{self.gateway}"
        last = [self.make_record(now_ms - 5000 + 1000 * i) for i in range(3)]
        note = usage.encode_lost(gateway, self._boot, self._worker, self._seq - 1, now_ms)
        yield from (*last, *last, LogRecord(self._key, now_ms, note))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=YEAR_RECORDS)
    for record in islice(make_year(), parser.parse_args().records):
        sys.stdout.buffer.write(record.line + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
