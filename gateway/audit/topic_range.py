# The range of the usage topic by librdkafka: from the earliest offset, or from a time on, to the end as of now. Needs
# neither Java nor Spark.
#
# librdkafka has no consumer without a group id. This one is neither joined nor committed to.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gateway.audit.cluster_access import ATTEMPT_S, ClusterAccess, UntranslatableProperty, missing_topic_text
from gateway.audit.errors import RECORDS_GONE, AuditError
from gateway.kafka.describe import NO_TOPIC_ERRORS

READ_TIMEOUT_S: Final = 60.0  # for records that exist
_CONSUMER_SETTINGS: Final[dict[str, Any]] = {
    "group.id": "produce-gateway-audit",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # else records that retention removes meanwhile would be left out without a word
    "isolation.level": "read_uncommitted",  # as Spark reads
    "check.crcs": True,
}

# How long before the first interval that is asked for reading begins. A record's timestamp is never before the start of
# its interval, but for clocks that are set back, and brokers' where the topic has log append time.
_LEADS_MS: Final = (3_600_000, 86_400_000)


def describe_topic(bootstrap_servers: str, topic: str, offsets: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """The source in a report. `offsets`: from (included) and to (excluded), by partition."""
    partitions = [
        {"partition": partition, "start_offset": start, "end_offset": end}
        for partition, (start, end) in sorted(offsets.items())
    ]
    return {"kind": "topic", "name": topic, "bootstrap_servers": bootstrap_servers, "partitions": partitions}


class TopicRange:
    """The usage topic. `properties`: the Java client's, without the prefix "kafka.". `offsets`: of each partition, the
    earliest and the end as of now.

    Raises:
        UntranslatableProperty: one of them.
        AuditError: no broker answers, no such topic, not allowed.
    """

    def __init__(self, bootstrap_servers: str, topic: str, properties: Mapping[str, str]) -> None:
        self.topic = topic
        try:
            self._access = ClusterAccess(bootstrap_servers, properties)
        except UntranslatableProperty as error:
            raise UntranslatableProperty(f"{error}; or --engine spark, which has Java's client") from None
        with self._consumer_for_answers() as consumer:
            self.offsets = self._fetch_offsets(consumer)

    def find_part_starts(self, from_ms: int | None) -> list[dict[int, int]]:
        """Offsets, by partition, from which all records of intervals from `from_ms` (Unix ms) on are read, and a little
        more: what seems to be missing there may be behind the next ones. The last ones, alone without `from_ms`, are
        the earliest.

        Raises:
            AuditError: no broker answers.
        """
        earliest = {partition: start for partition, (start, _) in self.offsets.items()}
        found = self.find_starts([] if from_ms is None else [from_ms - lead for lead in _LEADS_MS])
        # Timestamps need not rise from one offset to the next.
        for later, earlier in pairwise(found):
            earlier |= {partition: min(start, later[partition]) for partition, start in earlier.items()}
        return [starts for starts, earlier in pairwise([*found, earliest]) if starts != earlier] + [earliest]

    def find_starts(self, times_ms: Sequence[int]) -> list[dict[int, int]]:
        """For each of these times (Unix ms) the first offset with a timestamp from then on, by partition; the end where
        there is none.

        Raises:
            AuditError: no broker answers.
        """
        if not times_ms:
            return []
        with self._consumer_for_answers() as consumer:
            return [self._find_start(consumer, at_ms) for at_ms in times_ms]

    def _find_start(self, consumer: Consumer, at_ms: int) -> dict[int, int]:
        wanted = [TopicPartition(self.topic, partition, max(at_ms, 0)) for partition in self.offsets]
        found = self._access.ask(consumer, lambda: consumer.offsets_for_times(wanted, timeout=ATTEMPT_S))
        starts = {}
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
            first, end = self.offsets[place.partition]
            starts[place.partition] = end if place.offset < 0 else min(max(place.offset, first), end)
        return starts

    @contextmanager
    def _consumer_for_answers(self) -> Iterator[Consumer]:
        consumer = self.open_consumer()
        try:
            yield consumer
        except KafkaException as error:
            raise AuditError(self.explain_failure(error.args[0])) from None
        finally:
            consumer.close()

    def open_consumer(self) -> Consumer:
        """A consumer that has no partitions yet."""
        return self._access.open_client(Consumer, _CONSUMER_SETTINGS)

    def _fetch_offsets(self, consumer: Consumer) -> dict[int, tuple[int, int]]:
        found = self._access.ask(consumer, lambda: consumer.list_topics(self.topic, timeout=ATTEMPT_S))
        about = found.topics[self.topic]
        if about.error is not None:
            raise KafkaException(about.error)

        def fetch(partition: int) -> tuple[int, int]:
            place = TopicPartition(self.topic, partition)
            bounds = self._access.ask(consumer, lambda: consumer.get_watermark_offsets(place, timeout=ATTEMPT_S))
            if bounds is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return bounds

        return {partition: fetch(partition) for partition in about.partitions}

    def explain_failure(self, error: KafkaError, *, is_reading: bool = False) -> str:
        """One line, without a secret. `is_reading`: whether records that exist were waited for."""
        code = error.code()
        if code == KafkaError._AUTO_OFFSET_RESET or (code in NO_TOPIC_ERRORS and is_reading):
            return RECORDS_GONE
        if code in NO_TOPIC_ERRORS:
            return missing_topic_text(self.topic, self._access.servers)
        return self._access.explain_failure(error, READ_TIMEOUT_S if is_reading else None)
