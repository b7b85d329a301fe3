# How the audit reaches a cluster without Java: clients of librdkafka by the Java client's properties, which are
# translated, or refused where librdkafka has no such thing; and what is said where brokers don't answer.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Uuid
from confluent_kafka.admin import AdminClient

from gateway.audit.errors import AuditError
from gateway.kafka.describe import NO_ANSWER_ERRORS, NO_TOPIC_ERRORS, describe_topic, make_admin_client
from gateway.kafka.java_properties import InvalidPropertiesFile, translate_properties, use_java_names

ANSWER_TIMEOUT_S: Final = 15.0  # how long brokers may take to answer, unless the properties say so
ATTEMPT_S: Final = 1.0  # after which errors of connections are looked at

_KAFKA_CHARACTERS: Final = str.maketrans("+/", "-_")

_Answer = TypeVar("_Answer")
_Client = TypeVar("_Client", Consumer, AdminClient)


class UntranslatableProperty(AuditError):
    """Java's client has it, librdkafka hasn't."""


class TopicIdentity(NamedTuple):
    """A topic, for as long as it exists: one made again under its name has another id."""

    topic_id: str  # as Kafka prints it
    partitions: int


class ClusterAccess:
    """How brokers are reached and trusted. `properties`: the Java client's, without the prefix "kafka.".

    Raises:
        UntranslatableProperty: one of them.
    """

    def __init__(self, bootstrap_servers: str, properties: Mapping[str, str]) -> None:
        self.servers = bootstrap_servers
        try:
            self.properties, timeout_s = translate_properties(properties)  # by librdkafka's names
        except InvalidPropertiesFile as error:
            raise UntranslatableProperty(str(error)) from None
        self.timeout_s = timeout_s or ANSWER_TIMEOUT_S
        self._failures: dict[int, str] = {}  # of connections, by code

    def open_client(self, make: Callable[[dict[str, Any]], _Client], settings: Mapping[str, Any]) -> _Client:
        """A client of librdkafka, which `make` makes of the properties and these settings.

        Raises:
            AuditError: a file can't be read, or librdkafka refuses a property.
        """
        self._failures.clear()
        for name, place in self.properties.items():
            if name.endswith(".location"):
                try:
                    Path(place).open("rb").close()
                except OSError as error:
                    raise AuditError(f"{use_java_names(name)}: {place}: {error.strerror}") from None
        given = {**self.properties, "bootstrap.servers": self.servers, "log_level": 2, **settings}
        if "ssl.certificate.location" in given:  # a keystore of Java's: the file has both
            given["ssl.key.location"] = given["ssl.certificate.location"]
        try:
            return make({**given, "error_cb": self._note_failure})
        except KafkaException as error:
            raise AuditError(f"{self.servers}: {error.args[0].str()}") from None

    def _note_failure(self, error: KafkaError) -> None:
        self._failures[error.code()] = " ".join(error.str().split())

    def ask(self, client: _Client, ask: Callable[[], _Answer]) -> _Answer:
        """The answer to a call that waits for ATTEMPT_S at most, until `timeout_s` have passed.

        Raises:
            KafkaException: there is none.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return ask()
            except KafkaException as error:
                client.poll(0)  # hands out what was wrong with connections
                is_hopeless = self._failures.keys() & {KafkaError._AUTHENTICATION, KafkaError._SSL}
                if error.args[0].code() not in NO_ANSWER_ERRORS or is_hopeless or time.monotonic() > deadline:
                    raise

    def explain_failure(self, error: KafkaError, timeout_s: float | None = None) -> str:
        """One line, without a secret. `timeout_s`: how long an answer was waited for, if not for the usual time."""
        if (why := self._failures.get(KafkaError._AUTHENTICATION)) is not None:
            return f"{self.servers} refuses our credentials ({why})"
        if (why := self._failures.get(KafkaError._SSL)) is not None:
            return (
                f"no TLS with {self.servers} ({why}): ssl.truststore.location has to hold the authority that signed the"
                " brokers' certificates"
            )
        if error.code() in NO_ANSWER_ERRORS:
            return (
                f"no answer from {self.servers} within {timeout_s or self.timeout_s:g} s: is it running, does"
                " security.protocol match, and can its advertised listeners be reached from here?"
            )
        return f"{self.servers}: {error.name()}: {' '.join(error.str().split())}"


def identify_topic(bootstrap_servers: str, topic: str, properties: Mapping[str, str]) -> TopicIdentity:
    """A topic as of now. `properties`: the Java client's.

    Raises:
        UntranslatableProperty: one of them.
        AuditError: no broker answers, no such topic, not allowed.
    """
    access = ClusterAccess(bootstrap_servers, properties)
    admin = access.open_client(make_admin_client, {})
    try:
        access.ask(admin, lambda: admin.list_topics(topic, timeout=ATTEMPT_S))  # tells what is wrong with connections
        found = describe_topic(admin, topic, access.timeout_s)
    except KafkaException as error:
        if error.args[0].code() in NO_TOPIC_ERRORS:
            raise AuditError(missing_topic_text(topic, bootstrap_servers)) from None
        raise AuditError(access.explain_failure(error.args[0])) from None
    except TimeoutError:
        raise AuditError(access.explain_failure(KafkaError(KafkaError._TIMED_OUT))) from None
    return TopicIdentity(read_topic_id(found.topic_id), len(found.partitions))


def missing_topic_text(topic: str, bootstrap_servers: str) -> str:
    """To say to a user who asks for a topic that isn't there."""
    return f"topic {topic} does not exist at {bootstrap_servers}"


def read_topic_id(topic_id: Uuid) -> str:
    """As Kafka prints it: librdkafka's text has two other characters."""
    return str(topic_id).translate(_KAFKA_CHARACTERS)
