# The admin server with the REST API over real HTTP, with the real PolicySet and store of a file-less service.

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlencode

import pytest
import trio

from gateway import channel
from gateway import policy_document as document
from gateway.channel import PROTOCOL
from gateway.control.access.gate import AccessGate
from gateway.control.admin.application import AdminApplication
from gateway.control.admin.rest import api as rest
from gateway.control.admin.rest.context import GatewayContext
from gateway.control.cluster.broker_quotas import BrokerQuotas
from gateway.control.fleet.exchange.usage_codec import GatewayTraffic
from gateway.control.gateway_health import FleetStatus, HealthStatus
from gateway.control.lifecycle.reload import ConfigStatus
from gateway.control.policies.service import ChangeResult
from gateway.control.policies.store import StoreError
from gateway.control.usage.recent import RecentTraffic
from gateway.control.usage.timeline import TrafficTimeline
from gateway.control.workers.inquiries import InquiryResult
from gateway.embedded import find_free_port
from gateway.quotas.client import DescribedQuotas, QuotaClientError
from gateway.worker_config import WorkerInternal
from policies.definitions.policy_records import ChangeSource, PastChange
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import BaseOrigin, PolicyKey, PolicyOperation, PolicyValue, file_origin
from policies.limits.description import FleetUse
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.quota_limiters import QuotaRate
from policies.quotas.store import Alteration, EntityValues
from policies.thresholds.broker_limits import BrokerRate, TopicRate
from policies.thresholds.sums import TopicPlaces

MB = 10**6
NOW_MS = 1_700_000_000_000
JSON = {"Content-Type": "application/json"}
ALICE = Entity("alice")
RATE = QuotaKey.parse("producer_byte_rate.bps")
BASE = {
    PolicyKey.of_broker(): 12.0 * MB,
    PolicyKey.of_topic("clicks"): 5.0 * MB,
    PolicyKey.of_quota(ALICE, RATE): 3.0 * MB,
}


class Service:
    """The real rules, in memory; changes take effect at once."""

    def __init__(self, base: Mapping[PolicyKey, PolicyValue] = BASE) -> None:
        self.policies = PolicySet(base)
        self.sources: list[ChangeSource] = []
        self.history: list[PastChange] = []
        self.problem = ""
        self.bug = False
        self.places: TopicPlaces | None = None

    async def alter_policies(
        self, ops: Sequence[PolicyOperation], source: ChangeSource, *, validate_only: bool = False
    ) -> ChangeResult:
        return self._take(self.policies.alter_policies(ops, places=self.places, now_ms=NOW_MS), source, validate_only)

    async def alter_quotas(
        self, alterations: Sequence[Alteration], source: ChangeSource, *, validate_only: bool = False
    ) -> ChangeResult:
        new, errors = self.policies.alter_quotas(alterations, now_ms=NOW_MS)
        altered = self._take(new, source, validate_only)
        altered.errors, altered.notes = errors, ("",) * len(errors)
        return altered

    async def apply_document(
        self,
        data: object,
        source: ChangeSource,
        *,
        dry_run: bool = False,
        prune: bool = False,
        until_ms: int | None = None,
        groups: bool = True,
    ) -> ChangeResult:
        wanted = document.read_document(data)
        new = self.policies.apply_values(wanted, prune=prune, until_ms=until_ms, groups=groups, now_ms=NOW_MS)
        return self._take(new, source, dry_run)

    def export_overview(self, base: BaseOrigin) -> dict[str, Any]:
        policies = self.policies
        return {
            "version": policies.version,
            "document": document.export_policies(policies),
            "origins": document.describe_origins(policies.list_settings(), base),
        }

    def _take(self, new: PolicySet, source: ChangeSource, validate_only: bool) -> ChangeResult:
        if self.problem:
            raise StoreError(self.problem)
        if self.bug:
            raise KeyError("a bug")
        self.sources.append(source)
        changes = new.changes_since(self.policies)
        if not validate_only:
            self.history += [
                PastChange(new.version, NOW_MS, source, each.key, each.old, each.new, each.end and each.end.until_ms)
                for each in changes
            ]
            self.policies = new
        result = ChangeResult(
            self.policies.version, changes, new.collect_warnings(), committed=new.commitments_by_broker(self.places)
        )
        result.validate_only = validate_only
        return result


class Server:
    def __init__(self) -> None:
        self.policies = Service()
        self.recent, self.timeline = RecentTraffic(), TrafficTimeline()
        self.told = {
            channel.WorkerSettings: channel.WorkerSettings(
                PROTOCOL, "gw", protected_topics=("__usage",), internal=WorkerInternal(principals=("User:mirror",))
            ),
            channel.ThresholdPolicy: channel.ThresholdPolicy(1, 12.0 * MB, {"clicks": 5.0 * MB}),
            channel.TopicSnapshot: channel.TopicSnapshot({1: ("clicks", "views")}),
        }
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.gate = AccessGate(hosts={"gw.example"})
        self.fleet: dict[str, FleetUse] = {}
        self.brought: dict[tuple[int, str | None], FleetUse] = {}
        self.elsewhere: dict[int, PeerTraffic] = {}
        self.others: dict[str, GatewayTraffic] = {}
        self.other_names = ""  # why brokers may know clients by other names
        self.upstream: str | list[tuple[Entity, EntityValues]] = []  # what the brokers describe; a text: why they don't
        self.broker_quotas = BrokerQuotas(lambda: self)  # type: ignore[arg-type, return-value]
        self.standing, self.peers, self.found = HealthStatus("b:9092", NOW_MS), FleetStatus(), InquiryResult()
        self.config = ConfigStatus()
        self.storage: dict[str, Any] = {"enabled": False}
        self.identified: list[bool] = []  # each caller that was shown it
        self.base_origin: BaseOrigin = file_origin
        self.questions: list[channel.FindConnections] = []  # to workers
        self.asking = trio.CapacityLimiter(200)  # the server needs threads of its own

    def give_gate(self, gate: AccessGate) -> None:
        """Also while it serves."""
        self.gate.__dict__.update(gate.__dict__)

    def describe(self) -> tuple[DescribedQuotas, ...]:
        if isinstance(self.upstream, str):
            raise QuotaClientError(self.upstream)
        return tuple(DescribedQuotas(entity.wire_pairs, values, {}) for entity, values in self.upstream)

    async def find(self, question: channel.FindConnections) -> InquiryResult:
        self.questions.append(question)
        return self.found

    def show_storage(self, identified: bool) -> dict[str, Any]:
        self.identified.append(identified)
        return self.storage

    def origin_of(self, key: PolicyKey) -> str:
        return self.base_origin(key)  # as it is then

    def latest(self, kind: Any) -> Any:
        return self.told.get(kind)

    def gateway(self) -> GatewayContext:
        return GatewayContext(
            self.policies,  # type: ignore[arg-type]
            self.recent,
            self.latest,
            base_origin=self.origin_of,
            places=lambda: self.policies.places,
            fleet_uses=lambda _: self.fleet,
            peer_rates=lambda *_: self.brought,
            peer_broker_rates=lambda: self.elsewhere,
            peer_traffic=lambda: self.others,
            broker_quotas=self.broker_quotas,
            other_names=lambda: self.other_names,
            health_status=lambda: self.standing,
            fleet_status=lambda: self.peers,
            config_status=lambda: self.config,
            find_connections=self.find,
            timeline=self.timeline,
            storage_status=self.show_storage,
            clock=lambda: NOW_MS / 1000,
        )

    def application(self) -> Callable[..., Any]:
        api = rest.make_api(self.gateway())
        views = {"/v1/storage": self.show_storage}
        return AdminApplication(lambda: iter([b"metric 1\n"]), list, views, api, hosts={"gw.example"}, gate=self.gate)

    async def raw(
        self, method: str, path: str, body: bytes | str | Iterable[bytes] | None = None, headers: dict[str, str] = JSON
    ) -> tuple[int, str, bytes]:
        def ask() -> tuple[int, str, bytes]:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
                with suppress(BrokenPipeError):  # a body may be refused before all of it has gone
                    connection.request(method, path, body, dict(headers))
                answer = connection.getresponse()
                return answer.status, answer.getheader("content-type", ""), answer.read()

        return await trio.to_thread.run_sync(ask, limiter=self.asking)

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | list[Any] | None = None,
        headers: dict[str, str] = JSON,
        **query: Any,
    ) -> tuple[Any, ...]:
        """(status, JSON): errors must be problem documents of the same status."""
        path += f"?{urlencode(query)}" if query else ""
        status, kind, said = await self.raw(method, path, None if body is None else json.dumps(body), headers)
        value = json.loads(said, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        if status >= 400:
            assert kind == "application/problem+json"
            assert value["status"] == status
            assert value["title"]
            assert value["detail"]
        else:
            assert kind == "application/json"
        return status, value


def rates(
    topics: list[tuple[str, float, float, bool]],
    brokers: tuple[tuple[int, float], ...] = ((1, 11.0 * MB),),
    quotas: tuple[QuotaRate, ...] = (),
) -> channel.WorkerRates:
    return channel.WorkerRates(
        tuple(
            BrokerRate(node, rate, 0.0, 0.0, 12.0 * MB, [TopicRate(*each) for each in topics]) for node, rate in brokers
        ),
        (),
        quotas,
    )
