# The policies that were in force while usage was recorded: those of the file, and the changes at run time with their
# times. Knows no file and no clock; times are Unix milliseconds.

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from policies.definitions.policy_values import PolicyKey, PolicyValue, PolicyValues


class TimedChange(NamedTuple):
    """One change: the values in force before and after it, None = none."""

    at_ms: int
    key: PolicyKey
    old: PolicyValue | None
    new: PolicyValue | None


Timetable = tuple[tuple[int, PolicyValues], ...]  # all values from each time on, the earliest time first


def build_timetable(
    base: PolicyValues, changes: Iterable[TimedChange], over: PolicyValues
) -> tuple[PolicyValues, Timetable]:
    """The values before the first change, and those from each change on. A value of `changes` was what its first change
    says before that; of all others `base` has it. Of one key's changes of one time the later one in `changes` is the
    later one. `over`: stands over all of them, at all times.
    """
    ordered = sorted((each for each in changes if each.key.kind != "storage"), key=lambda each: each.at_ms)
    now = dict(base)
    for each in reversed(ordered):
        _put_value(now, each.key, each.old)
    first = last = {**now, **over}
    found: list[tuple[int, PolicyValues]] = []
    for each in ordered:
        _put_value(now, each.key, each.new)
        values = {**now, **over}
        if found and found[-1][0] == each.at_ms:
            found[-1] = each.at_ms, values
        elif values != last:
            found.append((each.at_ms, values))
        last = values
    return first, tuple(found)


def _put_value(values: dict[PolicyKey, PolicyValue], key: PolicyKey, value: PolicyValue | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
