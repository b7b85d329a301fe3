# A topic of the gateways' own: created where it is missing, looked up again and again, judged by its configuration. Its
# store follows it by its id: a topic that was deleted and made again is another one.
#
# Also the one policy of complaints: each kind of trouble is logged once, until all is well again.
#
# Blocking, for threads; only `poll_lookup` doesn't wait. Knows no record and no key: those are the store's.

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from gateway.kafka.client_files import RenewableClient
from gateway.kafka.describe import NO_TOPIC_ERRORS, describe_topic, make_admin_client
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.topics")

# how soon a deleted topic, one of its name that was made anew, and new partitions are seen
LOOKUP_INTERVAL_S: Final = 5.0
RETRY_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 5.0
CREATE_TIMEOUT_S: Final = 15.0
MAX_REPLICAS: Final = 3


class TopicError(Exception):
    """The topic is not available: one line, why."""


class EssentialConfig(NamedTuple):
    """A configuration without which the topic is of no use. `allowed`: the first is the one to set."""

    key: str
    allowed: tuple[str, ...]
    consequence: str  # what happens without it


class TopicSpec(NamedTuple):
    """The shape of a topic to make.

    Attributes:
        durable: with three copies or more, two of them must have a record (min.insync.replicas).
        repairs_config: settings that a topic lacks, since something else created it (perhaps Kafka itself), are set.
    """

    config: Mapping[str, str]
    essential: EssentialConfig | None = None
    partitions: int = 1
    durable: bool = True
    repairs_config: bool = False


class TopicPresent(NamedTuple):
    topic_id: str
    partitions: frozenset[int]


class TopicAbsent(NamedTuple):
    """The cluster says that it has no topic of that name."""


class TopicUnreachable(NamedTuple):
    """The cluster doesn't say. `why`: one line, the same as long as the reason is."""

    why: str


TopicLookup = TopicPresent | TopicAbsent | TopicUnreachable


class InternalTopic:
    """Constructing it connects to nothing.

    Args:
        properties: librdkafka's, `bootstrap.servers` among them.
        replication: copies of a topic that has to be created; None = 3, or the number of brokers where that is less.
    """

    def __init__(
        self, properties: Mapping[str, Any], name: str, spec: TopicSpec, replication: int | None = None
    ) -> None:
        self.name = name
        self._properties = {"error_cb": self.record_error, **properties}
        self._spec = spec
        self._replication = replication
        self._next_lookup_at = 0.0
        self._pending_lookup: Future[TopicLookup] | None = None
        self._last_error = ""  # by librdkafka, last

    @cached_property
    def _renewable_admin(self) -> RenewableClient[AdminClient]:
        return RenewableClient(self._properties, lambda: make_admin_client(self._properties))

    @property
    def admin(self) -> AdminClient:
        return self._renewable_admin.client

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def is_lookup_due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next_lookup_at

    def schedule_lookup(self, delay_s: float = 0.0) -> None:
        """Bring the next look forward."""
        self._next_lookup_at = min(self._next_lookup_at, time.monotonic() + delay_s)

    def record_error(self, error: KafkaError) -> None:
        """An error of any client that uses the topic (its `error_cb`)."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.schedule_lookup(RETRY_S)
        else:
            self._last_error = error_reason(error)

    def lookup_topic(self) -> TopicLookup:
        """Ask the cluster for it."""
        self._next_lookup_at = time.monotonic() + LOOKUP_INTERVAL_S
        try:
            self._renewable_admin.renew()
            described = describe_topic(self.admin, self.name, REQUEST_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            self._next_lookup_at = time.monotonic() + RETRY_S
            if isinstance(error, KafkaException) and error.args[0].code() in NO_TOPIC_ERRORS:
                return TopicAbsent()
            return TopicUnreachable(self._last_error or _error_text(error))
        self._last_error = ""
        return TopicPresent(str(described.topic_id), frozenset(partition.id for partition in described.partitions))

    def poll_lookup(self) -> TopicLookup | None:
        """Begin a look when it is due, without waiting; the result of one that is over, once, else None."""
        if self._pending_lookup is None and self.is_lookup_due:
            self._pending_lookup = Future()
            threading.Thread(
                target=self._complete_lookup, args=(self._pending_lookup,), name="topic", daemon=True
            ).start()
        if self._pending_lookup is None or not self._pending_lookup.done():
            return None
        found, self._pending_lookup = self._pending_lookup.result(), None
        return found

    @property
    def is_lookup_pending(self) -> bool:
        """Whether `poll_lookup` will have a result soon."""
        return self._pending_lookup is not None

    def _complete_lookup(self, looking: Future[TopicLookup]) -> None:
        try:
            looking.set_result(self.lookup_topic())
        except BaseException as error:
            looking.set_exception(error)

    # --- making and judging -------------------------------------------------------------------------------------------

    def lookup_or_create(self) -> TopicPresent | TopicAbsent:
        """The topic, created if there is none; TopicAbsent: it is on its way.

        Raises:
            TopicError: it can't be had.
        """
        found = self.lookup_topic()
        if isinstance(found, TopicAbsent):
            self.create_topic()
            found = self.lookup_topic()
        if isinstance(found, TopicUnreachable):
            raise TopicError(f"topic {self.name} is not available: {found.why}")
        return found

    def ensure_topic(self) -> str:
        """Create it if there is none; blocks for up to 30 s. Returns the result of `find_config_fault`.

        Raises:
            TopicError: there is no topic after this.
        """
        self.lookup_or_create()
        return self.find_config_fault()

    def create_topic(self) -> None:
        """Create it; fine as well if another gateway was quicker.

        Raises:
            TopicError: there is no topic after this.
        """
        try:
            copies = self._replication or min(
                MAX_REPLICAS, len(self.admin.list_topics(timeout=REQUEST_TIMEOUT_S).brokers)
            )
            config = dict(self._spec.config)
            if self._spec.durable and copies >= MAX_REPLICAS:
                config["min.insync.replicas"] = "2"
            new = NewTopic(self.name, self._spec.partitions, copies, config=config)
            self.admin.create_topics([new])[self.name].result(timeout=CREATE_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            raise TopicError(f"topic {self.name} is not available: {_error_text(error)}") from error
        settings = ", ".join(f"{key}={value}" for key, value in config.items())
        log.info("topic %s created: %d partitions, %d replicas, %s", self.name, self._spec.partitions, copies, settings)

    def find_config_fault(self) -> str:
        """The fault of its configuration, one line with the right value; "" also without the right to read it."""
        essential = self._spec.essential
        if essential is None and not self._spec.repairs_config:
            return ""
        resource = ConfigResource(ResourceType.TOPIC, self.name)
        try:
            asked = self.admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
            found = asked.result(timeout=CREATE_TIMEOUT_S)
            if self._spec.repairs_config and self._repair_config(found):
                return ""
        except (KafkaException, TimeoutError) as error:
            log.debug("configuration of topic %s: %s", self.name, error)
            return ""
        if essential is None or essential.key not in found or found[essential.key].value in essential.allowed:
            return ""
        key, right = essential.key, essential.allowed[0]
        return (
            f"topic {self.name} has {key}={found[key].value}, so {essential.consequence}:"
            f" kafka-configs.sh --alter --topic {self.name} --add-config {key}={right}"
        )

    def _repair_config(self, found: Mapping[str, Any]) -> bool:
        """Whether something had to be set."""
        missing = {
            key: value
            for key, value in self._spec.config.items()
            if key in found
            and found[key].value != value
            and found[key].source != ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }
        if missing:
            entries = [
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in missing.items()
            ]
            wanted = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
            asked = self.admin.incremental_alter_configs([wanted], request_timeout=REQUEST_TIMEOUT_S)[wanted]
            asked.result(timeout=CREATE_TIMEOUT_S)
            log.info("topic %s: set %s", self.name, ", ".join(f"{key}={value}" for key, value in missing.items()))
        return bool(missing)


class TroubleLog:
    """The present trouble of something. Each kind is logged once, until all is well again.

    Attributes:
        kind, problem: of the last one; "" for none.
    """

    def __init__(self, logger: logging.Logger, area: str) -> None:
        self.kind = self.problem = ""
        self._log = logger
        self._area = area
        self._logged_kinds: set[str] = set()

    def note_expected(self, kind: str, problem: str) -> None:
        """Note a trouble of every start, without a warning."""
        self._logged_kinds.clear()
        self.kind, self.problem = kind, problem

    def report_trouble(self, kind: str, text: str) -> None:
        self.kind, self.problem = kind, one_line(text, ERROR_CHARS)
        if kind not in self._logged_kinds:
            self._logged_kinds.add(kind)
            self._log.warning("%s: %s", self._area, self.problem)

    def clear_trouble(self, text: str) -> None:
        """All is well; `text` is logged if something was wrong before."""
        if self.problem and text:
            self._log.info("%s: %s", self._area, text)
        self.kind = self.problem = ""
        self._logged_kinds.clear()


def error_reason(error: KafkaError) -> str:
    """The text of librdkafka, without the milliseconds that it took: they would make another complaint each time."""
    return re.sub(r" \(after (?:[^()]|\(s\))*\)", "", error.str())


def is_fatal(error: KafkaError) -> bool:
    """Whether the client that has it is of no use any more. librdkafka raises the error once, out of whatever call
    polls the client; from then on producing fails with _FATAL, which isn't marked as fatal itself.
    """
    return error.fatal() or error.code() == KafkaError._FATAL


def _error_text(error: KafkaException | TimeoutError) -> str:
    return error_reason(error.args[0]) if isinstance(error, KafkaException) else "no answer"
