# All policies over REST as one document: exported, made to hold, and the history of their changes.

from __future__ import annotations

from typing import Annotated, Any, Final

import trio
from fastapi import Query
from pydantic import AliasPath, BaseModel, Field
from starlette.exceptions import HTTPException

from gateway.access_tokens.roles import AccessRole
from gateway.control.admin.rest.dependencies import Gateway, Requester, make_router
from gateway.control.admin.rest.models import Changed, EndText, RequestModel, TimeText, Until
from gateway.control.policies.service import ChangeResult
from policies.definitions.policy_values import PolicyError, PolicyKind

router: Final = make_router()


class GivenDocument(RequestModel):
    """`prune`: remove values set at run time that are not in the document. `until`: of the changed values."""

    document: Any
    dry_run: bool = False
    prune: bool = False
    until: Until = None


class HistoryQuery(RequestModel):
    """`name`: of the changed thing, as the answer has it."""

    limit: int = Field(default=100, ge=1, le=1000)
    kind: PolicyKind | None = None
    name: str | None = None


class Exported(BaseModel):
    version: int
    document: dict[str, Any]
    origins: list[dict[str, Any]]


class Past(Changed):
    """`at`: the time. `who`: the author's own name, or "itself" where the end of a change came, `door` then being
    "until", or where a topic was deleted elsewhere. `door` is "topic deleted" of each threshold that went with its
    topic.
    """

    until: EndText = Field(validation_alias="until_ms")
    version: int
    at: TimeText = Field(validation_alias="at_ms")
    who: str = Field(validation_alias=AliasPath("source", "who"))
    door: str = Field(validation_alias=AliasPath("source", "door"))
    peer: str = Field(validation_alias=AliasPath("source", "peer"))


class History(BaseModel):
    """Changes of single values, the newest first."""

    version: int
    changes: list[Past]


class Applied(BaseModel):
    version: int
    dry_run: bool = Field(validation_alias="validate_only")
    ops: list[Changed] = Field(validation_alias="changes")
    warnings: list[str]


@router.get("/v1/policies", response_model=Exported)
async def export(gateway: Gateway) -> Any:
    """All policies as the document that :apply takes, and where each value comes from."""
    return await trio.to_thread.run_sync(gateway.policies.export_overview, gateway.base_origin)


@router.get("/v1/policies/history", response_model=History)
async def get_history(gateway: Gateway, wanted: Annotated[HistoryQuery, Query()]) -> Any:
    """The changes with author, time and old value."""
    found = [
        past
        for past in reversed(gateway.policies.history)
        if wanted.kind in (None, past.key.kind) and wanted.name in (None, past.key.name)
    ]
    return {"version": gateway.policies.policies.version, "changes": found[: wanted.limit]}


@router.post("/v1/policies:apply", response_model=Applied)
async def apply(given: GivenDocument, gateway: Gateway, requester: Requester) -> ChangeResult:
    """Make a document hold: all of it, or nothing. A change of resource groups needs admin rights."""
    requester.check_lasting(None if given.prune else given.until, preview=given.dry_run)
    missing = requester.missing_rights(AccessRole.ADMIN, identified=True)
    try:
        return await gateway.policies.apply_document(
            given.document,
            requester.source,
            dry_run=given.dry_run,
            prune=given.prune,
            until_ms=given.until,
            groups=not missing,
        )
    except PolicyError as error:
        if error.faults[0].kind != "denied":
            raise
        raise HTTPException(403, f"{error}: {missing}") from error
