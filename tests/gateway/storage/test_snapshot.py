# Snapshots in 035's schema: round trips, and documents that a JSON Schema validator judges besides us. The schema is
# written down here from the proposal, with limits nested as it means them; what is invalid beyond it stands in `state`.

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.storage.snapshot import InvalidVolumeSnapshot, decode_snapshot, encode_snapshot, parse_broker_key
from policies.storage import Volume, VolumeLimit, VolumeSnapshot

BYTES = {"type": "integer", "minimum": 0}
LIMIT = {
    "type": "object",
    "required": ["type", "level"],
    "properties": {
        "type": {"type": "string", "enum": ["ConsumedBytes", "MinFreeBytes", "MinFreePercentage"]},
        "level": {"type": "integer"},
    },
}
VOLUME = {
    "type": "object",
    "required": ["volumeName", "capacity", "consumed"],
    "properties": {
        "volumeName": {"type": "string"},
        "capacity": BYTES,
        "consumed": BYTES,
        "hardLimit": {"anyOf": [LIMIT, {"type": "null"}]},
        "softLimit": {"anyOf": [LIMIT, {"type": "null"}]},
    },
    "additionalProperties": True,
}
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema",
    "type": "object",
    "required": ["brokerId", "snapshotAt", "hardLimit", "softLimit", "volumes"],
    "properties": {
        "brokerId": {"type": "string"},
        "snapshotAt": {"type": "string", "format": "date-time"},
        "hardLimit": LIMIT,
        "softLimit": LIMIT,
        "volumes": {"type": "array", "items": VOLUME},
    },
    "additionalProperties": True,
}
FORMATS = jsonschema.FormatChecker(formats=())


@FORMATS.checks("date-time")
def _is_date_time(value: object) -> bool:
    return not isinstance(value, str) or _moment(value) is not None


def _moment(text: str) -> datetime | None:
    for form in ("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"):
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    return None


VALIDATOR = jsonschema.Draft7Validator(SCHEMA, format_checker=FORMATS)
LONG = 2**63 - 1
# The proposal's own example.
EXAMPLE: dict[str, Any] = {
    "brokerId": "0",
    "snapshotAt": "2022-04-07T13:00:00Z",
    "hardLimit": {"type": "MinFreeBytes", "level": 1000000},
    "softLimit": {"type": "MinFreePercentage", "level": 5},
    "volumes": [{"volumeName": "/dev/sdd", "capacity": 107374182400, "consumed": 10737418240}],
}


def example(**changes: Any) -> dict[str, Any]:
    return {**EXAMPLE, **changes}


def read(document: object) -> VolumeSnapshot:
    return decode_snapshot(json.dumps(document).encode())


def judge(document: object) -> VolumeSnapshot | str:
    try:
        return read(document)
    except InvalidVolumeSnapshot as error:
        return str(error)


def volume(**changes: Any) -> dict[str, Any]:
    return example(volumes=[{**EXAMPLE["volumes"][0], **changes}])


def state(document: dict[str, Any]) -> bool:
    """Whether a document, valid by the schema, says what a broker's state is."""
    limits = [document["hardLimit"], document["softLimit"]]
    names = [each["volumeName"] for each in document["volumes"]]
    for each in document["volumes"]:
        limits += [each[key] for key in ("hardLimit", "softLimit") if each.get(key) is not None]
        if not (0 < each["capacity"] <= LONG and each["consumed"] <= LONG):
            return False
    if any(not 0 <= limit["level"] <= (100 if "Perc" in limit["type"] else LONG) for limit in limits):
        return False
    broker_id = document["brokerId"]
    is_node = broker_id.isascii() and broker_id.isdigit() and str(int(broker_id)) == broker_id
    return bool(names) and len(set(names)) == len(names) and is_node and int(broker_id) < 2**31


def test_log_dirs_that_are_not_a_list_of_names_are_no_snapshot() -> None:
    assert "unreadableLogDirs" in str(judge(example(unreadableLogDirs="/data/2")))
    assert "unreadableLogDirs" in str(judge(example(unreadableLogDirs=[5])))
    assert read(EXAMPLE).unreadable == ()


# --- round trips ------------------------------------------------------------------------------------------------------

limits = st.none() | st.one_of(
    st.builds(VolumeLimit, st.just("ConsumedBytes"), st.integers(0, 2**50).map(float)),
    st.builds(VolumeLimit, st.just("MinFreeBytes"), st.integers(1, 2**50).map(float)),
    st.builds(VolumeLimit, st.just("MinFreePercentage"), st.integers(1, 100).map(lambda percent: percent / 100)),
)


@st.composite
def snapshots(draw: st.DrawFn) -> VolumeSnapshot:
    broker_id = draw(st.integers(0, 2**31 - 1))
    volumes = []
    for name in draw(st.lists(st.text(), min_size=1, max_size=4, unique=True)):
        total = draw(st.integers(1, LONG))
        volumes.append(Volume(broker_id, name, total, draw(st.integers(0, total)), draw(limits), draw(limits)))
    unreadable = tuple(draw(st.lists(st.text(), max_size=3)))
    return VolumeSnapshot(broker_id, draw(st.integers(-(10**12), 10**14)) / 1000, tuple(volumes), unreadable)


@pytest.mark.seed("035.28", "035.32")
@given(snapshots(), limits, limits)
def test_an_encoded_snapshot_is_valid_and_decodes_to_the_same(
    snapshot: VolumeSnapshot, soft: VolumeLimit, hard: VolumeLimit
) -> None:
    value = encode_snapshot(snapshot, soft, hard)
    document = json.loads(value)
    assert list(VALIDATOR.iter_errors(document)) == []
    assert state(document)
    assert decode_snapshot(value, str(snapshot.broker_id).encode()) == snapshot


@pytest.mark.seed("035.33")
def test_the_proposals_example_both_ways() -> None:
    soft, hard = VolumeLimit("MinFreePercentage", 0.05), VolumeLimit("MinFreeBytes", 1e6)
    at = datetime(2022, 4, 7, 13, tzinfo=UTC).timestamp()
    wanted = VolumeSnapshot(0, at, (Volume(0, "/dev/sdd", 107374182400, 96636764160, soft, hard),))
    assert read(EXAMPLE) == wanted
    assert json.loads(encode_snapshot(wanted, soft, hard)) == example(snapshotAt="2022-04-07T13:00:00.000Z")


def test_fractions_become_the_next_stricter_whole() -> None:
    for limit, level in (
        (VolumeLimit("MinFreePercentage", 0.121), 13),
        (VolumeLimit("MinFreePercentage", 0.07), 7),
        (VolumeLimit("MinFreeBytes", 10.5), 11),
        (VolumeLimit("ConsumedBytes", 10.5), 10),
    ):
        written = json.loads(encode_snapshot(VolumeSnapshot(1, 0.0, (Volume(1, "a", 100, 50),)), limit))
        assert written["softLimit"] == {"type": limit.type, "level": level}


# --- documents of others ----------------------------------------------------------------------------------------------

numbers = st.sampled_from([0, 1, 5, 100, 101, 1000, LONG, LONG + 1, 10**400, -1, 2.0, 2.5, True, "1", None, 1e300])
written_limits = st.fixed_dictionaries(
    {"type": st.sampled_from(["ConsumedBytes", "MinFreeBytes", "MinFreePercentage", "ConsumedSpace", "", 1])},
    optional={"level": numbers, "since": st.just("x")},
) | st.sampled_from([EXAMPLE["hardLimit"], EXAMPLE["softLimit"], None, [], 5])
written_volumes = st.fixed_dictionaries(
    {"volumeName": st.sampled_from(["/dev/sda", "/dev/sdb", "", "ä\n", 5]), "capacity": numbers},
    optional={"consumed": numbers, "softLimit": written_limits, "hardLimit": written_limits, "label": st.just([{}])},
) | st.sampled_from([*EXAMPLE["volumes"], None, "x"])
TIMES = [
    "2022-04-07T13:00:00Z", "2022-04-07T15:00:00+02:00", "2022-04-07T13:00:00.5Z", "2022-04-07T13:00:00.123456-01:30",
    "2022-04-07T13:00:00", "2022-04-07", "2022-02-30T13:00:00Z", "2022-04-07T24:00:00Z", "2022-04-07T13:00Z", "now", 0,
]  # fmt: skip


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """The proposal's example with one or more parts replaced, valid ones or not."""
    parts = {
        "brokerId": st.sampled_from(["0", "7", "2147483647", "2147483648", "01", "-1", "٣", "", 0, None]),
        "snapshotAt": st.sampled_from(TIMES),
        "hardLimit": written_limits,
        "softLimit": written_limits,
        "volumes": st.lists(written_volumes, max_size=3) | st.none(),
        "version": st.just({"a": [1]}),
    }
    document = dict(EXAMPLE)
    for name in draw(st.lists(st.sampled_from(sorted(parts)), max_size=3)):
        document[name] = draw(parts[name])
    if draw(st.integers(0, 9)) == 0:
        del document[draw(st.sampled_from(sorted(EXAMPLE)))]
    return document


@pytest.mark.seed("035.28", "035.32")
@given(st.lists(documents(), min_size=20, max_size=20))
def test_valid_is_what_the_schema_allows_and_tells_a_brokers_state(many: list[Any]) -> None:
    for document in many:
        valid = VALIDATOR.is_valid(document) and state(document)
        found = judge(document)
        if isinstance(found, str):
            assert not valid, f"{document} refused: {found}"
            assert "\n" not in found
            continue
        assert valid, document
        moment = _moment(document["snapshotAt"])
        assert moment is not None
        assert found.at == moment.timestamp()
        for ours, theirs in zip(found.volumes, document["volumes"], strict=True):
            assert (ours.name, ours.total) == (theirs["volumeName"], theirs["capacity"])
            assert ours.consumed == min(theirs["consumed"], theirs["capacity"])
            for limit, key in ((ours.soft, "softLimit"), (ours.hard, "hardLimit")):
                chosen = document[key] if theirs.get(key) is None else theirs[key]
                kind, level = chosen["type"], chosen["level"]
                if level == 0 and kind != "ConsumedBytes":
                    assert limit is None
                else:
                    assert limit == VolumeLimit(kind, level / 100 if "Perc" in kind else float(level))


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_give_a_snapshot_or_one_line(value: bytes) -> None:
    with pytest.raises(InvalidVolumeSnapshot) as caught:
        decode_snapshot(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ([], "an object is needed here, not []"),
        ({k: v for k, v in EXAMPLE.items() if k != "hardLimit"}, "hardLimit: is required"),
        (example(hardLimit={"type": "MinFreeBytes"}), "hardLimit.level: is required"),
        (
            example(hardLimit={"type": "ConsumedSpace", "level": 1}),
            "hardLimit.type: should be 'ConsumedBytes', 'MinFreeBytes' or 'MinFreePercentage', not 'ConsumedSpace'",
        ),
        (
            example(softLimit={"type": "MinFreePercentage", "level": 0.2}),
            "softLimit.level: a whole number is needed here, not 0.2",
        ),
        (
            example(softLimit={"type": "MinFreePercentage", "level": 101}),
            "softLimit.level: 101 is more than 100 percent",
        ),
        (
            volume(hardLimit={"type": "MinFreeBytes", "level": -1}),
            "volumes[0].hardLimit.level: should be greater than or equal to 0, not -1",
        ),
        (volume(capacity="100"), "volumes[0].capacity: a whole number is needed here, not '100'"),
        (volume(capacity=0), "volumes[0].capacity: is 0, so its free part is unknown"),
        (volume(capacity=2**63), "volumes[0].capacity: should be less than or equal to 9223372036854775807, not "),
        (example(volumes=[]), "volumes: there is none, so the broker's state is unknown"),
        (example(volumes=EXAMPLE["volumes"] * 2), "volumes[1].volumeName: '/dev/sdd' is there twice"),
        (
            example(snapshotAt="2022-04-07T13:00:00"),
            "snapshotAt: a date and time with its offset is needed, such as 2022-04-07T13:00:00Z, not",
        ),
        (example(snapshotAt="2022-02-30T13:00:00Z"), "snapshotAt: '2022-02-30T13:00:00Z': day is out of range"),
        (example(brokerId="broker-0"), "brokerId: a node id such as '0' is needed, not 'broker-0'"),
        (example(broker_id="0", brokerId=0), "brokerId: text is needed here, not 0"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_errors_say_where_and_what(document: object, line: str) -> None:
    with pytest.raises(InvalidVolumeSnapshot) as caught:
        read(document)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"{",
        b'{"volumes":' + b"[" * 5000 + b"]" * 5000 + b"}",
        json.dumps(EXAMPLE).replace('"/dev/sdd"', '"\\ud800"').encode(),
        json.dumps(EXAMPLE).replace("107374182400", "1" + "0" * 5000).encode(),
    ],
)
def test_values_that_are_no_json(value: bytes) -> None:
    with pytest.raises(InvalidVolumeSnapshot, match=r"^no JSON: ") as caught:
        decode_snapshot(value)
    assert caught.value.kind == "no JSON"


def test_faults_of_one_kind_have_one_name() -> None:
    kinds = set()
    for names in (["a", "a"], ["a", "b", "b"]):
        with pytest.raises(InvalidVolumeSnapshot) as caught:
            read(example(volumes=[{"volumeName": name, "capacity": 1, "consumed": 0} for name in names]))
        kinds.add(caught.value.kind)
    assert kinds == {"volumes[].volumeName"}


def test_the_key_must_be_the_broker_id() -> None:
    value = json.dumps(example(brokerId="3")).encode()
    assert decode_snapshot(value, b"3").broker_id == 3
    for key in (b"4", b"03", b"", b'"3"'):
        with pytest.raises(InvalidVolumeSnapshot, match=r"^brokerId: 3 under the key b"):
            decode_snapshot(value, key)
    assert parse_broker_key(b"3") == 3
    for other in (b"", None, b"x", b"03", b"\xff"):
        with pytest.raises(InvalidVolumeSnapshot, match=r"^key: "):
            parse_broker_key(other)


def test_more_consumed_than_capacity_is_a_full_volume() -> None:
    found = read(volume(capacity=100, consumed=120)).volumes[0]
    assert (found.total, found.available) == (100, 0)


def test_digits_beyond_microseconds_are_dropped() -> None:
    assert read(example(snapshotAt="1970-01-01T00:00:01.1234569Z")).at == 1.123456
    assert read(example(snapshotAt="1970-01-01t00:00:01z")).at == 1.0


@pytest.mark.seed("035.30")
def test_no_opinion_leaves_the_volume_to_the_gateways_limits() -> None:
    bare = Volume(1, "/dev/sda", 100, 50)
    soft = VolumeLimit("MinFreeBytes", 10.0)
    written = json.loads(encode_snapshot(VolumeSnapshot(1, 0.0, (bare,))))
    assert written["softLimit"] == written["hardLimit"] == {"type": "MinFreeBytes", "level": 0}
    assert "softLimit" not in written["volumes"][0]
    assert read(written).volumes == (bare,)
    # A volume that shall not have the snapshot's limit says so itself.
    written = json.loads(encode_snapshot(VolumeSnapshot(1, 0.0, (bare,)), soft))
    assert written["volumes"][0]["softLimit"] == {"type": "MinFreeBytes", "level": 0}
    assert read(written).volumes == (bare,)


@pytest.mark.seed("035.30")
def test_a_volumes_own_limit_wins_over_the_snapshots() -> None:
    own, level = {"type": "MinFreeBytes", "level": 7}, VolumeLimit("MinFreeBytes", 7.0)
    (before,) = read(volume(softLimit=None, hardLimit=None)).volumes
    assert before.hard == VolumeLimit("MinFreeBytes", 1e6)
    for side in ("soft", "hard"):
        (found,) = read(volume(**{f"{side}Limit": own})).volumes
        assert found == before._replace(**{side: level})  # type: ignore[arg-type]


@pytest.mark.seed("035.32")
def test_an_integer_is_what_json_schema_calls_one() -> None:
    found = read(volume(capacity=1e3, consumed=10.0, softLimit={"type": "MinFreePercentage", "level": 20.0})).volumes[0]
    assert (found.total, found.available, found.soft) == (1000, 990, VolumeLimit("MinFreePercentage", 0.2))
    assert type(found.total) is int
