# The metrics: all there at 0, of a topic what limits can do to it; fed by intervals, bounded where clients could make
# them grow.

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.channel import (
    COUNT_NAMES,
    LATENCY_BOUNDS,
    DurationBuckets,
    GroupSnapshot,
    LatencyReport,
    UsageInterval,
    UsageRow,
    WorkerGauges,
    WorkerRates,
)
from gateway.control.metrics import (
    FAMILIES,
    LABELS,
    SECTIONS,
    SHARE_STATES,
    CertificateLocation,
    GatewayMetrics,
    MetricFamily,
)
from policies.fleet.keys import Direction, group_key
from policies.groups.group_limiters import GroupLimitValues, GroupRate
from policies.limits.description import FleetUse
from policies.limits.limit_use import LimitUse
from policies.quotas.quota_limiters import QuotaRate
from policies.thresholds.broker_limits import BrokerRate, TopicRate
from tests.certificates import Authority


def samples(metrics: GatewayMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name without prefix, labels) -> value."""
    return {
        (sample.name.removeprefix("produce_gateway_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(b"".join(metrics.render_text()).decode())
        for sample in family.samples
    }


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def row(
    topic: str = "t",
    client: str = "app",
    outcome: str = "accepted",
    reason: str = "",
    size: int = 100,
    broker: int = 1,
    repeats: int | None = 0,
) -> UsageRow:
    return UsageRow(broker, topic, "User:u", client, outcome, reason, size, 2, 1, repeats=repeats)


def interval(*rows: UsageRow, **counts: int) -> UsageInterval:
    return UsageInterval("boot", 0, 0, 0, 1000, rows, counts)


def test_every_metric_is_in_the_exposition_from_the_start() -> None:
    metrics = GatewayMetrics()
    text = b"".join(metrics.render_text()).decode()
    titles = ("Storage protection", "Sharing limits with other gateways")  # shown where they are on
    hidden = {family for title in titles for family in SECTIONS[title]}
    for family in FAMILIES.values():
        assert (f"# HELP {family.exposed_name} {family.help}\n" in text) == (family not in hidden)
    assert "_created" not in text


def test_every_label_of_the_table_is_described_and_bounded() -> None:
    assert {label for family in FAMILIES.values() for label in family.labels} == LABELS.keys()
    assert all(label.values and label.most for label in LABELS.values())
    shown: dict[str, set[str]] = {}
    for _, labels in samples(GatewayMetrics()):
        for name, value in labels:
            shown.setdefault(name, set()).add(value)
    for name, label in LABELS.items():
        assert not label.most.isdigit() or len(shown.get(name, ())) <= int(label.most), name


def test_the_help_of_a_metric_is_its_text_without_markdown() -> None:
    family = MetricFamily("a", "counter", (), "By `x`: [audit](audit.md#what), [here](#there) and [page](page.md).")
    assert family.help == "By x: audit (docs/audit.md), here and page (docs/page.md)."
    assert family.exposed_name == "produce_gateway_a_total"


def test_every_count_of_a_worker_is_there_at_0() -> None:
    shown = samples(GatewayMetrics())
    for name in COUNT_NAMES:
        if name.startswith("disconnects_"):
            labels = frozenset({("cause", name.removeprefix("disconnects_"))})
            assert shown["disconnects_total", labels] == 0
        elif name.startswith("server_names_refused_"):
            labels = frozenset({("reason", name.removeprefix("server_names_refused_"))})
            assert shown["server_names_refused_total", labels] == 0
        elif name == "requests":
            assert shown["requests_total", frozenset({("api", "Produce")})] == 0
        else:
            assert shown[f"{name}_total", frozenset()] == 0


THRESHOLD_EFFECTS = frozenset({("rejected", "topic-threshold"), ("delayed", "topic-threshold")})


def series_of(metrics: GatewayMetrics, topic: str) -> dict[tuple[str, ...], float]:
    """(name, outcome, reason) -> value."""
    return {
        (name, *(dict(labels)[label] for label in ("outcome", "reason") if label in dict(labels))): v
        for (name, labels), v in samples(metrics).items()
        if ("topic", topic) in labels
    }


def test_with_its_first_byte_a_topic_has_at_0_what_the_limits_in_force_can_do_to_its_bytes() -> None:
    metrics = GatewayMetrics()
    metrics.produced.expect_effects(THRESHOLD_EFFECTS)
    metrics.set_known_topics({"a", "b"})
    metrics.add_interval(interval(row("a"), row("b", outcome="discarded")))
    assert series_of(metrics, "a") == {
        ("produce_bytes_total", "accepted", ""): 100,
        ("produce_messages_total", "accepted", ""): 2,
        ("produce_requests_total", "accepted", ""): 1,
        ("produce_bytes_total", "rejected", "topic-threshold"): 0,
        ("policy_bytes_total", "delayed", "topic-threshold"): 0,
        ("produce_repeats_bytes_total",): 0,
        ("produce_repeats_unknown_bytes_total",): 0,
    }
    assert {outcome for _, outcome, _ in series_of(metrics, "b")} == {"discarded"}


def test_effects_of_a_new_limit_are_shown_for_topics_that_have_series_already_and_stay_without_it() -> None:
    metrics = GatewayMetrics()
    metrics.add_interval(interval(row("a"), row("made-up", outcome="unacknowledged")))
    assert len(series_of(metrics, "a")) == 3
    metrics.produced.expect_effects(THRESHOLD_EFFECTS)
    shown = series_of(metrics, "a")
    assert shown["produce_bytes_total", "rejected", "topic-threshold"] == 0
    assert series_of(metrics, "made-up") == {}
    metrics.add_interval(interval(row("a", outcome="rejected", reason="topic-threshold")))
    metrics.produced.expect_effects(frozenset())
    metrics.produced.expect_effects(THRESHOLD_EFFECTS)
    shown = series_of(metrics, "a")
    assert shown["produce_bytes_total", "rejected", "topic-threshold"] == 100
    assert shown["policy_bytes_total", "delayed", "topic-threshold"] == 0


def test_what_no_limit_in_force_can_do_begins_when_it_happens() -> None:
    metrics = GatewayMetrics()
    rejected = row("a", outcome="rejected", reason="of-a-plugin", size=70)
    metrics.add_interval(interval(row("a"), rejected, row("a", outcome="would_delay", reason="client-quota")))
    shown = series_of(metrics, "a")
    assert shown["produce_bytes_total", "rejected", "of-a-plugin"] == 70
    assert shown["throttle_seconds_total", "rejected", "of-a-plugin"] == 0
    assert shown["policy_bytes_total", "would_delay", "client-quota"] == 100
    assert shown["policy_requests_total", "would_delay", "client-quota"] == 1
    assert shown["produce_repeats_bytes_total",] == 0  # else nothing could be taken off the rejected bytes


def test_times_of_throttling_add_up_to_the_millisecond() -> None:
    metrics = GatewayMetrics()
    held = UsageRow(1, "t", "User:u", "app", "delayed", "client-quota", 1, 1, 1, delay_ms=1250)
    metrics.add_interval(interval(row(), held, held))
    assert series_of(metrics, "t")["throttle_seconds_total", "delayed", "client-quota"] == 2.5


def test_topics_are_bounded_and_the_rest_is_other() -> None:
    metrics = GatewayMetrics(max_topics=2)
    metrics.produced.expect_effects(THRESHOLD_EFFECTS)
    metrics.add_interval(interval(row("a"), row("b"), row("c")))
    rejected = {"broker": "1", "outcome": "rejected", "reason": "topic-threshold"}
    accepted = {"broker": "1", "outcome": "accepted", "reason": ""}
    assert value(metrics, "produce_bytes_total", topic="b", **rejected) == 0
    assert value(metrics, "produce_bytes_total", topic="c", **accepted) is None
    assert value(metrics, "produce_bytes_total", topic="other", **accepted) == 100
    assert value(metrics, "produce_bytes_total", topic="other", **rejected) is None


def made_up(k: int, n: int = 100) -> list[UsageRow]:
    """Rows of every outcome that a client can get for invented names."""
    outcomes = [
        ("errored", "INVALID_TOPIC_EXCEPTION"),
        ("unacknowledged", ""),
        ("unanswered", ""),
        ("delayed", "fence"),
    ]
    outcomes += [("rejected", "topic-threshold"), ("dropped", "acks0-limit")]
    return [row(f"made-up-{k}-{i}", f"client-{k}-{i}", *outcome) for i in range(n) for outcome in outcomes]


def looks(metrics: GatewayMetrics) -> None:
    """Metadata is asked for as often as needed to know that a topic doesn't exist."""
    metrics.produced.recheck_waiting()
    metrics.produced.recheck_waiting()


def test_bytes_that_a_new_topic_got_before_metadata_listed_it_are_counted_under_its_name() -> None:
    metrics = GatewayMetrics()
    metrics.add_interval(interval(row("new", outcome="unacknowledged"), row("typo", outcome="unacknowledged")))
    labels = {"broker": "1", "outcome": "unacknowledged", "reason": ""}
    metrics.set_known_topics({"new"})
    metrics.produced.recheck_waiting()
    assert value(metrics, "produce_bytes_total", topic="new", **labels) == 100
    assert value(metrics, "produce_bytes_total", topic="other", **labels) is None
    metrics.produced.recheck_waiting()
    assert value(metrics, "produce_bytes_total", topic="other", **labels) == 100


def test_an_exposition_does_not_grow_by_names_that_clients_make_up() -> None:
    metrics = GatewayMetrics()
    metrics.set_known_topics({"clicks"})
    metrics.add_interval(interval(row("clicks"), *made_up(0)))
    looks(metrics)
    size = len(b"".join(metrics.render_text()))
    for k in range(1, 20):
        metrics.add_interval(interval(row("clicks"), *made_up(k)))
        looks(metrics)
    shown = b"".join(metrics.render_text())
    assert len(shown) < size + 1000  # numbers have got longer
    assert b"made-up" not in shown
    assert b"client-0" not in shown
    labels = {"broker": "1", "outcome": "errored", "reason": "INVALID_TOPIC_EXCEPTION"}
    assert value(metrics, "produce_bytes_total", topic="other", **labels) == 20 * 100 * 100
    assert value(metrics, "client_bytes_total", principal="User:u", client_id="app", outcome="accepted") == 2000


def test_a_topic_that_metadata_lists_is_shown_before_anything_got_in() -> None:
    metrics = GatewayMetrics()
    metrics.set_known_topics({"a"})
    metrics.add_interval(interval(row("a", outcome="rejected", reason="topic-threshold")))
    labels = {"broker": "1", "topic": "a", "outcome": "rejected"}
    assert value(metrics, "produce_bytes_total", reason="topic-threshold", **labels) == 100
    assert value(metrics, "produce_bytes_total", reason="fence", **labels) is None


def test_a_topic_that_is_gone_keeps_its_series() -> None:
    metrics = GatewayMetrics(max_topics=1)
    metrics.set_known_topics({"a"})
    metrics.add_interval(interval(row("a", outcome="unanswered")))
    metrics.set_known_topics(())
    metrics.add_interval(interval(row("a", outcome="unanswered")))
    assert value(metrics, "produce_bytes_total", broker="1", topic="a", outcome="unanswered", reason="") == 200


def test_rates_are_of_topics_that_there_are_the_busiest_first() -> None:
    metrics = GatewayMetrics(max_topics=2)
    metrics.set_known_topics({"a", "b", "c"})
    names = {"a": 1.0, "b": 3.0, "c": 2.0, "made-up": 9.0}
    topics = [TopicRate(name, rate, None, False) for name, rate in names.items()]
    metrics.set_rates(WorkerRates((BrokerRate(1, 15.0, 0, 0, None, topics),)))
    found = {name: value(metrics, "topic_rate_bytes_per_second", broker="1", topic=name) for name in names}
    assert found == {"a": None, "b": 3.0, "c": 2.0, "made-up": None}


def test_a_client_s_name_is_cut_and_cleaned_before_it_is_a_label() -> None:
    metrics = GatewayMetrics()
    metrics.add_interval(interval(row(client="x\x1b[31m" + "y" * 30_000)))
    (name,) = {dict(labels)["client_id"] for name, labels in samples(metrics) if name == "client_bytes_total"}
    assert name.startswith("x [31my")
    assert len(name) == 256


def test_repeated_bytes_are_told_by_topic_and_bytes_that_may_be_repeats_as_well() -> None:
    metrics = GatewayMetrics()
    metrics.produced.expect_effects(THRESHOLD_EFFECTS)
    metrics.add_interval(interval(row(repeats=0)))
    place = {"broker": "1", "topic": "t"}
    assert value(metrics, "produce_repeats_bytes_total", **place) == 0
    assert value(metrics, "produce_repeats_unknown_bytes_total", **place) == 0
    again = row(outcome="rejected", reason="fence", repeats=70)
    noted = row(outcome="delayed", reason="topic-threshold", repeats=None)  # beside an outcome
    metrics.add_interval(interval(row(repeats=30), again, row(size=9, repeats=None), noted))
    assert value(metrics, "produce_repeats_bytes_total", **place) == 100
    assert value(metrics, "produce_repeats_unknown_bytes_total", **place) == 9


def test_rows_and_counts_add_up() -> None:
    metrics = GatewayMetrics()
    metrics.add_interval(interval(row(), row(client="other-app", size=50), requests=3, disconnects_client=1))
    metrics.add_interval(interval(row(outcome="errored", reason="MESSAGE_TOO_LARGE", broker=-1), requests=2))
    accepted = {"broker": "1", "topic": "t", "outcome": "accepted", "reason": ""}
    assert value(metrics, "produce_bytes_total", **accepted) == 150
    assert value(metrics, "produce_messages_total", **accepted) == 4
    assert value(metrics, "produce_requests_total", **accepted) == 2
    errored = {"broker": "unknown", "topic": "t", "outcome": "errored", "reason": "MESSAGE_TOO_LARGE"}
    assert value(metrics, "produce_bytes_total", **errored) == 100
    assert value(metrics, "client_bytes_total", principal="User:u", client_id="other-app", outcome="accepted") == 50
    assert value(metrics, "requests_total", api="Produce") == 5
    assert value(metrics, "disconnects_total", cause="client") == 1
    assert value(metrics, "usage_log_intervals_total") == 2


def test_requests_are_counted_by_api_and_produce_is_the_rest() -> None:
    metrics = GatewayMetrics()
    metrics.add_counts({"requests": 10, "api_requests_3": 2, "api_requests_18": 1, "api_requests_200": 1, "mutes": 1})
    metrics.add_interval(interval(row(), requests=5, api_requests_3=5))
    found = {dict(labels)["api"]: v for (name, labels), v in samples(metrics).items() if name == "requests_total"}
    assert found == {"Produce": 6, "Metadata": 7, "ApiVersions": 1, "unknown": 1}
    metrics.add_counts({"requests": 256, **{f"api_requests_{key}": 1 for key in range(256)}})
    apis = {dict(labels)["api"] for name, labels in samples(metrics) if name == "requests_total"}
    assert len(apis) <= int(LABELS["api"].most)


def test_names_that_are_one_label_are_one_series() -> None:
    """Clients choose their ids, and of two samples of one series Prometheus complains in an alert of its own."""
    metrics = GatewayMetrics()
    quotas = [QuotaRate("producer_byte_rate", "{client-id=<default>}", None, name, None, LimitUse(rate, 9.0), 9.0)
              for rate, name in ((8.0, "app\n"), (7.0, "app"), (6.0, "x" * 300), (5.0, "x" * 299))]  # fmt: skip
    metrics.set_rates(WorkerRates((), quotas=tuple(quotas)))
    text = b"".join(metrics.render_text()).decode()
    lines = [line for line in text.splitlines() if line.startswith("produce_gateway_client_quota_rate{")]
    assert [line.rpartition(" ")[2] for line in lines] == ["8.0", "6.0"]  # of the busiest


def test_the_utilization_of_a_quota_is_that_of_kip_1373() -> None:
    metrics = GatewayMetrics()
    quotas = [QuotaRate("producer_byte_rate", name, name, None, None, LimitUse(300.0, limit), limit) for name, limit in
              (("half", 600.0), ("over", 200.0), ("paused", 0.0))]  # fmt: skip
    metrics.set_rates(WorkerRates((), quotas=tuple(quotas)))
    labels = {"quota": "producer_byte_rate", "client_id": "", "broker": "all"}
    found = [
        value(metrics, "client_quota_utilization_ratio", source=name, user=name, **labels)
        for name in ("half", "over", "paused")
    ]
    assert found[:2] == [0.5, 1.5]  # not capped
    assert found[2] is not None
    assert math.isnan(found[2])


def said(*counts: int, total: float = 0.0) -> DurationBuckets:
    return DurationBuckets((*counts, *[0] * (len(LATENCY_BOUNDS) + 1 - len(counts))), total)


def test_latencies_of_all_workers_are_one_histogram() -> None:
    metrics = GatewayMetrics()
    assert value(metrics, "produce_request_seconds_count") == 0
    metrics.add_latencies(
        0, LatencyReport(said(3, 1, total=0.5), {1: said(2, total=0.1), -1: said(1)}, batches=said(4), cpu_s=2.0)
    )
    metrics.add_latencies(1, LatencyReport(said(1, total=0.25), {1: said(0, 1)}, cpu_s=5.0))
    assert value(metrics, "produce_request_seconds_count") == 5
    assert value(metrics, "produce_request_seconds_sum") == 0.75
    assert value(metrics, "produce_request_seconds_bucket", le=str(LATENCY_BOUNDS[0])) == 4
    assert value(metrics, "produce_request_seconds_bucket", le=str(LATENCY_BOUNDS[1])) == 5
    assert value(metrics, "produce_request_seconds_bucket", le="+Inf") == 5
    assert value(metrics, "broker_round_trip_seconds_count", broker="1") == 3
    assert value(metrics, "broker_round_trip_seconds_count", broker="unknown") == 1
    assert value(metrics, "worker_batch_seconds_count") == 4
    assert value(metrics, "worker_cpu_seconds_total", worker="1") == 5


def test_waits_are_there_for_every_reason_and_for_no_other() -> None:
    metrics = GatewayMetrics()
    reasons = {dict(labels)["reason"] for name, labels in samples(metrics) if name == "limit_wait_seconds_count"}
    assert {"topic-threshold", "client-quota", "resource-group", "storage-pause", "fetch", "other"} <= reasons
    metrics.add_latencies(
        0, LatencyReport(said(), waits={"client-quota": said(2), "a-plugin-s": said(1), "b": said(1)})
    )
    assert value(metrics, "limit_wait_seconds_count", reason="client-quota") == 2
    assert value(metrics, "limit_wait_seconds_count", reason="other") == 2
    assert {
        dict(labels).get("reason") for name, labels in samples(metrics) if name == "limit_wait_seconds_sum"
    } == reasons


def test_cpu_time_of_a_worker_that_was_started_again_goes_on() -> None:
    metrics = GatewayMetrics()
    for cpu_s in (2.0, 9.0, 1.0, 3.0):
        metrics.add_latencies(0, LatencyReport(said(), cpu_s=cpu_s))
    assert value(metrics, "worker_cpu_seconds_total", worker="0") == 12


def test_the_expiry_of_a_certificate_is_that_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, _ = authority.sign("one")
    metrics = GatewayMetrics()
    file = tmp_path / "chain.pem"
    file.write_bytes(one.read_bytes())
    places = {
        "listener": CertificateLocation(str(file)),
        "upstream": CertificateLocation(pem=one.read_text()),
        "gone": CertificateLocation(str(tmp_path / "none")),
    }
    metrics.show_certificates(places)
    expires = value(metrics, "certificate_expiry_timestamp_seconds", certificate="listener")
    assert expires is not None
    assert expires > time.time()
    assert value(metrics, "certificate_expiry_timestamp_seconds", certificate="upstream") == expires
    assert value(metrics, "certificate_expiry_timestamp_seconds", certificate="gone") is None
    file.write_text("nothing")
    assert value(metrics, "certificate_expiry_timestamp_seconds", certificate="listener") is None


def test_clients_beyond_the_cap_are_other_and_no_byte_is_lost() -> None:
    metrics = GatewayMetrics(max_clients=2)
    metrics.add_interval(interval(*(row(client=f"app-{i}", size=10**i) for i in range(4))))
    metrics.add_interval(interval(row(client="app-1", size=7)))
    assert value(metrics, "client_bytes_total", principal="User:u", client_id="app-1", outcome="accepted") == 17
    assert value(metrics, "client_bytes_total", principal="other", client_id="other", outcome="accepted") == 1100


def test_rates_show_the_latest_snapshot_only() -> None:
    metrics = GatewayMetrics()
    metrics.set_known_topics({"a", "b", "c", "z"})
    limited = TopicRate("a", 30.0, 20.0, True)
    metrics.set_rates(WorkerRates((BrokerRate(1, 50.0, 1.0, 2.0, 100.0, [limited, TopicRate("z", 1.0, 0.0, False)]),)))
    assert value(metrics, "broker_rate_bytes_per_second", broker="1") == 50
    assert value(metrics, "broker_error_rate_bytes_per_second", broker="1") == 1
    assert value(metrics, "broker_throttled_rate_bytes_per_second", broker="1") == 2
    assert value(metrics, "broker_threshold_utilization_ratio", broker="1") == 0.5
    assert value(metrics, "topic_threshold_utilization_ratio", broker="1", topic="a") == 1.5  # not capped
    assert value(metrics, "topic_threshold_utilization_ratio", broker="1", topic="z") == math.inf
    assert value(metrics, "topic_over_threshold", broker="1", topic="a") == 1
    metrics.set_rates(WorkerRates((BrokerRate(1, 50.0, 0.0, 0.0, None, [TopicRate("b", 5.0, None, False)]),)))
    assert value(metrics, "topic_rate_bytes_per_second", broker="1", topic="a") is None
    assert value(metrics, "topic_threshold_bytes_per_second", broker="1", topic="b") == math.inf
    assert math.isnan(value(metrics, "topic_threshold_utilization_ratio", broker="1", topic="b") or 0.0)


def test_a_broker_that_is_not_known_yet_has_one_name_in_counters_and_rates() -> None:
    metrics = GatewayMetrics()
    metrics.set_known_topics({"a"})
    metrics.add_interval(interval(row(topic="a", broker=-1)))
    metrics.set_rates(WorkerRates((BrokerRate(-1, 50.0, 1.0, 2.0, 100.0, [TopicRate("a", 30.0, 20.0, True)]),)))
    text = b"".join(metrics.render_text()).decode()
    assert 'broker="-1"' not in text
    assert value(metrics, "broker_rate_bytes_per_second", broker="unknown") == 50
    assert value(metrics, "topic_rate_bytes_per_second", broker="unknown", topic="a") == 30


@pytest.mark.seed("DISK.36")
def test_storage_metrics_are_there_from_the_start_where_storage_is_on() -> None:
    metrics = GatewayMetrics()
    assert "_storage_" not in b"".join(metrics.render_text()).decode()
    metrics.create_storage_series()
    text = b"".join(metrics.render_text()).decode()
    families = SECTIONS["Storage protection"]
    for family in families:
        assert f"# HELP {family.exposed_name} {family.help}\n" in text
    for name in (family.name for family in families if family.kind == "gauge" and not family.labels):
        assert value(metrics, name) == (name in ("storage_throttle_factor", "storage_enforced"))
    for outcome in ("ok", "failed", "invalid"):
        assert value(metrics, "storage_observations_total", outcome=outcome) == 0
    assert value(metrics, "storage_fallback_throttle_factor_applied_total") == 0
    assert [value(metrics, "storage_state", state=state) for state in ("OPEN", "THROTTLE", "PAUSE")] == [1, 0, 0]


def group(
    name: str, rate: float, direction: Direction = "publish", limit: float | None = None, waiting: bool = False
) -> GroupRate:
    return GroupRate(name, direction, 2, LimitUse(rate, limit, waiting), LimitUse(rate / 10, None))


def test_groups_show_rate_part_limit_and_the_rate_of_all_gateways() -> None:
    metrics = GatewayMetrics()
    metrics.set_rates(
        WorkerRates((), groups=(group("gold", 40.0, limit=30.0, waiting=True),)),
        WorkerRates((), groups=(group("gold", 20.0, limit=30.0), group("gold", 5.0, "dispatch"))),
    )
    metrics.show_groups(
        GroupSnapshot(1, {"gold": GroupLimitValues(publish_bytes=100.0)}),
        {group_key("gold", "publish", "bytes"): FleetUse(58.0, {"gwb": 60.0}, 2)},
    )
    labels = {"group": "gold", "direction": "publish"}
    found = {name: value(metrics, f"group_{name}", **labels) for name in ("topics", "waiting")}
    assert found == {"topics": 2, "waiting": 1}
    of_bytes = {
        name: value(metrics, f"group_{name}_bytes_per_second", **labels)
        for name in ("rate", "part", "limit", "fleet_rate")
    }
    assert of_bytes == {"rate": 30, "part": 30, "limit": 100, "fleet_rate": 90}  # used up, and not twice
    assert value(metrics, "group_rate_messages_per_second", **labels) == 6
    assert value(metrics, "group_limit_messages_per_second", **labels) == math.inf
    assert value(metrics, "group_fleet_rate_messages_per_second", **labels) is None
    metrics.set_rates(WorkerRates((), groups=(group("gold", 15.0, limit=15.0)._replace(factor=0.5),)))
    assert value(metrics, "group_fleet_rate_bytes_per_second", **labels) == 15 + 60 / 2  # as it is in force
    unheard = {group_key("gold", "publish", "bytes"): FleetUse(58.0, {}, 2, hears_others=False)}
    metrics.show_groups(GroupSnapshot(1, {"gold": GroupLimitValues(publish_bytes=100.0)}), unheard)
    assert value(metrics, "group_fleet_rate_bytes_per_second", **labels) is None
    metrics.set_rates(WorkerRates((), groups=(group("gold", 5.0, "dispatch"),)))
    labels["direction"] = "dispatch"
    assert value(metrics, "group_rate_bytes_per_second", **labels) == 5
    assert value(metrics, "group_limit_bytes_per_second", **labels) == math.inf
    assert value(metrics, "group_part_bytes_per_second", **labels) == math.inf


def test_groups_beyond_the_cap_are_left_out() -> None:
    metrics = GatewayMetrics(max_clients=2)
    metrics.set_rates(WorkerRates((), groups=tuple(group(f"g{i}", float(i)) for i in range(5))))
    assert metrics.shown_groups() == [("g4", "publish"), ("g3", "publish")]
    assert value(metrics, "group_rate_bytes_per_second", group="g4", direction="publish") == 4
    assert value(metrics, "group_rate_bytes_per_second", group="g2", direction="publish") is None


def test_metrics_of_the_fleet_are_there_from_the_start() -> None:
    metrics = GatewayMetrics()
    fleet = metrics.create_fleet_series(["stale"])
    for family in SECTIONS["Sharing limits with other gateways"]:
        assert f"# HELP {family.exposed_name} {family.help}\n" in b"".join(metrics.render_text()).decode()
    assert value(metrics, "fleet_reports_dropped_total", reason="stale") == 0
    assert value(metrics, "fleet_share_state", state="local") == 1
    fleet.state, fleet.sent, fleet.received_bytes = "frozen", 3, 500
    fleet.gauges["fleet_peers"] = 2
    assert [value(metrics, "fleet_share_state", state=state) for state in SHARE_STATES] == [0, 0, 1, 0]
    assert value(metrics, "fleet_reports_sent_total") == 3
    assert value(metrics, "fleet_report_bytes_total", direction="received") == 500
    assert value(metrics, "fleet_peers") == 2


def test_gauges_are_per_worker() -> None:
    metrics = GatewayMetrics()
    metrics.create_worker_series(0)
    assert value(metrics, "connections", worker="0") == 0
    metrics.set_gauges(0, WorkerGauges(5, 2, 1000))
    assert value(metrics, "connections", worker="0") == 5
    assert value(metrics, "muted_connections", worker="0") == 2
    assert value(metrics, "buffered_bytes", worker="0") == 1000


def test_two_gateways_in_one_process_do_not_share_metrics() -> None:
    first, second = GatewayMetrics(), GatewayMetrics()
    first.usage_log.written.inc()
    assert value(second, "usage_log_records_written_total") == 0
