# The APIs of transactions, as models speak them: FindCoordinator, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit,
# EndTxn. InitProducerId, Produce and Fetch are in wire.py.

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.models.wire import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    FIND_COORDINATOR,
    TXN_OFFSET_COMMIT,
    Head,
    Reader,
    Writer,
    begin_answer,
    write_head,
)  # fmt: skip

GROUP, TRANSACTION = 0, 1  # whose coordinator
Place = tuple[str, int]  # topic and partition


class Producer(NamedTuple):
    """Who asks: transactional id, producer id and epoch."""

    name: str
    producer: int
    epoch: int


def _write_producer(request: Writer, who: Producer) -> None:
    request.text(who.name)
    request.int64(who.producer)
    request.int16(who.epoch)


def _read_producer(body: Reader) -> Producer:
    return Producer(body.text() or "", body.int64(), body.int16())


def _begin_reading(version: int, frame: bytes) -> Reader:
    answer = Reader(frame, 4, is_flexible=version >= 3)
    answer.tags()
    return answer


def _write_places(request: Writer, places: list[Place]) -> None:
    topics = list(dict.fromkeys(topic for topic, _ in places))
    request.count(len(topics))
    for name in topics:
        request.text(name)
        request.int32s([index for topic, index in places if topic == name])
        request.tags()


# --- FindCoordinator --------------------------------------------------------------------------------------------------


class CoordinatorView(NamedTuple):
    error: int
    node_id: int
    host: str
    port: int


def encode_find_coordinator(version: int, correlation: int, client_id: str | None, kind: int, key: str) -> bytes:
    request = write_head(FIND_COORDINATOR, version, correlation, client_id)
    if version >= 4:
        request.int8(kind)
        request.count(1)
        request.text(key)
    else:
        request.text(key)
        request.int8(kind)
    request.tags()
    return request.frame()


def decode_find_coordinator(head: Head) -> tuple[int, list[str]]:
    """What kind, and the keys."""
    body = head.body
    if head.version >= 4:
        kind = body.int8()
        return kind, [body.text() or "" for _ in range(body.count())]
    key = body.text() or ""
    return (body.int8() if head.version >= 1 else GROUP), [key]


def encode_find_coordinator_answer(version: int, correlation: int, found: dict[str, CoordinatorView]) -> bytes:
    answer = begin_answer(FIND_COORDINATOR, version, correlation)
    if version >= 1:
        answer.int32(0)
    if version >= 4:
        answer.count(len(found))
    for key, view in found.items():
        if version < 4:
            answer.int16(view.error)
            if version >= 1:
                answer.text(None)
        else:
            answer.text(key)
        answer.int32(view.node_id)
        answer.text(view.host)
        answer.int32(view.port)
        if version >= 4:
            answer.int16(view.error)
            answer.text(None)
            answer.tags()
    answer.tags()
    return answer.frame()


def decode_find_coordinator_answer(version: int, frame: bytes) -> CoordinatorView:
    """Of versions from 1 on."""
    answer = _begin_reading(version, frame)
    answer.int32()
    if version < 4:
        error = answer.int16()
        answer.text()
        return CoordinatorView(error, answer.int32(), answer.text() or "", answer.int32())
    answer.count(), answer.text()
    node_id, host, port = answer.int32(), answer.text() or "", answer.int32()
    return CoordinatorView(answer.int16(), node_id, host, port)


# --- AddPartitionsToTxn, versions 0 to 3 ------------------------------------------------------------------------------


def encode_add_partitions(
    version: int, correlation: int, client_id: str | None, who: Producer, places: list[Place]
) -> bytes:
    request = write_head(ADD_PARTITIONS, version, correlation, client_id)
    _write_producer(request, who)
    _write_places(request, places)
    request.tags()
    return request.frame()


def decode_add_partitions(head: Head) -> tuple[Producer, list[Place]]:
    body, found = head.body, list[Place]()
    who = _read_producer(body)
    for _ in range(body.count()):
        topic = body.text() or ""
        found += [(topic, body.int32()) for _ in range(body.count())]
        body.tags()
    return who, found


def encode_add_partitions_answer(version: int, correlation: int, errors: dict[Place, int]) -> bytes:
    answer = begin_answer(ADD_PARTITIONS, version, correlation)
    answer.int32(0)
    _write_errors(answer, errors)
    answer.tags()
    return answer.frame()


def _write_errors(answer: Writer, errors: dict[Place, int]) -> None:
    topics = list(dict.fromkeys(topic for topic, _ in errors))
    answer.count(len(topics))
    for name in topics:
        mine = [(index, error) for (topic, index), error in errors.items() if topic == name]
        answer.text(name)
        answer.count(len(mine))
        for index, error in mine:
            answer.int32(index)
            answer.int16(error)
            answer.tags()
        answer.tags()


def _read_errors(answer: Reader) -> dict[Place, int]:
    found = dict[Place, int]()
    for _ in range(answer.count()):
        topic = answer.text() or ""
        for _ in range(answer.count()):
            index = answer.int32()
            found[topic, index] = answer.int16()
            answer.tags()
        answer.tags()
    return found


def decode_partition_errors(version: int, frame: bytes) -> dict[Place, int]:
    """Of an answer to AddPartitionsToTxn or TxnOffsetCommit."""
    answer = _begin_reading(version, frame)
    answer.int32()
    return _read_errors(answer)


# --- AddOffsetsToTxn, TxnOffsetCommit, EndTxn -------------------------------------------------------------------------


def encode_add_offsets(version: int, correlation: int, client_id: str | None, who: Producer, group: str) -> bytes:
    request = write_head(ADD_OFFSETS, version, correlation, client_id)
    _write_producer(request, who)
    request.text(group)
    request.tags()
    return request.frame()


def decode_add_offsets(head: Head) -> tuple[Producer, str]:
    return _read_producer(head.body), head.body.text() or ""


def encode_error_answer(
    api: int, version: int, correlation: int, error: int, renewed: tuple[int, int] | None = None
) -> bytes:
    """To AddOffsetsToTxn or EndTxn. `renewed`: producer id and epoch, in EndTxn from version 5 on."""
    answer = begin_answer(api, version, correlation)
    answer.int32(0)
    answer.int16(error)
    if api == END_TXN and version >= 5:
        producer, epoch = renewed or (-1, -1)
        answer.int64(producer)
        answer.int16(epoch)
    answer.tags()
    return answer.frame()


def decode_error_answer(api: int, version: int, frame: bytes) -> tuple[int, tuple[int, int]]:
    """Error, and the renewed producer id and epoch, -1 where there is none."""
    answer = _begin_reading(version, frame)
    answer.int32()
    error = answer.int16()
    return error, ((answer.int64(), answer.int16()) if api == END_TXN and version >= 5 else (-1, -1))


def encode_offset_commit(
    version: int, correlation: int, client_id: str | None, who: Producer, group: str, place: Place, offset: int
) -> bytes:
    request = write_head(TXN_OFFSET_COMMIT, version, correlation, client_id)
    request.text(who.name)
    request.text(group)
    request.int64(who.producer)
    request.int16(who.epoch)
    if version >= 3:
        request.int32(-1)
        request.text("")
        request.text(None)
    request.count(1)
    request.text(place[0])
    request.count(1)
    request.int32(place[1])
    request.int64(offset)
    if version >= 2:
        request.int32(-1)
    request.text(None)
    request.tags()
    request.tags()
    request.tags()
    return request.frame()


def decode_offset_commit(head: Head) -> tuple[Producer, str, dict[Place, int]]:
    body, version, found = head.body, head.version, dict[Place, int]()
    name, group = body.text() or "", body.text() or ""
    who = Producer(name, body.int64(), body.int16())
    if version >= 3:
        body.int32(), body.text(), body.text()
    for _ in range(body.count()):
        topic = body.text() or ""
        for _ in range(body.count()):
            index = body.int32()
            found[topic, index] = body.int64()
            if version >= 2:
                body.int32()
            body.text()
            body.tags()
        body.tags()
    return who, group, found


def encode_offset_commit_answer(version: int, correlation: int, errors: dict[Place, int]) -> bytes:
    answer = begin_answer(TXN_OFFSET_COMMIT, version, correlation)
    answer.int32(0)
    _write_errors(answer, errors)
    answer.tags()
    return answer.frame()


def encode_end(version: int, correlation: int, client_id: str | None, who: Producer, *, commits: bool) -> bytes:
    request = write_head(END_TXN, version, correlation, client_id)
    _write_producer(request, who)
    request.int8(int(commits))
    request.tags()
    return request.frame()


def decode_end(head: Head) -> tuple[Producer, bool]:
    return _read_producer(head.body), bool(head.body.int8())
