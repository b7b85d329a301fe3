# What a worker tells control of itself: when it changes, and whenever control can't know it.

from __future__ import annotations

from typing import Any, cast

import trio
import trio.testing

from gateway.channel import AcceptedConnection, WorkerGauges
from gateway.data.shared.uplink import MAX_BACKLOG, ControlUplink
from gateway.data.worker.idle import IDLE_INTERVAL_S, QUIET_S
from gateway.data.worker.periodic_tasks import GAUGES_S
from gateway.data.worker.worker import DataPlane
from tests.gateway.data.made_settings import made_settings


class Control:
    """A control process as its channel shows it: what it was told, and how much of it it has not read."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.backlog = 0

    def post(self, message: Any) -> None:
        self.told.append(message)

    @property
    def gauges(self) -> list[WorkerGauges]:
        return [message for message in self.told if isinstance(message, WorkerGauges)]


async def test_gauges_are_told_when_they_change_and_to_a_control_that_did_not_read_or_is_new(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    uplink, control = ControlUplink(), Control()
    uplink.channel = cast("Any", control)
    plane = DataPlane(made_settings(), uplink, "boot", 0)
    nursery.start_soon(plane.periodic_tasks.run)
    await trio.sleep(QUIET_S + 10.0)
    assert control.gauges == [WorkerGauges(0, 0, 0, 0, 0)]

    # Idle as the worker is, a connection that comes, even one without anything to read, is told as soon as ever.
    plane.connections.accept_connection(AcceptedConnection(None, "127.0.0.1:1"), -1, nursery)
    await trio.sleep(1.1 * GAUGES_S)
    assert control.gauges[1:] == [WorkerGauges(0, 0, 0, 0, 1)]

    control.backlog = MAX_BACKLOG
    plane.connections.accept_connection(AcceptedConnection(None, "127.0.0.1:1"), -1, nursery)
    await trio.sleep(QUIET_S + 10.0)
    control.backlog = 0
    await trio.sleep(IDLE_INTERVAL_S + GAUGES_S)
    assert control.gauges[2:] == [WorkerGauges(0, 0, 0, 0, 2)]

    uplink.channel = cast("Any", another := Control())
    plane.periodic_tasks.on_control_started()
    await trio.sleep(IDLE_INTERVAL_S + GAUGES_S)
    assert another.gauges == control.gauges[-1:]
