# How changes are written down: what is read is what was written, also after compaction, and a record that can't be is
# refused in one line.

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.definitions.policy_records import (
    AlterationHead,
    ChangeSource,
    InvalidPolicyRecord,
    PastChange,
    PolicyEntry,
    PolicyRecord,
    decode_record,
    encode_alteration,
    encode_key,
    end_text,
)
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import (
    PolicyChange,
    PolicyError,
    PolicyKey,
    PolicyOperation,
    PolicyValue,
    TopicId,
    ValueEnd,
)
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from tests.policies.definitions.policy_play import (
    ALICE_RATE,
    AT,
    BOB_RATE,
    CLICKS,
    HOUR,
    MB,
    ORDERS,
    PRODUCE,
    TOTAL,
    TOTAL_2,
    TOTAL_OUT,
    VIEWS,
)

PERCENT = PolicyKey.of_quota(Entity("alice"), QuotaKey("request_percentage", "percent"))
BASE = {TOTAL: 12.0 * MB, CLICKS: 5.0 * MB, ALICE_RATE: 1000.0}
keys = st.sampled_from(
    [TOTAL, TOTAL_2, CLICKS, VIEWS, ORDERS, ALICE_RATE, BOB_RATE, PolicyKey.of_quota(Entity(DEFAULT, "a,b=c"), PRODUCE)]
)
HEAD = AlterationHead(7, "token", 1_700_000_000_000, ChangeSource("User:alice", "kafka", "127.0.0.1:5"), 2)
names = st.text(min_size=1).filter(lambda name: all(not 0xD800 <= ord(char) <= 0xDFFF for char in name))


@given(
    st.one_of(
        st.builds(PolicyKey.of_topic, st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)),
        st.builds(PolicyKey.of_broker, st.none() | st.integers(0, 2**31 - 1)),
        st.builds(PolicyKey.of_quota, st.builds(Entity, names, st.one_of(st.none(), names)), st.just(PRODUCE)),
    ),
    st.integers(1, 10**12),
)
def test_a_written_record_is_read(key: PolicyKey, value: int) -> None:
    set_, removed, head = encode_alteration(
        [PolicyChange(key, value, None, value), PolicyChange(key, None, value, None)], HEAD
    )
    set_past = PastChange(7, HEAD.at_ms, HEAD.source, key, None, value, None)
    assert decode_record(*set_) == PolicyEntry(key, float(value), None, set_past)
    assert decode_record(*removed) == PolicyEntry(key, None, None, set_past._replace(old=value, new=None))
    assert decode_record(removed.key, removed.value) == PolicyEntry(key, None)
    assert set_.key == removed.key == encode_key(key)
    assert decode_record(head.key, head.value) == HEAD


def test_a_record_says_who_when_from_where_old_and_new() -> None:
    changes = [PolicyChange(CLICKS, 6.0 * MB, 5.0 * MB, 6.0 * MB), PolicyChange(VIEWS, None, 2.5, None)]
    set_, removed, _ = encode_alteration(changes, HEAD)
    by = {"v": 1, "version": 7, "at_ms": 1_700_000_000_000, "who": "User:alice", "door": "kafka", "peer": "127.0.0.1:5"}
    assert set_.key == b'["topic","clicks","bytes.in.per.sec.threshold"]'
    assert json.loads(set_.value or b"") == {"value": 6_000_000, **by, "old": 5_000_000, "new": 6_000_000}
    assert set_.audit is None
    assert removed.value is None  # so that compaction removes it; what would be lost stands beside it
    assert json.loads(removed.audit or b"") == {**by, "old": 2.5, "new": None}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (None, b"{}", "is not JSON"),
        (b'["head"]', b'{"v":1,"token":"x","version":1' + b"0" * 400 + b"}", "a version being below 9007199254740992"),
        (b'["head"]', b'{"v":1,"token":"x","version":9007199254740992}', "a version being below 9007199254740992"),
        (b'["head"]', b'{"v":1,"token":"x","version":true}', "a version being below 9007199254740992"),
        (b'["head"]', b'{"v":1,"token":"x","version":-1}', "a version being below 9007199254740992"),
        (encode_key(CLICKS), b'{"v":1,"value":1e308}', "at most 9223372036854775807"),
        (encode_key(TOTAL), b'{"v":1,"value":1e308}', "at most 9223372036854775807"),
        (encode_key(PERCENT), b'{"v":1,"value":5e-324}', "from 0.001 to 100,000 %"),
        (encode_key(PERCENT), b'{"v":1,"value":1.7e308}', "from 0.001 to 100,000 %"),
        (encode_key(TOTAL_OUT), b'{"v":1,"value":0}', "total.bytes.out.per.sec.threshold: 0.0 must be a finite number"),
        (b"\xff", b"{}", "is not JSON"),
        (b"[" * 100_000, b"{}", "is not JSON"),
        (b'"topic"', b"{}", "is not [kind, name, key]"),
        (b'["topic",1,"x"]', b"{}", "is not [kind, name, key]"),
        (b'["topic","a","x"]', b'{"v":1,"value":1}', "unknown key 'x'"),
        (encode_key(CLICKS), b"", "is not JSON"),
        (encode_key(CLICKS), b"[]", "is not an object"),
        (encode_key(CLICKS), b'{"v":2,"value":1}', "its layout is 2, known is 1"),
        (encode_key(CLICKS), b'{"v":1,"value":true}', "its value is not a number: True"),
        (encode_key(CLICKS), b'{"v":1,"value":-5}', "must be a finite number, 0 or more"),
        (encode_key(CLICKS), b'{"v":1,"value":NaN}', "must be a finite number"),
        (encode_key(CLICKS), b'{"v":1,"value":1' + b"0" * 400 + b"}", "too large"),
        (encode_key(TOTAL), b'{"v":1,"value":0}', "above 0"),
        (b'["head"]', b'{"v":1,"version":"7","token":"t"}', "a head without version"),
        (b'["head"]', b"7", "is not an object"),
    ],
)
def test_a_foreign_record_is_refused_in_one_line(key: bytes | None, value: bytes, text: str) -> None:
    with pytest.raises(InvalidPolicyRecord) as error:
        decode_record(key, value)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("audit", [b"", b"{", b"\xff", b"[]", b"{}", b'{"v":2,"version":7,"at_ms":5}'])
def test_a_removal_counts_whatever_stands_beside_it(audit: bytes) -> None:
    assert decode_record(encode_key(CLICKS), None, audit) == PolicyEntry(CLICKS, None)


@pytest.mark.parametrize(
    ("odd", "part", "read"),
    [
        ({"until_ms": "x"}, "until_ms", None),
        ({"until_ms": True}, "until_ms", None),
        ({"until_ms": 2**52}, "until_ms", None),
        ({"old": 10**400}, "old", None),
        ({"old": True}, "old", None),
        ({"new": math.inf}, "new", None),
        ({"new": "gold"}, "new", None),
        ({"new": -1}, "new", None),
        ({"who": "a\ud800b"}, "source", ChangeSource("a?b", "", "")),
        ({"who": 5, "door": "d" * 10_000}, "source", ChangeSource("", "d" * 1000, "")),
    ],
)
def test_what_can_not_be_is_left_out_of_the_history(odd: dict[str, object], part: str, read: object) -> None:
    audit = json.dumps({"v": 1, "version": 7, "at_ms": AT, **odd}).encode()
    entry = decode_record(encode_key(CLICKS), None, audit)
    assert isinstance(entry, PolicyEntry)
    assert entry.past is not None
    assert getattr(entry.past, part) == read


@given(st.lists(st.lists(st.tuples(keys, st.none() | st.integers(1, 99).map(float)), max_size=4), max_size=8))
def test_compaction_loses_nothing_of_what_holds(alterations: list[list[tuple[PolicyKey, float | None]]]) -> None:
    policies = PolicySet()
    log: list[PolicyRecord] = []
    for each in alterations:
        try:
            new = policies.alter_policies([PolicyOperation(key, value) for key, value in dict(each).items()])
        except PolicyError:
            continue
        changes = new.changes_since(policies)
        log += encode_alteration(changes, HEAD._replace(version=new.version)) if changes else []
        policies = new
    latest = {record.key: index for index, record in enumerate(log)}
    compacted = [record for index, record in enumerate(log) if latest[record.key] == index]
    assert replay(log) == replay(compacted) == (policies.changes, policies.version)


def replay(log: list[PolicyRecord]) -> tuple[dict[PolicyKey, PolicyValue], int]:
    held: dict[PolicyKey, PolicyValue] = {}
    version = 0
    for record in log:
        said = decode_record(record.key, record.value)
        if isinstance(said, AlterationHead):
            version = said.version
        elif said is not None and said.value is not None:
            held[said.key] = said.value
        elif said is not None:
            held.pop(said.key, None)
    return held, version


def test_a_removed_head_says_nothing() -> None:
    assert decode_record(b'["head"]', None) is None


def test_ends_are_written_down_and_read() -> None:
    old = PolicySet(BASE, {CLICKS: 4.0 * MB})
    new = old.alter_policies(
        [PolicyOperation(CLICKS, 6 * MB, AT + HOUR), PolicyOperation(VIEWS, 1, AT + HOUR)], now_ms=AT
    )
    entries = [decode_record(*record) for record in encode_alteration(new.changes_since(old), HEAD)[:-1]]
    read = PolicySet.from_entries(BASE, [entry for entry in entries if isinstance(entry, PolicyEntry)], new.version)
    assert (read.changes, read.ends) == (new.changes, new.ends)
    assert [entry.past.until_ms for entry in entries if isinstance(entry, PolicyEntry) and entry.past] == [
        AT + HOUR
    ] * 2
    assert end_text(new.changes_since(old)[0].end) == "2023-11-14T23:13:20Z"


@pytest.mark.parametrize("until", [b'"soon"', b"-1", b"1.5", b"true", b"9007199254740991"])
def test_a_record_whose_end_can_not_be_is_none(until: bytes) -> None:
    with pytest.raises(InvalidPolicyRecord, match="its end is not a valid time"):
        decode_record(encode_key(CLICKS), b'{"v":1,"value":5,"until_ms":%b}' % until)


def test_the_topic_of_a_threshold_is_written_down_and_read() -> None:
    topic_id = TopicId("cluster", "id")
    record, _ = encode_alteration([PolicyChange(CLICKS, 6.0, 5.0, 6.0, ValueEnd(AT, 4.0), topic_id)], HEAD)
    said = json.loads(record.value or b"")
    assert (said["topic_id"], said["cluster_id"]) == ("id", "cluster")
    entry = decode_record(*record)
    assert isinstance(entry, PolicyEntry)
    assert (entry.value, entry.end, entry.topic_id) == (6.0, ValueEnd(AT, 4.0), topic_id)
    assert PolicySet.from_entries({}, [entry], 7).topic_ids == {"clicks": topic_id}
    for odd in (7, None, "", ["id"]):
        found = decode_record(record.key, json.dumps({**said, "topic_id": odd}).encode())
        assert isinstance(found, PolicyEntry)
        assert found.topic_id is None


def test_a_value_that_is_written_again_with_its_topics_id_keeps_its_author() -> None:
    (first, _) = encode_alteration([PolicyChange(CLICKS, 6.0, 5.0, 6.0)], HEAD)
    held = decode_record(*first)
    assert isinstance(held, PolicyEntry)
    later = AlterationHead(8, "other", HEAD.at_ms + 5, ChangeSource("itself", "topic deleted"), 1)
    change = PolicyChange(CLICKS, 6.0, 6.0, 6.0, None, TopicId("c", "t"), True)
    again = decode_record(*encode_alteration([change], later, {CLICKS: held})[0])
    assert isinstance(again, PolicyEntry)
    assert again.past == held.past
    assert again.topic_id == TopicId("c", "t")
