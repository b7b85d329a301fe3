# Resource groups over REST, as the proposal has it (PIP-82): groups and their limits, and what they are attached to;
# Pulsar's spellings of paths, methods and keys are taken as well, and its way of updating: a key that isn't given keeps
# its value, -1 or null takes the limit away. Also what all groups use, which is ours. The way of a change is the policy
# service's; the caller has been found to be an admin (access/).

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self, cast, get_args

from fastapi import Request, Response
from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from starlette.exceptions import HTTPException

from gateway import channel
from gateway.control.admin.rest.dependencies import Facts, Gateway, How, Requester, make_router
from gateway.control.admin.rest.models import (
    MAX_NAME,
    Alterations,
    EndText,
    FiniteNumber,
    Until,
    respond_from_thread,
)
from gateway.control.policies.service import ChangeResult
from gateway.name_hints import name_hint
from policies import explain
from policies.definitions.policy_values import PolicyError, PolicyKey, PolicyOperation
from policies.explain import LimitLevel
from policies.fleet.keys import Direction
from policies.groups.names import (
    DISPATCH_BYTES,
    DISPATCH_MSGS,
    EXISTS,
    GROUP_KEYS,
    KEY_MEANINGS,
    PROPOSAL_KEYS,
    PUBLISH_BYTES,
    PUBLISH_MSGS,
    check_rate,
    rate_key,
)
from policies.units import parse_size

GROUP_PATHS: Final = ("/admin/v2/resourcegroup", "/admin/v2/resourcegroups")  # the proposal's, and Pulsar's
NO_LIMIT: Final = -1  # as Pulsar says it
router: Final = make_router()


# --- what is given ----------------------------------------------------------------------------------------------------


def _rate_field(key: str) -> tuple[BeforeValidator, FieldInfo]:
    """The reader of one of GROUP_KEYS, and its description."""
    direction, unit = KEY_MEANINGS[key]
    is_bytes = unit == "bytes"

    def read(value: object) -> object:
        found = parse_size(value) if is_bytes else value
        if found is None or (not isinstance(found, bool) and found == NO_LIMIT):
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            wanted = "bytes per second, such as 12000000 or 12MB" if is_bytes else "messages per second, such as 100000"
            raise ValueError(f"{wanted}, are needed here, or -1 or null for no limit; not {str(value)[:MAX_NAME]!r}")
        check_rate(key, found)
        return float(found)

    what = "Bytes, or a size such as 12MB," if is_bytes else "Messages"
    text = f"{what} per second, {direction}; -1 or null: no limit. A key that isn't given stays."
    return BeforeValidator(read), cast("FieldInfo", Field(description=text))


class _GroupKeys(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, data: Any) -> Any:
        """The proposal and Pulsar spell the same keys in three ways."""
        if not isinstance(data, Mapping):
            return data
        found: dict[str, Any] = {}
        for name, value in data.items():
            key = "until" if name == "until" else rate_key(str(name))
            if key is None:
                raise ValueError(f"unknown: {str(name)[:MAX_NAME]!r}; {name_hint(str(name), GROUP_KEYS)}")
            if key in found and found[key] != value:
                raise ValueError(f"{key} is given twice, as {found[key]!r} and as {value!r}: give it once")
            found[key] = value
        return found


class GivenGroup(_GroupKeys):
    """Keys are read without regard to case: the proposal has publishRateInmsgs and DispatchRateInbytes."""

    publishRateInMsgs: Annotated[float | None, *_rate_field(PUBLISH_MSGS)] = None  # noqa: N815
    publishRateInBytes: Annotated[float | None, *_rate_field(PUBLISH_BYTES)] = None  # noqa: N815
    dispatchRateInMsgs: Annotated[float | None, *_rate_field(DISPATCH_MSGS)] = None  # noqa: N815
    dispatchRateInBytes: Annotated[float | None, *_rate_field(DISPATCH_BYTES)] = None  # noqa: N815
    until: Until = None

    @model_validator(mode="after")
    def _check_until(self) -> Self:
        if self.until is not None and not self.model_fields_set & set(GROUP_KEYS):
            raise ValueError(f"until: says when limits end: give one of {', '.join(GROUP_KEYS)} as well")
        return self


# --- what is answered -------------------------------------------------------------------------------------------------

_Limit = int | float


class GroupDetail(BaseModel):
    """Per second; -1: no limit. Each limit is there in Pulsar's spelling and in the proposal's."""

    publishRateInMsgs: _Limit  # noqa: N815
    publishRateInBytes: _Limit  # noqa: N815
    dispatchRateInMsgs: _Limit  # noqa: N815
    dispatchRateInBytes: _Limit  # noqa: N815
    PublishRatelimitinmsgs: _Limit
    PublishRatelimitinbytes: _Limit
    DispatchRatelimitinmsgs: _Limit
    DispatchRatelimitinbytes: _Limit


def _rate_if_shared(level: LimitLevel) -> float | None:
    return level.fleet_used if level.fleet.gateways > 1 and level.fleet.hears_others else None


class ShownRate(BaseModel):
    """One limit of a group, per second, over the whole fleet; `limit` None: none, it is only metered.

    `here`: used through this gateway; `part`: this gateway's present part; `fleet`: through all gateways, of which
    `others` take so much, by their names. None: not known. `utilization`: of the limit in force over all of them.
    `wait_s`: until this gateway's debt is paid. `waiting`: clients wait for this limit here.
    """

    limit: float | None = Field(validation_alias=AliasPath("level", "configured"))
    origin: str = Field(validation_alias=AliasPath("level", "origin"))
    until: EndText = Field(validation_alias="end")
    here: float | None = Field(validation_alias=AliasPath("level", "used_here"))
    part: float | None = Field(validation_alias=AliasPath("level", "limit"))
    fleet: Annotated[float | None, BeforeValidator(_rate_if_shared)] = Field(validation_alias="level")
    others: dict[str, float] = Field(validation_alias=AliasPath("level", "fleet", "others"))
    utilization: FiniteNumber = Field(validation_alias=AliasPath("level", "fleet_utilization"))
    utilization_text: str = Field(validation_alias=AliasPath("level", "fleet_utilization_text"))
    wait_s: float = Field(validation_alias=AliasPath("level", "wait_s"))
    waiting: bool


class ShownGroup(BaseModel):
    """`waiting`: directions in which this group holds a client back here. `topics`: with traffic here."""

    rates: dict[str, ShownRate]
    tenants: list[str]
    namespaces: list[str]
    waiting: list[str]
    topics: int


class ShownGroups(BaseModel):
    version: int
    mode: str
    enforce_percent: float
    topic_pattern: str
    principal_pattern: str
    groups: dict[str, ShownGroup]
    warnings: list[str]


# --- paths ------------------------------------------------------------------------------------------------------------


def _add_groups(path: str) -> None:
    @router.get(path)
    @router.get(path + "/", include_in_schema=False)
    async def list_groups(gateway: Gateway) -> list[str]:
        """Names of all groups."""
        return sorted(gateway.policies.policies.group_limits())

    @router.get(path + "/{resourcegroup}")
    async def get_group(resourcegroup: str, gateway: Gateway) -> GroupDetail:
        """A group's limits, in both spellings."""
        return group_detail(_require_group(gateway, resourcegroup))

    @router.put(path + "/{resourcegroup}", response_model=Alterations)
    async def put_group(
        resourcegroup: str, new: GivenGroup, how: How, gateway: Gateway, requester: Requester
    ) -> ChangeResult:
        """Create a group, or update those of its limits that are given."""
        given = {key: getattr(new, key) for key in GROUP_KEYS if key in new.model_fields_set}
        is_any_set = any(value is not None for value in given.values())
        ops = [
            PolicyOperation(
                PolicyKey.of_group(resourcegroup, key), value, None if value is None and is_any_set else new.until
            )
            for key, value in given.items()
        ]
        exists = PolicyKey.of_group(resourcegroup)
        if exists not in gateway.policies.policies.base:  # also if the group exists: another request may be deleting it
            ops.append(PolicyOperation(exists, 1))
        return await _alter_policies(gateway, ops, requester, how)

    @router.delete(path + "/{resourcegroup}", response_model=Alterations)
    async def delete_group(resourcegroup: str, how: How, gateway: Gateway, requester: Requester) -> ChangeResult:
        """412 while it is attached to anything. Of a group in the file only the values set at run time are deleted."""
        _require_group(gateway, resourcegroup)
        policies = gateway.policies.policies
        keys = [PolicyKey.of_group(resourcegroup, key) for key in (*GROUP_KEYS, EXISTS)]
        removable = [key for key in keys if key in policies.changes or key not in policies.base]
        if not any(key in policies.changes for key in keys):
            removable = [key for key in keys if key in policies.base]  # is refused, and says where it is set
        return await _alter_policies(gateway, [PolicyOperation(key, None) for key in removable], requester, how)


def _add_attachments(path: str) -> None:
    """`path` has the place's names as parameters."""

    @router.get(path)
    async def get_attached(request: Request, gateway: Gateway) -> str:
        """The name of the group that is attached here, as a JSON string."""
        return _attached_group(gateway, _attachment_key(request))

    async def attach(
        resourcegroup: str, how: How, request: Request, gateway: Gateway, requester: Requester
    ) -> ChangeResult:
        """Attach a group; it takes the place of another one that is attached here."""
        return await _alter_policies(
            gateway, [PolicyOperation(_attachment_key(request), resourcegroup)], requester, how
        )

    router.put(path + "/{resourcegroup}", response_model=Alterations)(attach)
    router.post(path + "/{resourcegroup}", response_model=Alterations, include_in_schema=False)(attach)  # Pulsar's

    @router.delete(path, response_model=Alterations)
    async def detach(how: How, request: Request, gateway: Gateway, requester: Requester) -> ChangeResult:
        """Nothing is attached here any more; the file's value holds again."""
        place = _attachment_key(request)
        _attached_group(gateway, place)
        return await _alter_policies(gateway, [PolicyOperation(place, None)], requester, how)


def _attachment_key(request: Request) -> PolicyKey:
    given = request.path_params
    if "namespace" in given:
        return PolicyKey.of_namespace(given["tenant"], given["namespace"])
    return PolicyKey.of_tenant(given["tenant"])


for _path in GROUP_PATHS:
    _add_groups(_path)
_add_attachments("/admin/v2/namespaces/{tenant}/{namespace}/resourcegroup")
_add_attachments("/admin/v2/tenants/{tenant}/resourcegroup")


@router.get("/v1/resource-groups", response_model=ShownGroups)
async def get_all(gateway: Gateway, facts: Facts) -> Response:
    """All groups: limits, their origin, attachments and usage."""
    known, latest = facts.gather_groups(), gateway.latest_snapshot(channel.GroupSnapshot) or channel.GroupSnapshot(0)
    return await respond_from_thread(ShownGroups, lambda: _describe_groups(known, latest))


def _require_group(gateway: Gateway, group: str) -> Mapping[str, float]:
    """The group's limits."""
    limits = gateway.policies.policies.group_limits()
    if group not in limits:
        raise HTTPException(404, f"there is no group {group[:MAX_NAME]}: PUT here creates it")
    return limits[group]


def _attached_group(gateway: Gateway, place: PolicyKey) -> str:
    group = gateway.policies.policies.effective_values().get(place)
    if group is None:
        raise HTTPException(404, f"no group is attached to {place.kind} {place.name[:MAX_NAME]}")
    return str(group)


async def _alter_policies(gateway: Gateway, ops: list[PolicyOperation], requester: Requester, how: How) -> ChangeResult:
    try:
        return await gateway.policies.alter_policies(ops, requester.source, validate_only=how.validate_only)
    except PolicyError as error:
        status = {"unknown": 404, "in use": 412}.get(error.faults[0].kind)
        if status is None:
            raise
        raise HTTPException(status, str(error)) from error


def group_detail(rates: Mapping[str, float]) -> GroupDetail:
    """A group's limits by every spelling that is answered."""
    found: dict[str, _Limit] = {}
    for names in ({key: key for key in GROUP_KEYS}, PROPOSAL_KEYS):
        for key, name in names.items():
            value = rates.get(key, NO_LIMIT)
            found[name] = int(value) if value == int(value) else value
    return GroupDetail(**found)


# --- what is used -----------------------------------------------------------------------------------------------------


def _describe_groups(known: explain.ExplainInputs, latest: channel.GroupSnapshot) -> dict[str, Any]:
    policies, limits = known.policies, explain.IdleLimits(known)
    users: dict[str, tuple[list[str], list[str]]] = {}
    for index, attached in enumerate((policies.tenant_groups(), policies.namespace_groups())):
        for name, group in attached.items():
            users.setdefault(group, ([], []))[index].append(name)
    groups = {}
    for name in sorted(policies.group_limits()):
        here = [rate for each in get_args(Direction) if (rate := limits.group_rate(name, each)) is not None]
        tenants, namespaces = users.get(name, ([], []))
        groups[name] = {
            "rates": explain.group_statuses(known, limits, name),
            "tenants": sorted(tenants),
            "namespaces": sorted(namespaces),
            "waiting": sorted(each.direction for each in here if each.waiting),
            "topics": max((each.topics for each in here), default=0),
        }
    return {
        "version": policies.version,
        "mode": latest.mode,
        "enforce_percent": latest.enforce_percent,
        "topic_pattern": latest.topic_pattern,
        "principal_pattern": latest.principal_pattern,
        "groups": groups,
        "warnings": [text for text in policies.collect_warnings() if text.startswith("there is no group ")],
    }
