# The changes of policies at run time, as `produce-gateway policies history -o json` prints what REST answers
# (/v1/policies/history). Knows no gateway.

from __future__ import annotations

import json
from typing import Any, cast

from policies.definitions.policy_values import InvalidPolicy, PolicyKey, PolicyKind, PolicyValue, check_value
from policies.units import parse_time
from policies.whatif.timetable import TimedChange


class InvalidHistory(ValueError):
    """One line: why the text is no such answer."""


def parse_history(text: str) -> list[TimedChange]:
    """The changes in that text, the oldest first. Their order is that of their versions: each gateway has a clock of
    its own, and two changes may be of one millisecond. So none is later than the next one of the same key.

    Raises:
        InvalidHistory: it isn't what the command prints.
    """
    try:
        found = [(_parse_change(each), each["version"]) for each in json.loads(text)["changes"]]
        found.sort(key=lambda each: each[1], reverse=True)  # the newest are first already, also of one version
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InvalidHistory(f"{why}: give what produce-gateway policies history --limit 1000 -o json prints") from None
    changes: list[TimedChange] = []
    next_at: dict[PolicyKey, int] = {}
    for change, _ in found:
        at_ms = next_at[change.key] = min(change.at_ms, next_at.get(change.key, change.at_ms))
        changes.append(change._replace(at_ms=at_ms))
    return changes[::-1]


def _parse_change(said: Any) -> TimedChange:
    key = PolicyKey(cast("PolicyKind", said["kind"]), said["name"], said["key"]).validate_key()
    return TimedChange(parse_time(said["at"]), key, _check_value(key, said["old"]), _check_value(key, said["new"]))


def _check_value(key: PolicyKey, said: Any) -> PolicyValue | None:
    if said is None or isinstance(said, str):
        return said
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise InvalidPolicy(f"{key}: its value is not a number: {said!r}")
    return check_value(key, said)
