# The order of answers, and what is owed of a request of one partition. Compiled and not.

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.data.pending import in_flight
from gateway.data.pending.pending import LOCAL, NOTHING, PASS, PRODUCE, SASL
from gateway.data.shared.budget import MemoryAccount, MemoryBudget
from tests.variants import COMPILED, PURE, module

PART = (b"clicks", 3, 168, 2, 4000, 1, 17, 0)
STAMP = (1.0, 2.0, 4)


@pytest.fixture(params=[PURE, COMPILED])
def flight(request: pytest.FixtureRequest) -> Any:
    return new(request.param)


def new(variant: str, limit: int = 10**6) -> Any:
    return module("gateway.data.pending.in_flight", variant).InFlightRequests(
        MemoryAccount(MemoryBudget(limit), "User:x")
    )


def test_nothing_is_owed_at_first_and_after_all_was_dropped(flight: Any) -> None:
    for _ in range(2):
        assert (len(flight), flight.oldest_kind, list(flight)) == (0, NOTHING, [])
        with pytest.raises(IndexError):
            flight.oldest_entry()
        flight.drop_oldest()
        flight.append((1, PASS))
        assert (len(flight), flight.oldest_kind, flight.oldest_entry()) == (1, PASS, (1, PASS))
        flight.drop_oldest()


def test_a_request_of_one_partition_is_owed_what_a_careful_entry_says(flight: Any) -> None:
    flight.append_produce(-5, 9, *PART, "limits", STAMP)
    assert flight.oldest_kind == PRODUCE
    assert flight.oldest_entry() == (-5, PRODUCE, 9, [PART], None, 0, "limits", STAMP)


def test_a_chain_as_long_as_any_connection_has_ends_at_once(flight: Any) -> None:
    for correlation in range(in_flight.MAX_PENDING):
        assert not flight.is_full
        flight.append_produce(correlation, 9, *PART, None, None)
    assert flight.is_full
    assert not flight.has_room
    flight.drop_all()
    assert (len(flight), list(flight), flight.has_room) == (0, [], True)


def test_many_partitions_wait_where_memory_is_short_and_so_does_what_is_behind_a_step_of_sasl() -> None:
    for variant in (PURE, COMPILED):
        flight, many = new(variant, limit=1), [PART] * (in_flight.FEW_PARTITIONS + 1)
        assert not flight.charge_partitions(many[1:])
        assert flight.charge_partitions(many)
        assert flight.is_full
        flight.append((1, SASL, None))
        flight.release_partitions(many)
        assert flight.is_reading_blocked, "for the answer to a step of SASL"
        assert flight.charge_partitions(many)
        flight.drop_oldest()
        flight.release_partitions(many)
        assert not flight.is_reading_blocked


STEPS = st.lists(st.sampled_from(["request", "produce", "local", "release", "answer", "clear"]), max_size=40)


@pytest.mark.parametrize("variant", [PURE, COMPILED])
@given(STEPS)
def test_answers_leave_in_the_order_of_the_requests(variant: str, steps: list[str]) -> None:
    """Beside a plain queue of whole entries."""
    flight, queue, out = new(variant), deque[Any](), []
    for asked, step in enumerate(steps, 1):
        match step:
            case "request":
                flight.append((asked, PASS))
                queue.append((asked, PASS))
            case "produce":
                flight.append_produce(asked, 9, *PART, None, None)
                queue.append((asked, PRODUCE, 9, [PART], None, 0, None, None))
            case "local":
                flight.enqueue_local_response(asked)
                if queue:
                    queue.append((-1, LOCAL, asked))
                else:
                    out.append(asked)
            case "release":
                flight.release_local_responses()
            case "clear":
                flight.drop_all()
                queue.clear()
            case _ if queue:
                flight.drop_oldest()
                queue.popleft()
                flight.release_local_responses()
                while queue and queue[0][1] == LOCAL:
                    out.append(queue.popleft()[2])
        assert (list(flight), flight.outgoing, len(flight)) == (list(queue), out, len(queue))
        assert flight.oldest_kind == (queue[0][1] if queue else NOTHING)
