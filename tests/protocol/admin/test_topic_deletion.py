# DeleteTopics: what a request names, by name or by id, and what became of each topic. Messages of every version, by an
# independent encoder, are test_admin.py's.

from __future__ import annotations

import pytest

from protocol.admin import topic_deletion as d
from protocol.admin.topics import NO_ID
from protocol.wire import MalformedFrame

ID = bytes(range(16))


@pytest.mark.parametrize("version", range(1, 7))
def test_the_topics_that_a_request_names(version: int) -> None:
    if version < 6:
        frame = d.DELETE_NAMED_TOPICS.encode_request(d.DeleteNamedTopicsRequest(("a", "b"), 1000), version, 5, b"tool")
        topics = (d.DeletableTopic("a"), d.DeletableTopic("b"))
    else:
        topics = (d.DeletableTopic("a"), d.DeletableTopic(None, ID))
        frame = d.DELETE_TOPICS.encode_request(d.DeleteTopicsRequest(topics, 1000), version, 5, b"tool")
    head = d.decode_request(b"more" + frame[4:] + b"more", 4, len(frame))
    assert head == (version, 5, b"tool", d.DeleteTopicsRequest(topics, 1000))


@pytest.mark.parametrize("version", range(1, 7))
def test_the_results_of_an_answer(version: int) -> None:
    results = (d.DeleteTopicsResult("a", ID, 0), d.DeleteTopicsResult("b", NO_ID, 29, "denied"))
    spoken = d.DELETE_TOPICS if version == 6 else d.DELETE_NAMED_TOPICS
    frame = spoken.encode_response(d.DeleteTopicsResponse(0, results), version, 5)
    found = d.decode_response(frame[4:], version)
    assert [(row.name, row.error_code) for row in found] == [("a", 0), ("b", 29)]
    assert [row.topic_id for row in found] == [ID if version == 6 else NO_ID, NO_ID]
    assert found[1].error_message == ("denied" if version >= 5 else None)


@pytest.mark.parametrize("version", [0, 7])
def test_a_version_that_brokers_of_today_lack_is_refused(version: int) -> None:
    with pytest.raises(MalformedFrame, match=f"DeleteTopics v{version}, "):
        d.decode_request(b"\0\x14\0" + bytes((version,)) + bytes(12), 0, 16)


def test_ids_are_printed_as_kafka_prints_them() -> None:
    assert d.topic_id_text(ID) == "AAECAwQFBgcICQoLDA0ODw"
