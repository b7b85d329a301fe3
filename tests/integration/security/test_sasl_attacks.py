# Who a connection is, with a real broker that wants SASL and lets sessions by SCRAM-SHA-512 live for seconds: clients
# that authenticate again, one that tries to be somebody else, or to be let in as nobody, and whose quota binds whom.
#
# Mallory has an account, and the replicator's password is not hers. Whatever she does, nothing is counted for anybody
# but herself, and her connection stays hers or ends.

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import time
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from gateway.embedded import EmbeddedCluster, wait_for
from protocol import api
from tests.clients import harness
from tests.gateway.data import play
from tests.hostile.live.unharmed import RoundTrip, unharmed
from tests.integration.gateways import Gateway, create_topic, end_offsets
from tests.integration.wire import Wire
from tests.protocol.rewriting import test_identity as frames

LIFETIME_MS = 3000
LOAD_S = 24
RATE = 100  # records a second of each client
USERS = {"gateway": "gateway-secret", "mallory": "mallory-secret", "replicator": "replicator-secret"}
USERS |= {"java": "java-secret", "librdkafka": "librdkafka-secret"}
MALLORY = b"\0mallory\0mallory-secret"
REPLICATOR = b"\0replicator\0replicator-secret"
GUESSED = b"\0replicator\0anything"
LISTENER = "listener.name.sasl_plaintext"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
OVERRIDES = {
    f"{LISTENER}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    f"{LISTENER}.oauthbearer.sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="gateway";',
    f"{LISTENER}.scram-sha-512.connections.max.reauth.ms": str(LIFETIME_MS),
    "connections.max.reauth.ms": "600000",
}
RATE_OF_OLIVIA = 50_000


class Stage(NamedTuple):
    kafka: EmbeddedCluster
    gateway: Gateway

    def ended(self) -> Counter[str]:
        """Connections that ended, by what ended them."""
        samples = self.gateway.samples()["disconnects_total"]
        return Counter({labels["cause"]: int(value) for labels, value in samples if value})

    @contextmanager
    def wire(self, *causes: str) -> Iterator[Wire]:
        """A connection that ends by one of these; by the client, if nothing is given."""
        before = self.ended()
        with Wire(self.gateway.broker_port(1)) as wire:
            yield wire
        # An earlier connection may be counted meanwhile.
        expected = causes or ("client",)
        wait_for("the end of the connection", lambda: any((self.ended() - before)[cause] for cause in expected))

    def principals(self, client_id: str, *outcomes: str) -> dict[str, int]:
        """Messages by principal, of that client id, as the usage log has them: with these outcomes, else with any."""
        found: dict[str, int] = {}
        for record in self.gateway.spooled():
            for row in record["rows"]:
                if row["client_id"] == client_id and (not outcomes or row["outcome"] in outcomes):
                    found[row["principal"]] = found.get(row["principal"], 0) + row["messages"]
        return found


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with EmbeddedCluster(1, OVERRIDES, users=USERS) as kafka:
        upstream = {
            "bootstrap_servers": kafka.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "gateway",
            "sasl.password": USERS["gateway"],
        }
        quotas = [{"user": "olivia", "producer_byte_rate": RATE_OF_OLIVIA}]
        with Gateway(kafka.sasl_bootstrap_servers, {"upstream": upstream, "client_quotas": quotas}) as gateway:
            create_topic(kafka, "clicks")
            with unharmed(gateway, lambda: signed_in(gateway)):
                yield Stage(kafka, gateway)


# --- frames -----------------------------------------------------------------------------------------------------------


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def handshake(mechanism: str = "PLAIN") -> bytes:
    return framed(frames.handshake(mechanism))


def authenticate(token: bytes) -> bytes:
    return framed(frames.authenticate(token, version=1))


def produce(client_id: str) -> bytes:
    return play.request(client_id=client_id)


def metadata() -> bytes:
    return play.other_request(5, api.METADATA, 1, struct.pack(">i", -1))


def error(answer: bytes) -> int:
    """Of an answer to either step of SASL."""
    return int(struct.unpack_from(">h", answer, 8)[0])


def said(answer: bytes) -> bytes:
    """The broker's token in a SaslAuthenticate answer of version 1."""
    (length,) = struct.unpack_from(">h", answer, 10)
    at = 12 + max(0, length)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


def sign_in(wire: Wire, token: bytes = MALLORY) -> None:
    for frame in (handshake(), authenticate(token)):
        wire.send(frame)
        assert error(wire.receive()) == 0


@contextmanager
def signed_in(gateway: Gateway) -> Iterator[RoundTrip]:
    """A client that behaves: it has an account, and asks for metadata."""
    with Wire(gateway.broker_port(1)) as wire:
        sign_in(wire, b"\0gateway\0gateway-secret")

        def ask() -> None:
            wire.send(metadata())
            wire.receive()

        yield ask


def sign_in_for_seconds(wire: Wire) -> None:
    """As mallory; the session ends after LIFETIME_MS."""
    first = b"n,,n=mallory,r=nonce"
    wire.send(handshake("SCRAM-SHA-512") + authenticate(first))
    assert error(wire.receive()) == 0
    wire.send(authenticate(proof(first, said(wire.receive()), USERS["mallory"].encode(), "sha512")))
    assert error(wire.receive()) == 0


def proof(first: bytes, server_first: bytes, password: bytes, kind: str = "sha256") -> bytes:
    """The client's final message in SCRAM (RFC 5802)."""
    fields = dict(field.split(b"=", 1) for field in server_first.split(b","))
    salted = hashlib.pbkdf2_hmac(kind, password, b64decode(fields[b"s"]), int(fields[b"i"]))
    key = hmac.digest(salted, b"Client Key", kind)
    bare = first[first.index(b"n=") :]
    final = b"c=biws,r=" + fields[b"r"]
    signature = hmac.digest(hashlib.new(kind, key).digest(), b",".join((bare, server_first, final)), kind)
    return final + b",p=" + b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


def bearer(*names: str) -> bytes:
    def token(name: str) -> bytes:
        claims = {"sub": name, "iat": int(time.time()) - 1, "exp": int(time.time()) + 60}
        parts = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims)]
        return b".".join((*parts, b""))

    return b"n,,\x01" + b"".join(b"auth=Bearer " + token(name) + b"\x01" for name in names) + b"\x01"


# --- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.full  # Java, while a quota holds it: limits/test_client_quotas.py; each way of renewing: the tests below
def test_clients_authenticate_again_under_load_and_keep_their_principals(stage: Stage) -> None:
    before, accepted = stage.ended(), stage.gateway.metric("connections_accepted_total")
    count = LOAD_S * RATE
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "java": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{login} required username="java" password="{USERS["java"]}";',
        },
        "librdkafka": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "librdkafka",
            "sasl.password": USERS["librdkafka"],
        },
    }
    given: dict[str, Any] = {"run": "r", "partitions": 1, "count": count, "rate": RATE, "idempotence": True}
    topics = {name: create_topic(stage.kafka, f"load-{name}") for name in options}
    with ExitStack() as stack:
        drivers = {}
        for name, topic in topics.items():
            drivers[name] = harness.Driver(
                name, "produce", stage.gateway.bootstrap, topics=[topic], client_id=topic, options=options[name],
                **given,
            )  # fmt: skip
            stack.callback(drivers[name].stop)
        results = {name: driver.result() for name, driver in drivers.items()}

    def all_ended() -> bool:
        opened = stage.gateway.metric("connections_accepted_total") - accepted
        return (stage.ended() - before).total() == opened > 0

    wait_for("the end of all connections", all_ended)
    ended = stage.ended() - before
    assert ended.keys() <= {"client", "upstream"}
    # The broker ends a session that is not renewed in time. A client renews it as late as 150 ms before, so a machine
    # that stands still for so long may cost some: one of each connection. Whoever never renewed any would lose seven.
    assert ended["upstream"] < LOAD_S * 1000 // LIFETIME_MS - 1
    for name, result in results.items():
        assert (result["acknowledged"], result["failed"], result["errors"]) == (count, [], {})
        assert end_offsets(stage.kafka, topics[name]) == count
        wait_for("the usage log", lambda: stage.principals(topics[name], "accepted") == {f"User:{name}": count})
        sent = stage.principals(topics[name])
        assert sent.keys() == {f"User:{name}"}  # also of a session's unanswered requests
        assert ended["upstream"] or sent == {f"User:{name}": count}


def test_a_session_that_is_not_renewed_is_ended_by_the_broker(stage: Stage) -> None:
    with stage.wire("upstream") as wire:
        begun = time.monotonic()
        sign_in_for_seconds(wire)
        until = time.monotonic() + LIFETIME_MS / 1000
        try:
            assert wire.produce(produce("not-renewed"))[1] == {("clicks", 0): (0, None)}
            wait_for("the session's end", lambda: time.monotonic() > until)
            wire.send(produce("not-renewed"))
        except ConnectionError:
            assert time.monotonic() - begun > 0.9 * LIFETIME_MS / 1000, "it ended before its time"
        assert wire.ends()


def test_a_session_that_is_renewed_is_not(stage: Stage) -> None:
    for _ in range(5):
        before = stage.ended()
        begun = time.monotonic()
        try:
            with stage.wire() as wire:
                until = time.monotonic() + 2 * LIFETIME_MS / 1000
                while time.monotonic() < until:
                    begun = time.monotonic()
                    sign_in_for_seconds(wire)
                    signed = time.monotonic()  # the broker takes no two within a second
                    while time.monotonic() < signed + 0.5 * LIFETIME_MS / 1000:
                        assert wire.produce(produce("renewed"))[1] == {("clicks", 0): (0, None)}
            break
        except ConnectionError:
            # Once more only where this test was late: then the broker has to end the session.
            assert time.monotonic() - begun > 0.9 * LIFETIME_MS / 1000, "it ended though it was renewed"
            wait_for("the end of the connection", lambda counted=before: stage.ended() != counted)  # type: ignore[misc]
    else:
        pytest.fail("this test was always too late to renew it")
    wait_for("the usage log", lambda: stage.principals("renewed").keys() == {"User:mallory"})


# --- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [GUESSED, REPLICATOR], ids=["guessed", "known"])
def test_another_name_behind_the_first_one_is_not_taken(stage: Stage, token: bytes) -> None:
    """In one segment, so that the second name is there before the first one has been accepted."""
    client_id = f"behind-{token is GUESSED}"
    with stage.wire("upstream", "unauthenticated") as wire:
        wire.send(handshake() + authenticate(MALLORY) + handshake() + authenticate(token) + produce(client_id))
        assert [error(wire.receive()) for _ in range(4)][:2] == [0, 0]
        assert wire.ends()  # the broker refuses to change who somebody is
    assert stage.principals(client_id).keys() <= {"User:mallory"}  # unanswered, if the broker's end came late


@pytest.mark.parametrize("token", [GUESSED, REPLICATOR], ids=["guessed", "known"])
def test_no_client_becomes_another_by_authenticating_again(stage: Stage, token: bytes) -> None:
    client_id = f"again-{token is GUESSED}"
    with stage.wire("upstream", "unauthenticated") as wire:
        sign_in(wire)
        assert wire.produce(produce(client_id))[1] == {("clicks", 0): (0, None)}
        wire.send(handshake())
        wire.receive()
        wire.send(authenticate(token) + produce(client_id))
        assert error(wire.receive()) != 0
        assert wire.ends()
    wait_for("the usage log", lambda: stage.principals(client_id).keys() == {"User:mallory"})


def test_a_name_without_a_handshake_stays_the_first_one(stage: Stage) -> None:
    """The broker refuses it and keeps the connection, which is mallory's."""
    with stage.wire() as wire:
        sign_in(wire)
        wire.send(authenticate(REPLICATOR))
        assert error(wire.receive()) == 34  # ILLEGAL_SASL_STATE
        assert wire.produce(produce("no-handshake"))[1] == {("clicks", 0): (0, None)}
    wait_for("the usage log", lambda: stage.principals("no-handshake") == {"User:mallory": 1})


def test_a_guessed_password_opens_nothing(stage: Stage) -> None:
    with stage.wire("upstream", "unauthenticated") as wire:
        wire.send(handshake() + authenticate(GUESSED) + produce("guessed"))
        assert [error(wire.receive()) for _ in range(2)] == [0, 58]
        assert wire.ends()
    assert stage.principals("guessed") == {}


def test_a_bearer_token_names_one(stage: Stage) -> None:
    with stage.wire() as wire:
        wire.send(handshake("OAUTHBEARER") + authenticate(bearer("mallory")))
        assert [error(wire.receive()) for _ in range(2)] == [0, 0]
        assert wire.produce(produce("one-name"))[1] == {("clicks", 0): (0, None)}
    wait_for("the usage log", lambda: stage.principals("one-name") == {"User:mallory": 1})


def test_a_bearer_token_with_two_names_ends_the_connection(stage: Stage) -> None:
    with stage.wire("identity") as wire:
        wire.send(handshake("OAUTHBEARER") + authenticate(bearer("replicator", "mallory")) + produce("two-names"))
        assert error(wire.receive()) == 0
        assert wire.ends()
    assert stage.principals("two-names") == {}


def test_scram_with_a_proof_is_the_principal_it_says(stage: Stage) -> None:
    first = b"n,,n=mallory,r=nonce"
    with stage.wire() as wire:
        wire.send(handshake("SCRAM-SHA-256") + authenticate(first))
        assert error(wire.receive()) == 0
        wire.send(authenticate(proof(first, said(wire.receive()), USERS["mallory"].encode())))
        assert error(wire.receive()) == 0
        assert wire.produce(produce("scram"))[1] == {("clicks", 0): (0, None)}
    wait_for("the usage log", lambda: stage.principals("scram") == {"User:mallory": 1})


def test_no_broker_reads_a_token_of_a_megabyte(stage: Stage) -> None:
    with stage.wire("too_large") as wire:
        wire.send(handshake())
        assert error(wire.receive()) == 0
        wire.send(authenticate(b"\0mallory\0" + bytes(1 << 20))[:1000])  # its head is enough
        assert wire.ends()


def test_the_user_of_an_accepted_token_is_under_its_quota(stage: Stage) -> None:
    """Tokens are unsecured ones, as brokers take them unless told otherwise: the signature is the brokers' business."""
    topic = create_topic(stage.kafka, "olivias")
    size, least = 5000, 250_000  # of a record; of all together
    lost: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": stage.gateway.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=olivia",
            "max.in.flight": 1,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "enable.idempotence": True,
        },
    )

    def counted(name: str, **labels: str) -> float:
        return stage.gateway.metric(f"{name}_bytes_total", **labels)

    start, sent = time.monotonic(), 0

    def is_delayed() -> bool:
        nonlocal sent
        for _ in range(10):
            producer.produce(topic, bytes(size), on_delivery=lambda error, _: lost.extend((error,) if error else ()))
            assert producer.flush(60) == 0
            sent += size
        return sent >= least and counted("policy", outcome="delayed", reason="client-quota") > 0

    wait_for("a delay", is_delayed, 120, every_s=0)
    took = time.monotonic() - start
    own = {"principal": "User:olivia", "client_id": "rdkafka"}
    wait_for("all to be counted", lambda: counted("client", outcome="accepted", **own) >= sent)
    assert lost == []
    assert {counted("client", outcome=outcome, **own) for outcome in ("rejected", "unanswered")} == {0}
    assert sent <= RATE_OF_OLIVIA * (took + 1) + 2 * size  # a second's worth is saved, and the last one doesn't wait
    producer.close()  # others count connections that end
    wait_for("the end of all but the good client's", lambda: stage.gateway.metric("connections") == 1)


def test_the_attacks_were_counted_for_mallory_alone(stage: Stage) -> None:
    """However many have got in, the replicator has never produced anything."""
    with stage.wire() as wire:
        sign_in(wire)
        assert wire.produce(produce("last"))[1] == {("clicks", 0): (0, None)}
    wait_for("the usage log", lambda: stage.principals("last") == {"User:mallory": 1})
    rows = [row for record in stage.gateway.spooled() for row in record["rows"] if row["topic"] == "clicks"]
    assert {row["principal"] for row in rows} == {"User:mallory"}
    assert sum(row["messages"] for row in rows if row["outcome"] == "accepted") == end_offsets(stage.kafka, "clicks")
