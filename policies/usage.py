# The usage record: what one worker saw within one interval, and the only definition of its fields (writer: the usage
# log; readers: the audit, the demo, any operator with kcat). Knows nothing of Kafka, Spark, files or clocks.
#
# One JSON object is one Kafka record (key: `key()`) and one line of a spool file. A worker counts its intervals from
# seq 0 per boot and uses a number up only for an interval that has rows or is its last, so a missing number is a loss
# and a repeated (boot, worker, seq, part) is a copy: the reader can always detect it. A large interval is split into
# `parts`. Fields may be added within a version; readers skip those they don't know.

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple

VERSION: Final = 2  # what is written
READ_VERSIONS: Final = (1, 2)  # what is understood

# Each byte of a Produce request ends in exactly one of these, so the offered bytes are the sum over all of them.
OUTCOMES: Final = (
    "accepted",  # the broker said so
    "duplicate",  # an idempotent batch acknowledged once more: the log did not grow
    "unacknowledged",  # acks=0, forwarded
    "rejected",  # by a policy; reason says by which
    "errored",  # refused by the broker; reason is Kafka's error name
    "unanswered",  # forwarded, the connection ended before the answer
    "discarded",  # never forwarded, its client had gone
    "dropped",  # never forwarded, and no client will send it again; reason says why
    "trailing",  # bytes behind the last whole batch: the broker trims them
)

# The effect that a policy that is only observed would have had: counted beside the outcome above that the same bytes
# had, never part of the offered bytes.
OBSERVED_OUTCOMES: Final = ("would_reject", "would_delay")

# Effects of policies, real or only observed, on bytes that have an outcome above as well, each with the policy's
# reason: beside the offered bytes, never part of them.
DELAYED: Final = "delayed"
NOTES: Final = (DELAYED, *OBSERVED_OUTCOMES)
COUNTED_CHARS: Final = 256  # of a principal and of a client id, where something is counted by them

# Reasons known in advance, so that a metric for each can exist at 0. Errors of the broker add theirs when they occur.
REASONS: Final[dict[str, tuple[str, ...]]] = {
    "rejected": (
        "topic-threshold",
        "client-quota",
        "resource-group",
        "storage-throttle",
        "storage-pause",
        "fence",
        "protected-topic",
        "unknown-topic-id",
    ),
    "dropped": (
        "connection-lost",  # acks=0 that waited for its limit when its connection ended
        "acks0-limit",  # acks=0 over its limit, where the operator wants it dropped
        "protected-topic",  # acks=0 to a topic of the gateway's own: the client gets no answer
        "unknown-topic-id",  # acks=0 to a topic whose name isn't known: the same
    ),
    "delayed": ("topic-threshold", "client-quota", "resource-group", "storage-throttle", "storage-pause"),
    "would_reject": ("topic-threshold", "client-quota", "resource-group", "storage-throttle", "storage-pause"),
    "would_delay": ("topic-threshold", "client-quota", "resource-group", "storage-throttle"),
}

# Outcomes that say nothing without a reason.
OUTCOMES_WITH_REASON: Final = frozenset({"rejected", "errored", "dropped", *NOTES})

# Kafka answers these after the append (7, 20), and one possibly after it (6).
APPENDED_ERRORS: Final = frozenset({"REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"})
MAYBE_APPENDED: Final = APPENDED_ERRORS | {"NOT_LEADER_OR_FOLLOWER"}

INTERVAL: Final = "interval"
LOST: Final = "lost"  # a worker ended without its final interval: its work after `seq` is not known

# Names and types in the order in which they are written. "int" is a 64-bit integer.
HEADER_FIELDS: Final[dict[str, str]] = {
    "version": "int",
    "kind": "str",
    "gateway": "str",
    "boot": "str",
    "worker": "int",
    "seq": "int",
    "part": "int",
    "parts": "int",
    "start_ms": "int",
    "end_ms": "int",
    "final": "bool",
}
# Version 2 adds this to the header of an interval, where storage protection is on: the lowest storage factor that the
# worker enforced meanwhile, in millionths (0: nothing got in for a while).
STORAGE_FACTOR: Final = "storage_factor_ppm"
# Of any record: the id of the Kafka cluster behind the gateway, as soon as it is known.
CLUSTER: Final = "cluster"
# Likewise, where the log is chained: digests of the record before it in its life, and of itself (record_digests.py).
PREVIOUS_DIGEST: Final = "previous_digest"
RECORD_DIGEST: Final = "record_digest"
OPTIONAL_HEADER_FIELDS: Final[dict[str, str]] = {
    CLUSTER: "str",
    PREVIOUS_DIGEST: "str",
    RECORD_DIGEST: "str",
    STORAGE_FACTOR: "int",
}
PPM: Final = 1_000_000
# Likewise, about once a minute: the cluster's volumes as control saw them last, and how many of the partitions of the
# busiest topics have a replica on each broker. Both are left out where they aren't known. Sizes are in bytes.
VOLUMES: Final = "volumes"
SPREAD: Final = "spread"
VOLUME_FIELDS: Final[dict[str, str]] = {"broker": "int", "log_dir": "str", "total": "int", "available": "int"}
OPTIONAL_VOLUME_FIELDS: Final[dict[str, str]] = {"soft": "int", "hard": "int"}  # limits, as free bytes
SPREAD_FIELDS: Final[dict[str, str]] = {"broker": "int", "topic": "str", "here": "int", "partitions": "int"}
ROW_FIELDS: Final[dict[str, str]] = {
    "broker": "int",  # -1: a bootstrap connection whose broker was not known
    "topic": "str",
    "principal": "str",
    "client_id": "str",
    "outcome": "str",  # one of OUTCOMES or NOTES
    "reason": "str",
    "bytes": "int",
    "messages": "int",
    "requests": "int",
    "delay_ms": "int",
}

# Version 2 adds these to a row. Each may be missing: a name that isn't known is "", and `repeats` None says that it
# is not known for any of the row's bytes (bytes for which it is known have a row of their own, with the same names).
#
# A rejection is matched once, by the next attempt at the same batch (policies/idempotence/repeats.py). So what was
# finally dropped, that is whose last attempt was rejected, is the rejected bytes less the repeats of all outcomes: at
# most that, and at least that less the bytes for which it is not known.
OPTIONAL_ROW_FIELDS: Final[dict[str, str]] = {
    "group": "str",  # resource group that the bytes are charged to
    "software": "str",  # the client software's name (KIP-511)
    "repeats": "int",  # those of `bytes` whose last attempt before this one was rejected; none in NOTES
}

# The dimensions that sums over rows can be asked by, and what they count.
DIMENSIONS: Final = (
    *("broker", "topic", "principal", "client_id", "software", "group", "outcome", "reason", "gateway", "worker"),
    CLUSTER,
)
MEASURES: Final = ("bytes", "messages", "requests")

# A count that no interval can have, and that thousands of rows can't overflow when they are summed up.
MAX_COUNT: Final = 2**50
MAX_ROWS: Final = 1000
# Half of Kafka's default max.message.bytes (1,048,588), so that a record gets into every topic. A row
# is at most six names of NAME_CHARS characters, each of which takes 12 bytes at worst (a pair of escaped surrogates).
MAX_RECORD_BYTES: Final = 512 * 1024
NAME_CHARS: Final = 256
_HEADER_BYTES: Final = 4096  # more than any header without disks, which have …
MAX_DISKS_BYTES: Final = 128 * 1024  # 1,000 volumes, or twice as many lines of the spread

_TYPES: Final[dict[str, Any]] = {"int": int, "str": str, "bool": bool}
_LOWEST: Final[dict[str, int]] = {"broker": -1, "seq": -1, "parts": 1}  # every other number starts at 0
# Every other one is a 64-bit integer.
_HIGHEST: Final = dict.fromkeys((*MEASURES, "delay_ms", "repeats", "seq"), MAX_COUNT) | {STORAGE_FACTOR: PPM}
_row_values = attrgetter(*ROW_FIELDS)
# ASCII output: a client id may hold any character, U+2028 among them, and a record has to stay one line everywhere.
_dumps = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


class VolumeNote(NamedTuple):
    """One volume at one look. `soft`, `hard`: limits as free bytes; None: there is none."""

    broker: int
    log_dir: str
    total: int
    available: int
    soft: float | None = None
    hard: float | None = None


class SpreadNote(NamedTuple):
    """Of a topic's partitions, the number of those with a replica on that broker."""

    broker: int
    topic: str
    here: int
    partitions: int


class DiskNotes(NamedTuple):
    """What an interval's record says of disks, as far as it has room, the first ones first."""

    volumes: tuple[VolumeNote, ...] = ()
    spread: tuple[SpreadNote, ...] = ()


class InvalidUsageRecord(ValueError):
    """Not a usage record of this version; the text says where and why."""


def record_key(gateway: str, boot: str, worker: int) -> bytes:
    """The Kafka key: all intervals of one worker's life share a partition, hence an order."""
    return f"{gateway}/{boot}/{worker}".encode()


def encode_interval(
    gateway: str,
    boot: str,
    worker: int,
    seq: int,
    rows: Iterable[object],
    *,
    start_ms: int,
    end_ms: int,
    final: bool = False,
    storage_factor: float | None = None,
    disks: DiskNotes | None = None,
    cluster: str = "",
    version: int = VERSION,
) -> list[bytes]:
    """One interval as JSON lines without newline, each at most MAX_RECORD_BYTES: usually one.

    `rows` have the attributes ROW_FIELDS, for version 2 OPTIONAL_ROW_FIELDS as well; names are cut at NAME_CHARS. Times
    are Unix milliseconds. `cluster`: "" if it isn't known. Without rows there is one record, which only a final
    interval needs. The same arguments give the same bytes.

    Raises:
        InvalidUsageRecord: a reader would refuse it.
    """
    values = [_row_fields(row, version) for row in rows]
    seen, seen_bytes = ({}, 0) if disks is None or version < 2 else _disk_fields(disks)
    chunks = _split_rows([_dumps(row) for row in values], MAX_RECORD_BYTES - _HEADER_BYTES - seen_bytes)
    optional = {} if version < 2 else _optional_fields(storage_factor, cluster)
    headers = [
        _make_header(
            version, INTERVAL, gateway, boot, worker, seq, part, len(chunks), start_ms, end_ms, final, **optional
        )
        for part in range(len(chunks))
    ]
    headers[0] |= seen
    validate_record(headers[0] | {"rows": values})
    return [_encode_record(header, chunk) for header, chunk in zip(headers, chunks, strict=True)]


def encode_lost(gateway: str, boot: str, worker: int, seq: int, now_ms: int, cluster: str = "") -> bytes:
    """The note that a worker ended without its final interval. `seq` is the last one seen of it, -1 for none."""
    optional = _optional_fields(None, cluster)
    header = _make_header(VERSION, LOST, gateway, boot, worker, seq, 0, 1, now_ms, now_ms, False, **optional)
    return _encode_record(header, [])


def decode_record(line: bytes | str) -> dict[str, Any]:
    """A validated record from one line.

    Raises:
        InvalidUsageRecord: no JSON (half a line after a crash, for example), or not a usage record.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InvalidUsageRecord(f"no JSON: {error}") from None
    validate_record(record)
    assert isinstance(record, dict)
    return record


def validate_record(record: object) -> None:
    """Check a decoded record.

    Raises:
        InvalidUsageRecord: which field is wrong, and how.
    """
    if not isinstance(record, dict):
        raise InvalidUsageRecord("a record is a JSON object")
    if record.get("version") not in READ_VERSIONS:
        known = " and ".join(map(str, READ_VERSIONS))
        raise InvalidUsageRecord(f"version: {record.get('version')!r}, this program reads {known}")
    _check_fields(record, HEADER_FIELDS, "")
    rows = record.get("rows")
    if not isinstance(rows, list):
        raise InvalidUsageRecord("rows: a list is needed")
    if record["version"] > 1:
        given = {name: kind for name, kind in OPTIONAL_HEADER_FIELDS.items() if record.get(name) is not None}
        _check_fields(record, given, "")
        _check_all(record, VOLUMES, VOLUME_FIELDS, OPTIONAL_VOLUME_FIELDS)
        _check_all(record, SPREAD, SPREAD_FIELDS, {})
    _check_header(record, bool(rows))
    for i, row in enumerate(rows):
        _check_row(row, record["version"], f"rows[{i}].")


def record_identity(record: dict[str, Any]) -> tuple[str, str, int, int, int]:
    """The name of a record once and for all: two with the same identity are copies, only one of them counts."""
    return record["gateway"], record["boot"], record["worker"], record["seq"], record["part"]


def may_be_appended(outcome: str, reason: str = "") -> bool:
    """Whether these bytes may be in the log though no client got that answer.

    Growth of the log lies between accepted, and accepted plus all bytes of which this is true.
    """
    return outcome in ("unacknowledged", "unanswered") or (outcome == "errored" and reason in MAYBE_APPENDED)


def _make_header(*values: object, **optional: object) -> dict[str, object]:
    return dict(zip(HEADER_FIELDS, values, strict=True)) | optional


def _optional_fields(storage_factor: float | None, cluster: str) -> dict[str, object]:
    fields: dict[str, object] = {} if storage_factor is None else {STORAGE_FACTOR: _to_ppm(storage_factor)}
    return fields | ({CLUSTER: cluster[:NAME_CHARS]} if cluster else {})


def _to_ppm(factor: float) -> int:
    return max(round(factor * PPM), 1 if factor > 0 else 0)  # 0 means that nothing got in


def _disk_fields(disks: DiskNotes) -> tuple[dict[str, object], int]:
    """Header fields, and the most bytes that they take."""
    volumes = [
        {"broker": each.broker, "log_dir": each.log_dir[:NAME_CHARS], "total": each.total, "available": each.available}
        | {name: round(level) for name, level in (("soft", each.soft), ("hard", each.hard)) if level is not None}
        for each in disks.volumes
    ]
    spread = [each._asdict() | {"topic": each.topic[:NAME_CHARS]} for each in disks.spread]
    fields: dict[str, object] = {}
    left = MAX_DISKS_BYTES
    for name, values in ((VOLUMES, volumes), (SPREAD, spread)):
        kept: list[object] = []
        for value in values:
            left -= len(_dumps(value)) + 1
            if left < 0:
                break
            kept.append(value)
        if kept:
            fields[name] = kept
    return fields, MAX_DISKS_BYTES if fields else 0


def _row_fields(row: object, version: int) -> dict[str, object]:
    values: dict[str, object] = dict(zip(ROW_FIELDS, _row_values(row), strict=True))
    if version > 1:  # what says nothing is left out: most rows have no group, and none repeats
        extra = {name: getattr(row, name) for name in OPTIONAL_ROW_FIELDS}
        values |= {name: value for name, value in extra.items() if value is not None and value != ""}
    return {name: value[:NAME_CHARS] if isinstance(value, str) else value for name, value in values.items()}


def _encode_record(header: dict[str, object], rows: list[str]) -> bytes:
    return f'{_dumps(header)[:-1]},"rows":[{",".join(rows)}]}}'.encode("ascii")


def _split_rows(rows: list[str], most_bytes: int) -> list[list[str]]:
    chunks: list[list[str]] = [[]]
    size = 0
    for row in rows:
        if chunks[-1] and (len(chunks[-1]) == MAX_ROWS or size + len(row) > most_bytes):
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += len(row) + 1
    return chunks


def _check_fields(values: dict[str, Any], fields: dict[str, str], path: str) -> None:
    for name, kind in fields.items():
        if name not in values:
            raise InvalidUsageRecord(f"{path}{name}: missing")
        value = values[name]
        if value.__class__ is not _TYPES[kind]:  # exact: bool is an int in Python
            raise InvalidUsageRecord(f"{path}{name}: {value!r} is not a valid {kind}")
        if kind == "int" and not _LOWEST.get(name, 0) <= value <= _HIGHEST.get(name, 2**63 - 1):
            raise InvalidUsageRecord(f"{path}{name}: {value} is out of range")


def _check_all(record: dict[str, Any], name: str, fields: dict[str, str], optional: dict[str, str]) -> None:
    values = record.get(name)
    if values is None:
        return
    if not isinstance(values, list):
        raise InvalidUsageRecord(f"{name}: a list is needed")
    for i, value in enumerate(values):
        if not isinstance(value, dict):
            raise InvalidUsageRecord(f"{name}[{i}]: a JSON object is needed")
        given = {key: kind for key, kind in optional.items() if value.get(key) is not None}
        _check_fields(value, fields | given, f"{name}[{i}].")


def _check_header(record: dict[str, Any], has_rows: bool) -> None:
    kind = record["kind"]
    if kind not in (INTERVAL, LOST):
        raise InvalidUsageRecord(f"kind: {kind!r} is neither {INTERVAL!r} nor {LOST!r}")
    if kind == LOST and (has_rows or record["final"]):
        raise InvalidUsageRecord("rows: a lost worker has none, nor a final interval")
    if kind == INTERVAL and record["seq"] < 0:
        raise InvalidUsageRecord(f"seq: {record['seq']} is out of range")
    if kind == INTERVAL and not has_rows and not record["final"]:
        raise InvalidUsageRecord("rows: only a final interval may be empty")
    if record["part"] >= record["parts"]:
        raise InvalidUsageRecord(f"part: {record['part']} of {record['parts']} parts")
    if record["end_ms"] < record["start_ms"]:
        raise InvalidUsageRecord("end_ms: before start_ms")


def _check_row(row: object, version: int, path: str) -> None:
    if not isinstance(row, dict):
        raise InvalidUsageRecord(f"{path[:-1]}: a row is a JSON object")
    _check_fields(row, ROW_FIELDS, path)
    if version > 1:
        given = {name: kind for name, kind in OPTIONAL_ROW_FIELDS.items() if row.get(name) is not None}
        _check_fields(row, given, path)
    if row["outcome"] not in OUTCOMES and row["outcome"] not in NOTES:
        raise InvalidUsageRecord(f"{path}outcome: {row['outcome']!r} is not one of {', '.join(OUTCOMES + NOTES)}")
    if row["outcome"] in OUTCOMES_WITH_REASON and not row["reason"]:
        raise InvalidUsageRecord(f"{path}reason: an outcome {row['outcome']!r} needs one")
