# The short form of `make chaos`: one scene, in which processes of the gateway are killed. (A broker is killed in
# test_resilience.py, connections are reset in test_accounting.py.)

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.faults import kill_control, kill_worker
from tests.chaos.scene import BROKERS, Chaos, Fault, Scene, play

PACE = 0.5  # of the load of `make chaos`

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster() -> Iterator[Chaos]:
    """A cluster of its own: brokers with a second listener."""
    with Chaos() as running:
        yield running


def kill_own(scene: Scene) -> None:
    kill_control(scene, 1)
    kill_worker(scene, 0)


@pytest.mark.full  # each process is killed in test_workers.py and test_resilience.py; worlds sum up what came of it
def test_nothing_acknowledged_is_lost_and_no_count_is_silently_wrong(cluster: Chaos) -> None:
    row = play(cluster, Fault("kills", kill_own, kills=1, again=BROKERS, pace=PACE))
    print(row)
    assert row.faults == []
    assert row.acknowledged > 1000
