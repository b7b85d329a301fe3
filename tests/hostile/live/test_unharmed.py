# What unharmed.py calls harm, and that it sees it.

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from urllib.request import urlopen

import pytest

from gateway.embedded import wait_for
from tests.clients.gateways import Gateway
from tests.hostile.live.unharmed import MEMORY, RoundTrip, Took, Unharmed, family, unharmed, versions
from tests.hostile.strangers import Broker


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with closing(Broker()) as broker, Gateway(f"127.0.0.1:{broker.port}", {"internal_topics": "none"}, 1) as running:
        yield running


def is_ready(gateway: Gateway) -> bool:
    try:
        with urlopen(f"{gateway.health}/readyz", timeout=10):
            return True
    except OSError:
        return False


def seen(gateway: Gateway, waits: list[float], beside: float = 0.001) -> Unharmed:
    """Questions one second after the other, each beside one to the bare server."""
    found = Unharmed(gateway, MEMORY)
    found.ready = [Took(10.0 * number, wait) for number, wait in enumerate(waits)]
    found.bare = [Took(10.0 * number, beside) for number in range(len(waits))]
    return found


def test_whoever_was_answered_in_time_was_not_harmed(gateway: Gateway) -> None:
    assert seen(gateway, [0.01] * 100).faults() == []
    assert seen(gateway, [0.01] * 98 + [1.5, 1.5]).faults() == []


def test_late_answers_are_harm_but_not_where_the_machine_stood_still(gateway: Gateway) -> None:
    waits = [0.01] * 90 + [4.0] * 10
    assert "10 of 100 answers were late or no, up to 4.0 s" in seen(gateway, waits).faults()[0]
    assert seen(gateway, waits, beside=3.0).faults() == []


def test_late_answers_are_no_harm_where_a_process_had_no_core(gateway: Gateway) -> None:
    found = seen(gateway, [0.01] * 90 + [4.0] * 10)
    found.starved = [(-1.0, {"control": 0.0, "worker 0": 1.0}), (899.0, {"control": 0.1, "worker 0": 1.0})]
    assert "10 of 100 answers were late" in found.faults()[0]
    found.starved += [(895.0 + 10 * number, {"control": 0.1, "worker 0": 3.0 * number}) for number in range(1, 11)]
    assert found.faults() == []


def test_one_that_got_no_answer_was_harmed(gateway: Gateway) -> None:
    assert "no answer for 1 of 100" in seen(gateway, [0.01] * 99 + [11.0]).faults()[0]
    found = seen(gateway, [0.01] * 100)
    found.good = [Took(0.0, 0.1, error="ConnectionError: closed")]
    assert "the good client: no answer for 1 of 1" in found.faults()[0]


def test_memory_that_is_kept_is_harm(gateway: Gateway) -> None:
    found = seen(gateway, [])
    found.more["control"] = MEMORY + 1
    assert found.faults() == ["control had 128 MiB more, at most 128 are allowed"]


def test_nothing_is_found_where_nobody_came(gateway: Gateway) -> None:
    with unharmed(gateway, partial(versions, gateway.broker_port(1))) as found:
        wait_for("the first questions", lambda: bool(found.ready and found.bare and found.good))


def test_a_process_that_ends_is_seen_though_there_is_another_one(gateway: Gateway) -> None:
    def end_control() -> None:
        with unharmed(gateway):
            before = family(gateway)
            os.kill(before["control"], signal.SIGKILL)
            wait_for("another control", lambda: family(gateway).get("control", 0) not in (0, before["control"]))

    with pytest.raises(AssertionError, match="1 deaths in the log"):
        end_control()
    wait_for("a gateway that is ready again", lambda: is_ready(gateway))  # others ask it as well


def test_a_client_that_is_cut_off_is_seen(gateway: Gateway) -> None:
    @contextmanager
    def cut_off() -> Iterator[RoundTrip]:
        def ask() -> None:
            raise ConnectionError("closed")

        yield ask

    def play() -> None:
        with unharmed(gateway, cut_off) as found:
            wait_for("the first question", lambda: bool(found.good))

    with pytest.raises(AssertionError, match="the good client: no answer"):
        play()
