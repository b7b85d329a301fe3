# Lines of spool files: which files, where a line ends, what has been written since.

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gateway.audit.errors import AuditError
from gateway.audit.local import spool
from gateway.audit.local.spool import SpoolSource, is_plain_path


def _lines(source: SpoolSource) -> list[tuple[bytes | None, str]]:
    return [
        (value, batch.find_origin(number))
        for batch in source.read_batches()
        for number, value in enumerate(batch.values)
    ]


def test_each_line_comes_whole_with_its_file_however_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [b"one", b"", b"with\rreturn\r", b"\x00\xff", "ü\u2028".encode(), b"x" * 100, b"no end"]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(texts))
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbfmarked\n\xef\xbb\xbfinside\n")
    expected = [(text, "a.jsonl") for text in texts]
    expected += [(b"marked", "b.jsonl"), (b"\xef\xbb\xbfinside", "b.jsonl")]
    for size in (3, 4, 5, 7, 64, 1 << 16):
        monkeypatch.setattr(spool, "_CHUNK_BYTES", size)
        source = SpoolSource(str(tmp_path))
        assert _lines(source) == expected
        assert _lines(source) == expected, "a second time"


def test_a_folder_is_its_spool_files_and_a_glob_what_it_matches(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "note.json", ".c.jsonl", "_d.jsonl", "in/e.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")

    def names(path: str) -> list[str]:
        return [origin for _, origin in _lines(SpoolSource(path))]

    assert names(str(tmp_path)) == ["a.jsonl", "b.jsonl"]
    assert names(f"{tmp_path}/note.json") == ["note.json"]
    assert names(f"{tmp_path}/[ab].jsonl") == ["a.jsonl", "b.jsonl"]
    assert names(f"{tmp_path}/i*") == ["e.jsonl"]
    with pytest.raises(AuditError, match=r"^no spool file matches .*nowhere$"):
        SpoolSource(str(tmp_path / "nowhere"))


def test_what_can_not_be_looked_at_is_an_error_and_no_smaller_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("one\n")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AuditError, match=r"b\.jsonl: No such file or directory$"):
        SpoolSource(str(tmp_path))

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(AuditError, match=r": Permission denied$"):
        SpoolSource(str(tmp_path))


def test_what_is_written_after_the_start_is_left_out_but_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntw")
    source = SpoolSource(str(path))
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert [value for value, _ in _lines(source)] == [b"one", b"two"]


def test_a_file_that_has_gone_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("one\n")
    source = SpoolSource(str(path))
    path.unlink()
    with pytest.raises(AuditError, match=r"^.*a.jsonl: No such file or directory$"):
        _lines(source)


@pytest.mark.parametrize(
    ("path", "plain"),
    [("./spool", True), ("x[12]*.jsonl", True), ("s3a://b/x", False), ("x.gz", False), ("x{1,2}", False)],
)
def test_what_only_spark_reads_is_known(path: str, plain: bool) -> None:
    assert is_plain_path(path) is plain
