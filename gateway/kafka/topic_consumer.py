# The consumer with which a gateway reads a topic of the gateways' own: it is assigned its partitions and offsets.
#
# librdkafka has no consumer without a group id. This one's is neither joined nor committed to, but its coordinator is
# looked up; where that is forbidden, reading goes on without it.
#
# A topic that was deleted and made again needs another consumer: leader epochs begin at 0 again, and what has a lower
# one is old to librdkafka, so the former consumer may ask the former topic's leader for ever.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError

# Not about the topic: no coordinator is needed, and `on_error` is told of brokers that are down.
IGNORED_READ_ERRORS: Final = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN)


def make_topic_consumer(
    properties: Mapping[str, Any], group_id: str, on_error: Callable[[KafkaError], None], reading: Mapping[str, Any]
) -> Consumer:
    """
    Args:
        properties: librdkafka's, which reach the cluster; a `group.id` among them is used in place of `group_id`.
        reading: librdkafka's, of how this topic is read: they win.

    Raises:
        KafkaException: librdkafka refuses the properties, as where a certificate is gone just now.
    """
    return Consumer(
        {
            "group.id": group_id,
            **properties,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "error_cb": on_error,
            **reading,
        }
    )
