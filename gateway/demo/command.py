# `produce-gateway demo`: real producers held to their limits in front of a real Kafka, and an audit to the byte.
#
# The story: three brokers, a gateway, producers that keep below all limits for SLOW_S, then offer two to three times as
# much on some topics; at the end everybody who counted must agree. Load first low: the meters are Kafka's (one-minute
# average, 5 s tick, the first tick takes the rate as it is), so producers that began at three times the limit would be
# shut out for a minute and show nothing else.
# A busy machine offers less than the plans say, and the averages take longer to get to the limits: producers go on
# until the limits have been at work for HELD_S.
# load.py has the producers, sums.py counts. Progress goes to stderr; stdout gets the result only.

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from gateway import embedded
from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.demo import sums as demo_sums
from gateway.demo.load import FLUSH_TIMEOUT_S, PERF_TEST, ProducerPlan, ProducerProcess
from gateway.demo.sums import ClusterWitness, DemoError, MeterReadings, OutcomeCounts, TopicOutcomes
from gateway.embedded import EmbeddedCluster, EmbeddedError
from gateway.kafka import topic_names

BROKER_COUNT: Final = 3

BROKER_TOTAL: Final = 1_000_000  # bytes/s and broker: small, so that a laptop with two cores has power left to show it
THRESHOLDS: Final = {"clicks": 500_000, "payments": 250_000}  # `logs` and `signups` share what is left over
EXPLICIT: Final = " + ".join(f"{name} {limit / 1e6:g}" for name, limit in THRESHOLDS.items())

REPORT_PATH: Final = Path("demo-report/report.html")

SLOW_S: Final = 10.0  # two ticks of the meters
BURST_AT_S: Final = 20.0
BURST_S: Final = 10.0
LOAD_S: Final = 60.0
HELD_S: Final = 10.0  # of rejections, before the load may end; two ticks of the meters
MAX_LOAD_FACTOR: Final = 4  # times the load's length: where nothing is rejected by then, the machine can't offer enough
SETTLE_S: Final = 10.0  # for the last interval to reach /metrics; it takes about a second
POLL_INTERVAL_S: Final = 1.0
LINE_INTERVAL_S: Final = 5.0  # where the progress goes to a file


def make_plans(seconds: float) -> tuple[ProducerPlan, ...]:
    """The load of each producer, in bytes/s over all brokers. `seconds` is the least length of the whole load; jobs of
    a fixed number of records end with it, the others when they are asked to end.
    """
    return (
        ProducerPlan("clicks", "librdkafka", ((SLOW_S, BROKER_COUNT * 450e3), (math.inf, BROKER_COUNT * 2_500e3))),
        # A job of fixed size that comes when the limits are in force: what is rejected has to get through in the end.
        ProducerPlan(
            "clicks",
            PERF_TEST,
            ((BURST_S, BROKER_COUNT * 150e3),),
            record_bytes=1_000,
            starts_s=min(BURST_AT_S, seconds / 3),
        ),
        ProducerPlan("logs", "kafka-python", ((SLOW_S, BROKER_COUNT * 100e3), (math.inf, BROKER_COUNT * 600e3))),
        # Half of its threshold: it makes up for seconds in which it could not send, as on a machine that is busy.
        ProducerPlan("payments", PERF_TEST, ((seconds, BROKER_COUNT * 125e3),), record_bytes=1_000),
        ProducerPlan("signups", "librdkafka", ((math.inf, BROKER_COUNT * 50e3),), record_bytes=500),
    )


TOPICS: Final = tuple(dict.fromkeys(plan.topic for plan in make_plans(LOAD_S)))
EXCEEDING_TOPICS: Final = frozenset(
    plan.topic for plan in make_plans(LOAD_S) if len(plan.stages) > 1
)  # their second stage is

EXPLANATION: Final = f"""\
How to read this. Every broker may take {BROKER_TOTAL / 1e6:g} MB/s ({EXPLICIT}; the other topics share the rest
evenly). A batch is rejected only while the broker is over its total AND the topic over its own threshold. So payments
and signups, which keep below theirs, are never touched, and the others may use the part that they leave free: clicks
and logs settle above their own thresholds, while the total is held. Rates are one-minute averages: until the average
had risen to the limit, more came through, so "accepted" is more than the limit times the duration. "wanted" is the
load that applications had to send; while their client is held back they drop what they can't keep. "offered" is the
load that reached the gateway. Clients send a rejected batch again until it is taken, and each attempt counts; with
each rejection the gateway says how long to wait, and reads no Produce request of theirs until then. That is
why so little is offered in vain. "finally dropped" are bytes rejected and not sent again: no batch that a client took
was lost."""


class ProgressDisplay:
    """Lines on stderr; `redraw_block` replaces the block that it wrote last, where stderr is a terminal."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._drawn = 0
        self._next_line = 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def print_line(self, text: str) -> None:
        self._drawn = 0
        print(f"{self.elapsed_s:4.0f} s  {text}", file=sys.stderr, flush=True)

    def redraw_block(self, block: str, line: str) -> None:
        """Show `block` in place of the last one, or `line` every few seconds where nothing can be replaced."""
        if self._terminal:
            back = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
            print(back + block, file=sys.stderr, flush=True)
            self._drawn = block.count("\n") + 1
        elif self.elapsed_s >= self._next_line:
            self._next_line = self.elapsed_s + LINE_INTERVAL_S
            self.print_line(line)


# --- the gateway ------------------------------------------------------------------------------------------------------


class DemoGateway:
    """A running `produce-gateway serve`."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        folder = cluster.folder / "gateway"
        folder.mkdir()
        self._log = folder / "gateway.log"
        port = embedded.find_free_port(BROKER_COUNT + 2)  # the bootstrap listener, then port + 1 + node id
        self._admin_port, self._health_port = embedded.find_free_port(), embedded.find_free_port()
        self.bootstrap_servers = f"{embedded.HOST}:{port}"
        config = folder / "gateway.yaml"
        ports = port, self._admin_port, self._health_port
        config.write_text(yaml.safe_dump(gateway_config(cluster.bootstrap_servers, ports, folder)))
        with self._log.open("ab") as log:
            self._process = embedded.spawn_process(
                [sys.executable, "-m", "gateway", "serve", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self) -> None:
        """Return when it takes connections for every broker."""
        deadline = time.monotonic() + 120
        while True:
            self.check_running()
            try:
                self._fetch_path("/readyz", self._health_port)
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise DemoError(f"the gateway did not become ready ({error}): {self._log_tail()}") from error
            time.sleep(0.1)

    def fetch_metrics(self) -> str:
        try:
            return self._fetch_path("/metrics", self._admin_port)
        except OSError as error:
            self.check_running()
            raise DemoError(f"the gateway's /metrics does not answer: {error}") from error

    def check_running(self) -> None:
        """Raise if it has ended by itself."""
        if self._process.poll() is not None:
            raise DemoError(f"the gateway ended with {self._process.returncode}: {self._log_tail()}")

    def stop(self) -> None:
        """SIGTERM: it hands over its last intervals and ends."""
        if embedded.reap_process(self._process, terminate_s=40) != 0:
            raise DemoError(f"the gateway did not end in order: {self._log_tail()}")

    def kill(self) -> None:
        embedded.reap_process(self._process)

    def _fetch_path(self, path: str, port: int) -> str:
        with urllib.request.urlopen(f"http://{embedded.HOST}:{port}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def _log_tail(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-4:])[-800:] or "it logged nothing"


def gateway_config(upstream: str, ports: tuple[int, int, int], folder: Path) -> dict[str, Any]:
    """The gateway's configuration file, as YAML has it. `ports`: of the listener, the admin server and health."""
    port, admin_port, health_port = ports
    return {
        "upstream": {"bootstrap_servers": upstream},
        "listener": {"host": embedded.HOST, "port": port},
        "admin": {"host": embedded.HOST, "port": admin_port},
        "health": {"host": embedded.HOST, "port": health_port},
        "thresholds": {
            "total.bytes.in.per.sec.threshold": BROKER_TOTAL,
            "topics": {name: {"bytes.in.per.sec.threshold": limit} for name, limit in THRESHOLDS.items()},
        },
        "usage_log": {"topic": topic_names.USAGE, "spool_dir": str(folder / "spool")},
        # There is only one gateway: looking for others would take until after the meters' first tick, and an average
        # that begins at nothing needs longer to get to a limit than a demo should last.
        "resourceUsagePublishToTopic": False,
    }


# --- the course of it -------------------------------------------------------------------------------------------------


class LoadClock:
    """When the load ends: after `seconds`, and not before each topic that is offered too much of has been rejected and
    HELD_S have passed since; after MAX_LOAD_FACTOR times `seconds` in any case. Times in seconds since the load began.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ended_at: float | None = None
        self._rejected_since: float | None = None

    def check_end(self, now: float, count: OutcomeCounts) -> bool:
        """True in the moment in which producers must end; `count` is what the gateway has counted until now."""
        if self._rejected_since is None and all(count[topic].bytes["rejected"] for topic in EXCEEDING_TOPICS):
            self._rejected_since = now
        least = (
            MAX_LOAD_FACTOR * self.seconds
            if self._rejected_since is None
            else max(self.seconds, self._rejected_since + HELD_S)
        )
        if self.ended_at is not None or now < min(least, MAX_LOAD_FACTOR * self.seconds):
            return False
        self.ended_at = now
        return True


@dataclass(frozen=True)
class DemoResult:
    """The demo's findings; `differences` is empty when everything agrees."""

    topics: list[dict[str, Any]]
    total: tuple[float, float]  # one-minute rate and threshold of a broker
    sums: dict[str, dict[str, int]]
    differences: list[str]
    preconditions: dict[str, bool]

    @property
    def is_reconciled(self) -> bool:
        return not self.differences

    def as_json(self) -> str:
        topics = [{key: _finite_or_none(value) for key, value in topic.items()} for topic in self.topics]
        return json.dumps({"topics": topics, "sums": self.sums, "reconciled": self.is_reconciled}, indent=1)


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_demo(seconds: float, progress: ProgressDisplay, report: Path = REPORT_PATH) -> DemoResult:
    """The whole demo; `report` is the page that it writes.

    Raises:
        DemoError, EmbeddedError: it could not be carried out; one line.
    """
    progress.print_line(f"starting Apache Kafka {embedded.KAFKA_VERSION} with {BROKER_COUNT} brokers")
    with EmbeddedCluster(BROKER_COUNT) as cluster:
        create_topics(cluster.bootstrap_servers)
        progress.print_line("starting the gateway")
        with _start_gateway(cluster) as gateway:
            gateway.wait_until_ready()
            progress.print_line(f"producing for {seconds:.0f} s through {gateway.bootstrap_servers}")
            producers, meters = run_producers(cluster.folder, gateway, seconds, progress)
            progress.print_line("all producers have ended; stopping the gateway, which hands over its usage log")
            metrics = await_final_metrics(gateway)
            gateway.stop()
        return reconcile_counters(cluster.bootstrap_servers, metrics, producers, meters, progress, report)


@contextlib.contextmanager
def _start_gateway(cluster: EmbeddedCluster) -> Iterator[DemoGateway]:
    gateway = DemoGateway(cluster)
    try:
        yield gateway
    finally:
        gateway.kill()


def create_topics(bootstrap_servers: str) -> None:
    """One partition led by each broker, so that each carries a third of every topic."""
    nodes = list(range(1, BROKER_COUNT + 1))
    assignments = {partition: nodes[partition:] + nodes[:partition] for partition in range(BROKER_COUNT)}
    admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    config = demo_sums.TOPIC_CONFIG
    try:
        admin.create_topics(
            [NewTopic(topic, replica_assignments=assignments, topic_configs=config) for topic in TOPICS]
        )
    finally:
        admin.close()


def run_producers(
    folder: Path, gateway: DemoGateway, seconds: float, progress: ProgressDisplay
) -> tuple[list[ProducerProcess], MeterReadings]:
    """Run the producers to their end; gives them, and the gateway's meters as they were when the load ended."""
    waiting = sorted(make_plans(seconds), key=lambda plan: plan.starts_s)
    producers: list[ProducerProcess] = []
    began = time.monotonic()
    load = LoadClock(seconds)
    meters = demo_sums.read_meters("")
    while waiting or any(producer.is_running for producer in producers):
        now = time.monotonic() - began
        while waiting and waiting[0].starts_s <= now:
            producers.append(ProducerProcess(waiting.pop(0), gateway.bootstrap_servers, folder))
        if load.ended_at is not None and now > load.ended_at + 1.5 * FLUSH_TIMEOUT_S:
            break
        text = gateway.fetch_metrics()
        count, latest = demo_sums.read_metrics(text, TOPICS), demo_sums.read_meters(text)
        if load.ended_at is None:
            meters = latest
        if load.check_end(now, count):
            for producer in producers:
                producer.stop_offering()
        progress.redraw_block(live_table(now, load, count, latest), live_line(now, load, count, latest))
        time.sleep(POLL_INTERVAL_S)
    for producer in producers:
        status = producer.wait_for_exit(1.0)
        if status != 0:
            raise DemoError(f"producer {producer.plan.client_id} ended with {status}: {producer.log_tail()}")
    return producers, meters


def await_final_metrics(gateway: DemoGateway) -> str:
    """The gateway's metrics when no more is coming."""
    deadline = time.monotonic() + SETTLE_S
    before = demo_sums.read_metrics(gateway.fetch_metrics(), TOPICS)
    while True:
        time.sleep(2.5)  # an interval is one second; two of them must bring nothing new
        text = gateway.fetch_metrics()
        now = demo_sums.read_metrics(text, TOPICS)
        if now == before or time.monotonic() > deadline:
            return text
        before = now


def reconcile_counters(
    bootstrap_servers: str,
    metrics: str,
    producers: Sequence[ProducerProcess],
    meters: MeterReadings,
    progress: ProgressDisplay,
    report: Path,
) -> DemoResult:
    """Ask all counters."""
    by_metrics = demo_sums.read_metrics(metrics, TOPICS)
    by_usage_log = demo_sums.read_usage_log(bootstrap_servers, topic_names.USAGE, TOPICS)
    brokers = ClusterWitness(bootstrap_servers, TOPICS)
    try:
        log_bytes, end_offsets, preconditions = (
            brokers.sum_log_bytes(),
            brokers.sum_end_offsets(),
            brokers.check_preconditions(),
        )
    finally:
        brokers.close()
    progress.print_line("Spark sums up the usage log (some 15 s)")
    with demo_sums.write_report_meanwhile(bootstrap_servers, topic_names.USAGE, report):
        by_spark, complete = demo_sums.run_audit(bootstrap_servers, topic_names.USAGE, TOPICS, progress.print_line)
        progress.print_line("waiting for the report with plots")
    progress.print_line(f"the report is {report}: open it in a browser")
    acknowledged = sum(producer.counts.acknowledged for producer in producers)
    preconditions |= {
        "the usage log has no gaps": complete,
        "every message was acknowledged to its producer": all(
            producer.counts.sent == producer.counts.acknowledged for producer in producers
        ),
        "every request was answered by a broker or by the gateway": not any(
            each.maybe_appended for each in by_usage_log.values()
        ),
    }
    sums = make_sums(log_bytes, end_offsets, acknowledged, by_metrics, by_usage_log, by_spark)
    differences = find_differences(sums, {"/metrics": by_metrics, "usage log": by_usage_log, "Spark": by_spark})
    differences += [f"does not hold: {sentence}" for sentence, holds in preconditions.items() if not holds]
    wanted = dict.fromkeys(TOPICS, 0)
    for producer in producers:
        wanted[producer.plan.topic] += producer.wanted_bytes
    rows = make_rows(by_usage_log, meters, wanted)
    return DemoResult(rows, meters.broker_reading(), sums, differences, preconditions)


def make_sums(
    log_bytes: int,
    end_offsets: int,
    acknowledged: int,
    by_metrics: OutcomeCounts,
    by_usage_log: OutcomeCounts,
    by_spark: OutcomeCounts,
) -> dict[str, dict[str, int]]:
    """Accepted bytes and messages by counter."""
    counts = {"metrics": by_metrics, "usage_log": by_usage_log, "spark": by_spark}
    return {
        "bytes": {"log_dirs": log_bytes} | {name: demo_sums.accepted_bytes(count) for name, count in counts.items()},
        "messages": {"clients": acknowledged, "end_offsets": end_offsets}
        | {name: demo_sums.accepted_messages(count) for name, count in counts.items()},
    }


def find_differences(sums: Mapping[str, Mapping[str, int]], counts: Mapping[str, OutcomeCounts]) -> list[str]:
    """Sentences on disagreements: the sums, and every outcome of every topic, and the bytes sent again after a
    rejection, among counters that know outcomes.
    """
    found = []
    for unit, by_witness in sums.items():
        (first, right), *others = by_witness.items()
        found += [f"{unit}: {name} has {n - right:+,} against {first}" for name, n in others if n != right]
    (one, expected), *rest = counts.items()
    for name, count in rest:
        for topic, outcomes in expected.items():
            for unit in ("bytes", "messages"):
                mine, theirs = getattr(outcomes, unit), getattr(count[topic], unit)
                found += [
                    f"{topic}, {outcome} {unit}: {one} {mine[outcome]:,}, {name} {theirs[outcome]:,}"
                    for outcome in mine
                    if mine[outcome] != theirs[outcome]
                ]
            if outcomes.repeats != count[topic].repeats:
                found.append(f"{topic}, repeats: {one} {outcomes.repeats:,}, {name} {count[topic].repeats:,}")
    return found


# --- what is shown ----------------------------------------------------------------------------------------------------


def make_rows(count: OutcomeCounts, meters: MeterReadings, wanted: Mapping[str, int]) -> list[dict[str, Any]]:
    """One row per topic; threshold and observed rate are bytes/s of one broker.

    `wanted`: the bytes of values that applications would have sent without limits.
    """
    rows = []
    for topic, outcomes in count.items():
        rate, threshold = meters.topic_reading(topic)
        rows.append(
            {
                "topic": topic,
                "threshold": threshold,
                "offered_bytes": outcomes.offered_bytes,
                "accepted_bytes": outcomes.bytes["accepted"],
                "rejected_bytes": outcomes.bytes["rejected"],
                "finally_dropped_bytes": outcomes.finally_dropped,
                "observed_rate": rate,
                "wanted_bytes": wanted[topic],
            }
        )
    return rows


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _megabytes_text(value: float) -> str:
    return f"{value / 1e6:,.2f}" if math.isfinite(value) else "-"


def live_table(now: float, load: LoadClock, count: OutcomeCounts, meters: MeterReadings) -> str:
    """The block that is redrawn."""
    rows = [["topic", "threshold", "rate", "accepted", "rejected"], ["", "MB/s", "MB/s", "MB", "MB"]]
    for topic, outcomes in count.items():
        rate, threshold = meters.topic_reading(topic)
        rows.append([topic, _megabytes_text(threshold), _megabytes_text(rate), *_accepted_and_rejected(outcomes)])
    rate, threshold = meters.broker_reading()
    rows.append(
        ["total", _megabytes_text(threshold), _megabytes_text(rate), *_accepted_and_rejected(_sum_topics(count))]
    )
    return f"{_stage_text(now, load)}\n{align_columns(rows)}\n(rates and thresholds are those of one broker)"


def _accepted_and_rejected(outcomes: TopicOutcomes) -> list[str]:
    return [_megabytes_text(outcomes.bytes["accepted"]), _megabytes_text(outcomes.bytes["rejected"])]


def _sum_topics(count: OutcomeCounts) -> TopicOutcomes:
    total = TopicOutcomes()
    for each in count.values():
        for outcome in each.bytes:
            total.add_outcome(outcome, "", each.bytes[outcome], each.messages[outcome])
    return total


def _stage_text(now: float, load: LoadClock) -> str:
    if load.ended_at is not None:
        return f"{now:3.0f} s: producers offer no more, clients send the batches they still hold"
    if now < SLOW_S:
        return f"{now:3.0f} of {load.seconds:.0f} s: all below their limits"
    if now < load.seconds:
        return f"{now:3.0f} of {load.seconds:.0f} s: clicks and logs offer several times theirs"
    return f"{now:3.0f} s: busy machine, producers go on until clicks and logs have been rejected for {HELD_S:.0f} s"


def live_line(now: float, load: LoadClock, count: OutcomeCounts, meters: MeterReadings) -> str:
    """The same in one line."""
    rate, threshold = meters.broker_reading()
    topics = ", ".join(f"{topic} {_megabytes_text(meters.topic_reading(topic)[0])}" for topic in count)
    rejected = sum(outcomes.bytes["rejected"] for outcomes in count.values())
    rates = f"per broker {_megabytes_text(rate)} of {_megabytes_text(threshold)} MB/s ({topics})"
    return f"{_stage_text(now, load)}; {rates}; rejected {_megabytes_text(rejected)} MB"


_COUNTER_TITLES: Final = {
    "clients": "acknowledged to clients",
    "log_dirs": "log directories (leaders)",
    "end_offsets": "end offsets",
    "metrics": "gateway's /metrics",
    "usage_log": "usage topic",
    "spark": "Spark audit of it",
}


def final_text(result: DemoResult) -> str:
    """The tables at the end, and their meaning."""
    head = {
        "threshold": "threshold",
        "observed_rate": "observed",
        "wanted_bytes": "wanted",
        "offered_bytes": "offered",
        "accepted_bytes": "accepted",
        "rejected_bytes": "rejected",
        "finally_dropped_bytes": "finally dropped",
    }
    rows = [["topic", *head.values()], ["", "bytes/s", "bytes/s", *["bytes"] * 5]]
    rate, threshold = result.total
    total = {key: sum(row[key] for row in result.topics) for key in head}
    total |= {"topic": "total", "threshold": threshold, "observed_rate": rate}
    rows += [[row["topic"], *(_number_text(row[key]) for key in head)] for row in [*result.topics, total]]
    sums = [["", "bytes", "difference", "messages", "difference"]]
    for name, title in _COUNTER_TITLES.items():
        cells = [_difference_cells(result.sums[unit], name) for unit in ("bytes", "messages")]
        sums.append([title, *cells[0], *cells[1]])
    verdict = "Reconciled: every difference is 0." if result.is_reconciled else "NOT reconciled:"
    nothing = [] if total["rejected_bytes"] else ["", "Nothing was rejected: this machine could not offer enough."]
    return "\n".join(
        [
            align_columns(rows),
            "(threshold and observed one-minute rate: of one broker; bytes: of all brokers)",
            *nothing,
            "",
            EXPLANATION,
            "",
            "Bytes that got into the logs, by counter:",
            align_columns(sums),
            "",
            verdict,
            *(f"  {line}" for line in result.differences),
            *(f"  holds: {sentence}" for sentence, holds in result.preconditions.items() if holds),
        ]
    )


def _number_text(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def _difference_cells(by_witness: Mapping[str, int], name: str) -> tuple[str, str]:
    if name not in by_witness:
        return "", ""
    first = next(iter(by_witness.values()))
    return f"{by_witness[name]:,}", f"{by_witness[name] - first:,}"


def main(arguments: Sequence[str]) -> int:
    """The command; 0 when everything agrees."""
    parser = CommandParser(
        prog="produce-gateway demo",
        description="Three brokers, a gateway, five producers that offer more than they may, and an audit to the byte."
        " Takes under two minutes; the first time it fetches Apache Kafka.",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else, on stdout")
    parser.add_argument(
        "--seconds",
        type=float,
        default=LOAD_S,
        help="how long producers offer, or longer on a busy machine (%(default)s)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=REPORT_PATH,
        metavar="FILE",
        help="the page with plots that it writes (%(default)s)",
    )
    add_examples(parser, "", "--json > result.json", "--seconds 60 --report demo.html")
    options = parser.parse_args(arguments)
    if options.seconds < SLOW_S + 5:
        parser.error(f"--seconds: at least {SLOW_S + 5:.0f}, the first {SLOW_S:.0f} are below all limits")
    progress = ProgressDisplay()
    try:
        result = run_demo(options.seconds, progress, options.report)
    except (DemoError, EmbeddedError) as error:
        print(f"produce-gateway demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("produce-gateway demo: interrupted", file=sys.stderr)
        return 130
    progress.print_line("done")
    print(result.as_json() if options.json else f"\n{final_text(result)}", flush=True)
    return 0 if result.is_reconciled else 1
