# `kafka-quotas` with a real Kafka and no gateway: what it sets and shows is what kafka-configs.sh shows and sets; who
# may not is told so; and a Java client's properties file does for both.

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway import embedded
from gateway.commands import kafka_quotas as command
from gateway.embedded import EmbeddedCluster, find_free_port, wait_for
from gateway.quotas.client import DescribedQuotas, QuotaClient, QuotaClientError, QuotaRefusal
from policies.quotas.filter import Component, Match
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.quotas.store import Alteration, Op
from protocol.admin import quotas as q
from tests.integration.wire import Wire

PRODUCE = QuotaKey("producer_byte_rate", "broker_bps")
CONSUME = QuotaKey("consumer_byte_rate", "broker_bps")
CONFIG_COMMAND = "kafka.admin.ConfigCommand"  # what kafka-configs.sh runs


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Run:
    """`kafka-quotas` in this process."""

    def __init__(self, servers: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._servers, self._capsys = servers, capsys

    def __call__(self, *argv: str, servers: str = "") -> Said:
        code = command.main(["--bootstrap-server", servers or self._servers, *argv])
        return Said(code, *self._capsys.readouterr())

    def alter(self, *argv: str) -> None:
        assert self("--alter", *argv) == (0, "", "")

    def shows(self, what: str, *argv: str) -> None:
        """Return once that is what it says: a change is on its way to the broker that is asked."""
        seen = Said(0, "", "")

        def arrived() -> bool:
            nonlocal seen
            seen = self(*argv)
            return seen == (0, what, "")

        try:
            wait_for("", arrived)
        except embedded.EmbeddedError:
            raise AssertionError(f"{argv}: {seen}, not {what!r}") from None

    def refused(self, *argv: str, servers: str = "") -> str:
        said = self(*argv, servers=servers)
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
        return said.err.removeprefix("kafka-quotas: ").rstrip("\n")


@pytest.fixture
def run(kafka: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(kafka.bootstrap_servers, capsys)


def kafka_configs(kafka: EmbeddedCluster, *argv: str, servers: str = "") -> str:
    return kafka.run_tool(CONFIG_COMMAND, "--bootstrap-server", servers or kafka.bootstrap_servers, *argv)


def configs_of(kafka: EmbeddedCluster, *entity: str, servers: str = "", more: tuple[str, ...] = ()) -> dict[str, float]:
    """What kafka-configs.sh shows of one entity."""
    lines = kafka_configs(kafka, "--describe", *entity, *more, servers=servers).splitlines()
    said = [line.partition(" are ")[2] for line in lines if line.startswith("Quota configs for ")]
    pairs = [pair.partition("=") for line in said for pair in line.split(", ") if pair]
    return {key: float(value) for key, _, value in pairs}


@pytest.fixture
def forget(kafka: EmbeddedCluster) -> Iterator[Callable[[Entity], None]]:
    """Entities that have no quotas after the test: the cluster is for all tests of the run."""
    entities: list[Entity] = []
    yield entities.append
    ops = [Op(key, None) for key in ("producer_byte_rate", "consumer_byte_rate", "request_percentage")]
    changed = QuotaClient(kafka.bootstrap_servers).alter([Alteration(entity.wire_pairs, ops) for entity in entities])
    assert changed == (None,) * len(entities)


# --- the same as kafka-configs.sh -------------------------------------------------------------------------------------


def test_kafka_configs_shows_the_quotas_that_kafka_quotas_sets(
    kafka: EmbeddedCluster, run: Run, forget: Callable[[Entity], None]
) -> None:
    forget(Entity("kq-set"))
    forget(Entity("kq-set", DEFAULT))
    run.alter("--names=user=kq-set", "--add=producer_byte_rate:broker_bps=1000,request_percentage=12.5")
    run.alter("--names=user=kq-set", "--defaults=client-id", "--add=consumer_byte_rate=2000")
    run.shows(
        "{user=kq-set, client-id=<default>}\nconsumer_byte_rate:broker_bps=2000\n\n"
        "{user=kq-set}\nproducer_byte_rate:broker_bps=1000\nrequest_percentage:percent=12.5\n",
        "--list",
        "--names=user=kq-set",
    )
    user = ("--entity-type", "users", "--entity-name", "kq-set")
    assert configs_of(kafka, *user) == {"producer_byte_rate": 1000.0, "request_percentage": 12.5}
    assert configs_of(kafka, *user, "--entity-type", "clients", "--entity-default") == {"consumer_byte_rate": 2000.0}

    run.alter("--names=user=kq-set", "--add=producer_byte_rate=3000", "--delete=request_percentage")
    run.shows(
        "consumer_byte_rate:broker_bps=2000 {user=kq-set, client-id=<default>}\n"
        "producer_byte_rate:broker_bps=3000 {user=kq-set}\n",
        *("--describe", "--names=user=kq-set,client-id=any"),
    )
    assert configs_of(kafka, *user) == {"producer_byte_rate": 3000.0}


def test_kafka_quotas_shows_the_quotas_that_kafka_configs_sets(
    kafka: EmbeddedCluster, run: Run, forget: Callable[[Entity], None]
) -> None:
    forget(Entity("kq-theirs", "kq-client"))
    forget(Entity(None, "kq-client"))
    both = ("--entity-type", "users", "--entity-name", "kq-theirs", "--entity-type", "clients")
    kafka_configs(kafka, "--alter", *both, "--entity-name", "kq-client", "--add-config", "producer_byte_rate=10")
    client = ("--entity-type", "clients", "--entity-name", "kq-client")
    kafka_configs(kafka, "--alter", *client, "--add-config", "producer_byte_rate=20,request_percentage=0.5")
    run.shows(
        "{user=kq-theirs, client-id=kq-client}\nproducer_byte_rate:broker_bps=10\n\n"
        "{client-id=kq-client}\nproducer_byte_rate:broker_bps=20\nrequest_percentage:percent=0.5\n",
        *("--list", "--prefix=client-id=kq-cl"),
    )
    run.shows(
        "producer_byte_rate:broker_bps=10 {user=kq-theirs, client-id=kq-client}\n"
        "*producer_byte_rate:broker_bps=20 {client-id=kq-client}\n"
        "request_percentage:percent=0.5 {client-id=kq-client}\n",
        *("--describe", "--names=user=kq-theirs,client-id=kq-client", "--include-overrides"),
    )


@pytest.mark.seed("546.32")
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("kq CN=Alice B., OU=x", "kq%20CN%3DAlice%20B.%2C%20OU%3Dx"),
        ("kq-50%25", "kq-50%2525"),
        ("kq-älice-名-😀", "kq-%C3%A4lice-%E5%90%8D-%F0%9F%98%80"),
        ("<default>", "%3Cdefault%3E"),
    ],
)
def test_names_are_opaque(
    name: str, printed: str, run: Run, kafka: EmbeddedCluster, forget: Callable[[Entity], None]
) -> None:
    forget(Entity(name))
    run.alter(f"--names=user={printed}", "--add=producer_byte_rate=7")
    run.shows(f"{{user={printed}}}\nproducer_byte_rate:broker_bps=7\n", "--list", f"--names=user={printed}")
    assert [each.entity for each in QuotaClient(kafka.bootstrap_servers).describe([Component("user", 0, name)])] == [
        Entity(name)
    ]
    if "%" in name:  # of names that are not ASCII, Java has its own idea on the command line
        assert configs_of(kafka, "--entity-type", "users", "--entity-name", name) == {"producer_byte_rate": 7.0}


@pytest.mark.seed("546.23")
def test_validate_only_changes_nothing(run: Run) -> None:
    assert run("--alter", "--names=user=kq-never", "--add=producer_byte_rate=1", "--validate-only") == (0, "", "")
    assert run("--list", "--names=user=kq-never") == (0, "", "")


# --- what only a gateway has, what only brokers have ------------------------------------------------------------------


@pytest.mark.seed("546.15")
def test_units_that_brokers_dont_know_are_refused_and_nothing_is_set(run: Run, kafka: EmbeddedCluster) -> None:
    said = run.refused("--alter", "--names=user=kq-units", "--add=consumer_byte_rate=1,producer_byte_rate:bps=1")
    assert said == (
        f"INVALID_REQUEST: {kafka.bootstrap_servers} is not a gateway that keeps client quotas, and brokers don't know "
        "producer_byte_rate:bps: only broker_bps and percent (Invalid configuration key producer_byte_rate.bps)"
    )
    assert run("--list", "--names=user=kq-units") == (0, "", "")


def test_quotas_that_only_brokers_have_are_shown(run: Run, kafka: EmbeddedCluster) -> None:
    theirs = ((q.USER, "kq-mutates", "controller_mutation_rate"), ("ip", "10.9.8.7", "connection_creation_rate"))

    def alter(**values: Any) -> None:
        body = q.AlterClientQuotasRequest(
            tuple(
                q.EntityAlteration((q.EntityData(kind, name),), (q.QuotaOperation(key, **values),))
                for kind, name, key in theirs
            )
        )
        with Wire(kafka.broker(1).port) as wire:
            wire.send(q.ALTER_CLIENT_QUOTAS.encode_request(body, 1, 1, b"theirs"))
            frame = wire.receive()
        _, answer = q.ALTER_CLIENT_QUOTAS.decode_response(frame, 4, len(frame), 1)
        assert [row.error_code for row in answer.entries] == [0, 0]

    try:
        alter(value=5.0)
        run.shows("{user=kq-mutates}\ncontroller_mutation_rate=5\n", "--list", "--names=user=kq-mutates")
        wait_for("ip", lambda: "{ip=10.9.8.7}\nconnection_creation_rate=5\n" in run("--list").out)
    finally:
        alter(value=0.0, remove=True)


# --- the Python API ---------------------------------------------------------------------------------------------------


@pytest.mark.seed("546.9", "546.10")
def test_the_three_calls(kafka: EmbeddedCluster, forget: Callable[[Entity], None]) -> None:
    forget(Entity("kq-api"))
    quotas = QuotaClient(f"{embedded.HOST}:{find_free_port()},{kafka.bootstrap_servers}")  # one that answers is enough
    refused = QuotaRefusal(
        "INVALID_REQUEST",
        "producer_byte_rate:broker_bps=0.0: a quota is a finite number above 0; remove it for no limit",
    )
    assert quotas.alter(
        [
            Alteration([("user", "kq-bad")], [Op("producer_byte_rate", 0.0)]),
            Alteration([("user", "kq-api")], [Op("producer_byte_rate:broker_bps", 9.0)]),
        ]
    ) == (refused, None)
    described = DescribedQuotas((("user", "kq-api"),), {PRODUCE: 9.0}, {})
    by_name = [Component("user", Match.PREFIX, "kq-ap")]
    wait_for("the quota", lambda: quotas.describe(by_name, strict=True) == (described,))
    (effective,) = quotas.describe_effective(Entity("kq-api", "c"), omit_overridden_values=True)
    assert effective[:3] == (PRODUCE, Entity("kq-api"), 9.0)
    assert effective.overridden is None


def test_no_broker_there_is_one_line_with_every_address(run: Run) -> None:
    first, second = sorted(f"{embedded.HOST}:{find_free_port()}" for _ in range(2))
    said = run.refused("--list", servers=f"{first},{second}")
    assert said.startswith(f"{first}: ")
    assert f"; {second}: " in said


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_as_a_process_of_its_own(
    unbuffered: str, run: Run, kafka: EmbeddedCluster, forget: Callable[[Entity], None]
) -> None:
    forget(Entity("kq-process"))
    run.alter("--names=user=kq-process", "--add=producer_byte_rate=1")
    shown = "{user=kq-process}\nproducer_byte_rate:broker_bps=1\n"
    run.shows(shown, "--list", "--names=user=kq-process")
    options: dict[str, Any] = {
        "stderr": subprocess.PIPE,
        "text": True,
        "env": os.environ | {"PYTHONUNBUFFERED": unbuffered},
    }
    command_line = [
        sys.executable,
        "-m",
        "gateway.commands.kafka_quotas",
        "--bootstrap-server",
        kafka.bootstrap_servers,
    ]
    command_line += ["--list", "--names=user=kq-process"]
    done = subprocess.run(command_line, stdout=subprocess.PIPE, check=False, **options)
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")
    read, write = os.pipe()
    os.close(read)  # a reader that has seen enough, as `… | head` has
    try:
        done = subprocess.run(command_line, stdout=write, check=False, **options)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


# --- who asks ---------------------------------------------------------------------------------------------------------

SECRET = 'a "quoted", \\ one'


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedCluster]:
    """One that asks who you are, and doesn't let everybody."""
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "early.start.listeners": "CONTROLLER",
    }
    with EmbeddedCluster(1, rights, users={"admin": SECRET, "low": "low"}) as cluster:
        yield cluster


def client_file(folder: Path, mechanism: str, user: str, password: str) -> Path:
    """A client.properties as people write it for Kafka's own tools."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')  # for JAAS, and once more for Java's Properties
    jaas = f'org.apache.kafka.common.security.{module} required \\\n    username="{user}" \\\n    password="{{}}";'
    file = folder / "client.properties"
    file.write_text(
        f"# administrators only\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={jaas.format(quoted.replace(chr(92), chr(92) * 2))}\nrequest.timeout.ms=30000\n"
    )
    return file


@pytest.mark.seed("546.25")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_file_that_kafka_configs_takes_will_do(
    mechanism: str, guarded: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers, user = guarded.sasl_bootstrap_servers, f"kq-{mechanism}"
    run = Run(servers, capsys)
    file = client_file(tmp_path, mechanism, "admin", SECRET)
    given = f"--command-config={file}"
    run.alter(given, f"--names=user={user}", "--add=consumer_byte_rate=11")
    run.shows(f"{{user={user}}}\nconsumer_byte_rate:broker_bps=11\n", "--list", given, f"--names=user={user}")
    run.shows(f"consumer_byte_rate:broker_bps=11 {{user={user}}}\n", "--describe", given, f"--names=user={user}")
    if mechanism == "PLAIN":
        entity, more = ("--entity-type", "users", "--entity-name", user), ("--command-config", str(file))
        assert configs_of(guarded, *entity, servers=servers, more=more) == {"consumer_byte_rate": 11.0}


def test_a_wrong_password_is_one_line_without_it(
    guarded: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(guarded.sasl_bootstrap_servers, capsys)
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        said = run.refused("--list", f"--command-config={client_file(tmp_path, mechanism, 'admin', 'wrong-one')}")
        assert "SASL_AUTHENTICATION_FAILED" in said
        assert "wrong-one" not in said
    assert run.refused("--list").startswith(f"{guarded.sasl_bootstrap_servers}: ")  # who doesn't say who he is


def test_without_rights_it_is_refused_and_told_which(
    guarded: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(guarded.sasl_bootstrap_servers, capsys)
    given = f"--command-config={client_file(tmp_path, 'PLAIN', 'low', 'low')}"
    denied = "CLUSTER_AUTHORIZATION_FAILED: allow this principal"
    for operation in ("--list", "--describe"):
        said = run.refused(operation, given, "--names=user=kq-low")
        assert said == f"{guarded.sasl_bootstrap_servers}: {denied} DescribeConfigs on the cluster"
    for more in ((), ("--validate-only",)):
        said = run.refused("--alter", given, "--names=user=kq-low", "--add=producer_byte_rate=1", *more)
        assert said == f"{denied} AlterConfigs on the cluster"
    assert QuotaClient(guarded.bootstrap_servers).describe([Component("user", Match.EXACT, "kq-low")]) == ()


def test_tls_with_pem_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    for name in ("own", "other"):
        files = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.crt")]
        subprocess.run([*made.split(), *files], check=True, capture_output=True)
    own, authority = tmp_path / "own.pem", tmp_path / "own.crt"
    own.write_text((tmp_path / "own.key").read_text() + authority.read_text())
    port = find_free_port(3)
    kinds = {"PLAINTEXT": port, "CONTROLLER": port + 1, "SSL": port + 2}
    broker = {
        "listeners": ",".join(f"{name}://{embedded.HOST}:{at}" for name, at in kinds.items()),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(own),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
        "ssl.client.auth": "required",
    }
    file = tmp_path / "client.properties"
    lines = ["security.protocol=SSL", "ssl.truststore.type=PEM"]
    mine = ["ssl.keystore.type=PEM", f"ssl.keystore.location={own}"]
    with EmbeddedCluster(1, broker, port=port):
        run = Run(f"{embedded.HOST}:{port + 2}", capsys)
        file.write_text("\n".join([*lines, f"ssl.truststore.location={authority}", *mine]))
        assert run("--list", f"--command-config={file}") == (0, "", "")
        file.write_text("\n".join([*lines, f"ssl.truststore.location={authority}"]))
        run.refused("--list", f"--command-config={file}")
        file.write_text("\n".join([*lines, f"ssl.truststore.location={tmp_path / 'other.crt'}", *mine]))
        assert "not signed by a CA" in run.refused("--list", f"--command-config={file}")


def test_no_answer_costs_the_time_limit(kafka: EmbeddedCluster) -> None:
    with socket.create_server((embedded.HOST, find_free_port())) as silent:
        address = f"{embedded.HOST}:{silent.getsockname()[1]}"
        with pytest.raises(QuotaClientError, match=f"{address}: no answer in time"):
            QuotaClient(address, timeout_s=1.0).describe()


def test_a_server_that_doesnt_answer_leaves_time_for_one_that_does(
    kafka: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.kafka.client.random.sample", lambda servers, _: servers)  # else in random order
    with socket.create_server((embedded.HOST, find_free_port())) as silent:
        servers = f"{embedded.HOST}:{silent.getsockname()[1]},{kafka.bootstrap_servers}"
        assert QuotaClient(servers, timeout_s=16.0).describe([Component("user", Match.EXACT, "kq-nobody")]) == ()
