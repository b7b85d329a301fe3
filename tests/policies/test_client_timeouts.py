# For how long clients may be kept waiting: by what they say, and less than they wait.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.client_timeouts import CLIENT_TIMEOUTS, MARGIN_S, max_response_wait_s, pipelines_requests

JAVA = ("apache-kafka-java", "4.1.0")
BINDING = ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0")


@pytest.mark.parametrize(
    ("software", "timeout_ms", "waits_s"),
    [
        (JAVA, 30_000, 30),
        (("kafka-python", "3.0.12"), 30_000, 30),
        (("kgo", "v1.22.2"), 10_000, 20),
        (("sarama", "v1.61.1"), 10_000, 30),
        (("platformatic-kafka", "1.35.0"), 5000, 30),
        (("librdkafka", "2.16.0"), 30_000, 60),
        (BINDING, 30_000, 60),
        (None, 40_000, 40),  # aiokafka
        (None, 30_000, 30),  # KafkaJS
        (None, 4_999, 10),  # segmentio/kafka-go
        (None, 100, 10),  # kafka-node
        (JAVA, 5000, 5),
        (JAVA, 1, 0.001),
    ],
)
def test_no_client_is_kept_for_as_long_as_it_waits_and_each_for_most_of_that(
    software: tuple[str, str] | None, timeout_ms: int, waits_s: float
) -> None:
    kept_s = max_response_wait_s(software, timeout_ms)
    assert 0.8 * waits_s <= kept_s < waits_s
    assert waits_s < 25 or waits_s - kept_s >= MARGIN_S


@given(
    st.sampled_from([None, ("new-client", "1"), BINDING, *((name, "1") for name in CLIENT_TIMEOUTS)]),
    st.integers(-1, 10**6),
)
def test_who_has_a_longer_timeout_is_never_kept_for_less(software: tuple[str, str] | None, timeout_ms: int) -> None:
    assert 0.0 <= max_response_wait_s(software, timeout_ms) <= max_response_wait_s(software, timeout_ms + 1000)


def test_a_client_that_has_not_sent_a_timeout_yet_is_kept_for_a_short_time() -> None:
    assert (
        max_response_wait_s(None, None)
        == max_response_wait_s(JAVA, None)
        == max_response_wait_s(("kgo", "1"), None)
        == 8.0
    )
    assert max_response_wait_s(BINDING, None) == pytest.approx(51.0)


def test_librdkafka_says_so_in_its_name_or_in_its_version() -> None:
    assert pipelines_requests(BINDING)
    assert pipelines_requests(("librdkafka", "2.16.0"))
    assert not pipelines_requests(JAVA)
    assert not pipelines_requests(None)
