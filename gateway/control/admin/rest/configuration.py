# The configuration file of a running gateway: whether it holds, and reading it again.

from __future__ import annotations

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from gateway.control.admin.rest import problems
from gateway.control.admin.rest.asker import source_of
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.lifecycle.reload import DOOR, ConfigStatus


class ReloadAttempt(BaseModel):
    """`outcome`: applied, unchanged, refused (the file can't be used) or failed (it could not be taken over just now).
    `problems`: why; `changed`: keys whose values hold since then.
    """

    outcome: str
    at_ms: int
    problems: list[str]
    changed: list[str]


class ConfigState(BaseModel):
    """`file` "": it came from standard input. `loaded_ms`: the time at which it was last read and accepted. `pending`:
    keys of the file that wait for a restart. `last`: the last time that it was read again, or should have been.
    """

    file: str
    loaded_ms: int
    pending: list[str]
    last: ReloadAttempt | None


def add_paths(app: FastAPI, gateway: GatewayContext) -> None:
    @app.post("/v1/reload")
    async def reload_configuration(request: Request) -> ConfigState:
        """Read the configuration file again; the answer has its state then, an error what is wrong with the file."""
        if gateway.reload_config is None:
            raise HTTPException(404, "this gateway can't read its configuration again")
        attempt = await gateway.reload_config(source_of(request)._replace(door=DOOR))
        if attempt.problems:
            status = 422 if attempt.outcome == "refused" else 503
            text = "the configuration was not taken over, the old one stays"
            raise problems.RequestRefused(
                text, [problems.Finding(where="configuration", what=each) for each in attempt.problems], status
            )
        return show_config_state(gateway.health_status().config)


def show_config_state(state: ConfigStatus) -> ConfigState:
    last = state.last
    return ConfigState(
        file=state.file,
        loaded_ms=state.loaded_ms,
        pending=list(state.pending),
        last=last
        and ReloadAttempt(
            outcome=last.outcome, at_ms=last.at_ms, problems=list(last.problems), changed=list(last.changed)
        ),
    )
