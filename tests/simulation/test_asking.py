# Since when clients were held back, as far as their requests and answers tell.

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.simulation.asking import Asking, since_bounds
from tests.simulation.clock import START_S, UNIX_S
from tests.simulation.judge import HeldBack, Judge


@pytest.mark.parametrize(
    ("spans", "bounds"),
    [
        ([(50.0, 50.0)], (50.0, 50.0)),
        ([(0.0, 0.0), (50.0, 50.0), (60.0, 60.0)], (50.0, 50.0)),  # a pause that is surely long
        ([(15.0, 15.0), (50.0, 50.0)], (15.0, 50.0)),  # one that may be too short
        ([(0.0, 0.0), (30.0, 50.0)], (0.0, 50.0)),  # held by the gateway at any time until its answer
        ([(30.0, 50.0), (52.0, 52.0)], (30.0, 50.0)),
        ([(51.0, 52.0), (12.0, 53.0)], (12.0, 52.0)),
    ],
)
def test_the_latest_run_began_between_bounds(spans: list[tuple[float, float]], bounds: tuple[float, float]) -> None:
    assert since_bounds(spans) == bounds


class _Answering:
    """In the place of a gateway: it says that a rule has held a client since then, and that it rejected something."""

    name = host = "gw0"

    def __init__(self, rule: str, since: float) -> None:
        held = {"outcome": "rejected", "reason": rule, "last_ms": _unix_ms(1959.0)}
        limited = {"name": rule, "since_ms": _unix_ms(since), "broker": None, "first": False}
        self._answer = json.dumps({"held": [held], "rules": [limited]}).encode()

    async def ask(self, path: str, query: str) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._answer


def _unix_ms(at: float) -> float:
    return 1000 * (at + UNIX_S - START_S)


@pytest.mark.parametrize(
    ("theme", "rule", "since", "is_true"),
    [
        ("group", "resource-group", 1900.0, True),
        ("group", "resource-group", 1950.0, False),
        ("group", "fence", 1950.0, True),  # of a client that had been delayed for long, and then was rejected
        ("group", "client-quota", 1900.0, False),
        ("free", "fence", 1950.0, False),
    ],
)
def test_explain_may_name_what_can_be_at_work(theme: str, rule: str, since: float, *, is_true: bool) -> None:
    judge = Judge(lambda: 1960.0)
    at = (1900.0, 1930.0, 1950.0, 1959.0)
    judge.held_back["gw0", "app", "orders"].extend(HeldBack(each, each, 1, 0.0, is_alone=True) for each in at)
    gateway: Any = _Answering(rule, since)

    async def ask() -> None:
        await Asking(judge, theme, lambda: 1.0).ask(gateway, "app", "orders", is_quiet=True)

    trio.run(ask)
    assert (judge.violations == []) is is_true
