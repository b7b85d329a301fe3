# Which retention would have kept a volume below its limit: from what came to it, window by window. Pure.
#
# What was there at the first look counts as staying, since its topic is unknown: so a retention found here would
# have been short enough, a longer one perhaps as well. Kafka deletes whole segments: one more for each partition is
# kept at times.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple


class RetentionAdvice(NamedTuple):
    """`room`: the bytes of what came that the volume has room for below its limit, 0 where none.

    `ms`: the retention.ms of all its topics; None: any would have done. `topic_bytes`: the retention.bytes of each
    topic, for each of its partitions.
    """

    room: int
    ms: int | None
    topic_bytes: Mapping[str, int]


def advise_retention(
    written: Sequence[int], step_ms: int, room: int, topics: Mapping[str, tuple[int, int]]
) -> RetentionAdvice:
    """`written`: bytes that came to the volume in each window of `step_ms`. `topics`: of each, the bytes that came
    there, and its partitions with a replica there.
    """
    room = max(0, room)
    windows = longest_fitting_run(written, room)
    whole = sum(size for size, _ in topics.values())
    each = {
        topic: room * size // whole // partitions
        for topic, (size, partitions) in topics.items()
        if whole and partitions
    }
    return RetentionAdvice(room, None if windows >= len(written) else windows * step_ms, each)


def longest_fitting_run(written: Sequence[int], room: int) -> int:
    """The most windows of which any that follow each other bring no more than `room` together."""
    sums = [0, *accumulate(written)]
    fits, too_many = 0, len(written) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if max(sums[i + middle] - sums[i] for i in range(len(sums) - middle)) <= room:
            fits = middle
        else:
            too_many = middle
    return fits
