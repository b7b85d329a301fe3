# Whether a file has changed.

from __future__ import annotations

import os
from pathlib import Path

from gateway.system.files import file_signature


def test_contents_mode_and_a_links_target_are_changes_and_no_file_is_none(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    first.write_text("a")
    os.utime(first, ns=(1, 1))
    seen = file_signature(first)
    assert file_signature(str(first)) == seen is not None
    while file_signature(first) == seen:  # file systems' clocks are coarse
        first.chmod(0o600)
    second.write_text("a")
    os.utime(second, ns=(1, 1))
    link.symlink_to(first)
    seen = file_signature(link)
    link.unlink()
    link.symlink_to(second)
    assert file_signature(link) != seen
    second.unlink()
    assert file_signature(link) is None
