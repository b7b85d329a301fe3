# A what-if reads records in pieces, and finds what every other audit finds.

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from gateway.audit.records import decoding
from gateway.audit.whatif import batches, pieces
from policies import usage
from policies.verdict import TOPIC_THRESHOLD
from policies.whatif import tick_phase
from tests.audit.records import START, Row, changed, interval, lost
from tests.audit.test_decoding import GOOD, MALFORMED, SPREAD, VOLUME, WELL_FORMED, generated, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Raw = Callable[[Sequence[str | None]], "DataFrame"]


def values(record: Any) -> list[Any]:
    """A good record as transforms.decode_records gives it, in the form of the other."""
    header = [record[name] for name in usage.HEADER_FIELDS]
    names = ("broker", "topic", "principal", "client_id", "outcome", "reason", *usage.MEASURES, "delay_ms", "repeats")
    return [*header, sorted(([row[name] for name in names] for row in record["rows"]), key=lambda row: int(row[0]))]


def values_of(record: Any) -> list[Any]:
    rows = [[piece["broker"], *row] for piece in record["pieces"] for row in json.loads(piece["rows"])]
    return [*(record[name] for name in usage.HEADER_FIELDS), sorted(rows, key=lambda row: int(row[0]))]


def test_pieces_hold_what_records_say_and_every_good_one_can_be_written_again(raw: Raw) -> None:
    from gateway.audit.batch import transforms
    from gateway.audit.whatif import reading

    lines = [*generated(), *(line for line, _ in MALFORMED.values()), *WELL_FORMED.values(), whole(), whole(version=1)]
    decoded = transforms.decode_records(raw(lines)).persist()
    rows = {row["origin"]: row for row in decoded.collect()}
    parted = {row["origin"]: row for row in reading.split_lines(raw(lines)).collect()}
    assert rows.keys() == parted.keys()
    for origin, row in rows.items():
        one = parted[origin]
        assert all(one[name] == row[name] for name in ("problem", "sample", "digest"))
        assert row["problem"] is not None or values_of(one) == values(row)
    good = decoded.where("problem is null")
    again = reading._split_good_records(good).collect()
    expected = [values(row) for row in rows.values() if row["problem"] is None]
    assert told(map(values_of, again)) == told(expected)
    assert 200 < len(again) < 0.9 * len(lines)
    decoded.unpersist()


def test_a_good_record_that_is_malformed_when_written_again_is_an_error() -> None:
    import pyarrow as pa

    bad = pa.record_batch([pa.array([changed(GOOD, rows=[])]), pa.array([""])], ["value", "origin"])
    with pytest.raises(ValueError, match="written again, is malformed: rows do not fit the kind"):
        list(batches.split_good_columns([bad]))


def test_pieces_tell_topics_and_votes_for_the_time_of_ticks() -> None:
    rejected = Row(outcome="rejected", reason=TOPIC_THRESHOLD, requests=2, delay_ms=1400)
    rows = [
        Row(topic="calm"), rejected, rejected, Row(broker=2, topic="orders"),
        Row(outcome="rejected", reason="client-quota", requests=1, delay_ms=300),
        Row(topic="idle", outcome="rejected", reason=TOPIC_THRESHOLD, requests=0, delay_ms=300),
        Row(topic="cut", outcome="would_reject", reason=TOPIC_THRESHOLD, requests=1, delay_ms=tick_phase.MAX_WAIT_MS),
    ]  # fmt: skip
    one, two = pieces.split_by_broker(decoding.parse_record(interval(0, rows)[0].encode()))
    bin_of_wait, _ = tick_phase.phase_vote(START, START + 1000, 700.0)
    topics = {(name, None, 1) for name in ("calm", "clicks", "cut", "idle")}
    assert set(one.votes) == topics | {("clicks", bin_of_wait, 2)}
    assert (two.broker, two.votes) == (2, [("orders", None, 1)])


# --- both ways of reading ---------------------------------------------------------------------------------------------


@pytest.fixture
def both(raw: Raw) -> Callable[[Sequence[str | None]], tuple[Any, Any]]:
    """The trust and the records' values, as every audit reads them and as a what-if does."""
    from gateway.audit.batch import job, spark_sources
    from gateway.audit.whatif import reading

    def read(lines: Sequence[str | None]) -> tuple[Any, Any]:
        source = spark_sources.AuditSource(raw(lines), {"kind": "lines"})
        with job.read_sources([source]) as records:
            usual = (
                records.integrity_fields,
                told(map(values, records.intervals.collect())),
            )
        with reading.read_pieces([source]) as recorded:
            assert recorded.sources == [{"kind": "lines"}]
            headers = recorded.intervals.count()
            assert headers == recorded.records.count()
            own = recorded.integrity_fields, told(map(values_of, recorded.records.collect()))
        return ordered(usual), ordered(own)

    return read


def told(records: Any) -> list[str]:
    return sorted(map(json.dumps, records))


def ordered(found: tuple[dict[str, Any], list[str]]) -> Any:
    trust = {**found[0], "samples": sorted(map(repr, found[0]["samples"]))}
    return trust, found[1]


def test_both_ways_find_the_same(both: Callable[[Sequence[str | None]], tuple[Any, Any]]) -> None:
    bad = ["", None, GOOD[:50], changed(GOOD, version=9)]
    strange = [changed(interval(number)[0], region="eu") for number in (5, 6)]
    good = [GOOD, *interval(1, [Row(), Row(broker=2)] * 700), *strange, changed(lost(9), note="x")]
    usual, own = both([*good, *bad, interval(4, version=1)[0]])
    assert own == usual
    assert (own[0]["records"], own[0]["malformed"], len(own[0]["problems"]), len(own[1])) == (11, 4, 3, 7)
    usual, own = both(bad)
    assert own == usual
    assert own[0]["malformed"] == 4


def test_copies_count_once_and_contradictions_are_told(
    both: Callable[[Sequence[str | None]], tuple[Any, Any]],
) -> None:
    cases = [
        ([GOOD, GOOD], 2, 0),
        ([changed(GOOD)], 1, 0),  # with blanks: the same said otherwise
        ([GOOD, changed(GOOD, end_ms=START + 999)], 2, 1),  # or 2: which counts follows from a hash of the contents
        ([changed(GOOD, region="eu")], 1, 0),
        ([changed(GOOD, region="eu", end_ms=START + 999), GOOD[:9]], 1, 1),
        ([changed(GOOD, volumes=[VOLUME], spread=[SPREAD])], 1, 0),
        ([lost(0)], 0, 0),  # of the same number, and no copy
    ]
    # Each case is a gateway of its own.
    lines = [
        line.replace('"gw"', f'"gw{number}"')
        for number, (more, _, _) in enumerate(cases)
        for line in [GOOD, *more, *interval(1)]
    ]
    usual, own = both(lines)
    assert own == usual
    assert len(own[1]) == 2 * len(cases) + 1
    assert own[0]["duplicates"] == sum(duplicates for _, duplicates, _ in cases)
    assert own[0]["conflicts"] == sum(conflicts for _, _, conflicts in cases)


def test_tables_give_what_their_lines_give(raw: Raw) -> None:
    from gateway.audit.batch import job, spark_sources, transforms
    from gateway.audit.tables import layout
    from gateway.audit.whatif import reading

    lines = [whole(), *interval(1, [Row(), Row(broker=2, client_id="é")]), lost(5), interval(7, version=1)[0]]
    assert {*usage.HEADER_FIELDS, "rows"} <= set(layout.RECORDS_SCHEMA.names)
    decoded = transforms.decode_records(raw(lines)).persist()
    trust = {"records": 4}
    records = job.AuditRecords(transforms.explode_rows(decoded), decoded.drop("rows"), [], trust, decoded)
    with (
        reading.split_records(records) as found,
        reading.read_pieces([spark_sources.AuditSource(raw(lines), {})]) as read,
    ):
        one, other = (told(map(values_of, each.records.collect())) for each in (found, read))
        assert one == other
        assert found.integrity_fields == trust
    decoded.unpersist()
