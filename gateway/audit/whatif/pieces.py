# A usage record's way to the replay: its rows are parted by broker as soon as it is decoded. An engine moves and sorts
# whole pieces, which are text to it, and a piece becomes rows again only where it is replayed: no row is ever handed
# from Java to Python by itself.
#
# Pure; runs in Spark's Python processes, so it imports little.

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from gateway.audit.records.decoding import UsageRecord
from policies.verdict import TOPIC_THRESHOLD
from policies.whatif import tick_phase
from policies.whatif.rows import ReplayRow, StreamKey, WorkerLife

LIMITING_OUTCOMES: Final = frozenset({"rejected", "would_reject"})


class RecordPiece(NamedTuple):
    """The rows of one record that are of one broker.

    `votes`: each of its topics with None; and again with the first bin of each vote for the time of ticks
    (tick_phase.vote) and how many rows gave it. `rows`: for `unpack_rows`.
    """

    broker: int
    votes: list[tuple[str, int | None, int]]
    rows: str


# topic, principal, client_id, outcome, reason, bytes, messages, requests, delay_ms, repeats
_RowValues = tuple[str, str, str, str, str, int, int, int, int, int | None]
_decode_rows = msgspec.json.Decoder(list[_RowValues]).decode
_encode_rows = msgspec.json.Encoder().encode
_row_values = attrgetter(
    "topic", "principal", "client_id", "outcome", "reason", "bytes", "messages", "requests", "delay_ms", "repeats"
)


Streams = dict[StreamKey, StreamKey]  # one object for all rows of a client


def unpack_rows(
    text: str, broker: int, life: WorkerLife, seq: int, start_ms: int, end_ms: int, streams: Streams
) -> list[ReplayRow]:
    """The rows of a piece of a record of that life, number and time. `streams` grows by those that are new."""
    found = []
    for topic, principal, client_id, outcome, reason, size, messages, requests, delay_ms, repeats in _decode_rows(text):
        stream = (broker, topic, principal, client_id)
        stream = streams.setdefault(stream, stream)
        found.append(
            ReplayRow(life, seq, start_ms, end_ms, stream, outcome, reason, size, messages, requests, delay_ms, repeats)
        )
    return found


def split_by_broker(record: UsageRecord) -> list[RecordPiece]:
    """Its rows, as far as a replay needs them."""
    parted: dict[int, list[_RowValues]] = {}
    for row in record.rows:
        own = parted.get(row.broker)
        if own is None:
            own = parted[row.broker] = []
        own.append(_row_values(row))
    return [
        RecordPiece(broker, _count_tick_votes(record, rows), _encode_rows(rows).decode())
        for broker, rows in parted.items()
    ]


def _count_tick_votes(record: UsageRecord, rows: list[_RowValues]) -> list[tuple[str, int | None, int]]:
    votes: dict[tuple[str, int | None], int] = dict.fromkeys(((topic, None) for topic in {row[0] for row in rows}), 1)
    limited = [row for row in rows if row[3] in LIMITING_OUTCOMES and row[4] == TOPIC_THRESHOLD and row[7]]
    # Clients of a topic that came in one second wait for the same tick: often exactly as long.
    waits = Counter([(row[0], row[8] / row[7]) for row in limited])
    for (topic, wait), times in waits.items():
        if 0 < wait < tick_phase.MAX_WAIT_MS:
            what = (topic, tick_phase.phase_vote(record.start_ms, record.end_ms, wait)[0])
            votes[what] = votes.get(what, 0) + times
    return [(topic, first, times) for (topic, first), times in votes.items()]
