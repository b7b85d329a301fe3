# A what-if reads records in its own way, and finds what every other audit finds: the lines that it takes by itself are
# good by transforms.decode's rule, with the same values, and all others go there.

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from gateway.audit import schema
from gateway.audit.whatif import pieces
from policies import usage
from policies.verdict import TOPIC_THRESHOLD
from policies.whatif import tick_phase
from tests.audit.batch.test_transforms import GOOD, MALFORMED, SPREAD, STRICTER, VOLUME, WELL_FORMED
from tests.audit.records import START, Row, changed, interval, lost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Raw = Callable[[Sequence[str | None]], "DataFrame"]

# Values that some reader of JSON or some check may take otherwise than another.
ODD = (
    *("null", "true", "false", '""', '"1"', '"a\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00\\ud800"', "[]"),
    *("{}", "[null]", "0", "-0", "00", "01", "+1", "1.0", "1e0", "1E3", "1e400", "-1", "-2", "2", "3", "1000000"),
    *("1000001", str(2**31), str(2**50), str(2**50 + 1), str(2**63 - 1), str(2**63), str(-(2**63) - 1), "9" * 1001),
    *("NaN", "Infinity", "0x1", "'a'", '"\x01"', '"a\tb"', '"\\x"', '"\\/"', '"\u00e9"', '"\ufffd"', '"\u2028"'),
    *('"lost"', '"interval"', '"rejected"', '"would_reject"', '"delayed"', '"topic-threshold"', str(START), '"'),
)
PLACES = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+|true|false|null|[\[\]{}:,]')


def whole(version: int = usage.VERSION) -> str:
    """A record with every field that there is."""
    rows = [Row(), Row(broker=2, outcome="rejected", reason=TOPIC_THRESHOLD, delay_ms=700, repeats=40, group="g")]
    disks = usage.DiskNotes((usage.VolumeNote(1, "/a", 5, 4, 1.0, 2.0),), (usage.SpreadNote(1, "clicks", 1, 3),))
    (line,) = interval(3, rows, storage_factor=0.5, disks=disks, version=version)
    return line


def worse(line: str, chance: random.Random) -> str:
    """The line with one or two of its values, names or marks changed, doubled, moved or cut."""
    for _ in range(chance.choice((1, 1, 1, 2))):
        found = list(PLACES.finditer(line))
        if not found:
            return line
        place, other = chance.choice(found), chance.choice(found)
        begin, end = place.span()
        line = chance.choice(
            (
                line[:begin] + chance.choice(ODD) + line[end:],
                line[:begin] + chance.choice(ODD) + line[end:],
                line[:begin] + other.group() + line[end:],
                line[:begin] + line[end:],
                line[:begin] + place.group() * 2 + line[end:],
                line[:begin] + " \t" + line[begin:],
                line[:begin],
                twice(line, chance),
            )
        )
    return line


def twice(line: str, chance: random.Random) -> str:
    """With a field that is there twice, the second time with another value."""
    fields = list(re.finditer(r'"(\w+)":("(?:[^"\\]|\\.)*"|-?\d+|true|false)', line))
    if not fields:
        return line
    field = chance.choice(fields)
    return f'{line[: field.end()]},"{field[1]}":{chance.choice(ODD)}{line[field.end() :]}'


def generated() -> list[str]:
    chance = random.Random(11)
    seeds = [whole(), whole(), whole(version=1), GOOD, lost(3), interval(1, (), final=True)[0]]
    return [worse(chance.choice(seeds), chance) for _ in range(4000)]


def values(record: Any, keeps_repeats: bool) -> list[Any]:
    """A good record as transforms.decode gives it, in the form of the other."""
    header = [record[name] for name in usage.HEADER_FIELDS if name != "version"]
    names = ("broker", "topic", "principal", "client_id", "outcome", "reason", *usage.MEASURES, "delay_ms")
    rows = [[*(row[name] for name in names), row["repeats"] if keeps_repeats else None] for row in record["rows"]]
    return [*header, sorted(rows, key=lambda row: int(row[0]))]


def values_of(checked: pieces.CheckedRecord) -> list[Any]:
    rows = [[piece.broker, *row] for piece in checked.pieces for row in json.loads(piece.rows)]
    header = checked._asdict()
    return [
        *(header[name] for name in usage.HEADER_FIELDS if name != "version"),
        sorted(rows, key=lambda row: int(row[0])),
    ]


def test_a_line_that_is_taken_is_good_with_the_same_values(raw: Raw) -> None:
    from gateway.audit.batch import transforms

    lines = [*generated(), *MALFORMED.values(), *STRICTER.values(), *WELL_FORMED.values(), whole(), whole(version=1)]
    taken = [pieces.check_line(line) for line in lines]
    decoded = {row["origin"]: row for row in transforms.decode_records(raw(lines)).collect()}
    good = 0
    for number, (line, found) in enumerate(zip(lines, taken, strict=True)):
        row = decoded[f"line {number}"]
        good += row["problem"] is None
        if found is not None:
            assert row["problem"] is None, line
            assert values_of(found) == values(row, row["version"] > 1), line
    count = sum(found is not None for found in taken)
    assert 200 < count < good < 0.9 * len(lines), "some of each kind"


def test_what_gateways_write_is_taken() -> None:
    names = Row(client_id='é\u2028"\\\n\x00😀', topic="]}", outcome="errored", reason="X", group="g", software="java")
    final = interval(1, (), final=True)[0]
    for line in (GOOD, whole(), whole(version=1), lost(-1), final, *interval(2, [names] * 2300)):
        assert pieces.check_line(line) is not None, line
    for other in (None, "", GOOD + " x", changed(GOOD, region="eu")):
        assert pieces.check_line(other) is None, other
    assert pieces.check_line(GOOD.replace('"gw"', '"é"')) is None, "gateways write ASCII"
    assert pieces.check_line(GOOD + " " * usage.MAX_RECORD_BYTES) is None


def test_every_good_record_is_taken_once_it_is_written_as_text_again(raw: Raw) -> None:
    from gateway.audit.batch import transforms
    from gateway.audit.whatif import reading

    good = transforms.decode_records(raw([*generated(), *WELL_FORMED.values()])).where("problem is null").persist()
    again = reading._split_good_records(good).collect()
    assert len(again) == good.count()
    assert sum(len(row["pieces"]) == 0 for row in again) < len(again) // 2
    good.unpersist()
    with pytest.raises(ValueError, match="do not fit together"):
        pieces.parse_good_record(changed(GOOD, rows=[]))


def test_pieces_tell_topics_and_votes_for_the_time_of_ticks() -> None:
    rejected = Row(outcome="rejected", reason=TOPIC_THRESHOLD, requests=2, delay_ms=1400)
    rows = [
        Row(topic="calm"), rejected, rejected, Row(broker=2, topic="orders"),
        Row(outcome="rejected", reason="client-quota", requests=1, delay_ms=300),
        Row(topic="idle", outcome="rejected", reason=TOPIC_THRESHOLD, requests=0, delay_ms=300),
        Row(topic="cut", outcome="would_reject", reason=TOPIC_THRESHOLD, requests=1, delay_ms=tick_phase.MAX_WAIT_MS),
    ]  # fmt: skip
    found = pieces.check_line(interval(0, rows)[0])
    assert found is not None
    one, two = found.pieces
    bin_of_wait, _ = tick_phase.phase_vote(START, START + 1000, 700.0)
    topics = {(name, None, 1) for name in ("calm", "clicks", "cut", "idle")}
    assert set(one.votes) == topics | {("clicks", bin_of_wait, 2)}
    assert (two.broker, two.votes) == (2, [("orders", None, 1)])


# --- both ways of reading ---------------------------------------------------------------------------------------------


@pytest.fixture
def both(raw: Raw) -> Callable[[Sequence[str | None]], tuple[Any, Any]]:
    """The trust and the records' values, as every audit reads them and as a what-if does."""
    from gateway.audit.batch import job
    from gateway.audit.whatif import reading

    def read(lines: Sequence[str | None]) -> tuple[Any, Any]:
        source = job.AuditSource(raw(lines), {"kind": "lines"})
        with job.read_sources([source]) as records:
            usual = (
                records.integrity_fields,
                told(values(row, row["version"] > 1) for row in records.intervals.collect()),
            )
        with reading.read_pieces([source]) as recorded:
            assert recorded.sources == [{"kind": "lines"}]
            headers = recorded.intervals.count()
            assert headers == recorded.records.count()
            own = recorded.integrity_fields, told(values_of(plain(row)) for row in recorded.records.collect())
        return ordered(usual), ordered(own)

    return read


def plain(row: Any) -> pieces.CheckedRecord:
    found = row.asDict(recursive=True)
    found.setdefault("mark", 0)
    parts = [pieces.RecordPiece(**{**each, "votes": []}) for each in found["pieces"]]
    return pieces.CheckedRecord(**{**{name: found[name] for name in pieces.CheckedRecord._fields}, "pieces": parts})


def told(records: Any) -> list[str]:
    return sorted(map(json.dumps, records))


def ordered(found: tuple[dict[str, Any], list[str]]) -> Any:
    trust = {**found[0], "samples": sorted(map(repr, found[0]["samples"]))}
    return trust, found[1]


def test_both_ways_find_the_same(both: Callable[[Sequence[str | None]], tuple[Any, Any]]) -> None:
    usual, own = both([GOOD, *interval(1, [Row(), Row(broker=2)] * 700), lost(9), interval(4, version=1)[0]])
    assert own == usual
    assert (own[0]["records"], own[0]["malformed"], len(own[1])) == (5, 0, 5)


def test_malformed_and_strange_records_count_as_ever(both: Callable[[Sequence[str | None]], tuple[Any, Any]]) -> None:
    bad = ["", None, GOOD[:50], changed(GOOD, version=9)]
    strange = [changed(interval(number)[0], region="eu") for number in (5, 6)]
    usual, own = both([GOOD, *interval(1), *bad, *strange, changed(lost(3), note="x")])
    assert own == usual
    assert (own[0]["records"], own[0]["malformed"], len(own[0]["problems"]), len(own[1])) == (9, 4, 3, 5)
    usual, own = both(bad)
    assert own == usual
    assert own[0]["malformed"] == 4


@pytest.mark.parametrize(
    ("more", "duplicates", "conflicts"),
    [
        ((GOOD, GOOD), 2, 0),
        ((changed(GOOD),), 1, 0),  # with blanks: the same said otherwise
        ((GOOD, changed(GOOD, end_ms=START + 999)), 2, 2),  # which counts follows from a hash of the contents
        ((changed(GOOD, region="eu"),), 1, 0),
        ((changed(GOOD, region="eu", end_ms=START + 999), GOOD[:9]), 1, 1),
        ((changed(GOOD, volumes=[VOLUME], spread=[SPREAD]),), 1, 0),
        ((lost(0),), 0, 0),  # of the same number, and no copy
    ],
    ids=["same", "blanks", "contradiction", "a new field", "a new field and a contradiction", "disks", "a note"],
)
def test_copies_count_once_and_contradictions_are_told(
    more: Sequence[str], duplicates: int, conflicts: int, both: Callable[[Sequence[str | None]], tuple[Any, Any]]
) -> None:
    usual, own = both([GOOD, *more, *interval(1)])
    assert own == usual
    assert (own[0]["duplicates"], own[0]["conflicts"]) == (duplicates, conflicts)


def test_only_contradictions_are_read_twice(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.audit.batch import job
    from gateway.audit.whatif import reading

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("decoded in Java as a whole")

    monkeypatch.setattr(job, "read_sources", never)
    with reading.read_pieces(
        [job.AuditSource(raw([GOOD, GOOD, changed(interval(1)[0], region="eu"), "x"]), {})]
    ) as found:
        assert found.intervals.count() == 2
    with (
        pytest.raises(AssertionError, match="as a whole"),
        reading.read_pieces([job.AuditSource(raw([GOOD, changed(GOOD, end_ms=START + 1)]), {})]),
    ):
        pass


def test_tables_give_what_their_lines_give(raw: Raw) -> None:
    from gateway.audit import layout
    from gateway.audit.batch import job, transforms
    from gateway.audit.whatif import reading

    lines = [whole(), *interval(1, [Row(), Row(broker=2, client_id="é")]), lost(5), interval(7, version=1)[0]]
    assert {*usage.HEADER_FIELDS, "rows"} <= set(layout.RECORDS_SCHEMA.names)
    decoded = transforms.decode_records(raw(lines)).persist()
    trust = {"records": 4}
    records = job.AuditRecords(transforms.explode_rows(decoded), decoded.drop("rows"), [], trust, decoded)
    with reading.split_records(records) as found, reading.read_pieces([job.AuditSource(raw(lines), {})]) as read:
        one, other = (told(values_of(plain(row)) for row in each.records.collect()) for each in (found, read))
        assert one == other
        assert found.integrity_fields == trust
    decoded.unpersist()


def test_fields_of_a_record_are_those_that_are_defined() -> None:
    assert set(pieces._RecordRow.__struct_fields__) == {*usage.ROW_FIELDS, *usage.OPTIONAL_ROW_FIELDS}
    record = {*usage.HEADER_FIELDS, *usage.OPTIONAL_HEADER_FIELDS, *schema.DISK_COLUMNS, "rows"}
    assert set(pieces._UsageRecord.__struct_fields__) == record
    assert set(pieces._RecordVolume.__struct_fields__) == {*usage.VOLUME_FIELDS, *usage.OPTIONAL_VOLUME_FIELDS}
    assert set(pieces._RecordSpread.__struct_fields__) == set(usage.SPREAD_FIELDS)
