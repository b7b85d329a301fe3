# The REST API of the admin server: policies as they are and how to change them, what holds for whom and why, topics by
# traffic. FastAPI describes and validates; the way of a change is the policy service's, as through any other door. The
# gate (access/) says who may ask, routers/ has the resources, problems.py the form of errors.
#
# Every endpoint is async: it runs on trio's own loop, and what takes its time goes to a thread from there.

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gateway.control.admin.rest import problems
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.admin.rest.dependencies import make_router, set_context
from gateway.control.admin.rest.guard import guard_requests
from gateway.control.admin.rest.routers import (
    documents,
    explain,
    groups,
    quotas,
    session,
    state,
    storage,
    thresholds,
)
from gateway.control.http_server import Application

# In the order of the OpenAPI document.
_ROUTERS: Final = (
    thresholds.router,
    quotas.router,
    documents.router,
    groups.router,
    state.router,
    storage.router,
    explain.router,
    quotas.effective_router,
    explain.topics_router,
    session.router,
)


_description: Final = make_router()


@_description.get("/openapi.json", include_in_schema=False)
async def get_description(request: Request) -> Response:
    """FastAPI's own route would take any parameters."""
    return JSONResponse(request.app.openapi())


def make_api(gateway: GatewayContext) -> Application:
    """The API as an ASGI application, for `AdminApplication`, which puts the gate before it."""
    return guard_requests(describe_api(gateway))


def describe_api(gateway: GatewayContext) -> FastAPI:
    """The API with all its routes, and nothing before it."""
    app = _DescribedApi(
        title="produce-gateway",
        version=version("produce-gateway"),
        description="Policies of a running gateway, and their effects. See docs/rest.md.",
        openapi_url=None,  # see get_description
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
    )
    problems.install_handlers(app)
    set_context(app, gateway)
    for router in (*_ROUTERS, _description):
        app.router.routes.extend(router.routes)  # include_router would make a second one of each
    return app


_NO_TELEMETRY: Final[Any] = {
    "auto_configure": False, "tracing": False, "metrics": False, "logs": False, "operation_spans": False,
}  # fmt: skip


class _DescribedApi(FastAPI):
    """FastAPI would describe errors as application/json."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        for path in document["paths"].values():
            for operation in path.values():
                for code, response in operation["responses"].items():
                    if int(code) >= 400 and "application/json" in response["content"]:
                        response["content"][problems.MEDIA_TYPE] = response["content"].pop("application/json")
        return document
