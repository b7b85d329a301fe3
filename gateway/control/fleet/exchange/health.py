# Whether the exchange works: our own messages come back, or they don't. And the one complaint of what is wrong.
#
# Knows neither clients nor messages; the only I/O is a log line.

from __future__ import annotations

import logging
import time
from typing import Final

import trio
from confluent_kafka import KafkaError

from gateway.kafka.describe import NO_TOPIC_ERRORS
from gateway.kafka.internal_topic import TroubleLog, error_reason
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.fleet")

START_S: Final = 5.0  # a failure this soon after the start may only need time


class ExchangeHealth:
    """
    Attributes:
        is_up: our own messages come back.
        since: Unix time of the last change of `is_up`.
        topic_missing: set when a client says that there is no such topic; the task that looks for the topic replaces
            it.
    """

    def __init__(self, topic: str) -> None:
        self.is_up = False
        self.since = time.time()
        self.topic_missing = trio.Event()
        self._topic = topic
        self._trouble = ""
        self._troubles = TroubleLog(log, "exchange")
        self._troubles.note_expected("unread", f"topic {topic} has not been reached yet")
        self._patient_until = 0.0

    @property
    def problem(self) -> str:
        """The fault, one line; "" for none."""
        return self._troubles.problem

    def begin_grace(self, now: float) -> None:
        self._patient_until = now + START_S

    def record_failure(self, why: str) -> None:
        """Record a failure, which may be why messages don't come back."""
        self._trouble = why

    def record_kafka_error(self, error: KafkaError, what: str) -> None:
        """Record the error of a record or a message: the topic `what` …; on the event loop."""
        self.record_failure(f"topic {self._topic} {what}: {error_reason(error)}")
        if error.code() in NO_TOPIC_ERRORS:
            self.topic_missing.set()

    def on_error(self, error: KafkaError) -> None:
        """An error of any client (its `error_cb`), from any thread."""
        if not self.is_up and error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.record_failure(f"topic {self._topic} is not available: {error_reason(error)}")

    def update_state(self, *, is_heard: bool, has_begun: bool, is_overdue: bool, also: str, now: float) -> bool:
        """Whether `is_up` changes.

        Args:
            is_heard: our own messages come back.
            has_begun: something was reported on this topic.
            is_overdue: so long ago that it should have come back.
            also: another fault.
        """
        if is_heard:
            self._trouble = ""
        elif not self._trouble and is_overdue:
            self._trouble = f"messages on topic {self._topic} don't come back"
        if self._trouble or self.is_up or has_begun:
            self._show_problem("; ".join(text for text in (self._trouble, also) if text), now)
        if is_heard == self.is_up:
            return False
        self.is_up, self.since = is_heard, time.time()
        if is_heard:
            self._patient_until = now
        return True

    def _show_problem(self, text: str, now: float) -> None:
        problem = one_line(text, ERROR_CHARS)
        if problem == self.problem or (problem and now < self._patient_until):
            return
        if problem:
            self._troubles.report_trouble(problem, problem)
        else:
            self._troubles.clear_trouble(f"gateways hear each other on topic {self._topic}")
