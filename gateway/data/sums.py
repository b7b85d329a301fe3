# The partitions of one request together: what each topic brings, and whether the broker's answer says that all of them
# are in the log. Sans-IO; partitions and results are the tuples that protocol.produce_request.skim and
# protocol.produce_response.skim give.
#
# This file is compiled where a C compiler is: sums_compiled.pxd says what its variables are in C, setup.py how it is
# built. It is plain Python all the same, and runs as such elsewhere; tests hold the two to each other.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.produce_request import Partition
    from protocol.usual import Answered

    Sum = tuple[bytes, int, int]  # topic name or id, bytes, messages


def by_topic(parts: list[Partition]) -> list[Sum]:
    """What each topic brings, in the order of the request; a topic whose partitions don't stand together is there more
    than once.
    """
    sums: list[Sum] = []
    topic: bytes | None = None
    size = messages = 0
    for part in parts:
        if part[0] is not topic and part[0] != topic:
            if topic is not None:
                sums.append((topic, size, messages))
            topic, size, messages = part[0], 0, 0
        size += part[2]
        messages += part[3]
    if topic is not None:
        sums.append((topic, size, messages))
    return sums


def offsets(parts: list[Partition], answered: list[Answered]) -> list[int] | None:
    """The base offset of each of these partitions, if the broker has written them all as they were sent; none at all
    where no partition has a producer id to recognise it by later.

    None: there is an error, or bytes behind a batch, or the answer is for other partitions.
    """
    if len(parts) != len(answered):
        return None
    found: list[int] = []
    producers = False
    for place, part in enumerate(parts):
        result = answered[place]
        if result[1] != part[1] or (result[0] is not part[0] and result[0] != part[0]):
            return _in_another_order(parts, answered)
        if result[2] or part[7]:
            return None
        if part[4] >= 0:
            producers = True
        found.append(result[3])
    return found if producers else []


def _in_another_order(parts: list[Partition], answered: list[Answered]) -> list[int] | None:
    topics: dict[bytes, dict[int, int]] = {}
    topic, of_topic = b"", None
    for result in answered:
        if result[2]:
            return None
        if of_topic is None or result[0] != topic:
            topic = result[0]
            of_topic = topics.get(topic)
            if of_topic is None:
                of_topic = topics[topic] = {}
        of_topic[result[1]] = result[3]
    found: list[int] = []
    topic, of_topic = b"", None
    for part in parts:
        if of_topic is None or part[0] != topic:
            topic = part[0]
            of_topic = topics.get(topic)
            if of_topic is None:
                return None
        offset = of_topic.get(part[1])
        if offset is None or part[7]:
            return None
        found.append(offset)
    return found
