# The partitions of one request together: what each topic brings, and whether the broker's answer says that all of them
# are in the log. Sans-IO; of several partitions, as protocol.usual.Partitions has them.
#
# This file is compiled where a C compiler is: sums_compiled.pxd says what its variables are in C, setup.py how it is
# built. It is plain Python all the same, and runs as such elsewhere; tests hold the two to each other.

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from protocol import layouts

if TYPE_CHECKING:
    from protocol.usual import Partitions, Results

    Sum = tuple[bytes, int, int]  # topic name or id, bytes, messages

_PART = 7  # numbers of a partition in a request: index, size, messages, producer id, epoch, sequence, trailing
_RESULT = 3  # and in an answer: index, error code, base offset
_NOBODY_ASKS = array("q")


def by_topic(parts: Partitions) -> list[Sum]:
    """What each topic brings, in the order of the request; a topic whose partitions don't stand together is there more
    than once.
    """
    sums: list[Sum] = []
    numbers = layouts.items(parts.numbers)
    for topic, first, stop in parts.topics:
        size = messages = 0
        for at in range(first * _PART, stop * _PART, _PART):
            size += numbers[at + 1]
            messages += numbers[at + 2]
        sums.append((topic, size, messages))
    return sums


def offsets(parts: Partitions, answered: Results) -> array[int] | None:
    """The base offset of each of these partitions, if the broker has written them all as they were sent; none at all
    where no partition has a producer id to recognise it by later.

    None: there is an error, or bytes behind a batch, or the answer is for other partitions.
    """
    count = len(parts)
    if len(answered) != count or isinstance(answered, list):
        return None
    numbers, results = layouts.items(parts.numbers), layouts.items(answered.numbers)
    producers = False
    in_order = parts.topics == answered.topics
    result = 0
    for part in range(0, count * _PART, _PART):
        if results[result + 1] or numbers[part + 6]:
            return None
        if numbers[part + 3] >= 0:
            producers = True
        if results[result] != numbers[part]:
            in_order = False
        result += _RESULT
    if in_order:
        return answered.numbers[_RESULT - 1 : count * _RESULT : _RESULT] if producers else _NOBODY_ASKS
    found = _in_another_order(parts, answered)
    return found if producers or found is None else _NOBODY_ASKS


def _in_another_order(parts: Partitions, answered: Partitions) -> array[int] | None:
    # Brokers answer in the order of a hash table of theirs.
    topics: dict[bytes, dict[int, int]] = {}  # index -> place in the answer
    results = layouts.items(answered.numbers)
    for topic, first, stop in answered.topics:
        of_topic = topics.get(topic)
        if of_topic is None:
            of_topic = topics[topic] = {}
        for place in range(first, stop):
            of_topic[results[place * _RESULT]] = place
    numbers = layouts.items(parts.numbers)
    kept = answered.numbers[: len(parts)]
    found = layouts.items(kept)
    for topic, first, stop in parts.topics:
        of_topic = topics.get(topic)
        if of_topic is None:
            return None
        for place in range(first, stop):
            other = of_topic.get(numbers[place * _PART], -1)
            if other < 0:
                return None
            found[place] = results[other * _RESULT + 2]
    return kept
