# A failing world is cut down to what its violation needs: with a fault of pure arithmetic, and with a product that is
# broken on purpose.

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation import world
from tests.simulation.minimising import Minimiser, as_test, failed_after_s
from tests.simulation.mutations import breaking
from tests.simulation.world import Fault, Plan, World, make_plan


def test_only_what_the_failure_needs_is_left() -> None:
    plan = make_plan(2, 0.2, theme="group", calm=False)
    plan = replace(plan, gateways=3, workers=2, faults=(*plan.faults[:5], Fault(200.0, "compaction"), *plan.faults[5:]))
    wanted = plan.clients[-1].client_id

    def fails_after_s(one: Plan) -> float | None:
        """It fails 30 s after a compaction, where that client is there and there are two gateways."""
        at = min((fault.at for fault in one.faults if fault.kind == "compaction" and fault.value == 0.0), default=1e9)
        is_there = any(client.client_id == wanted for client in one.clients) and one.gateways > 1
        return at + 30.0 if is_there and at + 30.0 < one.seconds else None

    minimiser = Minimiser(plan, fails_after_s)
    found = minimiser.run()
    assert found.faults == (Fault(200.0, "compaction"),)
    assert [client.client_id for client in found.clients] == [wanted]
    assert (found.gateways, found.workers, found.seconds) == (2, 1, 232.0)
    assert list(found.topics.values()) == [1]
    assert minimiser.runs < 60


def test_there_is_an_end_of_runs() -> None:
    minimiser = Minimiser(make_plan(2, 0.2, theme="group", calm=False), lambda plan: 1e9, most_runs=7)
    minimiser.run()
    assert minimiser.runs == 7


def test_a_broken_product_becomes_a_line() -> None:
    plan = make_plan(13, 0.009, theme="free", calm=True)
    plan = replace(plan, gateways=2, workers=2, faults=(Fault(5.0, "connection cut"), Fault(9.0, "leader moved", 1)))
    with breaking("the spool loses records"):
        found = Minimiser(plan, lambda one: failed_after_s(World(one).run(), "sums differ"), most_runs=25).run()
        line = as_test(found)
        with pytest.raises(AssertionError):
            exec(line, vars(world))
    assert (found.faults, len(found.clients), found.gateways, found.workers) == ((), 1, 1, 1)
    assert found.seconds < plan.seconds / 2
    assert "\n" not in line
    exec(line, vars(world))
