# How long producers wait for an answer, by what they say of themselves; so how long a gateway may keep them waiting.
# A request that is kept for longer comes again on another connection: a duplicate, unless its producer is idempotent.
#
# Knows no session and no clock. Read in the sources of the versions in tests/clients; docs/clients.md has the table.

from __future__ import annotations

from typing import Final, NamedTuple


class Wait(NamedTuple):
    """Seconds from the request to the end of the client's patience: `fixed_s`, and the request's own timeout if `adds`.

    That timeout is in each Produce request (`TimeoutMs`): for so long a broker may wait for its followers.
    """

    fixed_s: float
    adds: bool = False


# By the software name in ApiVersions (KIP-511).
WAITS: Final[dict[str, Wait]] = {
    "apache-kafka-java": Wait(0.0, adds=True),  # request.timeout.ms, 30 s, is both (Sender.sendProduceRequest)
    "kafka-python": Wait(0.0, adds=True),  # request_timeout_ms, 30 s, is both (producer/sender.py)
    "kgo": Wait(10.0, adds=True),  # 10 s, and RequestTimeoutOverhead, 10 s (connTimeouter.timeouts)
    "sarama": Wait(30.0),  # Net.ReadTimeout; Producer.Timeout, 10 s, is the broker's (Broker.responseReceiver)
    "platformatic-kafka": Wait(30.0),  # requestTimeout; `timeout`, 5 s, is the broker's (network/connection.js)
}
# librdkafka and its bindings say so in name or version. socket.timeout.ms; request.timeout.ms, 30 s, is the broker's.
RDKAFKA: Final = Wait(60.0)
# aiokafka (40 s), KafkaJS (30 s) and Java before 2.4 (30 s) give no name and wait for that timeout, or longer. Where it
# is less, the client has another one for itself: segmentio/kafka-go 10 s and says half of it, ruby-kafka 10 s and says
# 5 s, kafka-node 30 s and says 0.1 s.
UNKNOWN_LEAST_S: Final = 10.0

MARGIN_S: Final = 5.0  # for the network, and a machine that stands still: so much or
LEAST_MARGIN: Final = 0.15  # this part of the wait, whichever is more; but no more than
MOST_MARGIN: Final = 0.2  # … this part of a short one


def sends_ahead(software: tuple[str, str] | None) -> bool:
    """Whether that client sends on whatever its socket takes while answers are owed: librdkafka, and its bindings."""
    return software is not None and any("rdkafka" in each for each in software)


def patience_s(software: tuple[str, str] | None, timeout_ms: int | None) -> float:
    """Seconds for which a client may be kept waiting for an answer.

    `software`: name and version that it gave; None: none. `timeout_ms`: that of its Produce requests; None: it has sent
    none yet.
    """
    timeout_s = max(0, timeout_ms or 0) / 1000
    wait = RDKAFKA if sends_ahead(software) else WAITS.get((software or ("",))[0])
    if wait is None:
        waits_s = max(timeout_s, UNKNOWN_LEAST_S)
    elif timeout_ms is None and wait.adds:
        waits_s = max(wait.fixed_s, UNKNOWN_LEAST_S)
    else:
        waits_s = wait.fixed_s + (timeout_s if wait.adds else 0.0)
    return waits_s - max(LEAST_MARGIN * waits_s, min(MOST_MARGIN * waits_s, MARGIN_S))
