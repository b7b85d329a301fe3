"""What a request and its answer cost in the session alone, without sockets, by partitions and topics.

    .venv/bin/python -m tests.bench.session_cost                   # a table, in Markdown
    PURE_PYTHON=1 .venv/bin/python -m tests.bench.session_cost     # as it runs without a C compiler

Microseconds, the best of several batches of 64 requests: what the code needs when nothing disturbs it. Real brokers
answer in an order of their own (`shuffled`), the null broker in the request's.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from time import perf_counter
from typing import Final, NamedTuple

from gateway.compiled import apply_pure_python, compilation_state

REQUESTS: Final = 64  # of a batch, each by a producer of its own
BATCHES: Final = 31
SETTLING: Final = 3  # batches in which tables grow
RECORD: Final = b"x" * 40
SHAPES: Final = ((1, 1), (10, 1), (50, 1), (50, 5), (50, 50), (100, 1))
COLUMNS: Final = ("plain", "shuffled", "idempotent", "idempotent, shuffled")


class Cost(NamedTuple):
    """Microseconds of one request: until it may go to the broker, and until its answer may go to the client."""

    request: float
    answer: float

    @property
    def whole(self) -> float:
        return self.request + self.answer


def cost(partitions: int, topics: int, *, idempotent: bool, shuffled: bool, batches: int = BATCHES) -> Cost:
    """The least of `batches`. `partitions`: of the request, evenly over its topics."""
    from tests.gateway.data.play import Play, answer, request  # the form is chosen by now

    names = {f"t{number}": list(range(partitions // topics)) for number in range(topics)}
    chance = random.Random(1)
    in_answer = [
        (name, chance.sample(indexes, len(indexes)) if shuffled else indexes)
        for name, indexes in (chance.sample(list(names.items()), topics) if shuffled else names.items())
    ]
    play = Play().named()
    found = []
    for batch in range(batches + SETTLING):
        sent, answered = bytearray(), bytearray()
        for number in range(REQUESTS):
            correlation = batch * REQUESTS + number
            producer = (1000 + number, 0, batch) if idempotent else (-1, -1, -1)
            sent += request(correlation, names, producer=producer, values=(RECORD,))
            offset = 100_000 + 1000 * correlation
            results = {name: {index: (0, offset + index) for index in indexes} for name, indexes in in_answer}
            answered += answer(correlation, results)
        request_us = _time(play.session.on_client_bytes, sent, play.now)
        found.append(Cost(request_us, _time(play.session.on_upstream_bytes, answered, play.now)))
        play.session.to_upstream.clear()
        play.session.to_client.clear()
    kept = found[SETTLING:]
    return Cost(min(each.request for each in kept), min(each.answer for each in kept))


def _time(handle: Callable[[bytearray, int, int, float], int], data: bytearray, now: float) -> float:
    began = perf_counter()
    handled = handle(data, 0, len(data), now)
    took = perf_counter() - began
    if handled != len(data):
        raise RuntimeError(f"{len(data) - handled} bytes were not handled")
    return took / REQUESTS * 1e6


def _row(partitions: int, topics: int) -> list[float]:
    return [
        cost(partitions, topics, idempotent=idempotent, shuffled=shuffled).whole
        for idempotent in (False, True)
        for shuffled in (False, True)
    ]


def table() -> str:
    """One row for each of SHAPES."""
    lines = [f"| Partitions | topics | {' | '.join(COLUMNS)} |", "|" + "---:|" * (2 + len(COLUMNS))]
    for partitions, topics in SHAPES:
        cells = " | ".join(f"{each:.1f}" for each in _row(partitions, topics))
        lines.append(f"| {partitions} | {topics} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 4, 50)  # as in a worker
    print(f"hot path: {compilation_state()}\n\n{table()}")


if __name__ == "__main__":
    apply_pure_python()
    main()
