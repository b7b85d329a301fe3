# The metrics: all there at 0, those of a topic with its first byte; fed by intervals, bounded where clients could make
# them grow.

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from gateway.channel import COUNTS, Gauges, Groups, Interval, Rates, Row
from gateway.control.metrics import (
    COUNTERS,
    FLEET_COUNTERS,
    FLEET_GAUGES,
    GAUGES,
    RATES,
    SHARE_STATES,
    STORAGE_COUNTERS,
    STORAGE_GAUGES,
    Metrics,
)
from policies.engine import BrokerRate, TopicRate
from policies.explain import FleetUse
from policies.fleet.keys import group_key
from policies.groups.lines import GroupLimits, GroupRate
from policies.storage import Finding, Volume
from policies.usage import OUTCOMES


def samples(metrics):
    """(name without prefix, labels) -> value."""
    return {
        (sample.name.removeprefix("produce_gateway_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def value(metrics, name, **labels):
    return samples(metrics).get((name, frozenset(labels.items())))


def row(topic="t", client="app", outcome="accepted", reason="", size=100, broker=1, repeats=0):
    return Row(broker, topic, "User:u", client, outcome, reason, size, 2, 1, repeats=repeats)


def interval(*rows, **counts):
    return Interval("boot", 0, 0, 0, 1000, rows, counts)


def test_every_metric_is_in_the_exposition_from_the_start():
    metrics = Metrics()
    text = metrics.text().decode()
    for name, (_, help_text) in {**COUNTERS, **GAUGES, **RATES}.items():
        assert f"# HELP produce_gateway_{name}" in text
        assert help_text in text
    assert "_created" not in text


def test_every_count_of_a_worker_is_there_at_0():
    shown = samples(Metrics())
    for name in COUNTS:
        if name.startswith("disconnects_"):
            labels = frozenset({("cause", name.removeprefix("disconnects_"))})
            assert shown["disconnects_total", labels] == 0
        else:
            assert shown[f"{name}_total", frozenset()] == 0


def test_with_its_first_byte_a_topic_has_every_outcome_at_0():
    metrics = Metrics()
    metrics.add_interval(interval(row("a")))
    shown = samples(metrics)
    for kind, seen in (("bytes", 100), ("messages", 2), ("requests", 1)):
        found = {
            dict(labels)["outcome"]: v
            for (name, labels), v in shown.items()
            if name == f"produce_{kind}_total" and {("broker", "1"), ("topic", "a")} <= labels
        }
        assert found == dict.fromkeys(OUTCOMES, 0) | {"accepted": seen}
    assert value(metrics, "produce_bytes_total", broker="1", topic="a", outcome="rejected", reason="fence") == 0
    assert value(metrics, "throttle_seconds_total", broker="1", topic="a", outcome="rejected", reason="fence") == 0
    assert value(metrics, "policy_bytes_total", broker="1", topic="a", outcome="delayed", reason="topic-threshold") == 0


def test_topics_are_bounded_and_the_rest_is_other():
    metrics = Metrics(max_topics=2)
    metrics.add_interval(interval(row("a"), row("b"), row("c")))
    rejected = {"broker": "1", "outcome": "rejected", "reason": "fence"}
    accepted = {"broker": "1", "outcome": "accepted", "reason": ""}
    assert value(metrics, "produce_bytes_total", topic="b", **rejected) == 0
    assert value(metrics, "produce_bytes_total", topic="c", **accepted) is None
    assert value(metrics, "produce_bytes_total", topic="other", **accepted) == 100
    assert value(metrics, "produce_bytes_total", topic="other", **rejected) is None


def made_up(k, n=100):
    """Rows of every outcome that a client can have with names that it invents."""
    outcomes = [
        ("errored", "INVALID_TOPIC_EXCEPTION"),
        ("unacknowledged", ""),
        ("unanswered", ""),
        ("delayed", "fence"),
    ]
    outcomes += [("rejected", "topic-threshold"), ("dropped", "acks0-limit")]
    return [row(f"made-up-{k}-{i}", f"client-{k}-{i}", *outcome) for i in range(n) for outcome in outcomes]


def looks(metrics):
    """Metadata is looked at as often as it takes to say that a topic doesn't exist."""
    metrics.look_again()
    metrics.look_again()


def test_what_a_new_topic_got_before_metadata_listed_it_is_counted_under_its_name():
    metrics = Metrics()
    metrics.add_interval(interval(row("new", outcome="unacknowledged"), row("typo", outcome="unacknowledged")))
    labels = {"broker": "1", "outcome": "unacknowledged", "reason": ""}
    metrics.know_topics({"new"})
    metrics.look_again()
    assert value(metrics, "produce_bytes_total", topic="new", **labels) == 100
    assert value(metrics, "produce_bytes_total", topic="other", **labels) is None
    metrics.look_again()
    assert value(metrics, "produce_bytes_total", topic="other", **labels) == 100


def test_an_exposition_does_not_grow_by_names_that_clients_make_up():
    metrics = Metrics()
    metrics.know_topics({"clicks"})
    metrics.add_interval(interval(row("clicks"), *made_up(0)))
    looks(metrics)
    size = len(metrics.text())
    for k in range(1, 20):
        metrics.add_interval(interval(row("clicks"), *made_up(k)))
        looks(metrics)
    shown = metrics.text()
    assert len(shown) < size + 1000  # numbers have got longer
    assert b"made-up" not in shown
    assert b"client-0" not in shown
    labels = {"broker": "1", "outcome": "errored", "reason": "INVALID_TOPIC_EXCEPTION"}
    assert value(metrics, "produce_bytes_total", topic="other", **labels) == 20 * 100 * 100
    assert value(metrics, "client_bytes_total", principal="User:u", client_id="app", outcome="accepted") == 2000


def test_a_topic_that_metadata_lists_is_shown_before_anything_got_in():
    metrics = Metrics()
    metrics.know_topics({"a"})
    metrics.add_interval(interval(row("a", outcome="rejected", reason="topic-threshold")))
    labels = {"broker": "1", "topic": "a", "outcome": "rejected"}
    assert value(metrics, "produce_bytes_total", reason="topic-threshold", **labels) == 100
    assert value(metrics, "produce_bytes_total", reason="fence", **labels) is None


def test_a_topic_that_is_gone_keeps_its_series():
    metrics = Metrics(max_topics=1)
    metrics.know_topics({"a"})
    metrics.add_interval(interval(row("a", outcome="unanswered")))
    metrics.know_topics(())
    metrics.add_interval(interval(row("a", outcome="unanswered")))
    assert value(metrics, "produce_bytes_total", broker="1", topic="a", outcome="unanswered", reason="") == 200


def test_rates_are_of_topics_that_there_are_the_busiest_first():
    metrics = Metrics(max_topics=2)
    metrics.know_topics({"a", "b", "c"})
    names = {"a": 1.0, "b": 3.0, "c": 2.0, "made-up": 9.0}
    topics = tuple(TopicRate(name, rate, None, False) for name, rate in names.items())
    metrics.set_rates(Rates((BrokerRate(1, 15.0, 0, 0, None, topics),)))
    found = {name: value(metrics, "topic_rate_bytes_per_second", broker="1", topic=name) for name in names}
    assert found == {"a": None, "b": 3.0, "c": 2.0, "made-up": None}


def test_a_client_s_name_is_cut_and_cleaned_before_it_is_a_label():
    metrics = Metrics()
    metrics.add_interval(interval(row(client="x\x1b[31m" + "y" * 30_000)))
    (name,) = {dict(labels)["client_id"] for name, labels in samples(metrics) if name == "client_bytes_total"}
    assert name.startswith("x [31my")
    assert len(name) == 256


def test_what_was_sent_again_is_told_by_topic_and_what_nobody_can_tell_as_well():
    metrics = Metrics()
    metrics.add_interval(interval(row(repeats=0)))
    place = {"broker": "1", "topic": "t"}
    assert value(metrics, "produce_repeats_bytes_total", **place) == 0
    assert value(metrics, "produce_repeats_unknown_bytes_total", **place) == 0
    again = row(outcome="rejected", reason="fence", repeats=70)
    noted = row(outcome="delayed", reason="topic-threshold", repeats=None)  # beside an outcome
    metrics.add_interval(interval(row(repeats=30), again, row(size=9, repeats=None), noted))
    assert value(metrics, "produce_repeats_bytes_total", **place) == 100
    assert value(metrics, "produce_repeats_unknown_bytes_total", **place) == 9


def test_rows_and_counts_add_up():
    metrics = Metrics()
    metrics.add_interval(interval(row(), row(client="other-app", size=50), requests=3, disconnects_client=1))
    metrics.add_interval(interval(row(outcome="errored", reason="MESSAGE_TOO_LARGE", broker=-1), requests=2))
    accepted = {"broker": "1", "topic": "t", "outcome": "accepted", "reason": ""}
    assert value(metrics, "produce_bytes_total", **accepted) == 150
    assert value(metrics, "produce_messages_total", **accepted) == 4
    assert value(metrics, "produce_requests_total", **accepted) == 2
    errored = {"broker": "unknown", "topic": "t", "outcome": "errored", "reason": "MESSAGE_TOO_LARGE"}
    assert value(metrics, "produce_bytes_total", **errored) == 100
    assert value(metrics, "client_bytes_total", principal="User:u", client_id="other-app", outcome="accepted") == 50
    assert value(metrics, "requests_total") == 5
    assert value(metrics, "disconnects_total", cause="client") == 1
    assert value(metrics, "usage_log_intervals_total") == 2


def test_clients_beyond_the_cap_are_other_and_no_byte_is_lost():
    metrics = Metrics(max_clients=2)
    metrics.add_interval(interval(*(row(client=f"app-{i}", size=10**i) for i in range(4))))
    metrics.add_interval(interval(row(client="app-1", size=7)))
    assert value(metrics, "client_bytes_total", principal="User:u", client_id="app-1", outcome="accepted") == 17
    assert value(metrics, "client_bytes_total", principal="other", client_id="other", outcome="accepted") == 1100


def test_rates_show_the_latest_snapshot_only():
    metrics = Metrics()
    metrics.know_topics({"a", "b", "c", "z"})
    limited = TopicRate("a", 30.0, 20.0, True)
    metrics.set_rates(Rates((BrokerRate(1, 50.0, 1.0, 2.0, 100.0, (limited, TopicRate("z", 1.0, 0.0, False))),)))
    assert value(metrics, "broker_rate_bytes_per_second", broker="1") == 50
    assert value(metrics, "broker_error_rate_bytes_per_second", broker="1") == 1
    assert value(metrics, "broker_throttled_rate_bytes_per_second", broker="1") == 2
    assert value(metrics, "broker_threshold_utilization_ratio", broker="1") == 0.5
    assert value(metrics, "topic_threshold_utilization_ratio", broker="1", topic="a") == 1.5  # not capped
    assert value(metrics, "topic_threshold_utilization_ratio", broker="1", topic="z") == math.inf
    assert value(metrics, "topic_over_threshold", broker="1", topic="a") == 1
    metrics.set_rates(Rates((BrokerRate(1, 50.0, 0.0, 0.0, None, (TopicRate("b", 5.0, None, False),)),)))
    assert value(metrics, "topic_rate_bytes_per_second", broker="1", topic="a") is None
    assert value(metrics, "topic_threshold_bytes_per_second", broker="1", topic="b") == math.inf
    assert math.isnan(value(metrics, "topic_threshold_utilization_ratio", broker="1", topic="b"))


def finding(broker_id, name, available, soft=None, hard=10.0):
    return Finding(Volume(broker_id, name, 100, available), 1.0, soft, hard)


def test_storage_metrics_are_there_from_the_start_where_storage_is_on():
    metrics = Metrics()
    assert "_storage_" not in metrics.text().decode()
    metrics.show_storage()
    text = metrics.text().decode()
    for name, (_, help_text) in {**STORAGE_COUNTERS, **STORAGE_GAUGES}.items():
        assert f"# HELP produce_gateway_{name}" in text
        assert help_text in text
    for name in (name for name, (labels, _) in STORAGE_GAUGES.items() if not labels):
        assert value(metrics, name) == (1 if name == "storage_throttle_factor" else 0)
    for outcome in ("ok", "failed", "invalid"):
        assert value(metrics, "storage_observations_total", outcome=outcome) == 0
    assert value(metrics, "storage_fallback_throttle_factor_applied_total") == 0
    assert [value(metrics, "storage_state", state=state) for state in ("OPEN", "THROTTLE", "PAUSE")] == [1, 0, 0]


def test_storage_series_of_a_volume_come_and_go_with_it():
    metrics = Metrics()
    storage = metrics.show_storage()
    full = finding(2, "/b", 5)
    storage.show_volumes((finding(1, "/a", 60, soft=20.0), full))
    storage.count_violated((full,))
    storage.count_violated((full,))
    of_a, of_b = {"broker": "1", "log_dir": "/a"}, {"broker": "2", "log_dir": "/b"}
    assert value(metrics, "storage_consumed_bytes", **of_a) == 40
    assert value(metrics, "storage_soft_limit_bytes", **of_a) == 20
    assert value(metrics, "storage_limit_violated_total", **of_a) == 0
    assert value(metrics, "storage_limit_violated_total", **of_b) == 2
    assert value(metrics, "storage_soft_limit_bytes", **of_b) is None
    storage.show_volumes((full,))
    assert not [name for name, labels in samples(metrics) if frozenset(of_a.items()) == labels]
    assert value(metrics, "storage_limit_violated_total", **of_b) == 2


def group(name, rate, direction="publish", limit=None, waiting=False):
    return GroupRate(name, direction, 2, rate, rate / 10, limit, None, waiting)


def test_rates_of_all_workers_add_up_in_the_exposition():
    metrics = Metrics()
    metrics.know_topics({"a", "b", "c"})
    one = Rates((BrokerRate(1, 50.0, 1.0, 2.0, 100.0, (TopicRate("a", 50.0, 40.0, True),)),))
    two = Rates((BrokerRate(1, 30.0, 1.0, 2.0, 100.0, (TopicRate("a", 30.0, 40.0, False),)),))
    metrics.set_rates(one, two)
    assert value(metrics, "broker_rate_bytes_per_second", broker="1") == 80
    assert value(metrics, "broker_threshold_utilization_ratio", broker="1") == 0.8
    assert value(metrics, "topic_over_threshold", broker="1", topic="a") == 1
    metrics.set_rates(two)
    assert value(metrics, "broker_rate_bytes_per_second", broker="1") == 30


def test_groups_show_rate_part_limit_and_what_all_gateways_take():
    metrics = Metrics()
    metrics.set_rates(
        Rates((), groups=(group("gold", 40.0, limit=30.0, waiting=True),)),
        Rates((), groups=(group("gold", 20.0, limit=30.0), group("gold", 5.0, "dispatch"))),
    )
    metrics.show_groups(
        Groups(1, {"gold": GroupLimits(publish_bytes=100.0)}),
        {group_key("gold", "publish", "bytes"): FleetUse(90.0, 58.0)},
    )
    labels = {"group": "gold", "direction": "publish"}
    found = {name: value(metrics, f"group_{name}", **labels) for name in ("topics", "waiting")}
    assert found == {"topics": 2, "waiting": 1}
    of_bytes = {
        name: value(metrics, f"group_{name}_bytes_per_second", **labels)
        for name in ("rate", "part", "limit", "fleet_rate")
    }
    assert of_bytes == {"rate": 60, "part": 58, "limit": 100, "fleet_rate": 90}
    assert value(metrics, "group_rate_messages_per_second", **labels) == 6
    assert value(metrics, "group_limit_messages_per_second", **labels) == math.inf
    assert value(metrics, "group_fleet_rate_messages_per_second", **labels) is None
    labels["direction"] = "dispatch"
    assert value(metrics, "group_rate_bytes_per_second", **labels) == 5
    assert value(metrics, "group_limit_bytes_per_second", **labels) == math.inf
    assert value(metrics, "group_part_bytes_per_second", **labels) == math.inf


def test_groups_beyond_the_cap_are_left_out():
    metrics = Metrics(max_clients=2)
    metrics.set_rates(Rates((), groups=tuple(group(f"g{i}", float(i)) for i in range(5))))
    assert metrics.shown_groups() == [("g4", "publish"), ("g3", "publish")]
    assert value(metrics, "group_rate_bytes_per_second", group="g4", direction="publish") == 4
    assert value(metrics, "group_rate_bytes_per_second", group="g2", direction="publish") is None


def test_metrics_of_the_fleet_are_there_from_the_start():
    metrics = Metrics()
    fleet = metrics.show_fleet(["stale"])
    for name, (_, help_text) in {**FLEET_COUNTERS, **FLEET_GAUGES}.items():
        assert f"# HELP produce_gateway_{name}" in metrics.text().decode()
        assert help_text in metrics.text().decode()
    assert value(metrics, "fleet_reports_dropped_total", reason="stale") == 0
    assert value(metrics, "fleet_share_state", state="local") == 1
    fleet.state, fleet.sent, fleet.received_bytes = "frozen", 3, 500
    fleet.gauges["fleet_peers"] = 2
    assert [value(metrics, "fleet_share_state", state=state) for state in SHARE_STATES] == [0, 0, 1, 0]
    assert value(metrics, "fleet_reports_sent_total") == 3
    assert value(metrics, "fleet_report_bytes_total", direction="received") == 500
    assert value(metrics, "fleet_peers") == 2


def test_gauges_are_per_worker():
    metrics = Metrics()
    metrics.show_worker(0)
    assert value(metrics, "connections", worker="0") == 0
    metrics.set_gauges(0, Gauges(5, 2, 1000))
    assert value(metrics, "connections", worker="0") == 5
    assert value(metrics, "muted_connections", worker="0") == 2
    assert value(metrics, "buffered_bytes", worker="0") == 1000


def test_two_gateways_in_one_process_do_not_share_metrics():
    first, second = Metrics(), Metrics()
    first.usage_written.inc()
    assert value(second, "usage_log_records_written_total") == 0
