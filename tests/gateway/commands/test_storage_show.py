# `produce-gateway storage`: against a real admin server on a thread, which says what the test wants.

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.commands import storage as show
from gateway.embedded import find_free_port
from tests.background import Says, serving

GB = 10**9


def volume(
    name: str, free: int, soft: float | None = 20.0 * GB, hard: float | None = 10.0 * GB, factor: float = 1.0
) -> dict[str, Any]:
    return {
        "name": name, "total_bytes": 100 * GB, "available_bytes": free, "consumed_bytes": 100 * GB - free,
        "soft_limit_bytes": soft, "hard_limit_bytes": hard, "factor": factor,
    }  # fmt: skip


def status(**more: Any) -> dict[str, Any]:
    return {
        "enabled": True, "source": "log-dirs", "mode": "enforce", "scope": "cluster", "affected": None,
        "factor": 0.42, "state": "THROTTLE",
        "origin": "valid", "why": "broker 2 volume /b: 14.2 GB of 100.0 GB free", "observed_at": "2026-01-01T00:00:00Z",
        "age_s": 12.0, "check_interval_s": 60.0, "next_check_s": 48.0, "connected": True, "problem": "",
        "next": {"in_s": 348.0, "factor": 1.0, "state": "OPEN", "origin": "fallback", "why": "no valid factor"},
        "throttle_without_effect": False,
        "brokers": [
            {"id": 1, "unknown": "", "offline": ["/bad"], "volumes": [volume("/a", 80 * GB)]},
            {"id": 12, "unknown": "", "offline": [], "volumes": [volume("/long/name", int(14.2 * GB), factor=0.42)]},
        ],
        **more,
    }  # fmt: skip


@pytest.fixture
def admin() -> Iterator[Says]:
    with serving(Says("/v1/storage")) as server:
        yield server


def test_every_volume_and_the_factor_in_force_are_shown(admin: Says, capsys: pytest.CaptureFixture[str]) -> None:
    admin.say(status())
    assert show.main(["--url", admin.url + "/"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "BROKER  VOLUME         TOTAL     FREE  FREE %  SOFT AT  HARD AT  FACTOR",
        "1       /a          100.0 GB  80.0 GB    80.0  20.0 GB  10.0 GB       1",
        "1       /bad         offline",
        "12      /long/name  100.0 GB  14.2 GB    14.2  20.0 GB  10.0 GB    0.42",
        "",
        "factor      0.42  THROTTLE (valid, 12 s old)",
        "reason      broker 2 volume /b: 14.2 GB of 100.0 GB free",
        "then        1  OPEN (fallback) in 6 min, unless the disks are seen again",
        "source      log-dirs",
        "next check  in 48 s, every 60 s",
    ]


def test_what_an_operator_ordered_ends_by_its_time_alone(admin: Says, capsys: pytest.CaptureFixture[str]) -> None:
    admin.say(status(origin="operator"))
    assert show.main(["--url", admin.url]) == 0
    assert "then        1  OPEN (fallback) in 6 min\n" in capsys.readouterr().out


def test_what_fills_soon_and_what_has_too_little_room_is_said_with_who_fills_it() -> None:
    def outlook(name: str, soft_s: int | None, hard_s: int | None, short: bool = False) -> dict[str, Any]:
        return {
            **volume(name, 50 * GB),
            "forecast": {"fill_bytes_per_s": 6 * 10**6, "soft_limit_in_s": soft_s, "hard_limit_in_s": hard_s},
            "headroom": {"bytes": 10 * GB, "needed_bytes": 15 * GB, "short": short},
            "topics": [{"name": name, "bytes_per_s": 4 * 10**6} for name in ("clicks", "views", "c", "d")],
            "principals": [] if short else [{"name": "User:a", "bytes_per_s": 5 * 10**6}],
        }

    volumes = [
        outlook("/late", None, 86_401), outlook("/never", None, None), outlook("/soon", 0, 9000, short=True),
        outlook("/first", 60, 120), {**volume("/old", 50 * GB), "forecast": None},
    ]  # fmt: skip
    lines = show.describe_storage(status(brokers=[{"id": 1, "unknown": "", "offline": [], "volumes": volumes}]))
    most = "; clicks 4.0 MB/s, views 4.0 MB/s, c 4.0 MB/s"
    rate = "fills by 6.0 MB/s"
    assert lines[9:12] == [
        f"forecast    broker 1 /first: {rate}, soft limit in 60 s, hard limit in 2 min{most}; User:a 5.0 MB/s",
        f"forecast    broker 1 /soon: {rate}, hard limit in 2 h{most}",
        "problem     broker 1 /soon: 10.0 GB behind the hard limit, less than the 15.0 GB that producers may write"
        " there before the next check",
    ]


def test_unknown_values_are_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    broker = {"id": 3, "unknown": "stale", "offline": [], "volumes": []}
    lines = show.describe_storage(
        status(
            factor=0.0, state="PAUSE", origin="fail-safe", age_s=None, next=None, brokers=[broker], connected=False,
            problem="no answer", why="broker 3 has no snapshot", mode="observe", source="snapshots",
            throttle_without_effect=True,
        )
    )  # fmt: skip
    assert lines[1] == "3       snapshot stale"
    assert lines[3:] == [
        "factor      0  PAUSE (fail-safe, never seen, mode observe: nothing is held back)",
        "reason      broker 3 has no snapshot",
        "problem     no answer",
        "problem     a factor between 0 and 1 has no effect: there is no produce limit to be lowered",
        "source      snapshots, not connected",
        "next check  in 48 s, every 60 s",
    ]


def test_volumes_without_limits_have_none_and_log_dirs_that_an_agent_can_t_look_into_are_told() -> None:
    bare = {"id": 1, "unknown": "", "offline": [], "volumes": [volume("/a", 1, None, None)]}
    partial = {"id": 3, "unknown": "partial", "offline": [], "volumes": []}
    _, of_one, of_three, *_ = show.describe_storage(status(brokers=[bare, partial]))
    assert of_one.split()[-3:] == ["-", "-", "1"]
    assert "3       log dir that its agent can't look into" in of_three
    assert show.describe_storage(status(brokers=[]))[0].startswith("factor")


def test_json_is_the_answer_itself(admin: Says, capsys: pytest.CaptureFixture[str]) -> None:
    admin.say(status())
    assert show.main(["--json", "--url", admin.url]) == 0
    assert json.loads(capsys.readouterr().out) == status()


def test_a_gateway_without_storage_protection_says_so(admin: Says, capsys: pytest.CaptureFixture[str]) -> None:
    admin.say({"enabled": False})
    assert show.main(["--url", admin.url]) == 0
    assert capsys.readouterr().out.startswith("storage protection is off")


def test_a_gateway_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    assert show.main(["--url", url]) == 1
    assert capsys.readouterr().err == (
        f"{url}/v1/storage: can't be reached: Connection refused: is the gateway running, and admin: right?\n"
    )
    (tmp_path / "gw.yaml").write_text("upstream: {}")
    assert show.main([str(tmp_path / "gw.yaml")]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/gw.yaml:1: upstream.bootstrap_servers: is required\n"


def test_the_topics_that_full_volumes_hold_are_shown(admin: Says, capsys: pytest.CaptureFixture[str]) -> None:
    topics = [f"t{number}" for number in range(6)]
    parts = [
        {"by": "broker 2 /b", "factor": 0.0, "state": "PAUSE", "why": "", "topics": ["a"], "topics_count": 1},
        {"by": "broker 1 /a", "factor": 0.5, "state": "THROTTLE", "why": "", "topics": topics, "topics_count": 2000},
    ]
    admin.say(status(scope="affected", affected=parts))
    assert show.main(["--url", admin.url + "/"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("affected")]
    assert shown == [
        "affected    0  PAUSE by broker 2 /b: a",
        "affected    0.5  THROTTLE by broker 1 /a: t0, t1, t2, t3, t4 and 1,995 more",
    ]


@pytest.mark.parametrize(
    ("affected", "factor", "expected"),
    [(None, 0.0, ["affected    all topics"]), (None, 1.0, []), ([], 1.0, ["affected    no topic"])],
)
def test_it_is_shown_whether_all_topics_are_held(
    admin: Says, capsys: pytest.CaptureFixture[str], affected: object, factor: float, expected: list[str]
) -> None:
    admin.say(status(scope="affected", affected=affected, factor=factor))
    assert show.main(["--url", admin.url + "/"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("affected")] == expected
