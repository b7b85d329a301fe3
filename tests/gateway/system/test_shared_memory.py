# Memory that real processes share, and the bucket in it: what they take at the same moment, and what is left of one
# that is killed.

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.system import shared_memory
from gateway.system.shared_memory import SharedMemoryRegion
from policies.fleet import page
from policies.fleet.page import SharedPage
from tests.gateway.system.page_worker import KEY, MANY, RATE, WORKERS, bucket

PROGRAM = Path(__file__).with_name("page_worker.py")
ROOT = Path(__file__).parents[3]


class Process:
    """A worker of that number."""

    def __init__(self, fd: int, number: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(fd), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd], text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self.answer() == "ready"

    def say(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, *words: object) -> float:
        self.say(*words)
        return float(self.answer())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):  # what was written to it last
                stream.close()


Start = Callable[[int], Process]


@pytest.fixture
def fd() -> Iterator[int]:
    made = shared_memory.create_shared_memory(page.page_size(WORKERS))
    yield made
    os.close(made)


@pytest.fixture
def start(fd: int) -> Iterator[Start]:
    started: list[Process] = []

    def begin(number: int) -> Process:
        started.append(Process(fd, number))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


def test_bytes_that_one_process_takes_are_seen_by_the_other_one(start: Start) -> None:
    one, two = start(0), start(1)
    assert one.ask("take", 10.0, 3000) == -2000
    assert two.ask("level", 10.0) == -2000
    assert two.ask("take", 11.0, 500) == -1500
    assert one.ask("level", 12.5) == 0


def test_no_byte_is_lost_where_processes_take_at_the_same_moment(start: Start) -> None:
    many = [start(number) for number in range(WORKERS)]
    many[0].ask("take", 10.0, 1000)  # what was saved
    for number, process in enumerate(many):
        process.say("many", 10.0, number + 1)
    for process in many:
        process.answer()
    expected = -float(MANY * sum(range(1, WORKERS + 1)))
    assert [process.ask("level", 10.0) for process in many] == [expected] * WORKERS


def test_credit_that_comes_in_meanwhile_comes_in_once(start: Start) -> None:
    many = [start(number) for number in range(WORKERS)]
    began = time.monotonic()
    level = many[0].ask("take", began, 10**6)
    for process in many:
        process.say("many", 0, 10)
    for process in many:
        process.answer()
    now = time.monotonic()
    expected = level - 10 * MANY * WORKERS + RATE * (now - began)
    assert [process.ask("level", now) for process in many] == [pytest.approx(expected)] * WORKERS


def test_bytes_that_a_killed_process_took_stay_taken(start: Start) -> None:
    one, two = start(0), start(1)
    one.ask("take", 10.0, 6000)
    one.kill()
    assert two.ask("level", 11.0) == -4000
    assert start(0).ask("level", 12.0) == -3000, "the one that was started in its place finds it"


def test_a_row_that_a_killed_process_held_is_free_when_it_is_started_again(fd: int, start: Start) -> None:
    start(0).kill()
    memory = SharedMemoryRegion(fd)
    mine = SharedPage(memory.view, WORKERS, 1, memory.hold_lock)

    def users() -> float:
        row = mine.acquire_row(KEY)
        assert row is not None
        row.release_row()
        return sum(row._cells[page.USERS :: page.CELLS])

    assert users() == 1
    SharedPage(memory.view, WORKERS, 0, memory.hold_lock)
    assert users() == 0


def test_the_lock_keeps_out_a_process_that_inherited_the_same_descriptor_and_dies_with_its_holder(
    fd: int, start: Start
) -> None:
    one, two = start(0), start(1)
    one.say("lock")
    assert one.answer() == "locked"
    with pytest.raises(BlockingIOError):
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    one.kill()
    two.say("lock")
    assert two.answer() == "locked"


def test_memory_that_no_process_writes_to_takes_none(fd: int) -> None:
    assert os.fstat(fd).st_size == page.page_size(WORKERS) > 2**20
    assert os.fstat(fd).st_blocks == 0
    memory = SharedMemoryRegion(fd)
    bucket(SharedPage(memory.view, WORKERS, 0, memory.hold_lock)).consume_tokens(1, 10.0)
    assert os.fstat(fd).st_blocks * 512 < 0.1 * page.page_size(WORKERS)
