# Volumes as the brokers themselves describe them: DescribeCluster says who is active, DescribeLogDirs (KIP-827) how
# large and how full each log dir's volume is. Each observation has connections of its own (gateway/kafka/client.py).
#
# The two answers may be of different worlds (a broker left in between). An incomplete answer is a failed observation,
# never a guess. Knows no limits and no gateway: addresses are the cluster's own.

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from gateway.kafka.client import (
    BrokerAddress,
    BrokerClient,
    BrokerConnection,
    NoAnswer,
    RequestRound,
    UnknownApi,
    error_text,
)
from policies.storage import Observation, ObservationFailed, Volume, VolumeKey
from protocol.admin.cluster import (
    BROKER_ENDPOINTS,
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    METADATA,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDir,
    MetadataRequest,
)
from protocol.api import CLUSTER_AUTHORIZATION_FAILED, KAFKA_STORAGE_ERROR, NONE

T = TypeVar("T")


class LogDirs:
    """A volume source. Constructing it connects nowhere, but reads the files that properties name.

    Args:
        properties: how to reach and trust the brokers, by librdkafka's names; see `gateway.kafka.access`.
        bootstrap_servers: the cluster's own `host:port,host:port`.
        timeout_s: for one observation in all.

    Raises:
        InvalidProperties: one line.
    """

    def __init__(self, properties: Mapping[str, str], bootstrap_servers: str, timeout_s: float = 10.0) -> None:
        self._client = BrokerClient(properties, bootstrap_servers, timeout_s)

    def observe(self) -> Observation:
        """All volumes of all active brokers, as they are now.

        Raises:
            ObservationFailed: one line; also when only one active broker's volumes are not known.
        """
        listing, answers = _ask(self._client, _describe_all)
        return make_observation(listing.cluster, answers, names_fenced=listing.names_fenced)

    def place(self, brokers: Collection[int]) -> dict[VolumeKey, frozenset[str]]:
        """The topics with a partition on each volume of these brokers, by broker id and log dir; a partition that moves
        between log dirs has one in either.

        Raises:
            ObservationFailed: one line; also when only one of them doesn't tell.
        """
        answers = _ask(self._client, functools.partial(_describe_places, wanted=frozenset(brokers)))
        return topics_by_volume(brokers, answers)

    def close(self) -> None:
        """End an observation that another thread is at, and all later ones, with ObservationFailed."""
        self._client.close()


def active_brokers(properties: Mapping[str, str], bootstrap_servers: str, timeout_s: float = 10.0) -> frozenset[int]:
    """Ids of the brokers that are registered and not fenced. Takes at most `timeout_s`.

    Raises:
        InvalidProperties: one line.
        ObservationFailed: one line; no broker answered, or none with the right answer.
    """
    client = BrokerClient(properties, bootstrap_servers, timeout_s)
    return active_ids(_ask(client, lambda asking: asking.request_any_broker(_describe_cluster)).cluster)


class _ClusterListing(NamedTuple):
    """`names_fenced`: fenced brokers are in it, so that others don't belong to the cluster."""

    cluster: DescribeClusterResponse
    names_fenced: bool


# --- asking -----------------------------------------------------------------------------------------------------------


def _ask(client: BrokerClient, question: Callable[[RequestRound], Awaitable[T]]) -> T:
    try:
        return client.run(question)
    except NoAnswer as error:
        raise ObservationFailed(str(error)) from error


async def _describe_all(asking: RequestRound) -> tuple[_ClusterListing, dict[int, DescribeLogDirsResponse]]:
    listing = await asking.request_any_broker(_describe_cluster, more_follows=True)
    addresses = _addresses_of(listing, active_ids(listing.cluster))
    return listing, await asking.request_all_brokers(addresses, _describe_log_dirs)


async def _describe_places(asking: RequestRound, wanted: frozenset[int]) -> dict[int, DescribeLogDirsResponse]:
    listing = await asking.request_any_broker(_describe_cluster, more_follows=True)
    return await asking.request_all_brokers(_addresses_of(listing, wanted), _describe_partitions)


def _addresses_of(listing: _ClusterListing, wanted: frozenset[int]) -> dict[int, BrokerAddress]:
    return {
        row.broker_id: BrokerAddress(row.host, row.port) for row in listing.cluster.brokers if row.broker_id in wanted
    }


async def _describe_partitions(connection: BrokerConnection) -> DescribeLogDirsResponse:
    return await connection.send_request(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None))


async def _describe_cluster(connection: BrokerConnection) -> _ClusterListing:
    try:
        answer = await connection.send_request(DESCRIBE_CLUSTER, DescribeClusterRequest(include_fenced_brokers=True))
        return _ClusterListing(answer, connection.supports_version(DESCRIBE_CLUSTER, 2))
    except UnknownApi:  # before Kafka 2.8; Metadata never names a fenced broker
        found = await connection.send_request(METADATA, MetadataRequest(()))
        brokers = tuple(DescribeClusterBroker(*row) for row in found.brokers)
        answer = DescribeClusterResponse(0, NONE, None, BROKER_ENDPOINTS, "", found.controller_id, brokers, 0)
        return _ClusterListing(answer, names_fenced=False)


async def _describe_log_dirs(connection: BrokerConnection) -> DescribeLogDirsResponse:
    # No topics: the sizes of volumes come all the same, and an answer with all partitions of a large broker has
    # megabytes.
    return await connection.send_request(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(()))


# --- what the answers say ---------------------------------------------------------------------------------------------


def active_ids(cluster: DescribeClusterResponse) -> frozenset[int]:
    """Ids of the active brokers.

    Version 2 of the answer (KIP-1073) marks fenced brokers where they were asked for; older versions never name them.

    Raises:
        ObservationFailed: the answer is an error, or names none.
    """
    if cluster.error_code:
        raise ObservationFailed(f"DescribeCluster: {_describe_error(cluster.error_code)}")
    brokers = frozenset(broker.broker_id for broker in cluster.brokers if not broker.is_fenced)
    if not brokers:
        raise ObservationFailed("DescribeCluster names no active broker")
    return brokers


def make_observation(
    cluster: DescribeClusterResponse, answers: Mapping[int, DescribeLogDirsResponse], *, names_fenced: bool = False
) -> Observation:
    """The observation from one DescribeCluster answer, in which fenced brokers are named or not, and the
    DescribeLogDirs answers, by broker id.

    An offline log dir (error 56, sizes -1) is left out and listed. Answers of other brokers than the active ones are
    ignored.

    Raises:
        ObservationFailed: an active broker's answer is missing, has errors, or lacks the sizes (before KIP-827).
    """
    brokers = active_ids(cluster)
    volumes: list[Volume] = []
    offline: list[tuple[int, str]] = []
    for broker_id in sorted(brokers):
        if broker_id not in answers:
            raise ObservationFailed(f"broker {broker_id} is active but did not describe its log dirs")
        answer = answers[broker_id]
        if answer.error_code:
            raise ObservationFailed(f"broker {broker_id}: DescribeLogDirs: {_describe_error(answer.error_code)}")
        if not answer.results:  # versions before 3 say this, too, to clients that may not ask
            raise ObservationFailed(f"broker {broker_id} describes no log dir: is Describe on the cluster allowed?")
        for log_dir in answer.results:
            if log_dir.error_code == KAFKA_STORAGE_ERROR:
                offline.append((broker_id, log_dir.log_dir))
            elif log_dir.error_code:
                raise ObservationFailed(
                    f"broker {broker_id}: log dir {log_dir.log_dir}: {_describe_error(log_dir.error_code)}"
                )
            else:
                volumes.append(_make_volume(broker_id, log_dir))
    registered = frozenset(row.broker_id for row in cluster.brokers) if names_fenced else None
    return Observation(brokers, tuple(volumes), tuple(offline), registered)


def topics_by_volume(
    brokers: Iterable[int], answers: Mapping[int, DescribeLogDirsResponse]
) -> dict[VolumeKey, frozenset[str]]:
    """The topics of each log dir that isn't offline, by broker id and log dir.

    Raises:
        ObservationFailed: a broker's answer is missing or is an error.
    """
    found = {}
    for broker_id in brokers:
        answer = answers.get(broker_id)
        if answer is None or answer.error_code:
            why = "no answer" if answer is None else _describe_error(answer.error_code)
            raise ObservationFailed(f"broker {broker_id}: DescribeLogDirs: {why}")
        for log_dir in answer.results:
            if not log_dir.error_code:
                topics = frozenset(topic.name for topic in log_dir.topics if topic.partitions)
                found[broker_id, log_dir.log_dir] = topics
    return found


def _make_volume(broker_id: int, log_dir: LogDir) -> Volume:
    name, total, usable = log_dir.log_dir, log_dir.total_bytes, log_dir.usable_bytes
    if total < 0 or usable < 0:
        raise ObservationFailed(
            f"broker {broker_id} does not tell total and usable bytes of {name}: it has no KIP-827 (Kafka 3.3)"
        )
    if total == 0:
        raise ObservationFailed(f"broker {broker_id}: the volume of {name} has 0 bytes in total, so nothing is known")
    return Volume(broker_id, name, total, usable)


def _describe_error(code: int) -> str:
    right = ": allow this principal Describe on the cluster" if code == CLUSTER_AUTHORIZATION_FAILED else ""
    return error_text(code) + right
