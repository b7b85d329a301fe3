# How the answer to a what-if is shown: in words that say who would be hit, as a table, as JSON of a stable shape
# (docs/what-if.md). Pure: an answer in, text out.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.audit import schema
from gateway.audit.batch import dropped
from gateway.audit.batch.tables import AT_MOST, align, labels, safe, title, with_note
from gateway.audit.whatif.task import ACTUAL, CHANGE, MEASURES
from gateway.audit.whatif.whatif import Answer, Effect
from policies.definitions.rollout import is_nameless, place
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
_LISTED: Final = 10  # clients in words
_MOST: Final = 1000  # clients in JSON


def as_json(answer: Answer, about: Mapping[str, Any], rollout_key: bytes | None) -> dict[str, Any]:
    """In the shape that docs/what-if.md describes. `about`: the fields beside the numbers. `rollout_key` None: the
    places of nameless clients aren't known.
    """
    question = answer.question
    return {
        "version": JSON_VERSION,
        "by": list(question.by),
        "window_ms": question.window_ms,
        "from_ms": question.from_ms,
        "to_ms": question.to_ms,
        **about,
        "rows": [
            {**effect.keys, "outcome": outcome, "reason": reason, **_three(actual, change)}
            for effect in answer.rows
            for (outcome, reason), (actual, change) in sorted(effect.outcomes.items())
        ],
        "finally_dropped": [
            {**keys, "actual": actual, "what_if": actual + change, "difference": change, "upper_bound": bound}
            for keys, actual, change, bound in _dropped(answer)
        ],
        "clients_total": len(answer.clients),
        "clients": [_client(effect, rollout_key) for effect in answer.clients[:_MOST]],
    }


def as_text(answer: Answer, name: str) -> str:
    """Words, then the tables. `name`: of the policy."""
    return "\n\n".join(filter(None, (in_words(answer, name), _table(answer), _dropped_table(answer))))


def in_words(answer: Answer, name: str) -> str:
    """The clients that would be hit: "with clicks at 8 MB/s you would have dropped 1.2 GB of these three clients"."""
    lines = []
    for what, verb in _VERBS.items():

        def count(effect: Effect, which: str, what: str = what) -> int:
            return effect.dropped(which) if what == DROPPED else effect.bytes(what, which)

        hit = [effect for effect in answer.clients if count(effect, CHANGE)]
        if not hit:
            continue
        really = sum(count(effect, ACTUAL) for effect in answer.clients)
        change = sum(count(effect, CHANGE) for effect in answer.clients)
        bound = "at most " if what == DROPPED and answer.unknown else ""
        attempts = " (attempts: clients send again)" if what == "rejected" else ""
        lines.append(
            f"With {name} you would have {verb} {bound}{_size(really + change)}{attempts}, and not {_size(really)}."
            f" It differs for {_clients(len(hit))}:"
        )
        hit.sort(key=lambda effect: -abs(count(effect, CHANGE)))
        lines += [
            f"  {_who(effect)}: {_size(count(effect, ACTUAL) + count(effect, CHANGE))}, really"
            f" {_size(count(effect, ACTUAL))}"
            for effect in hit[:_LISTED]
        ]
        if len(hit) > _LISTED:
            lines.append(f"  … and {len(hit) - _LISTED:,} more")
    return "\n".join(lines) or f"With {name} everything would have been as it was."


def _table(answer: Answer) -> str:
    keys = _keys(answer)
    body = []
    for effect in answer.rows:
        for (outcome, reason), (actual, change) in sorted(effect.outcomes.items()):
            numbers = [actual["bytes"], actual["bytes"] + change["bytes"], change["bytes"]]
            words = [*labels(effect.keys, keys), title(outcome), safe(reason)]
            body.append([*words, *(f"{number:,}" for number in numbers), _change(actual["bytes"], change["bytes"])])
    head = [*map(title, keys), "outcome", "reason", "really", "what if", "difference", ""]
    return f"bytes\n{align(head, body, None, len(keys) + 2)}"


def _dropped_table(answer: Answer) -> str:
    """Beside the rejected attempts: the bytes that never got in. Nothing, if there are none."""
    keys = _keys(answer)
    body = []
    for names, actual, change, bound in _dropped(answer):
        numbers = [f"{AT_MOST if bound and number else ''}{number:,}" for number in (actual, actual + change)]
        body.append([*labels(names, keys), *numbers, f"{change:,}", _change(actual, change)])
    if not body:
        return ""
    table = align([*map(title, keys), "really", "what if", "difference", ""], body, None, len(keys))
    return with_note(f"bytes finally dropped (never got in; of rejected attempts, those not sent again)\n{table}")


def _dropped(answer: Answer) -> list[tuple[dict[str, Any], int, int, bool]]:
    """Of each row that lost something: keys, bytes that never got in, the difference, whether it is an upper bound."""
    torn = dropped.tears(answer.question.by, answer.question.window_ms)
    found = []
    for effect in answer.rows:
        actual, change = (effect.dropped(which, torn) for which in (ACTUAL, CHANGE))
        attempts = effect.bytes("rejected", ACTUAL), effect.bytes("rejected", CHANGE)
        if actual or change:
            found.append((effect.keys, actual, change, any(attempts) and (torn or answer.unknown)))
    return found


def _keys(answer: Answer) -> list[str]:
    question = answer.question
    return [*([schema.WINDOW] if question.window_ms else []), *question.by]


def _change(actual: int, change: int) -> str:
    return f"{100 * change / actual:+.1f} %" if actual and change else ""


def _three(actual: Mapping[str, int], change: Mapping[str, int]) -> dict[str, Any]:
    return {
        "actual": {name: actual[name] for name in MEASURES},
        "what_if": {name: actual[name] + change[name] for name in MEASURES},
        "difference": {name: change[name] for name in MEASURES},
    }


def _client(effect: Effect, rollout_key: bytes | None) -> dict[str, Any]:
    def sums(which: str) -> dict[str, int]:
        return {
            "accepted_bytes": effect.bytes("accepted", which),
            "rejected_bytes": effect.bytes("rejected", which),
            "delayed_bytes": effect.bytes(DELAYED, which),
            "finally_dropped_bytes": effect.dropped(which),
            "waiting_bytes": effect.bytes(WAITING, which),
        }

    actual, change = sums(ACTUAL), sums(CHANGE)
    return {
        **effect.keys,
        "place": _place(effect.keys["principal"], effect.keys["client_id"], rollout_key),
        "actual": actual,
        "what_if": {name: actual[name] + change[name] for name in actual},
        "difference": change,
    }


def _place(principal: str, client_id: str, rollout_key: bytes | None) -> float | None:
    if rollout_key is None and is_nameless(principal):
        return None
    return round(place(principal, client_id, rollout_key or b""), 2)


def _who(effect: Effect) -> str:
    principal, client_id, topic = labels(effect.keys, ("principal", "client_id", "topic"))
    return f"{principal}, client id {client_id}, topic {topic}"


def _clients(count: int) -> str:
    return "this client" if count == 1 else f"these {count:,} clients"


def _size(count: int) -> str:
    """In decimal units, as thresholds are configured."""
    return ("-" if count < 0 else "") + format_rate(abs(count), 1 if abs(count) >= 1000 else 0).removesuffix("/s")
