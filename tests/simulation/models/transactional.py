# A model of transactional producers: an application that begins a transaction, brings some batches, and commits or
# aborts it, over and over, with one transactional id. As Java's and librdkafka's clients do it: coordinators are found
# through any broker and asked one thing after the other, and after an error that no retry mends the application aborts
# or, where another producer has taken its place, ends or begins with a new producer.

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.simulation.models import wire
from tests.simulation.models import wire_transactions as txn
from tests.simulation.models.clients import (
    CONTROL_TIMEOUT_S,
    INVALID_EPOCH,
    OUT_OF_ORDER,
    UNKNOWN_PRODUCER,
    Client,
    _Pending,
    _Queue,
)  # fmt: skip
from tests.simulation.models.network import ModelEnd
from tests.simulation.models.sasl import greet
from tests.simulation.models.wire import Frames
from tests.simulation.models.wire_transactions import Place, Producer

STARTING, OPEN, ENDING, IDLE, OVER = "starting", "open", "ending", "idle", "over"
NOT_HERE: Final = frozenset({15, 16})  # NOT_COORDINATOR and that there is none just now
RETRIED: Final = frozenset({3, 5, 6, 7, 14, 51, 55})
CONCURRENT: Final = 51
BROKEN: Final = frozenset({INVALID_EPOCH, OUT_OF_ORDER, UNKNOWN_PRODUCER, 48, 49, 90})  # that no retry mends
PAUSE_S: Final = 0.1
CONCURRENT_PAUSE_S: Final = 0.02
RESTART_S: Final = 0.5
COMMITS: Final = 0.85  # of all transactions; applications abort the others
WITH_OFFSETS: Final = 0.3
MOST_BATCHES: Final = 12


class _Call(NamedTuple):
    """A request to a coordinator. `then`: returns the error of an answer, and does what follows where there is none
    to retry.
    """

    make: Callable[[int], bytes]
    then: Callable[[bytes], int]


class _Link:
    """To the coordinator of one transactional id or group: one request at a time, in their order."""

    def __init__(self, client: TransactionalClient, kind: int, key: str) -> None:
        self.calls: deque[_Call] = deque()
        self._client = client
        self._kind = kind
        self._key = key
        self._end: ModelEnd | None = None
        self._is_busy = False  # it waits for an answer, for the place of the coordinator, or for a moment
        self._timer: Any = None
        self._search = 0  # the present search for the coordinator
        self._then: Callable[[bytes], None] = lambda frame: None

    def ask(self, call: _Call) -> None:
        self.calls.append(call)
        self._go_on()

    def close(self) -> None:
        self.calls.clear()
        self._drop()

    def _drop(self) -> None:
        end, self._end = self._end, None
        if self._timer is not None:
            self._timer.cancel()
        self._is_busy = False
        self._search += 1
        if end is not None:
            end.close()

    def search_again(self) -> None:
        """Whom it asked is gone."""
        if self._is_busy and self._end is None:
            self._again()

    def _go_on(self) -> None:
        if not self.calls or self._is_busy:
            return
        self._is_busy = True
        if self._end is None:
            self._find()
        else:
            self._send(self.calls[0].make, self._on_answer)

    def _again(self, pause_s: float = PAUSE_S) -> None:
        self._drop_timer()
        self._is_busy = True
        self._search += 1
        self._timer = self._client.agenda.after(pause_s * self._client.chance.uniform(0.8, 1.2), self._resume)

    def _resume(self) -> None:
        self._is_busy = False
        self._go_on()

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _find(self) -> None:
        speech = self._client.speech
        self._timer = self._client.agenda.after(CONTROL_TIMEOUT_S, self._again)

        def make(correlation: int) -> bytes:
            return txn.encode_find_coordinator(speech.find, correlation, self._client.client_id, self._kind, self._key)

        search = self._search
        if not self._client.ask_control(make, lambda frame: self._on_found(frame, search)):
            self._again()

    def _on_found(self, frame: bytes, search: int) -> None:
        if search != self._search:
            return
        found = txn.decode_find_coordinator_answer(self._client.speech.find, frame)
        if found.error:
            self._again()
            return

        def fail(why: str) -> None:
            if search == self._search:
                self._again()

        self._client.dial((found.host, found.port), lambda end: self._joined(end, search), fail)

    def _joined(self, end: ModelEnd, search: int) -> None:
        client, frames = self._client, Frames()
        if search != self._search:
            end.close()
            return
        self._end = end
        end.on_end = lambda why: self._lost(end)
        greeting = greet(client.client_id, client.profile.software, client.who, client.chance)

        def go_on(frame: bytes | None) -> None:
            make = client._next_greeting(greeting, frame)
            if make is None:
                self._drop_timer()
                self._resume()
            else:
                self._send(make, go_on)

        def receive(data: bytes) -> None:
            for frame in frames.feed(data):
                if self._end is not end:
                    return
                self._drop_timer()
                then, self._then = self._then, lambda frame: None
                then(frame)

        end.on_bytes = receive
        go_on(None)

    def _send(self, make: Callable[[int], bytes], then: Callable[[bytes], None]) -> None:
        end, client = self._end, self._client
        if end is not None:
            self._then = then
            self._drop_timer()
            self._timer = client.agenda.after(CONTROL_TIMEOUT_S, self._late, end)
            end.send(make(client.next_correlation()))

    def _late(self, end: ModelEnd) -> None:
        end.close(with_reset=True)
        self._lost(end)

    def _lost(self, end: ModelEnd) -> None:
        if self._end is end:
            self._drop()
            if self.calls:
                self._client.lost_answers += 1
                self._again()
        else:
            end.close()

    def _on_answer(self, frame: bytes) -> None:
        call = self.calls[0]
        error = call.then(frame)
        if error in NOT_HERE:
            self._drop()
            self._again()
        elif error in RETRIED:
            self._again(CONCURRENT_PAUSE_S if error == CONCURRENT else PAUSE_S)
        else:
            if self.calls and self.calls[0] is call:
                self.calls.popleft()
            self._is_busy = False
            self._go_on()


class TransactionalClient(Client):
    """
    Attributes:
        state: STARTING: it has no producer id; OPEN: a transaction is; ENDING: it waits for the outcome of its batches
            and for the coordinator; IDLE: it has stopped; OVER: another producer took its place.
        is_replaced: another application has its transactional id now.
        given_up: transactions that ended otherwise than their application wanted.
        lost_answers: requests to coordinators without one.
    """

    def __init__(self, *args: Any, transactional_id: str, timeout_ms: int, **named: Any) -> None:
        super().__init__(*args, **named)
        assert self.profile.transactions is not None
        self.speech = self.profile.transactions
        self.transactional_id = transactional_id
        self.group = f"group of {transactional_id}"
        self.state = STARTING
        self.is_replaced = False
        self.given_up = self.committed = self.lost_answers = 0
        self.agenda, self.chance = self._agenda, self._chance
        self._attributes = wire.TRANSACTIONAL
        self._timeout_ms = timeout_ms
        self._transactions = _Link(self, txn.TRANSACTION, transactional_id)
        self._groups = _Link(self, txn.GROUP, self.group)
        self._added: set[Place] = set()
        self._wanted: dict[Place, None] = {}
        self._is_adding = self._has_begun = self._wants_commit = self._is_broken = self._needs_epoch = False
        self._is_committing = self._is_asked = False
        self._goal = 0
        self._stalls_until = 0.0

    # --- what the links need ------------------------------------------------------------------------------------------

    def next_correlation(self) -> int:
        return self._next_correlation()

    def ask_control(self, make: Callable[[int], bytes], then: Callable[[bytes], None]) -> bool:
        """On the connection to any broker; False: there is none just now."""
        if (control := self._find_control()) is None:
            return False
        correlation = self._next_correlation()
        self._expect(correlation, then, control)
        control.send(make(correlation))
        return True

    def dial(
        self, address: tuple[str, int], joined: Callable[[ModelEnd], None], failed: Callable[[str], None]
    ) -> None:  # fmt: skip
        self._connect(address, joined, failed)

    def _control_lost(self, end: ModelEnd, why: str) -> None:
        super()._control_lost(end, why)
        self._transactions.search_again()
        self._groups.search_again()

    @property
    def _who(self) -> Producer:
        return Producer(self.transactional_id or "", *self._producer)

    # --- the application ----------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not self.pending_bytes and self.state in (IDLE, OVER)

    def stop(self) -> None:
        super().stop()
        self._stalls_until = 0.0
        if self.state == STARTING and not self._is_asked:
            self.state = IDLE
        self._end_transaction(self.transaction)

    def stall(self, seconds: float) -> None:
        """The application does nothing for a while, the transaction stays open."""
        self._stalls_until = self._agenda.now + seconds

    def close(self) -> None:
        super().close()
        self._transactions.close()
        self._groups.close()

    def _begin(self) -> None:
        if self._is_stopped:
            self.state = IDLE
            return
        chance = self._chance
        self.transaction += 1
        self.state = OPEN
        self._goal = chance.randint(1, MOST_BATCHES)
        self._wants_commit = chance.random() < COMMITS
        self._has_begun = self._is_broken = self._is_committing = False
        self._watch.on_began(self)
        self._agenda.after(chance.uniform(0.5, 4.0), self._end_transaction, self.transaction)

    def _make_batch(self) -> int:
        if self.state != OPEN or self._agenda.now < self._stalls_until:
            return self.batch_bytes
        self._goal -= 1
        size = super()._make_batch()
        if self._goal <= 0:
            self._end_transaction(self.transaction)
        return size

    def _end_transaction(self, number: int) -> None:
        """The application wants it to end, unless it has already."""
        if number != self.transaction or self.state != OPEN:
            return
        if self._agenda.now < self._stalls_until:
            self._agenda.at(self._stalls_until, self._end_transaction, number)
            return
        self.state = ENDING
        if not self._wants_commit:
            self._drop_unsent()
        self._finish_transaction()

    def _drop_unsent(self) -> None:
        """Those that have no sequence number yet: one that has would leave a gap."""
        for queue in self._queues.values():
            kept = [pending for pending in queue.waiting if pending.batch.producer >= 0]
            dropped = [pending for pending in queue.waiting if pending.batch.producer < 0]
            queue.waiting = deque(kept)
            for pending in dropped:
                self._finish(pending, is_acknowledged=False)

    def _drop_waiting(self) -> None:
        for queue in self._queues.values():
            while queue.waiting:
                self._finish(queue.waiting.popleft(), is_acknowledged=False)

    def _finish(self, pending: _Pending, *, is_acknowledged: bool = True) -> None:
        super()._finish(pending, is_acknowledged=is_acknowledged)
        if self.state == ENDING and not self.pending_bytes:
            self._agenda.after(0.0, self._finish_transaction)

    def _break(self) -> None:
        """Something failed for good: the transaction can only be aborted."""
        if self.state not in (OPEN, ENDING):
            return
        self._is_broken, self.state = True, ENDING
        self._needs_epoch = True
        self._wanted.clear()
        self._drop_waiting()
        self._finish_transaction()

    def _finish_transaction(self) -> None:
        if self.state != ENDING or self.pending_bytes or self._is_asked or self._is_adding:
            return
        self._is_asked = True
        self._is_committing = self._wants_commit and not self._is_broken
        if not self._has_begun:
            self._ended("committed" if self._is_committing else "aborted", (-1, -1))
            return
        if self._is_committing and self._chance.random() < WITH_OFFSETS:
            self._send_offsets()
        else:
            self._send_end()

    # --- coordinators -------------------------------------------------------------------------------------------------

    def _send_offsets(self) -> None:
        """As an application that reads, and commits what it has read together with what it writes."""
        version = self.speech.add

        def on_added(frame: bytes) -> int:
            error, _ = txn.decode_error_answer(wire.ADD_OFFSETS, version, frame)
            if not error:
                self._groups.ask(_Call(commit, on_committed))
            return self._check(error)

        def commit(correlation: int) -> bytes:
            place, offset = self._partitions[0], self.transaction
            return txn.encode_offset_commit(3, correlation, self.client_id, self._who, self.group, place, offset)

        def on_committed(frame: bytes) -> int:
            error = max(txn.decode_partition_errors(3, frame).values())
            if not error:
                self._send_end()
            return self._check(error)

        self._transactions.ask(
            _Call(
                lambda correlation: txn.encode_add_offsets(version, correlation, self.client_id, self._who, self.group),
                on_added,
            )
        )

    def _send_end(self) -> None:
        version, commits = self.speech.end, self._is_committing

        def then(frame: bytes) -> int:
            error, renewed = txn.decode_error_answer(wire.END_TXN, version, frame)
            if not error:
                self._ended("committed" if commits else "aborted", renewed)
            return self._check(error)

        self._transactions.ask(
            _Call(
                lambda correlation: txn.encode_end(version, correlation, self.client_id, self._who, commits=commits),
                then,
            )
        )

    def _ended(self, outcome: str, renewed: tuple[int, int]) -> None:
        self._watch.on_ended(self, outcome)
        self.committed += outcome == "committed"
        self.given_up += self._is_broken
        self._is_asked = False
        self._added.clear()
        if renewed[0] >= 0:
            self._take_identity(*renewed)
            self._begin()
        elif self._needs_epoch:
            self.state = STARTING
            self._ask_producer()
        else:
            self._begin()

    def _check(self, error: int) -> int:
        if error and error not in RETRIED | NOT_HERE:
            self._agenda.after(0.0, self._fail_for_good)
        return error

    def _fail_for_good(self) -> None:
        """Its producer is of no use any more."""
        if self.state == OVER:
            return
        if self.state in (OPEN, ENDING):
            was_committing = self._is_asked and self._is_committing
            self.given_up += 1
            for connection in self._connections.values():
                self._drop(connection, "closed")
            self._connections.clear()
            self._drop_waiting()
            self._watch.on_ended(self, "unknown" if was_committing else "aborted")
        self._transactions.close()
        self._groups.close()
        self._added.clear()
        self._wanted.clear()
        self._producer = -1, -1
        self._is_adding = self._is_asked = self._resets = self._needs_epoch = False
        self.state = OVER if self.is_replaced else STARTING
        if self._is_stopped and self.state == STARTING:
            self.state = IDLE
        if self.state == STARTING:
            self._agenda.after(RESTART_S, self._ask_producer)

    def _ask_producer(self) -> None:
        if self.state != STARTING or self._is_asked:
            return
        self._is_asked = True
        version, producer = self.speech.init, self._producer

        def then(frame: bytes) -> int:
            producer, epoch = wire.decode_init_producer_id_answer(version, frame)
            if producer < 0:
                return self._check(epoch)
            self._is_asked = self._needs_epoch = False
            self._take_identity(producer, epoch)
            self._begin()
            return 0

        self._transactions.ask(
            _Call(
                lambda correlation: wire.encode_init_producer_id(
                    version, correlation, self.client_id, self.transactional_id, self._timeout_ms, *producer
                ),
                then,
            )
        )

    def _take_identity(self, producer: int, epoch: int) -> None:
        self._producer = producer, epoch
        self._watch.on_identified(self, self.transactional_id or "", producer, epoch)
        for queue in self._queues.values():
            queue.sequence = 0

    def _take(self, queue: _Queue, now: float) -> _Pending | None:
        waiting = queue.waiting
        if self._is_broken or not waiting:
            return None
        place = (waiting[0].topic, waiting[0].index)
        is_in = self.speech.is_implicit or place in self._added
        if not is_in and now - waiting[0].created <= self.profile.delivery_timeout_s:
            self._wanted[place] = None
            self._agenda.after(0.0, self._add_partitions)
            return None
        pending = super()._take(queue, now)
        self._has_begun = self._has_begun or pending is not None
        return pending

    def _add_partitions(self) -> None:
        if self._is_adding or not self._wanted or self._is_broken:
            return
        places, version = list(self._wanted), self.speech.add
        self._wanted.clear()
        self._is_adding = self._has_begun = True

        def then(frame: bytes) -> int:
            errors = txn.decode_partition_errors(version, frame)
            error = next((each for each in errors.values() if each not in (0, 55)), 0)
            if self._check(error) in RETRIED | NOT_HERE:
                return error
            self._is_adding = False
            if not error:
                self._added.update(places)
                for place in places:
                    self._send_partition(place)
                self._add_partitions()
                if self.state == ENDING:
                    self._agenda.after(0.0, self._finish_transaction)
            return error

        self._transactions.ask(
            _Call(
                lambda correlation: txn.encode_add_partitions(version, correlation, self.client_id, self._who, places),
                then,
            )
        )

    # --- what becomes of a batch --------------------------------------------------------------------------------------

    def _may_retry(self, pending: _Pending, error: int) -> bool:
        if self._is_broken:
            return False
        if error in BROKEN:
            queue = self._queues[pending.topic, pending.index]
            earlier = (each.batch.sequence for each in (*queue.sent, *queue.waiting) if each.batch.producer >= 0)
            return error == OUT_OF_ORDER and min(earlier, default=pending.batch.sequence) < pending.batch.sequence
        return super()._may_retry(pending, error)

    def _retry(self, pending: _Pending, error: int) -> None:
        if error in (CONCURRENT, OUT_OF_ORDER):  # a broker that still ends the transaction before, and what came behind
            self.sent_bytes -= pending.batch.size  # Kafka's own, which the judge doesn't ask of the gateway
        super()._retry(pending, error)

    def _ask_reset(self) -> None:
        self._resets = False
        self._break()
