# DeleteTopics: the topics that a request names, and the broker's result for each. Only read: the gateway passes both on
# as they are.
#
# Specs: KIP-4, KIP-516 (topic ids, as of v6), KIP-599 (error messages, as of v5).

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Annotated, Final, NamedTuple

from protocol import api, wire
from protocol.admin.topics import NO_ID
from protocol.message_codec import ApiCodec, DecodedRequest, ErrorText, Int16, Int32, Since, Text, Uuid

_BY_ID: Final = 6  # topics are structs as of this version, and bare names before


class DeletableTopic(NamedTuple):
    """`name` None: it is named by its id."""

    name: Text | None
    topic_id: Uuid = NO_ID


class DeleteTopicsRequest(NamedTuple):
    topics: tuple[DeletableTopic, ...]
    timeout_ms: Int32


class DeleteNamedTopicsRequest(NamedTuple):
    topic_names: tuple[Text, ...]
    timeout_ms: Int32


class DeleteTopicsResult(NamedTuple):
    """`name` None: the client may not know it. `topic_id`: NO_ID where it isn't known, and before v6."""

    name: Text | None
    topic_id: Annotated[Uuid, Since(_BY_ID, default=NO_ID)]
    error_code: Int16
    error_message: Annotated[ErrorText | None, Since(5)] = None


class DeleteTopicsResponse(NamedTuple):
    throttle_time_ms: Int32
    responses: tuple[DeleteTopicsResult, ...]


DELETE_NAMED_TOPICS: Final = ApiCodec(api.DELETE_TOPICS, 1, _BY_ID - 1, DeleteNamedTopicsRequest, DeleteTopicsResponse)
DELETE_TOPICS: Final = ApiCodec(api.DELETE_TOPICS, _BY_ID, _BY_ID, DeleteTopicsRequest, DeleteTopicsResponse)


def topic_id_text(topic_id: bytes) -> str:
    """As Kafka prints it."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def decode_request(buf: wire.Buffer, start: int, end: int) -> DecodedRequest[DeleteTopicsRequest]:
    """The request in buf[start:end] (without size prefix), of any version.

    Raises:
        MalformedFrame: as protocol.message_codec.ApiCodec.decode_request.
    """
    version, _ = wire.read_int16(buf, start + wire.INT16.size, end)
    if version >= _BY_ID:
        return DELETE_TOPICS.decode_request(buf, start, end)
    head = DELETE_NAMED_TOPICS.decode_request(buf, start, end)
    topics = tuple(DeletableTopic(name) for name in head.body.topic_names)
    return DecodedRequest(*head[:3], DeleteTopicsRequest(topics, head.body.timeout_ms))


def decode_response(answer: bytes, version: int) -> tuple[DeleteTopicsResult, ...]:
    """The results in an answer (without size prefix) to a request of that version.

    Raises:
        MalformedFrame: as protocol.message_codec.ApiCodec.decode_response.
    """
    decode = DELETE_TOPICS.decode_response if version >= _BY_ID else DELETE_NAMED_TOPICS.decode_response
    return decode(answer, 0, len(answer), version)[1].responses
