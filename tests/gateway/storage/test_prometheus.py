# The Prometheus source against a small HTTP server that answers as Prometheus does, or in each way that must not be
# taken for an observation. A real Prometheus is in tests/integration/storage/test_prometheus_source.py.

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.prometheus import DEFAULTS, Prometheus
from policies.storage import Observation, ObservationFailed, Volume
from tests.background import Handler, serving

NOW = 1_700_000_000.5
Labels = dict[str, str]
Series = list[tuple[Labels, Any]]


class Server(ThreadingHTTPServer):
    """`series`: by expression. `stamps`: Unix seconds of its samples; NOW where none is given."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.series: dict[str, Series] = {}
        self.stamps: dict[str, float] = {}
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.extra: dict[str, Any] = {}
        self.raw: tuple[int, dict[str, str], bytes] | None = None
        self.stall = threading.Event()
        self.stalls = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, query: str) -> dict[str, Any]:
        is_stamp = query.startswith("timestamp(\n")
        expression = query.removeprefix("timestamp(\n").removesuffix("\n)") if is_stamp else query
        stamp = self.stamps.get(expression, NOW)
        rows = [
            {"metric": labels, "value": [NOW, str(stamp if is_stamp else value)]}
            for labels, value in self.series.get(expression, [])
        ]
        return {"status": "success", "data": {"resultType": "vector", "result": rows}, **self.extra}


class Answers(Handler):
    server: Server

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self.server.headers.append({**dict(self.headers), "path": parts.path})
        query = dict(urllib.parse.parse_qsl(parts.query))
        self.server.asked.append(query)
        if self.server.stalls:
            self.server.stall.wait(60)
        status, headers, body = self.server.raw or (200, {}, json.dumps(self.server.answer(query["query"])).encode())
        self.answer(status, body, headers)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with serving(Server()) as running:
        yield running
        running.stall.set()


def node(broker: str, mountpoint: str = "/var/lib/kafka/data") -> Labels:
    return {"__name__": "any", "instance": broker, "mountpoint": mountpoint, "device": "/dev/sdb", "job": "node"}


def claim(name: str, namespace: str = "kafka") -> Labels:
    return {"persistentvolumeclaim": name, "namespace": namespace, "instance": "10.0.0.7:10250"}


def put(server: Server, *volumes: tuple[Labels, Any, Any], expressions: tuple[str, str] = ("A", "S")) -> None:
    server.series[expressions[0]] = [(labels, available) for labels, available, _ in volumes]
    server.series[expressions[1]] = [(labels, size) for labels, _, size in volumes]


def make(server: Server, **options: Any) -> Prometheus:
    return Prometheus(**{"url": server.url, "available": "A", "size": "S", **options})


def failed(source: Prometheus) -> str:
    with pytest.raises(ObservationFailed) as error:
        source.observe()
    assert "\n" not in str(error.value)
    return str(error.value)


# --- observations -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("035.3")
def test_two_expressions_make_volumes(server: Server) -> None:
    put(server, (node("kafka-2:9100"), "2e9", "1e11"), (node("kafka-1:9100"), "100", "100"))
    assert make(server).observe() == Observation(
        frozenset({1, 2}),
        (Volume(1, "/var/lib/kafka/data", 100, 100), Volume(2, "/var/lib/kafka/data", 10**11, 2 * 10**9)),
    )


def test_all_four_questions_are_about_one_moment_of_prometheus_own_clock(server: Server) -> None:
    put(server, (node("kafka-1"), 50, 100))
    make(server).observe()
    first, *others = server.asked
    assert "time" not in first
    assert [asked["query"] for asked in others] == ["S", "timestamp(\nA\n)", "timestamp(\nS\n)"]
    assert {float(asked["time"]) for asked in others} == {NOW}


def test_without_expressions_node_exporters_are_asked_then_kubelets(server: Server) -> None:
    source = Prometheus(server.url)
    assert failed(source).startswith(f"Prometheus has no series for {DEFAULTS[0][0]} nor {DEFAULTS[1][0]}")
    put(server, (claim("data-0-my-cluster-kafka-2"), 5, 10), expressions=DEFAULTS[1])
    assert source.observe().volumes == (Volume(2, "data-0-my-cluster-kafka-2", 10, 5),)
    put(server, (node("broker3.example.com:9100"), 6, 10), expressions=DEFAULTS[0])
    assert source.observe().volumes == (Volume(3, "/var/lib/kafka/data", 10, 6),)
    for lacking, what in zip(DEFAULTS[0], ("available", "size"), strict=True):
        put(server, (node("kafka-3"), 6, 10), expressions=DEFAULTS[0])
        server.series[lacking] = []
        assert failed(source).startswith(f"Prometheus has no {what} of broker 3 "), "and no kubelet is asked"


def test_a_broker_may_have_several_volumes(server: Server) -> None:
    put(server, *((claim(f"data-{n}-my-cluster-kafka-0"), n, 10) for n in range(3)))
    assert [volume.available for volume in make(server).observe().volumes] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "broker_id"),
    [
        ("2", 2),
        ("kafka-2:9100", 2),
        ("kafka2", 2),
        ("broker-12.kafka-headless.ns.svc:9100", 12),
        ("data-my-cluster-pool-a-7", 7),
        ("data-0-my-cluster-kafka-2", 2),
        ("10.0.0.3:9100", None),
        ("ip-10-0-0-3.ec2.internal:9100", None),
        ("kafka", None),
        ("kafka-²", None),
    ],
)
def test_the_broker_id_is_the_number_that_ends_the_name(server: Server, text: str, broker_id: int | None) -> None:
    put(server, (node(text), 5, 10))
    if broker_id is None:
        assert failed(make(server)) == (
            f"no broker id in instance={text!r}: set broker_label, broker_pattern or brokers"
        )
    else:
        assert make(server).observe().brokers == {broker_id}


def test_labels_pattern_and_table_can_be_told(server: Server) -> None:
    labels = {"node": "k8s-node", "rack": "r9-b4-x", "disk": "d0", "instance": "kafka-1"}
    put(server, (labels, 5, 10))
    options: dict[str, Any] = {"broker_label": "rack", "volume_label": "disk"}
    by_group = make(server, broker_pattern=r"r(\d)-b(?P<broker>\d+)", **options)
    assert by_group.observe().volumes == (Volume(4, "d0", 10, 5),)
    assert make(server, broker_pattern=r"^r(\d)", **options).observe().brokers == {9}
    assert make(server, brokers={"r9-b4-x": 12}, **options).observe().brokers == {12}
    assert failed(make(server, broker_label="zone")).startswith("no label zone says the broker of {disk='d0', ")
    assert failed(make(server, broker_label="instance", volume_label="path")).startswith(
        "no label path says the volume"
    )


# --- brokers ----------------------------------------------------------------------------------------------------------


def test_an_active_broker_without_a_volume_is_missing(server: Server) -> None:
    put(server, (node("kafka-1"), 50, 100), (node("kafka-2"), 50, 100))
    assert make(server, active_brokers=lambda: frozenset({1, 2, 3, 4})).observe().missing == {3, 4}
    assert make(server, expected_brokers=[1, 2, 3, 4]).observe().missing == {3, 4}
    assert make(server, expected_brokers=(1, 2), active_brokers=lambda: {3}).observe().brokers == {1, 2}


def test_volumes_of_brokers_that_are_not_active_are_ignored(server: Server) -> None:
    put(server, (node("kafka-1"), 50, 100), (node("kafka-2"), 0, 100))
    observed = make(server, active_brokers=lambda: [1]).observe()
    assert (observed.brokers, [volume.broker_id for volume in observed.volumes]) == (frozenset({1}), [1])


def test_a_cluster_that_does_not_say_which_brokers_are_active_fails_the_observation(server: Server) -> None:
    def down() -> frozenset[int]:
        raise ObservationFailed("nobody answers")

    put(server, (node("kafka-1"), 50, 100))
    assert failed(make(server, active_brokers=down)) == "nobody answers"


# --- what is no observation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
@pytest.mark.parametrize("side", ["available", "size"])
def test_numbers_that_are_none_fail(server: Server, side: str, value: str) -> None:
    put(server, (node("kafka-1"), value if side == "available" else 1, value if side == "size" else 100))
    assert failed(make(server)).startswith(f"Prometheus says {side} = ")


@pytest.mark.seed("035.3")
@pytest.mark.parametrize(("available", "size"), [(0, 0), (101, 100)])
def test_sizes_that_cannot_be_fail(server: Server, available: int, size: int) -> None:
    put(server, (node("kafka-1"), available, size))
    told = f"Prometheus says that {available} of {size} bytes of broker 1 volume /var/lib/kafka/data are available"
    assert failed(make(server)) == told


def test_one_of_the_two_missing_fails(server: Server) -> None:
    put(server, *((node(f"kafka-{n}"), 50, 100) for n in range(1, 7)))
    full = server.series["S"]
    server.series["S"] = full[:1]
    told = failed(make(server))
    assert told.startswith("Prometheus has no size of broker 2 volume /var/lib/kafka/data, broker 3 ")
    assert told.endswith(" and 2 more")
    server.series["S"], server.series["A"] = full, []
    assert failed(make(server)).startswith("Prometheus has no available of broker 1 ")


def test_the_same_volume_twice_fails(server: Server) -> None:
    put(server, (node("kafka-1"), 50, 100), ({**node("kafka-1"), "job": "other"}, 50, 100))
    told = "Prometheus has more than one available of broker 1 volume /var/lib/kafka/data: narrow the expression"
    assert failed(make(server)).startswith(told)


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        (node("kafka-1.eu:9100"), node("kafka-1.us:9100", "/kafka2"), "kafka-1.eu:9100 and kafka-1.us:9100"),
        (claim("data-0-red-kafka-1"), claim("data-0-blue-kafka-1"), "kafka/blue-kafka-1 and kafka/red-kafka-1"),
        (claim("data-0-my-kafka-1"), claim("data-1-my-kafka-1", "test"), "kafka/my-kafka-1 and test/my-kafka-1"),
    ],
)
def test_brokers_of_two_clusters_are_never_mixed(server: Server, one: Labels, two: Labels, both: str) -> None:
    put(server, (one, 50, 100), (two, 50, 100))
    assert failed(make(server)) == f"broker 1 is both {both}: narrow the expressions to one cluster"


@pytest.mark.parametrize("expression", ["A", "S"])
def test_old_samples_fail(server: Server, expression: str) -> None:
    put(server, (node("kafka-1"), 50, 100))
    server.stamps[expression] = NOW - 60
    assert make(server, max_age=60).observe()
    assert failed(make(server, max_age="59s")) == (
        f"Prometheus' samples of {expression} are up to 60 s old, and max_age is 59 s"
    )
    server.stamps[expression] = float("nan")
    assert "s old" in failed(make(server))


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"warnings": ["store 1 is\n away", "b"]}, " warns: store 1 is away; b"),
        ({"isPartial": True}, " warns: the answer is partial"),
        ({"status": "error", "error": "too\nmuch"}, ": too much"),
        ({"data": {"resultType": "scalar", "result": [1, "2"]}}, "A is a scalar: one number per volume is needed"),
        (
            {"data": {"resultType": "vector", "result": [{"metric": {}}]}},
            " does not answer as Prometheus does: 'value'",
        ),
        ({"data": None}, " does not answer as Prometheus does: 'NoneType' object is not subscriptable"),
    ],
)
def test_partial_and_strange_answers_fail(server: Server, extra: dict[str, Any], told: str) -> None:
    put(server, (node("kafka-1"), 50, 100))
    server.extra = extra
    assert failed(make(server)).endswith(told)


def test_remarks_on_the_expression_are_no_failure(server: Server) -> None:
    put(server, (node("kafka-1"), 50, 100))
    server.extra = {"warnings": ["PromQL info: metric might not be a counter"], "infos": ["x"]}
    assert make(server).observe()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (
            400,
            b'{"status":"error","errorType":"bad_data","error":"1:3: parse error"}',
            " answers 400: 1:3: parse error",
        ),
        (503, b"<html>", " answers 503: Service Unavailable"),
        (401, b"", " answers 401: check username and password_file, or bearer_token_file"),
        (302, b"", " answers 302: it is at http://elsewhere/, write that as url"),
        (200, b"<html>", " does not answer as Prometheus does: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_refusals_are_told_in_one_line(server: Server, status: int, body: bytes, told: str) -> None:
    server.raw = (status, {"Location": "http://elsewhere/"} if status == 302 else {}, body)
    assert failed(make(server)).endswith(told)
    assert len(server.asked) == 1


def test_an_answer_without_end_fails(server: Server) -> None:
    server.raw = (200, {}, b" " * (17 * 2**20))
    assert "larger than 16,777,216 bytes" in failed(make(server))


def test_no_answer_in_time_and_no_server_fail(server: Server) -> None:
    server.stalls = True
    assert failed(make(server, timeout_s=0.2)).endswith(": timed out")
    assert "refused" in failed(Prometheus("http://127.0.0.1:1", "A", "S"))


@pytest.mark.parametrize("what", [b"HTTP/1.0 200 OK\r\nX-Slow: ", b"HTTP/1.0 200 OK\r\n\r\n", b"\x16\x03\x03\x40\x00"])
def test_a_server_that_drips_does_not_hold_the_question_beyond_its_time(what: bytes) -> None:
    """A byte now and then, in a header, the answer, or the TLS handshake (here the beginning of a record)."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        with listener.accept()[0] as client, contextlib.suppress(OSError):
            client.sendall(what)
            while not stop.wait(0.05):
                client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        scheme = "https" if what.startswith(b"\x16") else "http"
        source = Prometheus(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", "A", "S", timeout_s=5.0)
        told: list[str] = []
        asking = threading.Thread(target=lambda: told.append(failed(source)), daemon=True)
        asking.start()
        asking.join(60)
        is_back = not asking.is_alive()
        stop.set()
        thread.join()
    assert is_back
    assert told[0].endswith(": timed out")


# --- authentication and TLS -------------------------------------------------------------------------------------------


def test_credentials_come_from_files_that_are_read_anew(server: Server, tmp_path: Path) -> None:
    put(server, (node("kafka-1"), 50, 100))
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    by_token, by_password = (
        make(server, bearer_token_file=str(secret)),
        make(server, username="gateway", password_file=str(secret)),
    )
    by_token.observe()
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer first"}
    secret.write_text("second\n")
    by_token.observe()
    assert server.headers[-1]["Authorization"] == "Bearer second"
    by_password.observe()
    assert base64.b64decode(server.headers[-1]["Authorization"].removeprefix("Basic ")) == b"gateway:second"
    secret.unlink()
    assert failed(by_token) == f"bearer_token_file {secret} can't be read: No such file or directory"


def test_the_url_may_have_a_path(server: Server) -> None:
    put(server, (node("kafka-1"), 50, 100))
    make(server, url=f"{server.url}/prom/").observe()
    assert server.headers[-1]["path"] == "/prom/api/v1/query"


def test_tls_trusts_the_given_authority_only(server: Server, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    put(server, (node("kafka-1"), 50, 100))
    url = f"https://localhost:{server.server_address[1]}"
    assert make(server, url=url, ca_file=str(certificate)).observe()
    assert "certificate can't be verified" in failed(make(server, url=url))


# --- what the constructor refuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "prometheus:9090"}, "is not a valid URL of Prometheus; for example: http://prometheus:9090"),
        ({"url": "http://u:p@prometheus"}, "credentials don't belong there"),
        ({"url": "http://u:p@prometheus?x=1"}, "credentials don't belong there"),
        ({"url": "u:p@prometheus:9090"}, "credentials don't belong there"),
        ({"url": "http://u:p/p@prometheus"}, "credentials don't belong there"),
        ({"url": "http://prometheus?x=1"}, "is not a valid URL of Prometheus"),
        ({"available": "A"}, "available and size belong together"),
        ({"username": "u"}, "give username and password_file, or bearer_token_file"),
        ({"broker_pattern": "("}, "is not a valid regular expression"),
        ({"broker_pattern": r"\d+"}, "needs a group around the broker's id"),
        ({"max_age": "soon"}, "is not a valid duration"),
        ({"max_age": 0}, "max_age: 0 is not a valid time"),
        ({"timeout_s": True}, "timeout_s: True is not a valid time"),
        ({"expected_brokers": []}, "expected_brokers: at least one is needed"),
        ({"bearer_token_file": "/nowhere/token"}, "bearer_token_file /nowhere/token can't be read"),
        ({"url": "https://prometheus", "ca_file": "/nowhere/ca"}, "ca_file /nowhere/ca: "),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_asked(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")) as error:
        Prometheus(**{"url": "http://prometheus:9090", **options})
    assert "\n" not in str(error.value)
