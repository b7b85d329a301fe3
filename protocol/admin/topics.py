# CreateTopics: the messages, and how one is divided between the broker and a gateway that keeps keys of its own, which
# no broker knows. A broker refuses a topic with a config that it doesn't know, so ours are taken out before it sees the
# request; it is asked by a probe first whether it would create these topics for this client at all. It refuses to know
# which keys are ours and what their values mean: callers say so.
#
# Measured with Kafka 4.1, tests/integration/admin_apis/test_create_topics.py has it: with validate_only a broker says
# what it would say to the real thing (29 denied, 36 exists already, 40 a config, 38 replicas), and creates nothing.
#
# Specs: KIP-4, KIP-464 (-1 for partitions and replicas), KIP-525 (configs in the answer, with an error of their own as
# a tagged field), KIP-516 (topic ids).

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Final, NamedTuple, TypeAlias

from protocol import api
from protocol.message_codec import ApiCodec, ErrorText, Int8, Int16, Int32, Since, Text, Uuid

_INVALID_REQUEST: Final = api.ERROR_CODES["INVALID_REQUEST"]
_UNKNOWN_SERVER_ERROR: Final = api.ERROR_CODES["UNKNOWN_SERVER_ERROR"]
NO_ID: Final = bytes(16)


class ReplicaAssignment(NamedTuple):
    """The replicas of a partition; the first one should lead it."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


class TopicConfig(NamedTuple):
    name: Text
    value: Text | None


class CreatableTopic(NamedTuple):
    """`num_partitions`, `replication_factor`: -1 with assignments, or for the broker's default."""

    name: Text
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[ReplicaAssignment, ...]
    configs: tuple[TopicConfig, ...]


class CreateTopicsRequest(NamedTuple):
    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32
    validate_only: bool = False


class CreatedConfig(NamedTuple):
    name: Text
    value: Text | None
    read_only: bool
    config_source: Int8
    is_sensitive: bool


class CreateTopicsResult(NamedTuple):
    """`configs`: None where the client may not see them, and then `topic_config_error_code` says so."""

    name: Text
    topic_id: Annotated[Uuid, Since(7, default=NO_ID)]
    error_code: Int16
    error_message: ErrorText | None
    num_partitions: Annotated[Int32, Since(5)] = -1
    replication_factor: Annotated[Int16, Since(5)] = -1
    configs: Annotated[tuple[CreatedConfig, ...] | None, Since(5)] = ()
    topic_config_error_code: Annotated[Int16, Since(5, tag=0)] = 0


class CreateTopicsResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[CreateTopicsResult, ...]


CREATE_TOPICS: Final = ApiCodec(api.CREATE_TOPICS, 2, 7, CreateTopicsRequest, CreateTopicsResponse)


# --- ours and theirs --------------------------------------------------------------------------------------------------

IsOurs: TypeAlias = Callable[[str], bool]  # of a config key


class TopicSplit(NamedTuple):
    """A request divided.

    `ours`: topics with just our keys, none without any. `rest`: the broker's part, the same object as the request if
    nothing of ours is in it, None if nothing is left. `refused`: results of topics that are in neither.
    """

    ours: tuple[CreatableTopic, ...]
    rest: CreateTopicsRequest | None
    refused: tuple[CreateTopicsResult, ...]


def split_topics(request: CreateTopicsRequest, is_ours: IsOurs) -> TopicSplit:
    """Take our keys out of a CreateTopics request.

    Refused is a topic that names one of ours twice or without a value; and one that is there more than once, if any of
    these names one of ours.
    """
    touched = {topic.name for topic in request.topics if any(is_ours(config.name) for config in topic.configs)}
    if not touched:
        return TopicSplit((), request, ())
    counts = Counter(topic.name for topic in request.topics)
    ours: list[CreatableTopic] = []
    rest: list[CreatableTopic] = []
    refused: dict[str, CreateTopicsResult] = {}
    for topic in request.topics:
        if topic.name not in touched:
            rest.append(topic)
            continue
        mine = tuple(config for config in topic.configs if is_ours(config.name))
        reason = _topic_fault(counts[topic.name], mine)
        if reason:
            refused[topic.name] = topic_result(topic.name, _INVALID_REQUEST, reason)
            continue
        ours.append(topic._replace(configs=mine))
        rest.append(without_ours(topic, is_ours))
    return TopicSplit(tuple(ours), request._replace(topics=tuple(rest)) if rest else None, tuple(refused.values()))


def without_ours(topic: CreatableTopic, is_ours: IsOurs) -> CreatableTopic:
    return topic._replace(configs=tuple(config for config in topic.configs if not is_ours(config.name)))


def _topic_fault(times: int, configs: tuple[TopicConfig, ...]) -> str:
    if times > 1:
        return "The topic is in the request more than once; name it once."
    for name, count in Counter(config.name for config in configs).items():
        if count > 1:
            return f"{name} is named {count} times; name it once."
    return next((f"{name} needs a value; leave it out for none." for name, value in configs if value is None), "")


def without_topics(request: CreateTopicsRequest, names: Collection[str]) -> CreateTopicsRequest | None:
    """The request without these topics; None if nothing is left of it."""
    kept = tuple(topic for topic in request.topics if topic.name not in names)
    return request._replace(topics=kept) if kept else None


def topic_result(name: str, code: int, message: str | None) -> CreateTopicsResult:
    """A result of our own."""
    return CreateTopicsResult(name, NO_ID, code, message)


def merge_created(
    request: CreateTopicsRequest,
    answer: CreateTopicsResponse | None,
    ours: Iterable[CreateTopicsResult],
    configs: Callable[[str], tuple[CreatedConfig, ...]],
) -> CreateTopicsResponse:
    """One answer to the whole `request`, in its order.

    Args:
        answer: the broker's, to its part of the request; None if it was sent nothing.
        ours: our results, of topics that the broker wasn't sent.
        configs: the configs of ours that the answer shows beside the broker's, of a topic that it made.

    A topic without any result gets UNKNOWN_SERVER_ERROR. The broker's results for other topics come last.
    """
    theirs: dict[str, list[CreateTopicsResult]] = {}
    for row in answer.topics if answer else ():
        theirs.setdefault(row.name, []).append(row)
    own = {row.name: row for row in ours}
    merged = []
    for topic in request.topics:
        rows = theirs.get(topic.name)
        result = rows.pop(0) if rows else own.get(topic.name)
        if result is None:
            result = topic_result(topic.name, _UNKNOWN_SERVER_ERROR, "The broker gave no result for this topic.")
        if result.error_code == api.NONE and result.configs is not None:
            result = result._replace(configs=(*result.configs, *configs(topic.name)))
        merged.append(result)
    rest = [row for rows in theirs.values() for row in rows]
    return CreateTopicsResponse(answer.throttle_time_ms if answer else 0, (*merged, *rest))
