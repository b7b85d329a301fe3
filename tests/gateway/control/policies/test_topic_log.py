# What counts of the policies' topic, record by record. The topic itself: tests/integration/test_policy_store.py.

from __future__ import annotations

import pytest

from gateway.control.policies.topic_log import TopicLog
from policies.definitions.policy_records import Head, InvalidPolicyRecord, Record, Source, encode
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, Value

KEY = PolicyKey.of_topic("clicks")


def alteration(version: int, value: float) -> list[Record]:
    before = PolicySet({})
    changes = PolicySet({}, {KEY: value}).changes_since(before)
    return encode(changes, Head(version, f"token-{version}", 0, Source("alice", "rest"), len(changes)))


def take(log: TopicLog, records: list[Record], offset: int = 0) -> None:
    for at, record in enumerate(records):
        log.take(*record, offset + at)


def values(log: TopicLog) -> dict[PolicyKey, Value | None]:
    return {key: entry.value for key, entry in log.held.items()}


def test_nothing_counts_before_the_end_was_reached_once() -> None:
    log = TopicLog()
    take(log, alteration(1, 5.0))
    assert not log.settles()
    log.reach_end(3)
    assert log.settles()
    assert not log.settles()  # nothing was read since
    assert (values(log), log.version, log.end, log.is_fresh) == ({KEY: 5.0}, 1, 3, True)
    assert [(past.version, past.key, past.old, past.new) for past in log.past] == [(1, KEY, None, 5.0)]
    assert [head.token for head in log.take_over()] == ["token-1"]
    assert (log.take_over(), log.is_fresh) == ([], False)


def test_half_an_alteration_does_not_count() -> None:
    log = TopicLog()
    log.reach_end(0)
    assert log.settles()
    value, head = alteration(1, 5.0)
    take(log, [value])
    assert not log.settles()
    take(log, [head], 1)
    assert log.settles()
    assert log.end == 3  # behind the mark of the commit


def test_an_invalid_record_is_left_out_and_the_rest_of_its_alteration_counts() -> None:
    log = TopicLog()
    log.reach_end(0)
    value, head = alteration(1, 5.0)
    take(log, [value])
    with pytest.raises(InvalidPolicyRecord):
        log.take(b"?", b"?", None, 1)
    assert not log.settles()
    take(log, [head], 2)
    assert log.settles()
    assert values(log) == {KEY: 5.0}


def test_another_topic_is_read_from_its_beginning_and_alterations_are_found_again() -> None:
    log = TopicLog()
    take(log, alteration(1, 5.0))
    log.reach_end(3)
    log.begin_anew()
    assert (log.held, log.version, log.end, log.caught_up, log.is_fresh) == ({}, 0, -1, False, False)
    assert "token-1" in log.tokens
