# Requests of real clients with a real broker's answers, as record.py has kept them. A file is pairs behind one another:
# two sizes (big-endian, 32 bits) and both frames, their own size prefix included; no answer: acks=0.

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "corpus"
_SIZES = struct.Struct(">II")


class Pair(NamedTuple):
    """Frames with their size prefix; `answer` is b"" where none is owed."""

    request: bytes
    answer: bytes


def write(path: Path, pairs: Iterable[Pair]) -> int:
    """Returns the file's size in bytes."""
    return path.write_bytes(b"".join(_SIZES.pack(len(a), len(b)) + a + b for a, b in pairs))


def read(path: Path) -> list[Pair]:
    data, pos, pairs = path.read_bytes(), 0, []
    while pos < len(data):
        request, answer = _SIZES.unpack_from(data, pos)
        middle = pos + _SIZES.size + request
        pairs.append(Pair(data[pos + _SIZES.size : middle], data[middle : middle + answer]))
        pos = middle + answer
    return pairs


def captured() -> list[Pair]:
    """Everything in the corpus; files in the order of their names, so that a seed means the same everywhere."""
    return [pair for path in sorted(FOLDER.glob("*.bin")) for pair in read(path)]
