# The cells of the matrix of enforcement: a client as it is configured x a limit, run to its end through the gateway,
# and what became of the records as the broker has them.
#
# The limits are those of scenario_policies.py, chosen by the topic's name. Each topic has all its partitions on one
# broker, so that a client has one connection for them and may put several into one request. Small batches put several
# requests in flight. What an outcome should be is said here too (`findings`); test_enforcement.py asks for it.

from __future__ import annotations

import json
import re
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gateway.embedded import EmbeddedError, wait_for
from tests.clients import harness
from tests.clients.gateways import Gateway
from tests.clients.limits.scenario_policies import LIMIT_UNTIL_S, STORM_S, STORM_THROTTLE_S

POLICY = "tests.clients.limits.scenario_policies:make"
SETTINGS: dict[str, Any] = {"policies": [POLICY]}
BROKERS = 3
REPORTED_S = 1.5  # workers report each second
SETTLE_S = 60.0


@dataclass(frozen=True)
class Variant:
    """A client as an application configures it. `needs`: the setting that helps where the default can't work."""

    name: str
    client: str
    title: str
    config: dict[str, Any] = field(default_factory=dict)
    needs: str = ""
    promised: bool = False  # 0 lost, 0 duplicates, in order, no errors, whatever the limit
    ordered: bool = False  # promised to keep the order, but not to get through


@dataclass(frozen=True)
class Scenario:
    """A limit, and the load that it is met with."""

    name: str
    title: str
    config: dict[str, Any]
    partitions: int
    delays: bool = False  # nothing is rejected: no client may see an error
    forced: dict[str, Any] = field(default_factory=dict)  # instead of the variant's own settings


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("java", "java", "Java (idempotent, its default)", promised=True),
        Variant("java-plain", "java", "Java, `enable.idempotence=false`", {"idempotence": False}),
        Variant("librdkafka", "librdkafka", "librdkafka"),
        Variant(
            "librdkafka-idempotent",
            "librdkafka",
            "librdkafka, `enable.idempotence=true`",
            {"idempotence": True},
            promised=True,
        ),
        Variant("franz-go", "franz-go", "franz-go (idempotent, its default)", promised=True),
        Variant("sarama", "sarama", "sarama"),
        Variant("kafka-python", "kafka-python", "kafka-python (idempotent, its default)", promised=True),
        Variant("aiokafka", "aiokafka", "aiokafka"),
        Variant("kafkajs", "kafkajs", "KafkaJS"),
        Variant(
            "java-plain-ordered",
            "java",
            "Java, `enable.idempotence=false`",
            {"idempotence": False, "options": {"max.in.flight.requests.per.connection": "1"}},
            needs="max.in.flight.requests.per.connection=1",
            ordered=True,
        ),
        Variant(
            "franz-go-metadata",
            "franz-go",
            "franz-go",
            {"options": {"metadata_min_age_ms": 250}},
            needs="MetadataMinAge(250ms)",
            promised=True,
        ),
        Variant(
            "sarama-retries",
            "sarama",
            "sarama",
            {"idempotence": True, "options": {"retry_max": 1000, "retry_backoff_ms": 500}},
            needs="Producer.Idempotent=true, Net.MaxOpenRequests=1, Producer.Retry.Max=1000, Retry.Backoff=500ms",
            ordered=True,
        ),
        Variant(
            "aiokafka-timeout",
            "aiokafka",
            "aiokafka",
            {"idempotence": True, "options": {"request_timeout_ms": 120_000}},
            needs="request_timeout_ms=120000, enable_idempotence=True",
            ordered=True,
        ),
        Variant(
            "kafkajs-retries",
            "kafkajs",
            "KafkaJS",
            {"options": {"retries": 20, "requestTimeout": 60_000}},
            needs="retry: { retries: 20 }, requestTimeout: 60000",
            ordered=True,
        ),
    )
}
PROMISED = tuple(name for name, variant in VARIANTS.items() if variant.promised and not variant.needs)
DEFAULTS = tuple(name for name, variant in VARIANTS.items() if not variant.needs)
# One of each library: where acks or transactions decide about idempotence, a variant makes no difference.
LIBRARIES = ("java", "librdkafka", "franz-go", "sarama", "kafka-python", "aiokafka", "kafkajs")

SMALL = {"batch_records": 4}
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("delay-3s", "delay 3 s", {"count": 60, **SMALL}, 3, delays=True),
        Scenario("delay-bound", "delay to the bound", {"count": 60, "timeout_s": 100, **SMALL}, 2, delays=True),
        Scenario("reject-30", "30 % rejected", {"count": 400, "timeout_s": 400, **SMALL}, 2),
        Scenario("one-partition", "one of 4 partitions rejected", {"count": 120, **SMALL}, 4),
        Scenario("pause-40s", "40 s of rejections", {"count": 60, "timeout_s": 150, **SMALL}, 2),
        Scenario(
            "acks-0",
            "acks=0",
            {"count": 200, "rate": 40, **SMALL},
            2,
            delays=True,
            forced={"acks": 0, "idempotence": False},
        ),
        Scenario(
            "transactions",
            "transactions",
            {"count": 60, "transaction_size": 20, "timeout_s": 100, **SMALL},
            2,
            forced={"transactional_id": "", "idempotence": None},
        ),
        Scenario("lifted", "lifted in the middle", {"count": 400, "rate": 40, "timeout_s": 90, **SMALL}, 2),
        Scenario("storm", "one batch, 12 s rejected", {"count": 1}, 1),
    )
}
# Cells in which the defaults can't work, or not well, with the setting that helps.
REMEDIES = {
    "java-plain-ordered": ("reject-30", "lifted"),
    "franz-go-metadata": ("reject-30", "one-partition", "lifted"),
    "sarama-retries": ("reject-30", "one-partition", "pause-40s", "transactions", "lifted", "storm"),
    "aiokafka-timeout": ("reject-30", "pause-40s", "lifted"),
    "kafkajs-retries": ("reject-30", "pause-40s", "lifted"),
}
# At most once per throttle time, and once more for where the limit ends between two of them.
STORM_MOST = round(STORM_S / STORM_THROTTLE_S) + 1

Cell = tuple[str, str]  # scenario, variant


def cells() -> Iterator[Cell]:
    """The whole matrix, the longest first."""
    for scenario in ("reject-30", "pause-40s", "delay-bound", "transactions", "lifted", "storm", "delay-3s"):
        yield from ((scenario, variant) for variant in (LIBRARIES if scenario == "transactions" else DEFAULTS))
        yield from ((scenario, variant) for variant, helped in REMEDIES.items() if scenario in helped)
    for scenario in ("one-partition", "acks-0"):
        yield from ((scenario, variant) for variant in (LIBRARIES if scenario == "acks-0" else DEFAULTS))
        yield from ((scenario, variant) for variant, helped in REMEDIES.items() if scenario in helped)


# What `make test` runs: each library is delayed and rejected; and each scenario once, but for the longest delay and the
# longest pause, which simulated worlds have, and one partition of several (test_enforcement.py's mixed requests). Java,
# librdkafka and franz-go are delayed in integration/limits/test_client_quotas.py, an idempotent librdkafka is rejected
# in integration/limits/test_thresholds.py. The rest is in `make clients`.
BRIEF: tuple[Cell, ...] = (
    *(("reject-30", variant) for variant in ("kafka-python", "sarama-retries", "franz-go-metadata", "kafkajs-retries")),
    ("lifted", "librdkafka"),
    ("storm", "aiokafka"),
    ("transactions", "java"),
    *(("delay-3s", variant) for variant in ("sarama", "kafka-python", "aiokafka", "kafkajs")),
    ("acks-0", "librdkafka"),
)


@dataclass
class Outcome:
    """What became of one cell. `failure`: the driver gave no result; the numbers then mean nothing."""

    scenario: str
    variant: str
    version: str = ""
    sent: int = 0
    acknowledged: int = 0
    delivered: int = 0  # distinct records that the broker has
    errors: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    first_error: str = ""
    unresolved: int = 0
    lost: int = 0
    duplicates: int = 0
    reordered: int = 0
    unexpected: int = 0
    damaged: int = 0
    rejected: int = 0  # requests with at least one rejected partition
    throttle_s: float = 0.0  # the throttle times that went with rejections and delays, added up
    transactions: dict[str, int] = field(default_factory=dict)
    timeline: list[int] = field(default_factory=list)
    elapsed_s: float = 0.0
    failure: str = ""


def drive(gateway: Gateway, direct: str, cell: Cell) -> Outcome:
    """Run one cell: produce through `gateway`, read back from the brokers at `direct`."""
    scenario, variant = SCENARIOS[cell[0]], VARIANTS[cell[1]]
    mark = uuid.uuid4().hex[:6]
    topic = f"{scenario.name}--{variant.name}-{mark}"
    given = {**scenario.config, **variant.config, **scenario.forced}
    given = {name: value for name, value in given.items() if value is not None}
    if "transactional_id" in given:
        given["transactional_id"] = topic
    broker = 1 + zlib.crc32(topic.encode()) % BROKERS
    harness.create_topics(direct, [topic], scenario.partitions, broker=broker)
    where = {"topics": [topic], "run": mark, "partitions": scenario.partitions}
    try:
        produced = harness.run(variant.client, "produce", gateway.bootstrap, client_id=topic, **where, **given)
    except harness.DriverFailed as failure:
        return Outcome(*cell, failure=str(failure)[-600:])
    if given.get("acks") == 0:
        harness.await_end(direct, topic, scenario.partitions, given["count"])
    log = harness.read_back(direct, [topic], variant.client, mark)
    verdict = harness.judge(produced, log)
    return Outcome(
        *cell,
        version=str(produced["version"]),
        sent=produced["sent"],
        acknowledged=produced["acknowledged"],
        delivered=len(set(log.numbers())),
        errors=produced["errors"],
        events=produced["events"],
        first_error=produced["first_error"],
        unresolved=len(produced["unresolved"]),
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        reordered=verdict.reordered,
        unexpected=len(verdict.unexpected),
        damaged=verdict.damaged,
        rejected=rejected_requests(gateway, topic, len(set(log.numbers()))),
        throttle_s=round(counted(gateway, "throttle_seconds", topic), 1),
        transactions=produced["transactions"],
        timeline=produced["timeline"],
        elapsed_s=round(produced["elapsed_s"], 1),
    )


def findings(outcome: Outcome) -> list[str]:
    """What is not as it has to be; an empty list where all is well."""
    if outcome.failure:
        return [outcome.failure]
    scenario, variant = SCENARIOS[outcome.scenario], VARIANTS[outcome.variant]
    found = []
    for name in ("lost", "duplicates", "unexpected", "damaged"):
        if count := getattr(outcome, name):  # of every client, in every cell
            found.append(f"{count} {name}")
    through = variant.promised or variant.needs or scenario.delays
    if through and (outcome.errors or outcome.unresolved or outcome.delivered != outcome.sent):
        told = f"{outcome.errors}, {outcome.unresolved} unresolved ({outcome.first_error})"
        found.append(f"{outcome.delivered} of {outcome.sent} delivered, errors {told}")
    in_order = variant.promised or variant.ordered or scenario.delays or scenario.name == "transactions"
    if in_order and outcome.reordered:
        found.append(f"{outcome.reordered} out of order")
    if scenario.name == "storm" and outcome.rejected > STORM_MOST:
        found.append(
            f"rejected {outcome.rejected} times in {STORM_S:.0f} s, each with {STORM_THROTTLE_S:.0f} s to wait"
        )
    # The limit lasts until then at least, so anything acknowledged earlier passed before it, however slow the machine.
    if scenario.name == "lifted" and through and sum(outcome.timeline[: int(LIMIT_UNTIL_S)]) == 0:
        found.append("nothing passed before the limit")
    if not (outcome.throttle_s if scenario.delays else outcome.rejected):
        found.append("the limit was not met: what it would have done is not known")
    return found


def rejected_requests(gateway: Gateway, topic: str, delivered: int) -> int:
    """Requests that were rejected in whole or in part, once /metrics has what was delivered and doesn't change."""
    passed = ("accepted", "duplicate", "unacknowledged")
    rejected = -1.0

    def settled() -> bool:
        nonlocal rejected
        before, rejected = rejected, counted(gateway, "produce_requests", topic, "rejected")
        arrived = sum(counted(gateway, "produce_messages", topic, outcome) for outcome in passed)
        return arrived >= delivered and rejected == before

    try:
        wait_for("", settled, SETTLE_S, every_s=REPORTED_S)
    except EmbeddedError:
        raise AssertionError(f"{topic}: /metrics does not show the {delivered} messages that the broker has") from None
    return round(rejected)


def counted(gateway: Gateway, name: str, topic: str, outcome: str = "") -> float:
    """The sum of a counter over a topic's series with that outcome, or all."""
    return counted_in(gateway.metrics(), name, topic, outcome)


def counted_in(text: str, name: str, topic: str, outcome: str = "") -> float:
    """The same of what /metrics said at one moment."""
    chosen = f'outcome="{outcome}"' if outcome else "outcome="
    labels = rf'(?=[^}}]*{chosen})(?=[^}}]*topic="{re.escape(topic)}")'
    pattern = rf"^produce_gateway_{name}_total{{{labels}[^}}]*}} (\S+)$"
    return sum(map(float, re.findall(pattern, text, re.MULTILINE)))


def save(outcomes: list[Outcome], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
    path.write_text(text)


def load(path: Path) -> list[Outcome]:
    return [Outcome(**json.loads(line)) for line in path.read_text().splitlines()]
