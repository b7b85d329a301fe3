# A whole gateway as a user starts it: three real processes, in front of a broker that knows next to nothing. What
# becomes of processes that are killed, and with a real Kafka: tests/integration/cluster/test_resilience.py.

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.control.gateway_process import Gateway, at
from tests.gateway.control.null_broker import NullBroker
from tests.gateway.data.play import request as produce_request


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    gateways = []

    def serve(upstream: str, extra: str = "", **more: Any) -> Gateway:
        gateways.append(Gateway(tmp_path, upstream, extra, **more))
        return gateways[-1]

    yield serve
    for gateway in gateways:
        gateway.close()


@pytest.fixture
def broker() -> Iterator[NullBroker]:
    broker = NullBroker()
    yield broker
    broker.close()


@pytest.fixture
def closing() -> Iterator[Callable[..., Any]]:
    with contextlib.ExitStack() as stack:
        yield lambda thing: stack.enter_context(contextlib.closing(thing))


def ask_api_versions(port: int) -> tuple[int, int] | None:
    """An ApiVersions v0 request through that listener: the answer's correlation id and error code."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        answer = b""
        while len(answer) < 10:
            data = sock.recv(100)
            if not data:
                return None
            answer += data
        return struct.unpack_from(">ih", answer, 4)


def test_it_serves_a_broker_that_offers_next_to_nothing_and_one_that_joins_later(
    serve: Callable[..., Any], broker: NullBroker
) -> None:
    broker.topics = {"clicks": [1]}
    gateway = serve(at(broker), "internal_topics: none").ready()
    assert ask_api_versions(gateway.port) == (7, 0)
    assert ask_api_versions(gateway.port + 2) == (7, 0)
    gateway.wait_for_log(rf"broker 1: 127.0.0.1:{gateway.port + 2} -> {at(broker)}")
    gateway.wait_for_log(rf"try: kcat -b 127.0.0.1:{gateway.port} -L")
    assert "are not published to a topic" in gateway.log  # it says what is off
    gateway.wait_for("counted", lambda: gateway.metric("connections_accepted_total") == 2)
    # Nobody has produced to it.
    assert gateway.metric("produce_bytes_total", broker="1", topic="clicks", outcome="accepted", reason="") is None
    broker.brokers[3] = ("127.0.0.1", broker.port)
    gateway.wait_for_log(rf"broker 3: 127.0.0.1:{gateway.port + 4} -> {at(broker)}")
    assert ask_api_versions(gateway.port + 4) == (7, 0)
    assert gateway.end() == 0
    assert [record["final"] for record in gateway.records()][-1] is True


class Producer:
    """A connection that produces with acks=0 and can tell whether it is still served; to be closed."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.sent = 0
        self.close = self._sock.close

    def produce(self) -> None:
        self._sock.sendall(produce_request(acks=0))
        self.sent += 1
        self._sock.sendall(struct.pack(">ihhih", 10, 18, 0, self.sent, -1))
        answer = b""
        while len(answer) < 8 or len(answer) < 4 + struct.unpack(">i", answer[:4])[0]:
            data = self._sock.recv(100)
            assert data, "the connection has ended"
            answer += data
        assert struct.unpack_from(">i", answer, 4) == (self.sent,)


def test_a_control_that_comes_back_to_an_unusable_spool_goes_on_without_and_loses_nothing(
    serve: Callable[..., Any], broker: NullBroker, closing: Callable[..., Any]
) -> None:
    broker.topics = {"clicks": [1]}
    gateway = serve(at(broker), "internal_topics: none").ready()
    producer = closing(Producer(gateway.port + 2))
    producer.produce()
    aside = gateway.spool.with_name("aside")
    gateway.spool.rename(aside)
    gateway.spool.write_text("not a directory")
    control = gateway.wait_for("control", lambda: gateway.child("gateway.control"))
    os.kill(control, signal.SIGKILL)
    gateway.wait_for_log("continuing without it")
    gateway.wait_for("control", lambda: gateway.get("/readyz")[0] == 200)
    producer.produce()
    assert ask_api_versions(gateway.port + 2) == (7, 0)  # new connections as well
    lacking = json.loads(gateway.get("/readyz")[1])["lacking"]
    assert lacking == [
        f"usage_log.spool_dir: usage_log.spool_dir {gateway.spool}: File exists",
        f"policies: {gateway.spool}/policies.jsonl: can't be used: File exists",
    ]
    gateway.wait_for("told", lambda: gateway.metric("lacking", part="usage_log.spool_dir") == 1)
    os.kill(gateway.wait_for("control", lambda: gateway.child("gateway.control")), signal.SIGKILL)
    gateway.wait_for_log(r"policies\.jsonl: can't be used", count=2)  # behind the spool: else it would find the link
    producer.produce()
    link = aside.with_name("link")
    link.symlink_to(aside)
    link.replace(gateway.spool)  # at once: control makes a folder where there is none
    gateway.wait_for_log("usage_log.spool_dir can be used again")
    gateway.wait_for_log("policies: can be read and written again")
    gateway.wait_for("nothing lacking", lambda: json.loads(gateway.get("/readyz")[1] or "{}").get("lacking") == [])
    producer.produce()
    assert gateway.end() == 0
    records = gateway.records()
    assert [record["seq"] for record in records] == list(range(len(records)))
    rows = [row for record in records for row in record["rows"] if row["outcome"] == "unacknowledged"]
    assert sum(row["requests"] for row in rows) == producer.sent == 4
    assert "lost" not in [record["kind"] for record in records]


def test_a_stop_while_control_is_dead_loses_nothing(
    serve: Callable[..., Any], broker: NullBroker, closing: Callable[..., Any]
) -> None:
    broker.topics = {"clicks": [1]}
    gateway = serve(at(broker), "internal_topics: none").ready()
    producer = closing(Producer(gateway.port + 2))
    control = gateway.wait_for("control", lambda: gateway.child("gateway.control"))
    producer.produce()
    os.kill(control, signal.SIGKILL)
    producer.produce()
    assert gateway.end() == 0
    rows = [row for record in gateway.records() for row in record["rows"] if row["outcome"] == "unacknowledged"]
    assert sum(row["requests"] for row in rows) == producer.sent == 2
    assert gateway.records()[-1]["final"] is True


def test_limits_set_at_run_time_hold_on_while_a_new_control_can_not_read_them(
    serve: Callable[..., Any], broker: NullBroker
) -> None:
    broker.topics = {"clicks": [1]}
    gateway = serve(at(broker), "internal_topics: none").ready()
    assert gateway.put("/v1/thresholds/total", {"value": 5000}) == 200
    gateway.wait_for("limit", lambda: gateway.metric("broker_threshold_bytes_per_second", broker="1") == 5000)
    kept = (gateway.spool / "policies.jsonl").rename(gateway.spool / "aside")
    (gateway.spool / "policies.jsonl").mkdir()
    os.kill(gateway.wait_for("control", lambda: gateway.child("gateway.control")), signal.SIGKILL)
    gateway.wait_for("control", lambda: gateway.metric("lacking", part="policies") == 1)
    gateway.ready()
    gateway.wait_for("limit", lambda: gateway.metric("broker_threshold_bytes_per_second", broker="1") == 5000)
    (gateway.spool / "policies.jsonl").rmdir()
    kept.rename(gateway.spool / "policies.jsonl")
    gateway.wait_for("policies", lambda: gateway.metric("lacking", part="policies") == 0)
    assert gateway.metric("policy_version") == 1
    assert gateway.end() == 0


def test_running_out_of_descriptors_delays_connections_and_passes(serve: Any, broker: Any) -> None:
    gateway = serve(at(broker), "internal_topics: none", files=80).ready()
    worker = gateway.wait_for("worker", lambda: gateway.child("gateway.data"))
    os.kill(worker, signal.SIGSTOP)  # so control has to hold what it accepted
    with contextlib.ExitStack() as clients:
        for _ in range(400):  # more than fit into the channel's buffer and control's descriptors together
            clients.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
        gateway.wait_for_log("no connections can be accepted just now: Too many open files")
        clients.enter_context(socket.create_connection(("127.0.0.1", gateway.admin)))
        time.sleep(0.5)  # several tries
    os.kill(worker, signal.SIGCONT)
    gateway.wait_for("service", lambda: ask_api_versions(gateway.port) == (7, 0))
    gateway.wait_for("metric", lambda: gateway.metric("accept_pauses_total"))
    assert gateway.log.count("can be accepted just now") <= 3
    assert gateway.end() == 0


@pytest.mark.parametrize("mode", ["kafka", "none"])
def test_a_stop_does_not_wait_for_an_upstream_that_is_not_there(serve: Any, mode: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:  # connects, and never says a word

        def stop_s() -> float:
            gateway = serve(f"127.0.0.1:{probe.getsockname()[1]}", f"internal_topics: {mode}")
            gateway.wait_for("admin", lambda: gateway.get("/healthz")[0] == 200)
            begin = time.monotonic()
            assert gateway.end() == 0
            return time.monotonic() - begin

        # One question to the cluster takes five seconds. A busy machine may take as long, but not again and again.
        assert any(stop_s() < 4 for _ in range(4))


def test_the_connections_that_are_there_are_told(serve: Callable[..., Any], broker: NullBroker) -> None:
    gateway = serve(at(broker), "internal_topics: none\nworkers: 2").ready()

    def look(query: str = "") -> Any:
        return json.loads(gateway.get(f"/v1/connections{query}")[1])

    gateway.wait_for("none", lambda: look() == {"total": 0, "matched": 0, "missing": 0, "connections": []})
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port + 2), timeout=20))
            client.sendall(produce_request(1, acks=0, client_id="app"))
        found = gateway.wait_for("three", lambda: (said := look("?client_id=app"))["matched"] == 3 and said)
        for each in found["connections"]:
            assert (each["broker"], each["principal"], each["client_id"]) == (1, "User:ANONYMOUS", "app")
            assert each["peer"].startswith("127.0.0.1:")
        assert len({each["peer"] for each in found["connections"]}) == 3
        others = {"total": 3, "matched": 0, "missing": 0, "connections": []}
        gateway.wait_for("no other", lambda: look("?client_id=other") == others)
        gateway.wait_for("counted", lambda: json.loads(gateway.get("/v1/status")[1])["connections"] == 3)
    status = json.loads(gateway.get("/v1/status")[1])
    assert (status["ready"], status["workers"]) == (True, {"configured": 2, "connected": 2})
    assert (status["gateway"], status["upstream"], status["peers"]) == ("gw", at(broker), None)


def test_a_gateway_that_stops_is_not_ready_before_it_is_closed(serve: Callable[..., Any], broker: NullBroker) -> None:
    gateway = serve(at(broker), "internal_topics: none\nshutdown_delay: 1h").ready()
    gateway.process.send_signal(signal.SIGTERM)
    status, said = gateway.wait_for("not ready", lambda: (found := gateway.get("/readyz"))[0] == 503 and found)
    assert (status, json.loads(said)["problems"]) == (503, ["the gateway is stopping"])
    assert ask_api_versions(gateway.port) == (7, 0)  # whoever has not heard of it yet
    assert gateway.end() == 0


def test_a_spool_that_cannot_be_made_is_one_clear_line(serve: Any, broker: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    gateway = serve(at(broker), spool=tmp_path / "file")
    assert gateway.finish() == 1
    assert f"usage_log.spool_dir {tmp_path}/file: File exists" in gateway.log
