# The compacted topic in which changes of policies are kept: all gateways read it, any of them writes.
#
# Every gateway reads it from its beginning, in its order, and only what was committed. Before a change is judged, a
# transaction has begun that ends all others' (transactions.py), and everything up to the end has been read: so a
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
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from gateway.control.policies.store import Decide, InDoubtError, StoreError, WrittenChange
from gateway.control.policies.topic_log import PolicyTopicLog
from gateway.control.policies.transactions import (
    HOPELESS,
    POLL_S,
    PolicyTransactions,
    RetryableFailure,
    translate_error,
)
from gateway.kafka.client_files import RenewableClient
from gateway.kafka.describe import NO_TOPIC_ERRORS
from gateway.kafka.internal_topic import (
    CREATE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    RETRY_S,
    EssentialConfig,
    InternalTopic,
    TopicError,
    TopicPresent,
    TopicSpec,
    TopicUnreachable,
    TroubleLog,
    error_reason,
)
from gateway.kafka.topic_consumer import IGNORED_READ_ERRORS, make_topic_consumer
from policies.definitions.policy_records import (
    AlterationHead,
    ChangeSource,
    InvalidPolicyRecord,
    PastChange,
    encode_alteration,
)
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyValues
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.policy")
_silent: Final = logging.getLogger("gateway.policy.librdkafka")  # being fenced is daily life here, and no FATAL
_silent.addHandler(logging.NullHandler())
_silent.propagate = False

WRITE_TIMEOUT_S: Final = 30.0  # the first transaction of a cluster creates the topic that Kafka keeps them in
READING: Final = {
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,  # a fetch that brings nothing shows the end: a writer may wait for one
}
BACKOFF_S: Final = 0.1
MAX_COMPLAINTS: Final = 20
# A removal must outlast any gateway that doesn't see it: a week. Few records: segments end early, or nothing would ever
# be compacted.
SPEC: Final = TopicSpec(
    {
        "cleanup.policy": "compact",
        "segment.ms": "3600000",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "604800000",
    },
    EssentialConfig("cleanup.policy", ("compact",), "policies in it are forgotten"),
)


class TopicStore:
    """The compacted topic. Constructing it connects to nothing.

    Args:
        properties: librdkafka's, `bootstrap.servers` among them.
        base: the configuration file's values.
        replication: copies of a topic that has to be created; None = 3, or the number of brokers where that is less.
        member: this gateway's name.
    """

    has_other_writers = True

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        base: PolicyValues,
        *,
        replication: int | None = None,
        member: str = "produce-gateway",
    ) -> None:
        self.policies = PolicySet(base)
        self.history: Sequence[PastChange] = ()
        self.is_loaded = False
        self.invalid = 0  # records that could not be used, so far
        self._restorer = ChangeSource(member, "restored")
        properties = {"log_level": 2, "reconnect.backoff.max.ms": 2000, "logger": _silent, **properties}
        self._topic = InternalTopic(properties, topic, SPEC, replication)
        self._troubles = TroubleLog(log, "policies")
        self._expect_to_read()
        record_error = self._topic.record_error
        self._consumer = RenewableClient(
            properties, lambda: make_topic_consumer(properties, "produce-gateway-policies", record_error, READING)
        )
        self._writer = PolicyTransactions(properties, topic)
        self._guard = threading.Lock()
        self._log = PolicyTopicLog()
        self._topic_id: object = None
        self._lost = False
        self._save_at: float | None = None  # the topic is a new and empty one: what is known has to be written into it
        self._own_token = ""  # token of what is or was written here last
        self._last_error = ""  # by a fetch, last
        self._closed = False

    @property
    def problem(self) -> str:
        return self._troubles.problem

    def poll_changes(self, timeout_s: float) -> None:
        with self._guard:
            if self._closed:
                return
            if self._topic.is_lookup_due:
                self._check_topic()
            self._read_messages(timeout_s)
            if self._save_at is not None and time.monotonic() >= self._save_at:
                try:
                    self._write_change(None, self._restorer, timeout_s=REQUEST_TIMEOUT_S)
                except StoreError as error:
                    self._save_at = time.monotonic() + RETRY_S
                    self._troubles.report_trouble(
                        "unsaved", f"the known policies can't be written into topic {self._topic.name} again: {error}"
                    )

    def write_change(self, decide: Decide, source: ChangeSource) -> WrittenChange:
        with self._guard:
            return self._write_change(decide, source, timeout_s=WRITE_TIMEOUT_S)

    def replace_base(self, base: PolicyValues) -> None:
        with self._guard:
            self.policies = self.policies.with_base(base)

    def close(self) -> None:
        if self._guard.acquire(timeout=1.0):  # else a call still waits for a broker, and ends with the process
            self._closed = True
            self._writer.close()
            self._consumer.client.close()
            self._guard.release()

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write_change(self, decide: Decide | None, source: ChangeSource, timeout_s: float) -> WrittenChange:
        """`decide` None: only write the changes that a new topic lacks."""
        deadline = time.monotonic() + timeout_s
        token = self._own_token = secrets.token_hex(8)
        written: WrittenChange | None = None
        pause = BACKOFF_S
        while True:
            self._check_topic()
            if self.problem and self._troubles.kind != "unsaved":
                raise StoreError(self.problem)
            try:
                self._writer.open(deadline)
                self._catch_up(deadline)
                if written is not None and token in self._log.tokens:
                    return written  # the answer to the commit got lost, the commit did not
                if self._save_at is not None:
                    self._save_known(deadline)
                before = self.policies
                after = before if decide is None else decide(before)
                written = WrittenChange(before, after, after.changes_since(before))
                if not written.changes:
                    return written
                head = self._make_head(after.version, token, source, written)
                self._writer.commit(encode_alteration(written.changes, head, self._log.entries), deadline)
            except RetryableFailure as reason:
                self._writer.close()
                if time.monotonic() + pause > deadline:
                    why = f"topic {self._topic.name} can't be written: {reason}"
                    if written is not None:
                        self._own_token = ""  # nobody else will log it, if it is there
                        raise InDoubtError(f"{why}; if it was written all the same, it will show") from reason
                    raise StoreError(why) from reason
                time.sleep(random.uniform(0, pause))  # noqa: S311  (no secret): two who fence each other must part
                pause = min(2 * pause, RETRY_S)
                continue
            while token not in self._log.tokens and time.monotonic() < deadline:
                self._read_messages(POLL_S)
            if token not in self._log.tokens:
                self.policies = after  # it is committed, and no other gateway can have written since; reading goes on
            return written

    def _save_known(self, deadline: float) -> None:
        """Write all known values into an empty topic."""
        kept = self.policies
        empty = PolicySet(kept.base)
        lacking = WrittenChange(empty, kept, kept.changes_since(empty))
        head = self._make_head(kept.version + 1, secrets.token_hex(8), self._restorer, lacking)
        self._writer.commit(encode_alteration(lacking.changes, head), deadline)
        self._save_at = None
        self._catch_up(deadline)
        log.warning("policies: wrote the %d known values into the new topic %s", len(lacking.changes), self._topic.name)

    def _make_head(self, version: int, token: str, source: ChangeSource, written: WrittenChange) -> AlterationHead:
        return AlterationHead(version, token, time.time_ns() // 10**6, source, len(written.changes))

    def _catch_up(self, deadline: float) -> None:
        """Read to the present end of the committed records, and apply them."""
        partition = TopicPartition(self._topic.name, 0)
        try:  # not by the consumer, whose connection is busy with a fetch
            asked = self._topic.admin.list_offsets(
                {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )
            end = asked[partition].result(timeout=CREATE_TIMEOUT_S).offset
        except KafkaException as error:
            raise translate_error(error.args[0], self._topic.name) from error
        except TimeoutError as error:
            raise RetryableFailure("no answer") from error
        while not self._log.caught_up or self._log.is_fresh or self._log.end_offset < end:
            if time.monotonic() > deadline:
                raise RetryableFailure(self._last_error or "its records could not be read in time")
            self._read_messages(POLL_S)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _replace_consumer(self) -> None:
        """
        Raises:
            TopicError: there can be no other one just now.
        """
        former = self._consumer.client
        try:
            self._consumer.replace()
        except KafkaException as error:
            raise TopicError(f"topic {self._topic.name} can't be read: {error_reason(error.args[0])}") from error
        former.close()

    def _read_messages(self, timeout_s: float) -> None:
        unreadable = ""
        consumer = self._consumer.client
        message = consumer.poll(timeout_s)
        while message is not None:
            error = message.error()
            if error is None:
                self._add_message(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._log.reach_end(message.offset() or 0)
            elif error.code() in NO_TOPIC_ERRORS:
                self._topic.schedule_lookup()
            elif error.code() not in IGNORED_READ_ERRORS:
                self._last_error = error.str()
                if error.code() in HOPELESS:
                    unreadable = error.str()
            message = consumer.poll(0)
        if self._log.check_settled():
            self._apply_records()
        if unreadable:  # whatever was read before it: librdkafka says it once
            self._troubles.report_trouble("unreadable", f"topic {self._topic.name} can't be read: {unreadable}")

    def _add_message(self, message: Message) -> None:
        try:
            headers = dict(cast("Iterable[tuple[str, bytes]]", message.headers() or ()))
            record = _as_bytes(message.key()), _as_bytes(message.value()), headers.get("audit")
            self._log.add_record(*record, message.offset() or 0)
        except InvalidPolicyRecord as error:
            self.invalid += 1
            if self.invalid <= MAX_COMPLAINTS:
                why = one_line(str(error), ERROR_CHARS)
                log.warning("policies: topic %s, offset %s is left out: %s", self._topic.name, message.offset(), why)

    def _apply_records(self) -> None:
        """All records read are whole transactions: apply them."""
        if self._save_at is not None and not self._log.is_fresh:
            return
        is_fresh, heads = self._log.is_fresh, self._log.accept_records()
        if not self.is_loaded or is_fresh:
            self._save_at = None
            held, version = self._log.entries, self._log.version
            self.policies = PolicySet.from_entries(self.policies.base, held.values(), version).inherit_quotas(
                self.policies
            )
            self.history = tuple(self._log.past)
            if not self.is_loaded:
                log.info("policies: topic %s holds %d values, version %d", self._topic.name, len(held), version)
            else:
                for head in heads:
                    if head.token != self._own_token:
                        log.info("policies: version %d, %s", head.version, _head_text(head))
        self.is_loaded = True
        if self._troubles.kind in ("unread", "unreadable", "unsaved"):
            self._clear_trouble()

    # --- the topic itself ---------------------------------------------------------------------------------------------

    def _check_topic(self) -> None:
        """Query the topic's id, and follow it."""
        found = self._topic.lookup_topic()
        if isinstance(found, TopicUnreachable):
            self._troubles.report_trouble("down", f"topic {self._topic.name} can't be looked up: {found.why}")
        elif isinstance(found, TopicPresent):
            self._last_error = ""
            try:
                self._follow_topic(found.topic_id)
            except TopicError as error:
                self._topic.schedule_lookup(RETRY_S)
                self._troubles.report_trouble("down", str(error))
                return
            former = self._consumer.client
            is_renewed = self._consumer.renew()
            if is_renewed:
                former.close()
            # Else nothing is heard of the end of that, unless others write.
            if is_renewed or self._troubles.kind == "unreadable":
                read_to = self._log.end_offset
                self._assign_topic(OFFSET_BEGINNING if read_to < 0 else read_to)
            if self._troubles.kind in ("down", "lost"):
                self._clear_trouble()
        elif self._topic_id is not None or self._lost:
            self._mark_lost()
        else:
            self._create_topic()

    def _follow_topic(self, topic_id: str) -> None:
        """
        Raises:
            TopicError: it was recreated and can't be read just now; nothing has changed.
        """
        if topic_id == self._topic_id:
            return
        anew = self._lost or self._topic_id is not None
        if anew:
            self._replace_consumer()
            log.warning("policies: topic %s was recreated; reading it from the beginning", self._topic.name)
        self._topic_id, self._lost = topic_id, False
        self._writer.close()
        self._log.begin_anew()
        self._save_at = 0.0 if anew and self.is_loaded and self.policies.changes else None
        self._assign_topic(OFFSET_BEGINNING)
        if wrong := self._topic.find_config_fault():
            log.warning("policies: %s", wrong)

    def _assign_topic(self, offset: int) -> None:
        self._consumer.client.assign([TopicPartition(self._topic.name, 0, offset)])

    def _mark_lost(self) -> None:
        self._troubles.report_trouble(
            "lost",
            f"topic {self._topic.name} was deleted; the last known policies stay: create it again, with"
            " cleanup.policy=compact, and they are written into it; a restart of the only gateway would lose them",
        )
        if not self._lost:
            self._lost, self._topic_id = True, None
            self._consumer.client.unassign()
            self._writer.close()

    def _create_topic(self) -> None:
        try:
            self._topic.create_topic()
        except TopicError as error:
            self._troubles.report_trouble("down", str(error))
        else:
            self._topic.schedule_lookup(POLL_S)

    def _expect_to_read(self) -> None:
        self._troubles.note_expected("unread", f"topic {self._topic.name} has not been read yet")

    def _clear_trouble(self) -> None:
        if not self.is_loaded:
            self._expect_to_read()
        else:
            first = self._troubles.kind == "unread"
            self._troubles.clear_trouble("" if first else f"topic {self._topic.name} can be read and written again")


def _head_text(head: AlterationHead) -> str:
    who, door, peer = map(one_line, head.source)
    return f"{head.changes} values, by {who or 'unknown'} ({door}{' from ' + peer if peer else ''})"


def _as_bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
