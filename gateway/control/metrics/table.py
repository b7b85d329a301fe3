# All metrics, by section of docs/metrics.md, and their labels with the number of values that each may have. A test
# holds the page and every exposed series against it.

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.control.metrics.certificates import CERTIFICATES
from gateway.control.metrics.counted import CHANGES, CLUSTER, ITSELF, TRAFFIC, USAGE_LOG
from gateway.control.metrics.family import MetricFamily
from gateway.control.metrics.fleet import FLEET
from gateway.control.metrics.latencies import LATENCIES
from gateway.control.metrics.produced import PRODUCED
from gateway.control.metrics.rates import GROUPS, QUOTAS, RATES
from gateway.control.metrics.storage import STORAGE
from protocol import api

SECTIONS: Final[dict[str, tuple[MetricFamily, ...]]] = {
    "Produced bytes, messages and requests": PRODUCED,
    "Rates and thresholds": RATES,
    "Client quotas": QUOTAS,
    "Resource groups": GROUPS,
    "Connections and requests": TRAFFIC,
    "Latency": LATENCIES,
    "The cluster behind the gateway": CLUSTER,
    "Changes at run time": CHANGES,
    "Usage log": USAGE_LOG,
    "Sharing limits with other gateways": FLEET,
    "Storage protection": STORAGE,
    "Certificates": CERTIFICATES,
    "The gateway itself": ITSELF,
}
FAMILIES: Final = {family.name: family for section in SECTIONS.values() for family in section}


class MetricLabel(NamedTuple):
    """`values`: what they are, in Markdown. `most`: how many of them one gateway can show."""

    values: str
    most: str


LABELS: Final = {
    "broker": MetricLabel("Node id; `unknown` before it is known, `all` for a quota over all brokers.", "brokers"),
    "topic": MetricLabel(
        "A topic in metadata or with something accepted; else `other`.",
        "`limits.max_topic_metrics` pairs with `broker`",
    ),
    "outcome": MetricLabel(
        "What became of the bytes, in [the audit's](audit.md#what-it-answers) words; of refreshes and the like, how "
        "they went.",
        "9",
    ),
    "reason": MetricLabel(
        "The policy or broker's error that decided; elsewhere, why something was refused.",
        "policies' reasons and Kafka's error codes",
    ),
    "principal": MetricLabel(
        "The authenticated user, cut at 256 characters; beyond the bound `other`.",
        "`limits.max_client_metrics` pairs with `client_id`",
    ),
    "client_id": MetricLabel(
        "What the client claims, likewise.",
        "as `principal`; of quotas as `quota`",
    ),
    "quota": MetricLabel(
        "The key of a client quota: type and unit.", "`limits.max_client_metrics` quotas, the busiest"
    ),
    "source": MetricLabel("The entity that the quota was set for.", "as `quota`"),
    "user": MetricLabel("The user whom the quota limits.", "as `quota`"),
    "group": MetricLabel("A resource group.", "`limits.max_client_metrics` groups, the busiest"),
    "direction": MetricLabel("`publish` or `dispatch`; of messages between gateways `sent` or `received`.", "2"),
    "log_dir": MetricLabel("A volume, by the name that the storage source gives it.", "volumes"),
    "worker": MetricLabel("Number of the worker, from 0.", "workers"),
    "listener": MetricLabel("Name of the listener; `default` for the section `listener`.", "listeners"),
    "api": MetricLabel("Name of an API of Kafka's protocol; `unknown` for other keys.", str(len(api.API_NAMES) + 1)),
    "where": MetricLabel("`accept`, `admin_server`, `kafka_admin`, `sasl` or `worker_message`.", "5"),
    "certificate": MetricLabel("`listener`, `listeners.NAME`, `admin` or `upstream`.", "listeners, and 2"),
    "policy": MetricLabel("`threshold`, `quota` or `group`.", "3"),
    "cause": MetricLabel(
        "[Why](security.md#everything-costs-and-everything-ends) the gateway ended it, or `client`, `upstream`, "
        "`error`, `drain`.",
        "16",
    ),
    "limit": MetricLabel("The limit of connections that was reached.", "2"),
    "part": MetricLabel("A component that the gateway can go on without.", "8"),
    "state": MetricLabel("A possible state; the series of the present one is 1.", "4"),
    "version": MetricLabel("The gateway's version.", "1"),
    "python": MetricLabel("Python's version.", "1"),
    "gateway": MetricLabel("The name of this gateway.", "1"),
    "upstream": MetricLabel("`upstream.bootstrap.servers`.", "1"),
    "internal_topics": MetricLabel("Where the internal topics are.", "1"),
    "usage_topic": MetricLabel("The name of the usage topic.", "1"),
}
