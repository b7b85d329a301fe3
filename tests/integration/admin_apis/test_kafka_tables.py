# protocol/api.py against the newest Kafka: against what its classes say (KafkaTables.java), and against the ApiVersions
# answers of a broker and of a controller. Whoever moves harness.NEWEST to the next release is told here what it brings:
# new APIs, new versions, new errors.
#
# And ApiVersions v5 through the gateway (KIP-1242): a client that was led to another node or cluster is told so.

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway import embedded
from gateway.embedded import EmbeddedCluster
from protocol import api
from protocol.authentication.handshake import API_VERSIONS
from tests.clients import harness
from tests.clients.conftest import missing
from tests.integration.gateways import Gateway
from tests.integration.wire import Wire
from tests.protocol.produce_cases import framed

PROGRAM = Path(__file__).with_name("KafkaTables.java")

REBOOTSTRAP_REQUIRED = api.ERROR_CODES["REBOOTSTRAP_REQUIRED"]
INVALID_REQUEST = api.ERROR_CODES["INVALID_REQUEST"]

# Highest versions of what passes the gateway unread, in the order of their keys. An API is entered here by somebody who
# has read its message definition: a broker's address in an answer would have to be rewritten, a record would have to be
# metered, and what the gateway reads goes into api.HIGHEST_VERSIONS. (A broker without a plugin for clients' telemetry
# has none.)
PASSES = {
    "ListOffsets": 11, "OffsetCommit": 10, "OffsetFetch": 10, "JoinGroup": 9, "Heartbeat": 4, "LeaveGroup": 5,
    "SyncGroup": 5, "DescribeGroups": 6, "ListGroups": 5, "DeleteRecords": 2, "InitProducerId": 5,
    "OffsetForLeaderEpoch": 4, "AddPartitionsToTxn": 5, "AddOffsetsToTxn": 4, "EndTxn": 5, "WriteTxnMarkers": 2,
    "TxnOffsetCommit": 6, "DescribeAcls": 3, "CreateAcls": 3, "DeleteAcls": 3, "AlterReplicaLogDirs": 2,
    "DescribeLogDirs": 5, "CreatePartitions": 3, "CreateDelegationToken": 3, "RenewDelegationToken": 2,
    "ExpireDelegationToken": 2, "DescribeDelegationToken": 3, "DeleteGroups": 3, "ElectLeaders": 2,
    "AlterPartitionReassignments": 1, "ListPartitionReassignments": 0, "OffsetDelete": 0,
    "DescribeUserScramCredentials": 0, "AlterUserScramCredentials": 0, "DescribeQuorum": 2, "UpdateFeatures": 2,
    "DescribeProducers": 0, "UnregisterBroker": 0, "DescribeTransactions": 0, "ListTransactions": 2,
    "ConsumerGroupHeartbeat": 1, "ConsumerGroupDescribe": 1,
    "ListConfigResources": 1, "DescribeTopicPartitions": 0, "ShareGroupHeartbeat": 1, "ShareGroupDescribe": 1,
    "AddRaftVoter": 1, "RemoveRaftVoter": 0, "InitializeShareGroupState": 0, "ReadShareGroupState": 0,
    "WriteShareGroupState": 1, "DeleteShareGroupState": 0, "ReadShareGroupStateSummary": 1,
    "StreamsGroupHeartbeat": 1, "StreamsGroupDescribe": 1, "DescribeShareGroupOffsets": 1,
    "AlterShareGroupOffsets": 0, "DeleteShareGroupOffsets": 0, "StreamsGroupTopologyDescriptionUpdate": 0,
    "UnregisterController": 0,
}  # fmt: skip


class Row(NamedTuple):
    """What Kafka's classes say of one API; the last two as KafkaTables.java has them."""

    name: str
    lowest: int
    highest: int  # -1: no version is left in this release
    request_flexible: int
    answer_flexible: int


class Tables(NamedTuple):
    apis: dict[int, Row]
    errors: dict[int, tuple[str, bool]]  # name, retriable


@pytest.fixture(scope="module")
def libs() -> Path:
    try:
        return harness.other_kafka(harness.NEWEST)
    except harness.Unavailable as reason:
        missing(str(reason))
        raise


@pytest.fixture(scope="module")
def tables(libs: Path) -> Tables:
    command = embedded.java_command(str(PROGRAM), libs=libs)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    apis, errors = dict[int, Row](), dict[int, tuple[str, bool]]()
    for kind, number, name, *rest in map(str.split, done.stdout.splitlines()):
        if kind == "api":
            apis[int(number)] = Row(name, *map(int, rest))
        else:
            errors[int(number)] = (name, rest == ["true"])
    return Tables(apis, errors)


# --- Kafka's classes --------------------------------------------------------------------------------------------------


def test_every_api_has_kafkas_name(tables: Tables) -> None:
    assert {key: row.name for key, row in tables.apis.items()} == api.API_NAMES


def test_headers_become_flexible_where_kafkas_classes_say(tables: Tables) -> None:
    for key, row in tables.apis.items():
        if row.highest < 0:
            continue
        for said, ours in (
            (row.request_flexible, api.REQUEST_FLEXIBLE_FROM[key]),
            (row.answer_flexible, api.RESPONSE_FLEXIBLE_FROM[key]),
        ):
            # Of versions that Kafka has removed its classes say nothing: then all that are left may be flexible.
            assert said == (-1 if ours > row.highest else max(ours, row.lowest)), row


def test_every_error_is_kafkas(tables: Tables) -> None:
    assert tables.errors == {code: (name, code in api.RETRIABLE_ERRORS) for code, name in api.ERROR_NAMES.items()}


def test_of_what_it_reads_the_gateway_knows_the_newest_version(tables: Tables) -> None:
    assert {key: tables.apis[key].highest for key in api.HIGHEST_VERSIONS} == api.HIGHEST_VERSIONS
    # Brokers list Produce from version 0 on for old clients, and refuse it; their classes have what they really take.
    assert {key: tables.apis[key].lowest for key in api.LOWEST_VERSIONS} == api.LOWEST_VERSIONS


@pytest.fixture(scope="module")
def newest(libs: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1, libs=libs) as cluster:
        yield cluster


# --- what a node answers ----------------------------------------------------------------------------------------------


def asked(port: int, version: int, cluster_id: str | None = None, node_id: int = -1) -> tuple[int, dict[int, int]]:
    """The error code of an ApiVersions answer, and the highest versions in it."""
    names = b"".join(bytes([len(name) + 1]) + name for name in (b"tables", b"1"))
    where = b"\0" if cluster_id is None else bytes([len(cluster_id) + 1]) + cluster_id.encode()
    body = names + (where + struct.pack(">i", node_id) if version >= 5 else b"") + b"\0"
    with Wire(port) as wire:
        wire.send(framed(struct.pack(">hhih", api.API_VERSIONS, version, 7, -1) + b"\0" + body))
        answer = wire.receive()[4:]
    form = 0 if answer[4:6] == struct.pack(">h", api.UNSUPPORTED_VERSION) else min(version, API_VERSIONS.highest)
    correlation_id, said = API_VERSIONS.decode_response(answer, 0, len(answer), form)
    assert correlation_id == 7
    return said.error_code, {row.api_key: row.max_version for row in said.api_keys}


def test_a_broker_has_nothing_that_nobody_here_has_looked_at(newest: EmbeddedCluster) -> None:
    error, highest = asked(newest.broker(1).port, api.HIGHEST_VERSIONS[api.API_VERSIONS])
    assert error == 0
    named = {api.API_NAMES[key]: version for key, version in highest.items() if key not in api.HIGHEST_VERSIONS}
    assert named == PASSES
    assert {key: version for key, version in highest.items() if key in api.HIGHEST_VERSIONS} == api.HIGHEST_VERSIONS


def test_a_controller_has_no_api_without_a_name_here(newest: EmbeddedCluster) -> None:
    error, highest = asked(newest.broker(1).controller_port, api.HIGHEST_VERSIONS[api.API_VERSIONS])
    assert error == 0
    assert highest.keys() <= api.API_NAMES.keys()
    assert {
        key: version for key, version in highest.items() if key in api.HIGHEST_VERSIONS
    }.items() <= api.HIGHEST_VERSIONS.items()


# --- misrouted clients ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(newest: EmbeddedCluster) -> Iterator[Gateway]:
    with Gateway(newest.bootstrap_servers) as gateway:
        yield gateway


def test_through_the_gateway_a_client_gets_all_that_the_broker_has(newest: EmbeddedCluster, gateway: Gateway) -> None:
    direct = asked(newest.broker(1).port, 5)
    assert asked(gateway.port, 5) == asked(gateway.broker_port(1), 5) == direct


def test_a_client_is_told_whether_a_brokers_listener_leads_to_the_node_that_it_means(
    newest: EmbeddedCluster, gateway: Gateway
) -> None:
    port, here = gateway.broker_port(1), newest.cluster_id
    assert asked(port, 5, here, 1)[0] == 0
    assert asked(port, 5, here, 2)[0] == REBOOTSTRAP_REQUIRED
    assert asked(port, 5, "another-cluster", 1)[0] == REBOOTSTRAP_REQUIRED
    assert asked(port, 5, None, 1)[0] == INVALID_REQUEST  # one without the other


def test_a_version_that_nobody_knows_yet_is_answered_with_what_there_is(gateway: Gateway) -> None:
    assert asked(gateway.broker_port(1), 6, "x", 1) == (api.UNSUPPORTED_VERSION, {api.API_VERSIONS: 5})
