# The agent's work: measure, publish, and again after the interval.
#
# If no log dir can be read, nothing is published, so that gateways see the last snapshot age. For the same reason an
# agent that ends doesn't take its snapshot back: the broker goes on. One snapshot is under way at a time: an older one
# is worth nothing. Connections are librdkafka's; `connected` is what its statistics say about them.

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gateway.agent.measuring import MeasuredVolumes, measure_volumes
from gateway.agent.metrics import AgentMetrics
from gateway.agent.settings import AgentSettings
from gateway.kafka.client_files import RenewableClient
from gateway.kafka.describe import NO_TOPIC_ERRORS
from gateway.kafka.internal_topic import TopicError, is_fatal
from gateway.storage.snapshot import encode_snapshot
from gateway.storage.snapshots import volume_topic
from policies.storage import Volume, VolumeSnapshot

log = logging.getLogger("gateway.volume-agent")

RETRY_S: Final = 5.0  # after a snapshot that was not published; sooner where the interval is shorter
POLL_S: Final = 0.2
PUBLISH_TIMEOUT_S: Final = (1.0, 30.0)  # the interval, within these
STATISTICS_MS: Final = 1000
STOP_S: Final = 5.0  # for a snapshot that is under way when the signal comes


class VolumeAgent:
    """Measures and publishes until `stop_requested` is set. `wall`: Unix time.

    Raises:
        KafkaException: librdkafka refuses the properties.
    """

    def __init__(self, settings: AgentSettings, metrics: AgentMetrics, wall: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._metrics = metrics
        self._wall = wall
        self._failed: set[str] = set()  # log dirs that failed last time
        self._has_published = False
        self._has_topic = False
        self._complaint = ""
        self._last_error = ""
        self._troubles: set[object] = set()  # what was logged since the last success
        self._failures = 0  # since then
        self.stop_requested = threading.Event()
        self._topic = volume_topic(settings.client_properties(), settings.topic, settings.replication)
        self._producer = RenewableClient(settings.client_properties(), self._make_producer)
        self._has_producer_failed = False  # for good

    def run(self) -> None:
        while not self.stop_requested.is_set():
            started = time.monotonic()
            done = self._publish_snapshot()
            pause = self._settings.interval if done else min(RETRY_S, self._settings.interval)
            until = (started if done else time.monotonic()) + pause
            while not self.stop_requested.is_set() and time.monotonic() < until:
                try:
                    self._producer.client.poll(max(0.0, min(POLL_S, until - time.monotonic())))
                except KafkaException as error:
                    self._record_kafka_failure(error.args[0])

    def _publish_snapshot(self) -> bool:
        """One snapshot; False: try again before the interval is over."""
        at = self._wall()
        found = measure_volumes(self._settings)
        self._report_log_dirs(found)
        self._metrics.volumes.shown = found.volumes
        if not found.volumes:
            self._metrics.skipped.inc()
            return False
        snapshot = VolumeSnapshot(self._settings.broker_id, at, found.volumes, tuple(found.failed))
        try:
            self._publish_record(encode_snapshot(snapshot, self._settings.soft, self._settings.hard))
        except TopicError as error:
            self._record_failure("topic", str(error))
            return False
        except KafkaException as error:
            self._record_kafka_failure(error.args[0])
            return False
        self._metrics.published.inc()
        self._metrics.last_snapshot.set(at)
        self._record_success(found.volumes)
        return True

    def _publish_record(self, value: bytes) -> None:
        settings = self._settings
        if self._has_producer_failed:
            self._producer.replace()
            self._has_producer_failed = False
        self._producer.renew()
        producer = self._producer.client
        if not self._has_topic:  # a producer that asks for it first could have it made by the broker, uncompacted
            complaint = self._topic.ensure_topic()
            if complaint and complaint != self._complaint:
                log.warning("%s", complaint)
            self._complaint = complaint
            self._has_topic = True
        outcome: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            outcome.append(error)

        producer.poll(0)  # raises a fatal error; `produce` would only say that there was one
        producer.produce(settings.topic, key=str(settings.broker_id), value=value, on_delivery=delivered)
        patience = float("inf")
        while not outcome:
            producer.poll(POLL_S)
            if self.stop_requested.is_set():
                patience = min(patience, time.monotonic() + STOP_S / 2)
                if time.monotonic() > patience:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if outcome[0] is not None:
            raise KafkaException(outcome[0])

    def _make_producer(self) -> Producer:
        shortest, longest = PUBLISH_TIMEOUT_S
        return Producer(
            {
                "message.timeout.ms": int(1000 * max(shortest, min(self._settings.interval, longest))),
                "topic.metadata.propagation.max.ms": 3000,  # a deleted topic is made again after this
                "linger.ms": 0,
                **self._settings.client_properties(),
                "enable.idempotence": True,
                "acks": "all",
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._on_statistics,
                "error_cb": self._on_error,
            }
        )

    def _on_statistics(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self._metrics.connected.set(any(broker["state"] == "UP" for broker in brokers))

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.str()

    # --- what is said, once each

    def _report_log_dirs(self, found: MeasuredVolumes) -> None:
        for log_dir, why in found.failed.items():
            self._metrics.log_dir_errors.labels(log_dir).inc()
            if log_dir not in self._failed:
                log.error(
                    "log dir %s can't be read (%s): gateways take the state of broker %d for unknown until it"
                    " can, or until it is no longer among --log-dirs", log_dir, why, self._settings.broker_id,
                )  # fmt: skip
        for log_dir in self._failed - found.failed.keys():
            log.info("log dir %s can be read again", log_dir)
        fresh = found.failed.keys() - self._failed
        self._failed = set(found.failed)
        if fresh and not found.volumes:
            log.error("no log dir is left: nothing is published, and gateways will see the last snapshot age")

    def _record_kafka_failure(self, failure: KafkaError) -> None:
        if failure.code() in NO_TOPIC_ERRORS:
            self._has_topic = False
        self._has_producer_failed |= is_fatal(failure)
        self._record_failure(failure.code(), failure.str())

    def _record_failure(self, kind: object, why: str) -> None:
        self._metrics.errors.inc()
        self._failures += 1
        if kind not in self._troubles:
            self._troubles.add(kind)
            cause = f" ({self._last_error})" if self._last_error else ""
            log.error("snapshot not published: %s%s; trying again", why, cause)

    def _record_success(self, volumes: Sequence[Volume]) -> None:
        if not self._has_published:
            self._has_published = True
            log.info("first snapshot published, of %s", ", ".join(volume.name for volume in volumes))
        elif self._failures:
            log.info("snapshots are published again after %d that were not", self._failures)
        self._failures = 0
        self._last_error = ""
        self._troubles.clear()
