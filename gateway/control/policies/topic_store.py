# The compacted topic in which changes of policies are kept: all gateways read it, any of them writes.
#
# Every gateway reads it from its beginning, in its order, and only what was committed. Before a change is judged, a
# transaction has begun that ends everybody else's (transactions.py), and everything up to the end has been read: so a
# change is judged by the very state that it alters. Only partition 0 is used.
#
# When the topic is gone, what was known last stays, and changes are refused; into a new, empty one of the same name the
# gateway writes what it has. Blocking, for threads: one at a time. Knows no worker and no door.

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from gateway.control.policies.store import Decide, InDoubtError, StoreError, Written
from gateway.control.policies.topic_log import TopicLog
from gateway.control.policies.transactions import HOPELESS, POLL_S, Again, Transactions, failure
from gateway.kafka.describe import NO_TOPIC
from gateway.kafka.internal_topic import (
    CREATE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    RETRY_S,
    Essential,
    InternalTopic,
    Present,
    Spec,
    TopicError,
    Troubles,
    Unreachable,
)
from policies.definitions.policy_records import Head, InvalidPolicyRecord, Past, Source, encode
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import Values
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.policy")
_silent: Final = logging.getLogger("gateway.policy.librdkafka")  # being fenced is daily life here, and no FATAL
_silent.addHandler(logging.NullHandler())
_silent.propagate = False

WRITE_TIMEOUT_S: Final = 30.0  # the first transaction of a cluster creates the topic that Kafka keeps them in
FETCH_WAIT_MS: Final = 100  # the end is told by a fetch that brings nothing: a writer may wait for one
BACKOFF_S: Final = 0.1
MAX_COMPLAINTS: Final = 20
# A removal must outlast any gateway that doesn't see it: a week. Few records: segments end early, or nothing would ever
# be compacted.
SPEC: Final = Spec(
    {
        "cleanup.policy": "compact",
        "segment.ms": "3600000",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "604800000",
    },
    Essential("cleanup.policy", ("compact",), "policies in it are forgotten"),
)


class TopicStore:
    """The compacted topic. Constructing it connects to nothing.

    Args:
        properties: librdkafka's, `bootstrap.servers` among them.
        base: the configuration file's values.
        replication: copies of a topic that has to be created; None = 3, or the number of brokers where that is less.
        member: this gateway's name.
    """

    follows = True

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        base: Values,
        *,
        replication: int | None = None,
        member: str = "produce-gateway",
    ) -> None:
        self.policies = PolicySet(base)
        self.history: Sequence[Past] = ()
        self.loaded = False
        self.invalid = 0  # records that could not be used, so far
        self._restorer = Source(member, "restored")
        properties = {"log_level": 2, "reconnect.backoff.max.ms": 2000, "logger": _silent, **properties}
        self._topic = InternalTopic(properties, topic, SPEC, replication)
        self._troubles = Troubles(log, "policies")
        self._expect_to_read()
        self._consumer = Consumer(
            {
                "group.id": "produce-gateway-policies",  # librdkafka wants one; it is neither joined nor committed to
                **properties,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "error_cb": self._topic.note_error,
            }
        )
        self._writer = Transactions(properties, topic)
        self._guard = threading.Lock()
        self._log = TopicLog()
        self._topic_id: object = None
        self._lost = False
        self._save_at: float | None = None  # the topic is a new and empty one: what is known has to be written into it
        self._mine = ""  # token of what is or was written here last
        self._said = ""  # by a fetch, last
        self._closed = False

    @property
    def problem(self) -> str:
        return self._troubles.problem

    def poll(self, timeout_s: float) -> None:
        with self._guard:
            if self._closed:
                return
            if self._topic.is_due:
                self._look()
            self._read(timeout_s)
            if self._save_at is not None and time.monotonic() >= self._save_at:
                try:
                    self._write(None, self._restorer, timeout_s=REQUEST_TIMEOUT_S)
                except StoreError as error:
                    self._save_at = time.monotonic() + RETRY_S
                    self._troubles.complain(
                        "unsaved", f"the known policies can't be written into topic {self._topic.name} again: {error}"
                    )

    def write(self, decide: Decide, source: Source) -> Written:
        with self._guard:
            return self._write(decide, source, timeout_s=WRITE_TIMEOUT_S)

    def rebase(self, base: Values) -> None:
        with self._guard:
            self.policies = self.policies.rebased(base)

    def close(self) -> None:
        if self._guard.acquire(timeout=1.0):  # else a call still waits for a broker, and ends with the process
            self._closed = True
            self._writer.close()
            self._consumer.close()
            self._guard.release()

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write(self, decide: Decide | None, source: Source, timeout_s: float) -> Written:
        """`decide` None: only write the changes that a new topic lacks."""
        deadline = time.monotonic() + timeout_s
        token = self._mine = secrets.token_hex(8)
        written: Written | None = None
        pause = BACKOFF_S
        while True:
            self._look()
            if self.problem and self._troubles.kind != "unsaved":
                raise StoreError(self.problem)
            try:
                self._writer.open(deadline)
                self._catch_up(deadline)
                if written is not None and token in self._log.tokens:
                    return written  # the answer to the commit got lost, the commit did not
                if self._save_at is not None:
                    self._save(deadline)
                before = self.policies
                after = before if decide is None else decide(before)
                written = Written(before, after, after.changes_since(before))
                if not written.changes:
                    return written
                head = self._head(after.version, token, source, written)
                self._writer.commit(encode(written.changes, head, self._log.held), deadline)
            except Again as reason:
                self._writer.close()
                if time.monotonic() + pause > deadline:
                    why = f"topic {self._topic.name} can't be written: {reason}"
                    if written is not None:
                        raise InDoubtError(f"{why}; if it was written all the same, it will show") from reason
                    raise StoreError(why) from reason
                time.sleep(random.uniform(0, pause))  # noqa: S311  (no secret): two who fence each other must part
                pause = min(2 * pause, RETRY_S)
                continue
            while token not in self._log.tokens and time.monotonic() < deadline:
                self._read(POLL_S)
            if token not in self._log.tokens:
                self.policies = after  # it is committed, and no other gateway can have written since; reading goes on
            return written

    def _save(self, deadline: float) -> None:
        """Write all that is known into an empty topic."""
        kept = self.policies
        empty = PolicySet(kept.base)
        lacking = Written(empty, kept, kept.changes_since(empty))
        head = self._head(kept.version + 1, secrets.token_hex(8), self._restorer, lacking)
        self._writer.commit(encode(lacking.changes, head), deadline)
        self._save_at = None
        self._catch_up(deadline)
        log.warning("policies: wrote the %d values known into the new topic %s", len(lacking.changes), self._topic.name)

    def _head(self, version: int, token: str, source: Source, written: Written) -> Head:
        return Head(version, token, time.time_ns() // 10**6, source, len(written.changes))

    def _catch_up(self, deadline: float) -> None:
        """Read to the present end of the committed records, and take them over."""
        partition = TopicPartition(self._topic.name, 0)
        try:  # not by the consumer, whose connection is busy with a fetch
            asked = self._topic.admin.list_offsets(
                {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )
            end = asked[partition].result(timeout=CREATE_TIMEOUT_S).offset
        except KafkaException as error:
            raise failure(error.args[0], self._topic.name) from error
        except TimeoutError as error:
            raise Again("no answer") from error
        while not self._log.caught_up or self._log.is_fresh or self._log.end < end:
            if time.monotonic() > deadline:
                raise Again(self._said or "its records could not be read in time")
            self._read(POLL_S)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, timeout_s: float) -> None:
        message = self._consumer.poll(timeout_s)
        while message is not None:
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._log.reach_end(message.offset() or 0)
            elif error.code() in NO_TOPIC:
                self._topic.hurry()
            elif error.code() not in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN):
                self._said = error.str()
                if error.code() in HOPELESS:
                    self._troubles.complain("unreadable", f"topic {self._topic.name} can't be read: {error.str()}")
            message = self._consumer.poll(0)
        if self._log.settles():
            self._settle()

    def _take(self, message: Message) -> None:
        try:
            headers = dict(cast("Iterable[tuple[str, bytes]]", message.headers() or ()))
            record = _bytes(message.key()), _bytes(message.value()), headers.get("audit")
            self._log.take(*record, message.offset() or 0)
        except InvalidPolicyRecord as error:
            self.invalid += 1
            if self.invalid <= MAX_COMPLAINTS:
                why = one_line(str(error), ERROR_CHARS)
                log.warning("policies: topic %s, offset %s is left out: %s", self._topic.name, message.offset(), why)

    def _settle(self) -> None:
        """All that was read is whole transactions: take it over."""
        if self._save_at is not None and not self._log.is_fresh:
            return
        is_fresh, heads = self._log.is_fresh, self._log.take_over()
        if not self.loaded or is_fresh:
            self._save_at = None
            held, version = self._log.held, self._log.version
            self.policies = PolicySet.read(self.policies.base, held.values(), version).succeeding(self.policies)
            self.history = tuple(self._log.past)
            if not self.loaded:
                log.info("policies: topic %s holds %d values, version %d", self._topic.name, len(held), version)
            else:
                for head in heads:
                    if head.token != self._mine:
                        log.info("policies: version %d, %s", head.version, _described(head))
        self.loaded = True
        if self._troubles.kind in ("unread", "unreadable", "unsaved"):
            self._recover()

    # --- the topic itself ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask for the topic's id, and follow it."""
        found = self._topic.look()
        if isinstance(found, Unreachable):
            self._troubles.complain("down", f"topic {self._topic.name} can't be looked up: {found.why}")
        elif isinstance(found, Present):
            self._said = ""
            self._follow(found.topic_id)
            if self._troubles.kind in ("down", "lost"):
                self._recover()
        elif self._topic_id is not None or self._lost:
            self._lose()
        else:
            self._create()

    def _follow(self, topic_id: str) -> None:
        if topic_id == self._topic_id:
            return
        anew = self._lost or self._topic_id is not None
        if anew:
            log.warning("policies: topic %s was made anew; reading it from the beginning", self._topic.name)
        self._topic_id, self._lost = topic_id, False
        self._writer.close()
        self._log.begin_anew()
        self._save_at = 0.0 if anew and self.loaded and self.policies.changes else None
        self._consumer.assign([TopicPartition(self._topic.name, 0, OFFSET_BEGINNING)])
        if wrong := self._topic.judge():
            log.warning("policies: %s", wrong)

    def _lose(self) -> None:
        self._troubles.complain(
            "lost",
            f"topic {self._topic.name} was deleted; the last known policies stay: create it again, or restart a"
            " gateway, which does, and it writes the known policies into it",
        )
        if not self._lost:
            self._lost, self._topic_id = True, None
            self._consumer.unassign()
            self._writer.close()

    def _create(self) -> None:
        try:
            self._topic.create()
        except TopicError as error:
            self._troubles.complain("down", str(error))
        else:
            self._topic.hurry(POLL_S)

    def _expect_to_read(self) -> None:
        self._troubles.expect("unread", f"topic {self._topic.name} has not been read yet")

    def _recover(self) -> None:
        if not self.loaded:
            self._expect_to_read()
        else:
            first = self._troubles.kind == "unread"
            self._troubles.clear("" if first else f"topic {self._topic.name} can be read and written again")


def _described(head: Head) -> str:
    who, door, peer = map(one_line, head.source)
    return f"{head.changes} values, by {who} ({door}{' from ' + peer if peer else ''})"


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
