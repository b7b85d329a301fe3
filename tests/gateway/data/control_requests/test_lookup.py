# How long a request waits for the names of its topic ids, and how often the broker is asked for them.

from __future__ import annotations

from gateway.data.control_requests.lookup import LOOKUP_S, TopicIdLookup
from gateway.data.pending.hold import MAX_WAIT_S
from gateway.data.shared.ledger import UsageLedger
from tests.gateway.data.play import present

MISSING = frozenset({b"\xee" * 16})


def test_a_topic_that_has_a_name_does_not_wait() -> None:
    assert TopicIdLookup(UsageLedger()).wait_for_names(frozenset(), -1, False, 5.0) is None


def test_the_broker_is_asked_once_and_has_its_time_to_answer() -> None:
    ledger = UsageLedger()
    lookup = TopicIdLookup(ledger)
    assert present(lookup.wait_for_names(MISSING, -1, False, 5.0)).query
    again = lookup.wait_for_names(MISSING, -1, False, 5.5)
    assert again == (5.0 + LOOKUP_S, b"")
    assert lookup.wait_for_names(MISSING, -1, False, 5.0 + LOOKUP_S) is None
    assert ledger.counts == {"topic_ids_unknown": 1}


def test_an_answer_without_the_name_ends_the_wait_unless_the_client_can_not_be_told() -> None:
    for acks in (-1, 0):
        lookup = TopicIdLookup(UsageLedger())
        lookup.wait_for_names(MISSING, acks, False, 5.0)
        assert lookup.on_broker_answer(lookup.correlation)
        assert (lookup.wait_for_names(MISSING, acks, False, 5.1) is None) == bool(acks)


def test_without_acknowledgement_the_broker_is_asked_again_but_not_at_once() -> None:
    lookup = TopicIdLookup(UsageLedger())
    lookup.wait_for_names(MISSING, 0, False, 5.0)
    first = lookup.correlation
    lookup.on_broker_answer(first)
    assert lookup.wait_for_names(MISSING, 0, False, 5.1) == (5.1 + LOOKUP_S, b"")
    assert present(lookup.wait_for_names(MISSING, 0, False, 5.1 + LOOKUP_S)).query
    assert lookup.correlation != first
    assert lookup.wait_for_names(MISSING, 0, False, 5.0 + MAX_WAIT_S) is None


def test_a_client_that_has_gone_waits_no_longer_than_one_answer() -> None:
    lookup = TopicIdLookup(UsageLedger())
    lookup.wait_for_names(MISSING, 0, False, 5.0)
    assert lookup.wait_for_names(MISSING, 0, True, 5.0 + LOOKUP_S) is None


def test_an_answer_that_comes_late_belongs_to_no_question() -> None:
    lookup = TopicIdLookup(UsageLedger())
    lookup.wait_for_names(MISSING, -1, False, 5.0)
    first = lookup.correlation
    lookup.wait_for_names(MISSING, -1, False, 5.0 + LOOKUP_S)
    assert not lookup.on_broker_answer(first), "it was given up"
    lookup.wait_for_names(MISSING, -1, False, 7.0)
    assert not lookup.on_broker_answer(first), "another question is open"


def test_lookups_never_run_out_of_correlation_ids() -> None:
    lookup = TopicIdLookup(UsageLedger())
    lookup.correlation = 2**31 - 1
    lookup.wait_for_names(MISSING, -1, False, 0.0)
    assert 0 < lookup.correlation < 2**31
