# What is done to a running gateway and its neighbours, a function each: it does the fault, sees it work, lets traffic
# go on under it where it must, and heals. Knows how to break things; what must hold afterwards is checker.py's.

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Iterator
from functools import partial

from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition

from gateway import embedded
from gateway.embedded import HOST, wait_for
from tests.chaos.scene import BROKERS, PARTITIONS, RECOVERY_S, WORKERS, Fault, Scene
from tests.clients import processes

SOME = 150  # records of each producer, to see that traffic goes on
AWAY_S = 6.0  # beyond the brokers' session timeout of 3 s: leaders move
DEAF_S = 5.0
CONNECTIONS = 5_000
PER_ADDRESS = 100  # of these from each address
RESETS = 8
HOUR_S = 3600


def nothing(scene: Scene) -> None:
    """What the limits alone do."""
    scene.progress(SOME)


# --- processes --------------------------------------------------------------------------------------------------------


def kill_broker(scene: Scene, *nodes: int) -> None:
    """One after the other."""
    for node in nodes:
        scene.kafka.kill_broker(node)
        time.sleep(AWAY_S)
        scene.kafka.start_broker(node)
        wait_in_sync(scene)
    scene.progress(SOME)


def replaced(scene: Scene, number: int, pid: int) -> bool:
    """Whether that worker is another process by now."""
    return scene.gateway.worker(number) not in (0, pid)


def kill_worker(scene: Scene, *numbers: int) -> None:
    for number in numbers:
        first = scene.gateway.worker(number)
        os.kill(first, signal.SIGKILL)
        wait_for("another worker", partial(replaced, scene, number, first), RECOVERY_S)
        scene.progress(SOME)


def kill_worker_unseen(scene: Scene, number: int) -> None:
    """Control learns of it when there is another worker already."""
    first = scene.gateway.worker(number)
    with stopped(scene.gateway.child("gateway.control")):
        os.kill(first, signal.SIGKILL)
        wait_for("another worker", partial(replaced, scene, number, first), RECOVERY_S)
        time.sleep(1.0)
    scene.progress(SOME)
    up = partial(scene.gateway.metric, "worker_up", worker=str(number))
    wait_for("control to know the other worker", lambda: up() == 1, RECOVERY_S)
    scene.progress(SOME)
    assert up() == 1, "control has lost the other worker again"


def kill_control(scene: Scene, times: int) -> None:
    for _ in range(times):
        os.kill(scene.gateway.child("gateway.control"), signal.SIGKILL)
        scene.progress(SOME)
        wait_for("another control", lambda: scene.gateway.child("gateway.control") > 0 and scene.gateway.ready(), 60)
        scene.control_since_ms = round(time.time() * 1000)


def kill_parent(scene: Scene) -> None:
    """Its children end with it: nobody tells them."""
    gateway = scene.gateway
    family = gateway.pids()
    os.kill(gateway.process.pid, signal.SIGKILL)
    embedded.reap_process(gateway.process)
    wait_for("the family to be gone", lambda: not any((processes.PROC / str(pid)).exists() for pid in family), 10)
    time.sleep(1.0)
    gateway.again()
    scene.control_since_ms = round(time.time() * 1000)


def stop_broker(scene: Scene) -> None:
    """It hangs, connections and all, and comes back to a cluster that has gone on without it."""
    with stopped(scene.kafka.broker(3).pid):
        time.sleep(AWAY_S)
    wait_in_sync(scene)
    scene.progress(SOME)


def stop_control(scene: Scene) -> None:
    with stopped(scene.gateway.child("gateway.control")):
        started = time.monotonic()
        scene.progress(SOME)
        time.sleep(max(0.0, DEAF_S - time.monotonic() + started))


# --- the network ------------------------------------------------------------------------------------------------------


def reset(scene: Scene, side: str, times: int) -> None:
    ways = scene.ways(side)
    for _ in range(times):
        with scene.proxy.toxic(ways, "reset_peer", ("downstream",), timeout=0):
            time.sleep(0.3)
        scene.progress(SOME // 3)


def slice_up(scene: Scene, side: str) -> None:
    """Every read gets a byte, or what has come together meanwhile."""
    with scene.proxy.toxic(scene.ways(side), "slicer", average_size=1, size_variation=0, delay=0):
        scene.progress(SOME // 5)


def slow_down(scene: Scene) -> None:
    """On both sides, so four times for one request and its answer."""
    with scene.proxy.toxic([*scene.ways("client"), *scene.ways("broker")], "latency", latency=40, jitter=20):
        scene.progress(2 * SOME)


# --- what the gateway stands on ---------------------------------------------------------------------------------------


def delete_topics(scene: Scene) -> None:
    """Usage, policies, resource usage: all of the gateway's own. Policies can't be changed then."""
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers, "log_level": 0})
    wait_for("usage records", lambda: scene.gateway.metric("usage_log_records_published_total") > 0)
    with scene.squeeze.pause():
        for future in admin.delete_topics(scene.internal).values():
            future.result(120)
        scene.progress(SOME)
        usage = scene.internal[0]
        wait_for("the usage topic", lambda: usage in admin.list_topics(timeout=10).topics, RECOVERY_S)
        before = scene.gateway.metric("usage_log_records_published_total")
        wait_for(
            "records in it", lambda: scene.gateway.metric("usage_log_records_published_total") > before + 4, RECOVERY_S
        )


def step_clock(scene: Scene) -> None:
    """An hour ahead, then two back, then right again."""
    for ahead_s in (HOUR_S, -HOUR_S, 0):
        scene.set_clock(ahead_s)
        time.sleep(2.5)  # libfaketime looks once a second
        scene.progress(SOME)


def exhaust_descriptors(scene: Scene) -> None:
    """First a worker's, then control's; connections that stand go on, new ones come when there is room again."""
    gateway = scene.gateway
    for pid in (gateway.worker(0), gateway.child("gateway.control")):
        with few_descriptors(pid), contextlib.ExitStack() as held:
            for _ in range(20):
                sock = socket.create_connection((HOST, gateway.broker_port(1)), 30)
                held.callback(sock.close)
            scene.progress(SOME)
    wait_for("room", lambda: exchanges_versions(gateway.broker_port(1)), RECOVERY_S)
    said = gateway.log().count("too many open files") + int(gateway.metric("accept_pauses_total"))
    assert said, "nobody ran out of descriptors"


def fill_spool(scene: Scene) -> None:
    """No byte left for seconds; intervals wait with their worker."""
    filler = scene.disk.path / "other-data"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    wait_for("the spool to complain", lambda: scene.gateway.metric("usage_log_spool_errors_total") > 0, RECOVERY_S)
    scene.progress(2 * SOME)
    filler.unlink()
    wait_for("intervals to be written", lambda: scene.gateway.metric("usage_log_queued_intervals") == 0, RECOVERY_S)


# --- the cluster and its clients --------------------------------------------------------------------------------------


def move_leaders(scene: Scene) -> None:
    """Each partition goes round the brokers twice, by another order of its replicas and a preferred election."""
    direct = scene.kafka.bootstrap_servers
    mover = KafkaAdminClient(bootstrap_servers=direct)
    admin = AdminClient({"bootstrap.servers": direct, "log_level": 0})
    topics = list(scene.topics.values())
    try:
        for turn in range(2 * BROKERS):
            orders = {n: [(n + turn + k) % BROKERS + 1 for k in range(BROKERS)] for n in range(PARTITIONS)}
            mover.alter_partition_reassignments({Partition(t, n): orders[n] for t in topics for n in orders})
            wait_for("the new order", lambda: not mover.list_partition_reassignments(), RECOVERY_S)
            admin.elect_leaders(ElectionType.PREFERRED, [Place(t, n) for t in topics for n in orders]).result(120)
            wait_for("new leaders", partial(led_as, admin, topics, orders), RECOVERY_S)
            scene.progress(SOME // 3)
    finally:
        mover.close()


def hold_connections(scene: Scene) -> None:
    """Thousands that have each asked once and then say nothing, from many addresses; all end at once."""
    gateway = scene.gateway
    before = [resident(pid) for pid in gateway.workers().values()]
    standing = gateway.metric("connections")
    with contextlib.ExitStack() as held:
        socks = []
        for number in range(CONNECTIONS):
            sock = socket.socket()
            held.callback(sock.close)
            sock.settimeout(60)
            sock.bind((f"127.0.1.{1 + number // PER_ADDRESS}", 0))
            sock.connect((HOST, gateway.broker_port(1 + number % BROKERS)))
            sock.sendall(API_VERSIONS)
            socks.append(sock)
        for sock in socks:
            assert sock.recv(4), "the gateway ended a connection that had asked for versions"
        wait_for("all to stand", lambda: gateway.metric("connections") >= standing + CONNECTIONS, RECOVERY_S)
        after = [resident(pid) for pid in gateway.workers().values()]
        scene.progress(SOME)
    wait_for("all to be gone", lambda: gateway.metric("connections") < standing + 100, RECOVERY_S)
    scene.note = f"{(sum(after) - sum(before)) / CONNECTIONS / 1024:.1f} KiB of the workers for each connection"


# --- tools ------------------------------------------------------------------------------------------------------------

# ApiVersions v0: size, key, version, correlation id, no client id
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def exchanges_versions(port: int) -> bool:
    """Whether a new connection gets an answer."""
    try:
        with socket.create_connection((HOST, port), 5) as sock:
            sock.sendall(API_VERSIONS)
            return bool(sock.recv(4))
    except OSError:
        return False


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT whatever happens."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def few_descriptors(pid: int) -> Iterator[None]:
    """That process may open two more files."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir(processes.PROC / str(pid) / "fd"))) + 3
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def resident(pid: int) -> int:
    """Bytes in memory."""
    return int((processes.PROC / str(pid) / "statm").read_text().split()[1]) * resource.getpagesize()


def wait_in_sync(scene: Scene) -> None:
    """Until every replica of the scene's topics has caught up."""
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers, "log_level": 0})

    def in_sync() -> bool:
        found = admin.list_topics(timeout=10).topics
        return all(len(part.isrs) == BROKERS for t in scene.topics.values() for part in found[t].partitions.values())

    wait_for("replicas to catch up", in_sync, RECOVERY_S, every_s=0.3)


def led_as(admin: AdminClient, topics: list[str], orders: dict[int, list[int]]) -> bool:
    found = admin.list_topics(timeout=10).topics
    return all(found[t].partitions[n].leader == order[0] for t in topics for n, order in orders.items())


FAULTS = (
    Fault("none", nothing),
    Fault("broker killed, twice", lambda scene: kill_broker(scene, 1, 2)),
    Fault("broker stopped for 6 s", stop_broker),
    Fault("leaders moved, 6 times", move_leaders),
    Fault("each worker killed", lambda scene: kill_worker(scene, *range(WORKERS)), kills=2, again=2 * BROKERS),
    Fault("worker killed while control is stopped", lambda scene: kill_worker_unseen(scene, 0), kills=1, again=BROKERS),
    Fault("control killed, 3 times", lambda scene: kill_control(scene, 3)),
    Fault("control stopped for 5 s", stop_control),
    Fault("parent killed, started again", kill_parent, kills=2, again=2 * BROKERS),
    Fault(
        "clients' connections reset", lambda scene: reset(scene, "client", RESETS), again=RESETS * BROKERS, proxied=True
    ),
    Fault("brokers' connections reset", lambda scene: reset(scene, "broker", RESETS), proxied=True),
    Fault("1-byte slices from clients", lambda scene: slice_up(scene, "client"), pace=0.1, proxied=True),
    Fault("1-byte slices from brokers", lambda scene: slice_up(scene, "broker"), pace=0.1, proxied=True),
    Fault("latency of 40 ms ± 20, both sides", slow_down, proxied=True),
    Fault("internal topics deleted", delete_topics, deletes=True),
    Fault("clock 1 h ahead, 2 h back", step_clock, own_clock=True),
    Fault("descriptors exhausted", exhaust_descriptors),
    Fault("spool disk full", fill_spool, own_disk=True),
    Fault("5,000 connections", hold_connections),
)
