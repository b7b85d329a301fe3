# The demo's arithmetic: what it reads out of each witness, when it says that they agree, and what it prints.
# (That it runs to its end against a real Kafka is tests/integration/test_demo_run.py.)

from __future__ import annotations

import json
import math

import pytest
import yaml

from gateway.channel import UsageInterval, UsageRow, WorkerRates
from gateway.config import parse_settings
from gateway.control.metrics import GatewayMetrics
from gateway.demo import command as demo
from gateway.demo import sums as demo_sums
from gateway.demo.load import PERF_TEST, MessageCounts, ProducerPlan, RecordPacer, _PacedFlow, perf_counts
from gateway.demo.sums import OutcomeCounts, TopicOutcomes
from policies import usage
from policies.thresholds.broker_limits import BrokerRate, TopicRate

# --- the load ---------------------------------------------------------------------------------------------------------


def test_the_load_starts_below_every_limit_and_then_goes_far_beyond_the_total() -> None:
    slow = sum(plan.stages[0][1] for plan in demo.make_plans(60) if plan.starts_s == 0) / demo.BROKER_COUNT
    fast = sum(plan.stages[-1][1] for plan in demo.make_plans(60)) / demo.BROKER_COUNT
    assert slow < 0.9 * demo.BROKER_TOTAL
    assert fast > 2 * demo.BROKER_TOTAL


def test_topics_that_must_never_be_rejected_stay_well_below_their_shares() -> None:
    implicit = (demo.BROKER_TOTAL - sum(demo.THRESHOLDS.values())) / 2
    fastest: dict[str, float] = dict.fromkeys(demo.TOPICS, 0.0)
    for plan in demo.make_plans(60):
        fastest[plan.topic] += max(rate for _, rate in plan.stages) / demo.BROKER_COUNT
    assert fastest["payments"] <= 0.75 * demo.THRESHOLDS["payments"]
    assert fastest["signups"] <= 0.75 * implicit
    assert fastest["clicks"] >= 3 * demo.THRESHOLDS["clicks"]
    assert fastest["logs"] >= 3 * implicit


@pytest.mark.parametrize("seconds", [15, 30, 60])
def test_each_kind_of_client_takes_part_and_ends_with_the_load(seconds: float) -> None:
    plans = demo.make_plans(seconds)
    assert {plan.client for plan in plans} == {"librdkafka", "kafka-python", PERF_TEST}
    assert len({plan.client_id for plan in plans}) == len(plans)
    jobs = [plan for plan in plans if plan.client == PERF_TEST]
    assert all(plan.starts_s + plan.stages[0][0] <= seconds + 1 for plan in jobs)
    assert all(math.isinf(plan.stages[-1][0]) for plan in plans if plan not in jobs)


def rejected(*topics: str) -> OutcomeCounts:
    count: OutcomeCounts = {topic: TopicOutcomes() for topic in demo.TOPICS}
    for topic in topics:
        count[topic].add_outcome("rejected", "topic-threshold", 1, 1, 0)
    return count


def ends(load: demo.LoadClock, counts: dict[int, OutcomeCounts]) -> int | None:
    """The second in which producers are told to end; `counts` has what the gateway has counted from a second on."""
    count = rejected()
    told = []
    for now in range(1_000):
        count = counts.get(now, count)
        if load.check_end(now, count):
            told.append(now)
    assert len(told) <= 1
    return told[0] if told else None


@pytest.mark.parametrize(
    ("counts", "end"),
    [
        ({20: rejected("clicks", "logs")}, 60),
        ({20: rejected("clicks"), 50: rejected("clicks", "logs")}, 60),
        ({51: rejected("clicks", "logs")}, 61),  # of a busy machine
        ({20: rejected("clicks"), 100: rejected("clicks", "logs")}, 110),
        ({20: rejected("logs")}, 240),  # but not for ever
    ],
)
def test_the_load_goes_on_until_limits_were_at_work_for_a_while(counts: dict[int, OutcomeCounts], end: int) -> None:
    assert {"clicks", "logs"} == demo.EXCEEDING_TOPICS
    assert ends(demo.LoadClock(60), counts) == end


def test_the_gateway_accepts_the_demos_configuration(tmp_path: object) -> None:
    assert str(tmp_path)
    config = demo.gateway_config("127.0.0.1:9092", (19092, 9190, 9295), tmp_path)  # type: ignore[arg-type]
    settings = parse_settings(yaml.safe_dump(config))
    assert settings.thresholds.total == demo.BROKER_TOTAL
    assert settings.thresholds.by_topic() == demo.THRESHOLDS


PERF_OUTPUT = """\
5001 records sent, 1000.0 records/sec (0.95 MB/sec), 3.2 ms avg latency, 310.0 ms max latency.
org.apache.kafka.common.errors.TimeoutException: Expiring 3 record(s) for payments-0
4990 records sent, 998.0 records/sec (0.95 MB/sec), 2.2 ms avg latency, 20.0 ms max latency.
10500 records sent, 999.9 records/sec (0.95 MB/sec), 2.50 ms avg latency, 310.00 ms max latency, 2 ms 50th, 4 ms 95th, \
9 ms 99th, 300 ms 99.9th.
"""


def test_perf_counts_adds_up_the_parts_and_takes_the_total_at_the_end() -> None:
    counts = MessageCounts()
    seen = []
    for line in PERF_OUTPUT.splitlines():
        counts = perf_counts(counts, line)
        seen.append(counts.acknowledged)
    assert seen == [5001, 5001, 9991, 10500]


def test_pace_follows_its_stages_and_ends() -> None:
    pace = RecordPacer(((10.0, 5_000.0), (5.0, 20_000.0)), record_bytes=1_000, began=100.0)
    due = [pace.due_records(100.0 + 0.1 * step) for step in range(151)]
    assert sum(due[:100]) in (49, 50)  # type: ignore[arg-type]  # 10 s at 5 records a second
    assert sum(due[100:150]) in (98, 99, 100, 101)  # type: ignore[arg-type]
    assert due[150] is None


def test_pace_does_not_make_up_for_what_was_missed() -> None:
    pace = RecordPacer(((60.0, 100_000.0),), record_bytes=1_000, began=0.0)
    assert pace.due_records(10.0) == 21


def test_pace_sends_records_larger_than_a_step_of_its_rate() -> None:
    pace = RecordPacer(((60.0, 1_000.0),), record_bytes=1_000, began=0.0)
    assert sum(pace.due_records(step * 0.1) or 0 for step in range(201)) in (19, 20)


def test_a_flow_counts_what_became_of_its_records_and_spreads_them() -> None:
    flow = _PacedFlow(ProducerPlan("t", "librdkafka", ((1.0, 100_000.0),), record_bytes=1_000))
    partitions: list[int] = []

    def send(value: bytes, partition: int) -> None:
        assert len(value) == 1_000
        partitions.append(partition)
        flow.record_delivery(failed=len(partitions) % 10 == 0)

    flow.send = send
    flow.offer_records(20)
    assert flow.counts == MessageCounts(sent=20, acknowledged=18, failed=2)
    assert partitions[:4] == [0, 1, 2, 0]


def test_a_flow_whose_client_is_stuck_holds_one_second_of_its_rate_and_skips_the_rest() -> None:
    flow = _PacedFlow(ProducerPlan("t", "librdkafka", ((1.0, 1_000.0), (1.0, 5_000.0)), record_bytes=1_000))
    flow.offer_records(8)
    assert flow.counts == MessageCounts(sent=5, skipped=3)


def test_a_flow_without_end_ends_when_it_is_told() -> None:
    flow = _PacedFlow(ProducerPlan("t", "librdkafka", ((math.inf, 1e6),), record_bytes=1_000))
    offered: list[float] = []

    def idle(seconds: float) -> None:
        offered.append(seconds)
        if len(offered) == 3:
            flow.stop_requested.set()

    flow.run(idle)
    assert len(offered) == 3


def test_a_flow_reports_each_second(capsys: pytest.CaptureFixture[str]) -> None:
    flow = _PacedFlow(ProducerPlan("t", "librdkafka", ((1.0, 5_000.0),), record_bytes=1_000))
    for now in (10.0, 10.5, 10.9, 11.0, 11.1):
        flow.offer_records(1)
        flow.report_counts(now)
    lines = capsys.readouterr().out.splitlines()
    assert [MessageCounts(**json.loads(line)).sent for line in lines] == [1, 4]


# --- the witnesses ----------------------------------------------------------------------------------------------------

ROWS = (
    UsageRow(1, "clicks", "User:ANONYMOUS", "a", "accepted", "", 1_000, 10, 1),
    UsageRow(2, "clicks", "User:ANONYMOUS", "a", "accepted", "", 500, 5, 1),
    UsageRow(1, "clicks", "User:ANONYMOUS", "a", "rejected", "topic-threshold", 300, 3, 1, repeats=0),
    UsageRow(1, "clicks", "User:ANONYMOUS", "a", "rejected", "fence", 200, 2, 1, repeats=120),
    UsageRow(1, "logs", "User:ANONYMOUS", "b", "errored", "NOT_LEADER_OR_FOLLOWER", 70, 7, 1),
    UsageRow(1, "logs", "User:ANONYMOUS", "b", "errored", "MESSAGE_TOO_LARGE", 90, 9, 1),
    UsageRow(1, "else", "User:ANONYMOUS", "b", "accepted", "", 9_999, 99, 1),
)
TOPICS = ("clicks", "logs")


def expected() -> OutcomeCounts:
    count: OutcomeCounts = {topic: TopicOutcomes() for topic in TOPICS}
    for row in ROWS:
        if row.topic in count:
            count[row.topic].add_outcome(row.outcome, row.reason, row.bytes, row.messages, row.repeats or 0)
    return count


def test_outcomes_know_what_was_offered_and_what_may_be_in_the_log() -> None:
    count = expected()
    assert count["clicks"].offered_bytes == 2_000
    assert count["clicks"].bytes["rejected"] == 500
    assert count["clicks"].maybe_appended == 0
    assert count["logs"].maybe_appended == 70
    assert demo_sums.accepted_bytes(count) == 1_500
    assert demo_sums.accepted_messages(count) == 15


def test_metrics_are_read_as_the_gateway_writes_them() -> None:
    metrics = GatewayMetrics()
    metrics.set_known_topics(TOPICS)
    metrics.add_interval(UsageInterval(boot="b", worker=0, seq=0, start_ms=0, end_ms=1000, rows=ROWS))
    metrics.add_interval(UsageInterval(boot="b", worker=0, seq=1, start_ms=0, end_ms=1000, rows=()))
    assert demo_sums.read_metrics(b"".join(metrics.render_text()).decode(), TOPICS) == expected()


def test_large_numbers_are_read_to_the_byte() -> None:
    metrics = GatewayMetrics()
    row = UsageRow(1, "clicks", "p", "c", "accepted", "", 123_456_789_012_345, 1, 1)
    metrics.add_interval(UsageInterval(boot="b", worker=0, seq=0, start_ms=0, end_ms=1, rows=(row,)))
    assert (
        demo_sums.accepted_bytes(demo_sums.read_metrics(b"".join(metrics.render_text()).decode(), TOPICS))
        == 123_456_789_012_345
    )


def test_meters_are_means_over_the_brokers() -> None:
    metrics = GatewayMetrics()
    metrics.set_known_topics(("clicks", "logs"))
    topics = [TopicRate("clicks", 400.0, 500.0, False), TopicRate("logs", 10.0, None, False)]
    other = [TopicRate("clicks", 600.0, 500.0, True)]
    brokers = (BrokerRate(1, 410.0, 0, 0, 1_000.0, topics), BrokerRate(2, 600.0, 0, 0, 1_000.0, other))
    metrics.set_rates(WorkerRates(brokers))
    meters = demo_sums.read_meters(b"".join(metrics.render_text()).decode())
    assert meters.topic_reading("clicks") == (500.0, 500.0)
    assert meters.topic_reading("logs") == (10.0, math.inf)
    assert meters.broker_reading() == (505.0, 1_000.0)
    assert math.isnan(meters.topic_reading("nobody's")[0])


def test_the_audits_json_is_read_by_topic_and_outcome() -> None:
    merged: dict[tuple[str, str, str], list[int]] = {}
    for row in ROWS:
        sums = merged.setdefault((row.topic, row.outcome, row.reason), [0, 0])
        sums[0] += row.bytes
        sums[1] += row.messages
    report = {
        "rows": [
            {
                "topic": topic,
                "outcome": outcome,
                "reason": reason,
                "repeats_bytes": size // 100,
                "offered": {"bytes": size, "messages": messages},
            }
            for (topic, outcome, reason), (size, messages) in merged.items()
        ],
        "integrity": {"complete": True},
    }
    count, complete = demo_sums.parse_audit(report, TOPICS)
    assert complete
    assert {topic: (each.bytes, each.messages) for topic, each in count.items()} == {
        topic: (each.bytes, each.messages) for topic, each in expected().items()
    }
    assert (count["clicks"].repeats, count["clicks"].finally_dropped) == (20, 480)


def test_bytes_that_were_sent_again_are_not_dropped() -> None:
    """Each rejection is matched by the next attempt, whatever its outcome."""
    outcomes = TopicOutcomes()
    outcomes.add_outcome("rejected", "topic-threshold", 300, 3, 0)
    outcomes.add_outcome("rejected", "topic-threshold", 300, 3, 300)
    assert outcomes.finally_dropped == 300
    outcomes.add_outcome("accepted", "", 1_000, 10, 300)
    assert outcomes.finally_dropped == 0


# --- the verdict ------------------------------------------------------------------------------------------------------


def witnesses() -> dict[str, OutcomeCounts]:
    return {name: expected() for name in ("/metrics", "usage log", "Spark")}


def sums_of(log_bytes: int = 1_500, end_offsets: int = 15, acknowledged: int = 15) -> dict[str, dict[str, int]]:
    return demo.make_sums(log_bytes, end_offsets, acknowledged, *witnesses().values())


def test_equal_sums_have_no_differences() -> None:
    assert demo.find_differences(sums_of(), witnesses()) == []


def test_one_byte_too_many_in_the_log_is_found() -> None:
    assert demo.find_differences(sums_of(log_bytes=1_501), witnesses()) == [
        "bytes: metrics has -1 against log_dirs",
        "bytes: usage_log has -1 against log_dirs",
        "bytes: spark has -1 against log_dirs",
    ]


def test_one_message_that_no_client_knows_of_is_found() -> None:
    differences = demo.find_differences(sums_of(acknowledged=14), witnesses())
    assert "messages: end_offsets has +1 against clients" in differences
    assert len(differences) == 4


@pytest.mark.parametrize("outcome", [outcome for outcome in usage.OUTCOMES if outcome != "accepted"])
def test_a_difference_in_any_outcome_is_found(outcome: str) -> None:
    counts = witnesses()
    counts["Spark"]["logs"].bytes[outcome] += 1
    (difference,) = demo.find_differences(sums_of(), counts)
    assert difference.startswith(f"logs, {outcome} bytes: /metrics ")


def test_a_difference_in_repeats_is_found() -> None:
    counts = witnesses()
    counts["usage log"]["clicks"].repeats += 7
    assert demo.find_differences(sums_of(), counts) == ["clicks, repeats: /metrics 120, usage log 127"]


def result(**changes: int) -> demo.DemoResult:
    sums = sums_of(**changes)
    meters = demo_sums.MeterReadings({"1": (900.0, 1_000.0)}, {("1", "clicks"): (400.0, 500.0)})
    rows = demo.make_rows(expected(), meters, {"clicks": 3_000, "logs": 0})
    return demo.DemoResult(
        rows, meters.broker_reading(), sums, demo.find_differences(sums, witnesses()), {"it is so": True}
    )


def test_the_json_has_the_shape_that_was_promised() -> None:
    report = json.loads(result().as_json())
    assert list(report) == ["topics", "sums", "reconciled"]
    clicks, logs = report["topics"]
    assert clicks == {
        "topic": "clicks",
        "threshold": 500.0,
        "offered_bytes": 2_000,
        "accepted_bytes": 1_500,
        "rejected_bytes": 500,
        "finally_dropped_bytes": 380,
        "observed_rate": 400.0,
        "wanted_bytes": 3_000,
    }
    assert logs["threshold"] is None  # no broker said so: null, for NaN is no JSON
    assert report["sums"] == {
        "bytes": {"log_dirs": 1_500, "metrics": 1_500, "usage_log": 1_500, "spark": 1_500},
        "messages": {"clients": 15, "end_offsets": 15, "metrics": 15, "usage_log": 15, "spark": 15},
    }
    assert report["reconciled"] is True
    assert json.loads(result(log_bytes=1).as_json())["reconciled"] is False


def test_the_text_shows_every_witness_and_the_verdict() -> None:
    text = demo.final_text(result())
    assert "Reconciled: every difference is 0." in text
    assert "log directories (leaders)  1,500           0" in text
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert lines["clicks"] == ["500", "400", "3,000", "2,000", "1,500", "500", "380"]
    assert lines["total"] == ["1,000", "900", "3,000", "2,160", "1,500", "500", "380"]
    assert "  holds: it is so" in text
    assert "Nothing was rejected" not in text
    text = demo.final_text(result(end_offsets=16))
    assert "NOT reconciled:" in text
    assert "  messages: end_offsets has +1 against clients" in text


def test_the_text_says_so_where_nothing_was_rejected() -> None:
    meters = demo_sums.MeterReadings({}, {})
    rows = demo.make_rows(rejected(), meters, dict.fromkeys(demo.TOPICS, 0))
    assert "Nothing was rejected" in demo.final_text(demo.DemoResult(rows, meters.broker_reading(), sums_of(), [], {}))


def test_progress_has_a_table_for_terminals_and_a_line_for_files() -> None:
    meters = demo_sums.MeterReadings({"1": (900_000.0, 1e6)}, {("1", "clicks"): (400_000.0, 5e5)})
    load = demo.LoadClock(60)
    table = demo.live_table(12, load, expected(), meters)
    assert [line.split() for line in table.splitlines()][3] == ["clicks", "0.50", "0.40", "0.00", "0.00"]
    line = demo.live_line(12, load, expected(), meters)
    assert "per broker 0.90 of 1.00 MB/s (clicks 0.40, logs -)" in line
    assert "\n" not in line


def test_progress_tells_what_the_load_waits_for() -> None:
    load, meters = demo.LoadClock(15), demo_sums.MeterReadings({}, {})
    assert load.check_end(14, rejected("clicks", "logs")) is False
    assert " 16 s: busy machine, producers go on until" in demo.live_line(16, load, expected(), meters)
    assert load.check_end(24, rejected("clicks", "logs")) is True
    assert " 25 s: producers offer no more" in demo.live_line(25, load, expected(), meters)


@pytest.mark.parametrize("arguments", [["--seconds", "3"], ["--fast"], ["--seconds", "x"]])
def test_wrong_options_are_refused_before_anything_starts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        demo.main(arguments)
    assert stop.value.code == 2
    assert "usage: produce-gateway demo" in capsys.readouterr().err
