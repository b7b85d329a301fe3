# One record of the volume topic: a broker's snapshot of its volumes, in the JSON schema of Strimzi's proposal 035, both
# ways. Key: the broker id; value: the JSON here; no value: the broker's snapshot is taken back.
#
# Fields that the schema doesn't know are accepted everywhere. One of them is ours: `unreadableLogDirs`, a list of the
# log dirs that the agent couldn't look into, so that their broker's state is unknown; without any it isn't written. In
# a limit `type` and an integer `level` are required: the proposal's schema means that but nests them in no
# `properties`. An integer is what JSON Schema calls one, 1.0 too.
#
# A snapshot that the schema allows and that still doesn't tell a broker's state is invalid as well, all volumes of it
# (the reader has no fresh snapshot of that broker then, and its fail-safe acts): no volumes; a capacity of 0; the same
# volume name twice; numbers beyond a long; a negative level, or more than 100 percent; a broker id that is no node id,
# or is not the record's key, since whose volumes they are is unknown then. A timestamp needs an offset (RFC 3339, as
# the format `date-time` says): without one it is the time of an unknown place; digits beyond microseconds are dropped.
# More consumed than capacity is a full volume.
#
# Limits: a volume's own comes first, then the snapshot's, then the gateway's YAML. The snapshot's are required by the
# schema, so "no opinion" has to be written: a level of 0 of MinFreeBytes (what `encode_snapshot` writes) or
# MinFreePercentage. For a reader that takes it literally it is a limit reached when not one byte is free; here it is no
# limit at all, or it would be the volume's own and switch off the stricter one in the gateway's YAML. On a volume it
# takes the snapshot's limit from that volume, and the YAML's stays. MinFreePercentage is a whole percentage in JSON, a
# share 0..1 in VolumeLimit.
#
# Knows no Kafka client, no clock and no policy.

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from gateway.validation_text import describe_finding
from policies.storage import LimitType, Volume, VolumeLimit, VolumeSnapshot

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONG: Final = 2**63 - 1
_NODE_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_NODE_ID: Final = 2**31 - 1
_DATE_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})", re.IGNORECASE
)
_MAX_SHOWN: Final = 60  # characters of a value in an error


class InvalidVolumeSnapshot(ValueError):
    """A record that is no snapshot; one line: the place and the fault. `kind`: the same for all records with that
    fault.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.kind = re.sub(r"\[\d+\]", "[]", where) or what.partition(":")[0]


def _whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Long = Annotated[int, BeforeValidator(_whole_number), Field(ge=0, le=_LONG)]


class _JsonObject(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, alias_generator=to_camel)


class _JsonLimit(_JsonObject):
    type: LimitType
    level: _Long


class _JsonVolume(_JsonObject):
    volume_name: str
    capacity: _Long
    consumed: _Long
    hard_limit: _JsonLimit | None = None
    soft_limit: _JsonLimit | None = None


class _JsonSnapshot(_JsonObject):
    broker_id: str
    snapshot_at: str
    hard_limit: _JsonLimit
    soft_limit: _JsonLimit
    volumes: list[_JsonVolume]
    unreadable_log_dirs: list[str] = []


def encode_snapshot(
    snapshot: VolumeSnapshot, soft: VolumeLimit | None = None, hard: VolumeLimit | None = None
) -> bytes:
    """The record's value. `soft`, `hard`: the snapshot's own limits; a volume writes down those that differ from them.

    Bytes and percentages are whole: a value between becomes the next stricter one. Time: milliseconds, UTC.
    """
    moment = _EPOCH + timedelta(milliseconds=round(snapshot.at * 1000))
    record: dict[str, Any] = {
        "brokerId": str(snapshot.broker_id),
        "snapshotAt": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "hardLimit": _write_limit(hard),
        "softLimit": _write_limit(soft),
        "volumes": [],
    }
    for volume in snapshot.volumes:
        consumed = max(0, volume.total - volume.available)
        entry: dict[str, Any] = {"volumeName": volume.name, "capacity": volume.total, "consumed": consumed}
        if volume.hard != hard:
            entry["hardLimit"] = _write_limit(volume.hard)
        if volume.soft != soft:
            entry["softLimit"] = _write_limit(volume.soft)
        record["volumes"].append(entry)
    if snapshot.unreadable:
        record["unreadableLogDirs"] = list(snapshot.unreadable)
    return json.dumps(record, separators=(",", ":")).encode()


def decode_snapshot(value: bytes, key: bytes | None = None) -> VolumeSnapshot:
    """A record's value; `key`: the record's key, which must be the broker id.

    Raises:
        InvalidVolumeSnapshot: the value is no snapshot, or that of another broker.
    """
    try:
        found = _JsonSnapshot.model_validate_json(value)
    except ValidationError as error:
        raise _explain_error(error) from None
    broker_id = _parse_node_id(found.broker_id)
    if broker_id is None:
        raise InvalidVolumeSnapshot("brokerId", f"a node id such as '0' is needed, not {_shown_value(found.broker_id)}")
    if key is not None and key != found.broker_id.encode():
        raise InvalidVolumeSnapshot(
            "brokerId", f"{found.broker_id} under the key {_shown_value(key)}: it must be the record's key"
        )
    if not found.volumes:
        raise InvalidVolumeSnapshot("volumes", "there is none, so the broker's state is unknown")
    hard, soft = _read_limit("hardLimit", found.hard_limit), _read_limit("softLimit", found.soft_limit)
    volumes: dict[str, Volume] = {}
    for number, volume in enumerate(found.volumes):
        where = f"volumes[{number}]"
        if volume.volume_name in volumes:
            raise InvalidVolumeSnapshot(f"{where}.volumeName", f"{_shown_value(volume.volume_name)} is there twice")
        if volume.capacity == 0:
            raise InvalidVolumeSnapshot(f"{where}.capacity", "is 0, so its free part is unknown")
        volumes[volume.volume_name] = Volume(
            broker_id=broker_id,
            name=volume.volume_name,
            total=volume.capacity,
            available=max(0, volume.capacity - volume.consumed),
            soft=soft if volume.soft_limit is None else _read_limit(f"{where}.softLimit", volume.soft_limit),
            hard=hard if volume.hard_limit is None else _read_limit(f"{where}.hardLimit", volume.hard_limit),
        )
    unreadable = tuple(found.unreadable_log_dirs)
    return VolumeSnapshot(broker_id, _parse_timestamp(found.snapshot_at), tuple(volumes.values()), unreadable)


def parse_broker_key(key: bytes | None) -> int:
    """The broker id that a record's key is, for a record without a value.

    Raises:
        InvalidVolumeSnapshot: it is none.
    """
    found = _parse_node_id((key or b"").decode("ascii", "replace"))
    if found is None:
        raise InvalidVolumeSnapshot("key", f"a node id such as '0' is needed, not {_shown_value(key)}")
    return found


def _parse_node_id(text: str) -> int | None:
    return int(text) if _NODE_ID.fullmatch(text) and int(text) <= _MAX_NODE_ID else None


def _parse_timestamp(text: str) -> float:
    if _DATE_TIME.fullmatch(text) is None:
        raise InvalidVolumeSnapshot(
            "snapshotAt",
            f"a date and time with its offset is needed, such as 2022-04-07T13:00:00Z, not {_shown_value(text)}",
        )
    try:
        return datetime.fromisoformat(text.upper()).timestamp()
    except ValueError as error:
        raise InvalidVolumeSnapshot("snapshotAt", f"{_shown_value(text)}: {error}") from None


def _read_limit(where: str, limit: _JsonLimit) -> VolumeLimit | None:
    if limit.type == "ConsumedBytes":
        return VolumeLimit(limit.type, float(limit.level))
    if limit.level == 0:
        return None
    if limit.type == "MinFreeBytes":
        return VolumeLimit(limit.type, float(limit.level))
    if limit.level > 100:
        raise InvalidVolumeSnapshot(f"{where}.level", f"{limit.level} is more than 100 percent")
    return VolumeLimit(limit.type, limit.level / 100)


def _write_limit(limit: VolumeLimit | None) -> dict[str, str | int]:
    if limit is None:
        return {"type": "MinFreeBytes", "level": 0}
    if limit.type == "MinFreePercentage":
        level = math.ceil(round(limit.level * 100, 9))
    elif limit.type == "ConsumedBytes":
        level = math.floor(limit.level)
    else:
        level = math.ceil(limit.level)
    return {"type": limit.type, "level": level}


def _explain_error(error: ValidationError) -> InvalidVolumeSnapshot:
    first = error.errors(include_url=False, include_context=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    text = describe_finding(first)
    match first["type"]:
        case "json_invalid":
            return InvalidVolumeSnapshot("", "no JSON" + text.removeprefix("Invalid JSON"))
        case "missing":
            return InvalidVolumeSnapshot(where, text)
        case _:
            return InvalidVolumeSnapshot(where, f"{text}, not {_shown_value(first['input'])}")


def _shown_value(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
