# An operator's override of storage protection: PAUSE or OPEN for a time, and taking it back. It is a policy, so all
# gateways go by it, and /v1/policies/history has who did it.

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from gateway.control.admin.rest import models as shapes
from gateway.control.admin.rest.asker import check_lasting, source_of
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.storage.override import OVERRIDE_KEY, list_full_volumes
from policies.definitions.policy_values import PolicyOperation
from policies.storage import MAX_REASON_CHARS, InvalidOverride, StorageOverride

PATH = "/v1/storage/override"


class NewOverride(BaseModel):
    """`force`: with OPEN, let producers in also where a volume is at its hard limit."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["PAUSE", "OPEN"]
    reason: str = Field(default="", max_length=MAX_REASON_CHARS)
    until: shapes.Until
    force: bool = False


class Overrides(shapes.Alterations):
    """`still_full`: volumes that hold on, since they are at their hard limit."""

    still_full: list[str]


def add_paths(app: FastAPI, gateway: GatewayContext) -> None:
    @app.put(PATH)
    async def put_override(new: NewOverride, how: Annotated[shapes.Validation, Query()], request: Request) -> Overrides:
        """Pause all producers, or let them in, until a time, whatever the disks say."""
        status = gateway.storage_status()
        if not status["enabled"]:
            raise HTTPException(409, "storage protection is off, so there is nothing to be overridden")
        if new.until is None:
            raise HTTPException(422, "until: a time is needed; for example: 2026-11-22T21:00:00Z")
        check_lasting(request, new.until, gateway, preview=how.validate_only)
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
            [PolicyOperation(OVERRIDE_KEY, str(override), new.until)],
            source_of(request),
            validate_only=how.validate_only,
        )
        return Overrides(**shapes.show_altered(altered, how.validate_only).model_dump(), still_full=full)

    @app.delete(PATH)
    async def delete_override(how: Annotated[shapes.Validation, Query()], request: Request) -> shapes.Alterations:
        """Take it back before its time."""
        if OVERRIDE_KEY not in gateway.policies.policies.effective_values():
            raise HTTPException(404, "storage protection is not overridden, so there is nothing to take back")
        altered = await gateway.policies.alter_policies(
            [PolicyOperation(OVERRIDE_KEY, None)], source_of(request), validate_only=how.validate_only
        )
        return shapes.show_altered(altered, how.validate_only)
