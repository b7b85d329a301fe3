# What the partitions of a request are together, against the same said in a line or two.

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.variants import COMPILED, module

Part = tuple[bytes, int, int, int, int, int, int, int]
Answered = tuple[bytes, int, int, int]

names = st.sampled_from([b"", b"a", b"b", b"c"])
keys = st.lists(
    st.tuples(names, st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3)), unique=True, min_size=2, max_size=12
)


@pytest.fixture(scope="module")
def fast_path() -> ModuleType:
    return module("gateway.data.session.fast_path", COMPILED)


def gathered(rows: list[Any]) -> Any:
    return module("protocol.produce.produce_fast", COMPILED).gather_partitions(rows)


def part(topic: bytes, index: int, size: int = 100, pid: int = 7, trailing: int = 0) -> Part:
    return bytes(bytearray(topic)), index, size, 2, pid, 0, 0, trailing


def answered(parts: list[Part]) -> list[Answered]:
    return [(bytes(bytearray(row[0])), row[1], 0, 1000 + place) for place, row in enumerate(parts)]


def offsets(fast_path: ModuleType, parts: list[Part], rows: list[Answered]) -> list[int] | None:
    found = fast_path.written_offsets(gathered(parts), gathered(rows))
    return None if found is None else list(found)


@given(keys, st.lists(st.integers(0, 2**31 - 1), min_size=12, max_size=12))
def test_a_topic_brings_what_its_partitions_bring(
    fast_path: ModuleType, keys: list[tuple[bytes, int]], sizes: list[int]
) -> None:
    parts = [part(*key, size) for key, size in zip(keys, sizes, strict=False)]
    found: dict[bytes, list[int]] = {}
    for topic, size, messages in fast_path.sums_by_topic(gathered(parts)):
        so_far = found.setdefault(topic, [0, 0])
        so_far[0] += size
        so_far[1] += messages
    assert found == {
        topic: [sum(p[2] for p in parts if p[0] == topic), sum(p[3] for p in parts if p[0] == topic)]
        for topic, _ in keys
    }


@given(keys, st.randoms(use_true_random=False))
def test_offsets_are_told_in_the_order_of_the_request(
    fast_path: ModuleType, keys: list[tuple[bytes, int]], chance: object
) -> None:
    parts = [part(*key) for key in keys]
    rows = answered(parts)
    expected = [row[3] for row in rows]
    assert offsets(fast_path, parts, rows) == expected
    chance.shuffle(rows)  # type: ignore[attr-defined]
    assert offsets(fast_path, parts, rows) == expected


@given(keys.filter(bool), st.data())
def test_anything_else_is_none(fast_path: ModuleType, keys: list[tuple[bytes, int]], data: st.DataObject) -> None:
    parts = [part(*key) for key in keys]
    rows = answered(parts)
    place = data.draw(st.integers(0, len(keys) - 1))
    topic, index, _, offset = rows[place]
    if data.draw(st.booleans()):
        data.draw(st.randoms(use_true_random=False)).shuffle(rows)
        place = rows.index((topic, index, 0, offset))
    for wrong in ((topic, index, 6, offset), (topic + b"?", index, 0, offset), (topic, index ^ 2**30, 0, offset)):
        assert offsets(fast_path, parts, [*rows[:place], wrong, *rows[place + 1 :]]) is None
    assert offsets(fast_path, parts, rows[1:]) is None
    assert offsets(fast_path, parts, [*rows, rows[0]]) is None
    late = data.draw(st.integers(0, len(keys) - 1))
    parts[late] = part(*keys[late], trailing=1)
    assert offsets(fast_path, parts, rows) is None


def test_without_producer_ids_nobody_needs_the_offsets(fast_path: ModuleType) -> None:
    parts = [part(b"a", index, pid=-1) for index in range(3)]
    assert offsets(fast_path, parts, answered(parts)) == []
    parts[1] = part(b"a", 1, pid=0)
    assert offsets(fast_path, parts, answered(parts)) == [1000, 1001, 1002]
