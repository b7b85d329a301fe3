# The last step of the usage log: from the spool to the usage topic.

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.control.metrics import GatewayMetrics
from gateway.control.usage.usage_spool import UsageSpool, read_header
from gateway.kafka.client_files import RenewableClient
from gateway.kafka.internal_topic import EssentialConfig, InternalTopic, TopicError, TopicSpec, is_fatal
from policies import usage

if TYPE_CHECKING:
    from gateway.control.usage.usage_log import UsageLogWriter

log = logging.getLogger("gateway.usage")

PUBLISH_TIMEOUT_MS: Final = 30_000
PUBLISH_BACKOFF_S: Final = (0.5, 30.0)
# All records of a worker's life have one key.
_NO_COMPACTION: Final = EssentialConfig(
    "cleanup.policy", ("delete",), "of each worker all records but the last get lost"
)
# Nothing in our power makes the broker take these, and the records behind must not wait for them for ever.
_FINAL_ERRORS: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})


class PublishError(Exception):
    """The topic did not take the records; they stay in the spool."""


class UsagePublisher:
    """Publishes the spool to the topic. `client`: librdkafka properties that reach the cluster."""

    def __init__(
        self,
        spool: UsageSpool,
        client: dict[str, Any],
        topic: str,
        partitions: int,
        replication: int | None,
        metrics: GatewayMetrics,
    ) -> None:
        self._spool = spool
        self._client = client
        spec = TopicSpec({"cleanup.policy": "delete", "compression.type": "producer"}, _NO_COMPACTION, partitions)
        self._topic = InternalTopic(client, topic, spec, replication)
        self._metrics = metrics
        self._producer: RenewableClient[Producer] | None = None
        self._ready = False
        self._fault = ""  # of the topic's configuration
        self._ending = False
        self.problem = ""  # why the topic doesn't take records just now, one line; "" for none
        self._progress = trio.Event()

    async def wait_caught_up(self) -> None:
        """Return when the topic has everything that is in the spool."""
        while self._spool.backlog_bytes:
            await self._progress.wait()

    async def run(self, usage_log: UsageLogWriter) -> None:
        """Publish the records of the spool until cancelled."""
        pause = PUBLISH_BACKOFF_S[0]
        while True:
            written = usage_log.written
            try:
                # Abandoned at the end: a cluster that doesn't answer must not hold up a stop.
                published = await trio.to_thread.run_sync(self.publish_batch, abandon_on_cancel=True)
            except (PublishError, OSError) as error:
                if not self.problem:
                    log.warning("usage log: %s; records stay in the spool and are tried again", error)
                self.problem = str(error)
                await trio.sleep(pause)
                pause = min(2 * pause, PUBLISH_BACKOFF_S[1])
                continue
            pause = PUBLISH_BACKOFF_S[0]
            self._progress.set()
            self._progress = trio.Event()
            if self.problem:
                log.info("usage log: %s", "the topic takes records again" if published else "no records wait any more")
                self.problem = ""
            if not published:
                await written.wait()

    def stop(self) -> None:
        """Make a running `publish_batch` return soon."""
        self._ending = True

    def publish_batch(self) -> int:
        """Publish one batch, in a thread; returns the number of acknowledged records.

        Raises:
            PublishError: some were not; the whole batch is published again.
        """
        lines, position = self._spool.read_unpublished()
        if not lines:
            return 0
        self._prepare_producer()
        failed = self._send_records(lines)
        # A refusal concerns a whole batch on the wire; one by one shows whose fault it is.
        failed = [
            pair
            for line, error in failed
            for pair in (self._send_records([line]) if _is_final(error) else [(line, error)])
        ]
        refused = [error for _, error in failed if _is_final(error)]
        if len(failed) > len(refused):
            error = next(error for _, error in failed if not _is_final(error))
            self._ready = False  # perhaps the topic was deleted
            if any(is_fatal(error) for _, error in failed):
                self._producer = None  # an idempotent producer that lost its place; a new one begins a new sequence
            raise PublishError(f"topic {self._topic.name}: {error.str()}")
        if refused:
            self._metrics.usage_log.dropped.labels("refused").inc(len(refused))
            log.error("usage log: %d records are not in the topic: %s", len(refused), refused[0].str())
        self._spool.mark_published(position)
        self._metrics.usage_log.published.inc(len(lines) - len(refused))
        return len(lines)

    def _send_records(self, lines: list[bytes]) -> list[tuple[bytes, KafkaError]]:
        """Produce the records, wait for all of them, and return those that failed."""
        assert self._producer is not None
        producer = self._producer.client
        failed: list[tuple[bytes, KafkaError]] = []
        waiting = len(lines)

        def settle(line: bytes, error: KafkaError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                failed.append((line, error))

        try:
            producer.poll(0)  # raises a fatal error; `produce` would only say that there was one
            for line in lines:
                self._produce_record(producer, line, settle)
            while waiting and not self._ending:
                producer.poll(0.1)
        except KafkaException as error:
            self._producer = None
            raise PublishError(f"topic {self._topic.name}: {error.args[0].str()}") from error
        if waiting:
            raise PublishError("the gateway is stopping")
        return failed

    def _produce_record(
        self, producer: Producer, line: bytes, settle: Callable[[bytes, KafkaError | None], None]
    ) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            settle(line, error)

        while True:
            try:
                producer.produce(self._topic.name, value=line, key=_partition_key(line), on_delivery=delivered)
                return
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                settle(line, error.args[0])
                return

    def _make_producer(self) -> Producer:
        return Producer(
            {
                **self._client,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": "lz4",
                "message.timeout.ms": PUBLISH_TIMEOUT_MS,
                "topic.metadata.propagation.max.ms": 3_000,  # a deleted topic is made again after this
            }
        )

    def _prepare_producer(self) -> None:
        try:
            if self._producer is None:
                self._producer = RenewableClient(self._client, self._make_producer)
            else:
                self._producer.renew()
            if not self._ready:
                fault = self._topic.ensure_topic()
                if fault and fault != self._fault:
                    log.error("usage log: %s", fault)
                self._fault, self._ready = fault, True
        except TopicError as error:
            raise PublishError(str(error)) from error
        except KafkaException as error:  # a certificate is gone just now
            raise PublishError(error.args[0].str()) from error


def _is_final(error: KafkaError) -> bool:
    return error.code() in _FINAL_ERRORS


def _partition_key(line: bytes) -> bytes:
    try:
        header = read_header(line)
        return usage.record_key(header["gateway"], header["boot"], header["worker"])
    except (ValueError, KeyError):
        return b""  # a foreign line in our file: the audit reports it, the rest must get through
