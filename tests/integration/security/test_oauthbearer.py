# OAUTHBEARER passes through, and a quota binds him whose token the broker has accepted. Tokens are unsecured ones, as
# brokers take them unless told otherwise: who is in them and when that counts is the gateway's, the signature theirs.

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Producer

from gateway.embedded import EmbeddedCluster, wait_for
from tests.integration.gateways import Gateway, create_topic

LISTENER = "listener.name.sasl_plaintext"
OVERRIDES = {
    f"{LISTENER}.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    f"{LISTENER}.oauthbearer.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    ' required unsecuredLoginStringClaim_sub="admin";',
}
USERS = {"admin": "admin-secret"}
RATE = 50_000
SIZE, LEAST = 5000, 250_000  # of a record; of all together


def test_the_user_of_an_accepted_token_is_under_its_quota(tmp_path: Path) -> None:
    with EmbeddedCluster(1, OVERRIDES, users=USERS) as cluster:
        upstream = {
            "bootstrap_servers": cluster.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": USERS["admin"],
        }
        settings = {
            "upstream": upstream,
            "internal_topics": "none",
            "policies_store": {"file": str(tmp_path / "policies.jsonl")},
            "client_quotas": [{"user": "olivia", "producer_byte_rate": RATE}],
        }
        with Gateway(cluster.sasl_bootstrap_servers, settings) as gateway:
            create_topic(cluster, "clicks")
            lost: list[object] = []
            producer = Producer(
                {
                    "bootstrap.servers": gateway.bootstrap,
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
                return gateway.metric(f"{name}_bytes_total", **labels)

            start, sent = time.monotonic(), 0

            def is_delayed() -> bool:
                nonlocal sent
                for _ in range(10):
                    producer.produce(
                        "clicks", bytes(SIZE), on_delivery=lambda error, _: lost.extend((error,) if error else ())
                    )
                    assert producer.flush(60) == 0
                    sent += SIZE
                return sent >= LEAST and counted("policy", outcome="delayed", reason="client-quota") > 0

            wait_for("a delay", is_delayed, 120, every_s=0)
            took = time.monotonic() - start
            own = {"principal": "User:olivia", "client_id": "rdkafka"}
            wait_for("all to be counted", lambda: counted("client", outcome="accepted", **own) >= sent)
            assert lost == []
            assert {counted("client", outcome=outcome, **own) for outcome in ("rejected", "unanswered")} == {0}
            assert sent <= RATE * (took + 1) + 2 * SIZE  # a second's worth is saved, and the last one doesn't wait
