# The changes of policies at run time, as `produce-gateway policies history -o json` prints what REST answers
# (/v1/policies/history). Knows no gateway.

from __future__ import annotations

import json
from typing import Any, cast

from policies.definitions.policy_values import InvalidPolicy, Kind, PolicyKey, Value, check_value
from policies.units import parse_time
from policies.whatif.timetable import Changed


class InvalidHistory(ValueError):
    """One line: why the text is no such answer."""


def parse(text: str) -> list[Changed]:
    """The changes in that text.

    Raises:
        InvalidHistory: it isn't what the command prints.
    """
    try:
        return [_changed(each) for each in json.loads(text)["changes"]]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InvalidHistory(f"{why}: give what produce-gateway policies history --limit 1000 -o json prints") from None


def _changed(said: Any) -> Changed:
    key = PolicyKey(cast("Kind", said["kind"]), said["name"], said["key"]).checked()
    return Changed(parse_time(said["at"]), key, _value(key, said["old"]), _value(key, said["new"]))


def _value(key: PolicyKey, said: Any) -> Value | None:
    if said is None or isinstance(said, str):
        return said
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise InvalidPolicy(f"{key}: its value is no number: {said!r}")
    return check_value(key, said)
