# The bound on memory: who may read on, who waits, and that some frame can always come to its end, whatever clients
# announce and however their bytes come.

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.data.shared.budget import (
    EXCESS_FACTOR,
    FIRST_BYTES,
    GROWTH_FACTOR,
    OWNER_SHARE,
    POOLED_BYTES,
    FrameBuffer,
    MemoryAccount,
    MemoryBudget,
)
from gateway.data.sockets.inbound import HEAD_ROOM, SHARED_READ_BYTES, InboundBuffer, SharedReadBuffer

LIMIT = 4 * 2**20
FIRST = FIRST_BYTES + 1  # bytes of a first read for which there is a buffer


class Socket:
    """A peer that has sent so many bytes: the head of a frame, and whatever."""

    def __init__(self) -> None:
        self.there = 0
        self.head = b""

    def recv_into(self, view: memoryview) -> int:
        count = min(self.there, len(view))
        if not count:
            raise BlockingIOError
        self.there -= count
        taken, self.head = self.head[:count], self.head[count:]
        view[: len(taken)] = taken
        return count


class Reading(InboundBuffer):
    def is_socket_empty(self, sock: Any) -> bool:
        return True  # it has no descriptor


class Client:
    """One connection that sends one frame of `size` bytes after the other, `rest` of which it hasn't sent yet."""

    def __init__(self, shared: SharedReadBuffer, budget: MemoryBudget, owner: str, *, is_client: bool = True) -> None:
        self.account = MemoryAccount(budget, owner)
        self.sock = Socket()
        self.inbound = Reading(shared, self.account, lambda: None, is_client=is_client)
        self.size = self.rest = self.unasked = 0

    def announce(self, size: int, come: int) -> None:
        self.size, self.rest = size, size
        self.sock.head = struct.pack(">i", size - 4)
        self.send(come)
        self.receive()

    def send(self, size: int) -> None:
        size = min(size, self.rest)
        self.rest -= size
        self.sock.there += size

    def receive(self) -> int:
        """What the link does when its socket is ready; bytes that were read."""
        inbound, before = self.inbound, self.inbound.partial_bytes
        is_asked = inbound.large_frame is not None
        n = inbound.receive(cast("Any", self.sock))
        if n and inbound.end - inbound.start == self.size:  # it is whole, and its broker takes it at once
            large = inbound.large_frame
            if large is not None:
                inbound.detach_frame()
                self.account.release_buffer(large)
            self.size = self.unasked = 0
            return n
        if n:
            inbound.keep_partial_frame(inbound.start, self.size)
        if not is_asked:
            self.unasked = inbound.partial_bytes
        return inbound.partial_bytes - before

    @property
    def is_ready(self) -> bool:
        return bool(self.sock.there) and not self.inbound.waits_for_memory

    def close(self) -> None:
        self.inbound.close()
        self.account.close()
        self.size = self.rest = self.unasked = self.sock.there = 0


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(LIMIT)


@pytest.fixture
def crowd(budget: MemoryBudget) -> Iterator[Any]:
    shared = SharedReadBuffer()
    clients: list[Client] = []

    def come(owner: str, size: int, come: int = FIRST, **how: Any) -> Client:
        clients.append(Client(shared, budget, owner, **how))
        clients[-1].announce(size, come)
        return clients[-1]

    yield come
    for client in clients:
        client.close()
    assert (budget.used_bytes, budget.active_requests, budget.owners, budget.has_waiters) == (0, 0, {}, False)


def test_a_buffer_is_mapped_for_what_has_come(budget: MemoryBudget, crowd: Any) -> None:
    client = crowd("10.0.0.9", 2_000_000, FIRST)
    while client.size:
        large = client.inbound.large_frame
        assert large is not None
        assert client.inbound.partial_bytes < len(large.buffer) <= 2 * GROWTH_FACTOR * client.inbound.partial_bytes
        client.send(300_000)
        client.receive()


def test_of_a_frame_of_which_little_has_come_there_is_no_buffer(crowd: Any) -> None:
    client = crowd("10.0.0.9", 2_000_000, 100)
    assert (client.inbound.large_frame, client.inbound.partial_bytes) == (None, 100)


def test_buffers_that_were_written_to_are_not_all_lent_to_who_sends_nothing(crowd: Any, budget: MemoryBudget) -> None:
    lent: list[FrameBuffer | None] = []
    for _ in range(2):
        budget.limit_bytes = 2**30
        for client in [crowd("User:a", 100_000) for _ in range(POOLED_BYTES // 2**17 + 10)]:  # each leaves a buffer
            client.send(100_000)
            client.receive()
            assert not client.size
        assert budget._pooled_bytes == POOLED_BYTES
        budget.limit_bytes = LIMIT
        lent += [crowd("10.0.0.9", 100_000, 100).inbound.large_frame for _ in range(400)]
    assert sum(len(large.buffer) for large in lent if large is not None) == POOLED_BYTES


def test_no_owner_takes_more_than_its_share_and_others_go_on_beside_it(budget: MemoryBudget, crowd: Any) -> None:
    greedy = [crowd("10.0.0.9", 1_000_000) for _ in range(4)]
    for client in greedy:
        client.send(900_000)
        while client.is_ready:
            client.receive()
    assert budget.owners["10.0.0.9"].used_bytes <= LIMIT * OWNER_SHARE
    assert [client.inbound.waits_for_memory for client in greedy] == [False, True, True, True]
    assert greedy[0].account.is_contended
    assert budget.has_waiters
    assert not budget.is_contended, "that makes memory short for others"
    other = crowd("User:a", 1_000_000)
    other.send(1_000_000)
    while other.size:
        assert other.receive(), "it waits"
    greedy[0].send(1_000_000)
    greedy[0].receive()
    assert not greedy[1].inbound.waits_for_memory, "it waits for memory that is there"


def test_memory_that_a_connection_holds_goes_with_it_to_its_principal(budget: MemoryBudget, crowd: Any) -> None:
    client = crowd("10.0.0.9", 100_000)
    client.account.change_owner("User:a")
    held = {name: (owner.used_bytes, owner.active_requests) for name, owner in budget.owners.items()}
    assert held == {"User:a": (FIRST, 1)}


def test_frames_larger_than_all_memory_pass_one_at_a_time(budget: MemoryBudget, crowd: Any) -> None:
    one, two = crowd("User:a", LIMIT + 4), crowd("User:b", LIMIT + 4)
    for client in (one, two):
        client.send(3_000_000)
        while client.is_ready:
            client.receive()
    assert two.inbound.waits_for_memory
    one.send(LIMIT)
    while one.size:
        assert one.receive()
    while two.size:
        two.send(LIMIT)
        assert two.receive()


@pytest.mark.parametrize(
    ("owners", "most"), [(150, LIMIT), (1, LIMIT * OWNER_SHARE)], ids=["all", "those of one owner"]
)
def test_where_all_wait_for_each_other_one_goes_on(owners: int, most: float, budget: MemoryBudget, crowd: Any) -> None:
    clients = [crowd(f"User:{number % owners}", 100_000) for number in range(int(most) // FIRST + 1)]
    assert budget.used_bytes > most
    for client in clients:
        client.send(100_000)
        client.receive()
    assert clients[1].inbound.waits_for_memory
    while ready := [client for client in clients if client.is_ready]:
        for client in ready:
            client.receive()
    assert not any(client.size for client in clients)


def test_one_that_has_waited_for_long_goes_on_whatever_is_free(budget: MemoryBudget, crowd: Any) -> None:
    holder = crowd("User:b", 100_000)
    holder.account.charge_bytes(LIMIT)  # as of answers that nobody reads
    waiting = [crowd("User:a", 500_000) for _ in range(2)]
    for client in waiting:
        client.send(500_000)
        client.receive()
        assert client.inbound.waits_for_memory
        client.account.prioritize_frame(client.inbound.large_frame, client.inbound)
    one, two = waiting
    assert (one.inbound.waits_for_memory, two.inbound.waits_for_memory) == (False, True)
    while one.size:
        assert one.receive()
    two.account.prioritize_frame(two.inbound.large_frame, two.inbound)
    while two.size:
        assert two.receive()
    holder.account.release_bytes(LIMIT)


def test_an_answer_waits_only_where_memory_is_far_exceeded(budget: MemoryBudget, crowd: Any) -> None:
    holder = crowd("User:b", 100_000)
    holder.account.charge_bytes(LIMIT)
    answered = crowd("User:a", 300_000, is_client=False)
    assert not answered.inbound.waits_for_memory
    holder.account.charge_bytes(LIMIT)
    waits = crowd("User:c", 300_000, is_client=False)
    assert waits.inbound.waits_for_memory
    answered.send(300_000)
    while answered.size:
        assert answered.receive(), "it has begun"
    holder.account.release_bytes(2 * LIMIT - int(LIMIT * EXCESS_FACTOR) + FIRST + FIRST)
    assert not waits.inbound.waits_for_memory
    holder.account.release_bytes(int(LIMIT * EXCESS_FACTOR) - 2 * FIRST)


def test_a_connection_that_ends_while_it_waits_leaves_its_turn(budget: MemoryBudget, crowd: Any) -> None:
    holder = crowd("User:b", 100_000)
    holder.account.charge_bytes(LIMIT)
    gone, stays = crowd("User:a", 500_000), crowd("User:a", 600_000)
    for client in (gone, stays):
        client.send(100)
        client.receive()
        assert client.inbound.waits_for_memory
    gone.close()
    gone.account._join_owner("User:a")  # the fixture ends it as well
    holder.account.release_bytes(LIMIT)
    assert not stays.inbound.waits_for_memory


def test_waits_that_have_ended_leave_nothing_behind_while_another_goes_on(budget: MemoryBudget, crowd: Any) -> None:
    """Clients may begin a frame, and go, for as long as one of them waits that needs less."""
    holder = crowd("User:b", 100_000)
    holder.account.charge_bytes(LIMIT)
    stays = crowd("User:a", 200_000)
    stays.send(100)
    stays.receive()
    assert stays.inbound.waits_for_memory
    owner = stays.account.owner
    for _ in range(200):
        gone = Client(SharedReadBuffer(), budget, "User:a")
        gone.announce(500_000, FIRST)
        gone.send(100)
        gone.receive()
        assert gone.inbound.waits_for_memory
        gone.close()
    assert len(owner._least_first) < 20
    holder.account.release_bytes(LIMIT)
    assert not stays.inbound.waits_for_memory


# --- any order --------------------------------------------------------------------------------------------------------


class Memory(RuleBasedStateMachine):
    """Clients of several owners announce frames of any size, and send what they like of them."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = MemoryBudget(LIMIT)
        self.shared = SharedReadBuffer()
        self.clients: list[Client] = []

    def pick(self, which: int) -> Client:
        return self.clients[which % len(self.clients)]

    @rule(
        owner=st.sampled_from("abc"),
        size=st.one_of(st.integers(HEAD_ROOM + 1, LIMIT), st.just(LIMIT)),
        come=st.one_of(st.integers(4, SHARED_READ_BYTES), st.just(FIRST)),
    )
    def announce(self, owner: str, size: int, come: int) -> None:
        client = next((each for each in self.clients if not each.size), None)
        if client is None or client.account._owner_name != owner:
            client = Client(self.shared, self.budget, owner)
            self.clients.append(client)
        client.announce(size, min(come, size))

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 99), size=st.one_of(st.integers(1, 3), st.integers(1, LIMIT)), turns=st.integers(1, 9))
    def send(self, which: int, size: int, turns: int) -> None:
        client = self.pick(which)
        client.send(size)
        for _ in range(turns):
            if client.is_ready:
                self.turn(client)

    def turn(self, client: Client) -> int:
        large, come = client.inbound.large_frame, client.inbound.partial_bytes
        read = client.receive()
        is_first = large is not None and large in (self.budget.priority_frame, client.account.owner.priority_frame)
        if large is not None and read and client.size and not is_first:
            assert self.budget.used_bytes + large.size - client.inbound.partial_bytes <= LIMIT, (
                "it can't come to its end"
            )
        assert client.inbound.waits_for_memory or client.inbound.partial_bytes != come or not client.size
        return read

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        client = self.pick(which)
        self.clients.remove(client)
        client.close()

    @rule()
    def go_on(self) -> None:
        """All that has been sent is read, as far as there is room."""
        while sum(self.turn(client) for client in self.clients if client.is_ready):
            pass

    @rule()
    def finish(self) -> None:
        """All send the rest: all get through."""
        for client in self.clients:
            client.send(LIMIT)
        while unfinished := [client for client in self.clients if client.size]:
            self.go_on()
            assert any(not client.size for client in unfinished), "all wait for each other"

    @invariant()
    def only_what_has_come_is_charged(self) -> None:
        assert self.budget.used_bytes == sum(client.inbound.partial_bytes for client in self.clients)

    @invariant()
    def within_the_limit(self) -> None:
        """But for what came unasked, and for the rest of the first."""
        unasked = sum(client.unasked for client in self.clients)
        first = self.budget.priority_frame
        assert self.budget.used_bytes <= LIMIT + unasked + (first.size if first is not None else 0)

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        self.budget.resume_waiters()
        for client in self.clients:
            large = client.inbound.large_frame
            if client.inbound.waits_for_memory:
                assert large is not None
                need, owner = large.needed_bytes - client.inbound.partial_bytes, client.account.owner
                fits = self.budget.used_bytes + need <= LIMIT and owner.used_bytes + need <= LIMIT * OWNER_SHARE
                assert not fits, "it waits though it fits"

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        assert (self.budget.used_bytes, self.budget.active_requests, self.budget.owners) == (0, 0, {})


Memory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemory = Memory.TestCase
