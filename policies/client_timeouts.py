# How long producers wait for an answer, by what they say of themselves; so how long a gateway may keep them waiting.
# A request that is kept for longer comes again on another connection: a duplicate, unless its producer is idempotent.
#
# Knows no session and no clock. Read in the sources of the versions in tests/clients; docs/clients.md has the table.

from __future__ import annotations

from typing import Final, NamedTuple


class ClientTimeout(NamedTuple):
    """How long a client waits for the answer to a request, in seconds: `fixed_s`, and the request's own timeout if
    `adds_request_timeout`. That timeout is in each Produce request (`TimeoutMs`): the longest that a broker may wait
    for its followers.
    """

    fixed_s: float
    adds_request_timeout: bool = False


# By the software name in ApiVersions (KIP-511).
CLIENT_TIMEOUTS: Final[dict[str, ClientTimeout]] = {
    "apache-kafka-java": ClientTimeout(
        0.0, adds_request_timeout=True
    ),  # request.timeout.ms, 30 s, is both (Sender.sendProduceRequest)
    "kafka-python": ClientTimeout(
        0.0, adds_request_timeout=True
    ),  # request_timeout_ms, 30 s, is both (producer/sender.py)
    "kgo": ClientTimeout(
        10.0, adds_request_timeout=True
    ),  # 10 s, and RequestTimeoutOverhead, 10 s (connTimeouter.timeouts)
    "sarama": ClientTimeout(30.0),  # Net.ReadTimeout; Producer.Timeout, 10 s, is the broker's (Broker.responseReceiver)
    "platformatic-kafka": ClientTimeout(
        30.0
    ),  # requestTimeout; `timeout`, 5 s, is the broker's (network/connection.js)
}
# librdkafka and its bindings say so in name or version. socket.timeout.ms; request.timeout.ms, 30 s, is the broker's.
LIBRDKAFKA_TIMEOUT: Final = ClientTimeout(60.0)
# aiokafka (40 s), KafkaJS (30 s) and Java before 2.4 (30 s) give no name and wait for that timeout, or longer. Where it
# is less, the client has another one for itself: segmentio/kafka-go 10 s and says half of it, ruby-kafka 10 s and says
# 5 s, kafka-node 30 s and says 0.1 s.
UNKNOWN_MIN_S: Final = 10.0

MARGIN_S: Final = 5.0  # for the network, and a machine that stands still: so much or
MIN_MARGIN: Final = 0.15  # this part of the wait, whichever is more; but no more than
MAX_MARGIN: Final = 0.2  # … this part of a short one


def pipelines_requests(software: tuple[str, str] | None) -> bool:
    """Whether that client goes on sending, as long as its socket takes bytes, while answers are owed: librdkafka and
    its bindings do.
    """
    return software is not None and any("rdkafka" in each for each in software)


def max_response_wait_s(software: tuple[str, str] | None, timeout_ms: int | None) -> float:
    """The longest that a client may be kept waiting for an answer, in seconds. `software`: the name and version that it
    gave; None: none. `timeout_ms`: that of its Produce requests; None: it has sent none yet.
    """
    timeout_s = max(0, timeout_ms or 0) / 1000
    wait = LIBRDKAFKA_TIMEOUT if pipelines_requests(software) else CLIENT_TIMEOUTS.get((software or ("",))[0])
    if wait is None:
        waits_s = max(timeout_s, UNKNOWN_MIN_S)
    elif timeout_ms is None and wait.adds_request_timeout:
        waits_s = max(wait.fixed_s, UNKNOWN_MIN_S)
    else:
        waits_s = wait.fixed_s + (timeout_s if wait.adds_request_timeout else 0.0)
    return waits_s - max(MIN_MARGIN * waits_s, min(MAX_MARGIN * waits_s, MARGIN_S))
