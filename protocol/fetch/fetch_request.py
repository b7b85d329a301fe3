# The part of a Fetch or ShareFetch request that the gateway reads, its topics, and the part it changes: how much it may
# ask for at once, in place, so that the request keeps its size and a run of requests stays one untouched piece. Spec:
# kafka.apache.org/protocol, Fetch; KIP-227 (sessions), KIP-932 (ShareFetch).

from __future__ import annotations

import struct
from typing import Final

from protocol import api, wire
from protocol.wire import Buffer, MalformedFrame

# Versions from which on a request has something.
_BOUNDED: Final = 3  # before this version there is no bound to change
_FLEXIBLE: Final = api.FETCH_FLEXIBLE
SESSIONS: Final = 7
_LOG_START: Final = 5
_LEADER_EPOCH: Final = 9
_NO_REPLICA: Final = 15  # from this version on the replica id, which came first, is a tagged field
_MAX_EMPTY: Final = 64  # topics without partitions: honest clients list none
_BYTES: Final = struct.Struct(">ii")  # min_bytes, max_bytes


def cap_fetch(buf: bytearray, start: int, end: int, version: int, most: int) -> bool:
    """Let the request in buf[start:end] (without size prefix) ask for at most `most` bytes; True if it asked for more.

    A broker answers with at least one batch whatever the bound, so no consumer is stuck behind a large one.

    Raises:
        MalformedFrame: it ends before these fields.
    """
    return version >= _BOUNDED and _cap_bytes(
        buf, start, end, _bounds_position(buf, start, end, version), most, f"Fetch v{version}"
    )


def cap_share_fetch(buf: bytearray, start: int, end: int, version: int, most: int) -> bool:
    """The same with a ShareFetch request.

    Raises:
        MalformedFrame: it ends before these fields.
    """
    return _cap_bytes(buf, start, end, _share_bounds_position(buf, start, end), most, f"ShareFetch v{version}")


def read_topics(buf: Buffer, start: int, end: int, version: int) -> list[bytes]:
    """The topics that the request in buf[start:end] lists, by name, or from version 13 on by id.

    Within a session (KIP-227) only those that are new to it or have changed are listed.

    Raises:
        MalformedFrame: it is no such request, or lists more topics than its bytes can have partitions for.
    """
    flexible = version >= _FLEXIBLE
    read_array = wire.read_compact_count if flexible else wire.read_array_count
    pos = _bounds_position(buf, start, end, version) + _BYTES.size + 1  # isolation level
    pos += 8 if version >= SESSIONS else 0
    row = 4 + 8 + 4  # index, offset, max_bytes
    row += (8 if version >= _LOG_START else 0) + (4 if version >= _LEADER_EPOCH else 0) + (4 if flexible else 0)
    found = []
    count, pos = read_array(buf, pos, end)
    if count > (end - pos) // row + _MAX_EMPTY:  # before they are a hundred thousand of three bytes each
        raise MalformedFrame(f"Fetch v{version} request: {count} topics in {end - pos} bytes, most of them empty")
    for _ in range(count):
        if version >= api.FETCH_TOPIC_IDS:
            topic, pos = wire.read_uuid(buf, pos, end)
        else:
            name, pos = wire.read_compact_string(buf, pos, end) if flexible else wire.read_string(buf, pos, end)
            topic = name or b""
        found.append(topic)
        partitions, pos = read_array(buf, pos, end)
        if flexible:
            for _ in range(partitions):
                pos = wire.skip_tags(buf, wire.skip_bytes(pos, row, end), end)
            pos = wire.skip_tags(buf, pos, end)
        elif partitions > 0:
            pos = wire.skip_bytes(pos, partitions * row, end)
    return found


def read_share_topics(buf: Buffer, start: int, end: int, version: int) -> list[bytes]:
    """The ids of the topics that the ShareFetch request lists, as `read_topics`."""
    pos = _share_bounds_position(buf, start, end) + _BYTES.size + 8  # max_records, batch_size
    pos += 2 if version >= 2 else 0  # acquire mode, whether it renews
    found = []
    count, pos = wire.read_compact_count(buf, pos, end)
    if count > (end - pos) // wire.UUID_SIZE:
        raise MalformedFrame(f"ShareFetch v{version} request: {count} topics in {end - pos} bytes")
    for _ in range(count):
        topic, pos = wire.read_uuid(buf, pos, end)
        found.append(topic)
        partitions, pos = wire.read_compact_count(buf, pos, end)
        for _ in range(partitions):
            batches, pos = wire.read_compact_count(buf, wire.skip_bytes(pos, 4, end), end)
            for _ in range(batches):
                types, pos = wire.read_compact_count(buf, wire.skip_bytes(pos, 16, end), end)
                pos = wire.skip_tags(buf, wire.skip_bytes(pos, max(types, 0), end), end)
            pos = wire.skip_tags(buf, pos, end)
        pos = wire.skip_tags(buf, pos, end)
    return found


def read_session(buf: Buffer, start: int, end: int, version: int) -> tuple[int, int]:
    """Id and epoch of the session that the request goes on with (KIP-227); without sessions (0, -1), as before version
    7. Epochs above 0 list only what has changed.

    Raises:
        MalformedFrame: it ends before these fields.
    """
    if version < SESSIONS:
        return 0, -1
    pos = _bounds_position(buf, start, end, version) + _BYTES.size + 1  # isolation level
    session_id, pos = wire.read_int32(buf, pos, end)
    return session_id, wire.read_int32(buf, pos, end)[0]


def session_not_found(version: int, correlation_id: int) -> bytes:
    """The frame of an answer (v7 on) that makes the client begin another session, as when a broker has dropped it."""
    flexible = version >= _FLEXIBLE
    head = wire.INT32.pack(correlation_id) + (wire.NO_TAGS if flexible else b"")
    body = wire.INT32.pack(0) + wire.INT16.pack(api.FETCH_SESSION_ID_NOT_FOUND) + wire.INT32.pack(0)
    return wire.with_size_prefix(head + body + (b"\1" + wire.NO_TAGS if flexible else wire.INT32.pack(0)))


def _bounds_position(buf: Buffer, start: int, end: int, version: int) -> int:
    """The position of min_bytes, which max_bytes follows."""
    _, pos = wire.read_string(buf, start + 8, end)
    if version >= _FLEXIBLE:
        pos = wire.skip_tags(buf, pos, end)
    return pos + (4 if version >= _NO_REPLICA else 8)  # max_wait_ms, and the replica id before it


def _share_bounds_position(buf: Buffer, start: int, end: int) -> int:
    """The same of a ShareFetch request."""
    _, pos = wire.read_string(buf, start + 8, end)
    pos = wire.skip_tags(buf, pos, end)
    _, pos = wire.read_compact_string(buf, pos, end)  # group
    _, pos = wire.read_compact_string(buf, pos, end)  # member
    return pos + 8  # session epoch, max_wait_ms


def _cap_bytes(buf: bytearray, start: int, end: int, pos: int, most: int, what: str) -> bool:
    if pos + _BYTES.size > end:
        raise MalformedFrame(f"{what} request: it ends at byte {end - start}, before max_bytes")
    least, asked = _BYTES.unpack_from(buf, pos)
    if asked <= most:
        return False
    _BYTES.pack_into(buf, pos, min(least, most), most)
    return True
