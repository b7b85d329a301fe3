# The one decoder: what is a usage record, why not, and that both of its ways (msgspec, field by field) say the same.

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.records import decoding, record_batches
from gateway.audit.records.decoding import MalformedRecord, UsageRecord
from policies import usage
from policies.verdict import TOPIC_THRESHOLD
from tests.audit.records import START, Row, changed, interval, lost

GOOD = interval(0)[0]


def _row(**fields: object) -> str:
    """GOOD with a second row that differs in these fields."""
    fine = {name: getattr(Row(), name) for name in usage.ROW_FIELDS}
    return changed(GOOD, rows=[fine, {name: value for name, value in (fine | fields).items() if value is not ...}])


VOLUME = {"broker": 1, "log_dir": "/a", "total": 5, "available": 4}
SPREAD = {"broker": 1, "topic": "clicks", "here": 1, "partitions": 3}
NO_OBJECT = "not one JSON object, or a field of the wrong type"
MISSING, NUMBERS = "a field is missing", "numbering is out of range"
FACTOR, DISKS = "storage factor is out of range", "a volume or its topics are incomplete or out of range"
SHAPE, A_ROW = "rows do not fit the kind", "a row is incomplete or out of range"
# Why each is malformed.
MALFORMED = {
    "nothing": ("", "empty"),
    "blanks": ("  ", "empty"),
    "a tab": ("\t", NO_OBJECT),
    "no JSON": ("offered", NO_OBJECT),
    "a list": (f"[{GOOD}]", NO_OBJECT),
    "a number": ("5", NO_OBJECT),
    "null": ("null", NO_OBJECT),
    "an empty object": ("{}", "version is missing"),
    "half a line": (GOOD[: len(GOOD) // 2], NO_OBJECT),
    "a line without its end": (GOOD[:-2], NO_OBJECT),
    "two records on one line": (GOOD + GOOD, NO_OBJECT),
    "half a record, then a whole one": (GOOD[:50] + GOOD, NO_OBJECT),
    "two records with a comma": (f"{GOOD},{GOOD}", NO_OBJECT),
    "rubbish behind": (GOOD + " rubbish", NO_OBJECT),
    "a bracket behind": (GOOD + "]", NO_OBJECT),
    "brackets and rubbish behind": (GOOD + "]} rubbish", NO_OBJECT),
    "brackets and a record behind": (f'{GOOD}],"records":[{GOOD}', NO_OBJECT),
    "quoted by apostrophes": (GOOD.replace('"', "'"), NO_OBJECT),
    "a byte order mark": ("\ufeff" + GOOD, NO_OBJECT),
    "not a number": (GOOD.replace('"seq":0', '"seq":NaN'), NO_OBJECT),
    "not a number in a field that is new": (GOOD.replace('"seq":0', '"seq":0,"x":NaN'), NO_OBJECT),
    "a number without end in a field that is new": (GOOD.replace('"seq":0', f'"seq":0,"x":{"9" * 1001}'), NO_OBJECT),
    "a control character": (GOOD.replace("clicks", "cli\x01cks"), NO_OBJECT),
    "lists without end": (GOOD.replace('"seq":0', f'"seq":0,"x":{"[" * 100_000}'), NO_OBJECT),
    "another version": (changed(GOOD, version=max(usage.READ_VERSIONS) + 1), "a version other than 1 or 2"),
    "version as text": (changed(GOOD, version="1"), NO_OBJECT),
    "version as a fraction": (changed(GOOD, version=1.0), NO_OBJECT),
    "no version": (changed(GOOD, version=...), "version is missing"),
    "unknown kind": (changed(GOOD, kind="day"), "unknown kind"),
    "no kind": (changed(GOOD, kind=...), MISSING),
    "no gateway": (changed(GOOD, gateway=None), MISSING),
    "a gateway that is a number": (changed(GOOD, gateway=5), NO_OBJECT),
    "seq as text": (changed(GOOD, seq="5"), NO_OBJECT),
    "seq as a fraction": (changed(GOOD, seq=1.5), NO_OBJECT),
    "seq with an exponent": (GOOD.replace('"seq":0', '"seq":7e0'), NO_OBJECT),
    "seq with a zero in front": (GOOD.replace('"seq":0', '"seq":07'), NO_OBJECT),
    "seq null": (changed(GOOD, seq=None), MISSING),
    "seq null the second time": (GOOD.replace('"seq":0', '"seq":0,"seq":null'), MISSING),
    "seq as text the first time": (GOOD.replace('"seq":0', '"seq":"0","seq":0'), NO_OBJECT),
    "seq beyond 64 bits": (changed(GOOD, seq=2**63), NO_OBJECT),
    "seq that no number follows": (changed(GOOD, seq=2**63 - 1), NUMBERS),
    "seq below 0": (changed(GOOD, seq=-1), NUMBERS),
    "worker below 0": (changed(GOOD, worker=-1), NUMBERS),
    "worker as a truth": (changed(GOOD, worker=True), NO_OBJECT),
    "part beyond parts": (changed(GOOD, part=1), NUMBERS),
    "part below 0": (changed(GOOD, part=-1), NUMBERS),
    "no part": (changed(GOOD, part=...), MISSING),
    "final as text": (changed(GOOD, final="true"), NO_OBJECT),
    "ends before it starts": (changed(GOOD, end_ms=START - 1), "time is out of range"),
    "a storage factor below 0": (changed(GOOD, storage_factor_ppm=-1), FACTOR),
    "a storage factor above 1": (changed(GOOD, storage_factor_ppm=usage.PPM + 1), FACTOR),
    "a storage factor as text": (changed(GOOD, storage_factor_ppm="1"), NO_OBJECT),
    "volumes that are no list": (changed(GOOD, volumes={}), NO_OBJECT),
    "a volume that is null": (changed(GOOD, volumes=[None]), DISKS),
    "a volume without its free space": (changed(GOOD, volumes=[{"broker": 1, "log_dir": "/a", "total": 5}]), DISKS),
    "a volume's limit below 0": (changed(GOOD, volumes=[VOLUME | {"hard": -1}]), DISKS),
    "a topic's replicas as text": (changed(GOOD, spread=[SPREAD | {"here": "1"}]), NO_OBJECT),
    "a topic's replicas below 0": (changed(GOOD, spread=[SPREAD | {"here": -1}]), DISKS),
    "no rows": (changed(GOOD, rows=...), MISSING),
    "rows as an object": (changed(GOOD, rows={}), NO_OBJECT),
    "a row that is a number": (changed(GOOD, rows=[5]), NO_OBJECT),
    "a row that is null": (changed(GOOD, rows=[None]), A_ROW),
    "an empty interval that is not final": (changed(GOOD, rows=[]), SHAPE),
    "a lost worker with rows": (changed(GOOD, kind="lost"), SHAPE),
    "a lost worker with a final interval": (changed(lost(0), final=True), SHAPE),
    "a lost worker's seq": (changed(lost(0), seq=-2), NUMBERS),
    "bytes as text": (_row(bytes="1"), NO_OBJECT),
    "bytes as a fraction": (_row(bytes=1.5), NO_OBJECT),
    "bytes null": (_row(bytes=None), A_ROW),
    "bytes below 0": (_row(bytes=-1), A_ROW),
    "a count that overflows when summed up": (_row(bytes=usage.MAX_COUNT + 1), A_ROW),
    "repeats that overflow when summed up": (_row(repeats=usage.MAX_COUNT + 1), A_ROW),
    "no bytes": (_row(bytes=...), A_ROW),
    "topic null": (_row(topic=None), A_ROW),
    "a topic that is a list": (_row(topic=[]), NO_OBJECT),
    "unknown outcome": (_row(outcome="vanished"), A_ROW),
    "a rejection without a reason": (_row(outcome="rejected"), A_ROW),
    "broker -2": (_row(broker=-2), A_ROW),
}
WELL_FORMED = {
    "an interval": GOOD,
    "a final interval without rows": interval(1, (), final=True)[0],
    "disks": changed(GOOD, volumes=[VOLUME, VOLUME | {"soft": None, "hard": 3}], spread=[SPREAD], other=1),
    "no disks": changed(GOOD, volumes=None, spread=[]),
    "a lost worker": lost(3),
    "a worker lost before its first interval": lost(-1),
    "a field that is new": changed(GOOD, region="eu", tags=[1, {"a": None}]),
    "a row's field that is new": _row(region="eu"),
    "any character": interval(2, [Row(client_id='é\u2028"\\\n\x00😀', topic="]}")])[0],
    "characters as they are": GOOD.replace("clicks", "é\u2028😀"),
    "half a character": GOOD.replace("clicks", "\\ud800"),
    "an unknown broker": _row(broker=-1),
    "the largest count": _row(bytes=usage.MAX_COUNT, repeats=usage.MAX_COUNT),
    "a line of Windows": GOOD + "\r",
    "a field twice": GOOD.replace('"seq":0', '"seq":-5,"seq":0'),
}
# What a reader that sums up has to refuse and a writer's check need not.
STRICTER = {
    "a time before there was a gateway": (changed(GOOD, start_ms=5, end_ms=6), "time is out of range"),
    "a time in microseconds": (changed(GOOD, start_ms=START * 1000, end_ms=START * 1000), "time is out of range"),
    "parts without end": (changed(GOOD, parts=2**40), NUMBERS),
    "a field of version 2 in a version 1": (changed(GOOD, version=1, volumes="none"), NO_OBJECT),
}

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


CHANCE_FIELDS = changed(whole(version=1), volumes=[VOLUME], spread=[SPREAD], storage_factor_ppm=5, cluster="c")
SEEDS = (
    whole(), whole(), whole(version=1), GOOD, lost(3), interval(1, (), final=True)[0], CHANCE_FIELDS,
    WELL_FORMED["a field that is new"],
)  # fmt: skip


def generated(count: int = 4000, seed: int = 11) -> list[str]:
    chance = random.Random(seed)
    return [worse(chance.choice(SEEDS), chance) for _ in range(count)]


def parsed(value: str | bytes | None) -> UsageRecord | str:
    """The record, or why there is none."""
    try:
        return decoding.parse_record(value.encode() if isinstance(value, str) else value)
    except MalformedRecord as error:
        return str(error)


def taken_by_writer(value: str | bytes) -> dict[str, Any] | None:
    try:
        return usage.decode_record(value)
    except (usage.InvalidUsageRecord, RecursionError):
        return None


def _is_twice(line: str) -> bool:
    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    found: list[bool] = []
    json.loads(line, object_pairs_hook=check)
    return any(found)


def json_takes_more(line: str) -> bool:
    """Python's module takes what isn't JSON, numbers of any length, and of a field that is there twice the last."""
    return any(text in line for text in ("NaN", "Infinity", "9" * 1001)) or _is_twice(line)


@pytest.mark.parametrize("name", MALFORMED)
def test_what_the_writer_would_not_write_is_malformed_and_why(name: str) -> None:
    line, problem = MALFORMED[name]
    assert taken_by_writer(line) is None or json_takes_more(line)
    assert parsed(line) == problem


def test_what_the_writer_may_write_is_taken_but_for_what_no_sum_may_hold() -> None:
    for line in WELL_FORMED.values():
        assert taken_by_writer(line)
        assert not isinstance(parsed(line), str), parsed(line)
    for line, problem in STRICTER.values():
        assert taken_by_writer(line)
        assert parsed(line) == problem
    assert parsed(None) == "empty"


def test_bytes_that_are_no_text_are_malformed() -> None:
    for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"):
        assert parsed(GOOD.encode().replace(b"clicks", bad)) == "not UTF-8"
        assert parsed(GOOD.encode().replace(b'"seq"', b'"x":"' + bad + b'","seq"')) == "not UTF-8"
        assert parsed(bad) == "not UTF-8"
    (sample,) = record_batches.decode_values([b"\xff" * 5000]).column("sample").to_pylist()
    assert sample == "\ufffd" * decoding.SAMPLE_CHARS


def test_both_ways_say_the_same_and_what_the_writer_says() -> None:
    ways: Counter[str] = Counter()
    for line in [*generated(20_000), *WELL_FORMED.values()]:
        found, value = parsed(line), line.encode()
        try:
            slow: UsageRecord | str = decoding._parse_slowly(value)
        except MalformedRecord as error:
            slow = str(error)
        if isinstance(found, UsageRecord) and found.version < 2:
            decoding.forget_optional_fields(found)
            assert isinstance(slow, UsageRecord)
            decoding.forget_optional_fields(slow)
        assert found == slow, line
        written = taken_by_writer(line)
        if isinstance(found, UsageRecord):
            assert written is not None, line
            assert decoding.content_digest(found) == decoding.content_digest(slow)  # type: ignore[arg-type]
            assert _values(found) == _written_values(written), line
        elif written is not None:  # Python's json, and the writer of times and parts, take more
            more = written["version"] == 1 or json_takes_more(line)
            assert found in (NUMBERS, "time is out of range") or more, (found, line)
        ways["good" if written else "malformed"] += 1
        with_msgspec = found == slow and not isinstance(found, str)
        ways["taken by msgspec"] += with_msgspec and _taken_by_msgspec(value)
    assert ways["taken by msgspec"] > 1000
    assert ways["good"] > ways["taken by msgspec"]
    assert ways["malformed"] > 1000


def _taken_by_msgspec(value: bytes) -> bool:
    try:
        decoding._decode(value)
    except msgspec.MsgspecError:
        return False
    return True


def _values(record: UsageRecord) -> list[Any]:
    header = [getattr(record, name) for name in (*usage.HEADER_FIELDS, *usage.OPTIONAL_HEADER_FIELDS)]
    optional = [(usage.VOLUMES, record.volumes), (usage.SPREAD, record.spread)]
    disks = [None if each is None else [msgspec.structs.asdict(one) for one in each] for _, each in optional]
    return [*header, *disks, [msgspec.structs.asdict(row) for row in record.rows]]


def _written_values(record: dict[str, Any]) -> list[Any]:
    is_new = record["version"] > 1

    def fields(of: dict[str, Any], needed: dict[str, str], optional: dict[str, str], keeps: bool = True) -> Any:
        return {name: _as_text(of[name]) for name in needed} | {
            name: _as_text(of.get(name)) if keeps else None for name in optional
        }

    header = list(fields(record, usage.HEADER_FIELDS, usage.OPTIONAL_HEADER_FIELDS, is_new).values())
    volumes, spread = (record.get(name) if is_new else None for name in (usage.VOLUMES, usage.SPREAD))
    return [
        *header,
        None
        if volumes is None
        else [fields(each, usage.VOLUME_FIELDS, usage.OPTIONAL_VOLUME_FIELDS) for each in volumes],
        None if spread is None else [fields(each, usage.SPREAD_FIELDS, {}) for each in spread],
        [fields(row, usage.ROW_FIELDS, usage.OPTIONAL_ROW_FIELDS, is_new) for row in record["rows"]],
    ]


def _as_text(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


rows = st.lists(
    st.builds(
        Row,
        broker=st.integers(-1, 2**63 - 1),
        topic=st.text(max_size=20),
        client_id=st.text(max_size=20),
        outcome=st.sampled_from((*usage.OUTCOMES, *usage.NOTES)),
        reason=st.just("x"),
        bytes=st.integers(0, usage.MAX_COUNT),
        group=st.sampled_from(["", "web"]),
        repeats=st.none() | st.integers(0, usage.MAX_COUNT),
    ),
    min_size=1,
    max_size=4,
)


@given(
    st.lists(st.one_of(rows, st.sampled_from([line for line, _ in MALFORMED.values()])), max_size=8), st.integers(1, 9)
)
def test_columns_hold_what_was_written(given: list[Any], max_rows: int) -> None:
    lines = [each if isinstance(each, str) else interval(seq, each)[0] for seq, each in enumerate(given)]
    values = [line.encode("utf-8", "surrogatepass") for line in lines]
    found = record_batches.decode_values(values)
    assert found.schema == record_batches.DECODED_SCHEMA
    assert [
        row for batch in record_batches.decode_batches(values, max_rows) for row in batch.to_pylist()
    ] == found.to_pylist()
    for line, row in zip(lines, found.to_pylist(), strict=True):
        record = parsed(line)
        if isinstance(record, str):
            assert (row["problem"], row["sample"], row["rows"]) == (record, line[: decoding.SAMPLE_CHARS], [])
            assert all(row[name] is None for name in (*usage.HEADER_FIELDS, "digest"))
            continue
        assert (row["problem"], row["sample"], row["digest"]) == (None, None, decoding.content_digest(record))
        written = _written_values(json.loads(line))
        texts = dict.fromkeys(("group", "software"), "")
        for each in written[-1]:
            each |= {name: each[name] or text for name, text in texts.items()}
        names = (*usage.HEADER_FIELDS, *usage.OPTIONAL_HEADER_FIELDS, usage.VOLUMES, usage.SPREAD, "rows")
        assert [row[name] for name in names] == written


def test_version_1_has_nothing_of_version_2() -> None:
    line = CHANCE_FIELDS.replace('"delay_ms": 0', '"delay_ms": 0, "group": "g", "software": "s", "repeats": 7')
    (row,) = record_batches.decode_values([line.encode()]).to_pylist()
    assert [row[name] for name in (*usage.OPTIONAL_HEADER_FIELDS, usage.VOLUMES, usage.SPREAD)] == [None] * 6
    assert [(each["group"], each["software"], each["repeats"]) for each in row["rows"]] == [("", "", None)] * 2


def test_copies_say_the_same_however_they_are_written() -> None:
    def digest(line: str) -> int:
        return decoding.content_digest(decoding.parse_record(line.encode()))

    same = [GOOD, changed(GOOD), changed(GOOD, region="eu"), changed(GOOD, volumes=[VOLUME], storage_factor_ppm=5)]
    same.append(GOOD.replace("clicks", "\\u0063licks"))
    assert len(set(map(digest, same))) == 1
    others = [
        changed(GOOD, **{name: value}) for name, value in (("end_ms", START + 999), ("final", True), ("boot", "b"))
    ]
    others += [
        changed(GOOD, cluster="a"),
        changed(GOOD, cluster="b"),
        _row(bytes=5),
        _row(bytes=6),
        _row(repeats=0),
        _row(group="g"),
        GOOD,
    ]
    assert len(set(map(digest, others))) == len(others)


def test_fields_of_a_record_are_those_that_are_defined() -> None:
    assert decoding.RecordRow.__struct_fields__ == (*usage.ROW_FIELDS, *usage.OPTIONAL_ROW_FIELDS)
    record = {*usage.HEADER_FIELDS, *usage.OPTIONAL_HEADER_FIELDS, usage.VOLUMES, usage.SPREAD, "rows"}
    assert set(UsageRecord.__struct_fields__) == record
    assert UsageRecord.__struct_fields__[: len(usage.HEADER_FIELDS)] == tuple(usage.HEADER_FIELDS)
    assert decoding.RecordVolume.__struct_fields__ == (*usage.VOLUME_FIELDS, *usage.OPTIONAL_VOLUME_FIELDS)
    assert decoding.RecordSpread.__struct_fields__ == tuple(usage.SPREAD_FIELDS)


def test_records_of_a_partition_say_whether_their_numbers_ascend() -> None:
    """Where all do, and a life is in no other partition, no record is there twice."""
    large = interval(4, [Row(client_id=f"c{number}") for number in range(1500)])
    assert len(large) == 2
    lines = [*interval(0), *interval(3), *large, lost(4), *interval(1, worker=1), "{", *interval(4), *interval(3)]
    lines += [*interval(1, worker=1), large[1], lost(4), lost(5), *interval(5)]
    batches = [
        pa.record_batch([pa.array(some), pa.array(range(len(some)))], ["value", "origin"])
        for some in (lines[:3], lines[3:])
    ]
    found = [row for batch in record_batches.decode_partition(batches) for row in batch.to_pylist()]
    assert [row["ascends"] for row in found] == [True] * 6 + [None] + [False] * 5 + [True] * 2
    assert [row["value"] for row in found if row["value"] is not None] == [b"{"]
