# Responses that describe the cluster to a client: ApiVersions, Metadata, FindCoordinator, DescribeCluster.
#
# A client must learn the gateway's addresses and nothing that the gateway couldn't follow. Spans are walked and copied:
# only id, host and port of a row with an address are written anew, so unknown fields and tags survive. A
# broker without an address here is withheld, never shown with its own. Everything is read to exactly its end before
# anything is changed or learned; but for the topics of Metadata before v10, which have neither addresses nor ids: they
# are copied as they are. The caller knows the addresses.
#
# NodeEndpoints (KIP-951) are elsewhere: protocol/produce/produce_response.py rewrites Produce's, stream.py hides the
# others. Specs: KIP-35 and KIP-511 (ApiVersions), KIP-516 (topic ids), KIP-699 (FindCoordinator's list), KIP-700,
# KIP-919 and KIP-1073 (DescribeCluster).

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from protocol import api
from protocol.rewriting import metadata_topics
from protocol.rewriting.metadata_topics import TopicNamesById
from protocol.wire import (
    INT16,
    INT32,
    NO_TAGS,
    Buffer,
    check_end,
    put_compact_string,
    put_count,
    put_string,
    put_uvarint,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int8,
    read_int16,
    read_int32,
    read_string,
    skip_bytes,
    skip_tags,
    with_size_prefix,
)

Addresses: TypeAlias = Mapping[int, tuple[bytes, int]]  # node id -> host and port to hand out

_NO_NODE = -1
_NO_PORT = -1
_CONTROLLERS = 2  # DescribeCluster: endpoint type
_API_VERSIONS_FLEXIBLE = 3
_METADATA_FLEXIBLE = 9
_METADATA_IDS = 10
_FIND_COORDINATOR_FLEXIBLE = 3
_FIND_COORDINATOR_LIST = 4
_REQUEST_HEAD = struct.Struct(">hhi")  # api key, version, correlation id
_API_ROW = struct.Struct(">hhh")  # api key, lowest version, highest version


# --- ApiVersions ------------------------------------------------------------------------------------------------------


def cap_api_versions(buf: Buffer, start: int, end: int, version: int, hide_unknown: bool) -> bytes | None:
    """Lower the highest versions of an ApiVersions answer to those that the gateway understands.

    APIs of which no version is left are taken out; with `hide_unknown` also those that this release doesn't know.
    Lowest versions stay as they are, so do finalized features and other tagged fields.

    Returns:
        None if `buf` (then it must be writable) has been changed in place, its size being the same; else the new frame.

    Raises:
        MalformedFrame: nothing has been changed.
    """
    error, pos = read_int16(buf, skip_bytes(start, 4, end), end)  # this header never has tagged fields
    if error == api.UNSUPPORTED_VERSION:
        version = 0  # whatever was asked for, this comes in the form that every client reads
    flexible = version >= _API_VERSIONS_FLEXIBLE
    before = pos
    count, pos = read_count(buf, pos, end, flexible)
    lowered: list[tuple[int, int]] = []
    kept: list[tuple[int, int]] = []
    for _ in range(count):
        row, pos = pos, skip_bytes(pos, _API_ROW.size, end)
        key, lowest, highest = _API_ROW.unpack_from(buf, row)
        if flexible:
            pos = skip_tags(buf, pos, end)
        cap = api.HIGHEST_VERSIONS.get(key, highest)
        if cap < lowest or highest < api.LOWEST_VERSIONS.get(key, 0) or (hide_unknown and key not in api.API_NAMES):
            continue
        kept.append((row, pos))
        if cap < highest:
            lowered.append((row + 4, cap))
    after = pos
    if version >= 1:
        pos = skip_bytes(pos, 4, end)  # throttle time
    if flexible:
        pos = skip_tags(buf, pos, end)
    check_end(pos, end)

    if len(kept) == max(count, 0):
        for place, cap in lowered:
            INT16.pack_into(buf, place, cap)
        return None
    out = bytearray(buf[start:end])
    for place, cap in lowered:
        INT16.pack_into(out, place - start, cap)
    rows = b"".join(out[first - start : last - start] for first, last in kept)
    return with_size_prefix(out[: before - start] + put_count(len(kept), flexible) + rows + out[after - start :])


def unsupported_api_versions(correlation_id: int) -> bytes:
    """The answer to an ApiVersions request of a version above ours, as a broker gives it (KIP-511).

    That is error 35 in the form of version 0, with the versions of ApiVersions itself to choose from.
    """
    row = _API_ROW.pack(api.API_VERSIONS, 0, api.HIGHEST_VERSIONS[api.API_VERSIONS])
    return with_size_prefix(INT32.pack(correlation_id) + INT16.pack(api.UNSUPPORTED_VERSION) + INT32.pack(1) + row)


# --- Metadata ---------------------------------------------------------------------------------------------------------


def rewrite_metadata(
    buf: Buffer, start: int, end: int, version: int, addresses: Addresses, topic_ids: TopicNamesById
) -> tuple[bytes, list[int]]:
    """A Metadata answer (v0 to v13) with our addresses, and the ids of the brokers that had to be withheld.

    Leaders and replicas go on naming a withheld broker: to a client it is one that isn't available just now. Topic ids
    of the answer (v10+) are added to `topic_ids`.

    Raises:
        MalformedFrame: nothing has been learned.
    """
    flexible = version >= _METADATA_FLEXIBLE
    pos = _after_header(buf, start, end, flexible)
    if version >= 3:
        pos = skip_bytes(pos, 4, end)  # throttle time
    first = pos
    rows, withheld, last = _rewrite_brokers(buf, pos, end, flexible, 0 if version >= 1 else None, addresses)
    if version >= _METADATA_IDS:
        after = skip_bytes(_skip_string(buf, last, end, True), 4, end)  # cluster id, controller id
        after, learned = metadata_topics.read_new_ids(buf, after, end, topic_ids)
        if version == _METADATA_IDS:
            after = skip_bytes(after, 4, end)  # cluster authorized operations
        if version >= 13:
            after = skip_bytes(after, 2, end)  # error code
        check_end(skip_tags(buf, after, end), end)
        topic_ids.update(learned)
    return _splice_rows(buf, start, first, rows, last, end), withheld


def metadata_by_id_request(correlation_id: int, version: int, ids: list[bytes]) -> bytes:
    """A Metadata request (v12 or v13) for the names of topic ids; it creates no topic. `rewrite_metadata` reads its
    answer.
    """
    head = _REQUEST_HEAD.pack(api.METADATA, version, correlation_id) + put_string(b"produce-gateway") + NO_TAGS
    topics = b"".join(topic_id + put_compact_string(None) + NO_TAGS for topic_id in ids)
    return with_size_prefix(head + put_uvarint(len(ids) + 1) + topics + b"\0\0" + NO_TAGS)  # no creation, no operations


# A Metadata request for no topic at all: any client may send it, and any broker answers it. (From ApiVersions a broker
# would take the client's software, KIP-511.)
NO_TOPICS_ID: Final = 0x7FFFFFFF
NO_TOPICS_REQUEST: Final = with_size_prefix(
    _REQUEST_HEAD.pack(api.METADATA, 1, NO_TOPICS_ID) + put_string(b"produce-gateway") + INT32.pack(0)
)


# --- FindCoordinator --------------------------------------------------------------------------------------------------


def rewrite_find_coordinator(
    buf: Buffer, start: int, end: int, version: int, addresses: Addresses, topic_ids: TopicNamesById | None = None
) -> tuple[bytes, list[int]]:
    """A FindCoordinator answer (v0 to v6) with our addresses, and the ids of the coordinators that had to be withheld.

    In place of one without an address stands COORDINATOR_NOT_AVAILABLE, which clients try again. `topic_ids` isn't
    used: it is there so that all REWRITES are called alike.

    Raises:
        MalformedFrame: it isn't such an answer.
    """
    flexible = version >= _FIND_COORDINATOR_FLEXIBLE
    withheld: list[int] = []
    pos = _after_header(buf, start, end, flexible)
    if version >= 1:
        pos = skip_bytes(pos, 4, end)  # throttle time
    first = pos
    if version >= _FIND_COORDINATOR_LIST:
        rows, pos = _rewrite_coordinators(buf, pos, end, addresses, withheld)
    else:
        rows, pos = _rewrite_coordinator(buf, pos, end, version, addresses, withheld)
    last = pos
    if flexible:
        pos = skip_tags(buf, pos, end)
    check_end(pos, end)
    return _splice_rows(buf, start, first, rows, last, end), withheld


def _rewrite_coordinator(
    buf: Buffer, pos: int, end: int, version: int, addresses: Addresses, withheld: list[int]
) -> tuple[bytes, int]:
    flexible = version >= _FIND_COORDINATOR_FLEXIBLE
    row = pos
    pos = skip_bytes(pos, 2, end)  # error code
    if version >= 1:
        pos = _skip_string(buf, pos, end, flexible)  # error message
    place = pos
    node, host, pos = _read_endpoint(buf, pos, end, flexible)
    if node in addresses:
        return bytes(buf[row:place]) + _put_endpoint(node, *addresses[node], flexible), pos
    if not host:
        return bytes(buf[row:pos]), pos  # an error, which names no broker
    withheld.append(node)
    text = _put_text(_unavailable_text(node), flexible) if version >= 1 else b""
    code = INT16.pack(api.COORDINATOR_NOT_AVAILABLE)
    return code + text + _put_endpoint(_NO_NODE, b"", _NO_PORT, flexible), pos


def _rewrite_coordinators(
    buf: Buffer, pos: int, end: int, addresses: Addresses, withheld: list[int]
) -> tuple[bytes, int]:
    start = pos
    count, pos = read_compact_count(buf, pos, end)
    rows: list[Buffer] = [buf[start:pos]]
    for _ in range(count):
        row = pos
        pos = _skip_string(buf, pos, end, True)  # key
        place = pos
        node, host, pos = _read_endpoint(buf, pos, end, True)
        error = pos
        pos = _skip_string(buf, skip_bytes(pos, 2, end), end, True)  # error code, error message
        text = pos
        pos = skip_tags(buf, pos, end)
        if node in addresses:
            rows += (buf[row:place], _put_endpoint(node, *addresses[node], True), buf[error:pos])
        elif not host:
            rows.append(buf[row:pos])
        else:
            withheld.append(node)
            code = INT16.pack(api.COORDINATOR_NOT_AVAILABLE) + put_compact_string(_unavailable_text(node))
            rows += (buf[row:place], _put_endpoint(_NO_NODE, b"", _NO_PORT, True), code, buf[text:pos])
    return b"".join(rows), pos


def _unavailable_text(node: int) -> bytes:
    return b"broker %d, the coordinator, can't be reached through this gateway yet" % node


# --- DescribeCluster --------------------------------------------------------------------------------------------------


def rewrite_describe_cluster(
    buf: Buffer, start: int, end: int, version: int, addresses: Addresses, topic_ids: TopicNamesById | None = None
) -> tuple[bytes, list[int]]:
    """A DescribeCluster answer (v0 to v2) with our addresses, and the ids of the brokers that had to be withheld.

    An answer that lists controllers (endpoint type 2) passes as it is: no producer connects to them, and they have no
    listeners here. `topic_ids` isn't used.

    Raises:
        MalformedFrame: it isn't such an answer.
    """
    pos = _after_header(buf, start, end, True)
    pos = skip_bytes(pos, 4 + 2, end)  # throttle time, error code
    pos = _skip_string(buf, pos, end, True)  # error message
    endpoints = 1
    if version >= 1:
        endpoints, pos = read_int8(buf, pos, end)
    pos = _skip_string(buf, pos, end, True)  # cluster id
    pos = skip_bytes(pos, 4, end)  # controller id
    first = pos
    rows, withheld, last = _rewrite_brokers(buf, pos, end, True, 1 if version >= 2 else 0, addresses)  # v2: is_fenced
    pos = skip_bytes(last, 4, end)  # cluster authorized operations
    check_end(skip_tags(buf, pos, end), end)
    if endpoints == _CONTROLLERS:
        return with_size_prefix(bytes(buf[start:end])), []
    return _splice_rows(buf, start, first, rows, last, end), withheld


# --- steps that they share --------------------------------------------------------------------------------------------


def _rewrite_brokers(
    buf: Buffer, pos: int, end: int, flexible: bool, behind_rack: int | None, addresses: Addresses
) -> tuple[bytes, list[int], int]:
    """An array of brokers with our addresses; the ids withheld; the position behind it.

    `behind_rack`: bytes of fields behind the rack, None where there is no rack either.
    """
    count, pos = read_count(buf, pos, end, flexible)
    rows: list[bytes] = []
    withheld: list[int] = []
    for _ in range(count):
        node, _, pos = _read_endpoint(buf, pos, end, flexible)
        rest = pos
        if behind_rack is not None:
            pos = skip_bytes(_skip_string(buf, pos, end, flexible), behind_rack, end)
        if flexible:
            pos = skip_tags(buf, pos, end)
        if node in addresses:
            rows.append(_put_endpoint(node, *addresses[node], flexible) + buf[rest:pos])
        else:
            withheld.append(node)
    return put_count(len(rows), flexible) + b"".join(rows), withheld, pos


def _after_header(buf: Buffer, start: int, end: int, flexible: bool) -> int:
    pos = skip_bytes(start, 4, end)  # correlation id
    return skip_tags(buf, pos, end) if flexible else pos


def _skip_string(buf: Buffer, pos: int, end: int, flexible: bool) -> int:
    return (read_compact_string(buf, pos, end) if flexible else read_string(buf, pos, end))[1]


def _read_endpoint(buf: Buffer, pos: int, end: int, flexible: bool) -> tuple[int, bytes | None, int]:
    node, pos = read_int32(buf, pos, end)
    host, pos = read_compact_string(buf, pos, end) if flexible else read_string(buf, pos, end)
    return node, host, skip_bytes(pos, 4, end)  # port


def _put_endpoint(node: int, host: bytes, port: int, flexible: bool) -> bytes:
    return INT32.pack(node) + _put_text(host, flexible) + INT32.pack(port)


def _put_text(text: bytes, flexible: bool) -> bytes:
    return put_compact_string(text) if flexible else put_string(text)


def _splice_rows(buf: Buffer, start: int, first: int, rows: bytes, last: int, end: int) -> bytes:
    # Views, not slices: what is copied may be megabytes of topics, and a slice of a bytearray is a copy of its own.
    with memoryview(buf) as view:
        size = first - start + len(rows) + end - last
        return b"".join((INT32.pack(size), view[start:first], rows, view[last:end]))


Rewrite: TypeAlias = Callable[[Buffer, int, int, int, Addresses, TopicNamesById], tuple[bytes, list[int]]]

# Called for whole answers by api key: (buf, start, end, version, addresses, topic_ids) -> (frame, ids withheld).
REWRITES: dict[int, Rewrite] = {
    api.METADATA: rewrite_metadata,
    api.FIND_COORDINATOR: rewrite_find_coordinator,
    api.DESCRIBE_CLUSTER: rewrite_describe_cluster,
}
