# The REST API of the admin server: policies as they are and how to change them, what holds for whom and why, topics by
# traffic. FastAPI describes and validates; the way of a change is the policy service's, as through any other door. The
# gate (access/) says who may ask, models.py has the shapes of requests and answers, problems.py those of errors.
#
# Every endpoint is async: it runs on trio's own loop, and what takes its time goes to a thread from there.

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import reduce
from importlib.metadata import version
from typing import Annotated, Any, Final, NamedTuple

import trio
from fastapi import Depends, FastAPI, Query, Request, Response
from starlette.exceptions import HTTPException

from gateway import channel
from gateway.access_tokens.roles import AccessRole
from gateway.control.access.gate import gate_of
from gateway.control.admin.rest import configuration, problems, session, state, storage
from gateway.control.admin.rest import groups as rest_groups
from gateway.control.admin.rest import models as shapes
from gateway.control.admin.rest.asker import check_lasting, source_of
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.admin.rest.guard import guard_requests
from gateway.control.http_server import Application
from policies import explain
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyError, PolicyKey, PolicyOperation
from policies.definitions.rollout import ALL_CLIENTS
from policies.groups.finder import GroupResolver
from policies.quotas.names import QUOTA_KEYS, Entity
from policies.quotas.store import Alteration, EntityValues, QuotaStore
from policies.quotas.store import Op as QuotaOp
from policies.thresholds.sums import EVERY_BROKER
from policies.thresholds.values import TOTAL_KEY, TOTAL_OUT_KEY

_NO_QUOTAS: Final = QuotaStore()


# --- the application --------------------------------------------------------------------------------------------------


def make_api(gateway: GatewayContext) -> Application:
    """The API as an ASGI application, for `admin.make_application`, which puts the gate before it."""
    return guard_requests(describe_api(gateway))


def describe_api(gateway: GatewayContext) -> FastAPI:
    """The API with all its routes, and nothing before it."""
    app = _DescribedApi(
        title="produce-gateway",
        version=version("produce-gateway"),
        description="Policies of a running gateway, and their effects. See docs/rest.md.",
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
        responses={code: {"model": problems.Problem} for code in (400, 401, 403, 404, 412, 413, 415, 422, 429, 503)},
    )
    problems.install_handlers(app)
    _add_thresholds(app, gateway)
    _add_quotas(app, gateway)
    _add_documents(app, gateway)
    rest_groups.add_paths(app, gateway)
    state.add_paths(app, gateway)
    configuration.add_paths(app, gateway)
    storage.add_paths(app, gateway)
    _add_views(app, _TrafficViews(gateway))
    session.add_paths(app)
    return app


_NO_TELEMETRY: Final[Any] = {
    "auto_configure": False, "tracing": False, "metrics": False, "logs": False, "operation_spans": False,
}  # fmt: skip


class _DescribedApi(FastAPI):
    """FastAPI would describe errors as application/json."""

    def openapi(self) -> dict[str, Any]:
        said = super().openapi()
        for path in said["paths"].values():
            for operation in path.values():
                for code, answer in operation["responses"].items():
                    if int(code) >= 400 and "application/json" in answer["content"]:
                        answer["content"][problems.MEDIA_TYPE] = answer["content"].pop("application/json")
        return said


def _add_thresholds(app: FastAPI, gateway: GatewayContext) -> None:
    @app.get("/v1/thresholds")
    async def get_thresholds() -> shapes.Thresholds:
        """All thresholds, in bytes per second of each broker."""
        now, told, places = (
            gateway.policies.policies,
            gateway.latest_snapshot(channel.ThresholdPolicy),
            gateway.places(),
        )
        settings = [setting for setting in now.list_settings() if setting.key.kind in ("topic", "broker")]
        shown = {setting.key: shapes.show_setting(setting, gateway.base) for setting in settings}
        totals, out = (
            {key.name: value for key, value in shown.items() if key.key == name} for name in (TOTAL_KEY, TOTAL_OUT_KEY)
        )
        return shapes.Thresholds(
            version=now.version,
            on_exceed=told.on_exceed if told else "reject",
            mode=told.mode if told else "enforce",
            enforce_percent=told.enforce_percent if told else ALL_CLIENTS,
            total=shapes.Totals(default=totals.pop(EVERY_BROKER, None), brokers=totals),
            total_out=shapes.Totals(default=out.pop(EVERY_BROKER, None), brokers=out),
            topics={key.name: value for key, value in shown.items() if key.kind == "topic"},
            committed=shapes.show_committed(now.commitments_by_broker(places) if places is not None else {}),
            warnings=list(now.collect_warnings(places)),
        )

    for threshold in _THRESHOLDS:
        _add_threshold(app, gateway, threshold)


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


def _add_threshold(app: FastAPI, gateway: GatewayContext, threshold: _ThresholdKind) -> None:
    policies, name, chosen = gateway.policies, threshold.name, Depends(threshold.key_of)

    @app.get(threshold.path, name=f"get_{name}", description=threshold.about_get)
    async def get(key: PolicyKey = chosen) -> shapes.Value:
        key = key.validate_key()
        found = policies.policies.find_setting(key)
        if found is None:
            raise HTTPException(404, f"{key} is not set: PUT {{value: 12MB}} here would")
        return shapes.show_setting(found, gateway.base)

    @app.put(threshold.path, name=f"put_{name}")
    async def put(
        new: shapes.NewThreshold,
        how: Annotated[shapes.Validation, Query()],
        request: Request,
        key: PolicyKey = chosen,
    ) -> shapes.Alterations:
        check_lasting(request, new.until, gateway, preview=how.validate_only)
        altered = await policies.alter_policies(
            [PolicyOperation(key, new.value, new.until)], source_of(request), validate_only=how.validate_only
        )
        return shapes.show_altered(altered, how.validate_only)

    @app.delete(threshold.path, name=f"delete_{name}", description=threshold.about_delete)
    async def delete(
        how: Annotated[shapes.Validation, Query()],
        request: Request,
        key: PolicyKey = chosen,
    ) -> shapes.Alterations:
        key = key.validate_key()
        if key not in policies.policies.effective_values():
            raise HTTPException(404, f"{key} is not set, so there is nothing to delete")
        altered = await policies.alter_policies(
            [PolicyOperation(key, None)], source_of(request), validate_only=how.validate_only
        )
        return shapes.show_altered(altered, how.validate_only)


def _add_quotas(app: FastAPI, gateway: GatewayContext) -> None:
    policies = gateway.policies

    @app.get("/v1/client-quotas")
    async def get_quotas(wanted: Annotated[shapes.QuotaFilter, Query()]) -> shapes.QuotaEntries:
        """DescribeClientQuotas: the values set in the gateway and in the brokers behind it."""
        now, told = policies.policies, gateway.latest_snapshot(channel.QuotaSnapshot) or channel.QuotaSnapshot(0)
        theirs, problem = await _broker_quotas(gateway)

        def find(store: QuotaStore) -> dict[Entity, EntityValues]:
            return dict(store.describe_quotas(wanted.make_components(), wanted.strict))

        found, upstream = [
            await trio.to_thread.run_sync(find, store) for store in (now.quota_store(), theirs or _NO_QUOTAS)
        ]
        entities = sorted({*found, *upstream}, key=lambda entity: entity.sort_key)
        return shapes.QuotaEntries(
            version=now.version,
            mode=told.mode,
            enforce_percent=told.enforce_percent,
            brokers_problem=problem,
            total=len(entities),
            entries=[
                shapes.show_quota_entry(each, found.get(each, {}), upstream.get(each, {}), now.ends)
                for each in entities[: wanted.limit]
            ],
        )

    @app.post("/v1/client-quotas:alter", response_model=shapes.QuotaAlterations)
    async def alter_quotas(given: shapes.GivenAlterations, request: Request) -> Response:
        """AlterClientQuotas: an entity that is refused leaves the others alone; an error only where all are."""
        alterations = await trio.to_thread.run_sync(_make_alterations, given)
        for until in {each.until for each in given.alterations}:
            check_lasting(request, until, gateway, preview=given.validate_only)
        altered = await policies.alter_quotas(alterations, source_of(request), validate_only=given.validate_only)
        if altered.errors and None not in altered.errors:
            raise problems.RequestRefused(
                "nothing was changed: every entity was refused",
                [
                    problems.Finding(where=f"body.alterations.{i}", what=str(error))
                    for i, error in enumerate(altered.errors)
                ],
            )

        def answer() -> str:
            results = [
                shapes.QuotaResult(
                    entity=[shapes.EntityPart(type=part.type, name=part.name) for part in each.entity],
                    error=None if error is None else error.error,
                    message=note or None if error is None else str(error),
                )
                for each, error, note in zip(given.alterations, altered.errors, altered.notes, strict=True)
            ]
            said = shapes.show_altered(altered, given.validate_only)
            return shapes.QuotaAlterations.model_construct(**dict(said), results=results).model_dump_json()

        return Response(await trio.to_thread.run_sync(answer), media_type="application/json")


def _add_documents(app: FastAPI, gateway: GatewayContext) -> None:
    policies = gateway.policies

    @app.get("/v1/policies")
    async def export() -> shapes.Exported:
        """All policies as the document that :apply takes, and where each value comes from."""
        return shapes.Exported(**await trio.to_thread.run_sync(policies.export_overview))

    @app.get("/v1/policies/history")
    async def get_history(wanted: Annotated[shapes.HistoryQuery, Query()]) -> shapes.History:
        """The changes with author, time and old value."""
        found = [
            past
            for past in reversed(policies.history)
            if wanted.kind in (None, past.key.kind) and wanted.name in (None, past.key.name)
        ]
        return shapes.History(
            version=policies.policies.version, changes=[shapes.show_past_change(past) for past in found[: wanted.limit]]
        )

    @app.post("/v1/policies:apply")
    async def apply(given: shapes.GivenDocument, request: Request) -> shapes.Applied:
        """Make a document hold: all of it, or nothing. A change of resource groups needs admin rights."""
        check_lasting(request, None if given.prune else given.until, gateway, preview=given.dry_run)
        missing = gate_of(request.scope).missing_rights(request.scope, AccessRole.ADMIN, identified=True)
        try:
            altered = await policies.apply_document(
                given.document,
                source_of(request),
                dry_run=given.dry_run,
                prune=given.prune,
                until_ms=given.until,
                groups=not missing,
            )
        except PolicyError as error:
            if error.faults[0].kind != "denied":
                raise
            raise HTTPException(403, f"{error}: {missing}") from error
        return shapes.Applied(
            version=altered.version,
            dry_run=given.dry_run,
            ops=shapes.show_changes(altered),
            warnings=list(altered.warnings),
        )


def _add_views(app: FastAPI, views: _TrafficViews) -> None:
    @app.get("/v1/explain")
    async def explain_traffic(asked: Annotated[shapes.ExplainQuery, Query()]) -> shapes.Explained:
        """Every rule that looks at this traffic, the one that binds first, and the latest rejections and delays."""
        return await views.explain_traffic(asked)

    @app.get("/v1/client-quotas/effective")
    async def get_effective(wanted: Annotated[shapes.EffectiveQuery, Query()]) -> shapes.EffectiveQuotas:
        """DescribeEffectiveQuotas: the values in force, key by key, their enforcer, the overridden values, and the
        effect of storage protection.
        """
        return await views.effective_quotas(wanted)

    @app.get("/v1/topics", response_model=shapes.ShownTopics)
    async def get_topics() -> Response:
        """All topics, by name."""
        return await views.list_topics()

    @app.get("/v1/top", response_model=shapes.ShownTopics)
    async def get_top(how: Annotated[shapes.TopQuery, Query()]) -> Response:
        """The busiest topics."""
        return await views.list_topics(how)


class _TrafficViews:
    """Gathers the facts on the loop, and works the answer out in a thread: there may be ten thousand topics."""

    def __init__(self, gateway: GatewayContext) -> None:
        self._gateway = gateway
        self._finder: tuple[PolicySet, tuple[str, str], GroupResolver] | None = None

    async def explain_traffic(self, query: shapes.ExplainQuery) -> shapes.Explained:
        asked = explain.ExplainSubject(
            query.topic, explain.ANONYMOUS if query.user is None else query.user, query.client_id or "", query.broker
        )
        theirs, problem = await _broker_quotas(self._gateway)
        known, rates = self._gather_facts()
        known = known._replace(broker_quotas=theirs or _NO_QUOTAS, broker_quotas_problem=problem)
        known = self._with_groups(known)._replace(rates=_make_rates(rates))
        fleet = self._gateway.fleet_uses(explain.shared_limit_keys(asked, known))
        brought = self._gateway.peer_rates(
            asked.topic, [node for node in known.subject_brokers(asked) if node is not None]
        )
        known = known._replace(rates=known.rates._replace(fleet=fleet, peer_rates=brought))
        principal = None if query.user is None else asked.principal
        held = self._gateway.recent.find_held(known.now_ms, query.topic, principal, query.client_id, query.broker)
        return await trio.to_thread.run_sync(
            lambda: shapes.show_explanation(explain.explain_traffic(asked, known, held), known)
        )

    async def effective_quotas(self, query: shapes.EffectiveQuery) -> shapes.EffectiveQuotas:
        entity = query.make_entity()
        theirs, problem = await _broker_quotas(self._gateway)
        known, _ = self._gather_facts()
        ours, brokers = (
            {each.key: each for each in store.effective_quotas(entity, query.omit_overridden)}
            for store in (known.policies.quota_store(), theirs or _NO_QUOTAS)
        )
        return shapes.EffectiveQuotas(
            version=known.policies.version,
            storage=shapes.show_storage_effect(known),
            brokers_problem=problem,
            quotas=[
                each for key in QUOTA_KEYS for each in shapes.show_enforced(ours.get(key), brokers.get(key), known)
            ],
        )

    async def list_topics(self, how: shapes.TopQuery | None = None) -> Response:
        known, rates = self._gather_facts()
        flows = self._gateway.recent.topic_flows(known.now_ms)
        elsewhere, traffic = self._gateway.peer_broker_rates(), self._gateway.peer_traffic()

        def work() -> str:
            others: dict[str, dict[str, explain.TopicFlow]] = {}
            for gateway, told in traffic.items():
                for topic, flow in told.topics.items():
                    others.setdefault(topic, {})[gateway] = flow
            sums = {topic: reduce(explain.TopicFlow.combined_with, of.values()) for topic, of in others.items()}
            lines = explain.topic_statuses(
                known._replace(rates=_make_rates(rates)._replace(peer_traffic=elsewhere)), flows, sums
            )
            total = len(lines)
            if how is not None:
                found = [line for line in lines if how.contains in line.topic and how.topic in (None, line.topic)]
                found = explain.top_topics(found, how.by)
                total, lines = len(found), found[: how.limit]
            shown = [shapes.show_topic(line, others.get(line.topic, {})) for line in lines]
            said = shapes.ShownTopics(at_ms=known.now_ms, total=total, topics=shown)
            return said.model_dump_json()

        return Response(await trio.to_thread.run_sync(work), media_type="application/json")

    def _with_groups(self, known: explain.ExplainInputs) -> explain.ExplainInputs:
        told = self._gateway.latest_snapshot(channel.GroupSnapshot) or channel.GroupSnapshot(0)
        policies = known.policies
        patterns = (told.topic_pattern, told.principal_pattern)
        if self._finder is None or self._finder[:2] != (policies, patterns):  # there may be many namespaces
            finder = GroupResolver(*patterns, policies.tenant_groups(), policies.namespace_groups())
            self._finder = (policies, patterns, finder)
        rollout = known.rollout._replace(group=told.enforce_percent)
        return known._replace(finder=self._finder[2], group_mode=told.mode, rollout=rollout)

    def _gather_facts(self) -> tuple[explain.ExplainInputs, channel.WorkerRates | None]:
        latest = self._gateway.latest_snapshot
        settings, topics, policy = (
            latest(channel.WorkerSettings),
            latest(channel.TopicSnapshot),
            latest(channel.ThresholdPolicy),
        )
        quotas, factor = latest(channel.QuotaSnapshot), latest(channel.StorageSnapshot)
        known = explain.ExplainInputs(
            self._gateway.policies.policies,
            self._gateway.base,
            {} if topics is None else topics.leads,
        )
        if policy is not None:
            rollout = known.rollout._replace(threshold=policy.enforce_percent)
            known = known._replace(on_exceed=policy.on_exceed, burst_s=policy.burst_s)
            known = known._replace(threshold_mode=policy.mode, rollout=rollout)
        if quotas is not None:
            rollout = known.rollout._replace(quota=quotas.enforce_percent)
            known = known._replace(quota_mode=quotas.mode, rollout=rollout)
        if factor is not None:
            known = known._replace(storage=factor.factor, storage_mode=factor.mode, affected=factor.affected)
        if settings is not None:
            known = known._replace(
                observe=settings.mode == "observe",
                rollout_key=settings.rollout_key,
                internal_principals=settings.internal.principals,
                internal_client_ids=settings.internal.client_ids,
                protected_topics=settings.protected_topics,
                plugins=settings.policies,
            )
        return known._replace(now_ms=round(self._gateway.clock() * 1000)), latest(channel.WorkerRates)


async def _broker_quotas(gateway: GatewayContext) -> tuple[QuotaStore | None, str]:
    """The brokers' own quotas, None: unknown, and why."""
    if gateway.broker_quotas is None:
        return None, ""
    return await gateway.broker_quotas.fetch_quotas(), gateway.broker_quotas.problem


def _make_rates(said: channel.WorkerRates | None) -> explain.MeterRates:
    if said is None:
        return explain.MeterRates()
    partial = len(said.quotas) >= channel.MAX_QUOTA_RATES
    return explain.MeterRates(said.brokers, said.quotas, partial, said.groups)


def _make_alterations(given: shapes.GivenAlterations) -> list[Alteration]:
    return [
        Alteration(
            [(part.type, part.name) for part in each.entity],
            [QuotaOp(op.key, _quota_value(op, i, j)) for j, op in enumerate(each.ops)],
            each.until,
        )
        for i, each in enumerate(given.alterations)
    ]


def _quota_value(op: shapes.GivenOp, i: int, j: int) -> float | None:
    try:
        return shapes.quota_value(op)
    except ValueError as error:
        where = f"body.alterations.{i}.ops.{j}.value"
        raise problems.RequestRefused(
            "nothing was changed", [problems.Finding(where=where, what=str(error))]
        ) from error
