# The REST API of the admin server: policies as they are and how to change them, what holds for whom and why, topics by
# traffic. FastAPI describes and validates; the way of a change is the policy service's, as through any other door. Who
# may ask is guard.py's, what is said and taken rest_shapes.py's, errors are problems.py's.
#
# Every endpoint is async: it runs on trio's own loop, and what takes its time goes to a thread from there.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.metadata import version
from typing import Annotated, Any, Final, NamedTuple

import trio
from fastapi import Depends, FastAPI, Query, Request, Response
from starlette.exceptions import HTTPException

from gateway import channel
from gateway.control.admin import Application
from gateway.control.rest import groups as rest_groups
from gateway.control.rest import models as shapes
from gateway.control.rest import problems
from gateway.control.rest.context import Gateway, Policies, source_of
from gateway.control.rest.guard import guarded
from gateway.control.rest.rights import MISSING, Rights
from policies import explain
from policies.explain import FleetUse
from policies.fleet.keys import FleetKey
from policies.groups.finder import Finder
from policies.policy_set import EVERY_BROKER, Op, PolicyError, PolicyKey, PolicySet
from policies.quotas.store import Alteration
from policies.quotas.store import Op as QuotaOp

_NOTHING: Final[Mapping[FleetKey, FleetUse]] = {}


# --- the application --------------------------------------------------------------------------------------------------


def make_api(gateway: Gateway, *, hosts: Collection[str] = (), rights: Rights | None = None) -> Application:
    """The API as an ASGI application, for `admin.make_application`.

    Args:
        hosts: names, apart from localhost and addresses, under which browsers may reach this server.
        rights: who has admin rights; without: who asks from this machine.
    """
    app = _Described(
        title="produce-gateway",
        version=version("produce-gateway"),
        description="Policies of a running gateway, and what they do. See docs/rest.md.",
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
        responses={code: {"model": problems.Problem} for code in (400, 403, 404, 412, 413, 415, 422, 503)},
    )
    problems.install(app)
    _add_thresholds(app, gateway)
    _add_quotas(app, gateway.policies)
    _add_documents(app, gateway.policies)
    rest_groups.add_paths(app, gateway)
    _add_views(app, _Views(gateway))
    return guarded(app, frozenset(hosts), rights or Rights())


_NO_TELEMETRY: Final[Any] = {
    "auto_configure": False, "tracing": False, "metrics": False, "logs": False, "operation_spans": False,
}  # fmt: skip


class _Described(FastAPI):
    """FastAPI would describe errors as application/json."""

    def openapi(self) -> dict[str, Any]:
        said = super().openapi()
        for path in said["paths"].values():
            for operation in path.values():
                for code, answer in operation["responses"].items():
                    if int(code) >= 400 and "application/json" in answer["content"]:
                        answer["content"][problems.MEDIA_TYPE] = answer["content"].pop("application/json")
        return said


def _add_thresholds(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/v1/thresholds")
    async def get_thresholds() -> shapes.Thresholds:
        """All thresholds, in bytes per second of each broker."""
        now, told = gateway.policies.policies, gateway.latest(channel.Policy)
        shown = {setting.key: shapes.of_setting(setting, gateway.base) for setting in now.settings()}
        totals = {key.name: value for key, value in shown.items() if key.kind == "broker"}
        return shapes.Thresholds(
            version=now.version,
            on_exceed=told.on_exceed if told else "reject",
            mode=told.mode if told else "enforce",
            total=shapes.Totals(default=totals.pop(EVERY_BROKER, None), brokers=totals),
            topics={key.name: value for key, value in shown.items() if key.kind == "topic"},
            warnings=list(now.warnings(gateway.gone())),
        )

    for threshold in _THRESHOLDS:
        _add_threshold(app, gateway, threshold)


class _Threshold(NamedTuple):
    """One kind of threshold. `key_of`: the dependency that says which one a request is about."""

    name: str
    path: str
    key_of: Callable[..., Awaitable[PolicyKey]]
    about_get: str = ""
    about_delete: str = ""


async def _total() -> PolicyKey:
    return PolicyKey.of_broker()


async def _of_broker(broker: int) -> PolicyKey:
    return PolicyKey.of_broker(broker)


async def _of_topic(topic: str) -> PolicyKey:
    return PolicyKey.of_topic(topic)


_THRESHOLDS: Final = (
    _Threshold(
        "total", "/v1/thresholds/total", _total,
        "The total of brokers without one of their own.", "What the file says holds again.",
    ),
    _Threshold("broker", "/v1/thresholds/total/{broker}", _of_broker, "The total that this broker has of its own."),
    _Threshold("topic", "/v1/thresholds/topics/{topic}", _of_topic),
)  # fmt: skip


def _add_threshold(app: FastAPI, gateway: Gateway, threshold: _Threshold) -> None:
    policies, name, chosen = gateway.policies, threshold.name, Depends(threshold.key_of)

    @app.get(threshold.path, name=f"get_{name}", description=threshold.about_get)
    async def get(key: PolicyKey = chosen) -> shapes.Value:
        key = key.checked()
        found = policies.policies.setting(key)
        if found is None:
            raise HTTPException(404, f"{key} is not set: PUT {{value: 12MB}} here would")
        return shapes.of_setting(found, gateway.base)

    @app.put(threshold.path, name=f"put_{name}")
    async def put(
        new: shapes.NewThreshold,
        how: Annotated[shapes.Validation, Query()],
        request: Request,
        key: PolicyKey = chosen,
    ) -> shapes.Alterations:
        altered = await policies.alter([Op(key, new.value)], source_of(request), validate_only=how.validate_only)
        return shapes.of_altered(altered, how.validate_only)

    @app.delete(threshold.path, name=f"delete_{name}", description=threshold.about_delete)
    async def delete(
        how: Annotated[shapes.Validation, Query()],
        request: Request,
        key: PolicyKey = chosen,
    ) -> shapes.Alterations:
        key = key.checked()
        if key not in policies.policies.effective():
            raise HTTPException(404, f"{key} is not set, so there is nothing to delete")
        altered = await policies.alter([Op(key, None)], source_of(request), validate_only=how.validate_only)
        return shapes.of_altered(altered, how.validate_only)


def _add_quotas(app: FastAPI, policies: Policies) -> None:
    @app.get("/v1/client-quotas")
    async def get_quotas(wanted: Annotated[shapes.QuotaFilter, Query()]) -> shapes.QuotaEntries:
        """DescribeClientQuotas: what is set."""
        now = policies.policies
        found = await trio.to_thread.run_sync(now.quotas().describe, wanted.components(), wanted.strict)
        return shapes.QuotaEntries(
            version=now.version, entries=[shapes.of_entry(entity, values) for entity, values in found]
        )

    @app.post("/v1/client-quotas:alter")
    async def alter_quotas(given: shapes.GivenAlterations, request: Request) -> shapes.QuotaAlterations:
        """AlterClientQuotas: an entity that is refused leaves the others alone; an error only where all are."""
        alterations = [
            Alteration(
                [(part.type, part.name) for part in each.entity],
                [
                    QuotaOp(op.key, _quota_value(op, f"body.alterations.{i}.ops.{j}.value"))
                    for j, op in enumerate(each.ops)
                ],
            )
            for i, each in enumerate(given.alterations)
        ]
        altered = await policies.alter_quotas(alterations, source_of(request), validate_only=given.validate_only)
        if altered.errors and None not in altered.errors:
            raise problems.Refused(
                "nothing was changed: every entity was refused",
                [
                    problems.Finding(where=f"body.alterations.{i}", what=str(error))
                    for i, error in enumerate(altered.errors)
                ],
            )
        results = [
            shapes.QuotaResult(
                entity=[shapes.EntityPart(type=part.type, name=part.name) for part in each.entity],
                error=None if error is None else error.error,
                message=None if error is None else str(error),
            )
            for each, error in zip(given.alterations, altered.errors, strict=True)
        ]
        return shapes.QuotaAlterations(**shapes.of_altered(altered, given.validate_only).model_dump(), results=results)


def _add_documents(app: FastAPI, policies: Policies) -> None:
    @app.get("/v1/policies")
    async def export() -> shapes.Exported:
        """All policies as the document that :apply takes, and where each value comes from."""
        return shapes.Exported(**await trio.to_thread.run_sync(policies.overview))

    @app.post("/v1/policies:apply")
    async def apply(given: shapes.GivenDocument, request: Request) -> shapes.Applied:
        """Make a document hold: all of it, or nothing. What changes resource groups needs admin rights."""
        missing = await request.scope[MISSING]()
        try:
            altered = await policies.apply(
                given.document, source_of(request), dry_run=given.dry_run, prune=given.prune, groups=not missing
            )
        except PolicyError as error:
            if error.faults[0].kind != "denied":
                raise
            raise HTTPException(403, f"{error}: {missing}") from error
        return shapes.Applied(
            version=altered.version,
            dry_run=given.dry_run,
            ops=shapes.of_changes(altered),
            warnings=list(altered.warnings),
        )


def _add_views(app: FastAPI, views: _Views) -> None:
    @app.get("/v1/explain")
    async def explain_traffic(asked: Annotated[shapes.ExplainQuery, Query()]) -> shapes.Explained:
        """Every rule that looks at this traffic, which of them binds first, and what was rejected or delayed lately."""
        return await views.traffic(asked)

    @app.get("/v1/client-quotas/effective")
    async def get_effective(wanted: Annotated[shapes.EffectiveQuery, Query()]) -> shapes.EffectiveQuotas:
        """DescribeEffectiveQuotas: what holds, key by key, and what it overrides; and what storage makes of it."""
        return views.effective(wanted)

    @app.get("/v1/topics", response_model=shapes.ShownTopics)
    async def get_topics() -> Response:
        """All topics, by name."""
        return await views.topics()

    @app.get("/v1/top", response_model=shapes.ShownTopics)
    async def get_top(how: Annotated[shapes.TopQuery, Query()]) -> Response:
        """The busiest topics."""
        return await views.topics(how)


class _Views:
    """Puts together what is known, on the loop, and works it out in a thread: there may be ten thousand topics."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._finder: tuple[PolicySet, tuple[str, str], Finder] | None = None

    async def traffic(self, query: shapes.ExplainQuery) -> shapes.Explained:
        asked = explain.Asked(
            query.topic, explain.ANONYMOUS if query.user is None else query.user, query.client_id or "", query.broker
        )
        known, rates = self._known()
        known, fleet = self._with_groups(known), self._gateway.fleet()
        principal = None if query.user is None else asked.principal
        held = self._gateway.recent.held(known.now_ms, query.topic, principal, query.client_id, query.broker)
        return await trio.to_thread.run_sync(
            lambda: shapes.of_explanation(
                explain.explain(asked, known._replace(rates=_rates(rates, fleet)), held), known
            )
        )

    def effective(self, query: shapes.EffectiveQuery) -> shapes.EffectiveQuotas:
        known, _ = self._known()
        found = known.policies.quotas().effective(query.entity(), query.omit_overridden)
        return shapes.EffectiveQuotas(
            version=known.policies.version,
            storage=shapes.of_storage(known),
            quotas=[shapes.of_effective(each, known) for each in found],
        )

    async def topics(self, how: shapes.TopQuery | None = None) -> Response:
        known, rates = self._known()
        flows = self._gateway.recent.flows(known.now_ms)

        def work() -> str:
            lines = explain.topics(known._replace(rates=_rates(rates)), flows)
            shown = lines if how is None else explain.top(lines, how.by)[: how.limit]
            said = shapes.ShownTopics(at_ms=known.now_ms, topics=[shapes.of_topic(line) for line in shown])
            return said.model_dump_json()

        return Response(await trio.to_thread.run_sync(work), media_type="application/json")

    def _with_groups(self, known: explain.Known) -> explain.Known:
        told = self._gateway.latest(channel.Groups) or channel.Groups(0)
        policies = known.policies
        patterns = (told.topic_pattern, told.principal_pattern)
        if self._finder is None or self._finder[:2] != (policies, patterns):  # there may be many namespaces
            finder = Finder(*patterns, policies.tenants(), policies.namespaces())
            self._finder = (policies, patterns, finder)
        return known._replace(finder=self._finder[2], group_mode=told.mode)

    def _known(self) -> tuple[explain.Known, channel.Rates | None]:
        latest = self._gateway.latest
        settings, topics, policy = latest(channel.WorkerSettings), latest(channel.Topics), latest(channel.Policy)
        quotas, storage = latest(channel.Quotas), latest(channel.Storage)
        known = explain.Known(
            self._gateway.policies.policies,
            self._gateway.base,
            {} if topics is None else topics.leads,
            frozenset(self._gateway.gone()),
        )
        if policy is not None:
            known = known._replace(on_exceed=policy.on_exceed, threshold_mode=policy.mode)
        if quotas is not None:
            known = known._replace(quota_mode=quotas.mode)
        if storage is not None:
            known = known._replace(storage=storage.factor, storage_mode=storage.mode)
        if settings is not None:
            known = known._replace(
                observe=settings.observe,
                internal_principals=settings.internal_principals,
                internal_client_ids=settings.internal_client_ids,
                protected_topics=settings.protected_topics,
                plugins=settings.policies,
            )
        return known._replace(now_ms=round(self._gateway.clock() * 1000)), latest(channel.Rates)


def _rates(said: channel.Rates | None, fleet: Mapping[FleetKey, FleetUse] = _NOTHING) -> explain.Rates:
    if said is None:
        return explain.Rates(fleet=fleet)
    partial = len(said.quotas) >= channel.MAX_QUOTA_RATES
    return explain.Rates(said.brokers, said.quotas, partial, said.groups, fleet)


def _quota_value(op: shapes.GivenOp, where: str) -> float | None:
    try:
        return shapes.quota_value(op)
    except ValueError as error:
        raise problems.Refused("nothing was changed", [problems.Finding(where=where, what=str(error))]) from error
