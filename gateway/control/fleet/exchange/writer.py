# Writes reports to the topic. An old report is worth nothing: one that the cluster doesn't take within a second is
# thrown away, and the reporter reports the same again. Runs on the event loop; nothing here waits but `write_leave`.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.control.fleet.exchange.health import ExchangeHealth
from gateway.control.fleet.exchange.reports import UsageReporter
from gateway.kafka.client_files import RenewableClient

LATE_S: Final = 1.0  # a report may be on its way for this long, or a cycle
LEAVE_S: Final = 0.5
LINGER_MS: Final = 5  # a report's messages are compressed together
COMPRESSION: Final = "gzip"  # of all codecs the smallest reports, and every cluster and client has it


class ReportWriter:
    """
    Attributes:
        sent_messages, sent_bytes: messages; `failed_messages`: those that weren't taken.
        wrote_at: when the last report was written.
        first_wrote_at: when the first one was, on this topic; infinite: none was.
    """

    def __init__(self, client: Mapping[str, Any], topic: str, reporter: UsageReporter, health: ExchangeHealth) -> None:
        self.sent_messages = self.sent_bytes = self.failed_messages = 0
        self.wrote_at = -math.inf
        self.first_wrote_at = math.inf
        self._client = client
        self._topic = topic
        self._reporter = reporter
        self._health = health
        self._late_s = max(LATE_S, reporter.cycle_s)
        self._producer: RenewableClient[Producer] | None = None
        self._delivery_epoch = 0  # reports thrown away don't count any more when they are heard of later
        self._pending = 0  # messages on their way

    def open(self) -> None:
        """Start with another topic. A producer that knows the old one would go on asking for it, and might recreate it,
        as Kafka would.
        """
        self.close()
        self._producer = RenewableClient(self._client, self._make_producer)

    def renew_producer(self) -> bool:
        """Write by another producer where the files of the present one have changed. Whether there is another one."""
        if self._producer is None:
            return False
        former = self._producer.client
        if not self._producer.renew():
            return False
        self._drop_reports(former)
        return True

    def _make_producer(self) -> Producer:
        return Producer(
            {
                **self._client,
                "acks": 1,
                "linger.ms": LINGER_MS,
                "compression.type": COMPRESSION,
                "retries": 0,
                "message.timeout.ms": round(1000 * self._late_s) + 500,
                "topic.metadata.propagation.max.ms": 1000,
                "error_cb": self._health.on_error,
            }
        )

    def close(self) -> None:
        """There is no topic any more."""
        if self._producer is not None:
            self._drop_reports(self._producer.client)
            self._producer = None

    def _drop_reports(self, former: Producer) -> None:
        self._discard_pending(former)
        self.first_wrote_at = math.inf

    def poll_deliveries(self) -> None:
        """Process delivery reports."""
        if self._producer is not None:
            self._producer.client.poll(0)

    def is_free(self, now: float) -> bool:
        """Whether the next report may be written. A report that is in flight for too long is useless."""
        self.poll_deliveries()
        if self._producer is not None and self._pending and now - self.wrote_at >= self._late_s:
            self._discard_pending(self._producer.client)
        return self._producer is not None and not self._pending

    def write_report(self, messages: Iterable[bytes], now: float) -> None:
        """Write one report; without a topic it is lost."""
        if self._producer is None:
            self._reporter.on_report_lost()
            return
        self.wrote_at, self.first_wrote_at = now, min(self.first_wrote_at, now)
        producer, flight = self._producer.client, self._delivery_epoch

        def delivered(error: KafkaError | None, message: Message) -> None:
            if flight == self._delivery_epoch:
                self._settle_delivery(error)

        for message in messages:
            self._pending += 1
            try:
                # With the boot as its key a gateway's messages keep their order, should there be several partitions.
                producer.produce(self._topic, value=message, key=self._reporter.boot, on_delivery=delivered)
            except (BufferError, KafkaException) as error:
                self._settle_delivery(error.args[0] if isinstance(error, KafkaException) else None, is_lost=True)
                return
            self.sent_messages += 1
            self.sent_bytes += len(message)
        producer.poll(0)

    def write_leave(self) -> None:
        """Write the leave message, and wait for its delivery. Blocks; call it in a thread."""
        if self._producer is not None and self._health.is_up:
            for message in self._reporter.make_leave_message():
                self._producer.client.produce(self._topic, value=message, key=self._reporter.boot)
            self._producer.client.flush(LEAVE_S)

    def _settle_delivery(self, error: KafkaError | None, *, is_lost: bool = False) -> None:
        self._pending -= 1
        if error is not None or is_lost:
            self.failed_messages += 1
            self._reporter.on_report_lost()
            if error is not None:
                self._health.record_kafka_error(error, "takes no messages")
        elif not self._pending:
            self._reporter.on_report_arrived()

    def _discard_pending(self, producer: Producer) -> None:
        self.failed_messages += self._pending
        self._delivery_epoch += 1
        self._pending = 0
        producer.purge(blocking=False)
        producer.poll(0)
        self._reporter.on_report_lost()
