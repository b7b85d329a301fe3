# The topic on which gateways report their use to each other: reports every cycle, reads what all others report, and
# keeps at it whatever happens to the topic or the cluster. Also how the topic is made: one partition, kept for minutes,
# stamped by the broker (LogAppendTime), so that only the cluster's clock matters.
#
# Long work is done in steps, and between them other tasks run: control answers for all its workers.
#
# Knows no limit and no share: reports sent are reports.py's, those received peers.py's, what follows from it
# policies/fleet/shares.py's. Clients are writer.py's and reader.py's.

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import trio
from confluent_kafka import KafkaException

from gateway.control.fleet.exchange.health import ExchangeHealth
from gateway.control.fleet.exchange.peers import DROP_REASONS, SILENT_CYCLES, PeerNews, PeerTable
from gateway.control.fleet.exchange.reader import MAX_READ_MESSAGES, ReportReader, ReportRecord
from gateway.control.fleet.exchange.reports import REPORT_CYCLES, ThresholdRate, UsageReporter
from gateway.control.fleet.exchange.usage_codec import MAX_BYTES, MAX_SALT, GatewayTraffic
from gateway.control.fleet.exchange.writer import LEAVE_S, ReportWriter
from gateway.kafka import internal_topic
from gateway.kafka.internal_topic import (
    LOOKUP_INTERVAL_S,
    EssentialConfig,
    InternalTopic,
    TopicAbsent,
    TopicError,
    TopicSpec,
)
from policies.fleet.keys import FleetKey
from policies.fleet.shares import LimitDemand

log = logging.getLogger("gateway.fleet")

RETRY_S: Final = 0.5
RENEW_S: Final = 10.0  # or five cycles: if our own messages, which are written, aren't read, another consumer may
TURN_S: Final = 0.004  # messages are taken in for this long before another task has a turn
REPORTS_PER_CYCLE: Final = 5
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
TOPIC_SPEC: Final = TopicSpec(
    {
        "cleanup.policy": "delete",
        "retention.ms": "600000",
        "segment.ms": "300000",
        "segment.bytes": str(16 * 2**20),
        "max.message.bytes": str(MAX_BYTES),
        _TIMESTAMP_TYPE: "LogAppendTime",
    },
    EssentialConfig(_TIMESTAMP_TYPE, ("LogAppendTime",), "old messages can't be distinguished from new ones"),
    durable=False,
    repairs_config=True,
)


class GatewayUsage(NamedTuple):
    """The usage of this gateway: of limits, by key, where that has changed since the last question (idle: not used any
    more); V1's rates, all of them, None where they are as before; the number of workers that share it. `has_more`: ask
    again at once.
    """

    demands: Mapping[FleetKey, LimitDemand]
    rates: Iterable[ThresholdRate] | None = None
    workers: int = 1
    has_more: bool = False


class FleetParty(Protocol):
    """The gateway on whose behalf an exchange talks: FleetControl (gateway.control.fleet.shares). Called on the event
    loop, so nothing here may wait.
    """

    def current_usage(self) -> GatewayUsage:
        """The usage of this gateway; called before each report, until there is no more to report."""
        ...

    def on_peer_news(self, heard: PeerNews) -> None:
        """A peer has sent news."""

    def on_peer_lost(self, peer: str) -> None:
        """A peer (`PeerNews.peer`) was silent for two cycles; its messages no longer have an effect."""

    def on_exchange_state(self, up: bool) -> None:
        """`ExchangeHealth.is_up` has changed. False: freeze; True: thaw."""

    def busiest_traffic(self) -> GatewayTraffic:
        """The busiest topics and clients of this gateway."""
        ...

    def on_report_published(self, keys: Sequence[FleetKey]) -> None:
        """A report is in flight: from now on peers count another demand of this gateway for these limits."""

    def find_limit(self, key: FleetKey) -> float | None:
        """A limit's size, per second; a change of usage by 2 % of it is reported at once. None: no such limit."""
        ...


class UsageExchange:
    """Run it as a task.

    Args:
        client: librdkafka properties that reach the cluster.
        gateway: this one's name.
        party: the gateway that it talks for.
        replication: copies of a topic that is created; None: 3, or the number of brokers where that is less.

    Attributes:
        peers: the messages of others.
        health: whether own messages come back, and any fault.
        writer: the sent messages.
        received_messages, received_bytes: messages of others.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        gateway: str,
        party: FleetParty,
        *,
        cycle_s: float = 1.0,
        every: int = REPORT_CYCLES,
        replication: int | None = None,
        boot: bytes | None = None,
    ) -> None:
        client = {"log_level": 2, "reconnect.backoff.max.ms": 1000, **client}
        self.health = ExchangeHealth(topic)
        self.received_messages = self.received_bytes = 0
        self._cycle_s = cycle_s
        self._party = party
        self._reporter = UsageReporter(
            gateway, boot or secrets.token_bytes(8), cycle_s=cycle_s, every=every, limit_of=party.find_limit
        )
        self.peers = PeerTable(self._reporter)
        self.writer = ReportWriter(client, topic, self._reporter, self.health)
        self._reader = ReportReader(client, topic, self.health)
        self._topic = InternalTopic({**client, "error_cb": self.health.on_error}, topic, TOPIC_SPEC, replication)
        self._found: internal_topic.TopicPresent | None = None  # the topic that is read and written
        self._report_requested = trio.Event()
        self._renew_s = max(RENEW_S, 5 * cycle_s)
        self._reads_since = math.inf  # with this consumer

    def broker_unix_time(self) -> float | None:
        """Unix time of the broker that leads the topic's partition, late by the time that a message takes; None: not
        known.
        """
        return self.peers.clock.unix_time(trio.current_time())

    def report_soon(self) -> None:
        """Something began, or a limit changed: report it before the next cycle (at most five times per cycle)."""
        self._report_requested.set()

    async def run(self) -> None:
        """Exchange reports until cancelled; then send a leave message."""
        self.health.begin_grace(trio.current_time())
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._maintain_topic)
                nursery.start_soon(self._read_messages)
                nursery.start_soon(self._report_each_cycle)
        finally:
            with trio.move_on_after(LEAVE_S) as scope:
                scope.shield = True
                await trio.to_thread.run_sync(self._leave_fleet, abandon_on_cancel=True)

    def _leave_fleet(self) -> None:
        self.writer.write_leave()
        self._reader.close()

    # --- reporting ----------------------------------------------------------------------------------------------------

    async def _report_each_cycle(self) -> None:
        due = trio.current_time()
        while True:
            await self._send_report()
            due = max(due + self._cycle_s, trio.current_time())  # cycles that were missed aren't made up for
            while (left := due - trio.current_time()) > 0:
                with trio.move_on_after(left):
                    await self._report_requested.wait()
                if self._report_requested.is_set():
                    earliest = self.writer.wrote_at + self._cycle_s / REPORTS_PER_CYCLE
                    await trio.sleep(max(0.0, earliest - trio.current_time()))
                    await self._send_report(is_turn=False)

    async def _send_report(self, *, is_turn: bool = True) -> None:
        """Send the report, unless there is no topic, the last report is still in flight, or the peers' answers have not
        been read.
        """
        await trio.lowlevel.checkpoint()
        self._report_requested = trio.Event()
        if self._found is None or not self._reader.is_reading or not self.writer.is_free(trio.current_time()):
            return
        found = self._found
        # A name that clients don't know, unless they may describe the topic: it keeps them from finding names that have
        # the numbers of others'.
        self._reporter.set_salt(found.topic_id.encode()[:MAX_SALT])
        workers = await self._collect_demands()
        messages = []
        for message in self._reporter.make_report(workers=workers, is_turn=is_turn):
            messages.append(message)
            self._party.on_report_published(self._reporter.pop_changed_limits())
            await trio.lowlevel.checkpoint()
        if self._found is found:
            self.writer.write_report(messages, trio.current_time())
            self.peers.record_sent(trio.current_time())
        else:  # the topic was lost meanwhile
            self._reporter.on_report_lost()

    async def _collect_demands(self) -> int:
        """Pass the present usage to the reporter; returns the number of workers."""
        while True:
            uses, rates, workers, more = self._party.current_usage()
            self._reporter.record_demands(uses)
            for _ in self._reporter.record_rates(rates) if rates is not None else ():
                await trio.lowlevel.checkpoint()
            if not more:
                if self._reporter.includes_traffic:
                    self._reporter.record_traffic(self._party.busiest_traffic())
                return workers
            await trio.lowlevel.checkpoint()

    # --- hearing ------------------------------------------------------------------------------------------------------

    async def _read_messages(self) -> None:
        judged = trio.current_time()
        while True:
            was_reading = self._reader.is_reading
            records = await self._reader.read_records()
            now = began = trio.current_time()
            for record in records:
                if trio.current_time() - began > TURN_S:
                    await trio.lowlevel.checkpoint()
                    began = trio.current_time()
                self._handle_record(record, now)
            self.writer.poll_deliveries()
            if self._reader.is_reading > was_reading:
                self._reads_since = now
            if self._reporter.is_report_requested or self._reader.is_reading > was_reading:
                self._report_requested.set()  # a new peer must not count on usage that it doesn't know
            # While more is waiting, a peer that was not read yet is not silent; but that may last.
            if len(records) < MAX_READ_MESSAGES or now - judged >= self._cycle_s:
                judged = now
                self._judge_peers(now)

    def _handle_record(self, record: ReportRecord, now: float) -> None:
        if record.key != self._reporter.boot:
            self.received_messages += 1
            self.received_bytes += len(record.data)
        heard = self.peers.handle_report(record.data, record.published_ms, now)
        if heard is not None:
            self._party.on_peer_news(heard)

    def _judge_peers(self, now: float) -> None:
        """Update the peers' state: first whether the exchange itself works."""
        is_heard, began = self.peers.is_own_heard(now), self.writer.first_wrote_at
        changed = self.health.update_state(
            is_heard=is_heard,
            has_begun=began <= now,
            is_overdue=now - began > SILENT_CYCLES * self._cycle_s,
            also=self.peers.problem,
            now=now,
        )
        if changed:
            if is_heard:
                self.peers.excuse_silence(now)
                self._reporter.repeat_all()  # others may have forgotten what this gateway uses
            self._party.on_exchange_state(is_heard)
        if is_heard:
            for peer in self.peers.expire_peers(now):
                self._party.on_peer_lost(peer)
        elif now - max(began, self._reads_since) > self._renew_s:
            self._reads_since = math.inf
            self._reader.renew_consumer()

    # --- the topic ----------------------------------------------------------------------------------------------------

    async def _maintain_topic(self) -> None:
        while True:
            self.health.topic_missing = trio.Event()
            wait = LOOKUP_INTERVAL_S if self.health.is_up else RETRY_S
            try:
                # Abandoned when cancelled: a cluster that doesn't answer must not hold up a stop.
                found = await trio.to_thread.run_sync(self._find_topic, abandon_on_cancel=True)
                if not isinstance(found, TopicAbsent):
                    self._follow_topic(found)
            except (TopicError, KafkaException) as error:  # librdkafka's: a certificate is gone just now
                wait = RETRY_S
                self.health.record_failure(str(error))
            else:
                if isinstance(found, TopicAbsent):
                    wait = RETRY_S
                    self.health.record_failure(f"topic {self._topic.name} does not exist")
                    self._found = None
                    self.writer.close()
            with trio.move_on_after(wait):
                await self.health.topic_missing.wait()
            await trio.sleep(0.05)  # reader and writer may both have set it again and again

    def _find_topic(self) -> internal_topic.TopicPresent | TopicAbsent:
        """Find the topic, or create it. Runs in a thread.

        Raises:
            TopicError: it is not available.
        """
        found, before = self._topic.lookup_or_create(), self._found
        is_new = not isinstance(found, TopicAbsent) and (before is None or found.topic_id != before.topic_id)
        if is_new and (wrong := self._topic.find_config_fault()):
            log.warning("exchange: %s", wrong)
        return found

    def _follow_topic(self, found: internal_topic.TopicPresent) -> None:
        before = self._found
        if before is not None and self.writer.renew_producer():
            self._reader.renew_consumer()
        if found == before:
            return
        if before is None or found.topic_id != before.topic_id:
            self.writer.open()
            self._reporter.on_report_lost()
            self._reporter.repeat_all()
        self._found = found
        self._reader.renew_consumer()  # the present one would not find partitions that are new for ten seconds
        self._reader.follow_partitions(found.partitions)


__all__ = ["DROP_REASONS", "FleetParty", "GatewayUsage", "PeerNews", "ThresholdRate", "UsageExchange"]
