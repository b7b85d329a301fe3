# A tenant with many topics that wants far more than its group may have, beside a tenant that stays below its own, on
# the same brokers, through the same gateway with two workers: the first is held to its limit, the second notices
# nothing.

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway.embedded import EmbeddedCluster, wait_for
from tests.integration.fleet.fleet_load import Load, Task
from tests.integration.gateways import Gateway

pytestmark = pytest.mark.kafka

LIMIT = 1_500_000.0  # of the noisy tenant, bytes a second
OFFER = 4 * LIMIT
QUIET_LIMIT, QUIET_OFFER = 1_000_000.0, 250_000.0
WARM_S, WINDOW_S = 4.0, 12.0
SAMPLE = re.compile(r"^produce_gateway_(?:produce|policy)_bytes_total\{(.*)\} (\S+)$", re.MULTILINE)


# To make and delete 500 is seconds of work for a broker.
@pytest.fixture(params=[150, pytest.param(500, marks=pytest.mark.full)])
def tenants(kafka: EmbeddedCluster, request: pytest.FixtureRequest) -> Iterator[tuple[list[str], list[str]]]:
    """Topics of the noisy and of the quiet tenant; gone afterwards, since other tests list all topics."""
    mark = uuid.uuid4().hex[:6]
    noisy = [f"noisy{mark}.events.{number:03}" for number in range(request.param)]
    quiet = [f"quiet{mark}.orders.{number}" for number in range(4)]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in (*noisy, *quiet)]).values():
        future.result(120)
    yield noisy, quiet
    for future in admin.delete_topics([*noisy, *quiet]).values():
        future.result(120)


@pytest.mark.seed("82.1")
def test_a_tenant_over_its_limit_with_many_topics_does_not_slow_another(
    kafka: EmbeddedCluster, tenants: tuple[list[str], list[str]]
) -> None:
    noisy, quiet = tenants
    count = len(noisy)
    groups = {"few": {"publishRateInBytes": LIMIT}, "many": {"publishRateInBytes": QUIET_LIMIT}}
    attached = {noisy[0].partition(".")[0]: "few", quiet[0].partition(".")[0]: "many"}
    settings = {
        "workers": 2,
        "resource_groups": {"groups": groups, "tenants": attached},
        "internal_topics": "none",
    }
    with Gateway(kafka.bootstrap_servers, settings) as gateway:
        loads = [Load(Task(gateway.bootstrap, OFFER / 2, half)) for half in (noisy[: count // 2], noisy[count // 2 :])]
        calm = Load(Task(gateway.bootstrap, QUIET_OFFER, quiet))
        wait_for("every topic to be written to", lambda: len(_bytes(gateway, "accepted")) >= count + 4, 120, every_s=2)
        time.sleep(WARM_S)  # by then each worker's part is what it needs

        before, began = Seen(gateway), time.monotonic()
        time.sleep(WINDOW_S)
        after, took = Seen(gateway), time.monotonic() - began
        for load in (calm, *loads):
            sent, acknowledged, failed = load.finish()
            assert (acknowledged, failed) == (sent, 0)

    # A machine that stands still takes that time from both; the outcomes tell whether the gateway slowed the quiet one.
    assert 0.75 * LIMIT < after.of("accepted", noisy, before) / took < 1.12 * LIMIT
    assert after.of("delayed", noisy, before) > LIMIT, "it was held"
    assert after.of("accepted", quiet, before) / took > 0.6 * QUIET_OFFER, "the quiet one was slowed"
    assert after.of("delayed", quiet, before) == after.of("rejected", quiet, before) == 0


class Seen:
    """Bytes by outcome and topic, as /metrics has them."""

    def __init__(self, gateway: Gateway) -> None:
        text = gateway.metrics()
        self._bytes = {outcome: _bytes(gateway, outcome, text) for outcome in ("accepted", "delayed", "rejected")}

    def of(self, outcome: str, topics: list[str], before: Seen) -> float:
        """What those topics have had since."""
        return sum(self._bytes[outcome].get(name, 0) - before._bytes[outcome].get(name, 0) for name in topics)


def _bytes(gateway: Gateway, outcome: str, text: str = "") -> dict[str, float]:
    """Those above 0, by topic. A parser that knows all of Prometheus's format takes seconds for so many topics."""
    found: dict[str, float] = {}
    for labels, value in SAMPLE.findall(text or gateway.metrics()):
        if f'outcome="{outcome}"' in labels and float(value):
            topic = labels.partition('topic="')[2].partition('"')[0]
            found[topic] = found.get(topic, 0) + float(value)
    return found
