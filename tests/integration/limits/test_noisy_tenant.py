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
from tests.integration.limits.windows import most_of, wait_window

pytestmark = pytest.mark.kafka

LIMIT = 1_500_000.0  # of the noisy tenant, bytes a second
OFFER = 4 * LIMIT
QUIET_LIMIT, QUIET_OFFER = 1_000_000.0, 250_000.0
WARM_S, WINDOW_S = 4.0, 10.0  # workers report once a second
SAMPLE = re.compile(r"^produce_gateway_(?:produce|policy)_bytes_total\{(.*)\} (\S+)$", re.MULTILINE)


# To make and delete 500 is seconds of work for a broker, and to ask for /metrics of so many for a gateway.
@pytest.fixture(params=[60, pytest.param(500, marks=pytest.mark.full)])
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

        first = last = Seen(gateway)

        def rates(_: float, __: float) -> list[float]:
            """Of both tenants, by the times at which /metrics were asked."""
            nonlocal last
            before, last = last, Seen(gateway)
            return [last.of("accepted", topics, before) / (last.at - before.at) for topics in (noisy, quiet)]

        def holds(seen: list[float]) -> bool:
            return 0.8 * LIMIT < seen[0] < most_of(LIMIT, WINDOW_S) and seen[1] > 0.8 * QUIET_OFFER

        wait_window(rates, holds, window_s=WINDOW_S)
        for load in (calm, *loads):
            sent, acknowledged, failed = load.finish()
            assert (acknowledged, failed) == (sent, 0)

    seconds = last.at - first.at
    assert last.of("accepted", noisy, first) / seconds < most_of(LIMIT, seconds)
    assert last.of("delayed", noisy, first) > LIMIT, "it was held"
    assert last.of("delayed", quiet, first) == last.of("rejected", quiet, first) == 0


class Seen:
    """Bytes by outcome and topic, as /metrics has them `at` that time."""

    def __init__(self, gateway: Gateway) -> None:
        text = gateway.metrics()
        self.at = time.monotonic()
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
