# What a Fetch answer holds of each topic, told while it streams through in pieces of any size: Fetch v4-v18 and
# ShareFetch v1-v2, encoded by kio. What a batch holds is known to who built it (batches.py).

from __future__ import annotations

import struct
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import api
from protocol.fetch.fetch_response import FetchMeter
from protocol.rewriting.stream import METERED_PROGRAMS, EndpointHider
from tests.examples import FEW
from tests.protocol.batches import batch, message_set
from tests.protocol.kio_messages import (
    answer_class,
    answer_header,
    element,
    encode,
    extras,
    filled,
    kio_encode,
    messages,
)

FETCH = [(api.FETCH, version) for version in range(4, 19)]
SHARE = [(api.SHARE_FETCH, version) for version in (1, 2)]
ALL = FETCH + SHARE
HEADER_TAGS = b"\x01\x5a\x02hi"
CLASSES = (
    "FetchResponse", "FetchableTopicResponse", "PartitionData", "AbortedTransaction", "EpochEndOffset",
    "LeaderIdAndEpoch", "SnapshotId", "NodeEndpoint", "ShareFetchResponse", "ShareFetchableTopicResponse",
    "AcquiredRecords",
)  # fmt: skip


class Records(NamedTuple):
    """`messages` that are in `data`."""

    data: bytes | None
    messages: int


NULL, EMPTY = Records(None, 0), Records(b"", 0)
ONE = Records(batch((b"value",)), 1)
MANY = Records(b"".join(batch((b"v" * size,) * count) for size, count in ((1, 1), (300, 7), (0, 100))), 108)
OLD = Records(message_set(b"") + message_set(b"old" * 30) + message_set(b"x"), 3)
MIXED = Records((OLD.data or b"") + (MANY.data or b"") + message_set() * 2, 113)
SAMPLES = (NULL, EMPTY, ONE, MANY, OLD, MIXED)


def cut_off(records: Records, missing: int) -> Records:
    """The same behind one more batch that the answer's end has cut."""
    return Records((records.data or b"") + batch((b"cut",) * 5)[:-missing], records.messages)


_parts = st.builds(lambda values: Records(batch(values), len(values)), st.lists(st.binary(max_size=80), max_size=5)) | (
    st.builds(lambda value: Records(message_set(value), 1), st.binary(max_size=50))
)
_wholes = st.lists(_parts, max_size=5).map(
    lambda parts: Records(b"".join(part.data or b"" for part in parts), sum(part.messages for part in parts))
)
_records = st.just(NULL) | _wholes | st.builds(cut_off, _wholes, st.integers(1, len(batch((b"cut",) * 5)) - 1))


def with_records(message: Any, records: Iterator[Records]) -> Any:
    def refill(row: Any) -> Any:
        parts = (replace(part, records=data_of(message, next(records))) for part in row.partitions)
        return replace(row, partitions=tuple(parts))

    return replace(message, responses=tuple(refill(row) for row in message.responses))


def data_of(message: Any, records: Records) -> bytes | None:
    return records.data if type(message).__name__ == "FetchResponse" else records.data or b""


def key_of(row: Any) -> bytes:
    return row.topic.encode() if hasattr(row, "topic") else (row.topic_id or uuid.UUID(int=0)).bytes


def expected(message: Any, given_: list[Records]) -> dict[bytes, tuple[int, int]]:
    left, sums = iter(given_), dict[bytes, tuple[int, int]]()
    for row in message.responses:
        for _ in row.partitions:
            data, count = next(left)
            before = sums.get(key_of(row), (0, 0))
            sums[key_of(row)] = before[0] + len(data or b""), before[1] + count
    return {key: value for key, value in sums.items() if any(value)}


Sums = dict[bytes, tuple[int, int]]


def metered(case: tuple[int, int], content: bytes, cuts: Iterable[int] = ()) -> tuple[Sums, bytes, bool]:
    """(what it says, what the client gets, whether it was lost) for chunks that end at `cuts`; held ones come again."""
    meter = FetchMeter(*case, len(content))
    sums = dict[bytes, tuple[int, int]]()
    sent, held, last = b"", b"", 0
    for cut in [*cuts, len(content)]:
        chunk = held + content[last:cut]
        buf = bytearray(b"before" + chunk + b"behind")
        hold = meter.feed(buf, 6, 6 + len(chunk))
        for topic, size, count in meter.drain_topics():
            before = sums.get(topic, (0, 0))
            sums[topic] = before[0] + size, before[1] + count
        sent += bytes(buf[6 : 6 + len(chunk) - hold])
        held, last = bytes(buf[6 + len(chunk) - hold : 6 + len(chunk)]), cut
    assert held == b""
    return sums, sent, meter.lost


def hidden(case: tuple[int, int], content: bytes) -> bytes:
    """What a client gets that nobody meters."""
    if case[0] == api.FETCH and case[1] < 16:
        return content
    buf = bytearray(content)
    assert EndpointHider(*case, len(buf)).feed(buf, 0, len(buf)) == 0
    return bytes(buf)


def content_of(case: tuple[int, int], message: Any, tags: bytes = b"\0") -> bytes:
    return answer_header(type(message), 7, tags) + kio_encode(message)


def sample(case: tuple[int, int], given_: Iterable[Records] = SAMPLES) -> Any:
    """An answer with two topics that share these records' partitions, and two of everything else."""
    cls = answer_class(*case)
    topic_cls = element(cls, "responses")
    partition_cls = element(topic_cls, "partitions")
    given_ = list(given_)
    by_id = case >= (api.FETCH, api.FETCH_TOPIC_IDS)
    rows = tuple(
        filled(
            topic_cls,
            **({"topic_id": uuid.UUID(int=n + 1)} if by_id else {"topic": f"topic-{n}"}),
            partitions=tuple(filled(partition_cls, partition_index=i) for i in range(len(part))),
        )
        for n, part in enumerate((given_[: len(given_) // 2], given_[len(given_) // 2 :]))
    )
    return with_records(filled(cls, responses=rows), iter(given_))


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 61, 1000, 10**6])
def test_bytes_and_messages_by_topic_however_the_answer_is_cut(case: tuple[int, int], step: int) -> None:
    message = sample(case)
    content = content_of(case, message)
    sums, sent, lost = metered(case, content, range(step, len(content), step))
    assert not lost
    assert sums == expected(message, list(SAMPLES))
    assert sent == hidden(case, content)


@pytest.mark.parametrize("case", ALL)
@FEW
@given(data=st.data())
def test_any_answer_that_an_independent_encoder_writes(case: tuple[int, int], data: st.DataObject) -> None:
    message = data.draw(messages(answer_class(*case)))
    count = sum(len(row.partitions) for row in message.responses)
    records = data.draw(st.lists(_records, min_size=count, max_size=count))
    message = with_records(message, iter(records))
    content = content_of(case, message)
    for cuts in ([], range(1, len(content)), sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))):
        assert metered(case, content, cuts) == (expected(message, records), hidden(case, content), False)


@pytest.mark.parametrize("case", [case for case in ALL if case >= (api.FETCH, api.FETCH_FLEXIBLE)])
@FEW
@given(data=st.data())
def test_unknown_fields_are_passed_over(case: tuple[int, int], data: st.DataObject) -> None:
    message = sample(case)
    content = answer_header(type(message), 7, HEADER_TAGS) + encode(message, data.draw(extras(*CLASSES)))
    assert metered(case, content, range(5, len(content), 5)) == (
        expected(message, list(SAMPLES)), hidden(case, content), False
    )  # fmt: skip


@pytest.mark.parametrize("case", [(api.FETCH, 4), (api.FETCH, 18), (api.SHARE_FETCH, 2)])
def test_a_batch_that_the_end_has_cut_counts_by_its_bytes_only(case: tuple[int, int]) -> None:
    for missing in range(1, len(batch((b"cut",) * 5)), 1 if case[1] == 18 else 8):
        records = [cut_off(one, missing) for one in (EMPTY, MANY, MIXED)]
        message = sample(case, records)
        content = content_of(case, message)
        for step in (1, 10**6) if missing % 8 == 1 else (10**6,):
            assert metered(case, content, range(step, len(content), step))[0] == expected(message, records)


@pytest.mark.parametrize("case", ALL)
def test_an_answer_of_a_fetch_session_names_what_has_changed_only(case: tuple[int, int]) -> None:
    """An incremental one may be empty (KIP-227)."""
    message = filled(answer_class(*case), responses=())
    content = content_of(case, message)
    assert metered(case, content, range(1, len(content))) == ({}, hidden(case, content), False)


@pytest.mark.parametrize("case", [(api.FETCH, 11), (api.FETCH, 12)])
def test_a_topic_may_come_twice(case: tuple[int, int]) -> None:
    message = sample(case, [ONE, MANY])
    message = replace(message, responses=(*message.responses, message.responses[0]))
    both = [ONE, MANY, ONE]
    content = content_of(case, message)
    assert metered(case, content, range(9, len(content), 9))[0] == expected(message, both)
    assert expected(message, both)[b"topic-0"][1] == 2


def test_bytes_are_told_when_records_begin_and_messages_with_each_batch() -> None:
    case = (api.FETCH, 17)
    one = batch((b"x" * 1000,))
    content = content_of(case, sample(case, [NULL, Records(one * 3, 3)]))
    first = content.index(one)
    meter = FetchMeter(*case, len(content))
    told = []
    for start, end in ((0, first), (first, first + 60), (first + 60, first + 61), (first + 61, first + len(one) + 70)):
        meter.feed(bytearray(content[start:end]), 0, end - start)
        told.append([(size, count) for _, size, count in meter.drain_topics()])
    assert told == [[(3 * len(one), 0)], [], [(0, 1)], [(0, 1)]]


@pytest.mark.parametrize("case", [(api.FETCH, 8), (api.FETCH, 18)])
def test_the_kept_part_of_an_answer_does_not_grow_with_it(case: tuple[int, int]) -> None:
    records = Records(batch((b"x" * 100,)) * 2000, 2000)
    content = content_of(case, sample(case, [records] * 6))
    meter = FetchMeter(*case, len(content))
    kept = 0
    for start in range(0, len(content), 700):
        piece = content[start : start + 700]
        meter.feed(bytearray(piece), 0, len(piece))
        meter.drain_topics()
        slots = [slot for cls in type(meter).__mro__ for slot in getattr(cls, "__slots__", ()) if slot != "_program"]
        kept = max(kept, sum(sys.getsizeof(getattr(meter, slot, 0)) for slot in slots))  # compiled, some have no name
    assert len(content) > 2_000_000
    assert kept < 1000


# --- what can't be followed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("step", [1, 13, 10**6])
def test_an_answer_with_a_byte_too_few_or_too_many_is_passed_and_reported(case: tuple[int, int], step: int) -> None:
    whole = content_of(case, replace(sample(case), **({"node_endpoints": ()} if has_endpoints(case) else {})))
    for content in (whole[:-1], whole + b"\0", whole[: len(whole) // 2], whole[:3]):
        _, sent, lost = metered(case, content, range(step, len(content), step))
        assert sent == content
        assert lost


def has_endpoints(case: tuple[int, int]) -> bool:
    return hasattr(answer_class(*case), "node_endpoints")


@pytest.mark.parametrize("case", ALL)
@FEW
@given(data=st.data())
def test_any_bytes_are_all_passed_and_no_client_is_charged_for_more(case: tuple[int, int], data: st.DataObject) -> None:
    content = bytearray(content_of(case, sample(case), HEADER_TAGS))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    outcomes = []
    for cuts in ([], range(1, len(content)), sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))):
        sums, sent, lost = metered(case, bytes(content), cuts)
        assert len(sent) == len(content)
        assert sum(size for size, _ in sums.values()) <= len(content)
        outcomes.append((sums, sent, lost))
    assert outcomes[0] == outcomes[1] == outcomes[2]  # it does not depend on where the chunks end


@pytest.mark.parametrize("case", [(api.FETCH, 4), (api.FETCH, 18)])
@FEW
@given(junk=st.binary(max_size=200))
def test_records_that_are_none_cost_their_bytes(case: tuple[int, int], junk: bytes) -> None:
    message = sample(case, [Records(junk, 0), ONE])
    content = content_of(case, message)
    outcomes = [metered(case, content, range(step, len(content), step)) for step in (1, 17, 10**6)]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    sums, _, lost = outcomes[0]
    assert not lost
    assert sum(size for size, _ in sums.values()) == len(junk) + len(ONE.data or b"")


@pytest.mark.parametrize(
    ("magic", "length", "count"), [(2, 49, -1), (2, 48, 1), (3, 49, 1), (-1, 49, 1), (2, -1, 1), (1, 13, 1), (0, 0, 1)]
)
def test_a_batch_header_that_makes_no_sense_counts_no_message(magic: int, length: int, count: int) -> None:
    case = (api.FETCH, 12)
    head = struct.pack(">qi4xb40xi", 0, length, magic, count)
    assert len(head) == 61
    message = sample(case, [NULL, Records(head * 2, 0)])
    content = content_of(case, message)
    for step in (1, 10**6):
        assert metered(case, content, range(step, len(content), step))[0] == {b"topic-1": (122, 0)}


@pytest.mark.parametrize("size", [250, 32767])
def test_a_topic_with_a_longer_name_than_any_is_not_followed(size: int) -> None:
    case = (api.FETCH, 7)
    message = sample(case, [ONE, ONE])
    message = replace(message, responses=(replace(message.responses[0], topic="t" * size),))
    content = content_of(case, message)
    assert metered(case, content, [30]) == ({}, content, True)


@pytest.mark.parametrize("case", [(api.FETCH, 3), (api.FETCH, 19), (api.SHARE_FETCH, 0), (api.METADATA, 12)])
def test_an_answer_of_another_kind_is_passed_and_reported(case: tuple[int, int]) -> None:
    assert case not in METERED_PROGRAMS
    assert metered(case, bytes(50), [10, 20]) == ({}, bytes(50), True)


def test_every_version_that_is_let_through_can_be_metered() -> None:
    """A cap that is raised without a layout here would leave a consumer without its limit."""
    for key in (api.FETCH, api.SHARE_FETCH):
        versions = range(api.LOWEST_VERSIONS[key], api.HIGHEST_VERSIONS[key] + 1)
        assert all((key, version) in METERED_PROGRAMS for version in versions)
