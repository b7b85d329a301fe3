# How the answer to a what-if is shown: in words that say who would be hit, as a table, as JSON of a stable shape
# (docs/what-if.md). Pure: an answer in, text out.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.audit import columns
from gateway.audit.batch import dropped
from gateway.audit.batch.tables import (
    AT_MOST_MARK,
    align_table,
    change_text,
    column_title,
    escape_unprintable,
    row_labels,
    with_bound_note,
)
from gateway.audit.whatif.task import ACTUAL, CHANGE, MEASURES
from gateway.audit.whatif.whatif import PolicyEffect, WhatIfAnswer
from policies.definitions.rollout import lacks_principal, rollout_place
from policies.units import format_rate
from policies.usage import DELAYED
from policies.whatif.replay import WAITING

JSON_VERSION: Final = 1
DROPPED: Final = "dropped"
_VERBS: Final = {
    DROPPED: "dropped for good",
    WAITING: "kept clients waiting with",
    "rejected": "rejected",
    DELAYED: "delayed",
}
_MAX_LISTED: Final = 10  # clients in words
_MAX_CLIENTS: Final = 1000  # clients in JSON


def what_if_json(answer: WhatIfAnswer, about: Mapping[str, Any], rollout_key: bytes | None) -> dict[str, Any]:
    """In the shape that docs/what-if.md describes. `about`: the fields beside the numbers. `rollout_key` None: the
    places of nameless clients aren't known.
    """
    question = answer.query
    return {
        "version": JSON_VERSION,
        "by": list(question.by),
        "window_ms": question.window_ms,
        "from_ms": question.from_ms,
        "to_ms": question.to_ms,
        **about,
        "rows": [
            {**effect.keys, "outcome": outcome, "reason": reason, **_compare_sums(actual, change)}
            for effect in answer.rows
            for (outcome, reason), (actual, change) in sorted(effect.outcomes.items())
        ],
        "finally_dropped": [
            {**keys, "actual": actual, "what_if": actual + change, "difference": change, "upper_bound": bound}
            for keys, actual, change, bound in _dropped_rows(answer)
        ],
        "clients_total": len(answer.clients),
        "clients": [_client_json(effect, rollout_key) for effect in answer.clients[:_MAX_CLIENTS]],
    }


def what_if_text(answer: WhatIfAnswer, name: str) -> str:
    """Words, then the tables. `name`: of the policy."""
    return "\n\n".join(filter(None, (describe_effects(answer, name), _effects_table(answer), _dropped_table(answer))))


def describe_effects(answer: WhatIfAnswer, name: str) -> str:
    """The clients that would be hit: "with clicks at 8 MB/s you would have dropped 1.2 GB of these three clients"."""
    lines = []
    for what, verb in _VERBS.items():

        def count(effect: PolicyEffect, which: str, what: str = what) -> int:
            return effect.dropped_bytes(which) if what == DROPPED else effect.outcome_bytes(what, which)

        hit = [effect for effect in answer.clients if count(effect, CHANGE)]
        if not hit:
            continue
        really = sum(count(effect, ACTUAL) for effect in answer.clients)
        change = sum(count(effect, CHANGE) for effect in answer.clients)
        bound = "at most " if what == DROPPED and answer.unknown else ""
        attempts = " (attempts: clients send again)" if what == "rejected" else ""
        lines.append(
            f"With {name} you would have {verb} {bound}{_size_text(really + change)}{attempts}, and not"
            f" {_size_text(really)}."
            f" It differs for {_clients_text(len(hit))}:"
        )
        hit.sort(key=lambda effect: -abs(count(effect, CHANGE)))
        lines += [
            f"  {_client_name(effect)}: {_size_text(count(effect, ACTUAL) + count(effect, CHANGE))}, really"
            f" {_size_text(count(effect, ACTUAL))}"
            for effect in hit[:_MAX_LISTED]
        ]
        if len(hit) > _MAX_LISTED:
            lines.append(f"  … and {len(hit) - _MAX_LISTED:,} more")
    return "\n".join(lines) or f"With {name} everything would have been as it was."


def _effects_table(answer: WhatIfAnswer) -> str:
    keys = _key_columns(answer)
    body = []
    for effect in answer.rows:
        for (outcome, reason), (actual, change) in sorted(effect.outcomes.items()):
            numbers = [actual["bytes"], actual["bytes"] + change["bytes"], change["bytes"]]
            words = [
                *row_labels(effect.keys, keys, answer.query.zone),
                column_title(outcome),
                escape_unprintable(reason),
            ]
            body.append(
                [*words, *(f"{number:,}" for number in numbers), _change_percent(actual["bytes"], change["bytes"])]
            )
    head = [*map(column_title, keys), "outcome", "reason", "really", "what if", "difference", ""]
    return f"bytes\n{align_table(head, body, None, len(keys) + 2)}"


def _dropped_table(answer: WhatIfAnswer) -> str:
    """Beside the rejected attempts: the bytes that never got in. Nothing, if there are none."""
    keys = _key_columns(answer)
    body = []
    for names, actual, change, bound in _dropped_rows(answer):
        numbers = [f"{AT_MOST_MARK if bound and number else ''}{number:,}" for number in (actual, actual + change)]
        body.append(
            [*row_labels(names, keys, answer.query.zone), *numbers, f"{change:,}", _change_percent(actual, change)]
        )
    if not body:
        return ""
    table = align_table([*map(column_title, keys), "really", "what if", "difference", ""], body, None, len(keys))
    return with_bound_note(f"bytes finally dropped (never got in; of rejected attempts, those not sent again)\n{table}")


def _dropped_rows(answer: WhatIfAnswer) -> list[tuple[dict[str, Any], int, int, bool]]:
    """Of each row that lost something: keys, bytes that never got in, the difference, whether it is an upper bound."""
    torn = dropped.tears_attempts(answer.query.by, answer.query.window_ms)
    found = []
    for effect in answer.rows:
        actual, change = (effect.dropped_bytes(which, torn) for which in (ACTUAL, CHANGE))
        attempts = effect.outcome_bytes("rejected", ACTUAL), effect.outcome_bytes("rejected", CHANGE)
        discarded = effect.outcome_bytes("discarded", ACTUAL), effect.outcome_bytes("discarded", CHANGE)
        if actual or change:
            bound = any(discarded) or (any(attempts) and (torn or answer.unknown))
            found.append((effect.keys, actual, change, bound))
    return found


def _key_columns(answer: WhatIfAnswer) -> list[str]:
    question = answer.query
    return [*([columns.WINDOW_COLUMN] if question.window_ms else []), *question.by]


def _change_percent(actual: int, change: int) -> str:
    return change_text(actual, change) if actual and change else ""


def _compare_sums(actual: Mapping[str, int], change: Mapping[str, int]) -> dict[str, Any]:
    return {
        "actual": {name: actual[name] for name in MEASURES},
        "what_if": {name: actual[name] + change[name] for name in MEASURES},
        "difference": {name: change[name] for name in MEASURES},
    }


def _client_json(effect: PolicyEffect, rollout_key: bytes | None) -> dict[str, Any]:
    def sums(which: str) -> dict[str, int]:
        return {
            "accepted_bytes": effect.outcome_bytes("accepted", which),
            "rejected_bytes": effect.outcome_bytes("rejected", which),
            "delayed_bytes": effect.outcome_bytes(DELAYED, which),
            "finally_dropped_bytes": effect.dropped_bytes(which),
            "waiting_bytes": effect.outcome_bytes(WAITING, which),
        }

    actual, change = sums(ACTUAL), sums(CHANGE)
    return {
        **effect.keys,
        "place": _rollout_place(effect.keys["principal"], effect.keys["client_id"], rollout_key),
        "actual": actual,
        "what_if": {name: actual[name] + change[name] for name in actual},
        "difference": change,
    }


def _rollout_place(principal: str, client_id: str, rollout_key: bytes | None) -> float | None:
    if rollout_key is None and lacks_principal(principal):
        return None
    return round(rollout_place(principal, client_id, rollout_key or b""), 2)


def _client_name(effect: PolicyEffect) -> str:
    principal, client_id, topic = row_labels(effect.keys, ("principal", "client_id", "topic"))
    return f"{principal}, client id {client_id}, topic {topic}"


def _clients_text(count: int) -> str:
    return "this client" if count == 1 else f"these {count:,} clients"


def _size_text(count: int) -> str:
    """In decimal units, as thresholds are configured."""
    return ("-" if count < 0 else "") + format_rate(abs(count), 1 if abs(count) >= 1000 else 0).removesuffix("/s")
