# One scene: topics of its own, a gateway of its own in front of the cluster that all scenes share, three producers that
# are at their limits and a consumer; a fault; and, when everybody has come to his end, the judgement.
#
#   threshold  idempotent, rejected whenever an operator lowers thresholds (squeeze.py), which he does all the time
#   quota      plain (acks=all), over its client quota: delayed
#   group      idempotent, over its resource group's limit: delayed

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from gateway import embedded
from gateway.embedded import HOST, EmbeddedCluster, wait_for
from policies import usage
from tests.chaos import checker
from tests.chaos.checker import Amount, Books, Sums
from tests.chaos.load import BATCH_BYTES, CLIENT, IN_FLIGHT, Load, Task
from tests.chaos.squeeze import Squeeze
from tests.chaos.toxiproxy import Toxiproxy
from tests.clients import harness
from tests.integration.fleet.test_policy_fleet import Mortal
from tests.integration.gateways import create_topic, read_topic
from tests.integration.storage.disks import SmallDisk

BROKERS = 3
WORKERS = 2
PARTITIONS = 3
CLIENTS_HOST = "127.0.0.2"  # where the proxies between clients and gateway listen, on the gateway's ports
BROKERS_HOST = "127.0.0.3"  # those between gateway and brokers, on the ports of the brokers' second listener
RECOVERY_S = 90.0
BITE_S = 200.0  # rates are one-minute averages: on a slow machine a producer needs its time to be above a threshold
SETTLE_S = 20.0
AFTER_RECORDS = 300  # of each producer behind the fault
OFFER = 200.0  # records of 1,000 bytes per second, of each producer
LIMIT = 55_000  # bytes per second of each broker: what quota and group let in of it
TOTAL = 50_000_000  # a threshold that only the squeeze makes bite
SPOOL_DISK = 4 * 2**20
FAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1")


class Chaos(EmbeddedCluster):
    """Three brokers with a second listener, whose address is a proxy's that need not be there."""

    def __init__(self) -> None:
        port = embedded.find_free_port(3 * BROKERS)
        self._second = port + 2 * BROKERS - 1
        own: dict[int, dict[str, str]] = {}
        for node in range(1, BROKERS + 1):
            client, controller, second = port + node - 1, port + BROKERS + node - 1, self._second + node
            own[node] = {
                "listeners": f"PLAINTEXT://{HOST}:{client},CONTROLLER://{HOST}:{controller},SECOND://{HOST}:{second}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{client},SECOND://{BROKERS_HOST}:{second}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT",
            }
        super().__init__(BROKERS, per_broker_overrides=own, port=port)

    def second_port(self, node_id: int) -> int:
        return self._second + node_id


@dataclass(frozen=True)
class Fault:
    """What is done to a scene, and what follows for its judgement."""

    name: str
    inject: Callable[[Scene], None]
    kills: int = 0  # workers that die by it
    again: int = 0  # connections of each producer that may lose answers: what was under way there may count once more
    deletes: bool = False  # the usage topic
    pace: float = 1.0  # of the load
    proxied: bool = False
    own_clock: bool = False  # the gateway's wall clock is ours
    own_disk: bool = False  # so is the spool's disk
    settings: Mapping[str, Any] = field(default_factory=dict)  # more sections of the gateway's configuration


@dataclass
class Row:
    """One line of the table."""

    fault: str
    acknowledged: int = 0
    lost: int = 0
    twice: int = 0  # idempotent
    renumbered: int = 0  # of those, by the client: no broker can know them (checker.renumbered)
    repeated: int = 0  # plain: allowed
    reordered: int = 0  # idempotent
    stall_s: float = 0.0  # of those who are delayed
    rejected_s: float = 0.0  # of the one who is rejected: rejections alone make some
    sums: list[Sums] = field(default_factory=list)
    note: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def accounts(self) -> str:
        """By how much logs have grown more than accepted says, and how much of that is named; less: counted twice."""
        gaps = [(each.gap, each.unknown.bytes + each.maybe.bytes) for each in self.sums if each.gap]
        return "equal" if not gaps else ", ".join(f"{gap:+,}" + f" of {named:,}" * (gap > 0) for gap, named in gaps)

    def __str__(self) -> str:
        log = sum(each.log.bytes for each in self.sums)
        return (
            f"{self.fault:<34} {self.acknowledged:>7,} {self.lost:>4} {self.twice:>5} {self.repeated:>6}"
            f" {self.renumbered:>5} {self.reordered:>5} {self.stall_s:>6.1f} {self.rejected_s:>8.1f} {log:>12,}"
            f"  {'FAILED' if self.faults else 'ok':<6} {self.note:<6}  {self.accounts}"
        )


HEADER = (
    f"{'fault':<34} {'acked':>7} {'lost':>4} {'twice':>5} {'plain+':>6} {'epoch':>5} {'order':>5}"
    f" {'stall':>6} {'rejected':>8} {'log bytes':>12}  {'':<6} {'':<6}  log less accepted"
)


class Scene:
    """Everything that is there while a fault is done; faults get it.

    Attributes:
        kafka, gateway, proxy, disk: what they are done to; the last two where the fault asks for them.
        squeeze: the operator.
        control_since_ms: since when this control process counts, where the fault ended another one.
        note: what the table shall say.
    """

    def __init__(self, kafka: Chaos, fault: Fault) -> None:
        self.kafka, self.fault = kafka, fault
        self.name = uuid.uuid4().hex[:8]
        self.note = ""
        self.control_since_ms = 0
        self.internal = [f"__{what}-{self.name}" for what in ("usage", "policies", "resource-usage")]
        self.topics = {
            "threshold": f"{self.name}-threshold",
            "quota": f"{self.name}-quota",
            "group": f"t{self.name}.chaos.group",
        }
        self.loads: dict[str, Load] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Scene:
        with ExitStack() as stack:
            for topic in self.topics.values():
                create_topic(
                    self.kafka, topic, PARTITIONS, message_timestamp_type="LogAppendTime", min_insync_replicas="2"
                )
            settings = self._settings()
            if self.fault.own_disk:
                self.disk = stack.enter_context(SmallDisk(SPOOL_DISK))
                settings["usage_log"]["spool_dir"] = str(self.disk.path / "spool")
            if self.fault.proxied:
                settings["listener"] = {"advertised_host": CLIENTS_HOST}
            with self._clock(stack):
                self.gateway = Mortal(self._upstream(), settings, node_ids=BROKERS)
            if self.fault.proxied:
                self.proxy = stack.enter_context(Toxiproxy(self._ways()))
            stack.enter_context(self.gateway)
            self._start_loads(stack)
            self.squeeze = Squeeze(self.gateway, self.topics["threshold"])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def producers(self) -> dict[str, Load]:
        return {run: load for run, load in self.loads.items() if load.task.role == "produce"}

    def ways(self, side: str) -> list[str]:
        """Names of the proxies of one side: `client` or `broker`."""
        return [name for name in self._ways() if name.startswith(side)]

    def progress(self, records: int) -> None:
        """Return when each producer has so many more acknowledged."""
        wanted = {run: load.progress + records for run, load in self.producers.items()}

        def reached() -> bool:
            return all(self.loads[run].progress >= count for run, count in wanted.items())

        try:
            wait_for("", reached, RECOVERY_S)
        except embedded.EmbeddedError:
            short = {run: count - self.loads[run].progress for run, count in wanted.items()}
            raise AssertionError(f"producers don't go on; acknowledgements that are missing: {short}") from None

    def set_clock(self, ahead_s: int) -> None:
        """The gateway's wall clock is so far from true from now on."""
        fresh = self._clock_file.with_suffix(".new")
        fresh.write_text(f"{ahead_s:+d}\n")
        fresh.replace(self._clock_file)

    def play(self) -> Row:
        """The fault under load, and what came of it."""
        fault = self.fault
        with self.squeeze:
            self._await_limits()
            fault.inject(self)
            self.progress(int(AFTER_RECORDS * fault.pace))
        return self.finish()

    def finish(self) -> Row:
        """Everybody comes to his end, and the judgement."""
        for load in self.producers.values():
            load.stop()
        produced = {run: load.result() for run, load in self.producers.items()}
        self.loads["consumer"].stop()
        consumed = self.loads["consumer"].result()
        shown, then = self._settled_metrics()
        self.gateway.stop()
        return self._judge(produced, consumed, shown, then)

    def _await_limits(self) -> None:
        """Until something was rejected by the threshold, and delayed by the quota and by the group."""
        idle: list[str] = []

        def bite() -> bool:
            gateway, topics = self.gateway, self.topics
            bitten = {
                "threshold": gateway.metric("produce_bytes_total", topic=topics["threshold"], outcome="rejected"),
                "quota": gateway.metric("policy_bytes_total", topic=topics["quota"], reason="client-quota"),
                "group": gateway.metric("policy_bytes_total", topic=topics["group"], reason="resource-group"),
            }
            idle[:] = [run for run, size in bitten.items() if not size]
            return not idle

        try:
            wait_for("", bite, BITE_S, every_s=0.2)
        except embedded.EmbeddedError:
            told = {run: load.progress for run, load in self.loads.items()}
            raise AssertionError(f"no limit of {idle} bites; records: {told}; {self.squeeze.refusal}") from None

    # --- before -------------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        usage_topic, policies, resource_usage = self.internal
        pace = self.fault.pace
        return {
            **self.fault.settings,
            "workers": WORKERS,
            "upstream": {"bootstrap_servers": self._upstream(), "metadata_refresh": "2s"},
            "policies_store": {"topic": policies},
            "usage_log": {"topic": usage_topic},
            "resourceUsagePublishTopicName": resource_usage,
            "thresholds": {"total.bytes.in.per.sec.threshold": TOTAL},
            "client_quotas": [{"client_id": f"quota-{self.name}", "producer_byte_rate": int(LIMIT * pace)}],
            "resource_groups": {
                "groups": {"gold": {"publishRateInBytes": int(LIMIT * BROKERS * pace)}},
                "tenants": {f"t{self.name}": "gold"},
            },
        }

    def _upstream(self) -> str:
        if not self.fault.proxied:
            return self.kafka.bootstrap_servers
        return ",".join(f"{BROKERS_HOST}:{self.kafka.second_port(node)}" for node in self.kafka.brokers)

    def _ways(self) -> dict[str, tuple[str, str]]:
        found = {}
        for port in sorted(self.gateway.ports(BROKERS)):
            found[f"client-{port}"] = (f"{CLIENTS_HOST}:{port}", f"{HOST}:{port}")
        for node in self.kafka.brokers:
            port = self.kafka.second_port(node)
            found[f"broker-{node}"] = (f"{BROKERS_HOST}:{port}", f"{HOST}:{port}")
        return found

    @contextlib.contextmanager
    def _clock(self, stack: ExitStack) -> Iterator[None]:
        """What starts now reads the time through libfaketime: the C library's wall clock, and no monotonic one."""
        if not self.fault.own_clock:
            yield
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="produce-gateway-clock-"))
        self._clock_file = Path(folder) / "clock"
        self.set_clock(0)
        library = next((path for pattern in FAKETIME for path in Path("/").glob(pattern[1:])), None)
        assert library is not None, "libfaketime is needed (Debian, Ubuntu: libfaketime)"
        own = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock_file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        os.environ.update(own)
        try:
            yield
        finally:
            for name in own:
                del os.environ[name]

    def _start_loads(self, stack: ExitStack) -> None:
        bootstrap = f"{CLIENTS_HOST if self.fault.proxied else HOST}:{self.gateway.port}"
        for run, topic in self.topics.items():
            self.loads[run] = Load(
                Task(
                    "produce",
                    bootstrap,
                    [topic],
                    run,
                    PARTITIONS,
                    OFFER * self.fault.pace,
                    idempotent=run != "quota",
                    client_id=f"{run}-{self.name}",
                )
            )
            stack.callback(self.loads[run].close)
        self.loads["consumer"] = Load(
            Task("consume", bootstrap, list(self.topics.values()), f"readers-{self.name}", PARTITIONS)
        )
        stack.callback(self.loads["consumer"].close)

    # --- after --------------------------------------------------------------------------------------------------------

    def _settled_metrics(self) -> tuple[dict[str, Amount], Books]:
        """/metrics and the spool of the same moment: once they agree, or when they don't come to that."""
        shown: dict[str, Amount] = {}
        books = Books()

        def settled() -> bool:
            nonlocal books
            counted = self.gateway.counted()
            books = checker.read_books(self._spooled())
            shown.clear()
            for topic in self.topics.values():
                rows = counted.get(topic, {})
                shown[topic] = checker.total(
                    Amount(*each) for (outcome, _), each in rows.items() if outcome == "accepted"
                )
            return (
                not any(checker.compare_metrics(topic, shown[topic], books, self.control_since_ms) for topic in shown)
                and self.gateway.metric("usage_log_queued_intervals") == 0
            )

        with contextlib.suppress(embedded.EmbeddedError):
            wait_for("", settled, SETTLE_S, every_s=0.5)
        return shown, books

    def _spooled(self) -> list[bytes]:
        files = sorted(self.gateway.spool.glob("usage-*.jsonl"))
        return [line for path in files for line in path.read_bytes().split(b"\n")[:-1]]

    def _judge(self, produced: dict[str, Any], consumed: Any, shown: dict[str, Amount], then: Books) -> Row:
        fault, row = self.fault, Row(self.fault.name, note=self.note)
        spool = self._spooled()
        books = checker.read_books(spool)
        row.faults += books.faults
        row.faults += checker.compare_copies(spool, read_topic(self.kafka, self.internal[0]), deleted=fault.deletes)
        row.faults += sorted({f"the audit refuses a record: {why}" for why in map(_refusal, spool) if why})
        there: dict[str, list[int]] = {}
        for run, topic in self.topics.items():
            idempotent = run != "quota"
            log = harness.read_back(
                self.kafka.bootstrap_servers, [topic], CLIENT, run, record_bytes=1000, timeout_s=RECOVERY_S
            )
            there |= log.partitions
            verdict = harness.judge(produced[run], log)
            row.acknowledged += verdict.acknowledged
            row.lost += len(verdict.lost)
            if run == "threshold":
                row.rejected_s = produced[run]["stall_s"]
            else:
                row.stall_s = max(row.stall_s, produced[run]["stall_s"])
            folders = self._log_dirs(topic)
            batches = [list(checker.batches([folder])) for folder in folders]
            early = checker.Amount()
            if idempotent:
                for folder, own in zip(folders, batches, strict=True):
                    place = f"{topic}/{folder.name.rpartition('-')[2]}"
                    count, amount = checker.renumbered(log.partitions.get(place, []), own)
                    row.renumbered += count
                    row.twice -= count
                    early = early.plus(amount)
                row.twice += verdict.duplicates
                row.reordered += verdict.reordered
            else:
                row.repeated += verdict.duplicates
            if produced[run]["failed"] or produced[run]["unresolved"]:
                told = {key: produced[run][key] for key in ("errors", "failed", "unresolved")}
                row.faults.append(f"{run}: not all of {produced[run]['sent']} were acknowledged: {told}"[:300])
            if verdict.damaged or log.strangers:
                row.faults.append(f"{run}: {verdict.damaged} damaged records, {log.strangers} strangers")
            lost_answers = Amount(fault.again * IN_FLIGHT * BATCH_BYTES, fault.again * IN_FLIGHT * BATCH_BYTES // 1000)
            sums = checker.compare(
                topic,
                [batch for own in batches for batch in own],
                books,
                idempotent=idempotent,
                kills=fault.kills,
                again=lost_answers if fault.again else None,
                early=early,
            )
            row.sums.append(sums)
            row.faults += sums.faults
            row.faults += checker.compare_metrics(topic, shown[topic], then, self.control_since_ms)
        row.faults += checker.compare_reading(consumed["partitions"], there)
        if row.lost or row.twice or row.reordered:
            row.faults.append(f"{row.lost} lost, {row.twice} twice, {row.reordered} out of order")
        return row

    def _log_dirs(self, topic: str) -> Sequence[Path]:
        """Each partition's folder at its leader."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [self.kafka.broker(each.leader).log_dir / f"{topic}-{number}" for number, each in found.items()]


def _refusal(line: bytes) -> str:
    """What the audit's reader, which is the product's own, says of a usage record; nothing if it takes it."""
    try:
        usage.decode_record(line)
    except usage.InvalidUsageRecord as error:
        return str(error)
    return ""


def play(kafka: Chaos, fault: Fault) -> Row:
    """One scene from its beginning to its judgement; whatever goes wrong is in the row."""
    started = time.monotonic()
    try:
        with Scene(kafka, fault) as scene:
            row = scene.play()
    except (AssertionError, embedded.EmbeddedError, harness.DriverFailed, OSError) as error:
        row = Row(fault.name, faults=[f"{type(error).__name__}: {error}"[:3000]])
    finally:
        for node in kafka.brokers:
            if not kafka.broker(node).is_running:
                kafka.start_broker(node)
    row.note = f"{time.monotonic() - started:.0f} s{'; ' if row.note else ''}{row.note}"
    return row


__all__ = ["HEADER", "Books", "Chaos", "Fault", "Row", "Scene", "play"]
