# The compiled readers at the ends of their buffers. C reads each input where one byte too many shows: in a block of
# memory of exactly its size, in front of a poisoned byte, and among bytes that mean nothing. All have to say the same,
# and what Python says: the same module as Python, or the careful reader where a fast one says anything.
#
#     python -m tests.hostile.boundaries [--seconds S] [--calls N] [--seed N]
#
# As the product is built this compares what is said; with AddressSanitizer in the process (`make sanitize`) it also
# ends with a report where a byte outside is read or written. --forbidden reads one on purpose: is anybody looking?

from __future__ import annotations

import argparse
import ctypes
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random
from typing import Any, Final, NamedTuple

from protocol.produce import produce_request, produce_response
from protocol.wire import MalformedFrame
from tests.hostile.traffic import frames
from tests.protocol import produce_cases as cases
from tests.protocol.batches import batch
from tests.variants import COMPILED, PURE, module

PROCESS: Final = ctypes.CDLL(None)
FIRST: Final = 5  # findings that are printed
WIDE: Final = 200  # generated frames of many partitions
LENGTHS: Final = (
    b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80\x01", b"\xff\x7f", b"\xff\xff\x7f", b"\x80\x80\x80\x01",
    b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10", b"\xff" * 5,
)  # fmt: skip
EDGES: Final = (-1, 0, 1, 2**31 - 1)


class Twins(NamedTuple):
    """One module, as Python and as C."""

    pure: Any
    compiled: Any

    @classmethod
    def of(cls, name: str) -> Twins:
        return cls(module(name, PURE), module(name, COMPILED))


# --- places for bytes -------------------------------------------------------------------------------------------------


def exact(data: bytes) -> memoryview:
    """In a block of its own size; with PYTHONMALLOC=malloc that is one of malloc's."""
    return memoryview((ctypes.c_ubyte * len(data)).from_buffer_copy(data)).cast("B")


@contextmanager
def fenced(data: bytes) -> Iterator[bytearray]:
    """In a bytearray; AddressSanitizer forbids the byte behind its last one, where CPython keeps a zero."""
    buffer = bytearray(data)
    fence = address(buffer) + len(buffer)
    _address_sanitizer("poison", fence)
    try:
        yield buffer
    finally:
        _address_sanitizer("unpoison", fence)


def address(buffer: bytearray) -> int:
    return ctypes.addressof((ctypes.c_ubyte * len(buffer)).from_buffer(buffer))


def watched() -> bool:
    """Whether AddressSanitizer is in this process."""
    return hasattr(PROCESS, "__asan_poison_memory_region")


def _address_sanitizer(what: str, byte: int) -> None:
    if watched():
        getattr(PROCESS, f"__asan_{what}_memory_region")(ctypes.c_void_p(byte), ctypes.c_size_t(1))


# --- inputs -----------------------------------------------------------------------------------------------------------


def wide_request(rng: Random) -> bytes:
    """Of many partitions or topics, with names at the lengths where their form changes."""
    topics = []
    for number in range(rng.choice((1, 2, 3, 5, 130))):
        indexes = list(range(rng.choice((1, 2, 3, 20, 130)) if number < 3 else 1))
        if rng.random() < 0.2:
            rng.shuffle(indexes)
        rows = []
        for index in indexes:
            numbers = {"producer_id": rng.choice((-1, 7, 2**40)), "epoch": rng.choice((-1, 0, 3))}
            records = batch([rng.randbytes(rng.choice((0, 3, 60)))], sequence=rng.choice(EDGES), **numbers)
            strange = rng.choice(EDGES) if rng.random() < 0.01 else index
            tail = b"t" if rng.random() < 0.02 else b""
            rows.append((strange, cases.Batch(records + tail, (0,) * 6)))
        name = rng.choice((f"t{number}", f"t{number}", "x" * 126, "same"))
        topics.append(cases.Topic(name, rng.randbytes(16), rows))
    names = rng.choice(("app", None, "", "c" * 126, "c" * 127)), rng.choice((None, "", "tx", "x" * 126))
    return cases.framed(cases.encode(cases.Request(rng.randint(3, 13), *names, rng.choice((1, -1, 0)), topics)))


def wide_answer(rng: Random) -> tuple[int, bytes]:
    """A version, and an answer of it."""
    version, topics = rng.randint(3, 13), []
    for number in range(rng.choice((1, 2, 3, 130))):
        indexes = range(rng.choice((1, 2, 20, 130)) if number < 3 else 1)
        rows = [cases.Answer(index, rng.choice((0, 0, 0, 3)), rng.choice((0, 5, -1, 2**62))) for index in indexes]
        topics.append(cases.AnswerTopic(f"t{number}", rng.randbytes(16), rows))
    return version, cases.framed(cases.encode_answer(cases.Response(version, 7, topics)))


def broken(rng: Random, frame: bytes, other: bytes) -> bytes:
    """The contents of a frame, two thirds of them with something wrong: a field, a length, an end that is missing."""
    kind = rng.random()
    if kind < 0.35:
        return frame[4:]
    if kind < 0.7:
        return frames.mutate(rng, frame, other)[4:]
    out = bytearray(frame[4:])
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(out) + 1)
        length = rng.choice(LENGTHS)
        out[at : at + rng.choice((1, len(length)))] = length
    return bytes(out[: rng.randrange(len(out) + 1)] if kind > 0.95 else out)


# --- comparing --------------------------------------------------------------------------------------------------------


class Boundaries:
    """`counts`: calls of each kind. `findings`: what differed, one line each."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self._rng = rng = Random(seed)
        self._fast: Any = module("protocol.produce.produce_fast", COMPILED)
        self._fast_path: Any = module("gateway.data.session.fast_path", COMPILED)
        self._stream, self._metadata = (
            Twins.of("protocol.rewriting.stream"),
            Twins.of("protocol.rewriting.metadata_topics"),
        )
        duplicates = Twins.of("policies.idempotence.duplicates")
        self._seen = Twins(duplicates.pure.AcknowledgedBatches(300), duplicates.compiled.AcknowledgedBatches(300))
        corpus = frames.corpus()
        answers = [(*of, frame) for of, found in corpus.answers.items() for frame in found]
        self._requests = corpus.produce
        self._wide = [wide_request(rng) for _ in range(WIDE)]
        self._answers = [(version, frame) for key, version, frame in answers if key == 0]
        self._wide_answers = [wide_answer(rng) for _ in range(WIDE)]
        self._topics = [frame for key, version, frame in answers if key == 3 and version >= 10]
        has_endpoints = self._stream.pure.has_endpoints
        self._streams = [each for each in answers if has_endpoints(each[0], each[1])]
        plays = ((self.request, 5), (self.answer, 3), (self.hiding, 2), (self.topic_ids, 1), (self.repeats, 1))
        self._plays: list[Callable[[], None]] = [play for play, share in plays for _ in range(share)]

    def play(self) -> None:
        """One input, of any kind."""
        play = self._rng.choice(self._plays)
        try:
            play()
        except Exception:  # neither of them may raise anything but MalformedFrame
            self._found(f"{play.__name__}: {traceback.format_exc()}")

    def request(self) -> None:
        rng = self._rng
        data = broken(rng, rng.choice(rng.choice((self._requests, self._wide))), rng.choice(self._requests))
        most = rng.choice((10_000, 10_000, 100, 2, 1, 0))
        careful = _outcome(produce_request._skim_any, data, 0, len(data), most)
        read = self._read("request", self._fast.read_request, data, careful, most)
        if read is not None and len(read[4]) > 1:
            self._sums_of(data, read[4])

    def _sums_of(self, data: bytes, parts: Any) -> None:
        """What is computed of a request's partitions, alone and with an answer for them."""
        rng, own = self._rng, list(parts)
        rows = [(topic, index, 0, rng.choice((0, 5, 2**50))) for topic, index, *_ in own]
        if rng.random() < 0.5:
            rng.shuffle(rows)
        if rng.random() < 0.2:
            topic, index = rng.choice((b"zz", rows[0][0])), rng.choice(EDGES)
            rows[rng.randrange(len(rows))] = (topic, index, rng.choice((0, 3)), 1)
        if rng.random() < 0.1:
            rows.pop()
        sums = [
            (topic, sum(part[2] for part in own[first:stop]), sum(part[3] for part in own[first:stop]))
            for topic, first, stop in parts.topics
        ]
        self._same("sums", sums, self._fast_path.sums_by_topic(parts), data)
        offsets = self._fast_path.written_offsets(parts, self._fast.gather_partitions(rows))
        self._same("offsets", plain_offsets(own, rows), None if offsets is None else list(offsets), data)
        if offsets:
            self._same(
                "seen of", *(each.record_batches(parts.topics, parts.numbers, offsets) for each in self._seen), data
            )

    def answer(self) -> None:
        rng = self._rng
        version, frame = rng.choice(rng.choice((self._answers, self._wide_answers)))
        data = broken(rng, frame, rng.choice(self._answers)[1])
        if rng.random() < 0.05:
            version = rng.choice((-1, 0, 2, 3, 9, 13, 14, 32767))
        careful = _outcome(produce_response._skim_any, data, 0, len(data), version)
        rows = careful if careful == "malformed" else careful[0]
        self._read("answer", self._fast.read_response, data, rows, version)
        topic, index = rng.choice((b"t0", b"clicks", bytes(16), b"")), rng.choice(EDGES)
        if isinstance(rows, list) and rows and rng.random() < 0.8:
            topic, index = rng.choice(rows)[:2]
        offset = rows[0][3] if isinstance(rows, list) and [row[:3] for row in rows] == [(topic, index, 0)] else None

        def read_written(*arguments: Any) -> int | None:
            found = int(self._fast.read_written_offset(*arguments))
            return None if found < 0 else found

        self._read("written", read_written, data, offset, version, topic, index)

    def topic_ids(self) -> None:
        rng = self._rng
        data = broken(rng, rng.choice(self._topics), rng.choice(self._topics))
        self._agree("new_ids", self._metadata, "read_new_ids", data, {}, at=rng.randrange(min(len(data), 60) + 1))

    def hiding(self) -> None:
        """Answers whose endpoints are hidden in place, in pieces as they arrive."""
        rng = self._rng
        key, version, frame = rng.choice(self._streams)
        data = broken(rng, frame, rng.choice(self._streams)[2]) + rng.randbytes(rng.choice((0,) * 9 + (20_000,)))
        size = len(data) if rng.random() < 0.9 else max(0, len(data) + rng.randint(-40, 40))
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 1, 3, 20))))
        pieces = [data[start:stop] for start, stop in pairwise((0, *cuts, len(data)))]
        pure, compiled = (_hidden(stream.EndpointHider(key, version, size), pieces) for stream in self._stream)
        self._same("hiding", pure, compiled, data, key, version, size, cuts)

    def repeats(self) -> None:
        rng = self._rng
        epoch, topic, index = (
            rng.choice((0, 1, -1)),
            rng.choice((b"a", b"b")),
            rng.choice((*EDGES, rng.randrange(2000))),
        )
        numbers = rng.choice((*range(7), *EDGES)), rng.choice((0, 1, 2, -1, 2**62))
        batch_of = (rng.choice((-1, 1, 2, 3, 2**62)), epoch, topic, index, *numbers)
        self._same("seen", *(table.record_batch(*batch_of) for table in self._seen), b"", *batch_of)

    def _read(self, what: str, read: Callable[..., Any], data: bytes, careful: Any, *more: Any) -> Any:
        """What a fast reader says of it; None: it leaves that to the careful one, which has said `careful`."""
        rng, end = self._rng, len(data)
        expected = read(exact(data), 0, end, *more)
        found = cases.told(expected)
        if expected is not None:
            self._same(f"{what}, careful reader", careful, found, data, *more)
        with fenced(data) as buffer:
            self._same(f"{what}, fenced", found, cases.told(read(buffer, 0, end, *more)), data, *more)
        before = rng.randbytes(rng.choice((0, 1, 40)))
        behind = rng.choice((bytes(300), b"\xff" * 300, rng.randbytes(300), data))
        around = read(bytearray(before + data + behind), len(before), len(before) + end, *more)
        self._same(f"{what}, among others", found, cases.told(around), data, *more)
        return expected

    def _agree(self, what: str, twins: Twins, name: str, data: bytes, *more: Any, at: int = 0) -> Any:
        """What both say of data[at:]."""
        rng, end = self._rng, len(data)
        pure, compiled = (getattr(each, name) for each in twins)
        expected = _outcome(pure, data, at, end, *more)
        self._same(f"{what}, exact", expected, _outcome(compiled, exact(data), at, end, *more), data, *more)
        with fenced(data) as buffer:
            self._same(f"{what}, fenced", expected, _outcome(compiled, buffer, at, end, *more), data, *more)
        before = rng.randbytes(rng.choice((0, 1, 40)))
        behind = rng.choice((bytes(300), b"\xff" * 300, rng.randbytes(300), data))
        start, end = len(before) + at, len(before) + end
        alone = _outcome(pure, before + data, start, end, *more)
        around = _outcome(compiled, bytearray(before + data + behind), start, end, *more)
        self._same(f"{what}, among others", alone, around, data, *more)
        return expected

    def _same(self, what: str, expected: Any, found: Any, data: bytes, *more: Any) -> None:
        self.counts[what] += 1
        if expected != found:
            self._found(f"{what}: {str(expected)[:300]}, but {str(found)[:300]}; {data.hex()[:400]} {more}")

    def _found(self, line: str) -> None:
        self.findings.append(line)
        if len(self.findings) <= FIRST:
            print(line, flush=True)


def plain_offsets(parts: list[Any], rows: list[Any]) -> list[int] | None:
    """As fast_path.offsets says it, in a line or two."""
    said = {row[:2]: row for row in rows}
    found = [said.get(part[:2]) for part in parts]
    if len(rows) != len(parts) or len(said) != len(parts) or any(row is None or row[2] for row in found):
        return None
    if any(part[7] for part in parts):
        return None
    return [row[3] for row in found if row] if any(part[4] >= 0 for part in parts) else []


def _outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """What it says, as values that can be compared."""
    return cases.told(_outcome_of(call, *arguments))


def _outcome_of(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except MalformedFrame:  # bytes behind the end may have a say in which
        return "malformed"


def _hidden(hider: Any, pieces: list[bytes]) -> tuple[bytes, list[Any]]:
    """What goes on to the client, and the hider's state after each piece."""
    out, kept, states = bytearray(), b"", []
    for piece in pieces:
        arrived = kept + piece
        size = min(len(arrived), hider.left)
        if not size:
            continue
        with fenced(arrived[:size]) as buffer:
            held = hider.feed(buffer, 0, size)
            out += buffer[: size - held]
            kept = bytes(buffer[size - held :])
        states.append((held, hider.left, hider.unread, hider.lost))
    return bytes(out), states


# --- the program ------------------------------------------------------------------------------------------------------


def read_forbidden() -> None:
    """With AddressSanitizer this ends the process."""
    topic = cases.Topic("clicks", b"", [(0, cases.Batch(batch(), (0,) * 6))])
    data = cases.encode(cases.Request(9, "app", None, -1, [topic]))
    with fenced(data[:-1]) as buffer:
        longer = (ctypes.c_ubyte * len(data)).from_address(address(buffer))
        module("protocol.produce.produce_fast", COMPILED).read_request(memoryview(longer).cast("B"), 0, len(data), 10)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.boundaries")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after so long")
    parser.add_argument("--calls", type=int, default=10**18, help="stop after about so many")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--forbidden", action="store_true", help="read a forbidden byte: is that seen?")
    options = parser.parse_args(arguments)
    if options.forbidden:
        read_forbidden()
        return 0
    print(f"seed {options.seed}, {'with' if watched() else 'without'} AddressSanitizer", flush=True)
    boundaries, until = Boundaries(options.seed), time.monotonic() + options.seconds
    while time.monotonic() < until and boundaries.counts.total() < options.calls:
        boundaries.play()
    for what, count in sorted(boundaries.counts.items()):
        print(f"{what:<28} {count:,}")
    print(f"{'all':<28} {boundaries.counts.total():,} calls, {len(boundaries.findings)} findings")
    return 1 if boundaries.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
