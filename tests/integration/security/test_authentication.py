# SASL that ends at the gateway, with a real Kafka and real clients: each gets in with credentials that no broker has,
# the broker sees the user that the gateway maps it to, and the usage log has the client's own name.

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
import yaml
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from gateway import embedded
from gateway.embedded import EmbeddedCluster, wait_for
from gateway.kafka.client import BrokerClient, BrokerConnection, RequestRound
from protocol.admin.cluster import METADATA, MetadataRequest
from protocol.authentication.scram import HASHES, make_record, record_text
from tests.clients import harness
from tests.integration.gateways import Gateway, create_topic, end_offsets
from tests.integration.security.oidc import AUDIENCE, ISSUER, Issuer

BROKER_USERS = {"admin": "admin-secret", "tenant": "tenant-secret", "others": "others-secret"}
ALLOWED = {"alice": "alice's own", "bob": "bob's own", "carol": "carol's own", "dave": "dave's own"}
LIFETIME_MS = 8000
ATTEMPTS = 3  # a machine that stands still for four seconds, from a renewal's time to a session's end, costs that one
# Tokens of brokers are unsecured ones here, as Kafka takes them unless it is told otherwise.
LISTENER = "listener.name.sasl_plaintext"
ACLS = {
    f"{LISTENER}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    f"{LISTENER}.oauthbearer.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    ' required unsecuredLoginStringClaim_sub="admin";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS;User:tenant",
    "connections.max.reauth.ms": str(LIFETIME_MS),
}
SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class Stage(NamedTuple):
    kafka: EmbeddedCluster
    gateway: Gateway
    issuer: Issuer
    own: Path
    inside: str

    def principals(self, client_id: str) -> dict[str, int]:
        """Messages by principal, of that client id, as the usage log has them."""
        found: dict[str, int] = {}
        for record in self.gateway.spooled():
            for row in record["rows"]:
                if row["client_id"] == client_id and row["outcome"] == "accepted":
                    found[row["principal"]] = found.get(row["principal"], 0) + row["messages"]
        return found

    def expect(self, client_id: str, principal: str, messages: int) -> None:
        wait_for("the usage log", lambda: self.principals(client_id) == {principal: messages})


def written(path: Path, data: Any) -> Path:
    path.write_text(yaml.safe_dump(data))
    return path


def unsecured(name: str) -> str:
    """A token that lasts an hour."""
    now = int(time.time())
    return jwt.encode({"sub": name, "iat": now, "exp": now + 3600}, key="", algorithm="none")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("credentials")
    records = {
        name: {
            kind: record_text(make_record(HASHES[kind], password, b"salt of " + name.encode(), 4096)) for kind in SCRAMS
        }
        for name, password in ALLOWED.items()
    }
    own = {
        "User:alice": {"mechanism": "PLAIN", "username": "tenant", "password": BROKER_USERS["tenant"]},
        "User:olivia": {"mechanism": "SCRAM-SHA-256", "username": "tenant", "password": BROKER_USERS["tenant"]},
        "User:carol": {"mechanism": "OAUTHBEARER", "token_file": str(folder / "token")},
        "User:dave": {
            "mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=tenant lifeSeconds=3600",
        },
        "default": {"mechanism": "SCRAM-SHA-512", "username": "others", "password": BROKER_USERS["others"]},
    }
    (folder / "token").write_text(unsecured("tenant"))
    with EmbeddedCluster(1, ACLS, users=BROKER_USERS) as kafka, Issuer() as issuer:
        upstream = {
            "bootstrap_servers": kafka.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": BROKER_USERS["admin"],
        }
        # At the first listener SASL ends at the gateway, as at all; at the second it passes through.
        first = embedded.find_free_port(6)
        settings = {
            "upstream": upstream,
            "listeners": {
                "outside": {"port": first},
                "inside": {"port": first + 3, "authentication": {"enabled": False}},
            },
            "authentication": {
                "sasl.enabled.mechanisms": ["PLAIN", *SCRAMS, "OAUTHBEARER"],
                "credentials_file": str(written(folder / "credentials.yaml", records)),
                "upstream_credentials_file": str(written(folder / "own.yaml", own)),
                "sasl.oauthbearer.jwks.endpoint.url": issuer.jwks_url,
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "sasl.oauthbearer.expected.issuer": ISSUER,
                "sasl.oauthbearer.clock.skew.seconds": 3,  # librdkafka looks at its tokens once a second
            },
        }
        with Gateway(kafka.sasl_bootstrap_servers, settings) as gateway:
            gateway.bootstrap = f"{embedded.HOST}:{first}"
            create_topic(kafka, "clicks")
            yield Stage(kafka, gateway, issuer, folder / "own.yaml", f"{embedded.HOST}:{first + 3}")


def librdkafka(stage: Stage, client_id: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": stage.gateway.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "client.id": client_id,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def produced(properties: dict[str, Any], count: int = 5) -> list[KafkaError | None]:
    results: list[KafkaError | None] = []
    producer = Producer({**properties, "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce("clicks", b"%d" % number, on_delivery=lambda error, _: results.append(error))
    assert producer.flush(90) == 0
    return results


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAMS])
def test_librdkafka_with_a_password_that_no_broker_has(stage: Stage, mechanism: str) -> None:
    client_id = f"librdkafka-{mechanism}"
    own = librdkafka(stage, client_id, sasl_mechanism=mechanism, sasl_username="alice", sasl_password=ALLOWED["alice"])
    assert produced(own) == [None] * 5
    stage.expect(client_id, "User:alice", 5)


def test_kafka_python(stage: Stage) -> None:
    client_id = "python"
    producer = KafkaProducer(
        bootstrap_servers=stage.gateway.bootstrap,
        client_id=client_id,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="alice",
        sasl_plain_password=ALLOWED["alice"],
    )
    try:
        producer.send("clicks", b"1").get(60)
    finally:
        producer.close()
    stage.expect(client_id, "User:alice", 1)


def test_a_java_client_whose_gateway_authenticates_again_under_load(stage: Stage) -> None:
    """The broker ends sessions after eight seconds, of which the client knows nothing."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{login} required username="alice" password="{ALLOWED["alice"]}";',
    }
    count = 1000
    closed = []
    for attempt in range(ATTEMPTS):
        name = create_topic(stage.kafka, f"java-{attempt}")
        given: dict[str, Any] = {"run": "r", "topics": [name], "partitions": 1, "count": count, "rate": 100}
        driver = harness.Driver("java", "produce", stage.gateway.bootstrap, client_id=name, options=options, **given)
        result = driver.result()
        assert (result["acknowledged"], result["failed"], result["errors"]) == (count, [], {})
        assert end_offsets(stage.kafka, name) == count
        stage.expect(name, "User:alice", count)
        closed.append(result["connections_closed"])  # as a broker does at the end of a session
        if not closed[-1]:
            return
    pytest.fail(f"the broker has ended sessions each time: {closed}")


def test_the_gateway_s_tokens_are_the_brokers_user(stage: Stage) -> None:
    """A file's and one of its own, on connections on which the gateway authenticates again every four seconds."""
    told: list[KafkaError] = []  # of connections that the gateway or its broker closed, too
    for attempt in range(ATTEMPTS):
        told.clear()
        errors: dict[str, list[KafkaError | None]] = {"carol": [], "dave": []}
        producers = {}
        for name in errors:
            login = {"sasl_mechanism": "PLAIN", "sasl_username": name, "sasl_password": ALLOWED[name]}
            own = librdkafka(stage, f"{name}-{attempt}", **login)
            producers[name] = Producer({**own, "enable.idempotence": True, "error_cb": told.append})
        until = time.monotonic() + 1.25 * LIFETIME_MS / 1000
        while time.monotonic() < until:
            for name, producer in producers.items():
                producer.produce("clicks", b"x", on_delivery=lambda error, _: errors[name].append(error))
                assert producer.flush(60) == 0
            time.sleep(0.1)
        for name, own_errors in errors.items():
            assert own_errors == [None] * len(own_errors)
            stage.expect(f"{name}-{attempt}", f"User:{name}", len(own_errors))
        if not told:
            return
    pytest.fail(f"connections were ended each time: {[error.str() for error in told]}")


def refusal_of(config: dict[str, Any]) -> str:
    """What a client is told that can't authenticate."""
    said: list[KafkaError] = []
    given: dict[str, Any] = {**config, "error_cb": said.append, "log_level": 0}
    admin = AdminClient(given)

    def is_told() -> bool:
        admin.poll(0.1)
        return any(error.code() == KafkaError._AUTHENTICATION for error in said)

    wait_for("an authentication error", is_told)
    return next(error.str() for error in said if error.code() == KafkaError._AUTHENTICATION)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_an_authentication_error(stage: Stage, mechanism: str) -> None:
    own = librdkafka(stage, "guesser", sasl_mechanism=mechanism, sasl_username="alice", sasl_password="admin-secret")
    assert "Authentication failed: invalid credentials" in refusal_of(own)


def test_at_another_listener_sasl_passes_through(stage: Stage) -> None:
    def inside(name: str, password: str) -> dict[str, Any]:
        own = librdkafka(stage, f"inside-{name}", sasl_mechanism="PLAIN", sasl_username=name, sasl_password=password)
        return {**own, "bootstrap.servers": stage.inside}

    assert produced(inside("admin", BROKER_USERS["admin"])) == [None] * 5
    stage.expect("inside-admin", "User:admin", 5)
    assert "Invalid username or password" in refusal_of(inside("alice", ALLOWED["alice"]))  # the broker's words


def test_acls_are_those_of_the_user_that_the_gateway_maps_to(stage: Stage) -> None:
    def may_see(name: str) -> bool:
        own = librdkafka(stage, name, sasl_mechanism="PLAIN", sasl_username=name, sasl_password=ALLOWED[name])
        error = AdminClient(own).list_topics("clicks", timeout=60).topics["clicks"].error
        assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        return error is None

    assert may_see("alice")  # as `tenant`
    assert not may_see("bob")  # as `others`, who may do nothing


def test_a_token_that_is_not_there_is_told(stage: Stage) -> None:
    file = stage.own.parent / "token"
    before = file.read_text()
    file.unlink()
    own = librdkafka(stage, "carol-2", sasl_mechanism="PLAIN", sasl_username="carol", sasl_password=ALLOWED["carol"])
    assert "could not authenticate to the broker" in refusal_of(own)
    wait_for("the log", lambda: f"no token for brokers, for User:carol: {file} can't be read" in stage.gateway.log())
    file.write_text(before)


def test_credentials_that_the_broker_refuses_are_told(stage: Stage) -> None:
    before = stage.own.read_text()
    data = yaml.safe_load(before)
    data["User:bob"] = {"mechanism": "PLAIN", "username": "tenant", "password": "outdated"}
    stage.own.write_text(yaml.safe_dump(data))
    own = librdkafka(stage, "bob-2", sasl_mechanism="PLAIN", sasl_username="bob", sasl_password=ALLOWED["bob"])
    assert "could not authenticate to the broker" in refusal_of(own)
    wait_for("the log", lambda: "the broker refuses the gateway's PLAIN as tenant" in stage.gateway.log())
    assert "outdated" not in stage.gateway.log()
    stage.own.write_text(before)


# --- OAUTHBEARER ------------------------------------------------------------------------------------------------------


def bearer(stage: Stage, client_id: str, lasts_s: float) -> dict[str, Any]:
    def fetch(_: str) -> tuple[str, float]:
        return stage.issuer.token("olivia", lasts_s), time.time() + lasts_s

    return {**librdkafka(stage, client_id, sasl_mechanism="OAUTHBEARER"), "oauth_cb": fetch}


def test_a_token_of_the_issuer_is_taken_and_nothing_is_lost_when_it_is_renewed(stage: Stage) -> None:
    """Tokens of five seconds: the gateway tells how long the session lasts. librdkafka authenticates again in time, or
    connects again where its timer of a second was too slow.
    """
    producer = Producer(bearer(stage, "olivia", 5.0))
    errors: list[Any] = []
    until = time.monotonic() + 11
    sent = 0
    while time.monotonic() < until:
        producer.produce("clicks", b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(20)
        sent += 1
        time.sleep(0.05)
    assert errors == [None] * sent
    stage.expect("olivia", "User:olivia", sent)


def test_librdkafka_s_own_oidc(stage: Stage) -> None:
    own = librdkafka(
        stage,
        "oidc",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_client_id="olivia",
        sasl_oauthbearer_client_secret="a secret",
        sasl_oauthbearer_token_endpoint_url=stage.issuer.token_url,
    )
    assert produced(own) == [None] * 5
    stage.expect("oidc", "User:olivia", 5)


def test_java_s_oidc(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={stage.issuer.token_url}"
    )
    login = "org.apache.kafka.common.security.oauthbearer"
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{login}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": stage.issuer.token_url,
        "sasl.jaas.config": f'{login}.OAuthBearerLoginModule required clientId="olivia" clientSecret="a secret";',
    }
    given: dict[str, Any] = {"run": "r", "topics": ["clicks"], "partitions": 1, "count": 10}
    driver = harness.Driver("java", "produce", stage.gateway.bootstrap, client_id="java-oidc", options=options, **given)
    assert driver.result()["acknowledged"] == 10
    stage.expect("java-oidc", "User:olivia", 10)


def test_the_gateway_s_own_client_with_tokens_of_an_issuer(stage: Stage) -> None:
    """Against a gateway at which SASL ends: its broker is a real one, and only the issuer's tokens open it."""
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "olivia",
        "sasl.oauthbearer.client.secret": "a secret",
        "sasl.oauthbearer.token.endpoint.url": stage.issuer.token_url,
    }
    client = BrokerClient(properties, stage.gateway.bootstrap, 60.0)

    async def ask(asking: RequestRound) -> int:
        async def names(connection: BrokerConnection) -> int:
            return len((await connection.send_request(METADATA, MetadataRequest(()))).brokers)

        return await asking.request_any_broker(names)

    asked = len(stage.issuer.asked)
    assert [client.run(ask), client.run(ask)] == [1, 1]
    assert len(stage.issuer.asked) == asked + 1  # the second time by the same token
