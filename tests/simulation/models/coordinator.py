# A model of the coordinators of transactions and of groups: who has which producer id and epoch, which partitions are
# in a transaction, its end with markers in all of them, and what ends one that takes too long. As Kafka's transaction
# state has it, with the first protocol and with that of KIP-890, in which a producer has a new epoch after each
# transaction. Shares no code with the product.

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.simulation.models import wire
from tests.simulation.models import wire_transactions as txn
from tests.simulation.models.wire_transactions import CoordinatorView, Place, Producer

if TYPE_CHECKING:
    from tests.simulation.models.cluster import Broker, Cluster, Topic

NONE, UNKNOWN_TOPIC, NOT_AVAILABLE, NOT_COORDINATOR = 0, 3, 15, 16
INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, CONCURRENT, NOT_ATTEMPTED, FENCED = 47, 48, 49, 51, 55, 90
EMPTY, ONGOING, COMMITTING, ABORTING, COMMITTED, ABORTED = range(6)
LOOK_EVERY_S: Final = 10.0  # for transactions that take too long
MARKER_RETRY_S: Final = 0.5
NAME: Final = "__transaction_state"


@dataclass(slots=True)
class _State:
    """Of one transactional id. `places`: partitions in the transaction; `offsets`: by group and partition, that are
    committed with it; `began`: when the first of both came.
    """

    producer: int
    epoch: int
    timeout_s: float
    kind: int = EMPTY
    places: dict[Place, None] = field(default_factory=dict)
    offsets: dict[tuple[str, Place], int] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    began: float = 0.0
    renews: bool = False  # its last transaction gave its producer a new epoch


class Coordinator:
    """
    Attributes:
        topic: whose partitions' leaders coordinate; no client sees it.
        committed: by group and partition, offsets.
    """

    def __init__(self, cluster: Cluster, topic: Topic) -> None:
        self.topic = topic
        self.committed: defaultdict[str, dict[Place, int]] = defaultdict(dict)
        self._cluster = cluster
        self._agenda = cluster.agenda
        self._chance = random.Random("coordinator")
        self._states: dict[str, _State] = {}
        self._by_producer: dict[int, _State] = {}
        self._agenda.after(LOOK_EVERY_S, self._end_late)

    def node_of(self, key: str) -> int:
        """Who coordinates that transactional id or group; -1: nobody just now."""
        partitions = self.topic.partitions
        node_id = partitions[zlib.crc32(key.encode()) % len(partitions)].leader
        return node_id if node_id >= 0 and self._cluster.brokers[node_id].is_up else -1

    def handle(self, broker: Broker, head: wire.Head) -> bytes:
        """The answer to a request of one of its APIs."""
        version, correlation = head.version, head.correlation
        if head.api == wire.FIND_COORDINATOR:
            _, keys = txn.decode_find_coordinator(head)
            return txn.encode_find_coordinator_answer(version, correlation, {key: self._view(key) for key in keys})
        if head.api == wire.ADD_PARTITIONS:
            who, places = txn.decode_add_partitions(head)
            errors = self._add_partitions(broker, who, places)
            return txn.encode_add_partitions_answer(version, correlation, errors)
        if head.api == wire.ADD_OFFSETS:
            who, group = txn.decode_add_offsets(head)
            error = self._join(broker, who)
            if not error:
                self._states[who.name].groups.add(group)
            return txn.encode_error_answer(wire.ADD_OFFSETS, version, correlation, error)
        if head.api == wire.TXN_OFFSET_COMMIT:
            who, group, offsets = txn.decode_offset_commit(head)
            error = self._commit_offsets(broker, who, group, offsets)
            return txn.encode_offset_commit_answer(version, correlation, dict.fromkeys(offsets, error))
        who, commits = txn.decode_end(head)
        error = self._end(broker, who, renews=version >= 5, commits=commits)
        state = self._states.get(who.name)
        renewed = (state.producer, state.epoch) if state is not None and not error else None
        return txn.encode_error_answer(wire.END_TXN, version, correlation, error, renewed)

    def _view(self, key: str) -> CoordinatorView:
        node_id = self.node_of(key)
        if node_id < 0:
            return CoordinatorView(NOT_AVAILABLE, -1, "", -1)
        return CoordinatorView(NONE, node_id, *self._cluster.brokers[node_id].address)

    def init_producer(self, broker: Broker, head: wire.Head) -> bytes:
        """The answer to InitProducerId."""
        body = head.body
        name, timeout_ms = body.text(), body.int32()
        if name is None:
            return wire.encode_init_producer_id_answer(head.version, head.correlation, self._cluster.new_producer())
        asked = (body.int64(), body.int16()) if head.version >= 3 else (-1, -1)
        error, producer, epoch = self._init_producer(broker, name, timeout_ms, asked)
        return wire.encode_init_producer_id_answer(head.version, head.correlation, producer, epoch, error)

    def _init_producer(
        self, broker: Broker, name: str, timeout_ms: int, asked: tuple[int, int]
    ) -> tuple[int, int, int]:
        """Error, producer id and epoch. `asked`: those that the producer has, -1 for none."""
        if self.node_of(name) != broker.node_id:
            return NOT_COORDINATOR, -1, -1
        state = self._states.get(name)
        if state is None:
            if asked[0] >= 0:
                return INVALID_MAPPING, -1, -1
            state = self._states[name] = _State(self._cluster.new_producer(), -1, 0.0)
            self._by_producer[state.producer] = state
        if asked[0] >= 0 and asked != (state.producer, state.epoch):
            return FENCED, -1, -1
        if state.kind == ONGOING:
            state.epoch += 1  # whoever has the one before is fenced
            self._prepare(state, commits=False)
        if state.kind in (COMMITTING, ABORTING):
            return CONCURRENT, -1, -1
        state.kind, state.epoch, state.timeout_s, state.renews = EMPTY, state.epoch + 1, timeout_ms / 1000, False
        return NONE, state.producer, state.epoch

    def verify(self, batch: wire.Batch, place: Place, *, adds: bool) -> int:
        """The error for a batch that is part of a transaction. `adds`: its partition comes in by it (KIP-890)."""
        state = self._by_producer.get(batch.producer)
        if state is None:
            return INVALID_MAPPING
        if batch.epoch != state.epoch:
            return INVALID_EPOCH
        if state.kind in (COMMITTING, ABORTING):
            return CONCURRENT if adds else INVALID_STATE
        if adds:
            self._begin(state)
            state.places[place] = None
        return NONE if state.kind == ONGOING and place in state.places else INVALID_STATE

    def _find(self, broker: Broker, who: Producer) -> tuple[int, _State | None]:
        if self.node_of(who.name) != broker.node_id:
            return NOT_COORDINATOR, None
        state = self._states.get(who.name)
        if state is None or state.producer != who.producer:
            return INVALID_MAPPING, None
        return (NONE if state.epoch == who.epoch else FENCED), state

    def _begin(self, state: _State) -> None:
        if state.kind != ONGOING:
            state.kind, state.began = ONGOING, self._agenda.now

    def _join(self, broker: Broker, who: Producer) -> int:
        error, state = self._find(broker, who)
        if error or state is None:
            return error
        if state.kind in (COMMITTING, ABORTING):
            return CONCURRENT
        self._begin(state)
        return NONE

    def _add_partitions(self, broker: Broker, who: Producer, places: list[Place]) -> dict[Place, int]:
        topics = self._cluster.topics
        unknown = {place for place in places if place[0] not in topics or place[1] >= len(topics[place[0]].partitions)}
        if unknown:
            return {place: UNKNOWN_TOPIC if place in unknown else NOT_ATTEMPTED for place in places}
        error = self._join(broker, who)
        if not error:
            self._states[who.name].places.update(dict.fromkeys(places))
        return dict.fromkeys(places, error)

    def _commit_offsets(self, broker: Broker, who: Producer, group: str, offsets: dict[Place, int]) -> int:
        if self.node_of(group) != broker.node_id:
            return NOT_COORDINATOR
        state = self._by_producer.get(who.producer)
        if state is None or state.epoch != who.epoch:
            return INVALID_EPOCH
        if state.kind != ONGOING or group not in state.groups:
            return INVALID_STATE
        state.offsets.update({(group, place): offset for place, offset in offsets.items()})
        return NONE

    def _end(self, broker: Broker, who: Producer, *, renews: bool, commits: bool) -> int:
        error, state = self._find(broker, who)
        if state is None:
            return error
        is_again = renews and state.renews and who.epoch == state.epoch - 1 and state.kind != ONGOING
        if error and not is_again:
            return error
        if state.kind == ONGOING:
            state.epoch, state.renews = state.epoch + renews, renews
            self._prepare(state, commits=commits)
            return NONE
        if renews and not commits and not error and state.kind not in (COMMITTING, ABORTING):
            state.kind, state.epoch, state.renews = ABORTED, state.epoch + 1, True  # nothing came of its batches
            return NONE
        if state.kind in ((COMMITTING, COMMITTED) if commits else (ABORTING, ABORTED)):
            return CONCURRENT if state.kind in (COMMITTING, ABORTING) else NONE
        return INVALID_STATE

    # --- the end ------------------------------------------------------------------------------------------------------

    def _prepare(self, state: _State, *, commits: bool) -> None:
        state.kind = COMMITTING if commits else ABORTING
        for place in state.places:
            self._agenda.after(self._chance.uniform(0.002, 0.02), self._mark, state, place)
        if not state.places:
            self._agenda.after(0.002, self._complete, state)

    def _mark(self, state: _State, place: Place) -> None:
        """Write the marker into that partition, as soon as it has a leader."""
        cluster = self._cluster
        topic = cluster.topics.get(place[0])
        if topic is not None:
            partition = topic.partitions[place[1]]
            if partition.leader < 0 or not cluster.brokers[partition.leader].is_up:
                self._agenda.after(MARKER_RETRY_S, self._mark, state, place)
                return
            commits = state.kind == COMMITTING
            offset = partition.mark(state.producer, state.epoch, self._agenda.now, commits=commits)
            cluster.observer.on_marker(partition, state.producer, offset, commits=commits)
        del state.places[place]
        if not state.places:
            self._complete(state)

    def _complete(self, state: _State) -> None:
        if state.kind == COMMITTING:
            for (group, place), offset in state.offsets.items():
                self.committed[group][place] = offset
        state.kind = COMMITTED if state.kind == COMMITTING else ABORTED
        state.offsets.clear()
        state.groups.clear()

    def _end_late(self) -> None:
        """Abort what is open for too long; its producer is fenced."""
        for name, state in self._states.items():
            if state.kind == ONGOING and self._agenda.now - state.began > state.timeout_s and self.node_of(name) >= 0:
                state.epoch += 1
                state.renews = False
                self._cluster.observer.on_timed_out(name)
                self._prepare(state, commits=False)
        self._agenda.after(LOOK_EVERY_S, self._end_late)
