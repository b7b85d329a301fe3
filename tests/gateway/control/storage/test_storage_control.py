# Storage protection in control: when it looks, what it tells workers, logs and shows.

from __future__ import annotations

import asyncio
import json
import math
import sys
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import generate_latest
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway import channel
from gateway.config import parse_settings
from gateway.control.components.optional_components import STORAGE
from gateway.control.outside import Outside
from gateway.control.storage import sources
from gateway.control.storage.context import StorageContext
from gateway.control.storage.service import StorageService
from gateway.storage.guarding import BoundedCall, GuardedPolicy
from gateway.storage.source_view import VolumeSourceView
from gateway.storage.topic_view import VolumeTopicView
from policies.storage import (
    GRACE_S,
    FactorKeeper,
    MinAvailable,
    Observation,
    ObservationFailed,
    SnapshotView,
    SoftHard,
    StorageFactor,
    Volume,
    VolumeLimit,
    VolumeSnapshot,
)
from tests.background import until
from tests.gateway.control.contexts import make_context
from tests.gateway.control.storage.storage_scene import (
    DISK,
    FULL,
    WALL,
    Disks,
    Records,
    Scene,
    lines,
    scene_fixture,
    seen,
    snapshot_now,
    volumes,
)
from tests.policies.storage.storage_play import GB, SOFT_HARD

scene = scene_fixture(Scene)


async def test_workers_are_told_at_once_that_they_are_to_act_or_to_count(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.seeing(seen(5 * GB), mode="observe")
    assert (scene.last.mode, scene.sample("enforced")) == ("observe", 0)
    assert lines(caplog) == [f"PAUSE, every produce limit x 0: {FULL} (observe: nothing is held back)"]
    before = len(scene.told)
    scene.set_mode("enforce")
    assert (scene.last.mode, scene.control.status()["mode"], len(scene.told)) == ("enforce", "enforce", before + 1)
    scene.set_mode("enforce")
    assert (len(scene.told), scene.sample("enforced")) == (before + 1, 1)
    scene.set_mode("observe")
    assert (scene.last.mode, scene.control.status()["mode"]) == ("observe", "observe")


async def test_workers_are_told_until_when_and_what_then(mock_clock: MockClock, scene: Scene) -> None:
    scene.observe(Disks(seen(5 * GB)))
    assert scene.state == (0.0, "fallback")  # before the first look
    await scene.at(0)
    start = trio.current_time()
    assert scene.last == channel.StorageSnapshot(
        StorageFactor(0.0, "valid", FULL),
        "enforce",
        start + 180 + GRACE_S,
        StorageFactor(0.0, "fallback", "no valid throttle factor for more than 180 s"),
    )
    await scene.at(60)
    assert scene.last.valid_until == start + 240 + GRACE_S
    assert len(scene.told) == 3


async def test_nothing_is_told_twice(mock_clock: MockClock, scene: Scene) -> None:
    disks = await scene.seeing(ObservationFailed("away"))
    told = len(scene.told)
    for minute in range(1, 6):
        await scene.at(60 * minute)
    assert len(scene.told) == told
    assert disks.asked == 6


async def test_a_source_that_hangs_is_a_failure_and_the_factor_ends_by_itself(
    mock_clock: MockClock, scene: Scene
) -> None:
    disks = await scene.seeing(seen())
    disks.said = threading.Event()
    try:
        await scene.at(60, checks=1)
        await until(lambda: disks.asked == 2)
        await scene.at(120, checks=2)  # given up at 120; the question at 120 is left out, or fails at once
        await scene.at(180, checks=3)
        assert scene.control.status()["problem"] == "the source has not answered an earlier request"
        assert scene.state == (0.0, "fallback")
        assert disks.asked == 2
    finally:
        disks.said.set()


@pytest.mark.parametrize("ends", ["succeeds", "fails"])
async def test_a_factor_holds_while_the_check_that_may_end_it_is_under_way(
    mock_clock: MockClock, scene: Scene, ends: str
) -> None:
    """The disk is always full; brokers were away and are slow once they are back. The fallback admits everything."""
    disks = await scene.seeing(seen(5 * GB), fallback=1.0)
    disks.said = ObservationFailed("away")
    for minute in (1, 2):
        await scene.at(60 * minute)
    disks.said = slow = threading.Event()
    try:
        scene.clock.jump(180 - trio.current_time())
        await until(lambda: disks.asked == 4)
        assert scene.last.valid_until == trio.current_time() + 60, "for as long as the check may take"
        for _ in range(3):
            scene.clock.jump(8.0)
            await wait_all_tasks_blocked(0.003)
            assert scene.state == (0.0, "kept")
        disks.said = seen(5 * GB)
        disks.answers = ends == "succeeds"
    finally:
        slow.set()
    await until(lambda: scene.checks() == 4)
    assert scene.state == ((0.0, "valid") if ends == "succeeds" else (1.0, "fallback"))
    assert scene.sample("fallback_throttle_factor_applied_total") == (ends == "fails")


async def test_the_expiry_comes_without_a_check(mock_clock: MockClock, scene: Scene) -> None:
    disks = await scene.seeing(seen())
    disks.said = threading.Event()
    try:
        await scene.at(60, checks=1)
        await until(lambda: disks.asked == 2)
        scene.disk_view._source_call.limit_s = 1e9
        scene.clock.jump(119.0)
        await wait_all_tasks_blocked(0.01)
        scene.clock.jump(2.0)
        await until(lambda: scene.state == (0.0, "fallback"))
    finally:
        disks.said.set()


@pytest.mark.seed("DISK.33")
@pytest.mark.parametrize(("interval", "looks"), [("PT0S", False), ("PT1M", True)])
def test_with_an_interval_of_zero_nothing_looks_at_disks(interval: str, looks: bool) -> None:
    storage = f"storage: {{check_interval: {interval}, min.available.bytes: 1GB, source: log-dirs}}"
    settings = parse_settings(f"upstream: {{bootstrap_servers: 'b:1'}}\n{storage}")
    assert (STORAGE in Outside().make_components(settings)) is looks


@pytest.mark.seed("DISK.15")
async def test_checks_that_a_slow_one_runs_into_are_left_out(mock_clock: MockClock, scene: Scene) -> None:
    disks = await scene.seeing(seen())
    gate = disks.said = threading.Event()
    scene.clock.jump(60.0)
    await until(lambda: disks.asked == 2)
    scene.clock.jump(45.0)
    disks.said = seen()
    gate.set()
    await until(lambda: scene.checks() == 2)
    assert scene.control.status()["next_check_s"] == 15.0  # the schedule stays where it was
    await scene.at(120, checks=3)


async def test_a_restarted_control_goes_on_with_the_workers_pause(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks(ObservationFailed("away"))
    scene.observe(disks, fallback=1.0, run=False)
    end = trio.current_time() + 100
    assert scene.state == (1.0, "fallback")
    scene.control.adopt_factor(channel.StorageSnapshot(StorageFactor(0.0, "valid", "full"), valid_until=end))
    assert (*scene.state, scene.last.factor.why, scene.last.valid_until) == (0.0, "kept", "full", end)
    assert lines(caplog) == [
        "continuing with the factor that workers hold: PAUSE (kept), every produce limit x 0: full"
    ]
    scene.nursery.start_soon(scene.control.run)
    await scene.at(0)
    assert scene.state == (0.0, "kept")
    await scene.at(60)
    assert scene.state == (0.0, "kept")
    scene.clock.jump(41.0)
    await until(lambda: scene.state == (1.0, "fallback"))


async def test_adopting_after_a_look_is_one_line_too(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.seeing(ObservationFailed("away"), fallback=1.0)
    caplog.clear()
    scene.control.adopt_factor(channel.StorageSnapshot(StorageFactor(0.0, "fallback", "no data")))  # which says nothing
    assert scene.state == (1.0, "fallback")
    held = StorageFactor(0.0, "valid", "full")
    scene.control.adopt_factor(channel.StorageSnapshot(held, valid_until=trio.current_time() + 100))
    assert [line for line in lines(caplog) if "observed" not in line] == [
        "continuing with the factor that workers hold: PAUSE (kept), every produce limit x 0: full"
    ]


@pytest.mark.seed("DISK.15")
@pytest.mark.parametrize("interval", [0.1, 0.4, 60.0])
async def test_a_factor_that_workers_hold_never_ends_while_all_goes_well(
    mock_clock: MockClock, scene: Scene, interval: float
) -> None:
    source, keeper = Disks(seen()), FactorKeeper(0.0, 0.0, interval)
    text = f"storage: {{min.available.bytes: 10GB, check_interval: {interval}}}"
    scene.start(VolumeSourceView(source, SOFT_HARD, keeper, trio.current_time), text)
    await scene.at(0)
    start = trio.current_time()
    for number in range(1, 8):
        scene.clock.jump(start + number * interval + 1e-6 - trio.current_time())
        assert (scene.last.valid_until or 0) > trio.current_time()
        await until(lambda: scene.checks() == number + 1)
        assert (scene.last.valid_until or 0) > trio.current_time() + interval


async def test_a_check_that_ends_just_before_the_next_one_is_due_ends_nothing(
    mock_clock: MockClock, scene: Scene
) -> None:
    drift = [0.0]

    def clock() -> float:  # goes on a little whenever it is read
        drift[0] += 1e-3
        return trio.current_time() + drift[0]

    scene.start(VolumeSourceView(Disks(seen()), SOFT_HARD, FactorKeeper(120.0, 0.0, 0.1), clock), text=DISK, run=False)
    scene.control._clock = clock
    scene.control._settings = scene.control._settings.model_copy(update={"check_interval": 0.001})
    scene.nursery.start_soon(scene.control.run)
    await until(lambda: scene.checks() > 3)


async def test_each_event_is_one_line_and_only_news_is(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks(seen())
    scene.observe(disks)
    story = [
        seen(), seen(40 * GB), seen(15 * GB), seen(14 * GB), seen(5 * GB), seen(5 * GB), ObservationFailed("away"),
        ObservationFailed("away"), ObservationFailed("away"), ObservationFailed("still away"), seen(60 * GB), seen(),
    ]  # fmt: skip
    for minute, said in enumerate(story):
        disks.said = said
        await scene.at(60 * minute)
    between = "between soft limit 20.0 GB and hard limit 10.0 GB"
    assert lines(caplog) == [
        "OPEN, 2 brokers, 2 log dirs",
        f"THROTTLE, every produce limit x 0.5: broker 2 volume /b: 15.0 GB of 100.0 GB free, {between}",
        f"PAUSE, every produce limit x 0: {FULL}",
        "the disks could not be observed: away",
        "PAUSE (fallback), every produce limit x 0: no valid throttle factor for more than 180 s: away",
        "the disks could not be observed: still away",
        "the disks are observed again, after 4 failures",
        "OPEN again, 2 brokers, 2 log dirs",
    ]


async def test_an_offline_log_dir_is_told_and_counted_and_fails_nothing(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks(seen(offline=((2, "/bad"),)))
    scene.observe(disks)
    await scene.at(0)
    assert scene.state == (1.0, "valid")
    assert scene.sample("offline_log_dirs") == 1
    disks.said = Observation(frozenset({1}), volumes()[:1])  # the broker is restarted
    await scene.at(60)
    assert scene.sample("offline_log_dirs") == 0
    assert "not offline any more" not in caplog.text
    disks.said = seen()
    await scene.at(120)
    assert lines(caplog)[1:] == [
        "broker 2 log dir /bad is offline: left out",
        "broker 2 log dir /bad is not offline any more",
    ]


@pytest.mark.seed("DISK.36", "DISK.39", "DISK.37", "DISK.38", "035.34", "035.35")
async def test_metrics_follow_and_volumes_that_left_are_gone(mock_clock: MockClock, scene: Scene) -> None:
    disks = Disks(seen(5 * GB))
    scene.observe(disks)
    assert scene.sample("limit_violated_total", broker="2", log_dir="/b") is None
    await scene.at(0)
    of_b = {"broker": "2", "log_dir": "/b"}
    expected = {
        "size_bytes": 100 * GB, "available_bytes": 5 * GB, "consumed_bytes": 95 * GB,
        "soft_limit_bytes": 20 * GB, "hard_limit_bytes": 10 * GB, "limit_violated_total": 1,
    }  # fmt: skip
    assert {name: scene.sample(name, **of_b) for name in expected} == expected
    assert scene.sample("limit_violated_total", broker="1", log_dir="/a") == 0
    assert [scene.sample("state", state=s) for s in ("OPEN", "THROTTLE", "PAUSE")] == [0, 0, 1]
    assert scene.sample("throttle_factor") == 0
    assert scene.sample("no_data_throttling") == 0
    assert scene.sample("source_connected") == 1
    assert (scene.sample("active_brokers"), scene.sample("active_log_dirs")) == (2, 2)
    assert scene.sample("observed_timestamp_seconds") == pytest.approx(WALL + trio.current_time())
    await scene.at(60)
    assert scene.sample("limit_violated_total", **of_b) == 2
    disks.said = ObservationFailed("away")
    for minute in (2, 3, 4, 5):
        await scene.at(60 * minute)
    assert scene.sample("limit_violated_total", **of_b) == 2
    assert scene.sample("fallback_throttle_factor_applied_total") == 1
    assert scene.sample("no_data_throttling") == 1
    assert scene.sample("source_connected") == 0
    assert scene.sample("observations_total", outcome="failed") == 4
    disks.said = Observation(frozenset({1}), volumes()[:1])
    await scene.at(360)
    assert all(scene.sample(name, **of_b) is None for name in expected)
    assert scene.sample("available_bytes", broker="1", log_dir="/a") == 80 * GB
    assert scene.sample("throttle_factor") == 1


async def test_a_soft_limit_that_nothing_can_be_lowered_by_is_warned_about(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.has_limits = False
    await scene.seeing(seen())
    assert scene.sample("throttle_without_effect") == 1
    await scene.at(60)
    warned = [line for line in lines(caplog) if "has no effect, because no produce limit exists" in line]
    assert warned == [
        "the soft limit of broker 1 volume /a and 1 more has no effect, because no produce limit exists: set"
        " thresholds.total.bytes.in.per.sec.threshold, or producer_byte_rate in client_quotas"
    ]
    scene.has_limits = True
    await scene.at(120)
    assert scene.sample("throttle_without_effect") == 0


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ("", 120),
        ("check_interval: PT10M, ", 1200),
        ("source: snapshots, ", 180),
        ("source: snapshots, snapshots: {max_age: 1h}, ", 3600),
    ],
)
async def test_the_age_is_shown_that_is_no_fault(
    mock_clock: MockClock, scene: Scene, more: str, seconds: float
) -> None:
    text = f"storage: {{{more}hard: {{type: MinFreeBytes, level: 1GB}}}}"
    scene.observe(Disks(seen()), text=text, run=False)
    assert scene.sample("usual_age_seconds") == seconds


@pytest.mark.parametrize(
    ("source", "policy", "what"),
    [
        (Disks(0.5), None, "the factor 0.5 (valid)"),
        (Disks(ObservationFailed("away")), MinAvailable(bytes=GB), "the factor 0.1 (fallback)"),
    ],
)
async def test_a_factor_that_throttles_nothing_says_so(
    mock_clock: MockClock,
    scene: Scene,
    caplog: pytest.LogCaptureFixture,
    source: Disks,
    policy: GuardedPolicy | SoftHard | None,
    what: str,
) -> None:
    scene.has_limits = False
    scene.observe(source, policy, fallback=0.1)
    await scene.at(0)
    assert scene.sample("throttle_without_effect") == 1
    assert scene.control.status()["throttle_without_effect"] is True
    (warned,) = [line for line in lines(caplog) if "has no effect" in line]
    assert warned.startswith(f"{what} has no effect, because no produce limit exists: set thresholds.total")
    source.said = 1.0 if policy is None else seen()
    await scene.at(60)
    assert scene.sample("throttle_without_effect") == 0


async def test_volumes_without_any_limit_are_warned_about(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.seeing(seen(), SoftHard())
    assert lines(caplog)[1:] == ["broker 1 volume /a and 1 more: no limit, so not protected: set storage.hard"]


def one(broker_id: Any = 1, name: Any = "/a", total: Any = 100, available: Any = 50, **more: Any) -> Observation:
    return Observation(frozenset({broker_id}), (Volume(broker_id, name, total, available, **more),))


@pytest.mark.parametrize(
    "said",
    [one(name=None), one(name=7), one(name=b"/a"), one(broker_id="1"), one(total="100"), one(available=5.5)],
)
async def test_numbers_and_names_of_foreign_types_do_no_harm(
    mock_clock: MockClock, scene: Scene, said: Observation
) -> None:
    offline: Any = ((said.volumes[0].broker_id, None), ("1", "/b"))
    await scene.seeing(said._replace(offline=offline))
    assert scene.state == (0.0, "valid")
    assert scene.last.factor.why.startswith("broker 1 volume ")
    generate_latest(scene.metrics.registry)
    volume = json.loads(json.dumps(scene.control.status()))["brokers"][0]["volumes"][0]
    assert (type(volume["name"]), volume["total_bytes"]) == (str, 100)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (one(total=math.nan), "ValueError: cannot convert float NaN to integer"),
        (one(total=math.inf), "OverflowError: cannot convert float infinity to integer"),
        (one(total=10**400), "broker 1 volume /a: its size or its free space is not a number of bytes"),
        (one(name="/a", broker_id="x"), "ValueError: invalid literal for int() with base 10: 'x'"),
        (one(soft=VolumeLimit("MinFreeBytes", math.inf)), "LimitError: soft: inf must be a finite number, 0 or more"),
        (
            Observation(frozenset({1}), (Volume(1, "/a", 100, 50), Volume(1, "/a", 100, 49))),
            "broker 1 volume /a is there twice, with different values",
        ),
        (ValueError("a bug\nin two lines"), "ValueError: a bug in two lines"),
        (None, "AttributeError: 'NoneType' object has no attribute 'brokers'"),
        (Observation(frozenset(), ()), "no broker is active"),
        (Observation(frozenset({1, 2, 3}), volumes()), "active broker 3 did not describe a single log dir"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_any_fault_of_a_source_and_a_value_that_can_t_be_a_volume_is_a_failed_observation(
    mock_clock: MockClock, scene: Scene, said: Any, problem: str
) -> None:
    await scene.seeing(said)
    assert scene.control.status()["problem"] == problem
    assert scene.state == (0.0, "fallback")


@pytest.mark.seed("DISK.14")
async def test_a_log_dir_that_is_described_twice_alike_is_one(mock_clock: MockClock, scene: Scene) -> None:
    await scene.seeing(Observation(frozenset({1}), volumes()[:1] * 2))
    assert scene.state == (1.0, "valid")


@pytest.mark.parametrize("levels", [(math.inf, 1.0), (2.0, math.nan), SystemExit(1)])
@pytest.mark.parametrize("snapshots", [False, True])
async def test_levels_that_are_none_and_an_exit_are_a_failed_policy(
    mock_clock: MockClock, scene: Scene, levels: SystemExit | tuple[float, float], snapshots: bool
) -> None:
    class Odd(MinAvailable):
        def levels(self, volume: Volume) -> tuple[float | None, float | None]:
            if isinstance(levels, SystemExit):
                raise levels
            return levels

    policy = GuardedPolicy(Odd(bytes=1))
    if snapshots:
        records = Records()
        scene.read(records, {1}, policy=policy)
        await scene.at(0)
        records.put(snapshot_now(1, 50 * GB))
        await until(lambda: "limit policy Odd: " in scene.last.factor.why)
        assert scene.state == (0.0, "fail-safe")
    else:
        scene.observe(Disks(seen()), policy)
        await scene.at(0)
        assert scene.control.status()["problem"].startswith("limit policy Odd: ")
        assert scene.state == (0.0, "fallback")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_source_is_closed_at_the_end_and_a_fault_in_that_ends_nothing(
    mock_clock: MockClock, scene: Scene, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    disks = Disks(seen())
    if fails:
        monkeypatch.setattr(disks, "close", lambda: sys.exit(1))
    scene.observe(disks, run=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.control.run)
        await scene.at(0)
        nursery.cancel_scope.cancel()
    assert disks.closed is not fails


async def test_a_question_that_found_no_thread_is_not_under_way_for_ever(mock_clock: MockClock) -> None:
    asked, release = BoundedCall(1.0), threading.Event()
    limiter = trio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, release.wait, 60)
        try:
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0):
                await asked.call_source(lambda: 1)
            for _ in range(2):  # others' threads don't keep it waiting either
                assert await asked.call_source(lambda: 1) == 1
        finally:
            release.set()


async def test_a_policy_of_ones_own_that_fails_is_a_failed_observation(mock_clock: MockClock, scene: Scene) -> None:
    class Broken(MinAvailable):
        def quota_factor(self, volume: Volume) -> float:
            return 1 / 0

    await scene.seeing(seen(), GuardedPolicy(Broken(bytes=1)))
    assert scene.control.status()["problem"] == "limit policy Broken: ZeroDivisionError: division by zero"


@pytest.mark.seed("DISK.11")
async def test_a_factor_source_stands_in_for_all_of_it(mock_clock: MockClock, scene: Scene) -> None:
    source = Disks(0.25)
    scene.observe(source, None, text="storage: {factor_source: mine}")
    await scene.at(0)
    assert (*scene.state, scene.last.factor.why) == (0.25, "valid", "the factor source says 0.25")
    status = scene.control.status()
    assert (status["source"], status["brokers"]) == ("factor_source mine", [])
    source.said = 1.0
    await scene.at(60)
    assert (*scene.state, scene.last.factor.why) == (1.0, "valid", "")
    source.said = 1.5
    await scene.at(120)
    assert scene.state == (1.0, "kept")
    assert scene.control.status()["problem"] == "throttle factor 1.5 must be from 0 to 1"


async def test_status_is_what_an_operator_asks_for(mock_clock: MockClock, scene: Scene) -> None:
    disks = Disks(seen(15 * GB, offline=((1, "/bad"),)))
    scene.observe(disks)
    await scene.at(0)
    scene.clock.jump(12.0)
    status = json.loads(json.dumps(scene.control.status()))
    assert status.pop("observed_at").endswith("Z")
    unknown: dict[str, Any] = {"forecast": None, "writers_of": "volume", "topics": [], "principals": []}
    unknown |= {"headroom": {"bytes": 10 * GB, "needed_bytes": None, "short": False}}
    assert status == {
        "enabled": True, "source": "log-dirs", "mode": "enforce", "scope": "cluster",
        "affected": None, "factor": 0.5, "state": "THROTTLE", "origin": "valid",
        "why": "broker 2 volume /b: 15.0 GB of 100.0 GB free, between soft limit 20.0 GB and hard limit 10.0 GB",
        "age_s": 12.0,
        "next": {
            "in_s": 168.0 + GRACE_S, "factor": 0.0, "state": "PAUSE", "origin": "fallback",
            "why": "no valid throttle factor for more than 180 s",
        },
        "check_interval_s": 60.0, "next_check_s": 48.0, "connected": True, "problem": "",
        "throttle_without_effect": False, "override": None,
        "brokers": [
            {"id": 1, "unknown": "", "left": None, "offline": ["/bad"], "volumes": [
                {"name": "/a", "total_bytes": 100 * GB, "available_bytes": 80 * GB, "consumed_bytes": 20 * GB,
                 "soft_limit_bytes": 20 * GB, "hard_limit_bytes": 10 * GB,
                 "soft_limit": "", "hard_limit": "", "factor": 1.0, **unknown},
            ]},
            {"id": 2, "unknown": "", "left": None, "offline": [], "volumes": [
                {"name": "/b", "total_bytes": 100 * GB, "available_bytes": 15 * GB, "consumed_bytes": 85 * GB,
                 "soft_limit_bytes": 20 * GB, "hard_limit_bytes": 10 * GB,
                 "soft_limit": "", "hard_limit": "", "factor": 0.5, **unknown},
            ]},
        ],
    }  # fmt: skip
    settings = scene.settings.model_copy(update={"storage": None})
    context = StorageContext(make_context(settings))
    assert StorageService(context, Outside().make_components(settings)).status() == {"enabled": False}


# --- snapshots --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("035.15", "035.22", "035.24", "035.34")
async def test_snapshots_open_when_every_active_broker_has_one_and_pause_when_one_gets_stale(
    mock_clock: MockClock, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    records = Records()
    scene.read(records, {1, 2})
    assert scene.state == (0.0, "fail-safe")
    await scene.at(0)
    records.put(snapshot_now(1, 50 * GB))
    records.put(snapshot_now(7, 0))  # not active
    await until(records.queue.empty)
    assert (*scene.state, scene.last.factor.why) == (0.0, "fail-safe", "broker 2 has no snapshot of its volumes")
    records.put(snapshot_now(2, 50 * GB, age=30))
    await until(lambda: scene.state == (1.0, "valid"))
    assert scene.last.valid_until == pytest.approx(trio.current_time() + 150, abs=0.01)
    assert scene.last.following[:2] == (0.0, "fail-safe")
    assert scene.control.status()["age_s"] == pytest.approx(30, abs=0.01)
    await scene.at(60)
    await scene.at(120)
    scene.clock.jump(29.0)
    await wait_all_tasks_blocked(0.02)
    assert scene.state == (1.0, "valid")
    scene.clock.jump(1.0)
    await until(lambda: scene.state == (0.0, "fail-safe"))
    assert scene.last.factor.why == "broker 2 has no snapshot younger than 180 s"
    assert scene.sample("no_data_throttling") == 1
    assert [broker["unknown"] for broker in scene.control.status()["brokers"]] == ["", "stale"]
    assert scene.sample("available_bytes", broker="2", log_dir="/a") is None
    assert "OPEN, 2 brokers, 2 log dirs" in [line.replace(" again", "") for line in lines(caplog)]


async def test_telling_what_comes_next_does_not_end_a_pause(mock_clock: MockClock, scene: Scene) -> None:
    records = Records()
    scene.read(records, {1})
    await scene.at(0)
    records.put(snapshot_now(1, 5 * GB))
    await until(lambda: scene.state == (0.0, "valid"))
    records.put(snapshot_now(1, 50 * GB, age=-90))  # in 30 s it will count, and open
    await until(lambda: scene.state == (0.0, "fail-safe"))
    assert scene.last.following[:2] == (1.0, "valid")
    records.put(snapshot_now(1, int(10.5 * GB)))
    await until(lambda: scene.last.factor.origin == "valid")
    assert scene.last.factor.why.endswith("paused until more than 11.0 GB are free")


@pytest.mark.parametrize("factor", [0.0, 1.0])
async def test_a_restarted_control_holds_what_workers_hold_until_it_has_read_the_topic(
    mock_clock: MockClock, scene: Scene, factor: float
) -> None:
    records = Records()
    records.caught_up = False
    scene.read(records, {1}, "OPEN" if factor == 0 else "PAUSE", run=False)
    end = trio.current_time() + 100
    scene.control.adopt_factor(channel.StorageSnapshot(StorageFactor(factor, "valid", "why"), valid_until=end))
    assert (*scene.state, scene.last.valid_until) == (factor, "kept", end)
    scene.nursery.start_soon(scene.control.run)
    await scene.at(0)
    assert scene.state == (factor, "kept")
    records.put(snapshot_now(1, 15 * GB))
    await until(records.queue.empty)
    assert scene.state == (factor, "kept")
    records.caught_up = True
    await until(lambda: scene.state == (0.5, "valid"))


async def test_a_factor_that_workers_held_ends_when_it_would_have(mock_clock: MockClock, scene: Scene) -> None:
    records = Records()
    records.caught_up = False
    scene.read(records, {1})
    scene.control.adopt_factor(
        channel.StorageSnapshot(StorageFactor(1.0, "valid", ""), valid_until=trio.current_time() + 20)
    )
    assert scene.state == (1.0, "kept")
    scene.clock.jump(21.0)
    await until(lambda: scene.state == (0.0, "fail-safe"))


async def test_a_list_of_active_brokers_that_fails_ages(mock_clock: MockClock, scene: Scene) -> None:
    records = Records()
    scene.read(records, {1})
    await scene.at(0)
    records.put(snapshot_now(1, 50 * GB))
    await until(lambda: scene.state == (1.0, "valid"))
    scene.listed.said = ObservationFailed("not authorized")
    for minute in (1, 2):
        await scene.at(60 * minute)
        records.put(snapshot_now(1, 50 * GB))
        await until(records.queue.empty)
        assert scene.state == (1.0, "valid")
    await scene.at(180)
    await until(lambda: scene.state == (0.0, "fail-safe"))
    assert scene.last.factor.why.startswith("the list of active brokers is ")
    assert scene.last.factor.why.endswith(": not authorized")


async def test_a_list_that_is_renewed_more_seldom_than_snapshots_age_pauses_nothing(
    mock_clock: MockClock, scene: Scene
) -> None:
    text = "upstream: {bootstrap_servers: 'b:1'}\nstorage: {source: snapshots, check_interval: 10m}"
    settings = parse_settings(text)
    assert settings.storage is not None
    disk_view = sources.make_storage_view(settings, settings.storage)
    assert isinstance(disk_view, VolumeTopicView)
    try:
        view = disk_view._view
        view.set_active_brokers({1}, 0.0)
        for now in (1.0, 599.0, 1199.0):
            view.put_snapshot(1, snapshot_now(1, 50 * GB))
            assert view.assess_current(WALL + trio.current_time(), now).factor.origin == "valid"
        assert view.assess_current(WALL + trio.current_time(), 1300.0).factor.origin == "fail-safe"
    finally:
        disk_view._reader.close()


async def test_thousands_of_volumes_are_not_judged_anew_for_each_record(
    mock_clock: MockClock, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, now = list[int](), [0.0]  # time goes by what is done, however long it takes here

    class Pouring(Records):
        def poll_snapshots(self, timeout_s: float) -> list[tuple[int, VolumeSnapshot | None]]:
            now[0] += 0.001 if self.queue.qsize() else timeout_s
            return super().poll_snapshots(timeout_s)

    monkeypatch.setattr("gateway.storage.topic_view.time", SimpleNamespace(perf_counter=lambda: now[0]))
    records = Pouring()
    scene.read(records, {1}, run=False)
    disk_view = scene.disk_view
    assert isinstance(disk_view, VolumeTopicView)
    for free in range(200):
        records.put(snapshot_now(1, free * GB))

    def judge() -> None:
        now[0] += 0.02  # as long as it takes there
        judged.append(disk_view._view._snapshots[1].volumes[0].available)

    scene.nursery.start_soon(disk_view.run_between_checks, judge)
    await until(lambda: judged[-1:] == [199 * GB])
    assert len(judged) <= 4, "a tenth of the time"


@pytest.mark.seed("DISK.38")
async def test_violations_of_a_broker_that_is_not_known_just_now_are_not_forgotten(
    mock_clock: MockClock, scene: Scene
) -> None:
    records = Records()
    scene.read(records, {1, 2})
    for broker_id in (1, 2):
        records.put(snapshot_now(broker_id, 5 * GB))
    await until(lambda: scene.sample("active_log_dirs") == 2)
    for minute in (1, 2):
        await scene.at(60 * minute)
    of_a = {"broker": "1", "log_dir": "/a"}
    counted = scene.sample("limit_violated_total", **of_a)
    assert counted is not None
    assert counted >= 2
    await scene.at(180)
    await until(lambda: scene.last.factor.origin == "fail-safe")
    assert scene.sample("available_bytes", **of_a) is None
    assert (scene.sample("limit_violated_total", **of_a) or 0) >= counted
    scene.listed.said = frozenset({2})
    await scene.at(240)
    assert scene.sample("limit_violated_total", **of_a) is None


@pytest.mark.seed("035.35")
async def test_invalid_records_are_counted_and_the_reader_is_closed(mock_clock: MockClock, scene: Scene) -> None:
    records = Records()
    scene.read(records, {1}, run=False)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.control.run)
            records.invalid_records = 3
            await until(lambda: scene.sample("observations_total", outcome="invalid") == 3)
            records.connected = False
            await until(lambda: scene.sample("source_connected") == 0)
            scope.cancel()
    assert records.closed


async def test_the_topic_is_made_again_and_again_until_it_is_there(mock_clock: MockClock, scene: Scene) -> None:
    answers = deque([False, False, True])
    made: list[int] = []

    def make() -> bool:
        made.append(1)
        return answers.popleft()

    disk_view = VolumeTopicView(
        Records(), lambda: frozenset({1}), SnapshotView(180, "PAUSE", SOFT_HARD), 60.0, trio.current_time,
        lambda: WALL + trio.current_time(), make,
    )  # fmt: skip
    scene.start(disk_view, "storage: {source: snapshots}")
    threads = trio.to_thread.current_default_thread_limiter()  # the reader has one of them
    for minute in range(4):
        await scene.at(60 * minute)
        await until(lambda: len(made) == min(minute + 1, 3) and threads.borrowed_tokens <= 1)
    assert not answers
