# The topic on which gateways tell each other what they use: says our report every cycle, reads everybody's from the
# end, and keeps at it whatever happens to the topic or the cluster. Also how the topic is made: one partition, kept for
# minutes, stamped by the broker (LogAppendTime), so that nobody's clock matters but the cluster's.
#
# An old report is worth nothing: one that the cluster doesn't take within a second is thrown away, and the next one
# says everything again. Whether the exchange works is told by our own messages: they come back, or they don't.
#
# Blocking calls of librdkafka happen in threads: at most one that reads, one that looks after the topic. What may take
# long here is done in steps, and between them others have a turn: control answers for all its workers.
#
# Knows no limit and no share: what is said is reports.py's, what was heard peers.py's, what follows from it
# policies/fleet/shares.py's.

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import trio
from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from gateway.fleet.form import Usage
from gateway.fleet.peers import DROPPED, SILENT_CYCLES, Heard, Peers
from gateway.fleet.reports import EVERY, Rate, Reporter
from gateway.kafka import internal_topic
from gateway.kafka.describe import NO_TOPIC
from gateway.kafka.internal_topic import (
    METADATA_S,
    Absent,
    Essential,
    InternalTopic,
    Spec,
    TopicError,
    Troubles,
    reason,
)
from policies.fleet.keys import FleetKey
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.fleet")

LATE_S: Final = 1.0  # so long, or a cycle, a report may be on its way
RETRY_S: Final = 0.5
START_S: Final = 5.0  # what doesn't work so soon after the start may only need its time
POLL_S: Final = 0.05
FETCH_WAIT_MS: Final = 100  # of a fetch that brings nothing; what comes is answered at once
MAX_AT_ONCE: Final = 500  # messages read at once …
TURN_S: Final = 0.004  # … and taken before anybody else has a turn
GOODBYE_S: Final = 0.5
ANSWERS_PER_CYCLE: Final = 5
_STAMP: Final = "message.timestamp.type"
SPEC: Final = Spec(
    {
        "cleanup.policy": "delete",
        "retention.ms": "600000",
        "segment.ms": "300000",
        "segment.bytes": str(16 * 2**20),
        _STAMP: "LogAppendTime",
    },
    Essential(_STAMP, ("LogAppendTime",), "old messages can't be told from new ones"),
    durable=False,
    adopts=True,
)


class Present(NamedTuple):
    """What this gateway uses: of limits, by key, where that has changed since it was asked last (idle: not used any
    more); V1's rates, all of them, None where they are as before; how many workers share it. `more`: ask again at once.
    """

    uses: Mapping[FleetKey, Usage]
    rates: Iterable[Rate] | None = None
    workers: int = 1
    more: bool = False


class FleetParty(Protocol):
    """The gateway on whose behalf an exchange talks: gateway.control.fleet.FleetControl. Called on the event loop, so
    nothing here may wait.
    """

    def present(self) -> Present:
        """What this gateway uses; asked before each report, until there is no more to tell."""
        ...

    def hear(self, heard: Heard) -> None:
        """A peer said something."""

    def forget(self, peer: str) -> None:
        """A peer (`Heard.peer`) was silent for two cycles; what it said has no effect any more."""

    def follow_exchange(self, up: bool) -> None:
        """`Exchange.up` has changed: False, freeze; True, thaw."""

    def publish(self, keys: Sequence[FleetKey]) -> None:
        """A report is on its way: from here on peers count this gateway otherwise in these limits (`peers.told`)."""

    def limit_of(self, key: FleetKey) -> float | None:
        """Per second; a change of usage by 2 % of it is told at once. None: there is no such limit."""
        ...


class Exchange:
    """Run it as a task.

    Args:
        client: librdkafka properties that reach the cluster.
        gateway: this one's name.
        party: what it talks for.
        replication: copies of a topic that is created; None: 3, or the number of brokers where that is less.

    Attributes:
        up: our own messages come back.
        since: Unix time since which `up` is what it is.
        peers: `living`, `workers`, `gateways`, `of(key)`, `told(key)`, `rates()`.
        sent, sent_bytes, received, received_bytes: messages of ours and others'; `failed`: ours that weren't taken.
        round_trip_s: of our last message; NaN: none has come back.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        gateway: str,
        party: FleetParty,
        *,
        cycle_s: float = 1.0,
        every: int = EVERY,
        replication: int | None = None,
        boot: bytes | None = None,
    ) -> None:
        self.cycle_s = cycle_s
        self.up = False
        self.since = time.time()
        self.sent = self.sent_bytes = self.received = self.received_bytes = self.failed = 0
        self._client: dict[str, Any] = {"log_level": 2, "reconnect.backoff.max.ms": 1000, **client}
        self._topic = topic
        self._troubles = Troubles(log, "exchange")
        self._troubles.expect("unread", f"topic {topic} has not been reached yet")
        self._party = party
        self._replication = replication
        self._boot = boot or secrets.token_bytes(8)
        self._reporter = Reporter(gateway, self._boot, cycle_s=cycle_s, every=every, limit_of=party.limit_of)
        self.peers = Peers(self._reporter)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._topic_id: str | None = None  # of the one that is read and written
        self._partitions: frozenset[int] = frozenset()
        self._assign: frozenset[int] | None = None  # what the reader shall begin with
        self._flight = 0  # reports thrown away don't count any more when they are heard of later
        self._pending = 0  # messages on their way …
        self._pending_since = 0.0
        self._look = trio.Event()
        self._hurry = trio.Event()
        self._says = False  # a report is being made
        self._said_at = -math.inf
        self._talks_since = math.inf  # on this topic
        self._patient_until = -math.inf  # a topic that was just made isn't there at once: nothing to complain about yet
        self._trouble = ""  # with the topic
        self._ending = False

    @property
    def problem(self) -> str:
        """What is wrong, one line; "" for nothing."""
        return self._troubles.problem

    @property
    def dropped(self) -> dict[str, int]:
        """Messages of others that were not used, by reason (DROPPED); all reasons are there."""
        return dict(self.peers.counts)

    @property
    def round_trip_s(self) -> float:
        return self.peers.round_trip_s

    @property
    def gateway(self) -> str:
        return self._reporter.gateway

    def hurry(self) -> None:
        """Something began, or a limit changed: don't wait for the next cycle with it (at most five times per cycle)."""
        self._hurry.set()

    async def run(self) -> None:
        """For ever; says goodbye when cancelled."""
        self._patient_until = trio.current_time() + START_S
        self._consumer = Consumer(
            {
                "group.id": "produce-gateway-resource-usage",
                **self._client,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 16_384,
                "error_cb": self._on_error,
            }
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_after_topic)
                nursery.start_soon(self._read)
                nursery.start_soon(self._speak)
        finally:
            self._ending = True
            with trio.move_on_after(GOODBYE_S) as scope:
                scope.shield = True
                await trio.to_thread.run_sync(self._say_goodbye, abandon_on_cancel=True)

    # --- saying -------------------------------------------------------------------------------------------------------

    async def _speak(self) -> None:
        due = trio.current_time()
        while True:
            await self._say()
            due = max(due + self.cycle_s, trio.current_time())  # who was late doesn't catch up
            while (left := due - trio.current_time()) > 0:
                with trio.move_on_after(left):
                    await self._hurry.wait()
                if self._hurry.is_set():
                    await trio.sleep(max(0.0, self._said_at + self.cycle_s / ANSWERS_PER_CYCLE - trio.current_time()))
                    await self._say(is_turn=False)

    async def _say(self, *, is_turn: bool = True) -> None:
        """A report, unless there is nobody to take it, or the last one is still on its way."""
        await trio.lowlevel.checkpoint()
        self._hurry = trio.Event()
        producer = self._producer
        if producer is None or self._topic_id is None:
            return
        producer.poll(0)
        if self._pending:
            if trio.current_time() - self._pending_since < max(LATE_S, self.cycle_s):
                return
            self._throw_away()
        self._says = True
        try:
            workers = await self._take_note()
            wants = self.peers.wants(trio.current_time())
            messages = []
            for message in self._reporter.report(workers=workers, wants=wants, is_turn=is_turn):
                messages.append(message)
                self._party.publish(self._reporter.take_said())
                await trio.lowlevel.checkpoint()
        finally:
            self._says = False
        if producer is self._producer:
            self._send(messages, trio.current_time())
        else:  # the topic was lost meanwhile
            self._reporter.lost()

    async def _take_note(self) -> int:
        """Let the reporter know what is so now; how many workers there are."""
        while True:
            uses, rates, workers, more = self._party.present()
            self._reporter.note(uses)
            for _ in self._reporter.note_rates(rates) if rates is not None else ():
                await trio.lowlevel.checkpoint()
            if not more:
                return workers
            await trio.lowlevel.checkpoint()

    def _answer(self, now: float) -> None:
        """Who has just begun to use what we use as well can't wait for a cycle."""
        if (
            self._reporter.has_answers
            and not self._says
            and self._producer is not None
            and self._topic_id is not None
            and not self._pending
            and now - self._said_at >= self.cycle_s / ANSWERS_PER_CYCLE
        ):
            self._send(self._reporter.answer(), now)

    def _send(self, messages: Iterable[bytes], now: float) -> None:
        assert self._producer is not None
        self._said_at = self._pending_since = now
        self._talks_since = min(self._talks_since, now)
        self.peers.said(now)
        flight = self._flight

        def delivered(error: KafkaError | None, message: Message) -> None:
            if flight == self._flight:
                self._settle(error)

        for message in messages:
            try:
                # With the boot as its key a gateway's messages keep their order, should there be several partitions.
                self._producer.produce(self._topic, value=message, key=self._boot, on_delivery=delivered)
            except (BufferError, KafkaException) as error:
                self._pending += 1
                self._settle(error.args[0] if isinstance(error, KafkaException) else None, lost=True)
                return
            self._pending += 1
            self.sent += 1
            self.sent_bytes += len(message)
        self._producer.poll(0)

    def _settle(self, error: KafkaError | None, *, lost: bool = False) -> None:
        self._pending -= 1
        if error is not None or lost:
            self.failed += 1
            self._reporter.lost()
            if error is not None:
                self._trouble = f"topic {self._topic} takes no messages: {reason(error)}"
                if error.code() in NO_TOPIC:
                    self._look.set()
        elif not self._pending:
            self._reporter.arrived()

    def _throw_away(self) -> None:
        """What wasn't taken in time is of no use any more."""
        assert self._producer is not None
        self.failed += self._pending
        self._flight += 1
        self._pending = 0
        self._producer.purge(blocking=False)
        self._producer.poll(0)
        self._reporter.lost()

    def _say_goodbye(self) -> None:
        if self._producer is not None and self.up:
            for message in self._reporter.leave():
                self._producer.produce(self._topic, value=message, key=self._boot)
            self._producer.flush(GOODBYE_S)
        if self._consumer is not None:
            self._consumer.close()

    # --- hearing ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            if self._assign is not None and self._consumer is not None:
                # From the end also when it was made anew: what was missed meanwhile is noticed, and asked for.
                self._consumer.assign([TopicPartition(self._topic, p, OFFSET_END) for p in sorted(self._assign)])
                self._assign = None
            messages = await trio.to_thread.run_sync(self._poll)
            now = began = trio.current_time()
            for message in messages:
                if trio.current_time() - began > TURN_S:
                    await trio.lowlevel.checkpoint()
                    began = trio.current_time()
                self._take(message, now)
            if self._producer is not None:
                self._producer.poll(0)
            self._answer(now)
            if self.peers.asks or self._reporter.is_asked:
                self._hurry.set()  # who begins must not count with numbers that he doesn't know
            if len(messages) < MAX_AT_ONCE:  # else more is waiting: nobody is silent who was not read yet
                self._judge(now)

    def _poll(self) -> list[Message]:
        assert self._consumer is not None
        found: list[Message] = []
        message = self._consumer.poll(POLL_S)
        while message is not None:
            found.append(message)
            message = self._consumer.poll(0) if len(found) < MAX_AT_ONCE else None
        return found

    def _take(self, message: Message, now: float) -> None:
        error = message.error()
        if error is not None:
            if error.code() in NO_TOPIC:
                self._look.set()
            elif error.code() not in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN):
                self._trouble = f"topic {self._topic} can't be read: {reason(error)}"
            return
        value = message.value() or b""
        data = value.encode() if isinstance(value, str) else value
        kind, stamp = message.timestamp()
        if message.key() != self._boot:
            self.received += 1
            self.received_bytes += len(data)
        heard = self.peers.take(data, stamp if kind == TIMESTAMP_LOG_APPEND_TIME else None, now)
        if heard is not None:
            self._party.hear(heard)

    def _judge(self, now: float) -> None:
        """Who is still there: the exchange itself first."""
        up = self.peers.is_heard(now)
        if up:
            self._trouble = ""
        elif not self._trouble and now - self._talks_since > SILENT_CYCLES * self.cycle_s:
            self._trouble = f"what is said on topic {self._topic} doesn't come back"
        self._show()
        if up != self.up:
            self.up, self.since = up, time.time()
            if up:
                self.peers.excuse(now)
                self._patient_until = -math.inf
            self._party.follow_exchange(up)
        if up:
            for peer in self.peers.expire(now):
                self._party.forget(peer)

    def _show(self) -> None:
        if not self._trouble and not self.up and self._talks_since == math.inf:
            return  # it has only begun
        problem = one_line("; ".join(text for text in (self._trouble, self.peers.problem) if text), ERROR_CHARS)
        if problem == self.problem or (problem and trio.current_time() < self._patient_until):
            return
        if problem:
            self._troubles.complain(problem, problem)
        else:
            self._troubles.clear(f"gateways hear each other on topic {self._topic}")

    # --- the topic ----------------------------------------------------------------------------------------------------

    async def _look_after_topic(self) -> None:
        topic = InternalTopic({**self._client, "error_cb": self._on_error}, self._topic, SPEC, self._replication)
        while True:
            self._look = trio.Event()
            wait = METADATA_S if self.up else RETRY_S
            try:
                # Abandoned when cancelled: a cluster that doesn't answer must not hold up a stop.
                found = await trio.to_thread.run_sync(self._find, topic, abandon_on_cancel=True)
            except TopicError as error:
                wait, self._trouble = RETRY_S, str(error)
            else:
                if isinstance(found, Absent):
                    wait = RETRY_S
                    self._lose()
                else:
                    self._follow(found)
            with trio.move_on_after(wait):
                await self._look.wait()
            await trio.sleep(0.05)  # reader and writer may both have set it again and again

    def _find(self, topic: InternalTopic) -> internal_topic.Present | Absent:
        """The topic; it is created where it isn't there. In a thread.

        Raises:
            TopicError: it can't be had.
        """
        found = topic.have()
        if not isinstance(found, Absent) and found.topic_id != self._topic_id and (wrong := topic.judge()):
            log.warning("exchange: %s", wrong)
        return found

    def _lose(self) -> None:
        self._trouble = f"topic {self._topic} does not exist"
        if self._topic_id is not None:
            self._topic_id = None
            self._partitions = frozenset()
            self._drop_producer()

    def _follow(self, found: internal_topic.Present) -> None:
        topic_id, partitions = found
        if topic_id == self._topic_id and partitions == self._partitions:
            return
        if topic_id != self._topic_id:
            # A producer that knows the old one would go on asking for it, and might make it anew, as Kafka would.
            self._drop_producer()
            self._producer = Producer(
                {
                    **self._client,
                    "acks": 1,
                    "linger.ms": 0,
                    "retries": 0,
                    "message.timeout.ms": round(1000 * max(LATE_S, self.cycle_s)) + 500,
                    "topic.metadata.propagation.max.ms": 1000,
                    "error_cb": self._on_error,
                }
            )
            self._reporter.lost()
            self._hurry.set()
        self._topic_id, self._partitions = topic_id, partitions
        self._assign = partitions

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._throw_away()
            self._producer = None
            self._talks_since = math.inf

    def _on_error(self, error: KafkaError) -> None:
        """Of any of the three clients, from their threads."""
        if not self.up and error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = f"topic {self._topic} can't be had: {reason(error)}"


__all__ = ["DROPPED", "Exchange", "FleetParty", "Heard", "Present", "Rate"]
