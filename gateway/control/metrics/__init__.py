# Every metric of the gateway, by subject. One table has name, type, labels and meaning of each; docs/metrics.md is
# generated from it (`python -m tests.pages`).
#
#   family.py        what one metric is, in words
#   table.py         all of them, by section of the page; the labels, and how many values each may have
#   lines.py         the exposition's lines, of families that have many
#   registry.py      the registry: all that is counted, and the collectors
#   counted.py       connections, requests, the cluster, changes, usage log and processes
#   produced.py      series of topics and clients, and the bounds of their labels
#   certificates.py  when the gateway's own expire
#   rates.py         rates of brokers, topics, client quotas and resource groups
#   latencies.py     how long Produce requests take
#   fleet.py         limits that are shared with other gateways
#   storage.py       storage protection
#
# All series are there at 0 from the start; of a topic, from its first byte on, those of what limits can do to it. Knows
# no sockets.

from gateway.control.metrics.certificates import CertificateLocation, certificate_locations
from gateway.control.metrics.family import PREFIX, MetricFamily
from gateway.control.metrics.fleet import SHARE_STATES, FleetMetrics
from gateway.control.metrics.registry import ClusterMetrics, GatewayMetrics, UsageLogMetrics
from gateway.control.metrics.storage import StorageMetrics
from gateway.control.metrics.table import FAMILIES, LABELS, SECTIONS

__all__ = [
    "FAMILIES",
    "LABELS",
    "PREFIX",
    "SECTIONS",
    "SHARE_STATES",
    "CertificateLocation",
    "ClusterMetrics",
    "FleetMetrics",
    "GatewayMetrics",
    "MetricFamily",
    "StorageMetrics",
    "UsageLogMetrics",
    "certificate_locations",
]
