# The brokers' own quotas: asked when somebody wants to know, kept for some seconds, and why they are not known.

from __future__ import annotations

from collections.abc import Sequence

import pytest
from trio.testing import MockClock

from gateway.control.cluster.broker_quotas import CACHE_S, BrokerQuotas
from gateway.quotas.client import QuotaApi, QuotaClientError, QuotaRow
from policies.quotas.filter import Component
from policies.quotas.names import Entity, QuotaKey
from policies.quotas.store import Alteration

RATE = QuotaKey.parse("producer_byte_rate")


class Brokers:
    """An `Endpoint`. `error`: the reason why it doesn't answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.error = ""

    def describe(self, components: Sequence[Component], strict: bool) -> Sequence[QuotaRow]:
        self.asked += 1
        if self.error:
            raise QuotaClientError(self.error)
        address = QuotaRow((("ip", "10.0.0.1"),), {"connection_creation_rate": 5.0})
        return [QuotaRow((("user", "alice"),), {"producer_byte_rate": 0.0, "controller_mutation_rate": 1.0}), address]

    def describe_apart(self, components: object = (), strict: bool = False) -> None:
        raise AssertionError("brokers tell nothing apart")

    def alter(self, alterations: Sequence[Alteration], validate_only: bool) -> Sequence[None]:
        raise AssertionError("nobody changes anything here")


async def test_they_are_asked_once_in_a_while(mock_clock: MockClock) -> None:
    brokers = Brokers()
    quotas = BrokerQuotas(lambda: QuotaApi(brokers))
    for look in range(2):
        for _ in range(3):
            store = await quotas.fetch_quotas()
            assert store is not None
            assert store.entries == {Entity("alice"): {RATE: 0.0}}, "also what the gateway would refuse"
        assert (brokers.asked, quotas.problem) == (1 + look, "")
        mock_clock.jump(CACHE_S)
    brokers.error = "kafka:9092: no answer in time"
    for _ in range(2):
        assert await quotas.fetch_quotas() is None
        assert (brokers.asked, quotas.problem) == (3, brokers.error)
    mock_clock.jump(CACHE_S)
    brokers.error = ""
    assert await quotas.fetch_quotas()
    assert quotas.problem == ""


async def test_properties_that_cant_be_used_are_a_problem_and_no_crash() -> None:
    quotas = BrokerQuotas.of_cluster("localhost:1", {"security.protocol": "TELNET"})
    assert await quotas.fetch_quotas() is None
    assert quotas.problem.startswith("security.protocol: must be one of")


@pytest.fixture
def mock_clock() -> MockClock:
    return MockClock()
