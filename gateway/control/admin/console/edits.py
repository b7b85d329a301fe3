# Changes of limits by a form: looked at first (the API's validate_only), then made. What is wrong with one, and what it
# would do, is the API's word. An empty value takes a limit away where that is possible.

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.control.admin.console.api_client import ApiClient, ApiError, child_path
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
MAX_SUMS: Final = 5


class ThresholdSum(NamedTuple):
    """The thresholds of topics on one broker, and the total that they are parts of: bytes per second."""

    broker: str
    explicit: float
    total: float


class EditOutcome(NamedTuple):
    """What came of a form. `done`: the change is made, as this version. Otherwise it is what it would do, or why it
    can't be: `problem`, with what the API found in detail. `form`: as it was sent.
    """

    form: Form
    done: bool = False
    version: int = 0
    changes: Sequence[Mapping[str, Any]] = ()
    sums: Sequence[ThresholdSum] = ()
    warnings: Sequence[str] = ()
    problem: str = ""
    findings: Sequence[Mapping[str, str]] = ()


async def edit_topic(api: ApiClient, given: Form, form: Form, now_ms: int) -> EditOutcome:
    return await _edit_threshold(api, child_path(TOPICS, given.get("topic", "")), form, now_ms)


async def edit_total(api: ApiClient, given: Form, form: Form, now_ms: int) -> EditOutcome:
    broker = given.get("broker", "")
    return await _edit_threshold(api, child_path(TOTAL, broker) if broker else TOTAL, form, now_ms)


async def _edit_threshold(api: ApiClient, path: str, form: Form, now_ms: int) -> EditOutcome:
    async def change(validate_only: bool) -> Mapping[str, Any]:
        if form.get("do") == "remove":
            return await _send_change(api, "DELETE", path, None, validate_only)
        body = {"value": form.get("value", "").strip(), "until": _parse_end(form, now_ms)}
        return await _send_change(api, "PUT", path, body, validate_only)

    return await _make_change(form, change)


async def edit_group(api: ApiClient, given: Form, form: Form, now_ms: int) -> EditOutcome:
    """The limits of a group; with `place` in the form, what it is attached to."""
    name = given.get("group", "")
    path = child_path(GROUPS, name)
    if "place" in form:
        return await _edit_attachment(api, name, form)

    async def change(validate_only: bool) -> Mapping[str, Any]:
        if form.get("do") == "remove":
            return await _send_change(api, "DELETE", path, None, validate_only)
        body: dict[str, Any] = {key: _parse_number(form[key]) for key in GROUP_KEYS if key in form}
        if until := _parse_end(form, now_ms):
            body["until"] = until
        return await _send_change(api, "PUT", path, body, validate_only)

    return await _make_change(form, change)


async def _edit_attachment(api: ApiClient, name: str, form: Form) -> EditOutcome:
    async def change(validate_only: bool) -> Mapping[str, Any]:
        tenant, slash, namespace = form["place"].strip().partition("/")
        if slash:
            place = f"{child_path(child_path(NAMESPACES, tenant), namespace)}/resourcegroup"
        else:
            place = f"{child_path(TENANTS, tenant)}/resourcegroup"
        if form.get("do") == "remove":
            return await _send_change(api, "DELETE", place, None, validate_only)
        return await _send_change(api, "PUT", child_path(place, name), None, validate_only)

    return await _make_change(form, change)


async def edit_quota(api: ApiClient, given: Form, form: Form, now_ms: int) -> EditOutcome:
    """Only the values that differ from those that the form was made with (`was.KEY`) are changed."""
    entity = entity_of(given)

    async def change(validate_only: bool) -> Mapping[str, Any]:
        keys = [name.removeprefix("was.") for name in form if name.startswith("was.")]
        ops = [
            {"key": key, "value": _parse_number(form.get(key, ""))}
            for key in keys
            if form.get(key, "").strip() != form[f"was.{key}"] or form.get("do") == "remove"
        ]
        if form.get("do") == "remove":
            ops = [{"key": each["key"], "value": None} for each in ops if form[f"was.{each['key']}"]]
        if not ops:
            raise ApiError(422, "nothing is different: change a value first")
        body = {"alterations": [{"entity": entity, "ops": ops, "until": _parse_end(form, now_ms)}]}
        said = await api.send("POST", QUOTAS, {**body, "validate_only": validate_only}, {})
        refused = [each["message"] for each in said["results"] if each["error"] is not None]
        if refused:
            raise ApiError(422, "; ".join(refused))
        return dict(said)

    return await _make_change(form, change)


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
    return {key: _exact_text(key, values.get(key)) for key in keys}


def group_fields(limits: Mapping[str, float | None]) -> dict[str, str]:
    """The text of each limit by key."""
    return {key: _exact_text("byte_rate" if key.endswith("Bytes") else "", limits.get(key)) for key in GROUP_KEYS}


def _exact_text(key: str, value: float | None) -> str:
    if value is None:
        return ""
    is_size = key.endswith(("byte_rate", "bps"))
    return str(exact_size(value)) if is_size else f"{value:g}"


async def _send_change(api: ApiClient, method: str, path: str, body: Any, validate_only: bool) -> Mapping[str, Any]:
    said: Mapping[str, Any] = await api.send(method, path, body, {"validate_only": True if validate_only else None})
    return said


async def _make_change(form: Form, change: Callable[[bool], Awaitable[Mapping[str, Any]]]) -> EditOutcome:
    is_real = form.get("do") in ("apply", "remove")
    try:
        said = await change(not is_real)
    except ValueError as error:
        return EditOutcome(form, problem=str(error))
    except ApiError as error:
        if error.status == 401:
            raise
        return EditOutcome(form, problem=error.detail, findings=error.findings)
    sums = [ThresholdSum(broker, each["explicit"], each["total"]) for broker, each in said["committed"].items()]
    sums.sort(key=lambda each: -each.explicit / each.total if each.total else 0.0)
    changes = said["changes"]
    about_sums = any(each["kind"] in ("topic", "broker") for each in changes)
    return EditOutcome(
        form, is_real, said["version"], changes, sums[:MAX_SUMS] if about_sums else (), list(said["warnings"])
    )


def _parse_end(form: Form, now_ms: int) -> str | None:
    """
    Raises:
        ValueError: it is no time.
    """
    text = form.get("until", "").strip()
    return format_time(parse_until(text, now_ms)) if text else None


def _parse_number(text: str) -> float | str | None:
    """What is no number may be a size, which the API reads."""
    text = text.strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


EDITS: Final[Mapping[str, Callable[[ApiClient, Form, Form, int], Awaitable[EditOutcome]]]] = {
    "/console/topic": edit_topic,
    "/console/total": edit_total,
    "/console/group": edit_group,
    "/console/quota": edit_quota,
}
