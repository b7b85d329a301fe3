# What `workers: auto` comes to.

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.system import cores


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("max 100000\n", 8),
        ("400000 100000\n", 4),
        ("250000 100000\n", 2),  # half a core keeps no process busy
        ("50000 100000\n", 1),
        ("6400000 100000\n", 8),
        ("nonsense\n", 8),
        ("100000 0\n", 8),
    ],
)
def test_cores_are_bounded_by_the_containers_limit(tmp_path: Path, eight: None, cpu_max: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(cpu_max)
    assert cores.count_cores(tmp_path / "cpu.max") == expected


def test_without_such_a_limit_all_cores_count(tmp_path: Path, eight: None) -> None:
    assert cores.count_cores(tmp_path / "none") == 8
