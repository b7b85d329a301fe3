# Whether the exchange works: our own messages come back, or they don't. And the one complaint of what is wrong.
#
# Knows neither clients nor messages; the only I/O is a log line.

from __future__ import annotations

import logging
import time
from typing import Final

import trio
from confluent_kafka import KafkaError

from gateway.kafka.describe import NO_TOPIC
from gateway.kafka.internal_topic import Troubles, reason
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.fleet")

START_S: Final = 5.0  # a failure this soon after the start may only need time


class Health:
    """
    Attributes:
        up: our own messages come back.
        since: Unix time of the last change of `up`.
        missing: set when a client says that there is no such topic; the task that looks for the topic replaces it.
    """

    def __init__(self, topic: str) -> None:
        self.up = False
        self.since = time.time()
        self.missing = trio.Event()
        self._topic = topic
        self._trouble = ""
        self._troubles = Troubles(log, "exchange")
        self._troubles.expect("unread", f"topic {topic} has not been reached yet")
        self._patient_until = 0.0

    @property
    def problem(self) -> str:
        """The fault, one line; "" for none."""
        return self._troubles.problem

    def begin(self, now: float) -> None:
        self._patient_until = now + START_S

    def fail(self, why: str) -> None:
        """Something doesn't work, and may be the reason why messages don't come back."""
        self._trouble = why

    def fail_by(self, error: KafkaError, what: str) -> None:
        """The same, of a record or a message: the topic `what` …; on the event loop."""
        self.fail(f"topic {self._topic} {what}: {reason(error)}")
        if error.code() in NO_TOPIC:
            self.missing.set()

    def on_error(self, error: KafkaError) -> None:
        """An error of any client (its `error_cb`), from any thread."""
        if not self.up and error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.fail(f"topic {self._topic} can't be had: {reason(error)}")

    def judge(self, *, is_heard: bool, has_begun: bool, is_overdue: bool, also: str, now: float) -> bool:
        """Whether `up` changes.

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
        if self._trouble or self.up or has_begun:
            self._show("; ".join(text for text in (self._trouble, also) if text), now)
        if is_heard == self.up:
            return False
        self.up, self.since = is_heard, time.time()
        if is_heard:
            self._patient_until = now
        return True

    def _show(self, text: str, now: float) -> None:
        problem = one_line(text, ERROR_CHARS)
        if problem == self.problem or (problem and now < self._patient_until):
            return
        if problem:
            self._troubles.complain(problem, problem)
        else:
            self._troubles.clear(f"gateways hear each other on topic {self._topic}")
