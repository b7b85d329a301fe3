# What happens when something dies under load: a broker, a worker, the control process, the usage topic, the gateway
# itself. Producers get everything into the log exactly once and in order, and the books say what they know: nothing
# missing that was counted, nothing counted twice, and `lost` where a worker died with what it had not told yet.

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from gateway import embedded
from gateway.embedded import EmbeddedCluster, wait_for
from gateway.kafka.describe import describe_topic
from policies import usage
from protocol import api
from tests.gateway.data import play
from tests.integration.gateways import (
    USAGE_TOPIC,
    Gateway,
    Record,
    Sum,
    assert_complete,
    create_topic,
    end_offsets,
    lives,
    log_bytes,
    sums,
    total,
)
from tests.integration.limits.steady import RECOVERY_S, Steady, assert_in_log_once_and_in_order
from tests.integration.wire import Wire


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster of this file's own, because its broker is killed."""
    with EmbeddedCluster(1) as running:
        yield running


@pytest.fixture
def own(cluster: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    yield cluster
    if not cluster.broker(1).is_running:
        cluster.start_broker(1)


@pytest.fixture
def topic(own: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    return create_topic(own, f"resilience-{request.node.name.removeprefix('test_')[:60]}")


def wait_used(gateway: Gateway, kafka: EmbeddedCluster, topic: str, want: Sum) -> list[Record]:
    """The usage topic's records once they say that exactly this was accepted. (/metrics forgets with its process.)"""
    found: list[Record] = []

    def told() -> bool:
        found[:] = gateway.published(kafka)
        said = total(sums(found).get(topic, {}), "accepted")
        assert said.messages <= want.messages, f"{said} of {want}"
        return said == want

    try:
        wait_for("", told, RECOVERY_S, every_s=0.3)
    except embedded.EmbeddedError:
        said = total(sums(found).get(topic, {}))
        raise AssertionError(f"{topic}: the usage topic says {said} of {want}: {sums(found).get(topic)}") from None
    return found


def in_log(kafka: EmbeddedCluster, topic: str) -> Sum:
    return Sum(log_bytes(kafka, topic), end_offsets(kafka, topic))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(f"process {pid} to be gone", lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    """Zombies do not: their parent may be stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- a broker ---------------------------------------------------------------------------------------------------------


def test_a_broker_killed_under_load_costs_nothing(own: EmbeddedCluster, topic: str) -> None:
    """Meanwhile clients are reset. Of an end before the first answer some think that TLS is missing."""
    with Gateway(own.bootstrap_servers, node_ids=2) as gateway, Steady(gateway.bootstrap, topic) as producer:
        assert not gateway.listens(gateway.broker_port(2)), "there is no such broker"
        own.kill_broker(1)
        wait_for("the gateway to notice", lambda: gateway.metric("disconnects_total", cause="upstream") > 0)
        for port in (gateway.broker_port(1), gateway.port):
            with Wire(port) as wire:
                wire.sock.sendall(play.other_request(1, api.API_VERSIONS))
                with pytest.raises(ConnectionResetError):
                    wire.sock.recv(1)
        wait_for("the counts", lambda: gateway.metric("upstream_failed_total") >= 2)
        said = [line for line in gateway.log().splitlines() if "broker 1" in line and "can't be reached" in line]
        assert len(said) == 1, gateway.log()  # once in a while, not for every client
        assert "Connection refused" in said[0]
        own.start_broker(1)
        producer.wait_for(300)
        count = producer.finish()

        assert_in_log_once_and_in_order(own, topic, count)
        # What was appended and not answered came again and was answered then: accepted, once.
        records = wait_used(gateway, own, topic, in_log(own, topic))
        assert_complete(records)
        assert gateway.counted_of(topic, "accepted") == in_log(own, topic)


def test_a_gateway_may_be_started_before_kafka() -> None:
    port = embedded.find_free_port(2)
    upstream = f"{embedded.HOST}:{port}"
    settings = {"upstream": {"bootstrap_servers": upstream, "metadata_refresh": "1s"}}
    with Gateway(upstream, settings, wait=False) as gateway:
        wait_for("the bootstrap listener", lambda: gateway.listens(gateway.port), RECOVERY_S)
        with Wire(gateway.port, RECOVERY_S) as wire:  # the port is there before the worker is
            wire.sock.sendall(play.other_request(1, api.API_VERSIONS))
            assert wire.ends(), "closed, as a client would be by a broker that goes away"
        assert "the cluster has not answered yet" in gateway.problems()
        assert gateway.metric("upstream_up") == 0
        with EmbeddedCluster(1, port=port) as kafka:
            wait_for("readiness", gateway.ready, RECOVERY_S)
            assert gateway.metric("upstream_up") == 1
            topic = create_topic(kafka, "late")
            with Steady(gateway.bootstrap, topic) as producer:
                count = producer.finish()
            assert_in_log_once_and_in_order(kafka, topic, count)
            assert_complete(wait_used(gateway, kafka, topic, in_log(kafka, topic)))
            gateway.stop()


# --- a process of the gateway -----------------------------------------------------------------------------------------


def test_a_killed_worker_is_started_again_and_its_gap_is_on_record(own: EmbeddedCluster, topic: str) -> None:
    with Gateway(own.bootstrap_servers) as gateway, Steady(gateway.bootstrap, topic, in_flight=5) as producer:
        wait_for("a first interval", lambda: gateway.counted_of(topic, "accepted").messages > 0)
        first = gateway.child("gateway.data")
        told = partial(gateway.counted_of, topic, "accepted")
        wait_for("answers that it has not told", lambda: producer.acknowledged > told().messages, every_s=0.01)
        kill(first)
        wait_for("another worker", lambda: gateway.child("gateway.data") not in (0, first), RECOVERY_S)
        producer.wait_for(300)
        count = producer.finish()
        assert_in_log_once_and_in_order(own, topic, count)

        wait_for("readiness", gateway.ready)
        assert gateway.metric("worker_restarts_total", worker="0") == 1
        assert gateway.metric("workers_lost_total") == 1
        assert gateway.metric("worker_up", worker="0") == 1

        # What the dead worker had not told is known by nobody; everything else is, and /metrics has the same.
        gateway.stop()
        records = gateway.wait_published(own)
        dead, alive = sorted(lives(records).values(), key=lambda own: own[0]["start_ms"])
        assert dead[-1]["kind"] == usage.LOST
        assert dead[-1]["seq"] == dead[-2]["seq"], "the last interval that is known"
        assert alive[-1]["final"]
        assert not any(record["kind"] == usage.LOST for record in alive)
        accepted = total(sums(records)[topic], "accepted")
        assert 0 < accepted.messages < in_log(own, topic).messages
        assert accepted.bytes <= in_log(own, topic).bytes


def test_traffic_goes_on_while_control_is_dead(own: EmbeddedCluster, topic: str) -> None:
    """The parent is stopped meanwhile, so that control stays dead for as long as it takes to see it."""
    size = play.size_of()
    with Gateway(own.bootstrap_servers) as gateway, Wire(gateway.broker_port(1)) as wire:
        delivered = 0

        def deliver(count: int) -> None:
            nonlocal delivered
            for _ in range(count):
                assert wire.produce(play.request(delivered, {topic: [0]}))[1] == {(topic, 0): (0, None)}
                delivered += 1

        deliver(100)
        gateway.process.send_signal(signal.SIGSTOP)
        try:
            kill(gateway.child("gateway.control"))
            until = time.monotonic() + 2.5  # several intervals
            while time.monotonic() < until or delivered <= 200:  # Wire ends it where nothing is delivered
                deliver(50)
                time.sleep(0.1)
            while_dead = delivered
        finally:
            gateway.process.send_signal(signal.SIGCONT)
        wait_for("readiness", gateway.ready, RECOVERY_S)
        deliver(100)
        with Wire(gateway.broker_port(1)) as other:
            assert other.produce(play.request(1, {topic: [0]}))[1] == {(topic, 0): (0, None)}
        delivered += 1

        assert in_log(own, topic) == Sum(delivered * size, delivered)
        records = wait_used(gateway, own, topic, Sum(delivered * size, delivered))
        assert_complete(records)
        assert len(lives(records)) == 1, "the worker lived on"
        assert not any(record["kind"] == usage.LOST for record in records)
        # Its counters begin anew, as those of any restarted process; what the worker had kept is in them.
        assert gateway.counted_of(topic, "accepted").messages >= while_dead - 100


# --- followers --------------------------------------------------------------------------------------------------------


def test_what_is_in_the_log_counts_though_the_broker_did_not_wait_for_its_followers(kafka3: EmbeddedCluster) -> None:
    """It answers REQUEST_TIMED_OUT behind the append, as soon as the client wants."""
    topic = create_topic(kafka3, "followed.by.none")
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})
    leader = admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
    limit = {"groups": {"silver": {"publishRateInBytes": "1MB"}}, "tenants": {"followed": "silver"}}
    frame = play.request(1, {topic: [0]}, values=(bytes(50_000),), timeout_ms=0)
    codes: list[int] = []
    with (
        Gateway(kafka3.bootstrap_servers, {"resource_groups": limit}, node_ids=3) as gateway,
        Wire(gateway.broker_port(leader)) as wire,
    ):
        throttled = 0
        while throttled < 5 and len(codes) < 400:
            throttle_ms, rows = wire.produce(frame)
            codes.append(rows[topic, 0][0])
            throttled += throttle_ms > 0
    assert codes.count(api.REQUEST_TIMED_OUT) > len(codes) / 2
    assert throttled == 5, f"{len(codes) * 50_000} bytes without a limit"
    wait_for("the followers", lambda: end_offsets(kafka3, topic) == len(codes))


# --- the usage topic --------------------------------------------------------------------------------------------------


@pytest.mark.full  # a broker that is away altogether, and the spool meanwhile: the tests beside it
def test_while_the_usage_topic_is_away_the_spool_grows(kafka3: EmbeddedCluster) -> None:
    """Its only replica is on a broker that dies; producing to the others goes on, and is on record later."""
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})
    usage_topic, topic = "usage-on-3", "produced-on-1"
    new = [NewTopic(usage_topic, 1, replica_assignment=[[3]]), NewTopic(topic, 1, replica_assignment=[[1]])]
    for future in admin.create_topics(new).values():
        future.result(120)
    settings = {"usage_log": {"topic": usage_topic}}
    with (
        Gateway(kafka3.bootstrap_servers, settings, node_ids=3) as gateway,
        Steady(gateway.bootstrap, topic) as producer,
    ):
        wait_for("the usage topic", lambda: gateway.metric("usage_log_records_published_total") > 0)
        kafka3.kill_broker(3)
        try:
            wait_for("the spool to grow", lambda: gateway.metric("usage_log_backlog_bytes") > 2000)
            producer.wait_for(300)  # nobody who produces notices
        finally:
            kafka3.start_broker(3)
        count = producer.finish()
        assert_in_log_once_and_in_order(kafka3, topic, count)
        assert_complete(wait_used(gateway, kafka3, topic, in_log(kafka3, topic)))
        wait_for("the backlog to go", lambda: gateway.metric("usage_log_backlog_bytes") == 0, RECOVERY_S)


def test_a_deleted_usage_topic_is_made_again(own: EmbeddedCluster, topic: str) -> None:
    """Its records are gone with it; everything from then on is in the new one, and all of it in the spool."""
    with Gateway(own.bootstrap_servers) as gateway, Steady(gateway.bootstrap, topic) as producer:
        wait_for("the usage topic", lambda: gateway.metric("usage_log_records_published_total") > 0)
        admin = AdminClient({"bootstrap.servers": own.bootstrap_servers})
        first = describe_topic(admin, USAGE_TOPIC, RECOVERY_S).topic_id
        admin.delete_topics([USAGE_TOPIC])[USAGE_TOPIC].result(120)

        def in_another() -> bool:
            """Metadata may still have the deleted one; and a stop waits for only so long for records to get there."""
            try:
                found = describe_topic(admin, USAGE_TOPIC, RECOVERY_S).topic_id
            except KafkaException:
                return False
            return found != first and bool(gateway.published(own))

        wait_for("records in another one", in_another, 2 * RECOVERY_S)
        producer.wait_for(100)
        count = producer.finish()
        assert_in_log_once_and_in_order(own, topic, count)

        gateway.settle(topic, in_log(own, topic), "accepted")
        gateway.stop()
        spooled = gateway.spooled()
        assert_complete(spooled)
        assert total(sums(spooled)[topic], "accepted") == in_log(own, topic)
        published = {usage.record_identity(record) for record in gateway.published(own)}
        missing = [record["seq"] for record in spooled if usage.record_identity(record) not in published]
        assert missing == list(range(len(missing))), "only what was in the deleted topic"


def test_unpublished_records_go_out_after_the_next_start(own: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    """Stopped while Kafka is away: exit code 0 all the same, and the books are complete once both are back."""
    settings = {"usage_log": {"spool_dir": str(tmp_path / "spool")}}
    with Gateway(own.bootstrap_servers, settings) as first:
        with Steady(first.bootstrap, topic) as producer:
            producer.wait_for(300)
            producer.finish()
        expected = in_log(own, topic)
        first.settle(topic, expected, "accepted")
        with Wire(first.broker_port(1)) as wire:
            assert wire.produce(play.request(1, {topic: [0]}))[1] == {(topic, 0): (0, None)}
        own.kill_broker(1)
        first.stop()
        spooled = {usage.record_identity(record) for record in first.spooled()}
        own.start_broker(1)
        with Gateway(own.bootstrap_servers, settings) as second:
            wait_for(
                "the rest",
                lambda: spooled == {usage.record_identity(record) for record in first.published(own)},
                RECOVERY_S,
                every_s=0.3,
            )
            second.stop()
        records = first.published(own)
        assert_complete(records)
        assert total(sums(records)[topic], "accepted") == in_log(own, topic)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_sigterm_under_load_drains(own: EmbeddedCluster, topic: str) -> None:
    """Everything that was forwarded is answered before connections close, so no client has to guess."""
    wires: list[Wire] = []
    with Gateway(own.bootstrap_servers) as gateway:
        try:
            wires += [Wire(gateway.broker_port(1)) for _ in range(8)]
            answered = [0] * len(wires)
            started = threading.Barrier(len(wires) + 1)

            def drive(number: int) -> None:
                wire = wires[number]
                started.wait()
                try:
                    for turn in range(100_000):
                        if turn >= 5:  # so many in flight, as clients have it
                            assert play.decode_answer(wire.receive())[2] == {(topic, 0): (0, None)}
                            answered[number] += 1
                        wire.send(play.request(turn, {topic: [0]}))
                    raise AssertionError("the gateway did not end")
                except (ConnectionError, BrokenPipeError):
                    pass
                try:
                    while True:
                        wire.receive()
                        answered[number] += 1
                except OSError:
                    pass

            threads = [threading.Thread(target=drive, args=(number,)) for number in range(len(wires))]
            for thread in threads:
                thread.start()
            started.wait()
            wait_for("traffic", lambda: all(count > 20 for count in answered))
            gateway.stop()
            for thread in threads:
                thread.join()
        finally:
            for wire in wires:
                wire.sock.close()

        records = gateway.published(own)
        assert_complete(records)
        assert records[-1]["final"] or any(record["final"] for record in records)
        found = sums(records)[topic]
        assert total(found, "accepted") == in_log(own, topic)
        assert total(found, "unanswered") == Sum()


def test_sigterm_while_connections_are_muted(own: EmbeddedCluster, topic: str) -> None:
    """A request parked behind a mute was never forwarded: it is discarded, and counted as that."""
    limits = {"thresholds": {"total.bytes.in.per.sec.threshold": 1}}
    with Gateway(own.bootstrap_servers, limits) as gateway, Wire(gateway.broker_port(1)) as wire:
        sent = answered = rejected = 0
        until = time.monotonic() + RECOVERY_S
        while not rejected and time.monotonic() < until:
            throttle_ms, rows = wire.produce(play.request(sent, {topic: [0]}))
            sent, answered = sent + 1, answered + 1
            code, text = rows[topic, 0]
            rejected += code != 0
            time.sleep(0 if rejected else 0.02)  # what follows must find the mute on
        assert code == 19
        assert f"topic {topic} is over its threshold" in str(text)
        assert throttle_ms > 0
        parked = 3
        # In one piece: what is read with a mute already on is parked, and nothing is read after that.
        wire.send(b"".join(play.request(sent + number, {topic: [0]}) for number in range(parked)))
        wait_for("the mute", lambda: gateway.metric("muted_connections") == 1)
        gateway.stop()
        assert wire.ends()
        found = sums(gateway.published(own))[topic]
        size = play.size_of()
        accepted = answered - rejected
        assert total(found, "accepted") == Sum(accepted * size, accepted) == in_log(own, topic)
        assert total(found, "rejected") == Sum(rejected * size, rejected)
        assert total(found, "discarded") == Sum(parked * size, parked)
