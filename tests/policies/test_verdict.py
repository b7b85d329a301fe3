# Which code which client gets (measured behaviour of real clients), and what the texts say.

from __future__ import annotations

import pytest

from policies.usage import OBSERVED_OUTCOMES, REASONS
from policies.verdict import (
    DELAY,
    DELAYED_BY,
    QUEUE_FULL,
    REJECT,
    WAITED_LONG,
    ObservedRate,
    Verdict,
    behind_fence,
    client_quota,
    is_retried,
    needs_whole_request,
    over_threshold,
    protected_topic,
    reject_code,
    resource_group,
    storage_pause,
    storage_throttle,
    unknown_topic_id,
    used_up_threshold,
)


@pytest.mark.parametrize(
    ("name", "version", "code"),
    [
        ("apache-kafka-java", "4.1.0", 89),
        ("apache-kafka-java", "2.8.2", 89),
        ("apache-kafka-java", "2.7.0", 89),
        ("apache-kafka-java", "2.7.0-SNAPSHOT", 89),
        ("apache-kafka-java", "10.0", 89),
        ("apache-kafka-java", "2.6.3", 19),
        ("apache-kafka-java", "2.4.1", 19),
        ("apache-kafka-java", "unknown", 19),
        ("apache-kafka-java", "", 19),
        ("apache-kafka-java", None, 19),
        ("kgo", "v1.22.2", 89),
        ("kgo", "unknown", 89),
        ("kafka-python", "3.0.12", 89),
        ("kafka-python", "2.2.15", 19),
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0", 19),
        ("librdkafka", "2.16.0", 19),
        ("sarama", "v1.61.1", 19),
        ("something", "9.9", 19),
        ("", "", 19),
        (None, None, 19),
    ],
)
def test_only_clients_that_retry_89_get_it(name: str | None, version: str | None, code: int) -> None:
    assert reject_code(name, version, "auto") == code
    assert is_retried(code, name, version)


def test_the_operators_choice_wins_and_every_client_retries_some_codes() -> None:
    assert reject_code("apache-kafka-java", "4.1.0", 7) == 7
    assert all(is_retried(code, None, None) for code in (6, 7, 19, 56))


def test_there_is_no_fence_behind_a_code_that_this_client_does_not_retry() -> None:
    """The base would never come back: aiokafka lost 55 of 60 batches."""
    assert not is_retried(44, "apache-kafka-java", "4.1.0")
    assert not is_retried(89, None, None)
    assert not is_retried(89, "apache-kafka-java", "2.4.1")


def test_clients_without_a_name_get_one_answer_for_the_whole_request() -> None:
    assert needs_whole_request(None, "auto")
    assert needs_whole_request("", 19)
    assert not needs_whole_request("sarama", "auto")
    assert not needs_whole_request("", 44)  # which they don't retry: nothing comes again


def test_the_text_does_not_say_that_a_rate_exceeds_itself() -> None:
    assert (
        "5.01 MB/s of 5.00 MB/s"
        in over_threshold("clicks", 1, 1, ObservedRate(5.01e6, 5e6), ObservedRate(2.0, 1.0)).text
    )


def test_every_rejection_has_a_reason_that_metrics_know() -> None:
    verdicts = [
        over_threshold("t", 1, 1, ObservedRate(2, 1), ObservedRate(2, 1)),
        client_quota("producer_byte_rate:bps=1 {user=alice}", 1, QUEUE_FULL),
        resource_group("gold", "bytes", 1, ObservedRate(2, 1), 1, QUEUE_FULL),
        storage_throttle(1, 1, ObservedRate(2, 1), "", QUEUE_FULL),
        storage_pause("broker 2 volume /data is full"),
        behind_fence("t", 3, 100),
        protected_topic("__produce_gateway_usage"),
        unknown_topic_id("topic-id:AAECAwQFBgcICQoLDA0ODw"),
    ]
    assert [verdict.reason for verdict in verdicts] == list(REASONS["rejected"])
    assert "{user=alice}" in verdicts[1].text
    assert "resource group gold" in verdicts[2].text
    assert "broker 2 volume /data" in verdicts[4].text
    assert "partition 3" in verdicts[5].text
    assert "__produce_gateway_usage" in verdicts[6].text
    assert verdicts[6].throttle_ms == 0  # not a matter of waiting


@pytest.mark.parametrize(
    ("unit", "here", "used_up"),
    [
        ("bytes", 12e6, "12.0 MB/s (observed 11.9 MB/s here)"),
        ("bytes", 4e6, "12.0 MB/s, of which 4.0 MB/s are granted here (observed 11.9 MB/s here)"),
        ("msgs", 12e6, "12,000,000 messages/s (observed 11,900,000 messages/s here)"),
    ],
)
def test_a_resource_group_is_named_with_its_limit_and_what_is_granted_here(
    unit: str, here: float, used_up: str
) -> None:
    text = resource_group("gold", unit, 1000, ObservedRate(11.9e6, 12e6), here, DELAYED_BY).text
    assert text == f"resource group gold has used up its {used_up}; delayed by 1.0 s"


def test_a_limit_of_few_messages_is_not_rounded_to_none() -> None:
    text = resource_group("gold", "msgs", 1000, ObservedRate(0.5, 0.5), 0.25, DELAYED_BY).text
    assert "used up its 0.5 messages/s, of which 0.25 messages/s are granted here (observed 0.5 " in text


USED_UP = (
    "topic clicks has used up its threshold of 5.0 MB/s (observed 4.9 MB/s, 1-minute EWMA) and broker 1 its total of"
    " 20.0 MB/s (observed 19.0 MB/s); "
)


@pytest.mark.parametrize(
    ("outcome", "action", "ending"),
    [
        (DELAYED_BY, "delay", "delayed by 1.2 s"),
        (QUEUE_FULL, "reject", "others wait for 10 s already; retry in 1.2 s"),
        (WAITED_LONG, "reject", "this connection has waited as long as its client may be kept; retry in 1.2 s"),
    ],
)
def test_a_delay_says_limits_observed_rates_and_how_long(outcome: str, action: str, ending: str) -> None:
    verdict = used_up_threshold("clicks", 1, 1200, ObservedRate(4.9e6, 5e6), ObservedRate(19e6, 20e6), outcome)
    assert (verdict.action, verdict.reason, verdict.throttle_ms) == (action, "topic-threshold", 1200)
    assert verdict.text == USED_UP + ending


def test_a_short_delay_is_told_in_milliseconds() -> None:
    assert used_up_threshold("t", 1, 12, ObservedRate(1, 1), ObservedRate(1, 1), DELAYED_BY).text.endswith(
        "delayed by 12 ms"
    )


def test_every_action_has_an_outcome_for_when_it_is_only_observed() -> None:
    assert tuple(Verdict(action, "r", 0, "").would_outcome for action in (REJECT, DELAY)) == OBSERVED_OUTCOMES
