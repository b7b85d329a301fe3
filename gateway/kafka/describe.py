# librdkafka's admin client, and describing topics (id, partitions) with it, through the death of the broker that it
# takes for the controller. Knows no topic of its own.

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_TOPIC_ERRORS: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
NO_ANSWER_ERRORS: Final = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
GRACE_S: Final = 10.0  # for the answer to get from librdkafka to us, on a machine that is busy


def make_admin_client(properties: Mapping[str, Any]) -> AdminClient:
    """An admin client that keeps a connection to each broker.

    With sparse connections, librdkafka's default, a request for a controller that refuses connections starts the next
    attempt as soon as one has failed, whatever `reconnect.backoff.ms` says: thousands a second, until the request's
    timeout.

    Raises:
        KafkaException: librdkafka refuses the properties.
    """
    return AdminClient({"enable.sparse.connections": False, **properties})


def describe_topics(admin: AdminClient, names: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """Name -> `TopicDescription`, or the `KafkaException` that this topic failed with. Call it in a thread.

    librdkafka sends DescribeTopics to the controller, as its last metadata named it. If that broker has died, it waits
    for it until the timeout, and does not ask for metadata anew for minutes; brokers in KRaft mode name any of the
    living ones, so it may be any broker. So metadata is fetched after a failure: the next call goes to one that lives.

    Raises:
        KafkaException: none could be described.
        TimeoutError: librdkafka did not even say so.
    """
    found: dict[str, Any] = {}
    try:
        for name, future in admin.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s).items():
            try:
                found[name] = future.result(timeout=timeout_s + GRACE_S)
            except KafkaException as error:
                if error.args[0].code() in NO_ANSWER_ERRORS:
                    raise
                found[name] = error
    except (KafkaException, TimeoutError):
        refresh_controller(admin, timeout_s)
        raise
    return found


def refresh_controller(admin: AdminClient, timeout_s: float) -> None:
    """Let the client ask for metadata, whose controller is where its next request goes to."""
    with suppress(KafkaException):
        admin.list_topics(timeout=timeout_s)


def describe_topic(admin: AdminClient, name: str, timeout_s: float) -> Any:
    """One `TopicDescription`; raises as `describe_topics` does, and this topic's own error."""
    found = describe_topics(admin, [name], timeout_s)[name]
    if isinstance(found, KafkaException):
        raise found
    return found
