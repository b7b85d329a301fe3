# Every client library, default and idempotent and with weaker acknowledgements, in transactions, in groups, as admin:
# what was sent is what is read, by the client and from the broker itself.

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clients import harness
from tests.clients.conftest import FULL, TARGETS, Matrix, Target
from tests.clients.harness import CLIENTS, PRODUCERS, Log, Result

pytestmark = [pytest.mark.clients, pytest.mark.kafka]

PARTITIONS = 6  # two for each broker
COUNT = 3000 if FULL else 300
TRANSACTION = COUNT // 15

# name -> what the driver is told. `small` batches put several requests in flight.
SMALL = {"batch_records": 4}
SCENARIOS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "acks-all": {"acks": -1, "idempotence": False, **SMALL},
    "acks-1": {"acks": 1, "idempotence": False, **SMALL},
    "acks-0": {"acks": 0, "idempotence": False, **SMALL},
    "idempotent": {"acks": -1, "idempotence": True, **SMALL},
    "keys": {"keys": True, **SMALL},
    "large": {"record_bytes": 100_000, "count": 60},
    "transactions": {"transactional_id": "", "transaction_size": TRANSACTION, "abort_every": 3, **SMALL},
}
# In `make test`: each library as it is by default and in transactions, and idempotent where that is not its default.
# acks=0 is the same for all (integration/accounts/test_accounting.py).
_LIBRARIES = tuple(name for name, client in CLIENTS.items() if not client.full_only)
BRIEF = {
    "defaults": _LIBRARIES,
    "transactions": _LIBRARIES,
    "idempotent": ("librdkafka", "sarama", "aiokafka", "kafkajs"),
    "acks-0": ("sarama",),
}
CONSUMED = tuple(SCENARIOS) if FULL else ("defaults", "transactions")


@dataclass
class Run:
    """All that a test looks at."""

    produced: Result
    log: Log
    consumed: Result | None = None
    committed: int = 0
    ends: int = 0


def names() -> list[str]:
    return [name for name, client in CLIENTS.items() if FULL or not client.full_only]


def rows() -> list[tuple[str, str]]:
    if not FULL:
        others = [client for client in PRODUCERS if client not in CLIENTS]
        return [(client, scenario) for scenario, chosen in BRIEF.items() for client in chosen] + [
            (client, "defaults") for client in others
        ]
    plain = [(client, scenario) for client in names() for scenario in SCENARIOS]
    codecs = [(client, f"compressed-{codec}") for client in names() for codec in CLIENTS[client].codecs]
    others = [client for client in PRODUCERS if client not in CLIENTS]
    plain += [(client, scenario) for client in others for scenario in ("defaults", "acks-1")]
    return plain + codecs


def config_of(scenario: str) -> dict[str, Any]:
    head, _, codec = scenario.partition("compressed-")
    return {"compression": codec, "record_bytes": 500, "batch_records": 20} if codec else SCENARIOS[head]


def drive(target: Target, client: str, scenario: str) -> Run:
    given = {"count": COUNT, **config_of(scenario)}
    mark = uuid.uuid4().hex[:6]
    topic = f"{scenario}-{client}-{target.name}-{mark}"
    if "transactional_id" in given:
        given["transactional_id"] = topic
    where = {"topics": [topic], "run": mark}
    size = given.get("record_bytes", 0)
    harness.create_topics(target.direct, [topic], PARTITIONS)
    produced = harness.run(client, "produce", target.bootstrap, **where, partitions=PARTITIONS, **given)
    if given.get("acks") == 0:
        harness.await_end(target.direct, topic, PARTITIONS, given["count"])
    log = harness.read_back(target.direct, [topic], client, mark, record_bytes=size)
    run = Run(produced, log)
    if client in CLIENTS and (scenario in CONSUMED or scenario.startswith("compressed")):
        expected = {"count": len(set(log.numbers())), "isolation": "read_committed"}
        run.consumed = harness.run(client, "consume", target.bootstrap, **where, **expected, group=topic)
        run.committed = harness.committed(target.direct, topic, topic, PARTITIONS)
        run.ends = harness.end_offsets(target.direct, topic, PARTITIONS)
    return run


def administer(target: Target, client: str) -> Result:
    topic = f"admin-{client}-{uuid.uuid4().hex[:6]}"
    return harness.run(client, "admin", target.bootstrap, topics=[topic], partitions=PARTITIONS, replication=2)


@pytest.fixture
def run_of(
    request: pytest.FixtureRequest, matrix: Matrix, target_of: Callable[[str], Target]
) -> Callable[[str, str, str], Any]:
    """The run of one row; the runs of all selected tests of this file are started with the first."""
    for item in request.session.items:
        given = getattr(item, "callspec", None)
        if given is None or not {"client", "scenario", "aim"} <= given.params.keys():
            continue
        client, scenario, aim = (given.params[name] for name in ("client", "scenario", "aim"))
        target = target_of(aim)
        if scenario == "admin":
            matrix.start((aim, client, scenario), lambda t=target, c=client: administer(t, c))  # type: ignore[misc]
        else:
            matrix.start((aim, client, scenario), lambda t=target, c=client, s=scenario: drive(t, c, s))  # type: ignore[misc]
    return lambda aim, client, scenario: matrix.result((aim, client, scenario))


@pytest.mark.parametrize("aim", TARGETS)
@pytest.mark.parametrize(("client", "scenario"), rows())
def test_the_sent_records_are_the_read_ones(
    aim: str, client: str, scenario: str, run_of: Callable[[str, str, str], Run]
) -> None:
    run = run_of(aim, client, scenario)
    produced = run.produced
    # Plain producers are held to order too: no leader moves here and nothing is refused.
    assert produced["errors"] == {}, produced["first_error"]
    assert produced["unresolved"] == []
    verdict = harness.judge(produced, run.log)
    assert verdict.clean, verdict
    assert run.log.strangers == 0
    count = produced["sent"]
    aborted = aborted_of(count) if "transactions" in scenario else []
    assert produced["aborted"] == aborted
    assert sorted(run.log.numbers()) == sorted(set(range(count)) - set(aborted))
    if run.consumed is not None:
        assert harness.judge_reading(run.consumed, run.log) == [], harness.remarks(run.consumed)
        assert run.consumed["strangers"] == 0
        # Control records of transactions have offsets too, and a consumer may commit before or behind the last one.
        assert run.committed == run.ends or ("transactions" in scenario and 0 < run.committed <= run.ends)


def aborted_of(count: int) -> list[int]:
    """Every third transaction."""
    return [i for i in range(count) if i // TRANSACTION % 3 == 2]


@pytest.mark.parametrize("aim", TARGETS)
@pytest.mark.parametrize("scenario", ["admin"])
@pytest.mark.parametrize("client", names())
def test_admin_calls_answer_and_name_no_address_but_the_targets(
    aim: str,
    client: str,
    scenario: str,
    run_of: Callable[[str, str, str], Result],
    target_of: Callable[[str], Target],
) -> None:
    answer = run_of(aim, client, scenario)
    assert answer["listed"] is True
    assert answer["partitions"] == PARTITIONS
    assert answer["retention_ms"] == "3600123"
    assert answer["deleted"] is True
    target = target_of(aim)
    assert {broker["id"]: broker["port"] for broker in answer["brokers"]} == target.ports
    assert {broker["host"] for broker in answer["brokers"]} == {"127.0.0.1"}
    assert answer["controller"] in target.ports
