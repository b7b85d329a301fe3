from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import channel
from policies import usage


@dataclass(frozen=True)
class Row:
    broker: int = 1
    topic: str = "clicks"
    principal: str = "User:ANONYMOUS"
    client_id: str = "app"
    outcome: str = "accepted"
    reason: str = ""
    bytes: int = 100
    messages: int = 3
    requests: int = 1
    delay_ms: int = 0
    group: str = ""
    software: str = ""
    repeats: int | None = None


def lines(*rows: Row, final: bool = False) -> list[bytes]:
    return usage.encode_interval("gw-1", "ab12", 0, 17, rows, start_ms=1000, end_ms=2000, final=final)


def record(**changes: Any) -> dict[str, Any]:
    made = usage.decode_record(lines(Row())[0])
    return made | changes


def test_a_record_is_one_line_of_json_with_these_fields_in_this_order() -> None:
    (line,) = lines(Row())
    assert line == (
        b'{"version":2,"kind":"interval","gateway":"gw-1","boot":"ab12","worker":0,"seq":17,"part":0,"parts":1,'
        b'"start_ms":1000,"end_ms":2000,"final":false,"rows":[{"broker":1,"topic":"clicks","principal":"User:ANONYMOUS",'
        b'"client_id":"app","outcome":"accepted","reason":"","bytes":100,"messages":3,"requests":1,"delay_ms":0}]}'
    )


def test_the_key_keeps_a_workers_intervals_in_one_partition() -> None:
    assert usage.record_key("gw-1", "ab12", 0) == b"gw-1/ab12/0"


def test_the_channels_rows_have_the_fields_of_a_record() -> None:
    assert list(channel.UsageRow.__struct_fields__) == [*usage.ROW_FIELDS, *usage.OPTIONAL_ROW_FIELDS]


rows = st.lists(
    st.builds(
        Row,
        topic=st.text(st.characters(exclude_categories=["Cs"])),
        client_id=st.text(),
        bytes=st.integers(0, usage.MAX_COUNT),
        outcome=st.sampled_from(sorted(usage.OUTCOMES + usage.NOTES)),
        reason=st.just("x"),
        group=st.sampled_from(["", "web"]),
        software=st.sampled_from(["", "librdkafka"]),
        repeats=st.none() | st.integers(0, usage.MAX_COUNT),
    ),
    min_size=1,
    max_size=5,
)


@given(rows)
def test_written_rows_are_read(rows: list[Row]) -> None:
    (line,) = lines(*rows)
    assert len(line.splitlines()) == 1
    assert len(line.decode().splitlines()) == 1  # U+2028 and the like are escaped
    assert [Row(**row) for row in usage.decode_record(line)["rows"]] == rows


def test_a_large_interval_is_split_into_parts_with_the_same_seq() -> None:
    records = [usage.decode_record(line) for line in lines(*[Row(bytes=i) for i in range(2500)])]
    assert [(r["part"], r["parts"], len(r["rows"]), r["seq"]) for r in records] == [
        (0, 3, 1000, 17),
        (1, 3, 1000, 17),
        (2, 3, 500, 17),
    ]
    assert sum(row["bytes"] for r in records for row in r["rows"]) == sum(range(2500))
    assert len({usage.record_identity(r) for r in records}) == 3


def test_no_part_exceeds_what_a_broker_takes_even_with_the_longest_client_ids() -> None:
    made = lines(*[Row(client_id="\u2028" * 10_922) for _ in range(30)])  # 32,766 bytes of UTF-8
    assert max(map(len, made)) <= 1_048_588 - 300  # Kafka's max.message.bytes, batch and record headers off
    assert sum(len(usage.decode_record(line)["rows"]) for line in made) == 30


def test_a_final_interval_may_be_empty() -> None:
    (line,) = lines(final=True)
    assert usage.decode_record(line)["final"] is True


def test_a_lost_worker_is_noted_after_its_last_seq() -> None:
    made = usage.decode_record(usage.encode_lost("gw-1", "ab12", 0, -1, 5000))
    assert (made["kind"], made["seq"], made["rows"]) == ("lost", -1, [])


def test_fields_added_later_are_skipped() -> None:
    usage.validate_record(record(colour="red"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "version: 3, this program reads 1 and 2"),
        ({"version": True}, "version: True is not a valid int"),
        ({"version": None}, "version"),
        ({"kind": "other"}, "kind: 'other'"),
        ({"seq": -1}, "seq: -1"),
        ({"seq": "1"}, "seq: '1' is not a valid int"),
        ({"worker": True}, "worker: True is not a valid int"),
        ({"seq": 2**63}, "out of range"),
        ({"seq": usage.MAX_COUNT + 1}, "out of range"),
        ({"part": 1}, "part: 1 of 1"),
        ({"final": 0}, "final: 0 is not a valid bool"),
        ({"end_ms": 999}, "end_ms"),
        ({"rows": {}}, "rows: a list"),
        ({"rows": []}, "only a final interval"),
        ({"rows": [1]}, r"rows\[0\]: a row"),
        ({"kind": "lost"}, "a lost worker has none"),
    ],
)
def test_a_wrong_header_is_refused_with_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(usage.InvalidUsageRecord, match=message):
        usage.validate_record(record(**changes))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"outcome": "lost"}, r"rows\[0\]\.outcome: 'lost' is not one of accepted, "),
        ({"outcome": "rejected"}, r"rows\[0\]\.reason"),
        ({"outcome": "would_delay"}, r"rows\[0\]\.reason"),
        ({"outcome": "would_pass"}, r"would_pass' is not one of accepted, .*, would_reject, would_delay"),
        ({"bytes": -1}, r"rows\[0\]\.bytes: -1 is out of range"),
        ({"bytes": usage.MAX_COUNT + 1}, r"rows\[0\]\.bytes: 1125899906842625 is out of range"),
        ({"repeats": usage.MAX_COUNT + 1}, r"rows\[0\]\.repeats: 1125899906842625 is out of range"),
        ({"bytes": 1.0}, r"rows\[0\]\.bytes: 1\.0 is not a valid int"),
        ({"broker": -2}, r"rows\[0\]\.broker"),
        ({"topic": None}, r"rows\[0\]\.topic: None is not a valid str"),
    ],
)
def test_a_wrong_row_is_refused_with_its_path(row: dict[str, Any], message: str) -> None:
    made = record()
    made["rows"][0] |= row
    with pytest.raises(usage.InvalidUsageRecord, match=message):
        usage.validate_record(made)


@pytest.mark.parametrize(("factor", "told"), [(0.0, 0), (1e-9, 1), (0.25, 250_000), (1.0, 1_000_000)])
def test_an_interval_says_which_storage_factor_held(factor: float, told: int) -> None:
    given: dict[str, Any] = {"start_ms": 1000, "end_ms": 2000, "storage_factor": factor}
    (line,) = usage.encode_interval("gw-1", "ab12", 0, 17, [Row()], **given)
    assert usage.decode_record(line)["storage_factor_ppm"] == told
    (line,) = usage.encode_interval("gw-1", "ab12", 0, 17, [Row()], **given, version=1)
    assert "storage_factor_ppm" not in usage.decode_record(line)


@pytest.mark.parametrize("told", [-1, 1_000_001, 0.5, True, "1"])
def test_a_wrong_storage_factor_is_refused(told: object) -> None:
    with pytest.raises(usage.InvalidUsageRecord, match="storage_factor_ppm"):
        usage.validate_record(record(storage_factor_ppm=told))
    usage.validate_record(record(storage_factor_ppm=told, version=1))  # which knows no such field


def test_every_record_names_the_cluster_once_it_is_known() -> None:
    given: dict[str, Any] = {"start_ms": 1000, "end_ms": 2000}
    many = [Row(client_id=str(number)) for number in range(1200)]
    lines = usage.encode_interval("gw-1", "ab12", 0, 17, many, **given, cluster="c" * 300)
    lines.append(usage.encode_lost("gw-1", "ab12", 0, -1, 5000, "c" * 300))
    assert {usage.decode_record(line)["cluster"] for line in lines} == {"c" * usage.NAME_CHARS}
    lines = usage.encode_interval("gw-1", "ab12", 0, 17, [Row()], **given, cluster="c", version=1)
    lines += [*usage.encode_interval("gw-1", "ab12", 0, 17, [Row()], **given), usage.encode_lost("g", "b", 0, 0, 1)]
    assert not [line for line in lines if "cluster" in usage.decode_record(line)]
    with pytest.raises(usage.InvalidUsageRecord, match="cluster: 7"):
        usage.validate_record(record(cluster=7))


VOLUMES = (usage.VolumeNote(2, "/b", 100, 30, None, 10.4), usage.VolumeNote(1, "/a", 100, 80, 20.0, 10.0))
DISKS = usage.DiskNotes(VOLUMES, (usage.SpreadNote(2, "clicks", 1, 3),))


def test_an_interval_says_what_was_seen_of_disks() -> None:
    given: dict[str, Any] = {"start_ms": 1000, "end_ms": 2000, "disks": DISKS}
    (line,) = usage.encode_interval("gw-1", "ab12", 0, 17, [Row()], **given)
    read = usage.decode_record(line)
    assert read["volumes"] == [
        {"broker": 2, "log_dir": "/b", "total": 100, "available": 30, "hard": 10},
        {"broker": 1, "log_dir": "/a", "total": 100, "available": 80, "soft": 20, "hard": 10},
    ]
    assert read["spread"] == [{"broker": 2, "topic": "clicks", "here": 1, "partitions": 3}]
    (line,) = usage.encode_interval("gw-1", "ab12", 0, 17, [Row()], **given, version=1)
    assert not {"volumes", "spread"} & usage.decode_record(line).keys()
    (line,) = usage.encode_interval("gw-1", "ab12", 0, 17, [Row()], **given | {"disks": usage.DiskNotes()})
    assert not {"volumes", "spread"} & usage.decode_record(line).keys()


@pytest.mark.parametrize("char", ["\U0001f600", "x"])
def test_disks_leave_room_for_the_rows_whatever_they_are_called(char: str) -> None:
    name = char * 1000
    volumes = tuple(usage.VolumeNote(broker, name, 2**62, 2**62, 1.0, 2.0) for broker in range(3000))
    spread = tuple(usage.SpreadNote(broker, name, 1, 1) for broker in range(3000))
    rows = [Row(topic=char * 300, client_id=f"{i}") for i in range(999)]
    made = usage.encode_interval(
        "g", "b", 0, 17, rows, start_ms=1000, end_ms=2000, disks=usage.DiskNotes(volumes, spread)
    )
    assert max(map(len, made)) <= usage.MAX_RECORD_BYTES
    read = [usage.decode_record(line) for line in made]
    assert sum(len(each["rows"]) for each in read) == len(rows)
    assert [len(each.get("volumes", ())) > 30 for each in read] == [True, *[False] * (len(read) - 1)], "in the first"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"volumes": 1}, "volumes: a list"),
        ({"volumes": [1]}, r"volumes\[0\]: a JSON object"),
        ({"volumes": [{"broker": 1, "log_dir": "/a", "total": 5}]}, r"volumes\[0\]\.available: missing"),
        ({"volumes": [{"broker": 1, "log_dir": "/a", "total": 5, "available": -1}]}, "out of range"),
        ({"volumes": [{"broker": 1, "log_dir": "/a", "total": 5, "available": 1, "hard": 0.5}]}, r"hard: 0\.5"),
        ({"spread": [{"broker": 1, "topic": 7, "here": 1, "partitions": 1}]}, r"spread\[0\]\.topic"),
    ],
)
def test_wrong_disks_are_refused(told: dict[str, object], message: str) -> None:
    with pytest.raises(usage.InvalidUsageRecord, match=message):
        usage.validate_record(record(**told))
    usage.validate_record(record(**told, version=1))  # which knows no such fields


@pytest.mark.parametrize("name", [*usage.HEADER_FIELDS, "rows"])
def test_every_field_is_needed(name: str) -> None:
    made = record()
    del made[name]
    with pytest.raises(usage.InvalidUsageRecord, match=name):
        usage.validate_record(made)


@given(st.integers(0, 400))
def test_a_line_cut_off_by_a_crash_is_no_record(cut: int) -> None:
    (line,) = lines(Row())
    with pytest.raises(usage.InvalidUsageRecord):
        usage.decode_record(line[: min(cut, len(line) - 1)])


@pytest.mark.parametrize("text", ["[]", "1", "null", '"x"', b"\xff\xfe"])
def test_other_json_is_no_record(text: str | bytes) -> None:
    with pytest.raises(usage.InvalidUsageRecord):
        usage.decode_record(text)


def test_a_row_leaves_out_what_it_has_not_got_but_says_0_where_nothing_is_a_repeat() -> None:
    told = [Row(group="web", software="librdkafka", repeats=0), Row(), Row(repeats=7)]
    made = usage.decode_record(lines(*told)[0])
    assert made["version"] == usage.VERSION == 2
    extra = [{name: row.get(name) for name in usage.OPTIONAL_ROW_FIELDS} for row in made["rows"]]
    assert extra == [
        {"group": "web", "software": "librdkafka", "repeats": 0},
        {"group": None, "software": None, "repeats": None},
        {"group": None, "software": None, "repeats": 7},
    ]
    for name, wrong in (("group", 1), ("software", ["x"]), ("repeats", -1), ("repeats", "1")):
        bad = made | {"rows": [made["rows"][0] | {name: wrong}]}
        with pytest.raises(usage.InvalidUsageRecord, match=rf"rows\[0\]\.{name}"):
            usage.validate_record(bad)
        usage.validate_record(bad | {"version": 1})  # a version 1 has no such field, so its reader skips it


def test_the_rows_a_gateway_of_version_1_has_left_in_its_spool_are_read() -> None:
    line = (
        b'{"version":1,"kind":"interval","gateway":"gw-1","boot":"ab12","worker":0,"seq":17,"part":0,"parts":1,'
        b'"start_ms":1000,"end_ms":2000,"final":false,"rows":[{"broker":1,"topic":"clicks","principal":"User:ANONYMOUS",'
        b'"client_id":"app","outcome":"accepted","reason":"","bytes":100,"messages":3,"requests":1,"delay_ms":0}]}'
    )
    assert [Row(**row) for row in usage.decode_record(line)["rows"]] == [Row()]
    rows = [Row(group="web", software="librdkafka", repeats=3)]
    assert usage.encode_interval("gw-1", "ab12", 0, 17, rows, start_ms=1000, end_ms=2000, version=1) == [line]


def test_the_bytes_that_may_be_in_the_log_unconfirmed() -> None:
    said = {outcome: usage.may_be_appended(outcome) for outcome in usage.OUTCOMES}
    assert [outcome for outcome in said if said[outcome]] == ["unacknowledged", "unanswered"]
    assert usage.may_be_appended("errored", "REQUEST_TIMED_OUT")
    assert not usage.may_be_appended("errored", "MESSAGE_TOO_LARGE")
    assert not usage.may_be_appended("rejected", "REQUEST_TIMED_OUT")


def test_observed_verdicts_are_counted_beside_enforced_ones_and_are_no_part_of_the_offer() -> None:
    (line,) = lines(Row(), Row(outcome="would_reject", reason="topic-threshold"))
    assert [row["outcome"] for row in usage.decode_record(line)["rows"]] == ["accepted", "would_reject"]
    assert not set(usage.NOTES) & set(usage.OUTCOMES)
    assert not any(usage.may_be_appended(outcome) for outcome in usage.NOTES)


def test_every_outcome_that_needs_a_reason_has_its_reasons_known_but_the_brokers_own() -> None:
    assert usage.REASONS.keys() == usage.OUTCOMES_WITH_REASON - {"errored"}
    assert all(usage.REASONS.values())
    assert "acks0-limit" in usage.REASONS["dropped"]


@pytest.mark.parametrize(
    ("given", "rows", "message"),
    [
        ({"start_ms": 2000, "end_ms": 1999}, [Row()], "end_ms: before start_ms"),
        ({"start_ms": -1, "end_ms": 1999}, [Row()], "start_ms: -1 is out of range"),
        ({"start_ms": 1000, "end_ms": 2000}, [], "only a final interval may be empty"),
        ({"start_ms": 1000, "end_ms": 2000}, [Row(bytes=-1)], r"rows\[0\]\.bytes"),
        ({"start_ms": 1000, "end_ms": 2000}, [Row(), Row(outcome="lost")], r"rows\[1\]\.outcome"),
        ({"start_ms": 1000, "end_ms": 2000}, [Row(outcome="rejected", reason="")], r"rows\[0\]\.reason"),
        ({"start_ms": 1000, "end_ms": 2000, "storage_factor": 2.0}, [Row()], "storage_factor_ppm"),
    ],
)
def test_nothing_is_written_that_a_reader_would_refuse(given: dict[str, Any], rows: list[Row], message: str) -> None:
    with pytest.raises(usage.InvalidUsageRecord, match=message):
        usage.encode_interval("gw-1", "ab12", 0, 17, rows, **given)


@given(st.lists(st.builds(Row, topic=st.text(), client_id=st.text(), bytes=st.integers(-5, 2**64))))
def test_rows_are_read_again_or_not_written(rows: list[Row]) -> None:
    try:
        made = usage.encode_interval("gw-1", "ab12", 0, 17, rows, start_ms=1000, end_ms=2000)
    except usage.InvalidUsageRecord:
        return
    read = [usage.decode_record(line) for line in made]
    assert sum(len(each["rows"]) for each in read) == len(rows)


@pytest.mark.parametrize("char", ["\x01", "\U0001f600", "x", '"'])
def test_a_record_gets_into_every_topic_with_any_names_clients_make_up(char: str) -> None:
    name = char * 40_000
    rows = [Row(topic=name, principal=name, client_id=f"{i}{name}", group=name, software=name) for i in range(500)]
    made = usage.encode_interval("g" * 200, "b" * 32, 255, usage.MAX_COUNT, rows, start_ms=2**62, end_ms=2**62)
    assert max(map(len, made)) <= usage.MAX_RECORD_BYTES < 1_048_588
    read = [row for line in made for row in usage.decode_record(line)["rows"]]
    assert [row["client_id"] for row in read] == [row.client_id[: usage.NAME_CHARS] for row in rows]
