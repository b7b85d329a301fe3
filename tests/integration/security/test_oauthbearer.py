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
LASTS_S = 10


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
            start, sent = time.monotonic(), 0
            while time.monotonic() - start < LASTS_S:
                producer.produce(
                    "clicks", bytes(5000), on_delivery=lambda error, _: lost.extend((error,) if error else ())
                )
                sent += 1
                assert producer.flush(30) == 0

            def counted(outcome: str) -> float:
                labels = {"principal": "User:olivia", "client_id": "rdkafka", "outcome": outcome}
                return gateway.metric("client_bytes_total", **labels)

            wait_for("all to be counted", lambda: counted("accepted") >= 5000 * sent)
            assert lost == []
            assert counted("rejected") == counted("unanswered") == 0
            assert 5000 * sent <= RATE * (LASTS_S + 3)
            assert gateway.metric("policy_bytes_total", outcome="delayed", reason="client-quota") > 0
