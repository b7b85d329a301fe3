# A real gateway's exposition while a real client produces under a limit: the histograms have counted it, and every
# series is one of the table, with the labels that the table says. The log beside it is JSON.

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from gateway.control.metrics import FAMILIES, PREFIX
from gateway.embedded import EmbeddedCluster, wait_for
from tests.integration.gateways import Gateway, create_topic

QUOTAS = [{"client_id": "held", "producer_byte_rate": "50KB"}]
SENT = 20

pytestmark = pytest.mark.kafka


def test_latencies_requests_and_waits_of_a_real_producer_are_counted(kafka: EmbeddedCluster) -> None:
    create_topic(kafka, "metrics-latency")
    with Gateway(kafka.bootstrap_servers, {"client_quotas": QUOTAS, "log": {"format": "json"}}) as gateway:
        producer = Producer({"bootstrap.servers": gateway.bootstrap, "client.id": "held", "batch.num.messages": 1})
        for _ in range(SENT):
            producer.produce("metrics-latency", bytes(10_000))
            producer.poll(0.02)
        assert producer.flush(60) == 0
        value = gateway.metric
        wait_for("all requests", lambda: value("produce_messages_total", outcome="accepted") == SENT)
        sent = value("requests_total", api="Produce")
        wait_for("their times", lambda: value("produce_request_seconds_count") == sent)
        assert 1 <= sent <= SENT
        assert value("broker_round_trip_seconds_count") == sent
        assert value("produce_request_seconds_sum") >= value("broker_round_trip_seconds_sum") > 0
        assert value("requests_total", api="ApiVersions") >= 1
        assert value("limit_wait_seconds_sum", reason="client-quota") > 0.5
        assert value("produce_request_seconds_sum") >= value("limit_wait_seconds_sum", reason="client-quota")
        assert value("worker_cpu_seconds_total", worker="0") > 0
        shown = list(text_string_to_metric_families(gateway.metrics()))
        log = gateway.log()
    for family in shown:
        if not family.name.startswith(f"{PREFIX}_control_process_"):
            labels = set(FAMILIES[family.name.removeprefix(f"{PREFIX}_")].labels)
            assert [each for each in family.samples if each.labels.keys() - {"le"} != labels] == []
    assert all(json.loads(line)["event"] for line in log.splitlines())
