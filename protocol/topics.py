# CreateTopics: the messages, and how one is divided between the broker and a gateway that keeps keys of its own, which
# no broker knows. A broker refuses a topic with a config that it doesn't know, so ours are taken out before it sees the
# request; it is asked by a probe first whether it would create these topics for this client at all. It refuses to know
# which keys are ours and what their values mean: callers say so.
#
# Measured with Kafka 4.1, tests/integration/test_create_topics.py has it: with validate_only a broker says what it
# would say to the real thing (29 denied, 36 exists already, 40 a config, 38 replicas), and creates nothing.
#
# Specs: KIP-4, KIP-464 (-1 for partitions and replicas), KIP-525 (configs in the answer, with an error of their own as
# a tagged field), KIP-516 (topic ids).

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple, TypeAlias

from protocol import api
from protocol.admin import Api, Field, Struct

_INVALID_REQUEST: Final = api.ERROR_CODES["INVALID_REQUEST"]
_UNKNOWN_SERVER_ERROR: Final = api.ERROR_CODES["UNKNOWN_SERVER_ERROR"]
NO_ID: Final = bytes(16)


class Assignment(NamedTuple):
    """The replicas of a partition; the first one should lead it."""

    partition_index: int
    broker_ids: tuple[int, ...]


class TopicConfig(NamedTuple):
    name: str
    value: str | None


class CreatableTopic(NamedTuple):
    """`num_partitions`, `replication_factor`: -1 with assignments, or for the broker's default."""

    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[Assignment, ...]
    configs: tuple[TopicConfig, ...]


class CreateTopicsRequest(NamedTuple):
    topics: tuple[CreatableTopic, ...]
    timeout_ms: int
    validate_only: bool = False


class CreatedConfig(NamedTuple):
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool


class CreateTopicsResult(NamedTuple):
    """`configs`: None where the client may not see them, and then `topic_config_error_code` says so; as of v5."""

    name: str
    topic_id: bytes  # v7
    error_code: int
    error_message: str | None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[CreatedConfig, ...] | None = ()
    topic_config_error_code: int = 0


class CreateTopicsAnswer(NamedTuple):
    throttle_time_ms: int
    topics: tuple[CreateTopicsResult, ...]


# --- the fields -------------------------------------------------------------------------------------------------------

_NAME: Final = Field("name", "text")
_VALUE: Final = Field("value", "text", nullable=True)

CREATE_TOPICS: Api[CreateTopicsRequest, CreateTopicsAnswer] = Api(
    api.CREATE_TOPICS,
    2,
    7,
    Struct(
        CreateTopicsRequest,
        Field(
            "topics",
            Struct(
                CreatableTopic,
                _NAME,
                Field("num_partitions", "int32"),
                Field("replication_factor", "int16"),
                Field(
                    "assignments",
                    Struct(Assignment, Field("partition_index", "int32"), Field("broker_ids", "int32", array=True)),
                    array=True,
                ),
                Field("configs", Struct(TopicConfig, _NAME, _VALUE), array=True),
            ),
            array=True,
        ),
        Field("timeout_ms", "int32"),
        Field("validate_only", "bool"),
    ),
    Struct(
        CreateTopicsAnswer,
        Field("throttle_time_ms", "int32"),
        Field(
            "topics",
            Struct(
                CreateTopicsResult,
                _NAME,
                Field("topic_id", "uuid", since=7, default=NO_ID),
                Field("error_code", "int16"),
                Field("error_message", "message", nullable=True),
                Field("num_partitions", "int32", since=5, default=-1),
                Field("replication_factor", "int16", since=5, default=-1),
                Field(
                    "configs",
                    Struct(
                        CreatedConfig,
                        _NAME,
                        _VALUE,
                        Field("read_only", "bool"),
                        Field("config_source", "int8"),
                        Field("is_sensitive", "bool"),
                    ),
                    array=True,
                    nullable=True,
                    since=5,
                    default=(),
                ),
                Field("topic_config_error_code", "int16", since=5, default=0, tag=0),
            ),
            array=True,
        ),
    ),
)


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


def split(request: CreateTopicsRequest, is_ours: IsOurs) -> TopicSplit:
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
        reason = _unfit(counts[topic.name], mine)
        if reason:
            refused[topic.name] = result(topic.name, _INVALID_REQUEST, reason)
            continue
        ours.append(topic._replace(configs=mine))
        rest.append(without_ours(topic, is_ours))
    return TopicSplit(tuple(ours), request._replace(topics=tuple(rest)) if rest else None, tuple(refused.values()))


def without_ours(topic: CreatableTopic, is_ours: IsOurs) -> CreatableTopic:
    return topic._replace(configs=tuple(config for config in topic.configs if not is_ours(config.name)))


def _unfit(times: int, configs: tuple[TopicConfig, ...]) -> str:
    if times > 1:
        return "The topic is in the request more than once; name it once."
    for name, count in Counter(config.name for config in configs).items():
        if count > 1:
            return f"{name} is named {count} times; name it once."
    return next((f"{name} needs a value; leave it out for none." for name, value in configs if value is None), "")


def without(request: CreateTopicsRequest, names: Collection[str]) -> CreateTopicsRequest | None:
    """The request without these topics; None if nothing is left of it."""
    kept = tuple(topic for topic in request.topics if topic.name not in names)
    return request._replace(topics=kept) if kept else None


def result(name: str, code: int, message: str | None) -> CreateTopicsResult:
    """A result of our own."""
    return CreateTopicsResult(name, NO_ID, code, message)


def merge_created(
    request: CreateTopicsRequest,
    answer: CreateTopicsAnswer | None,
    ours: Iterable[CreateTopicsResult],
    configs: Callable[[str], tuple[CreatedConfig, ...]],
) -> CreateTopicsAnswer:
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
        said = rows.pop(0) if rows else own.get(topic.name)
        if said is None:
            said = result(topic.name, _UNKNOWN_SERVER_ERROR, "The broker gave no result for this topic.")
        if said.error_code == api.NONE and said.configs is not None:
            said = said._replace(configs=(*said.configs, *configs(topic.name)))
        merged.append(said)
    rest = [row for rows in theirs.values() for row in rows]
    return CreateTopicsAnswer(answer.throttle_time_ms if answer else 0, (*merged, *rest))
