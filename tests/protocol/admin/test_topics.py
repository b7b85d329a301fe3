# Which configs of a topic that is to be created go to the broker and which don't, what is refused, and one answer.

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import api
from protocol.admin import topics as t
from tests.protocol import kio_messages as kio
from tests.protocol.admin_cases import error

IN, OUT = "bytes.in.per.sec.threshold", "bytes.out.per.sec.threshold"
INVALID_REQUEST, DENIED, EXISTS = (
    error(name) for name in ("INVALID_REQUEST", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_ALREADY_EXISTS")
)


def is_ours(key: str) -> bool:
    return key in (IN, OUT)


def topic(name: str, **configs: str | None) -> t.CreatableTopic:
    """`_` stands for a dot."""
    rows = tuple(t.TopicConfig(key.replace("_", "."), value) for key, value in configs.items())
    return t.CreatableTopic(name, 3, 1, (), rows)


def create(*topics: t.CreatableTopic) -> t.CreateTopicsRequest:
    return t.CreateTopicsRequest(topics, 1000, False)


OURS = {"bytes_in_per_sec_threshold": "5"}


def test_our_keys_are_taken_out_and_everything_else_is_left() -> None:
    placed = topic("placed", retention_ms="1", **OURS)._replace(assignments=(t.ReplicaAssignment(0, (1, 2)),))
    request = create(placed, topic("theirs", retention_ms="1"), topic("ours", **OURS))
    ours, rest, refused = t.split_topics(request, is_ours)
    assert ours == (placed._replace(configs=(t.TopicConfig(IN, "5"),)), topic("ours", **OURS))
    left = (placed._replace(configs=(t.TopicConfig("retention.ms", "1"),)), topic("theirs", retention_ms="1"))
    assert rest == create(*left, topic("ours"))
    assert refused == ()


def test_nothing_of_ours_is_the_request_itself() -> None:
    for request in (create(), create(topic("a")), create(topic("a", retention_ms="1"), topic("a"))):
        assert t.split_topics(request, is_ours) == ((), request, ())
        assert t.split_topics(request, is_ours).rest is request


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        ([topic("a", bytes_in_per_sec_threshold=None)], "needs a value"),
        ([topic("a", **OURS)._replace(configs=(t.TopicConfig(IN, "1"),) * 2)], "named 2 times"),
        ([topic("a", **OURS), topic("a")], "more than once"),
        ([topic("a"), topic("a", **OURS)], "more than once"),
    ],
)
def test_a_topic_is_refused_whole(topics: list[t.CreatableTopic], words: str) -> None:
    ours, rest, refused = t.split_topics(create(*topics, topic("z", retention_ms="1")), is_ours)
    assert ours == ()
    assert rest == create(topic("z", retention_ms="1"))
    assert [(row.name, row.error_code) for row in refused] == [("a", INVALID_REQUEST)]
    assert words in (refused[0].error_message or "")
    assert t.split_topics(create(*topics), is_ours).rest is None


_topics = st.builds(
    lambda name, rows: t.CreatableTopic(name, 1, 1, (), tuple(t.TopicConfig(*row) for row in rows)),
    st.sampled_from("abcd"),
    st.lists(st.tuples(st.sampled_from((IN, OUT, "x", "y")), st.none() | st.text(max_size=2)), max_size=4),
)


@given(st.lists(_topics, max_size=5).map(tuple))
def test_no_key_of_ours_reaches_the_broker_and_every_topic_is_somewhere(topics: tuple[t.CreatableTopic, ...]) -> None:
    ours, rest, refused = t.split_topics(create(*topics), is_ours)
    left = rest.topics if rest else ()
    assert not [config for each in left for config in each.configs if is_ours(config.name)]
    assert all(each.configs and all(is_ours(config.name) for config in each.configs) for each in ours)
    out = {row.name for row in refused}
    assert not out & {each.name for each in (*ours, *left)}
    assert {each.name for each in ours} <= {each.name for each in left}
    taken = Counter((each.name, config) for each in (*ours, *left) for config in each.configs)
    assert taken == Counter((each.name, config) for each in topics if each.name not in out for config in each.configs)
    assert {each.name for each in topics} == out | {each.name for each in left}


# --- answers ----------------------------------------------------------------------------------------------------------


def shown(name: str) -> tuple[t.CreatedConfig, ...]:
    return (t.CreatedConfig(IN, "5", False, 1, False),) if name.startswith("ours") else ()


def made(name: str, code: int = 0) -> t.CreateTopicsResult:
    return t.CreateTopicsResult(name, bytes(15) + b"1", code, None, 3, 1, () if code else (THEIRS,))


THEIRS = t.CreatedConfig("retention.ms", "1", False, 5, False)


def test_results_come_in_the_order_of_the_request_with_our_config_among_the_brokers() -> None:
    names = ["ours-1", "theirs", "ours-2", "refused", "exists"]
    rows = [made(name) for name in names[:3]] + [made("exists", EXISTS)]
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        own = [t.topic_result("refused", DENIED, "why")]
        merged = t.merge_created(create(*map(topic, names)), t.CreateTopicsResponse(7, tuple(rows)), own, shown)
        assert merged.throttle_time_ms == 7
        assert [(row.name, row.error_code) for row in merged.topics] == [
            *((name, 0) for name in names[:3]), ("refused", DENIED), ("exists", EXISTS),
        ]  # fmt: skip
        assert [row.configs for row in merged.topics[:2]] == [(THEIRS, *shown("ours-1")), (THEIRS,)]
        assert merged.topics[4].configs == ()


def test_configs_that_the_client_may_not_see_stay_hidden() -> None:
    hidden = made("ours")._replace(configs=None, topic_config_error_code=DENIED)
    assert t.merge_created(create(topic("ours")), t.CreateTopicsResponse(0, (hidden,)), [], shown).topics == (hidden,)


def test_a_topic_without_any_result_is_not_left_out_and_an_unrequested_one_comes_last() -> None:
    merged = t.merge_created(
        create(topic("a"), topic("b")), t.CreateTopicsResponse(0, (made("z"), made("b"))), [], shown
    )
    assert [(row.name, row.error_code) for row in merged.topics] == [("a", -1), ("b", 0), ("z", 0)]
    assert [row.error_code for row in t.merge_created(create(topic("a")), None, [], shown).topics] == [-1]


def test_a_topic_that_is_there_twice_is_answered_twice() -> None:
    answer = t.CreateTopicsResponse(0, (made("a", EXISTS), made("a", DENIED)))
    merged = t.merge_created(create(topic("a"), topic("a")), answer, [], shown)
    assert [row.error_code for row in merged.topics] == [EXISTS, DENIED]


# --- tagged fields ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, DENIED])
def test_an_error_of_configs_is_a_tagged_field_which_is_left_out_where_there_is_none(code: int) -> None:
    cls = kio.answer_class(api.CREATE_TOPICS, 7)
    row = kio.filled(kio.element(cls, "topics"), topic_config_error_code=code)
    frame = kio.answer_header(cls, 5) + kio.kio_encode(kio.filled(cls, topics=(row,)))
    correlation, answer = t.CREATE_TOPICS.decode_response(frame, 0, len(frame), 7)
    assert [row.topic_config_error_code for row in answer.topics] == [code]
    assert t.CREATE_TOPICS.encode_response(answer, 7, correlation)[4:] == frame
