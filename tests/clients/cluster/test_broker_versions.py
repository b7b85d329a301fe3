# Other releases of Kafka behind the gateway, older and newer than the embedded one, with clients that are older and
# newer than they: `make clients`.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway import embedded
from gateway.embedded import EmbeddedCluster
from tests.clients import harness
from tests.clients.conftest import Target, missing
from tests.clients.gateways import Gateway
from tests.clients.test_matrix import PARTITIONS, aborted_of, administer, drive

pytestmark = [pytest.mark.clients, pytest.mark.kafka]

BROKERS = ("3.9.1", "4.0.1", harness.NEWEST)  # beside the embedded one, with which all other tests run
CLIENTS = (f"java-{harness.NEWEST}", "java-2.1.1", "java-3.9.1", "librdkafka", "franz-go", "kafka-python")
SCENARIOS = ("defaults", "transactions")


@pytest.fixture(scope="module", params=BROKERS)
def other(request: pytest.FixtureRequest) -> Iterator[Target]:
    try:
        libs = harness.other_kafka(request.param)
    except harness.Unavailable as reason:
        missing(str(reason))
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster(2, libs=libs))
        gateway = stack.enter_context(Gateway(cluster.bootstrap_servers, node_ids=2))
        ports = {node: gateway.broker_port(node) for node in cluster.brokers}
        yield Target(f"kafka-{request.param}", gateway.bootstrap, cluster.bootstrap_servers, ports)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("client", CLIENTS)
def test_the_sent_records_are_the_read_ones(other: Target, client: str, scenario: str) -> None:
    run = drive(other, client, scenario)
    assert run.produced["errors"] == {}, run.produced["first_error"]
    assert run.produced["unresolved"] == []
    assert harness.judge(run.produced, run.log).clean
    count = run.produced["sent"]
    aborted = aborted_of(count) if scenario == "transactions" else []
    assert sorted(run.log.numbers()) == sorted(set(range(count)) - set(aborted))
    assert run.consumed is not None
    assert harness.judge_reading(run.consumed, run.log) == [], harness.remarks(run.consumed)


@pytest.mark.parametrize("client", CLIENTS)
def test_admin_calls_answer_and_name_the_gateways_addresses(other: Target, client: str) -> None:
    answer = administer(other, client)
    assert (answer["listed"], answer["partitions"], answer["deleted"]) == (True, PARTITIONS, True)
    assert {broker["id"]: broker["port"] for broker in answer["brokers"]} == other.ports
    assert {broker["host"] for broker in answer["brokers"]} == {embedded.HOST}
