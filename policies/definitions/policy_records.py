# How changes of policies are written down, so that every gateway reads the same out of it and an auditor sees who
# changed what. Reading judges single records only, never sums and never whether a group is there: compaction removes
# what stood between two records, a sum of that time may look wrong, and bases differ from gateway to gateway while a
# new file is rolled out. So a change is judged once, by the gateway that writes it. Knows no topic and no file.

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeGuard, cast

from policies.definitions.policy_values import (
    TEXT_KINDS,
    InvalidPolicy,
    PolicyChange,
    PolicyKey,
    PolicyKind,
    PolicyValue,
    TopicId,
    ValueEnd,
    check_value,
    plain_number,
)
from policies.units import LAST_TIME_MS, format_time

MAX_SOURCE_CHARS: Final = 1000  # of a change's author that is read
LAYOUT: Final = 1  # of the records; a newer gateway wrote one with another
_HEAD_KEY: Final = b'["head"]'
_MAX_COUNT: Final = 2**53
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class InvalidPolicyRecord(ValueError):
    """A record that the gateway did not write, or that holds an impossible value; one line."""


class ChangeSource(NamedTuple):
    """Who made a change, and through which interface."""

    who: str  # a principal such as User:alice, or the user of a command
    door: str  # kafka, rest, cli, …
    peer: str = ""  # the address the request came from


BY_EXPIRY: Final = ChangeSource("itself", "until")  # a change whose end has come
BY_TOPIC_DELETION: Final = ChangeSource("itself", "topic deleted")  # found by the id of the next topic of that name


class AlterationHead(NamedTuple):
    """The last record of each alteration. `token`: identifies the alteration. `at_ms`: Unix time in milliseconds."""

    version: int
    token: str
    at_ms: int
    source: ChangeSource
    changes: int  # how many


class PolicyRecord(NamedTuple):
    """A record as the compacted topic stores it. `value` None removes the key; `audit` then names the author."""

    key: bytes
    value: bytes | None
    audit: bytes | None = None


class PastChange(NamedTuple):
    """One change, as the history shows it. `at_ms`: Unix time in milliseconds; `old`, `new`: the values in force before
    and after; `until_ms`: the end of the new value.
    """

    version: int
    at_ms: int
    source: ChangeSource
    key: PolicyKey
    old: PolicyValue | None
    new: PolicyValue | None
    until_ms: int | None


class PolicyEntry(NamedTuple):
    """A decoded record: the run-time value of `key`; None: removed. `past` None: the record has no history. `topic_id`:
    see policies.definitions.policy_values.RuntimeValue.
    """

    key: PolicyKey
    value: PolicyValue | None
    end: ValueEnd | None = None
    past: PastChange | None = None
    topic_id: TopicId | None = None


NO_ENTRIES: Final[Mapping[PolicyKey, PolicyEntry]] = MappingProxyType({})


def encode_alteration(
    changes: Iterable[PolicyChange], head: AlterationHead, held: Mapping[PolicyKey, PolicyEntry] = NO_ENTRIES
) -> list[PolicyRecord]:
    """The records of one alteration, which belong together; the head comes last. `held`: the values before it. If only
    the topic's id of a value was learned, its record still names the author of the value.
    """
    records = []
    for change in changes:
        past = held[change.key].past if change.only_topic_id and change.key in held else None
        if past is None:
            past = PastChange(head.version, head.at_ms, head.source, change.key, change.old, change.new, None)
        by = {"version": past.version, "at_ms": past.at_ms, **past.source._asdict()}
        audit = {**by, "old": plain_number(past.old), "new": plain_number(past.new)}
        if change.value is None:
            records.append(PolicyRecord(encode_key(change.key), None, _encode_json({"v": LAYOUT, **audit})))
            continue
        content: dict[str, Any] = {"v": LAYOUT, "value": plain_number(change.value)}
        if change.end is not None:
            content |= {"until_ms": change.end.until_ms, "then": plain_number(change.end.then)}
        if change.topic_id is not None:
            content |= {"topic_id": change.topic_id.topic, "cluster_id": change.topic_id.cluster}
        records.append(PolicyRecord(encode_key(change.key), _encode_json({**content, **audit})))
    by = {"version": head.version, "at_ms": head.at_ms, **head.source._asdict()}
    last = {"v": LAYOUT, "token": head.token, "changes": head.changes, **by}
    return [*records, PolicyRecord(_HEAD_KEY, _encode_json(last))]


def decode_record(
    key: bytes | None, value: bytes | None, audit: bytes | None = None
) -> PolicyEntry | AlterationHead | None:
    """The content of a record; None: it has none any more (a head that was removed). Arguments: see PolicyRecord.

    Raises:
        InvalidPolicyRecord: why it can't be used.
    """
    name = _parse_json(key, "key")
    if name == ["head"]:
        return None if value is None else _read_head(_parse_object(value))
    if not (isinstance(name, list) and len(name) == 3 and all(isinstance(part, str) for part in name)):
        raise InvalidPolicyRecord(f"its key {_shorten_bytes(key)} is not [kind, name, key]")
    try:
        policy = PolicyKey(cast("PolicyKind", name[0]), name[1], name[2]).validate_key()
        if value is None:
            return PolicyEntry(policy, None, None, _read_removal(policy, audit))
        content = _parse_object(value)
        until_ms, then = content.get("until_ms"), content.get("then")
        end = None
        if until_ms is not None:
            end = ValueEnd(_read_end(policy, until_ms), None if then is None else _read_value(policy, then))
        return PolicyEntry(
            policy, _read_value(policy, content.get("value")), end, _read_past(policy, content), _read_topic_id(content)
        )
    except (InvalidPolicy, OverflowError) as error:
        raise InvalidPolicyRecord(str(error)) from error


def _read_value(key: PolicyKey, value: object) -> PolicyValue:
    if key.kind in TEXT_KINDS:
        return check_value(key, value if isinstance(value, str) else "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidPolicyRecord(f"{key}: its value is not a number: {value!r}")
    return check_value(key, float(value))


def _read_topic_id(content: Mapping[str, Any]) -> TopicId | None:
    topic, cluster = _clean_text(content.get("topic_id")), _clean_text(content.get("cluster_id"))
    return TopicId(cluster, topic) if topic else None


def _read_end(key: PolicyKey, value: object) -> int:
    if not _is_time(value):
        raise InvalidPolicyRecord(f"{key}: its end is not a valid time: {value!r}")
    return value


def _read_removal(key: PolicyKey, audit: bytes | None) -> PastChange | None:
    """A removal removes the value and everything stored with it."""
    try:
        return _read_past(key, _parse_object(audit)) if audit else None
    except InvalidPolicyRecord:
        return None


def _read_past(key: PolicyKey, content: Mapping[str, Any]) -> PastChange | None:
    """The history is only displayed, so parts that can't be read are left out."""
    version, at_ms, until_ms = (content.get(name) for name in ("version", "at_ms", "until_ms"))
    if not (_is_count(version) and _is_time(at_ms)):
        return None
    old, new = (_read_past_value(key, content.get(name)) for name in ("old", "new"))
    return PastChange(version, at_ms, _read_source(content), key, old, new, until_ms if _is_time(until_ms) else None)


def _read_past_value(key: PolicyKey, value: object) -> PolicyValue | None:
    try:
        return _read_value(key, value)
    except (InvalidPolicy, InvalidPolicyRecord, OverflowError):
        return None


def encode_key(key: PolicyKey) -> bytes:
    """One spelling per key, so that compaction finds its records."""
    return _encode_json(list(key))


def end_text(end: ValueEnd | None) -> str | None:
    """That time in RFC 3339; None: never."""
    return None if end is None else format_time(end.until_ms)


def _read_head(content: dict[str, Any]) -> AlterationHead:
    version, token, at_ms, changes = (content.get(name) for name in ("version", "token", "at_ms", "changes"))
    if not _is_count(version) or not isinstance(token, str):
        raise InvalidPolicyRecord(f"a head without version and token, a version being below {_MAX_COUNT}")
    return AlterationHead(
        version, token, at_ms if _is_count(at_ms) else 0, _read_source(content), changes if _is_count(changes) else 0
    )


def _read_source(content: Mapping[str, Any]) -> ChangeSource:
    """Each part cut to the length of the longest principal, and encodable as UTF-8."""
    return ChangeSource(*(_clean_text(content.get(name)) for name in ChangeSource._fields))


def _clean_text(text: object) -> str:
    return text[:MAX_SOURCE_CHARS].encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def _is_count(value: object) -> TypeGuard[int]:
    """Not a bool, and small enough for a gauge, which is a float."""
    return type(value) is int and 0 <= value < _MAX_COUNT


def _is_time(value: object) -> TypeGuard[int]:
    """Unix time in milliseconds that can be displayed."""
    return _is_count(value) and value <= LAST_TIME_MS


def _parse_object(value: bytes) -> dict[str, Any]:
    content = _parse_json(value, "value")
    if not isinstance(content, dict):
        raise InvalidPolicyRecord(f"its value {_shorten_bytes(value)} is not an object")
    if content.get("v") != LAYOUT:
        raise InvalidPolicyRecord(f"its layout is {content.get('v')!r}, known is {LAYOUT}: a newer gateway wrote it")
    return cast("dict[str, Any]", content)


def _parse_json(data: bytes | None, what: str) -> object:
    try:
        return json.loads(data or b"")
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise InvalidPolicyRecord(f"its {what} {_shorten_bytes(data)} is not JSON") from None


def _shorten_bytes(data: bytes | None) -> str:
    return repr((data or b"")[:60])


def _encode_json(value: object) -> bytes:
    return _encode(value).encode()
