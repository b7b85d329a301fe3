# The fast reading, compiled and not: the two agree about everything, and both with the careful reading, which the tests
# of produce_request and produce_response hold to an encoder that shares nothing with it.

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import api, produce_request, produce_response, usual
from protocol.wire import MalformedFrame
from tests.protocol import batches
from tests.protocol import produce_cases as cases
from tests.protocol.produce_cases import Answer, AnswerTopic, Batch, Request, Response, Topic
from tests.variants import COMPILED, PURE, module

MOST = 200
VERSIONS = pytest.mark.parametrize("version", cases.VERSIONS)
BATCH = batches.batch([b"one", b"two"], producer_id=4000, epoch=3, sequence=17)


@pytest.fixture(scope="module", params=[PURE, COMPILED])
def fast(request: pytest.FixtureRequest) -> ModuleType:
    return module("protocol.usual", request.param)


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return module("protocol.usual", COMPILED)


def whole() -> Batch:
    return Batch(BATCH, (len(BATCH), 2, 4000, 3, 17, 0))


def wide(version: int, topics: dict[str, list[int]]) -> Request:
    named = [
        Topic(name, name.encode().rjust(16), [(index, whole()) for index in indexes])
        for name, indexes in topics.items()
    ]
    return Request(version, "app", None, -1, named)


def read_request(reader: ModuleType, buf: Any, start: int, end: int, most: int = MOST) -> Any:
    return cases.told(reader.request(buf, start, end, most))


def read_answer(reader: ModuleType, buf: Any, start: int, end: int, version: int) -> Any:
    return cases.told(reader.answer(buf, start, end, version))


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


# --- the two are the same ---------------------------------------------------------------------------------------------


@given(cases.requests(), st.randoms(use_true_random=False))
def test_they_read_the_same_of_any_request_whole_or_broken(
    compiled: ModuleType, request: Request, chance: random.Random
) -> None:
    content = cases.encode(request)
    for buf in (bytearray(content), *(broken(content, chance) for _ in range(100))):
        start, end = chance.choice(((0, len(buf)), (0, len(buf) + 1), (0, len(buf) - 1), (3, len(buf))))
        read = read_request(usual, buf, start, end)
        assert read_request(compiled, buf, start, end) == read
        if read is not None and (start, end) == (0, len(buf)):
            assert careful_request(bytes(buf)) == read


@given(cases.responses(), st.randoms(use_true_random=False))
def test_they_read_the_same_of_any_answer_whole_or_broken(
    compiled: ModuleType, response: Response, chance: random.Random
) -> None:
    content = cases.encode_answer(response)
    for buf in (bytearray(content), *(broken(content, chance) for _ in range(100))):
        start, end = chance.choice(((0, len(buf)), (0, len(buf) + 1), (0, len(buf) - 1), (3, len(buf))))
        version = chance.choice((response.version, response.version, *cases.VERSIONS, 2, 14))
        read = read_answer(usual, buf, start, end, version)
        assert read_answer(compiled, buf, start, end, version) == read
        if read is not None and (start, end) == (0, len(buf)):
            assert careful_answer(bytes(buf), version) == read


@VERSIONS
def test_they_read_the_same_of_every_cut(compiled: ModuleType, version: int) -> None:
    content = bytearray(cases.encode(wide(version, {"a": [0, 3, 4], "b": [1]})))
    for size in range(len(content) + 1):
        for end in (size, len(content)):
            assert read_request(compiled, content[:size], 0, end) == read_request(usual, content[:size], 0, end)
    answered = bytearray(
        cases.encode_answer(Response(version, 7, [AnswerTopic("a", b"i" * 16, [Answer(1), Answer(2)])]))
    )
    for size in range(len(answered) + 1):
        for end in (size, len(answered)):
            read = read_answer(usual, answered[:size], 0, end, version)
            assert read_answer(compiled, answered[:size], 0, end, version) == read


@pytest.mark.parametrize("place", [-(2**62), -8, -1, 2**31, 2**62])
def test_a_frame_that_is_nowhere_near_its_buffer_is_none(compiled: ModuleType, place: int) -> None:
    content = bytearray(cases.encode(wide(9, {"a": [0]})))
    for start, end in ((place, place + len(content)), (0, place), (place, len(content))):
        assert read_request(compiled, content, start, end) is None
        assert read_answer(compiled, content, start, end, 9) is None


# --- each of them -----------------------------------------------------------------------------------------------------


@VERSIONS
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


@VERSIONS
@pytest.mark.parametrize("kind", [bytearray, bytes, memoryview])
def test_the_python_reads_every_kind_of_buffer(version: int, kind: Any) -> None:
    content = cases.encode(wide(version, {"a": [0, 1]}))
    assert read_request(usual, kind(content), 0, len(content)) == careful_request(content)
    answered = cases.encode_answer(Response(version, 7, [AnswerTopic("a", b"i" * 16, [Answer(1, 0, 5)])]))
    assert read_answer(usual, kind(answered), 0, len(answered), version) == careful_answer(answered, version)


@pytest.mark.parametrize("kind", [bytes, memoryview, lambda _: None])
def test_the_compiled_one_reads_bytearrays_and_refuses_all_else(compiled: ModuleType, kind: Any) -> None:
    content = cases.encode(wide(9, {"a": [0, 1]}))
    with pytest.raises(TypeError):
        read_request(compiled, kind(content), 0, len(content))
    with pytest.raises(TypeError):
        read_answer(compiled, kind(content), 0, len(content), 9)


def test_its_numbers_are_those_of_the_other_readers() -> None:
    assert (usual._FLEXIBLE, usual._TOPIC_IDS) == (api.PRODUCE_FLEXIBLE, api.PRODUCE_TOPIC_IDS)
    assert usual._LEAST_LENGTH == produce_request._MIN_BATCH_LENGTH
    assert usual._MAGIC == produce_request._MAGIC
