# A policy's verdict about a batch, in terms that every policy can use: an action, the reason that goes into message,
# metric and usage log, and how long the client should wait. The error code that carries it depends on the client's
# software, since clients differ in what they retry (measured: one that gives up loses the application's records).
#
# Knows no wire format and no session. Error numbers: Kafka protocol guide. The errors that each client retries:
# measured with kafka-clients 2.4-4.1, librdkafka 2.16, franz-go 1.22, sarama 1.61, kafka-python 3.0, aiokafka 0.14,
# KafkaJS 2.2.

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from policies.units import format_messages, format_rate

REJECT: Final = "reject"
DELAY: Final = "delay"  # admitted; the client, and then its connection, waits afterwards
HOLD: Final = "hold"  # not forwarded; it waits as long as its client may be kept, and is rejected then

PAUSE_THROTTLE_MS: Final = 1000  # behind a rejection in a PAUSE: the batch was held for long before it
MAX_THROTTLE_MS: Final = 10_000  # franz-go gives a request up after 20 s: one wait must leave room for queued ones
# A client whose request passes may get a longer throttle time, since it waits before it sends: one that came back
# sooner would have to be held, and its request of several megabytes rejected. Most clients wait for any throttle time
# (40 s, measured).
MAX_DELAY_MS: Final = 30_000

# Reasons as in usage.REASONS.
TOPIC_THRESHOLD: Final = "topic-threshold"
FENCE: Final = "fence"
PROTECTED_TOPIC: Final = "protected-topic"
UNKNOWN_TOPIC_ID: Final = "unknown-topic-id"
STORAGE_THROTTLE: Final = "storage-throttle"
STORAGE_PAUSE: Final = "storage-pause"
CLIENT_QUOTA: Final = "client-quota"
RESOURCE_GROUP: Final = "resource-group"
NEVER_PASSES: Final = frozenset({PROTECTED_TOPIC, UNKNOWN_TOPIC_ID})  # no limit: however long it waits

# How the text of a limit that delays ends, before the time.
DELAYED_BY: Final = "delayed by "
QUEUE_FULL: Final = f"others wait for {MAX_THROTTLE_MS / 1000:g} s already; retry in "
WAITED_LONG: Final = "this connection has waited as long as its client may be kept; retry in "

NOT_ENOUGH_REPLICAS: Final = 19  # certainly not appended, and no doubt about the leader: the safe default
THROTTLING_QUOTA_EXCEEDED: Final = 89  # the true name of what happened (KIP-599), for clients that retry it

# NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR: every client sends again.
RETRIED_BY_ALL: Final = frozenset({6, 7, NOT_ENOUGH_REPLICAS, 56})
# Only clients that name topics by id get this; each of them asks for metadata and sends again (KIP-516).
NO_SUCH_ID: Final = 100

# Software names in ApiVersions (KIP-511) and the lowest version known to retry 89; () = whatever it says.
_RETRYING_VERSIONS: Final[dict[str, tuple[int, ...]]] = {"apache-kafka-java": (2, 7), "kgo": (), "kafka-python": (3,)}
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One policy's decision that a batch is not simply admitted.

    `room_in_s`: rejected because the queue is full, but after that many seconds there may be room: until then it can be
    held instead, if its client waits. 0.0: not so. `deferred`: refused for good, which its client learns once nothing
    else of its request has to come again. `observed_only`: the policy is tried out (mode observe): admit without a
    delay, and count the outcome `would_outcome`.
    """

    action: str
    reason: str
    throttle_ms: int  # for throttle_time_ms and the mute that goes with it; 0 = none
    text: str  # error_message for the client, and the log line
    observed_only: bool = False
    deferred: bool = False
    room_in_s: float = 0.0

    @property
    def would_outcome(self) -> str:
        """One of usage.OBSERVED_OUTCOMES: the outcome of the batch if this were enforced."""
        return "would_delay" if self.action == DELAY else "would_reject"


class ObservedRate(NamedTuple):
    """What passed lately and what may: bytes per second, or the limit's own unit."""

    observed: float
    limit: float


def over_threshold(topic: str, node_id: int, throttle_ms: int, rate: ObservedRate, total: ObservedRate) -> Verdict:
    """Rejected by V1 thresholds."""
    text = (
        f"topic {topic} is over its threshold: {_comparison_text(rate)} (1-minute EWMA), broker {node_id} total"
        f" {_comparison_text(total)}; retry in {throttle_ms / 1000:.1f} s"
    )
    return Verdict(REJECT, TOPIC_THRESHOLD, throttle_ms, text)


def used_up_burst(
    topic: str, node_id: int, throttle_ms: int, rate: ObservedRate, total: ObservedRate, burst_s: float
) -> Verdict:
    """Rejected by V1 thresholds, not for their averages but for what passed above both within a short time."""
    text = (
        f"topic {topic} has used up a burst of {burst_s:g} s above its threshold of {format_rate(rate.limit)} (1-minute"
        f" EWMA {format_rate(rate.observed)}), and broker {node_id} above its total of {format_rate(total.limit)};"
        f" retry in {throttle_ms / 1000:.1f} s"
    )
    return Verdict(REJECT, TOPIC_THRESHOLD, throttle_ms, text)


def used_up_threshold(
    topic: str,
    node_id: int,
    throttle_ms: int,
    rate: ObservedRate,
    total: ObservedRate,
    outcome: str,
    note: str = "",
    room_in_s: float = 0.0,
) -> Verdict:
    """Delayed by V1 thresholds: `outcome` is DELAYED_BY, or why it was rejected: QUEUE_FULL or WAITED_LONG. `note`: see
    `reduced_text`; with one, storage makes it wait.
    """
    text = (
        f"topic {topic} has used up its threshold of {format_rate(rate.limit)} (observed {format_rate(rate.observed)},"
        f" 1-minute EWMA) and broker {node_id} its total of {format_rate(total.limit)} (observed"
        f" {format_rate(total.observed)}){note}"
    )
    reason = STORAGE_THROTTLE if note else TOPIC_THRESHOLD
    return _delay_verdict(reason, throttle_ms, text, outcome, room_in_s)


def reduced_text(factor: float, why: str) -> str:
    """The explanation of limits that are lower than configured, in the text of a verdict."""
    return f", at {factor:.0%} because of storage: {why}"


def storage_throttle(
    node_id: int,
    throttle_ms: int,
    rate: ObservedRate,
    note: str,
    outcome: str,
    whose: str = "all producers",
    room_in_s: float = 0.0,
) -> Verdict:
    """Delayed because disks fill up: `whose` share the broker's total, times the storage factor."""
    text = (
        f"{whose} of broker {node_id} share {format_rate(rate.limit)} (observed {format_rate(rate.observed)}, 1-minute"
        f" EWMA){note}"
    )
    return _delay_verdict(STORAGE_THROTTLE, throttle_ms, text, outcome, room_in_s)


def storage_pause(why: str, throttle_ms: int = PAUSE_THROTTLE_MS) -> Verdict:
    """Nothing may be written just now: anywhere in the cluster, or (`throttle_ms` 0, as its connection goes on with
    other topics) to one topic.
    """
    text = f"writes are paused: {why}; retry" + (f" in {throttle_ms / 1000:.1f} s" if throttle_ms else "")
    return Verdict(HOLD, STORAGE_PAUSE, throttle_ms, text)


def client_quota(quota: str, throttle_ms: int, outcome: str, room_in_s: float = 0.0) -> Verdict:
    """Delayed by a client quota. `quota` names it and the clients that share it."""
    return _delay_verdict(CLIENT_QUOTA, throttle_ms, f"client quota {quota} is used up", outcome, room_in_s)


def resource_group(
    group: str,
    unit: str,
    throttle_ms: int,
    rate: ObservedRate,
    here: float,
    outcome: str,
    room_in_s: float = 0.0,
) -> Verdict:
    """Delayed by a resource group (PIP-82). `rate`: observed here, and the limit of all; `here`: our share of the
    limit. `unit`: "bytes" or "msgs" per second.
    """
    observed, limit, part = (_rate_text(unit, value) for value in (*rate, here))
    of_which = "" if part == limit else f", of which {part} are granted here"
    text = f"resource group {group} has used up its {limit}{of_which} (observed {observed} here)"
    return _delay_verdict(RESOURCE_GROUP, throttle_ms, text, outcome, room_in_s)


def behind_fence(topic: str, index: int, throttle_ms: int) -> Verdict:
    """Rejected because an earlier batch of the same idempotent producer was, and has not come back yet."""
    text = f"an earlier batch for topic {topic} partition {index} was rejected: it must be sent again first"
    if throttle_ms:
        text += f"; retry in {throttle_ms / 1000:.1f} s"
    return Verdict(REJECT, FENCE, throttle_ms, text)


def protected_topic(topic: str) -> Verdict:
    """Rejected for good: the topic is the gateway's own."""
    return Verdict(REJECT, PROTECTED_TOPIC, 0, f"topic {topic} is written by the gateway only")


def unknown_topic_id(topic: str) -> Verdict:
    """Rejected because the topic of that id is not known, hence neither its limits nor whether it is protected."""
    return Verdict(REJECT, UNKNOWN_TOPIC_ID, 0, f"{topic}: no broker has sent its name yet; retry")


def reject_code(name: str | None, version: str | None, configured: Literal["auto"] | int) -> int:
    """The error code for a rejection that the client should retry.

    `name` and `version` are the client's software as in ApiVersions, None where it said nothing; `configured` is the
    operator's choice, which wins unless it is "auto".
    """
    if configured != "auto":
        return configured
    return THROTTLING_QUOTA_EXCEEDED if _retries_throttling(name, version) else NOT_ENOUGH_REPLICAS


def is_retried(code: int, name: str | None, version: str | None) -> bool:
    """Whether that client is known to send the batch again after `code`: only then may there be a fence behind it."""
    if code == THROTTLING_QUOTA_EXCEEDED:
        return _retries_throttling(name, version)
    return code in RETRIED_BY_ALL or code == NO_SUCH_ID


def needs_whole_request(name: str | None, configured: Literal["auto"] | int) -> bool:
    """Whether all partitions of a request have to share one fate. `configured`: as for `reject_code`.

    Clients that don't send their name (KafkaJS, aiokafka) may send the accepted partitions again as well. With a code
    that they don't retry they send nothing again, and no partition is refused because of another.
    """
    return not name and (configured == "auto" or configured in RETRIED_BY_ALL)


def limits_retries(name: str) -> bool:
    """Whether that client sends a batch again only a few times, however short the time: it has to be held instead.

    Those that don't send their name (KafkaJS, aiokafka) are taken for such.
    """
    return name in ("", "sarama")


def _retries_throttling(name: str | None, version: str | None) -> bool:
    lowest = _RETRYING_VERSIONS.get(name or "")
    if not lowest:
        return lowest is not None
    found = _VERSION.match(version or "")
    return found is not None and tuple(map(int, found[1].split("."))) >= lowest


def _delay_verdict(reason: str, throttle_ms: int, text: str, outcome: str, room_in_s: float) -> Verdict:
    """`outcome`: DELAYED_BY, or why it was rejected."""
    action = DELAY if outcome is DELAYED_BY else REJECT
    return Verdict(action, reason, throttle_ms, f"{text}; {outcome}{_wait_text(throttle_ms)}", room_in_s=room_in_s)


def _wait_text(throttle_ms: int) -> str:
    return f"{throttle_ms / 1000:.1f} s" if throttle_ms >= 100 else f"{throttle_ms} ms"


def _rate_text(unit: str, rate: float) -> str:
    return format_rate(rate) if unit == "bytes" else format_messages(rate)


def _comparison_text(rate: ObservedRate) -> str:
    """ "6.1 MB/s of 5.0 MB/s", with more digits where the two would look the same."""
    for digits in (1, 2, 3):
        texts = [format_rate(each, digits) for each in rate]
        if texts[0] != texts[1]:
            break
    return f"{texts[0]} of {texts[1]}"
