# The judge judged: each thing that it must see, in a log made by hand. No broker, no client.

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from tests.clients import harness, processes
from tests.clients.harness import Log

SENT = 9  # three transactions of three records, over two partitions


def told(
    failed: tuple[int, ...] = (), unresolved: tuple[int, ...] = (), aborted: tuple[int, ...] = ()
) -> harness.Result:
    return {"sent": SENT, "failed": [*failed], "unresolved": [*unresolved], "aborted": [*aborted]}


def log(*partitions: list[int], **more: int) -> Log:
    return Log({f"t/{n}": numbers for n, numbers in enumerate(partitions)}, **more)


EVEN, ODD = [0, 2, 4, 6, 8], [1, 3, 5, 7]


def test_a_log_with_every_record_once_and_in_order_is_clean() -> None:
    verdict = harness.judge(told(), log(EVEN, ODD))
    assert verdict.clean
    assert verdict.acknowledged == SENT


@pytest.mark.parametrize(
    ("result", "there", "finding"),
    [
        (told(), log(EVEN, [1, 3, 7]), {"lost": (5,)}),
        (told(), log(EVEN, [1, 3, 5, 5, 7, 5]), {"duplicates": 2}),
        (told(), log(EVEN, [1, 5, 3, 7]), {"reordered": 1}),
        (told(aborted=(3, 4, 5)), log(EVEN, [1, 7]), {"unexpected": (4,)}),
        (told(), log(EVEN, ODD, damaged=1), {"damaged": 1}),
    ],
    ids=["lost", "twice", "out of order", "of an aborted transaction", "damaged"],
)
def test_each_fault_is_found_and_no_other(result: harness.Result, there: Log, finding: dict[str, Any]) -> None:
    verdict = harness.judge(result, there)
    assert not verdict.clean
    faults = {"lost": (), "duplicates": 0, "reordered": 0, "unexpected": (), "damaged": 0}
    assert {name: getattr(verdict, name) for name in faults} == faults | finding


def test_a_record_whose_failure_was_told_may_be_there_or_not() -> None:
    verdict = harness.judge(told(failed=(8,), unresolved=(7,)), log([0, 2, 4, 6, 8], [1, 3, 5]))
    assert verdict.clean
    assert verdict.written_though_failed == 1
    assert verdict.acknowledged == SENT - 2


def test_a_repetition_is_a_duplicate_and_no_disorder() -> None:
    assert harness.reordered([0, 1, 2, 0, 1, 2, 3]) == 0
    assert harness.reordered([0, 2, 1, 4, 3]) == 2


def test_the_records_a_consumer_saw_are_held_against_the_log() -> None:
    there = log(EVEN, ODD)
    assert harness.judge_reading({"partitions": {"t/0": EVEN, "t/1": ODD}}, there) == []
    [finding] = harness.judge_reading({"partitions": {"t/0": EVEN, "t/1": [1, 3, 7, 7]}}, there)
    assert finding == "t/1: 4 records seen, 4 there: missing [5], too many [7]"
    [finding] = harness.judge_reading({"partitions": {"t/0": EVEN, "t/1": [1, 5, 3, 7]}}, there)
    assert finding.endswith("in another order")
    [finding] = harness.judge_reading({"partitions": {"t/0": EVEN}}, there)
    assert finding.startswith("t/1: 0 records seen, 4 there")


@pytest.mark.parametrize(
    ("value", "number", "damaged"),
    [(b"c:r:7|xxxx", 7, 0), (b"c:r:7|xxxy", 7, 1), (b"c:r:7|xxx", 7, 1), (b"c:r:7", 7, 1), (b"c:s:7|xxxx", None, 0)],
)
def test_a_record_counts_as_whole_only_byte_for_byte(value: bytes, number: int | None, damaged: int) -> None:
    there = Log()
    harness._note(there, ("t", 0), value, b"c:r:", 10)
    assert there.numbers() == ([] if number is None else [number])
    assert (there.damaged, there.strangers) == (damaged, int(number is None))


def test_a_watch_tells_allowed_principals_from_others(proc: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for allowed, seen, strangers in (({os.getpid()}, {os.getpid()}, set()), (set(), set(), {os.getpid()})):
            watch = processes.Watch({port}, lambda allowed=allowed: allowed)  # type: ignore[misc]
            with socket.create_connection(("127.0.0.1", port)):
                watch.look()
            assert watch.seen[port] == seen
            assert watch.strangers.keys() == strangers
