# Thresholds over REST: the totals of brokers and the thresholds of topics, in force and with both of their values.

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from fastapi import Depends, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from gateway import channel
from gateway.control.admin.rest.dependencies import Gateway, How, Requester, make_router
from gateway.control.admin.rest.models import Alterations, Committed, RequestModel, Size, Until, respond_from_thread
from gateway.control.policies.service import ChangeResult
from gateway.policy_document import describe_setting
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import BaseOrigin, PolicyKey, PolicyOperation
from policies.definitions.rollout import ALL_CLIENTS
from policies.thresholds.sums import EVERY_BROKER, TopicPlaces
from policies.thresholds.values import TOTAL_KEY, TOTAL_OUT_KEY

router: Final = make_router()


class NewThreshold(RequestModel):
    value: Size
    until: Until = None


class Value(BaseModel):
    """In bytes per second. `value` is in force; it comes from one of the other two. `base_origin`: what gave `file`.
    `until`: when `run_time` ends, and is `then` again (null: the file's holds); null: never.
    """

    value: float
    origin: str
    base_origin: str
    file: float | None
    run_time: float | None
    until: str | None
    then: float | None


class Totals(BaseModel):
    default: Value | None
    brokers: dict[str, Value]


class Thresholds(BaseModel):
    """`total_out`: the total that consumers have shares of. `committed`: by broker; empty while the places of
    partitions are unknown. `enforce_percent`: of the clients, for which they are enforced in mode enforce.
    """

    version: int
    on_exceed: str
    mode: str
    enforce_percent: float
    total: Totals
    total_out: Totals
    topics: dict[str, Value]
    committed: dict[str, Committed]
    warnings: list[str]


@router.get("/v1/thresholds", response_model=Thresholds)
async def get_thresholds(gateway: Gateway) -> Response:
    """All thresholds, in bytes per second of each broker."""
    policies, places = gateway.policies.policies, gateway.places()
    latest = gateway.latest_snapshot(channel.ThresholdPolicy)
    return await respond_from_thread(
        Thresholds, lambda: _describe_thresholds(policies, places, latest, gateway.base_origin)
    )


def _describe_thresholds(
    policies: PolicySet, places: TopicPlaces | None, latest: channel.ThresholdPolicy | None, base: BaseOrigin
) -> dict[str, Any]:
    found = {
        setting.key: describe_setting(setting, base)
        for setting in policies.list_settings()
        if setting.key.kind in ("topic", "broker")
    }
    totals, out = (
        {key.name: value for key, value in found.items() if key.key == name} for name in (TOTAL_KEY, TOTAL_OUT_KEY)
    )
    return {
        "version": policies.version,
        "on_exceed": latest.on_exceed if latest else "reject",
        "mode": latest.mode if latest else "enforce",
        "enforce_percent": latest.enforce_percent if latest else ALL_CLIENTS,
        "total": {"default": totals.pop(EVERY_BROKER, None), "brokers": totals},
        "total_out": {"default": out.pop(EVERY_BROKER, None), "brokers": out},
        "topics": {key.name: value for key, value in found.items() if key.kind == "topic"},
        "committed": policies.commitments_by_broker(places) if places is not None else {},
        "warnings": policies.collect_warnings(places),
    }


class _ThresholdKind(NamedTuple):
    """One kind of threshold. `key_of`: the dependency that says which one a request is about."""

    name: str
    path: str
    key_of: Callable[..., Awaitable[PolicyKey]]
    about_get: str = ""
    about_delete: str = ""


async def _total_key() -> PolicyKey:
    return PolicyKey.of_broker()


async def _broker_key(broker: int) -> PolicyKey:
    return PolicyKey.of_broker(broker)


async def _total_out_key() -> PolicyKey:
    return PolicyKey.of_broker(key=TOTAL_OUT_KEY)


async def _broker_out_key(broker: int) -> PolicyKey:
    return PolicyKey.of_broker(broker, TOTAL_OUT_KEY)


async def _topic_key(topic: str) -> PolicyKey:
    return PolicyKey.of_topic(topic)


_THRESHOLDS: Final = (
    _ThresholdKind(
        "total", "/v1/thresholds/total", _total_key,
        "The total of brokers without one of their own.", "The file's value holds again.",
    ),
    _ThresholdKind(
        "broker", "/v1/thresholds/total/{broker}", _broker_key,
        "The total that this broker has of its own.",
    ),
    _ThresholdKind("total_out", "/v1/thresholds/total-out", _total_out_key, "The total that consumers have shares of."),
    _ThresholdKind(
        "broker_out", "/v1/thresholds/total-out/{broker}", _broker_out_key,
        "The same of this broker alone.",
    ),
    _ThresholdKind("topic", "/v1/thresholds/topics/{topic}", _topic_key),
)  # fmt: skip


def _add_threshold(threshold: _ThresholdKind) -> None:
    path, name, chosen = threshold.path, threshold.name, Depends(threshold.key_of)

    @router.get(path, name=f"get_{name}", description=threshold.about_get, response_model=Value)
    async def get(gateway: Gateway, key: PolicyKey = chosen) -> Any:
        key = key.validate_key()
        found = gateway.policies.policies.find_setting(key)
        if found is None:
            raise HTTPException(404, f"{key} is not set: PUT {{value: 12MB}} here would")
        return describe_setting(found, gateway.base_origin)

    @router.put(path, name=f"put_{name}", response_model=Alterations)
    async def put(
        new: NewThreshold, how: How, gateway: Gateway, requester: Requester, key: PolicyKey = chosen
    ) -> ChangeResult:
        requester.check_lasting(new.until, preview=how.validate_only)
        return await gateway.policies.alter_policies(
            [PolicyOperation(key, new.value, new.until)], requester.source, validate_only=how.validate_only
        )

    @router.delete(path, name=f"delete_{name}", description=threshold.about_delete, response_model=Alterations)
    async def delete(how: How, gateway: Gateway, requester: Requester, key: PolicyKey = chosen) -> ChangeResult:
        key = key.validate_key()
        if key not in gateway.policies.policies.effective_values():
            raise HTTPException(404, f"{key} is not set, so there is nothing to delete")
        return await gateway.policies.alter_policies(
            [PolicyOperation(key, None)], requester.source, validate_only=how.validate_only
        )


for _threshold in _THRESHOLDS:
    _add_threshold(_threshold)
