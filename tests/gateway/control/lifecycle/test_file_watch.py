# Whether files have changed: files as people and Kubernetes change them, and what settles.

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.control.lifecycle.file_watch import SettledFiles, is_any_newer, read_file_states


def test_a_file_that_stays_as_it_is_looks_the_same(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    assert read_file_states([str(file)]) == read_file_states([str(file)])


@pytest.mark.parametrize("how", ["in place", "another file", "gone", "come", "times set back"])
def test_a_change_is_seen(tmp_path: Path, how: str) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    if how != "come":
        file.write_text("1")
    before = read_file_states([str(file), str(other)])
    if how in ("in place", "come"):
        file.write_text("22")
    elif how == "another file":
        (tmp_path / "new").write_text("1")
        (tmp_path / "new").rename(file)
    elif how == "gone":
        file.unlink()
    else:  # cp -p, tar
        status = file.stat()
        (tmp_path / "new").write_text("2")
        os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
        (tmp_path / "new").rename(file)
    assert read_file_states([str(file), str(other)]) != before


def test_a_config_map_of_kubernetes_is_swapped_by_its_link(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..2026_{number}").mkdir()
        (tmp_path / f"..2026_{number}" / "gw.yaml").write_text(str(number))
    (tmp_path / "..data").symlink_to("..2026_1")
    file = tmp_path / "gw.yaml"
    file.symlink_to("..data/gw.yaml")
    before = read_file_states([str(file)])
    (tmp_path / "..data_tmp").symlink_to("..2026_2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert file.read_text() == "2"
    assert read_file_states([str(file)]) != before


def test_newer_is_what_changed_since_or_has_gone(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    at_ns = file.stat().st_ctime_ns
    assert is_any_newer([str(file)], at_ns)
    assert not is_any_newer([str(file)], at_ns + 10**9)
    assert is_any_newer([str(file), str(tmp_path / "none")], at_ns + 10**9)
    assert not is_any_newer([], at_ns)


def test_a_change_is_news_once_and_only_when_it_has_settled() -> None:
    old, half, whole = (((number,),) for number in (1, 2, 3))
    settled = SettledFiles(old)
    looks = [(old, False), (half, False), (whole, False), (whole, True), (whole, False), (old, False), (old, True)]
    assert [settled.is_settled_change(seen) for seen, _ in looks] == [said for _, said in looks]


def test_what_is_known_is_no_news() -> None:
    settled = SettledFiles(((1,),))
    settled.mark_known(((2,),))
    assert [settled.is_settled_change(((2,),)) for _ in range(3)] == [False] * 3


def test_a_change_that_is_taken_back_before_it_settled_is_no_news() -> None:
    settled = SettledFiles(((1,),))
    assert [settled.is_settled_change(((number,),)) for number in (2, 1, 1, 1)] == [False] * 4
