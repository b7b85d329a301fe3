# The topic on which gateways tell each other what they use: reports every cycle, reads what all others report, and
# keeps at it whatever happens to the topic or the cluster. Also how the topic is made: one partition, kept for minutes,
# stamped by the broker (LogAppendTime), so that only the cluster's clock matters.
#
# Long work is done in steps, and between them other tasks run: control answers for all its workers.
#
# Knows no limit and no share: what is told is reports.py's, what was heard peers.py's, what follows from it
# policies/fleet/shares.py's. Clients are writer.py's and reader.py's.

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import trio

from gateway.control.fleet.exchange.form import MAX_BYTES, MAX_SALT, GatewayTraffic
from gateway.control.fleet.exchange.health import Health
from gateway.control.fleet.exchange.peers import DROPPED, SILENT_CYCLES, Heard, Peers
from gateway.control.fleet.exchange.reader import MAX_AT_ONCE, Reader, Record
from gateway.control.fleet.exchange.reports import EVERY, Rate, Reporter
from gateway.control.fleet.exchange.writer import LEAVE_S, Writer
from gateway.kafka import internal_topic
from gateway.kafka.internal_topic import METADATA_S, Absent, Essential, InternalTopic, Spec, TopicError
from policies.fleet.keys import FleetKey
from policies.fleet.shares import Use

log = logging.getLogger("gateway.fleet")

RETRY_S: Final = 0.5
TURN_S: Final = 0.004  # messages are taken in for this long before another task has a turn
REPORTS_PER_CYCLE: Final = 5
_STAMP: Final = "message.timestamp.type"
SPEC: Final = Spec(
    {
        "cleanup.policy": "delete",
        "retention.ms": "600000",
        "segment.ms": "300000",
        "segment.bytes": str(16 * 2**20),
        "max.message.bytes": str(MAX_BYTES),
        _STAMP: "LogAppendTime",
    },
    Essential(_STAMP, ("LogAppendTime",), "old messages can't be told from new ones"),
    durable=False,
    adopts=True,
)


class Present(NamedTuple):
    """The usage of this gateway: of limits, by key, where that has changed since the last question (idle: not used any
    more); V1's rates, all of them, None where they are as before; the number of workers that share it. `more`: ask
    again at once.
    """

    uses: Mapping[FleetKey, Use]
    rates: Iterable[Rate] | None = None
    workers: int = 1
    more: bool = False


class FleetParty(Protocol):
    """The gateway on whose behalf an exchange talks: FleetControl (gateway.control.fleet.shares). Called on the event
    loop, so nothing here may wait.
    """

    def present(self) -> Present:
        """The usage of this gateway; asked before each report, until there is no more to tell."""
        ...

    def hear(self, heard: Heard) -> None:
        """A peer said something."""

    def forget(self, peer: str) -> None:
        """A peer (`Heard.peer`) was silent for two cycles; its messages have no effect any more."""

    def follow_exchange(self, up: bool) -> None:
        """`Exchange.up` has changed: False, freeze; True, thaw."""

    def traffic(self) -> GatewayTraffic:
        """The busiest topics and clients of this gateway."""
        ...

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
        party: the gateway that it talks for.
        replication: copies of a topic that is created; None: 3, or the number of brokers where that is less.

    Attributes:
        peers: the messages of others.
        health: whether own messages come back, and any fault.
        writer: the sent messages.
        received, received_bytes: messages of others.
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
        client = {"log_level": 2, "reconnect.backoff.max.ms": 1000, **client}
        self.health = Health(topic)
        self.received = self.received_bytes = 0
        self._cycle_s = cycle_s
        self._party = party
        self._reporter = Reporter(
            gateway, boot or secrets.token_bytes(8), cycle_s=cycle_s, every=every, limit_of=party.limit_of
        )
        self.peers = Peers(self._reporter)
        self.writer = Writer(client, topic, self._reporter, self.health)
        self._reader = Reader(client, topic, self.health)
        self._topic = InternalTopic({**client, "error_cb": self.health.on_error}, topic, SPEC, replication)
        self._found: internal_topic.Present | None = None  # the topic that is read and written
        self._hurry = trio.Event()

    def brokers_time(self) -> float | None:
        """Unix time by the broker that keeps the topic, late by the time that a message takes; None: not known."""
        return self.peers.clock.unix_s(trio.current_time())

    def hurry(self) -> None:
        """Something began, or a limit changed: don't wait for the next cycle with it (at most five times per cycle)."""
        self._hurry.set()

    async def run(self) -> None:
        """For ever; says that it leaves when cancelled."""
        self.health.begin(trio.current_time())
        self._reader.open()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_after_topic)
                nursery.start_soon(self._read)
                nursery.start_soon(self._report_each_cycle)
        finally:
            with trio.move_on_after(LEAVE_S) as scope:
                scope.shield = True
                await trio.to_thread.run_sync(self._leave, abandon_on_cancel=True)

    def _leave(self) -> None:
        self.writer.leave()
        self._reader.close()

    # --- reporting ----------------------------------------------------------------------------------------------------

    async def _report_each_cycle(self) -> None:
        due = trio.current_time()
        while True:
            await self._report()
            due = max(due + self._cycle_s, trio.current_time())  # cycles that were missed aren't made up for
            while (left := due - trio.current_time()) > 0:
                with trio.move_on_after(left):
                    await self._hurry.wait()
                if self._hurry.is_set():
                    earliest = self.writer.wrote_at + self._cycle_s / REPORTS_PER_CYCLE
                    await trio.sleep(max(0.0, earliest - trio.current_time()))
                    await self._report(is_turn=False)

    async def _report(self, *, is_turn: bool = True) -> None:
        """Unless there is no topic, or the last report is still on its way. Nor before the peers' answers are read."""
        await trio.lowlevel.checkpoint()
        self._hurry = trio.Event()
        if self._found is None or not self._reader.is_reading or not self.writer.is_free(trio.current_time()):
            return
        found = self._found
        # A name that clients don't know, unless they may describe the topic: it keeps them from finding names that have
        # the numbers of others'.
        self._reporter.salt(found.topic_id.encode()[:MAX_SALT])
        workers = await self._take_note()
        messages = []
        for message in self._reporter.report(workers=workers, is_turn=is_turn):
            messages.append(message)
            self._party.publish(self._reporter.take_said())
            await trio.lowlevel.checkpoint()
        if self._found is found:
            self.writer.write(messages, trio.current_time())
            self.peers.said(trio.current_time())
        else:  # the topic was lost meanwhile
            self._reporter.lost()

    async def _take_note(self) -> int:
        """Tell the reporter the present usage; gives the number of workers."""
        while True:
            uses, rates, workers, more = self._party.present()
            self._reporter.note(uses)
            for _ in self._reporter.note_rates(rates) if rates is not None else ():
                await trio.lowlevel.checkpoint()
            if not more:
                if self._reporter.tells_traffic:
                    self._reporter.note_traffic(self._party.traffic())
                return workers
            await trio.lowlevel.checkpoint()

    # --- hearing ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        judged = trio.current_time()
        while True:
            was_reading = self._reader.is_reading
            records = await self._reader.read()
            now = began = trio.current_time()
            for record in records:
                if trio.current_time() - began > TURN_S:
                    await trio.lowlevel.checkpoint()
                    began = trio.current_time()
                self._take(record, now)
            self.writer.poll()
            if self._reporter.is_asked or self._reader.is_reading > was_reading:
                self._hurry.set()  # a new peer must not count on usage that it doesn't know
            # While more is waiting, a peer that was not read yet is not silent; but that may last.
            if len(records) < MAX_AT_ONCE or now - judged >= self._cycle_s:
                judged = now
                self._judge(now)

    def _take(self, record: Record, now: float) -> None:
        if record.key != self._reporter.boot:
            self.received += 1
            self.received_bytes += len(record.data)
        heard = self.peers.take(record.data, record.published_ms, now)
        if heard is not None:
            self._party.hear(heard)

    def _judge(self, now: float) -> None:
        """The remaining gateways: the exchange itself first."""
        is_heard, began = self.peers.is_heard(now), self.writer.began
        changed = self.health.judge(
            is_heard=is_heard,
            has_begun=began <= now,
            is_overdue=now - began > SILENT_CYCLES * self._cycle_s,
            also=self.peers.problem,
            now=now,
        )
        if changed:
            if is_heard:
                self.peers.excuse(now)
            self._party.follow_exchange(is_heard)
        if is_heard:
            for peer in self.peers.expire(now):
                self._party.forget(peer)

    # --- the topic ----------------------------------------------------------------------------------------------------

    async def _look_after_topic(self) -> None:
        while True:
            self.health.missing = trio.Event()
            wait = METADATA_S if self.health.up else RETRY_S
            try:
                # Abandoned when cancelled: a cluster that doesn't answer must not hold up a stop.
                found = await trio.to_thread.run_sync(self._find, abandon_on_cancel=True)
            except TopicError as error:
                wait = RETRY_S
                self.health.fail(str(error))
            else:
                if isinstance(found, Absent):
                    wait = RETRY_S
                    self.health.fail(f"topic {self._topic.name} does not exist")
                    self._found = None
                    self.writer.close()
                else:
                    self._follow(found)
            with trio.move_on_after(wait):
                await self.health.missing.wait()
            await trio.sleep(0.05)  # reader and writer may both have set it again and again

    def _find(self) -> internal_topic.Present | Absent:
        """The topic; it is created where it isn't there. In a thread.

        Raises:
            TopicError: it can't be had.
        """
        found, before = self._topic.have(), self._found
        is_new = not isinstance(found, Absent) and (before is None or found.topic_id != before.topic_id)
        if is_new and (wrong := self._topic.judge()):
            log.warning("exchange: %s", wrong)
        return found

    def _follow(self, found: internal_topic.Present) -> None:
        before = self._found
        if found == before:
            return
        self._found = found
        if before is None or found.topic_id != before.topic_id:
            self.writer.open()
            self._reporter.lost()
            self._reporter.repeat_all()
        self._reader.follow(found.partitions)


__all__ = ["DROPPED", "Exchange", "FleetParty", "Heard", "Present", "Rate"]
