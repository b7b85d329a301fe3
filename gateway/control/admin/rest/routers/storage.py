# Storage protection, and an operator's override of it: PAUSE or OPEN for a time, and taking it back. It is a policy, so
# all gateways go by it, and /v1/policies/history has who did it.

from __future__ import annotations

from typing import Any, Final, Literal

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from gateway.control.access.caller import caller_of
from gateway.control.admin.rest.dependencies import Gateway, How, Requester, make_router
from gateway.control.admin.rest.models import Alterations, Until, alterations_of
from gateway.control.policies.service import ChangeResult
from gateway.control.storage.override import OVERRIDE_KEY, list_full_volumes
from gateway.control.storage.status import StorageStatus
from policies.definitions.policy_values import PolicyOperation
from policies.storage import MAX_REASON_CHARS, InvalidOverride, StorageOverride

PATH: Final = "/v1/storage/override"
router: Final = make_router()


class NewOverride(BaseModel):
    """`force`: with OPEN, let producers in also where a volume is at its hard limit."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["PAUSE", "OPEN"]
    reason: str = Field(default="", max_length=MAX_REASON_CHARS)
    until: Until
    force: bool = False


class Overrides(Alterations):
    """`still_full`: volumes that hold on, since they are at their hard limit. `mode`: with observe nobody is held."""

    still_full: list[str]
    mode: str


class StorageOff(BaseModel):
    enabled: Literal[False]


@router.get("/v1/storage", response_model=StorageStatus | StorageOff)
async def get_storage(request: Request, gateway: Gateway) -> Response:
    """The disks of the cluster, their limits and forecasts, and the factor in force."""
    # It is here for the description: application.py answers without this framework.
    return JSONResponse(gateway.storage_status(caller_of(request.scope).identified))


@router.put(PATH, response_model=Overrides)
async def put_override(new: NewOverride, how: How, gateway: Gateway, requester: Requester) -> Any:
    """Pause all producers, or let them in, until a time, whatever the disks say."""
    status = gateway.storage_status(True)
    if not status["enabled"]:
        raise HTTPException(409, "storage protection is off, so there is nothing to be overridden")
    if new.until is None:
        raise HTTPException(422, "until: a time is needed; for example: 2026-11-22T21:00:00Z")
    requester.check_lasting(new.until, preview=how.validate_only)
    try:
        override = StorageOverride(new.state, new.reason.strip(), new.force).validate_override()
    except InvalidOverride as error:
        raise HTTPException(422, str(error)) from error
    full = list_full_volumes(status) if new.state == "OPEN" and not new.force else []
    if full and status["scope"] == "cluster":
        raise HTTPException(
            409, f"{', '.join(full[:3])}: at the hard limit, which pauses all producers: make room, or set force"
        )
    altered = await gateway.policies.alter_policies(
        [PolicyOperation(OVERRIDE_KEY, str(override), new.until)], requester.source, validate_only=how.validate_only
    )
    return {**alterations_of(altered), "still_full": full, "mode": status["mode"]}


@router.delete(PATH, response_model=Alterations)
async def delete_override(how: How, gateway: Gateway, requester: Requester) -> ChangeResult:
    """Take it back before its time."""
    if OVERRIDE_KEY not in gateway.policies.policies.effective_values():
        raise HTTPException(404, "storage protection is not overridden, so there is nothing to take back")
    return await gateway.policies.alter_policies(
        [PolicyOperation(OVERRIDE_KEY, None)], requester.source, validate_only=how.validate_only
    )
