# Lines about traffic: what they say, and that nobody can flood or forge the log with them.

from __future__ import annotations

from gateway.channel import UsageInterval, UsageRow
from gateway.control.usage.traffic_lines import LOG_AGAIN_S, MAX_LINES, WINDOW_S, TrafficLines


def row(
    client_id: str = "app", outcome: str = "accepted", reason: str = "", topic: str = "t", principal: str = "User:u"
) -> UsageRow:
    return UsageRow(1, topic, principal, client_id, outcome, reason, 100, 2, 1)


def interval(*rows: UsageRow) -> UsageInterval:
    return UsageInterval("b", 0, 0, 0, 1500, rows)


def test_a_line_per_topic_and_reason_with_its_clients() -> None:
    rows = [row(f"app-{i}", "rejected", "topic-threshold") for i in range(5)]
    rows += [row(outcome="errored", reason="MESSAGE_TOO_LARGE"), row()]
    lines = TrafficLines().make_lines(interval(*rows), 0.0)
    assert [line.text for line in lines] == [
        "errored: topic t on broker 1: MESSAGE_TOO_LARGE: 100 bytes, 2 messages in 1 requests within 1.5 s,"
        " from User:u 'app'",
        "rejected: topic t on broker 1: topic-threshold: 500 bytes, 10 messages in 5 requests within 1.5 s,"
        " from User:u 'app-0', User:u 'app-1', User:u 'app-2' and 2 more",
    ]
    about = {"kind": "traffic", "topic": "t", "broker": 1, "seconds": 1.5}
    assert lines[0].fields == about | {
        "outcome": "errored", "reason": "MESSAGE_TOO_LARGE", "bytes": 100, "messages": 2, "requests": 1,
        "principal": "User:u", "client_id": "app",
    }  # fmt: skip
    assert lines[1].fields == about | {
        "outcome": "rejected", "reason": "topic-threshold", "bytes": 500, "messages": 10, "requests": 5,
        "clients": [{"principal": "User:u", "client_id": f"app-{i}"} for i in range(3)],
    }  # fmt: skip


def test_names_of_strangers_are_no_lines_of_their_own_and_bounded() -> None:
    forged = "x\n2026-01-01 00:00:00 ERROR gateway.control: \x1b[31m\u202eall is lost " + "y" * 10_000
    lines = TrafficLines().make_lines(interval(row(forged, "errored", "INVALID_TOPIC_EXCEPTION", forged, forged)), 0.0)
    assert len(lines) == 1
    assert lines[0].text.isprintable()
    assert len(lines[0].text) < 600
    said = [name for name in lines[0].fields.values() if isinstance(name, str)]
    assert max(len(name) for name in said) <= 100
    assert all(name.isprintable() for name in said)


def test_an_hour_of_made_up_names_is_a_few_lines_a_minute_that_say_what_they_left_out() -> None:
    traffic = TrafficLines()
    lines = [
        line
        for second in range(3600)
        for line in traffic.make_lines(
            interval(*(row(outcome="errored", reason="INVALID", topic=f"t{second}-{i}") for i in range(100))), second
        )
    ]
    assert len(lines) <= 60 * (MAX_LINES + 1)
    told = [line for line in lines if "left out" in line.text]
    assert told[0].fields["lines_left_out"] == 5950
    assert (
        told[0].text == "errored: INVALID: 5,950 more lines like these, about 5,950 requests, were left out within 60 s"
    )
    assert len(told) == 59


def test_one_kind_takes_no_lines_from_another() -> None:
    traffic = TrafficLines()
    flood = [row(outcome="errored", reason="INVALID", topic=f"t{i}") for i in range(2 * MAX_LINES)]
    lines = traffic.make_lines(interval(*flood, row(outcome="rejected", reason="topic-threshold")), 0.0)
    assert len(lines) == MAX_LINES + 1
    assert [line for line in lines if line.text.startswith("rejected: topic t on broker 1: topic-threshold")]


def test_a_kind_that_was_quiet_has_all_its_lines_again() -> None:
    traffic = TrafficLines()
    rows = [row(outcome="errored", reason="INVALID", topic=f"t{i}") for i in range(MAX_LINES)]
    assert len(traffic.make_lines(interval(*rows), 0.0)) == MAX_LINES
    assert traffic.make_lines(interval(*rows), WINDOW_S - 1) == []
    assert len(traffic.make_lines(interval(*rows), WINDOW_S)) == MAX_LINES + 1


def test_an_event_that_goes_on_all_the_time_is_told_again_once_in_a_while() -> None:
    traffic, delayed = TrafficLines(), interval(row(outcome="delayed", reason="client-quota"))
    assert [len(traffic.make_lines(delayed, now)) for now in (0.0, 1.0, LOG_AGAIN_S - 1, LOG_AGAIN_S)] == [1, 0, 0, 1]
