# A model of a consumer: it reads partitions from their beginning, each from its leader, one Fetch request at a time on
# a connection, and heeds throttle times, as Java's does.

from __future__ import annotations

import random
from typing import Protocol

from tests.simulation.clock import Agenda, Entry
from tests.simulation.models import wire
from tests.simulation.models.network import ModelEnd, Network
from tests.simulation.models.wire import Batch, Frames

METADATA_VERSION, FETCH_VERSION = 9, 11
OUT_OF_RANGE = 1
REQUEST_TIMEOUT_S = 30.0
PAUSE_S = 0.2  # after an error, or a lost connection
MAX_WAIT_MS = 500


class ConsumerWatch(Protocol):
    """Told of what consumers read."""

    def on_read(self, consumer: Consumer, topic: str, index: int, batch: Batch, offset: int) -> None: ...

    def on_passed(self, consumer: Consumer, topic: str, index: int, batch: Batch, offset: int) -> None:
        """The application gets nothing of it: a marker, or a batch of a transaction that was aborted."""

    def on_throttled_fetch(self, consumer: Consumer, throttle_ms: int) -> None: ...


class Consumer:
    """
    Attributes:
        positions: by topic and partition, the offset that is read next.
        max_bytes: of one answer.
        is_committed: read_committed. `pause_s`: at least, from an answer to the next request.
    """

    def __init__(
        self, number: int, agenda: Agenda, network: Network, chance: random.Random, watch: ConsumerWatch,
        bootstrap: list[tuple[str, int]], topics: dict[str, int], client_id: str, max_bytes: int,
        *, is_committed: bool = False, pause_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.number = number
        self.is_committed = is_committed
        self.pause_s = pause_s
        self.client_id = client_id
        self.max_bytes = max_bytes
        self.positions = {(topic, index): 0 for topic, count in topics.items() for index in range(count)}
        self.read_bytes = 0
        self._agenda = agenda
        self._network = network
        self._chance = chance
        self._watch = watch
        self._bootstrap = bootstrap
        self._topics = list(topics)
        self._host = f"consumer{number}"
        self._is_closed = False
        self._leaders: dict[tuple[str, int], int] = {}
        self._readers: dict[int, _Reader] = {}
        self._correlation = 0

    def start(self) -> None:
        """Ask who leads what, now and every few seconds."""
        if self._is_closed:
            return
        self._agenda.after(self._chance.uniform(4.0, 8.0), self.start)
        self.refresh()

    def refresh(self) -> None:
        address = self._chance.choice(self._bootstrap)
        self._network.connect_model(self._host, address, self._ask, lambda why: None)

    def _ask(self, end: ModelEnd) -> None:
        frames, version = Frames(), METADATA_VERSION
        timer = self._agenda.after(REQUEST_TIMEOUT_S, end.close)

        def receive(data: bytes) -> None:
            for frame in frames.feed(data):
                timer.cancel()
                end.close()
                self._on_metadata(*wire.decode_metadata_answer(version, frame))

        end.on_bytes, end.on_end = receive, lambda why: end.close()
        end.send(wire.encode_metadata(version, self.next_correlation(), self.client_id, self._topics))

    def _on_metadata(self, brokers: dict[int, tuple[str, int]], topics: dict[str, dict[int, int]]) -> None:
        self._leaders = {(topic, index): node for topic, many in topics.items() for index, node in many.items()}
        for node_id in set(self._leaders.values()) & set(brokers):
            reader = self._readers.get(node_id)
            if reader is None or reader.address != brokers[node_id]:
                if reader is not None:
                    reader.close()
                self._readers[node_id] = _Reader(self, node_id, brokers[node_id], self._agenda, self._network)

    def places_at(self, node_id: int) -> list[tuple[str, int]]:
        found = [place for place in self.positions if self._leaders.get(place) == node_id]
        self._chance.shuffle(found)
        return found

    def next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def take(self, fetched: list[wire.Fetched], throttle_ms: int) -> bool:
        """Returns whether each partition could be read."""
        if throttle_ms:
            self._watch.on_throttled_fetch(self, throttle_ms)
        is_whole = True
        for each in fetched:
            place = (each.topic, each.partition)
            if each.error == OUT_OF_RANGE:
                self.positions[place] = 0
            is_whole = is_whole and not each.error
            aborted, skipped = sorted(each.aborted or (), key=lambda one: one[1]), set[int]()
            for offset, attributes, batch in each.batches:
                if offset != self.positions[place]:  # asked of the leader before, and read from the next one meanwhile
                    continue
                while aborted and aborted[0][1] <= offset:  # as Java's consumer has it
                    skipped.add(aborted.pop(0)[0])
                is_marker = bool(attributes & wire.CONTROL)
                is_visible = not (is_marker or (attributes and batch.producer in skipped))
                if is_marker and not batch.first:
                    skipped.discard(batch.producer)
                told = self._watch.on_read if is_visible else self._watch.on_passed
                told(self, each.topic, each.partition, batch, offset)
                self.read_bytes += batch.size
                self.positions[place] = offset + batch.records
        return is_whole

    def close(self) -> None:
        self._is_closed = True
        for reader in self._readers.values():
            reader.close()


class _Reader:
    """Its connection to one broker."""

    def __init__(
        self, consumer: Consumer, node_id: int, address: tuple[str, int], agenda: Agenda, network: Network
    ) -> None:
        self.address = address
        self._consumer = consumer
        self._node_id = node_id
        self._agenda = agenda
        self._network = network
        self._end: ModelEnd | None = None
        self._timer: Entry | None = None
        self._is_closed = False
        self._dial()

    def close(self) -> None:
        self._is_closed = True
        self._drop()

    def _dial(self) -> None:
        if not self._is_closed:
            host = f"consumer{self._consumer.number}"
            self._network.connect_model(host, self.address, self._joined, lambda why: self._pause())

    def _pause(self) -> None:
        self._drop()
        if not self._is_closed:
            self._consumer.refresh()
            self._agenda.after(5 * PAUSE_S, self._dial)

    def _drop(self) -> None:
        end, self._end = self._end, None
        if self._timer is not None:
            self._timer.cancel()
        if end is not None:
            end.close(with_reset=True)

    def _joined(self, end: ModelEnd) -> None:
        if self._is_closed:
            end.close()
            return
        self._end, frames = end, Frames()

        def receive(data: bytes) -> None:
            for frame in frames.feed(data):
                if self._end is end:
                    self._on_answer(frame)

        end.on_bytes = receive
        end.on_end = lambda why: self._pause() if self._end is end else end.close()
        self._fetch()

    def _fetch(self) -> None:
        end, consumer = self._end, self._consumer
        if end is None:
            return
        places = consumer.places_at(self._node_id)
        if not places:
            self._agenda.after(PAUSE_S, self._fetch)
            return
        wanted = [(topic, index, consumer.positions[topic, index]) for topic, index in places]
        self._timer = self._agenda.after(REQUEST_TIMEOUT_S, self._pause)
        end.send(
            wire.encode_fetch(
                FETCH_VERSION, consumer.next_correlation(), consumer.client_id, MAX_WAIT_MS, consumer.max_bytes, wanted,
                int(consumer.is_committed),
            )
        )  # fmt: skip

    def _on_answer(self, frame: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
        fetched, throttle_ms = wire.decode_fetch_answer(frame)
        is_whole = self._consumer.take(fetched, throttle_ms)
        if not is_whole:
            self._consumer.refresh()
        self._agenda.after(max(throttle_ms / 1000, self._consumer.pause_s if is_whole else PAUSE_S), self._fetch)
