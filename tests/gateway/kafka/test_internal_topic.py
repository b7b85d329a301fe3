# Looking after an internal topic without a cluster: when it is time for a look, looks that nobody waits for, and how
# often a trouble is told. With real brokers: tests/integration/fleet/test_exchange.py, test_policy_store.py and
# test_volume_agent.py.

from __future__ import annotations

import logging
import threading

import pytest
from confluent_kafka import KafkaError

from gateway.kafka.internal_topic import (
    InternalTopic,
    TopicAbsent,
    TopicLookup,
    TopicPresent,
    TopicSpec,
    TopicUnreachable,
    TroubleLog,
)

WAIT_S = 30.0
HERE = TopicPresent("id", frozenset({0}))


class Looking(InternalTopic):
    """A topic in the state that the test sets; a look at it returns when the test allows it."""

    def __init__(self, found: TopicLookup) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1"}, "topic", TopicSpec({}))
        self.found = found
        self.looks = 0
        self.may_return = threading.Event()

    def lookup_topic(self) -> TopicLookup:
        self.looks += 1
        self._next_lookup_at = float("inf")
        assert self.may_return.wait(WAIT_S)
        return self.found

    def polled(self) -> TopicLookup:
        self.may_return.set()
        pause = threading.Event()
        for _ in range(int(WAIT_S * 100)):
            if (found := self.poll_lookup()) is not None:
                return found
            pause.wait(0.01)
        raise AssertionError("no look came back")


@pytest.mark.parametrize("found", [HERE, TopicAbsent(), TopicUnreachable("no answer")])
def test_a_look_in_the_background_is_told_once(found: TopicLookup) -> None:
    topic = Looking(found)
    assert not topic.is_lookup_pending
    assert topic.poll_lookup() is None
    assert topic.is_lookup_pending
    assert topic.poll_lookup() is None
    assert topic.polled() == found
    assert not topic.is_lookup_pending
    assert topic.poll_lookup() is None
    assert topic.looks == 1


def test_an_event_during_a_look_leads_to_another_one() -> None:
    topic = Looking(HERE)
    topic.poll_lookup()
    topic.schedule_lookup()
    topic.polled()
    assert topic.is_lookup_due
    topic.polled()
    assert topic.looks == 2


def test_brokers_that_are_all_down_bring_the_next_look_forward_and_other_errors_don_t() -> None:
    topic = Looking(HERE)
    topic.polled()
    topic.record_error(KafkaError(KafkaError._TRANSPORT, "refused (after 3ms in state CONNECT)"))
    assert topic._next_lookup_at == float("inf")
    topic.record_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert topic._next_lookup_at < float("inf")
    assert not topic.is_lookup_due
    assert topic._last_error == "refused"  # without what would make it another complaint each time


# --- complaints -------------------------------------------------------------------------------------------------------


@pytest.fixture
def troubles(caplog: pytest.LogCaptureFixture) -> TroubleLog:
    caplog.set_level(logging.INFO)
    return TroubleLog(logging.getLogger("test"), "area")


def test_each_kind_is_logged_once_until_all_is_well_again(
    troubles: TroubleLog, caplog: pytest.LogCaptureFixture
) -> None:
    for kind, text in (("down", "1"), ("down", "2"), ("lost", "3"), ("down", "4")):
        troubles.report_trouble(kind, text)
        assert (troubles.kind, troubles.problem) == (kind, text)
    troubles.clear_trouble("well")
    troubles.clear_trouble("well")
    assert (troubles.kind, troubles.problem) == ("", "")
    troubles.report_trouble("down", "two\nlines")
    assert [record.getMessage() for record in caplog.records] == [
        "area: 1",
        "area: 3",
        "area: well",
        "area: two lines",
    ]


def test_a_state_that_isn_t_reached_yet_is_a_problem_without_a_complaint(
    troubles: TroubleLog, caplog: pytest.LogCaptureFixture
) -> None:
    troubles.note_expected("unread", "not read yet")
    assert (troubles.kind, troubles.problem) == ("unread", "not read yet")
    troubles.clear_trouble("")
    assert troubles.problem == ""
    assert caplog.records == []
