# Storage protection before and after its view of the disks can be had: what a worker reports meanwhile, and which
# configuration holds then.

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway import channel
from gateway.config import parse_settings
from gateway.control.components.optional_components import RETRY_S, STORAGE, ComponentUnusable, OptionalComponents
from gateway.control.storage.context import StorageContext
from gateway.control.storage.service import StorageService
from gateway.storage.source_view import VolumeSourceView
from policies.storage import FactorKeeper, StorageFactor
from tests.background import until
from tests.gateway.control.contexts import make_context
from tests.gateway.control.storage.storage_scene import DISK, FULL, Disks, lines, seen
from tests.policies.storage.storage_play import SOFT_HARD

SETTINGS = parse_settings(f"upstream: {{bootstrap_servers: 'b:1'}}\n{DISK}")


@pytest.mark.parametrize("reports", [True, False])
async def test_what_a_worker_reports_before_there_is_a_view_holds_until_the_first_look(
    nursery: trio.Nursery, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, reports: bool
) -> None:
    caplog.set_level("INFO", "gateway.storage")
    told: list[Any] = []
    views: list[Any] = []

    def make() -> Any:
        if not views:
            raise ComponentUnusable("not yet")
        return views[0]

    components = OptionalComponents({STORAGE: make})
    context = make_context(SETTINGS, was_up=True, unix_time=trio.current_time, monotonic=trio.current_time)
    context.facts.storage_factor.subscribe("test", told.append)
    service = StorageService(StorageContext(context), components)
    disks = Disks(seen())
    nursery.start_soon(service.run)
    await trio.testing.wait_all_tasks_blocked()
    service.refresh()
    assert (told, service.status()) == ([], {"enabled": False})
    context.facts.configuration.latest = SETTINGS.model_copy(update={"mode": "observe"})
    held = channel.StorageSnapshot(StorageFactor(0.0, "valid", FULL), valid_until=trio.current_time() + 100)
    older = channel.StorageSnapshot(StorageFactor(1.0, "valid", ""), valid_until=trio.current_time() + 90)
    for report in (held, older) if reports else ():
        service.adopt_factor(report)
    service.adopt_factor(None)  # another worker has none
    views.append(VolumeSourceView(disks, SOFT_HARD, FactorKeeper(120.0, 0.5, 60.0), trio.current_time))
    mock_clock.jump(RETRY_S[0])
    await until(lambda: disks.asked > 0 and told[-1].factor.origin == "valid")
    first = told[0]
    assert (first.factor.value, first.factor.origin) == ((0.0, "kept") if reports else (0.5, "fallback"))
    assert first.mode == "observe"
    if reports:
        assert lines(caplog)[0].startswith("continuing with the factor that workers hold: PAUSE (kept)")
    assert service.status()["factor"] == 1.0
