# Lines of spool files. Chooses files as Spark's reader of text does (spark_sources.read_spool), and reads each up to
# the line in which it ended at the start.

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.audit.engines import PACKED_ENDINGS, SPOOL_ENDING
from gateway.audit.errors import AuditError

_CHUNK_BYTES: Final = 1 << 16  # what fits into the processor's cache: larger ones take more CPU
_HIDDEN: Final = ("_", ".")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_ONLY_HADOOPS: Final = "{}\\^"  # characters of which Python's globs know nothing
_IN_FOLDER: Final = (SPOOL_ENDING, *(f"{SPOOL_ENDING}{packed}" for packed in PACKED_ENDINGS))


class ValueBatch(NamedTuple):
    """Values one after the other. `find_origin`: where that one of them is from; `size`: how much of the part's size
    they are.
    """

    values: list[bytes | None]
    find_origin: Callable[[int], str]
    size: int


class SpoolSource:
    """Spool files: every line is a record. `path`: a file, a glob, or a directory (its *.jsonl). `packed`: those that
    only Spark can read.

    Raises:
        AuditError: there is no such file, or a directory can't be read.
    """

    def __init__(self, path: str) -> None:
        self.description: dict[str, Any] = {"kind": "spool", "name": path}
        try:
            self._files = [(file, file.stat().st_size) for file in _find_files(path)]
        except OSError as error:
            raise AuditError(f"{error.filename}: {error.strerror}") from None
        self.packed = [str(file) for file, _ in self._files if file.name.endswith(PACKED_ENDINGS)]
        self.sizes = [sum(size for _, size in self._files)]  # bytes

    def read_batches(self, part: int = 0) -> Iterator[ValueBatch]:
        """All lines, without their ends; there is one part only.

        Raises:
            AuditError: a file can't be read.
        """
        for file, size in self._files:
            try:
                yield from _read_lines(file, size)
            except OSError as error:
                raise AuditError(f"{file}: {error.strerror}") from None


def is_plain_path(path: str) -> bool:
    """Whether it names files as it does for Spark: no URI, nothing packed, no glob of Hadoop's own."""
    return "://" not in path and not path.endswith(PACKED_ENDINGS) and not any(each in path for each in _ONLY_HADOOPS)


def _find_files(path: str) -> list[Path]:
    place = Path(path)
    if place.is_dir():
        return _list_folder(place, _IN_FOLDER)
    if place.exists():
        return [place]
    found = [Path(each) for each in sorted(glob.glob(path))]
    if not found:
        raise AuditError(f"no spool file matches {path}")
    endings = _IN_FOLDER if path.endswith("/") else ("",)
    return [file for each in found for file in (_list_folder(each, endings) if each.is_dir() else [each])]


def _list_folder(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    # Not by a glob, which finds nothing where it may not look. A link that leads nowhere is no reason to read less.
    found = [file for file in folder.iterdir() if file.name.endswith(endings) and not file.name.startswith(_HIDDEN)]
    return sorted(file for file in found if not file.is_dir())


def _read_lines(path: Path, size: int) -> Iterator[ValueBatch]:
    def find_origin(_: int) -> str:
        return path.name

    with path.open("rb") as file:
        rest, left, is_first = b"", size, True
        while left > 0:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                break
            left -= len(chunk)
            if is_first:
                chunk, is_first = chunk.removeprefix(_BYTE_ORDER_MARK), False
            lines: list[bytes | None] = [*(rest + chunk).split(b"\n")]
            last = lines.pop()
            assert last is not None
            rest = last
            if lines:
                yield ValueBatch(lines, find_origin, len(chunk))
        if rest:  # it may go on in what has been written since
            yield ValueBatch([(rest + file.readline()).removesuffix(b"\n")], find_origin, 0)
