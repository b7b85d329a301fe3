# The limits that this gateway shares with others, as metrics.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.control.metrics.family import counter, gauge, make_counters, make_gauges

FLEET: Final = (
    counter("fleet_reports_sent", "Messages to other gateways that the exchange topic acknowledged."),
    counter("fleet_reports_received", "Messages received from other gateways."),
    counter("fleet_report_bytes", "Size of these messages, `sent` or `received`.", ("direction",)),
    counter(
        "fleet_reports_dropped",
        "Messages from other gateways that were dropped, by [reason](exchange.md#what-happens-on-each-event).",
        ("reason",),
    ),
    gauge("fleet_peers", "Live peer gateways."),
    gauge("fleet_members", "Workers of all gateways, which share the limits."),
    gauge("fleet_exchange_up", "1 while the gateway hears its peers; 0 also without an exchange."),
    gauge(
        "fleet_share_state",
        "1 for the present way of sharing limits: `local` (no exchange), `shared`, `frozen` (the exchange has just "
        "gone) or `fallback`.",
        ("state",),
    ),
)
SHARE_STATES: Final = ("local", "shared", "frozen", "fallback")


class FleetMetrics(Collector):
    """The limits that this gateway shares with others.

    `make_gauges`: those without labels, by name. `state`: the way limits are shared.
    """

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        self.gauges = {each.name: 0.0 for each in FLEET if each.kind == "gauge" and not each.labels}
        self.state = SHARE_STATES[0]
        self.sent = self.received = self.sent_bytes = self.received_bytes = 0
        self.dropped = dict.fromkeys(reasons, 0)

    def collect(self) -> Iterator[Metric]:
        counted = make_counters(FLEET)
        counted["fleet_reports_sent"].add_metric([], self.sent)
        counted["fleet_reports_received"].add_metric([], self.received)
        counted["fleet_report_bytes"].add_metric(["sent"], self.sent_bytes)
        counted["fleet_report_bytes"].add_metric(["received"], self.received_bytes)
        for reason, count in list(self.dropped.items()):  # this runs in a thread
            counted["fleet_reports_dropped"].add_metric([reason], count)
        yield from counted.values()
        shown = make_gauges(FLEET)
        for name, value in self.gauges.items():
            shown[name].add_metric([], value)
        for state in SHARE_STATES:
            shown["fleet_share_state"].add_metric([state], float(state == self.state))
        yield from shown.values()
