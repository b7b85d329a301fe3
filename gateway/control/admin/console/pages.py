# The pages: for each its path, its template, how often its live part is asked for again, and what it asks of the API.
# What the API refuses for lack of rights on a page about something else (the connections of a client) is left out with
# the reason.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.control.admin.console import charts, edits
from gateway.control.admin.console.api_client import ApiClient
from gateway.http.admin_api import ApiError

Values = dict[str, Any]
Given = Mapping[str, str]  # the page's own query
ROOT: Final = "/console/"
UNKNOWN: Final = "unknown"  # the principal of clients whose name only brokers know: the user "" in the API
MINUTE_RANGES: Final = (10, 30, 60)
MAX_ROWS: Final = 200  # rows of a table
MAX_SIDE_ROWS: Final = 8  # rows of one among others


class ConsolePage(NamedTuple):
    """`every_s`: between two looks; None: it doesn't change by itself. `nav`: its name among the pages that every page
    leads to; "" for the page of one thing, which `under` another belongs to.
    """

    path: str
    template: str
    title: str
    load: Callable[[ApiClient, Given], Awaitable[Values]]
    every_s: int | None = None
    nav: str = ""
    under: str = ""


async def load_overview(api: ApiClient, given: Given) -> Values:
    minutes = next((each for each in MINUTE_RANGES if str(each) == given.get("minutes")), MINUTE_RANGES[0])
    traffic = await api.get("/v1/traffic")
    points, step_ms = traffic["points"], traffic["step_ms"]
    end_ms = points[-1]["at_ms"] + step_ms if points else traffic["at_ms"]
    return {
        "minutes": minutes,
        "ranges": MINUTE_RANGES,
        "chart": charts.draw_traffic(points, step_ms, end_ms, minutes),
        "latest": points[-1] if points else None,
        "held": await api.get("/v1/clients", by="held", held=True, limit=MAX_SIDE_ROWS),
        "topics": await api.get("/v1/top", limit=MAX_SIDE_ROWS),
        "storage": await api.get("/v1/storage"),
        "peers": await api.get("/v1/peers"),
        "warnings": (await api.get("/v1/thresholds"))["warnings"],
    }


async def load_topics(api: ApiClient, given: Given) -> Values:
    by, contains = given.get("by", "rate"), given.get("contains", "")
    return {
        "by": by,
        "contains": contains,
        "topics": await api.get("/v1/top", by=by, contains=contains, limit=MAX_ROWS),
        "thresholds": await api.get("/v1/thresholds"),
    }


async def load_topic(api: ApiClient, given: Given) -> Values:
    name = _require_name(given, "topic")
    thresholds = await api.get("/v1/thresholds")
    found = (await api.get("/v1/top", topic=name))["topics"]
    return {
        "topic": name,
        "line": found[0] if found else None,
        "own": thresholds["topics"].get(name),
        "thresholds": thresholds,
        "explained": await api.get("/v1/explain", topic=name),
        "decisions": await api.get("/v1/decisions", topic=name, limit=20),
    }


async def load_total(api: ApiClient, given: Given) -> Values:
    """The total of one broker, or of all that have none of their own."""
    broker = given.get("broker", "")
    totals = (await api.get("/v1/thresholds"))["total"]
    return {"broker": broker, "own": totals["brokers"].get(broker) if broker else totals["default"]}


async def load_clients(api: ApiClient, given: Given) -> Values:
    by, held = given.get("by", "rate"), given.get("held") == "true"
    user, client_id = given.get("user") or None, given.get("client_id") or None
    return {
        "by": by,
        "only_held": held,
        "user": user or "",
        "client_id": client_id or "",
        "clients": await api.get("/v1/clients", by=by, held=held, user=user, client_id=client_id, limit=MAX_ROWS),
    }


async def load_client(api: ApiClient, given: Given) -> Values:
    principal, client_id = _require_name(given, "principal"), given.get("client_id", "")
    # "": of clients whose name only brokers know. Behind the bound of names all are "other", of whom nothing holds.
    user = principal.partition(":")[2] if ":" in principal or principal == UNKNOWN else None
    found = (await api.get("/v1/clients", user=user, client_id=client_id))["clients"]
    shown = next((each for each in found if each["principal"] == principal), None)
    held = shown and shown["held"]
    topic_name = given.get("topic") or (held["topic"] if held else "")
    explained = (
        await api.get("/v1/explain", topic=topic_name, user=user, client_id=client_id)
        if user is not None and topic_name
        else None
    )
    return {
        "principal": principal,
        "user": user,
        "client_id": client_id,
        "client": shown,
        "topic": topic_name,
        "explained": explained,
        "effective": await api.get("/v1/client-quotas/effective", user=user, client_id=client_id),
        "decisions": await api.get("/v1/decisions", user=user, client_id=client_id, limit=20),
        "connections": await _get_if_allowed(
            api.get("/v1/connections", principal=principal, client_id=client_id, limit=50)
        ),
    }


async def load_quotas(api: ApiClient, given: Given) -> Values:
    user, client_id = given.get("user_prefix") or None, given.get("client_id_prefix") or None
    found = await api.get("/v1/client-quotas", user_prefix=user, client_id_prefix=client_id, limit=MAX_ROWS)
    return {"user_prefix": user or "", "client_id_prefix": client_id or "", "quotas": found}


async def load_quota(api: ApiClient, given: Given) -> Values:
    """The quotas of one entity. A name that isn't given is none; `default_user`, `default_client_id`: the default."""
    entity = edits.entity_of(given)
    if not entity:
        raise ApiError(404, "no user and no client id is named")
    asked: dict[str, str | bool | None] = {}
    for part in entity:
        name = "user" if part["type"] == "user" else "client_id"
        asked |= {f"default_{name}": True} if part["name"] is None else {name: part["name"]}
    entries = (await api.get("/v1/client-quotas", strict=True, **asked))["entries"]
    own = next((each for each in entries if each["entity"] == entity), None)
    fields = edits.quota_fields(own["values"] if own else {})
    effective = await api.get("/v1/client-quotas/effective", **asked)
    return {"entity": entity, "entry": own, "fields": fields, "effective": effective}


async def load_groups(api: ApiClient, given: Given) -> Values:
    return {"said": await api.get("/v1/resource-groups")}


async def load_group(api: ApiClient, given: Given) -> Values:
    name = _require_name(given, "group")
    found = (await api.get("/v1/resource-groups"))["groups"].get(name)
    fields = edits.group_fields({key: rate["limit"] for key, rate in found["rates"].items()} if found else {})
    places = [(each, "tenant") for each in found["tenants"]] if found else []
    places += [(each, "namespace") for each in found["namespaces"]] if found else []
    return {"name": name, "group": found, "fields": fields, "places": places}


async def load_storage(api: ApiClient, given: Given) -> Values:
    return {"storage": await api.get("/v1/storage")}


async def load_connections(api: ApiClient, given: Given) -> Values:
    names = ("principal", "client_id", "address")
    asked = {name: given.get(name) or None for name in names}
    muted = given.get("muted") == "true"
    found = await api.get("/v1/connections", limit=MAX_ROWS, muted=muted, **asked)
    return {"asked": {name: value or "" for name, value in asked.items()}, "muted": muted, "found": found}


async def load_decisions(api: ApiClient, given: Given) -> Values:
    asked = {name: given.get(name) or None for name in ("topic", "user", "client_id", "outcome")}
    found = await api.get("/v1/decisions", limit=MAX_ROWS, **asked)
    return {"asked": {name: value or "" for name, value in asked.items()}, "decisions": found}


async def load_explanation(api: ApiClient, given: Given) -> Values:
    asked = {name: given.get(name) or None for name in ("topic", "user", "client_id", "broker")}
    if given.get("principal") == UNKNOWN:  # an empty field of the form is nobody
        asked["user"] = ""
    explained = await api.get("/v1/explain", **asked) if asked["topic"] else None
    return {"asked": {name: value or "" for name, value in asked.items()}, "explained": explained}


async def load_history(api: ApiClient, given: Given) -> Values:
    asked = {name: given.get(name) or None for name in ("kind", "name")}
    found = await api.get("/v1/policies/history", limit=MAX_ROWS, **asked)
    return {"asked": {name: value or "" for name, value in asked.items()}, "history": found}


def _require_name(given: Given, what: str) -> str:
    name = given.get(what, "")
    if not name:
        raise ApiError(404, f"no {what} is named")
    return name


async def _get_if_allowed(question: Awaitable[Any]) -> Any:
    """The answer, or its refusal for lack of rights."""
    try:
        return await question
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        return {"refused": error.detail}


PAGES: Final[Mapping[str, ConsolePage]] = {
    page.path: page
    for page in (
        ConsolePage(ROOT, "overview.html", "Overview", load_overview, 2, "Overview"),
        ConsolePage("/console/topics", "topics.html", "Topics", load_topics, 2, "Topics"),
        ConsolePage("/console/topic", "topic.html", "Topic", load_topic, 2, under="/console/topics"),
        ConsolePage("/console/total", "total.html", "Total", load_total, None, under="/console/topics"),
        ConsolePage("/console/clients", "clients.html", "Clients", load_clients, 2, "Clients"),
        ConsolePage("/console/client", "client.html", "Client", load_client, 2, under="/console/clients"),
        ConsolePage("/console/quotas", "quotas.html", "Client quotas", load_quotas, 10, "Quotas"),
        ConsolePage("/console/quota", "quota.html", "Client quota", load_quota, None, under="/console/quotas"),
        ConsolePage("/console/groups", "groups.html", "Resource groups", load_groups, 5, "Groups"),
        ConsolePage("/console/group", "group.html", "Resource group", load_group, None, under="/console/groups"),
        ConsolePage("/console/storage", "storage.html", "Storage", load_storage, 5, "Storage"),
        ConsolePage("/console/connections", "connections.html", "Connections", load_connections, 5, "Connections"),
        ConsolePage("/console/decisions", "decisions.html", "Decisions", load_decisions, 2, "Decisions"),
        ConsolePage("/console/explain", "explain.html", "Explain", load_explanation, 2, "Explain"),
        ConsolePage("/console/history", "history.html", "History of changes", load_history, 5, "History"),
    )
}
