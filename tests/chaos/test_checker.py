# The judge can say no: each thing that must not be, made by hand, is found.

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import checker
from tests.chaos.checker import Amount, Batch

TOPIC = "orders"


def batch(size: int, records: int, appended_ms: int, *, control: bool = False) -> bytes:
    """A v2 batch without its records, which nobody reads here."""
    head = struct.pack(
        ">qiibIhiqqqhii", 0, size - 12, 0, 2, 0, 32 if control else 0, 0, 0, appended_ms, 1, 0, 0, records
    )
    return head.ljust(size, b"r")


def line(seq: int, rows: list[dict[str, Any]] | None = None, **other: Any) -> bytes:
    """A usage record."""
    header = {
        "kind": "interval",
        "gateway": "g",
        "boot": "b",
        "worker": 0,
        "seq": seq,
        "part": 0,
        "parts": 1,
        "start_ms": 1000 * seq,
        "end_ms": 1000 * seq + 1000,
        "final": False,
    }
    return json.dumps({**header, **other, "rows": rows or []}).encode()


def row(outcome: str, size: int, messages: int, reason: str = "") -> dict[str, Any]:
    return {"topic": TOPIC, "outcome": outcome, "reason": reason, "bytes": size, "messages": messages}


def test_batches_are_read_from_files_and_control_batches_are_no_producers(tmp_path: Path) -> None:
    data = batch(100, 3, 5) + batch(78, 1, 6, control=True) + batch(200, 1, 7)
    (tmp_path / "0.log").write_bytes(data + bytes(50))
    producer = (1, 0)
    assert list(checker.batches([tmp_path])) == [
        Batch(Amount(100, 3), 5, 0, producer), Batch(Amount(200, 1), 7, 0, producer)
    ]  # fmt: skip


def test_a_resend_under_another_epoch_is_told_from_a_batch_written_twice() -> None:
    sizes, offsets, epochs = (3, 2, 2, 3, 1), (0, 3, 5, 7, 10), (0, 0, 0, 1, 1)
    log = [
        Batch(Amount(100 * size, size), 0, first, (7, epoch))
        for size, first, epoch in zip(sizes, offsets, epochs, strict=True)
    ]
    numbers = [0, 1, 2, *(3, 4), *(3, 4), *(0, 1, 2), 5]
    count, early = checker.renumbered(numbers, log)
    assert (count, early) == (3, Amount(300, 3))  # 3 and 4 came twice in one epoch
    books = checker.read_books([line(0, [row("accepted", 800, 8), row("unanswered", 300, 3)], final=True)])
    assert checker.compare(TOPIC, log, books, idempotent=True).faults
    assert not checker.compare(TOPIC, log, books, idempotent=True, early=early).faults


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line(0), line(2, final=True)], "missing: [1]"),
        ([line(0)], "its ends are []"),
        ([line(0), line(1, final=True), line(1, kind="lost")], "its ends are"),
        ([line(0, final=True), line(0, [row("accepted", 1, 1)], final=True)], "comes twice and differs"),
        ([line(0, parts=2, final=True)], "parts [0] of 2"),
        ([line(0, start_ms=9, end_ms=8, final=True)], "from 9 to 8"),
        ([line(0), line(7, kind="lost")], "its ends are [('lost', 7)]"),
    ],
)
def test_books_with_a_hole_are_found(lines: list[bytes], said: str) -> None:
    assert said in " ".join(checker.read_books(lines).faults)


def test_whole_books_with_copies_have_no_fault() -> None:
    assert checker.read_books([line(0), line(0), line(1, final=True)]).faults == []


def judged(grown: int, *rows: dict[str, Any], idempotent: bool = True, **other: Any) -> tuple[str, ...]:
    books = checker.read_books([line(0, list(rows), final=True)])
    return checker.compare(TOPIC, [Batch(Amount(grown, 10), 500)], books, idempotent=idempotent, **other).faults


def test_of_an_idempotent_producer_the_log_is_what_was_accepted_to_the_byte() -> None:
    assert not judged(1000, row("accepted", 1000, 10), row("unanswered", 100, 1))
    assert judged(1001, row("accepted", 1000, 10), row("unanswered", 100, 1))
    assert judged(999, row("accepted", 1000, 10))


def test_unanswered_records_of_a_plain_producer_may_be_there() -> None:
    rows = row("accepted", 900, 9), row("unanswered", 50, 1), row("errored", 50, 1, "REQUEST_TIMED_OUT")
    assert not judged(1000, *rows, idempotent=False)
    assert judged(1001, *rows, idempotent=False)
    assert judged(1000, row("accepted", 900, 9), row("errored", 100, 1, "CORRUPT_MESSAGE"), idempotent=False)


def test_counted_once_more_is_allowed_only_where_answers_get_lost_and_only_so_much() -> None:
    assert judged(1000, row("accepted", 1100, 11))
    assert not judged(1000, row("accepted", 1100, 11), again=Amount(100, 1))
    assert judged(1000, row("accepted", 1101, 11), again=Amount(100, 1))


def test_a_gap_must_be_named_and_no_larger_than_what_was_appended_then() -> None:
    lines = [line(8, end_ms=9000), line(8, kind="lost", start_ms=9500, end_ms=9500)]
    lines += [line(seq, [row("accepted", 1000, 10)] if seq == 0 else None) for seq in range(8)]
    books = checker.read_books(lines)
    assert books.faults == []
    known, unknown = Batch(Amount(1000, 10), 500), Batch(Amount(70, 1), 9200)
    sums = checker.compare(TOPIC, [known, unknown], books, idempotent=True, kills=1)
    assert (sums.gap, sums.unknown, sums.faults) == (70, Amount(70, 1), ())
    assert checker.compare(TOPIC, [known, unknown], books, idempotent=True).faults, "nobody was killed"
    early = [known, Batch(Amount(70, 1), 6900)]
    assert checker.compare(TOPIC, early, books, idempotent=True, kills=1).faults, "appended when all was known"
    under_way = [known, Batch(Amount(70, 1), 7100)]
    assert not checker.compare(TOPIC, under_way, books, idempotent=True, kills=1).faults, "answered after that"


def test_the_copy_in_the_topic() -> None:
    spool = [line(0), line(1), line(2)]
    assert checker.compare_copies(spool, spool[::-1], deleted=False) == []
    assert checker.compare_copies(spool, spool[1:], deleted=False)
    assert checker.compare_copies(spool, spool[1:], deleted=True) == []
    assert checker.compare_copies(spool, [spool[0], spool[2]], deleted=True), "missing in the middle"
    assert checker.compare_copies(spool, [], deleted=True), "nothing came after it"
    assert checker.compare_copies(spool[:2], spool, deleted=False)


def test_metrics_against_the_spool() -> None:
    books = checker.read_books([line(0, [row("accepted", 1, 1)]), line(1, [row("accepted", 2, 1)], final=True)])
    assert checker.compare_metrics(TOPIC, Amount(3, 2), books, 0) == []
    assert checker.compare_metrics(TOPIC, Amount(2, 1), books, 0)
    assert checker.compare_metrics(TOPIC, Amount(2, 1), books, since_ms=1000) == []
    assert checker.compare_metrics(TOPIC, Amount(1, 1), books, since_ms=1000)


def test_a_reader_may_see_again_but_must_see_all() -> None:
    assert checker.compare_reading({"t/0": [0, 1, 1, 2]}, {"t/0": [0, 1, 2]}) == []
    assert checker.compare_reading({"t/0": [0, 2]}, {"t/0": [0, 1, 2]})
    assert checker.compare_reading({"t/0": [0, 1, 2, 3]}, {"t/0": [0, 1, 2]})
