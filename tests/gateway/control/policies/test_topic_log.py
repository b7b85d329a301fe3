# What counts of the policies' topic, record by record. The topic itself: tests/integration/fleet/test_policy_store.py.

from __future__ import annotations

import pytest

from gateway.control.policies.topic_log import PolicyTopicLog
from policies.definitions.policy_records import (
    AlterationHead,
    ChangeSource,
    InvalidPolicyRecord,
    PolicyRecord,
    encode_alteration,
)
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, PolicyValue

KEY = PolicyKey.of_topic("clicks")


def alteration(version: int, value: float) -> list[PolicyRecord]:
    before = PolicySet({})
    changes = PolicySet({}, {KEY: value}).changes_since(before)
    return encode_alteration(
        changes, AlterationHead(version, f"token-{version}", 0, ChangeSource("alice", "rest"), len(changes))
    )


def take(log: PolicyTopicLog, records: list[PolicyRecord], offset: int = 0) -> None:
    for at, record in enumerate(records):
        log.add_record(*record, offset + at)


def values(log: PolicyTopicLog) -> dict[PolicyKey, PolicyValue | None]:
    return {key: entry.value for key, entry in log.entries.items()}


def test_nothing_counts_before_the_end_was_reached_once() -> None:
    log = PolicyTopicLog()
    take(log, alteration(1, 5.0))
    assert not log.check_settled()
    log.reach_end(3)
    assert log.check_settled()
    assert not log.check_settled()  # nothing was read since
    assert (values(log), log.version, log.end_offset, log.is_fresh) == ({KEY: 5.0}, 1, 3, True)
    assert [(past.version, past.key, past.old, past.new) for past in log.past] == [(1, KEY, None, 5.0)]
    assert [head.token for head in log.accept_records()] == ["token-1"]
    assert (log.accept_records(), log.is_fresh) == ([], False)


def test_half_an_alteration_does_not_count() -> None:
    log = PolicyTopicLog()
    log.reach_end(0)
    assert log.check_settled()
    value, head = alteration(1, 5.0)
    take(log, [value])
    assert not log.check_settled()
    take(log, [head], 1)
    assert log.check_settled()
    assert log.end_offset == 3  # behind the mark of the commit


def test_an_invalid_record_is_left_out_and_the_rest_of_its_alteration_counts() -> None:
    log = PolicyTopicLog()
    log.reach_end(0)
    value, head = alteration(1, 5.0)
    take(log, [value])
    with pytest.raises(InvalidPolicyRecord):
        log.add_record(b"?", b"?", None, 1)
    assert not log.check_settled()
    take(log, [head], 2)
    assert log.check_settled()
    assert values(log) == {KEY: 5.0}


def test_another_topic_is_read_from_its_beginning_and_alterations_are_found_again() -> None:
    log = PolicyTopicLog()
    take(log, alteration(1, 5.0))
    log.reach_end(3)
    log.begin_anew()
    assert (log.entries, log.version, log.end_offset, log.caught_up, log.is_fresh) == ({}, 0, -1, False, False)
    assert "token-1" in log.tokens
