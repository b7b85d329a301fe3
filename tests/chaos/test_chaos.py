# The short form of `make chaos`: two scenes with several faults each. (A broker is killed in test_resilience.py.)

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos import toxiproxy
from tests.chaos.faults import kill_control, kill_worker, reset
from tests.chaos.scene import BROKERS, Chaos, Fault, Scene, play

PACE = 0.5  # of the load of `make chaos`

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster() -> Iterator[Chaos]:
    """A cluster of its own: brokers with a second listener."""
    toxiproxy.build()
    with Chaos() as running:
        yield running


def kill_own(scene: Scene) -> None:
    kill_control(scene, 1)
    kill_worker(scene, 0)


def reset_both_sides(scene: Scene) -> None:
    reset(scene, "client", 2)
    reset(scene, "broker", 2)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("kills", kill_own, kills=1, again=BROKERS, pace=PACE),
        Fault("resets", reset_both_sides, again=2 * BROKERS, proxied=True, pace=PACE),
    ],
    ids=lambda fault: fault.name,
)
def test_nothing_acknowledged_is_lost_and_no_count_is_silently_wrong(cluster: Chaos, fault: Fault) -> None:
    row = play(cluster, fault)
    print(row)
    assert row.faults == []
    assert row.acknowledged > 1000
