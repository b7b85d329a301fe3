# The fast readers: they read what nearly all requests and answers are, and whatever they read, the careful readers read
# the same. The tests of produce_request and produce_response hold those to an encoder that shares nothing with them.

from __future__ import annotations

import mmap
import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import api
from protocol.produce import produce_request, produce_response
from protocol.wire import MalformedFrame
from tests.protocol import batches
from tests.protocol import produce_cases as cases
from tests.protocol.produce_cases import Answer, AnswerTopic, Batch, Request, Response, Topic
from tests.variants import COMPILED, module

MOST = 200
VERSIONS = pytest.mark.parametrize("version", cases.VERSIONS)
EDGES = pytest.mark.parametrize("version", cases.EDGES)
BATCH = batches.batch([b"one", b"two"], producer_id=4000, epoch=3, sequence=17)


@pytest.fixture(scope="module")
def fast() -> ModuleType:
    return module("protocol.produce.produce_fast", COMPILED)


def whole() -> Batch:
    return Batch(BATCH, (len(BATCH), 2, 4000, 3, 17, 0))


def wide(version: int, topics: dict[str, list[int]]) -> Request:
    named = [
        Topic(name, name.encode().rjust(16), [(index, whole()) for index in indexes])
        for name, indexes in topics.items()
    ]
    return Request(version, "app", None, -1, named)


def read_request(reader: ModuleType, buf: Any, start: int, end: int, most: int = MOST) -> Any:
    return cases.told(reader.read_request(buf, start, end, most))


def read_answer(reader: ModuleType, buf: Any, start: int, end: int, version: int) -> Any:
    return cases.told(reader.read_response(buf, start, end, version))


def careful_request(content: bytes, most: int = MOST) -> Any:
    try:
        return cases.told(produce_request._skim_any(content, 0, len(content), most))
    except MalformedFrame:
        return None


def careful_answer(content: bytes, version: int) -> Any:
    try:
        return cases.told(produce_response._skim_any(content, 0, len(content), version)[0])
    except MalformedFrame:
        return None


def broken(content: bytes, chance: random.Random) -> bytearray:
    """The same with a few bytes changed, put in or left out, most of them in fields and not in records."""
    out = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(out))
        match chance.randrange(4):
            case 0:
                out[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 1:
                out[at] ^= 1 << chance.randrange(8)
            case 2:
                del out[at : at + chance.randint(1, 4)]
            case _:
                out[at:at] = chance.randbytes(chance.randint(1, 4))
        if not out:
            return out
    return out


# --- whatever they read -----------------------------------------------------------------------------------------------


@given(cases.requests(), st.randoms(use_true_random=False))
def test_what_is_read_of_any_request_is_what_the_careful_reader_reads(
    fast: ModuleType, request: Request, chance: random.Random
) -> None:
    content = cases.encode(request)
    for buf in (bytearray(content), *(broken(content, chance) for _ in range(100))):
        start, end = chance.choice(((0, len(buf)), (0, len(buf)), (0, len(buf) - 1), (3, len(buf))))
        read = read_request(fast, buf, start, end)
        assert read is None or read == careful_request(bytes(buf[start:end]))
        assert read_request(fast, buf, start, len(buf) + 1) is None


@given(cases.responses(), st.randoms(use_true_random=False))
def test_what_is_read_of_any_answer_is_what_the_careful_reader_reads(
    fast: ModuleType, response: Response, chance: random.Random
) -> None:
    content = cases.encode_answer(response)
    for buf in (bytearray(content), *(broken(content, chance) for _ in range(100))):
        start, end = chance.choice(((0, len(buf)), (0, len(buf)), (0, len(buf) - 1), (3, len(buf))))
        version = chance.choice((response.version, response.version, *cases.VERSIONS, 2, 14))
        read = read_answer(fast, buf, start, end, version)
        assert read is None or read == careful_answer(bytes(buf[start:end]), version)
        assert read_answer(fast, buf, start, len(buf) + 1, version) is None


@EDGES
def test_nothing_is_read_of_a_cut(fast: ModuleType, version: int) -> None:
    content = bytearray(cases.encode(wide(version, {"a": [0, 3, 4], "b": [1]})))
    answered = bytearray(
        cases.encode_answer(Response(version, 7, [AnswerTopic("a", b"i" * 16, [Answer(1), Answer(2)])]))
    )
    for size in range(len(content)):
        for end in (size, len(content)):
            assert read_request(fast, content[:size], 0, end) is None
    for size in range(len(answered)):
        for end in (size, len(answered)):
            assert read_answer(fast, answered[:size], 0, end, version) is None


@pytest.mark.parametrize("place", [-(2**62), -8, -1, 2**31, 2**62])
def test_a_frame_that_is_nowhere_near_its_buffer_is_none(fast: ModuleType, place: int) -> None:
    content = bytearray(cases.encode(wide(9, {"a": [0]})))
    for start, end in ((place, place + len(content)), (0, place), (place, len(content))):
        assert read_request(fast, content, start, end) is None
        assert read_answer(fast, content, start, end, 9) is None


# --- each of them -----------------------------------------------------------------------------------------------------


@EDGES
@pytest.mark.parametrize(
    "topics",
    [
        {"a": [0]},
        {"a": list(range(100))},
        {"a": list(range(126))},
        {"a": list(range(127))},
        {"a": list(range(128)), "b": [0]},
        {"a": list(range(99, -1, -1))},
        {"a": [3, 1, 2], "b": [1, 2, 3], "c": [0]},
        {f"t{n}": [0] for n in range(100)},
        {"a": [-(2**31), 2**31 - 1]},
    ],
    ids=["one", "many", "126", "127", "128 and one", "backwards", "mixed", "many topics", "extreme indexes"],
)
def test_the_usual_requests_are_read_fast(fast: ModuleType, version: int, topics: dict[str, list[int]]) -> None:
    content = cases.encode(wide(version, topics))
    read = read_request(fast, bytearray(content), 0, len(content))
    assert read is not None
    assert read == careful_request(content)
    assert all(type(partition) is tuple for partition in read[4])


@EDGES
@pytest.mark.parametrize("size", [61, 100, 126, 127, 16_382, 16_383, 2**21 - 2, 2**21 - 1])
def test_batches_of_all_sizes_are_read_fast(fast: ModuleType, version: int, size: int) -> None:
    records = batches.batch([bytes(size)])[:size] if size > 61 else batches.batch([])
    records = records[:8] + (len(records) - 12).to_bytes(4, "big") + records[12:]
    batch = Batch(records, (len(records), int.from_bytes(records[57:61], "big"), -1, -1, -1, 0))
    behind = Batch(BATCH + b"??", (len(BATCH), 2, 4000, 3, 17, 2))
    topics = [Topic("clicks", b"c" * 16, [(3, batch)]), Topic("t", b"t" * 16, [(1, batch), (0, behind)])]
    for client_id in ("app", None):
        for transactional_id in (None, "tx-1"):
            for named in (topics[:1], topics):
                content = cases.encode(Request(version, client_id, transactional_id, -1, named))
                read = read_request(fast, bytearray(content), 0, len(content))
                assert read is not None
                assert read == careful_request(content)


@VERSIONS
@pytest.mark.parametrize("count", [1, 2, 126, 127, 128, 1000])
def test_the_usual_answers_are_read_fast(fast: ModuleType, version: int, count: int) -> None:
    answers = [Answer(index, 0, 5 * index) for index in range(count)]
    for topics in (["a"], ["a", "b"]):
        content = cases.encode_answer(
            Response(version, 7, [AnswerTopic(name, name.encode() * 16, answers) for name in topics])
        )
        read = read_answer(fast, bytearray(content), 0, len(content), version)
        assert read is not None
        assert read == careful_answer(content, version)


@VERSIONS
@pytest.mark.parametrize(
    "topics",
    [
        [("a", [1, 1])],
        [("a", [2, 3, 2])],
        [("a", [1]), ("a", [2])],
        [("a", [1, 2]), ("b", [1]), ("a", [1])],
    ],
)
def test_what_may_be_there_twice_is_left_to_the_careful_reading(
    fast: ModuleType, version: int, topics: list[tuple[str, list[int]]]
) -> None:
    named = [Topic(name, name.encode() * 16, [(index, whole()) for index in indexes]) for name, indexes in topics]
    content = cases.encode(Request(version, "app", None, -1, named))
    assert read_request(fast, bytearray(content), 0, len(content)) is None


@VERSIONS
def test_no_more_partitions_than_allowed(fast: ModuleType, version: int) -> None:
    content = bytearray(cases.encode(wide(version, {"a": list(range(50)), "b": list(range(51))})))
    assert read_request(fast, content, 0, len(content), 101) is not None
    assert read_request(fast, content, 0, len(content), 100) is None


def mapped(content: bytes) -> mmap.mmap:
    """Where a link keeps a large frame."""
    memory = mmap.mmap(-1, max(1, len(content)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(content)] = content
    return memory


@EDGES
@pytest.mark.parametrize("kind", [bytearray, bytes, memoryview, mapped])
def test_every_kind_of_buffer_is_read(fast: ModuleType, version: int, kind: Any) -> None:
    content = cases.encode(wide(version, {"a": [0, 1], "b": [2]}))
    assert read_request(fast, kind(content), 0, len(content)) == careful_request(content)
    answered = cases.encode_answer(Response(version, 7, [AnswerTopic("a", b"i" * 16, [Answer(1, 0, 5)])]))
    assert read_answer(fast, kind(answered), 0, len(answered), version) == careful_answer(answered, version)
    topic = b"i" * 16 if version >= api.PRODUCE_TOPIC_IDS else b"a"
    assert fast.read_written_offset(kind(answered), 0, len(answered), version, topic, 1) == 5


@pytest.mark.parametrize("end", [0, 1, 100, 10**9])
def test_mapped_memory_ends_where_it_ends(fast: ModuleType, end: int) -> None:
    content = cases.encode(wide(9, {"a": [0, 1]}))
    assert read_request(fast, mapped(content[:end]), 0, end) is None
    assert read_answer(fast, mapped(content[:end]), 0, end, 9) is None


@pytest.mark.parametrize("other", [None, 7, "text"])
def test_what_is_no_buffer_is_refused(fast: ModuleType, other: Any) -> None:
    with pytest.raises(TypeError):
        read_request(fast, other, 0, 100)
    with pytest.raises(TypeError):
        read_answer(fast, other, 0, 100, 9)


# --- whether the only partition of a request was written --------------------------------------------------------------


def only(version: int, **said: Any) -> bytearray:
    return bytearray(cases.encode_answer(Response(version, 7, [AnswerTopic("a", b"i" * 16, [Answer(1, **said)])])))


def by_reading(buf: Any, start: int, end: int, version: int, topic: bytes, index: int) -> int:
    """What `read_written` says, by what is read of the answer as a whole."""
    match careful_answer(bytes(buf[start:end]), version) if end <= len(buf) else None:
        case [(answered, place, 0, offset)] if (answered, place) == (topic, index):
            return max(-1, int(offset))
    return -1


@VERSIONS
def test_the_offset_of_a_partition_that_was_written(fast: ModuleType, version: int) -> None:
    topic = b"i" * 16 if version >= api.PRODUCE_TOPIC_IDS else b"a"
    for offset in (0, 5, 2**62):
        content = only(version, base_offset=offset)
        assert fast.read_written_offset(content, 0, len(content), version, topic, 1) == offset
        assert fast.read_written_offset(b"??" + content + b"?", 2, 2 + len(content), version, topic, 1) == offset
    content = only(version, base_offset=5)
    for other, index in ((topic, 2), (topic + b"b", 1), (topic[:-1], 1), (b"\0" * len(topic), 1)):
        assert fast.read_written_offset(content, 0, len(content), version, other, index) == -1
    failed = only(version, error=6, base_offset=5)
    assert fast.read_written_offset(failed, 0, len(failed), version, topic, 1) == -1


@given(cases.responses(), st.randoms(use_true_random=False))
def test_it_says_of_any_answer_what_reading_it_says(
    fast: ModuleType, response: Response, chance: random.Random
) -> None:
    topics = [AnswerTopic("a", b"i" * 16, [Answer(chance.choice((1, 1, 2)), base_offset=chance.choice((-1, 0, 9)))])]
    plain = response._replace(topics=topics, endpoints=())
    for said in (response, plain):
        content = cases.encode_answer(said)
        for buf in (bytearray(content), *(broken(content, chance) for _ in range(50))):
            start, end = chance.choice(((0, len(buf)), (0, len(buf)), (0, len(buf) - 1), (3, len(buf))))
            version = chance.choice((said.version, said.version, said.version, *cases.VERSIONS, 2, 14))
            topic = b"i" * 16 if version >= api.PRODUCE_TOPIC_IDS else b"a"
            # Of what is below 0 it only says that: a broken answer may have any such offset.
            written = max(-1, fast.read_written_offset(buf, start, end, version, topic, 1))
            told = by_reading(buf, start, end, version, topic, 1)
            assert written in (told, -1)
            if said is plain and (bytes(buf), start, end, version) == (content, 0, len(content), said.version):
                assert written == told
            assert fast.read_written_offset(buf, start, len(buf) + 1, version, topic, 1) == -1


@VERSIONS
def test_nothing_is_written_by_a_cut_answer(fast: ModuleType, version: int) -> None:
    content = only(version, base_offset=3)
    topic = b"i" * 16 if version >= api.PRODUCE_TOPIC_IDS else b"a"
    for size in range(len(content)):
        for end in (size, len(content)):
            assert fast.read_written_offset(content[:size], 0, end, version, topic, 1) == -1


def test_a_name_is_the_one_that_stands_there(fast: ModuleType) -> None:
    """Names are kept by a few of their bytes: whatever else there is to them is compared."""
    names = [f"{a}{b}{c}{d}{e}" for a in "xy" for b in "pq" for c in "mn" for d in "pq" for e in "yz"] * 2
    for topic in names:
        content = cases.encode(wide(9, {topic: [0], "other" * len(topic): [0]}))
        read = read_request(fast, bytearray(content), 0, len(content))
        assert [part[0] for part in read[4]] == [topic.encode(), b"other" * len(topic)]
