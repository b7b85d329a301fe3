# An operator's override of storage protection in control: what workers are told, what is logged and shown, when it
# ends, and what becomes of it where control is started again. And the command.

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway import channel
from gateway.commands import storage as command
from gateway.control.storage.override import ActiveOverride
from policies.storage import ObservationFailed, StorageFactor, StorageOverride
from policies.units import format_time
from tests.background import until
from tests.gateway.control.storage.storage_scene import (
    FULL,
    HELD,
    WALL,
    AffectedScene,
    Disks,
    Records,
    lines,
    scene_fixture,
    seen,
)
from tests.policies.storage.storage_play import GB

ENDS_S = 1000.0  # of trio's clock
UNTIL_MS = round((WALL + ENDS_S) * 1000)
PAUSED = f"an operator pauses all producers until {format_time(UNTIL_MS)}: swap"
OPENED = f"an operator lets in all producers until {format_time(UNTIL_MS)}: swap"


class Overridden(AffectedScene):
    """A Scene, and an operator's override."""

    given: StorageOverride | None = None
    knows = True

    def override(self) -> ActiveOverride | None:
        left_s = ENDS_S - trio.current_time()
        return (
            None
            if self.given is None or left_s <= 0
            else ActiveOverride(self.given, left_s, UNTIL_MS, "alice", UNTIL_MS)
        )

    def begin(self, source: Disks, *, affected: bool = False, **more: Any) -> Overridden:
        more |= {"find_override": self.override, "knows_overrides": lambda: self.knows}
        if affected:
            self.see(source, **more)
        else:
            self.observe(source, **more)
        return self

    def give(self, given: StorageOverride | None) -> None:
        self.given = given
        self.control.refresh()


scene = scene_fixture(Overridden)


async def test_a_pause_by_override_is_told_logged_and_shown_and_ends_by_itself(
    mock_clock: MockClock, scene: Overridden, caplog: pytest.LogCaptureFixture
) -> None:
    scene.begin(Disks(seen()))
    await scene.at(0)
    scene.give(StorageOverride("PAUSE", "swap"))
    assert scene.last.factor == StorageFactor(0.0, "operator", PAUSED)
    assert (scene.last.valid_until, scene.last.following.value) == (ENDS_S, 1.0)
    assert lines(caplog)[-1] == f"PAUSE (operator), every produce limit x 0: {PAUSED}"
    assert (scene.sample("override", state="PAUSE"), scene.sample("override", state="OPEN")) == (1, 0)
    status = scene.control.status()
    assert status["override"]["who"] == "alice"
    assert scene.control.status(identified=False)["override"] == {**status["override"], "who": ""}
    assert any(line.startswith("override    PAUSE until ") for line in command.describe_storage(status))
    for minute in range(1, 17):
        await scene.at(60 * minute)
        assert scene.state == (0.0, "operator")
    scene.clock.jump(ENDS_S - trio.current_time())
    await until(lambda: scene.state == (1.0, "valid"))
    assert lines(caplog)[-1] == "OPEN again, 2 brokers, 2 log dirs"
    assert scene.sample("override", state="PAUSE") == 0
    assert scene.control.status()["override"] is None


async def test_a_pause_by_override_is_news_also_where_the_disks_pause(
    mock_clock: MockClock, scene: Overridden, caplog: pytest.LogCaptureFixture
) -> None:
    scene.begin(Disks(seen(5 * GB)))
    await scene.at(0)
    scene.give(StorageOverride("PAUSE", "swap"))
    assert lines(caplog)[-1] == f"PAUSE (operator), every produce limit x 0: {PAUSED}"
    scene.give(None)
    assert lines(caplog)[-1] == f"PAUSE, every produce limit x 0: {FULL}"


async def test_an_opening_lifts_a_throttle_and_a_fallback_but_no_hard_limit_without_force(
    mock_clock: MockClock, scene: Overridden, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks(seen(15 * GB))
    scene.begin(disks)
    scene.give(StorageOverride("OPEN", "swap"))
    assert scene.state == (1.0, "operator"), "before the first look there is the fallback, 0"
    await scene.at(0)
    assert scene.last.factor == StorageFactor(1.0, "operator", OPENED)
    disks.said = seen(5 * GB)
    await scene.at(60)
    assert (scene.state, scene.last.factor.why) == ((0.0, "valid"), FULL)
    scene.give(StorageOverride("OPEN", "swap", force=True))
    assert scene.state == (1.0, "operator")
    disks.said = ObservationFailed("away")
    for minute in range(2, 6):
        await scene.at(60 * minute)
    assert scene.state == (1.0, "operator"), "whatever becomes of the disks"
    scene.give(StorageOverride("OPEN", "swap"))
    assert scene.state == (0.0, "fallback"), "it was full when it was seen last"
    disks.said = seen(50 * GB)
    await scene.at(360)
    assert scene.state == (1.0, "operator")


async def test_with_scope_affected_a_hard_limit_holds_its_topics_and_no_others(
    mock_clock: MockClock, scene: Overridden
) -> None:
    scene.begin(Disks(seen(5 * GB)), affected=True)
    await scene.at(0)
    scene.give(StorageOverride("OPEN"))
    assert scene.held() == ((0.0, "operator"), HELD)
    scene.give(StorageOverride("PAUSE"))
    assert scene.held() == ((0.0, "operator"), None)
    scene.give(StorageOverride("OPEN", force=True))
    assert scene.held() == ((1.0, "operator"), ())


async def test_a_control_that_is_started_again_goes_by_the_workers_until_policies_are_read(
    mock_clock: MockClock, scene: Overridden
) -> None:
    now = trio.current_time()
    told = channel.StorageSnapshot(
        StorageFactor(0.0, "operator", PAUSED), valid_until=now + 100, following=StorageFactor(1.0, "valid")
    )
    scene.knows = False
    scene.begin(Disks(seen()), restarted=True, run=False)
    scene.control.adopt_factor(told)
    scene.nursery.start_soon(scene.control.run)
    await until(lambda: scene.checks() == 1)
    assert scene.state == (0.0, "operator")
    scene.knows = True
    scene.control.refresh()
    assert scene.state == (1.0, "valid"), "it was taken back meanwhile"


@pytest.mark.parametrize("following", [StorageFactor(1.0, "valid"), StorageFactor(0.0, "valid", FULL)])
async def test_before_snapshots_are_read_it_goes_on_with_what_was_to_follow_an_override_that_is_gone(
    mock_clock: MockClock, scene: Overridden, following: StorageFactor
) -> None:
    records = Records()
    records.caught_up = False
    by_operator = StorageFactor(1.0 - following.value, "operator", PAUSED)
    told = channel.StorageSnapshot(by_operator, valid_until=trio.current_time() + 100, following=following)
    scene.read(records, {1}, restarted=True, run=False)
    scene.control.adopt_factor(told)
    assert scene.state == (following.value, "kept")


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [["pause"], ["pause", "--for", "30m"], ["open", "--for", "soon", "--reason", "x"], ["resume", "--reason", "x"],
     ["pause", "--for", "30m", "--reason", "x", "--force"]],
)  # fmt: skip
def test_a_wrong_command_line_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(argv)
    assert ended.value.code == 2
    assert "usage: produce-gateway storage" in capsys.readouterr().err


def test_what_is_refused_is_said_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["resume", "--url", "http://127.0.0.1:1"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
