# The audit's one decoder: which lines are usage records, and what each says. Batch, stream and what-if take their
# records from here, and so may a program without Spark (record_batches.py makes Arrow of them).
#
# A line as gateways write it goes through msgspec in one go. What that refuses is judged again, field by field, so that
# a malformed line gets its reason; a good one that is only unusual (fields of later versions) comes through there.
# Knows neither frame nor file. Runs in Spark's Python processes, so it imports little.

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, NoReturn

import msgspec

from policies import usage

# A gateway's clock that is off by decades, or one in seconds or microseconds, would put windows far from all others.
EARLIEST_MS: Final = 946_684_800_000  # 2000-01-01
LATEST_MS: Final = 4_102_444_800_000  # 2100-01-01
MAX_PARTS: Final = 2**20
SAMPLE_CHARS: Final = 200  # characters of a malformed record that are worth showing
MAX_SAMPLES: Final = 10  # malformed records that are shown, the first by origin
_KEPT_SAMPLES: Final = 1000  # before all others are forgotten

EMPTY: Final = "empty"
NOT_UTF8: Final = "not UTF-8"
NOT_ONE_OBJECT: Final = "not one JSON object, or a field of the wrong type"

_MAX_INT: Final = 2**63 - 1
_MAX_DIGITS: Final = 1000  # of a number that nobody reads: int() takes time that grows with their square

_Count = Annotated[int, msgspec.Meta(ge=0, le=usage.MAX_COUNT)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT)]
_Broker = Annotated[int, msgspec.Meta(ge=-1, le=_MAX_INT)]
_Time = Annotated[int, msgspec.Meta(ge=EARLIEST_MS, le=LATEST_MS)]


class MalformedRecord(ValueError):
    """Not a usage record; the text is one of a few reasons, to count by."""


class RecordVolume(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One of usage.VOLUMES."""

    broker: _Broker
    log_dir: str
    total: _Number
    available: _Number
    soft: _Number | None = None
    hard: _Number | None = None


class RecordSpread(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One of usage.SPREAD."""

    broker: _Broker
    topic: str
    here: _Number
    partitions: _Number


class RecordRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A row; None is a field that it hasn't."""

    broker: _Broker
    topic: str
    principal: str
    client_id: str
    outcome: Literal[(*usage.OUTCOMES, *usage.NOTES)]  # type: ignore[valid-type]  # the names are in one place only
    reason: str
    bytes: _Count
    messages: _Count
    requests: _Count
    delay_ms: _Count
    group: str | None = None
    software: str | None = None
    repeats: _Count | None = None


class UsageRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A good record, as it was written: one of version 1 may by chance have optional fields, which say nothing."""

    version: Literal[usage.READ_VERSIONS]  # type: ignore[valid-type]
    kind: Literal[(usage.INTERVAL, usage.LOST)]  # type: ignore[valid-type]
    gateway: str
    boot: str
    worker: _Number
    seq: Annotated[int, msgspec.Meta(ge=-1, le=usage.MAX_COUNT)]
    part: _Number
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)]
    start_ms: _Time
    end_ms: _Time
    final: bool
    rows: list[RecordRow]
    storage_factor_ppm: Annotated[int, msgspec.Meta(ge=0, le=usage.PPM)] | None = None
    cluster: str | None = None
    previous_digest: str | None = None
    record_digest: str | None = None
    volumes: list[RecordVolume] | None = None
    spread: list[RecordSpread] | None = None


_decode = msgspec.json.Decoder(UsageRecord).decode
_encode = msgspec.json.Encoder().encode


def parse_record(value: bytes | None) -> UsageRecord:
    """The record that a line of a spool file (without its newline) or a value of the topic holds.

    Raises:
        MalformedRecord: it holds none; the text says why.
    """
    if value is not None:
        try:
            record = _decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        else:
            if _fields_fit(record):
                return record
    return _parse_slowly(value)


def content_digest(record: UsageRecord) -> int:
    """A signed 64-bit hash of what a record says of usage: copies with the same one say the same, however written.

    Volumes and their topics are left out: no sum needs them.
    """
    is_old = record.version < 2
    if is_old or record.storage_factor_ppm is not None or record.volumes is not None or record.spread is not None:
        told = () if is_old else (record.cluster, record.previous_digest, record.record_digest)
        record = UsageRecord(
            record.version, record.kind, record.gateway, record.boot, record.worker, record.seq, record.part,
            record.parts, record.start_ms, record.end_ms, record.final, record.rows, None, *told,
        )  # fmt: skip
    return int.from_bytes(blake2b(_encode(record), digest_size=8).digest(), "big", signed=True)


def forget_optional_fields(record: UsageRecord) -> None:
    """For a record of version 1, which may by chance have fields of these names: its readers skip them."""
    record.storage_factor_ppm = record.cluster = record.volumes = record.spread = None
    record.previous_digest = record.record_digest = None
    for row in record.rows:
        row.group = row.software = row.repeats = None


def sample_text(value: bytes | None) -> str | None:
    """The beginning of a malformed record."""
    return None if value is None else value[: 4 * SAMPLE_CHARS].decode("utf-8", "replace")[:SAMPLE_CHARS]


class MalformedRecords:
    """`problems`: how many there are, by problem."""

    def __init__(self) -> None:
        self.problems: Counter[str] = Counter()
        self._samples: list[dict[str, Any]] = []

    def add_malformed(self, problem: str, value: bytes | None, origin: str) -> None:
        """Count a value, and keep its beginning if it may be shown."""
        self.problems[problem] += 1
        self._samples.append({"origin": origin, "problem": problem, "sample": sample_text(value)})
        if len(self._samples) >= _KEPT_SAMPLES:
            self._samples = self.first_samples()

    def first_samples(self) -> list[dict[str, Any]]:
        """MAX_SAMPLES at most, by origin, problem and sample."""
        ordered = sorted(self._samples, key=lambda each: (each["origin"], each["problem"], each["sample"] or ""))
        return ordered[:MAX_SAMPLES]


def _fields_fit(record: UsageRecord) -> bool:
    """What types and ranges don't say."""
    if record.part >= record.parts or record.end_ms < record.start_ms:
        return False
    if record.kind == usage.LOST:
        return not record.rows and not record.final
    if record.seq < 0 or not (record.rows or record.final):
        return False
    for row in record.rows:  # noqa: SIM110 - a generator costs as much as the rows
        if not row.reason and row.outcome in usage.OUTCOMES_WITH_REASON:
            return False
    return True


# --- what msgspec has refused -----------------------------------------------------------------------------------------


class _Pairs(list[tuple[str, Any]]):
    """The fields of an object in their order: of one that is there twice, each must have its type."""


def _parse_slowly(value: bytes | None) -> UsageRecord:
    if value is None or not value.strip(b" "):
        raise MalformedRecord(EMPTY)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise MalformedRecord(NOT_UTF8) from None
    try:
        fields = _read_fields(_parse_json(text), _RECORD_KINDS)
    except (ValueError, RecursionError):
        raise MalformedRecord(NOT_ONE_OBJECT) from None
    _check_record(fields)
    if fields["version"] < 2:  # they say nothing, and may be out of range
        fields |= dict.fromkeys((*usage.OPTIONAL_HEADER_FIELDS, usage.VOLUMES, usage.SPREAD))
    for name, kind in (("rows", RecordRow), (usage.VOLUMES, RecordVolume), (usage.SPREAD, RecordSpread)):
        fields[name] = None if fields[name] is None else [kind(**each) for each in fields[name]]
    return UsageRecord(**fields)


def _refuse(_: object) -> NoReturn:
    raise ValueError("not JSON")


def _parse_int(text: str) -> int:
    return int(text) if len(text) <= _MAX_DIGITS else _refuse(text)


def _parse_float(text: str) -> float:
    return float(text) if len(text) <= _MAX_DIGITS else _refuse(text)


_parse_json = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_refuse
).decode


def _read_int(value: object) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value <= _MAX_INT:
        _refuse(value)
    return value


def _read_str(value: object) -> object:
    # Half of a surrogate pair, escaped, is JSON and no character.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else _refuse(value)


def _read_bool(value: object) -> object:
    return value if isinstance(value, bool) else _refuse(value)


def _read_list(kinds: dict[str, Callable[[object], object]]) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not isinstance(value, list) or isinstance(value, _Pairs):
            _refuse(value)
        return [None if each is None else _read_fields(each, kinds) for each in value]

    return read


def _read_fields(value: object, kinds: dict[str, Callable[[object], object]]) -> dict[str, Any]:
    """The fields of an object that are known; those that it hasn't, or that are null, are None."""
    if not isinstance(value, _Pairs):
        _refuse(value)
    found = dict.fromkeys(kinds)
    for name, each in value:
        kind = kinds.get(name)
        if kind is not None:
            found[name] = None if each is None else kind(each)
    return found


def _kinds(*fields: dict[str, str]) -> dict[str, Callable[[object], object]]:
    readers = {"int": _read_int, "str": _read_str, "bool": _read_bool}
    return {name: readers[kind] for each in fields for name, kind in each.items()}


_RECORD_KINDS: Final = {
    **_kinds(usage.HEADER_FIELDS, usage.OPTIONAL_HEADER_FIELDS),
    usage.VOLUMES: _read_list(_kinds(usage.VOLUME_FIELDS, usage.OPTIONAL_VOLUME_FIELDS)),
    usage.SPREAD: _read_list(_kinds(usage.SPREAD_FIELDS)),
    "rows": _read_list(_kinds(usage.ROW_FIELDS, usage.OPTIONAL_ROW_FIELDS)),
}
_COUNTS: Final = tuple(name for name, kind in usage.ROW_FIELDS.items() if kind == "int" and name != "broker")


def _check_record(record: dict[str, Any]) -> None:
    version, rows = record["version"], record["rows"]
    lost = record["kind"] == usage.LOST
    if version is None:
        raise MalformedRecord("version is missing")
    if version not in usage.READ_VERSIONS:
        raise MalformedRecord(f"a version other than {' or '.join(map(str, usage.READ_VERSIONS))}")
    if rows is None or any(record[name] is None for name in usage.HEADER_FIELDS):
        raise MalformedRecord("a field is missing")
    if record["kind"] not in (usage.INTERVAL, usage.LOST):
        raise MalformedRecord("unknown kind")
    if (
        record["worker"] < 0
        or not (-1 if lost else 0) <= record["seq"] <= usage.MAX_COUNT
        or not 0 <= record["part"] < record["parts"] <= MAX_PARTS
    ):
        raise MalformedRecord("numbering is out of range")
    if not EARLIEST_MS <= record["start_ms"] <= record["end_ms"] <= LATEST_MS:
        raise MalformedRecord("time is out of range")
    if version > 1 and not 0 <= (record[usage.STORAGE_FACTOR] or 0) <= usage.PPM:
        raise MalformedRecord("storage factor is out of range")
    if version > 1 and not all(
        _disk_fits(each, fields)
        for name, fields in ((usage.VOLUMES, usage.VOLUME_FIELDS), (usage.SPREAD, usage.SPREAD_FIELDS))
        for each in record[name] or ()
    ):
        raise MalformedRecord("a volume or its topics are incomplete or out of range")
    if (rows or record["final"]) if lost else not (rows or record["final"]):
        raise MalformedRecord("rows do not fit the kind")
    if not all(map(_row_fits, rows)):
        raise MalformedRecord("a row is incomplete or out of range")


def _disk_fits(each: dict[str, Any] | None, fields: dict[str, str]) -> bool:
    if each is None or any(each[name] is None for name in fields):
        return False
    return all(
        value is None or isinstance(value, str) or value >= (-1 if name == "broker" else 0)
        for name, value in each.items()
    )


def _row_fits(row: dict[str, Any] | None) -> bool:
    if row is None or any(row[name] is None for name in usage.ROW_FIELDS) or row["broker"] < -1:
        return False
    if row["outcome"] not in usage.OUTCOMES and row["outcome"] not in usage.NOTES:
        return False
    if not row["reason"] and row["outcome"] in usage.OUTCOMES_WITH_REASON:
        return False
    return all(0 <= row[name] <= usage.MAX_COUNT for name in _COUNTS) and 0 <= (row["repeats"] or 0) <= usage.MAX_COUNT
