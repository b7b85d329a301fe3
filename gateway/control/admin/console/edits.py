# Changes of limits by a form: looked at first (the API's validate_only), then made. What is wrong with one, and what it
# would do, is the API's word. An empty value takes a limit away where that is possible.

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.control.admin.console.asking import Api, Refused, below
from policies.units import exact_size, format_time, parse_until

Form = Mapping[str, str]
TOPICS: Final = "/v1/thresholds/topics"
TOTAL: Final = "/v1/thresholds/total"
GROUPS: Final = "/admin/v2/resourcegroup"
TENANTS: Final = "/admin/v2/tenants"
NAMESPACES: Final = "/admin/v2/namespaces"
QUOTAS: Final = "/v1/client-quotas:alter"
QUOTA_KEYS: Final = ("producer_byte_rate", "consumer_byte_rate")  # those that a form has also where they are not set
GROUP_KEYS: Final = ("publishRateInBytes", "publishRateInMsgs", "dispatchRateInBytes", "dispatchRateInMsgs")
MOST_SUMS: Final = 5


class Sum(NamedTuple):
    """The thresholds of topics on one broker, and the total that they are parts of: bytes per second."""

    broker: str
    explicit: float
    total: float


class Outcome(NamedTuple):
    """What came of a form. `done`: the change is made, as this version. Otherwise it is what it would do, or why it
    can't be: `problem`, with what the API found in detail. `form`: as it was sent.
    """

    form: Form
    done: bool = False
    version: int = 0
    changes: Sequence[Mapping[str, Any]] = ()
    sums: Sequence[Sum] = ()
    warnings: Sequence[str] = ()
    problem: str = ""
    findings: Sequence[Mapping[str, str]] = ()


async def topic(api: Api, given: Form, form: Form, now_ms: int) -> Outcome:
    return await _threshold(api, below(TOPICS, given.get("topic", "")), form, now_ms)


async def total(api: Api, given: Form, form: Form, now_ms: int) -> Outcome:
    broker = given.get("broker", "")
    return await _threshold(api, below(TOTAL, broker) if broker else TOTAL, form, now_ms)


async def _threshold(api: Api, path: str, form: Form, now_ms: int) -> Outcome:
    async def change(validate_only: bool) -> Mapping[str, Any]:
        if form.get("do") == "remove":
            return await _send(api, "DELETE", path, None, validate_only)
        body = {"value": form.get("value", "").strip(), "until": _until(form, now_ms)}
        return await _send(api, "PUT", path, body, validate_only)

    return await _made(form, change)


async def group(api: Api, given: Form, form: Form, now_ms: int) -> Outcome:
    """The limits of a group; with `place` in the form, what it is attached to."""
    name = given.get("group", "")
    path = below(GROUPS, name)
    if "place" in form:
        return await _attachment(api, name, form)

    async def change(validate_only: bool) -> Mapping[str, Any]:
        if form.get("do") == "remove":
            return await _send(api, "DELETE", path, None, validate_only)
        body: dict[str, Any] = {key: _number(form[key]) for key in GROUP_KEYS if key in form}
        if until := _until(form, now_ms):
            body["until"] = until
        return await _send(api, "PUT", path, body, validate_only)

    return await _made(form, change)


async def _attachment(api: Api, name: str, form: Form) -> Outcome:
    async def change(validate_only: bool) -> Mapping[str, Any]:
        tenant, slash, namespace = form["place"].strip().partition("/")
        if slash:
            place = f"{below(below(NAMESPACES, tenant), namespace)}/resourcegroup"
        else:
            place = f"{below(TENANTS, tenant)}/resourcegroup"
        if form.get("do") == "remove":
            return await _send(api, "DELETE", place, None, validate_only)
        return await _send(api, "PUT", below(place, name), None, validate_only)

    return await _made(form, change)


async def quota(api: Api, given: Form, form: Form, now_ms: int) -> Outcome:
    """Only the values that differ from those that the form was made with (`was.KEY`) are changed."""
    entity = entity_of(given)

    async def change(validate_only: bool) -> Mapping[str, Any]:
        keys = [name.removeprefix("was.") for name in form if name.startswith("was.")]
        ops = [
            {"key": key, "value": _number(form.get(key, ""))}
            for key in keys
            if form.get(key, "").strip() != form[f"was.{key}"] or form.get("do") == "remove"
        ]
        if form.get("do") == "remove":
            ops = [{"key": each["key"], "value": None} for each in ops if form[f"was.{each['key']}"]]
        if not ops:
            raise Refused(422, "nothing is different: change a value first")
        body = {"alterations": [{"entity": entity, "ops": ops, "until": _until(form, now_ms)}]}
        said = await api.send("POST", QUOTAS, {**body, "validate_only": validate_only}, {})
        refused = [each["message"] for each in said["results"] if each["error"] is not None]
        if refused:
            raise Refused(422, "; ".join(refused))
        return dict(said)

    return await _made(form, change)


def entity_of(given: Form) -> list[dict[str, str | None]]:
    """As the API has it, of a page's query: `user`, `client_id`: names; `default_user`, `default_client_id`: true."""
    entity: list[dict[str, str | None]] = []
    for name, kind in (("user", "user"), ("client_id", "client-id")):
        if given.get(f"default_{name}") == "true":
            entity.append({"type": kind, "name": None})
        elif name in given:
            entity.append({"type": kind, "name": given[name]})
    return entity


def quota_fields(values: Mapping[str, float]) -> dict[str, str]:
    """The text of each value by key: those that are set, and those that a form always has."""
    keys = (*QUOTA_KEYS, *(key for key in values if key not in QUOTA_KEYS))
    return {key: _exact(key, values.get(key)) for key in keys}


def group_fields(limits: Mapping[str, float | None]) -> dict[str, str]:
    """The text of each limit by key."""
    return {key: _exact("byte_rate" if key.endswith("Bytes") else "", limits.get(key)) for key in GROUP_KEYS}


def _exact(key: str, value: float | None) -> str:
    if value is None:
        return ""
    is_size = key.endswith(("byte_rate", "bps"))
    return str(exact_size(value)) if is_size else f"{value:g}"


async def _send(api: Api, method: str, path: str, body: Any, validate_only: bool) -> Mapping[str, Any]:
    said: Mapping[str, Any] = await api.send(method, path, body, {"validate_only": True if validate_only else None})
    return said


async def _made(form: Form, change: Callable[[bool], Awaitable[Mapping[str, Any]]]) -> Outcome:
    is_real = form.get("do") in ("apply", "remove")
    try:
        said = await change(not is_real)
    except ValueError as error:
        return Outcome(form, problem=str(error))
    except Refused as error:
        if error.status == 401:
            raise
        return Outcome(form, problem=error.detail, findings=error.findings)
    sums = [Sum(broker, each["explicit"], each["total"]) for broker, each in said["committed"].items()]
    sums.sort(key=lambda each: -each.explicit / each.total if each.total else 0.0)
    changes = said["changes"]
    about_sums = any(each["kind"] in ("topic", "broker") for each in changes)
    return Outcome(
        form, is_real, said["version"], changes, sums[:MOST_SUMS] if about_sums else (), list(said["warnings"])
    )


def _until(form: Form, now_ms: int) -> str | None:
    """
    Raises:
        ValueError: it is no time.
    """
    text = form.get("until", "").strip()
    return format_time(parse_until(text, now_ms)) if text else None


def _number(text: str) -> float | str | None:
    """What is no number may be a size, which the API reads."""
    text = text.strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


EDITS: Final[Mapping[str, Callable[[Api, Form, Form, int], Awaitable[Outcome]]]] = {
    "/console/topic": topic,
    "/console/total": total,
    "/console/group": group,
    "/console/quota": quota,
}
