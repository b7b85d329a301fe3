# Writes policies into their topic, in transactions under an id that all gateways share: beginning one ends everybody
# else's. So between reading up to the end, judging against that state, and committing no other gateway can have
# written, or the commit is refused, and all of it is done again against what the other has written. Contradicting
# changes can't both get in; a change of thousands of values is there as a whole or not at all, also when its writer is
# killed; and no record has to be ignored afterwards, which compaction would not stand: it may remove the valid record
# and leave the refused one.
#
# Blocking, for threads: one at a time. Knows no policy.

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.control.policies.store import StoreError
from gateway.kafka.client_files import RenewableClient
from policies.definitions.policy_records import PolicyRecord

TRANSACTION_MS: Final = 10_000  # a killed writer may hold up the readers for this long, unless another gateway writes
POLL_S: Final = 0.1
# Retrying these is of no use: the operator has to act.
HOPELESS: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError._AUTHENTICATION,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)


class RetryableFailure(Exception):
    """An attempt failed, or its result is unknown; another attempt may succeed."""


def translate_error(error: KafkaError, topic: str) -> Exception:
    """The exception for an error of Kafka: RetryableFailure, or StoreError."""
    if error.code() not in HOPELESS:
        return RetryableFailure(error.str())
    right = ""
    if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        right = f": allow Write and Describe on transactional id {topic}"
    return StoreError(f"topic {topic} can't be written: {error.str()}{right}")


class PolicyTransactions:
    """Transactions of one store, one at a time; deadlines are times of `time.monotonic`. All methods raise
    RetryableFailure and StoreError.
    """

    def __init__(self, properties: Mapping[str, Any], topic: str) -> None:
        self._properties = properties
        self._topic = topic
        self._producer: RenewableClient[Producer] | None = None

    def open(self, deadline: float) -> None:
        """From now on this gateway may write, until another one opens its own."""
        try:
            if self._producer is None:
                self._producer = RenewableClient(self._properties, self._make_producer)
            else:
                former = self._producer.client
                if not self._producer.renew():
                    return
                former.purge()  # two of this gateway's would fence each other
            self._producer.client.init_transactions(_seconds_left(deadline))
        except KafkaException as error:
            self._producer = None
            raise translate_error(error.args[0], self._topic) from error

    def _make_producer(self) -> Producer:
        return Producer(
            {
                **self._properties,
                "transactional.id": self._topic,  # of all gateways that share the topic
                "transaction.timeout.ms": TRANSACTION_MS,
                "acks": "all",
                "compression.type": "lz4",
                "topic.metadata.propagation.max.ms": 3_000,
            }
        )

    def close(self) -> None:
        if self._producer is not None:
            self._producer.client.purge()
            self._producer = None

    def commit(self, records: Iterable[PolicyRecord], deadline: float) -> None:
        """Commit all of these records, or none."""
        assert self._producer is not None
        producer = self._producer.client
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        try:
            producer.begin_transaction()
            for record in records:
                self._produce_record(producer, record, delivered, deadline)
            producer.commit_transaction(_seconds_left(deadline))
        except KafkaException as error:
            self.close()
            raise translate_error(failed[0] if failed else error.args[0], self._topic) from error

    def _produce_record(
        self, producer: Producer, record: PolicyRecord, delivered: Callable[..., None], deadline: float
    ) -> None:
        headers: list[tuple[str, str | bytes | None]] = [("audit", record.audit)] if record.audit else []
        while True:
            try:
                producer.produce(
                    self._topic, record.value, record.key, partition=0, headers=headers, on_delivery=delivered
                )
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise RetryableFailure("no answer") from None
                producer.poll(POLL_S)


def _seconds_left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
