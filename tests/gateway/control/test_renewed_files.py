# Control's clients of Kafka once the files of their certificates have been renewed: each is made anew.

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from gateway.control.cluster import metadata
from gateway.control.cluster.metadata import AdminSource, ClusterUnreachable
from gateway.control.fleet.exchange import writer
from gateway.control.fleet.exchange.exchange import UsageExchange
from gateway.control.metrics import GatewayMetrics
from gateway.control.policies import transactions
from gateway.control.policies.topic_store import TopicStore
from gateway.control.usage import usage_publisher
from gateway.control.usage.usage_publisher import UsagePublisher
from gateway.kafka import internal_topic, topic_consumer
from gateway.kafka.client_files import RenewableClient
from gateway.kafka.internal_topic import InternalTopic, TopicPresent, TopicSpec
from gateway.storage.snapshots import SnapshotReader
from tests.certificates import Authority

FOUND = TopicPresent("id", frozenset({0}))


class Owned:
    """A client's certificate in a file, which is renewed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.properties = {"bootstrap.servers": "127.0.0.1:1", "ssl.certificate.location": str(path)}
        self.renew("first")

    def renew(self, text: str) -> None:
        fresh = self.path.with_name("fresh")
        fresh.write_text(text)
        fresh.replace(self.path)


@pytest.fixture
def owned(tmp_path: Path) -> Owned:
    return Owned(tmp_path / "own.pem")


def test_another_client_is_made_once_for_each_change_and_when_the_files_can_be_used(owned: Owned) -> None:
    made = [1, KafkaException("the key is another one's"), 2, KafkaException("no such file")]
    renewable: RenewableClient[int] = RenewableClient(owned.properties, Mock(side_effect=made))
    assert (renewable.renew(), renewable.client) == (False, 1)
    owned.renew("second")
    assert (renewable.renew(), renewable.client) == (False, 1)
    assert (renewable.renew(), renewable.client) == (True, 2)
    assert (renewable.renew(), renewable.client) == (False, 2)
    owned.path.unlink()
    assert (renewable.renew(), renewable.client) == (False, 2)


@pytest.mark.parametrize("store", ["ssl.ca.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location"])
def test_any_file_that_librdkafka_reads_once_counts(owned: Owned, store: str) -> None:
    renewable: RenewableClient[int] = RenewableClient({store: str(owned.path)}, Mock(side_effect=[1, 2]))
    owned.renew("second")
    assert (renewable.renew(), renewable.client) == (True, 2)


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[tuple[Authority, int, list[str]]]:
    """A CA, the port of a server that wants a certificate of it and ends each connection, and whose these were."""
    authority, names = Authority(tmp_path), list[str]()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(client, server_side=True) as secured:
                    found: Any = secured.getpeercert()
                    names.extend(value for part in found["subject"] for _, value in part)
            except OSError:
                client.close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    yield authority, listening.getsockname()[1], names
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    serving.join()


def test_the_cluster_is_asked_with_a_renewed_certificate(
    seen: tuple[Authority, int, list[str]], owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, port, names = seen
    monkeypatch.setattr(metadata, "REQUEST_TIMEOUT_S", 1.0)

    def sign(name: str) -> None:
        owned.renew("".join(path.read_text() for path in authority.sign(name)))

    sign("former")
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(authority.certificate), "log_level": 0}
    reach = {"bootstrap.servers": f"localhost:{port}", "ssl.key.location": str(owned.path)}
    source = AdminSource({**owned.properties, **tls, **reach}, topic_ids=False)
    with pytest.raises(ClusterUnreachable):
        source._fetch_blocking()
    assert set(names) == {"former"}
    sign("present")
    for _ in range(20):
        with pytest.raises(ClusterUnreachable):
            source._fetch_blocking()
        if "present" in names:
            return
    pytest.fail(f"only {set(names)} came")


def look_up(owned: Owned) -> Callable[[], object]:
    topic = InternalTopic(owned.properties, "t", TopicSpec({}))
    return topic.lookup_topic


def publish(owned: Owned) -> Callable[[], object]:
    return UsagePublisher(Mock(), owned.properties, "t", 1, None, GatewayMetrics())._prepare_producer


def write_policies(owned: Owned) -> Callable[[], object]:
    writer = transactions.PolicyTransactions(owned.properties, "t")
    return lambda: writer.open(0.0)


def read_policies(owned: Owned) -> Callable[[], object]:
    return TopicStore(owned.properties, "t", {})._check_topic


def report_use(owned: Owned) -> Callable[[], object]:
    exchange = UsageExchange(owned.properties, "t", "gw", Mock())

    def follow() -> None:
        exchange._follow_topic(FOUND)
        assert not exchange._reader.is_reading

    return follow


def read_use(owned: Owned) -> Callable[[], object]:
    exchange = UsageExchange(owned.properties, "t", "gw", Mock())

    def follow() -> None:
        exchange._follow_topic(FOUND)
        if exchange._reader._is_stale:
            exchange._reader._is_stale = False
            exchange._reader._open_consumer()

    return follow


def read_volumes(owned: Owned) -> Callable[[], object]:
    reader = SnapshotReader(owned.properties, "t")
    return lambda: reader._on_topic_found(FOUND)


@pytest.mark.parametrize(
    ("prepare", "module", "name"),
    [
        (look_up, internal_topic, "make_admin_client"),
        (publish, usage_publisher, "Producer"),
        (write_policies, transactions, "Producer"),
        (read_policies, topic_consumer, "Consumer"),
        (report_use, writer, "Producer"),
        (read_use, topic_consumer, "Consumer"),
        (read_volumes, topic_consumer, "Consumer"),
    ],
)
def test_a_client_whose_files_have_changed_is_replaced(
    owned: Owned, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Owned], Callable[[], object]], module: Any,
    name: str,
) -> None:  # fmt: skip
    made: list[Mock] = []

    def make(_: object) -> Mock:
        made.append(MagicMock(poll=lambda _: None))
        made[-1].__bool__.return_value = False  # librdkafka's clients have a length, that of a queue
        return made[-1]

    for each in (internal_topic, usage_publisher, transactions, topic_consumer, writer):
        for client in ("Producer", "Consumer", "make_admin_client"):
            if hasattr(each, client):
                monkeypatch.setattr(each, client, make if (each, client) == (module, name) else lambda _: MagicMock())
    monkeypatch.setattr(internal_topic, "describe_topic", lambda *_: Mock(topic_id="id", partitions=[Mock(id=0)]))
    act = prepare(owned)
    act()
    act()
    first = len(made)
    assert first
    owned.renew("second")
    act()
    assert len(made) == first + 1
    act()
    assert len(made) == first + 1


def test_policies_are_written_while_a_file_is_missing(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = MagicMock()
    monkeypatch.setattr(transactions, "Producer", Mock(side_effect=[producer, KafkaException(KafkaError(-186))]))
    writer = transactions.PolicyTransactions(owned.properties, "t")
    writer.open(0.0)
    owned.path.unlink()
    writer.open(0.0)
    producer.purge.assert_not_called()
    writer.commit([], 0.0)
    producer.commit_transaction.assert_called_once()


def test_volume_snapshots_are_not_read_again_by_consumers_that_got_none(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer of librdkafka's that has got no record yet knows no position."""
    record = Mock(**{"error.return_value": None, "partition.return_value": 0, "offset.return_value": 6})
    record.key.return_value, record.value.return_value = b'{"broker":1}', None
    made: list[MagicMock] = []

    def make(*_: object) -> MagicMock:
        made.append(MagicMock())
        made[-1].poll.side_effect = [record, None] if len(made) == 1 else lambda _: None
        return made[-1]

    monkeypatch.setattr(topic_consumer, "Consumer", make)
    reader = SnapshotReader(owned.properties, "t")
    found = TopicPresent("id", frozenset({0, 1}))
    monkeypatch.setattr(reader._topic, "poll_lookup", Mock(side_effect=[found, None]))
    reader.poll_snapshots(0.0)
    for text in ("second", "third"):
        owned.renew(text)
        reader._on_topic_found(found)
    offsets = [[place.offset for place in each.assign.call_args.args[0]] for each in made]
    assert offsets == [[OFFSET_BEGINNING] * 2, [7, OFFSET_BEGINNING], [7, OFFSET_BEGINNING]]
