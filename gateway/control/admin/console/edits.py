# Changes of limits by a form, each as one request to the API: looked at first (the API's validate_only), then made. The
# API says what is wrong with one, and what it would do. An empty value takes a limit away where that is possible.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.control.admin.console.api_client import ApiClient, child_path
from gateway.http.admin_api import AdminRequest, ApiError
from policies.units import exact_number, exact_size, format_time, parse_until

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
_NOTHING_DIFFERS: Final = "nothing is different: change a value first"


class EditOutcome(NamedTuple):
    """What came of a form. `done`: the change is made, as this version. Otherwise it is what it would do, or why it
    can't be: `problem`, with what the API found in detail. `form`: as it was sent. `sums`: of brokers, what their
    topics take of the total, the fullest first.
    """

    form: Form
    done: bool = False
    version: int = 0
    changes: Sequence[Mapping[str, Any]] = ()
    sums: Sequence[tuple[str, Mapping[str, Any]]] = ()
    warnings: Sequence[str] = ()
    problem: str = ""
    findings: Sequence[Mapping[str, str]] = ()


def edit_topic(given: Form, form: Form, now_ms: int) -> AdminRequest:
    return _edit_threshold(child_path(TOPICS, given.get("topic", "")), form, now_ms)


def edit_total(given: Form, form: Form, now_ms: int) -> AdminRequest:
    broker = given.get("broker", "")
    return _edit_threshold(child_path(TOTAL, broker) if broker else TOTAL, form, now_ms)


def _edit_threshold(path: str, form: Form, now_ms: int) -> AdminRequest:
    if form.get("do") == "remove":
        return AdminRequest("DELETE", path)
    return AdminRequest("PUT", path, body={"value": form.get("value", "").strip(), "until": _parse_end(form, now_ms)})


def edit_group(given: Form, form: Form, now_ms: int) -> AdminRequest:
    """The limits of a group; with `place` in the form, what it is attached to."""
    name, is_removal = given.get("group", ""), form.get("do") == "remove"
    path = child_path(GROUPS, name)
    if "place" in form:
        place = _attachment_path(form["place"].strip())
        return AdminRequest("DELETE", place) if is_removal else AdminRequest("PUT", child_path(place, name))
    if is_removal:
        return AdminRequest("DELETE", path)
    body: dict[str, Any] = {key: _parse_number(form[key]) for key in GROUP_KEYS if key in form and _differs(form, key)}
    if until := _parse_end(form, now_ms):
        if not body:
            raise ValueError(_NOTHING_DIFFERS)
        body["until"] = until
    return AdminRequest("PUT", path, body=body)


def _differs(form: Form, key: str) -> bool:
    """Whether the value is another one than that which the form was made with (`was.KEY`): to set the same one again
    would drop its end, or give it this one's.
    """
    return form.get(key, "").strip() != form.get(f"was.{key}")


def _attachment_path(place: str) -> str:
    tenant, slash, namespace = place.partition("/")
    try:
        owner = child_path(child_path(NAMESPACES, tenant), namespace) if slash else child_path(TENANTS, tenant)
    except ApiError as error:
        raise ValueError(error.detail) from error
    return f"{owner}/resourcegroup"


def edit_quota(given: Form, form: Form, now_ms: int) -> AdminRequest:
    before = {name.removeprefix("was."): text for name, text in form.items() if name.startswith("was.")}
    if form.get("do") == "remove":
        ops: list[dict[str, Any]] = [{"key": key, "value": None} for key, text in before.items() if text]
    else:
        ops = [{"key": key, "value": _parse_number(form.get(key, ""))} for key in before if _differs(form, key)]
    if not ops:
        raise ValueError(_NOTHING_DIFFERS)
    alteration = {"entity": entity_of(given), "ops": ops, "until": _parse_end(form, now_ms)}
    return AdminRequest("POST", QUOTAS, body={"alterations": [alteration]})


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
    return str(exact_size(value)) if is_size else exact_number(value)


async def make_edit(api: ApiClient, path: str, given: Form, form: Form, now_ms: int) -> EditOutcome:
    """Make the change of that page's form, or look at its effect.

    Raises:
        ApiError: the page is about nothing, or the caller has to log in.
    """
    is_real = form.get("do") in ("apply", "remove")
    try:
        request = EDITS[path](given, form, now_ms)
    except ValueError as error:
        return EditOutcome(form, problem=str(error))
    try:
        response = await api.send(request if is_real else _as_preview(request))
    except ApiError as error:
        if error.status == 401:
            raise
        return EditOutcome(form, problem=error.detail, findings=error.findings)
    refused = [each["message"] for each in response.get("results", ()) if each["error"] is not None]
    if refused:
        return EditOutcome(form, problem="; ".join(refused))
    sums = sorted(response["committed"].items(), key=lambda each: _fullness(each[1]), reverse=True)
    changes = response["changes"]
    about_sums = any(each["kind"] in ("topic", "broker") for each in changes)
    return EditOutcome(
        form, is_real, response["version"], changes, sums[:MAX_SUMS] if about_sums else (), list(response["warnings"])
    )


def _fullness(committed: Mapping[str, Any]) -> float:
    return math.inf if committed["utilization"] is None else committed["utilization"]  # null: over a total of 0


def _as_preview(request: AdminRequest) -> AdminRequest:
    if isinstance(request.body, dict) and request.path == QUOTAS:
        return request._replace(body={**request.body, "validate_only": True})
    return request._replace(query={"validate_only": True})


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


EDITS: Final[Mapping[str, Callable[[Form, Form, int], AdminRequest]]] = {
    "/console/topic": edit_topic,
    "/console/total": edit_total,
    "/console/group": edit_group,
    "/console/quota": edit_quota,
}
