# Storage protection as metrics. They are there only where it is on; names after those of the proposals.

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, get_args

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.control.metrics.family import counter, gauge, make_counters, make_gauges
from policies.storage import FactorState, VolumeFinding, VolumeForecast, VolumeHeadroom, VolumeKey

_VOLUME: Final = ("broker", "log_dir")
STORAGE: Final = (
    counter(
        "storage_observations",
        "Observations of the disks: `ok`, `failed` or `invalid` (an unreadable snapshot).",
        ("outcome",),
    ),
    counter("storage_fallback_throttle_factor_applied", "Times the fallback factor or the fail-safe took effect."),
    counter("storage_limit_violated", "Checks that found this volume at its hard limit.", _VOLUME),
    gauge(
        "storage_throttle_factor", "Factor of produce limits; with scope `affected`, of the fullest volume's topics."
    ),
    gauge("storage_affected_topics", "With scope `affected`: topics that volumes hold; 0 while all are held."),
    gauge("storage_override", "1 for the state that an operator has set for a time: `PAUSE` or `OPEN`.", ("state",)),
    gauge("storage_state", "1 for the state in force: `OPEN`, `THROTTLE` or `PAUSE`.", ("state",)),
    gauge("storage_enforced", "1 if the factor is enforced; 0 with mode `observe`, where it only counts."),
    gauge("storage_no_data_throttling", "1 while missing observations hold producers back."),
    gauge("storage_source_connected", "1 if the source answered the last request."),
    gauge("storage_observed_timestamp_seconds", "Unix time at which the disks of all brokers were last known, or 0."),
    gauge(
        "storage_usual_age_seconds",
        "Age that the last observation may have: two `check_interval`, or `snapshots.max_age` if that is longer.",
    ),
    gauge(
        "storage_throttle_without_effect", "1 while there is no produce limit for a soft limit or the factor to lower."
    ),
    gauge("storage_active_brokers", "Brokers whose volumes are considered."),
    gauge("storage_active_log_dirs", "Volumes of these brokers."),
    gauge("storage_remembered_brokers", "Brokers that left with a volume at its limit, whose last state holds."),
    gauge("storage_offline_log_dirs", "Log dirs that brokers report as offline; they are left out."),
    gauge("storage_size_bytes", "Size of the volume.", _VOLUME),
    gauge("storage_available_bytes", "Free bytes of the volume.", _VOLUME),
    gauge("storage_consumed_bytes", "Size of the volume minus its free bytes.", _VOLUME),
    gauge("storage_soft_limit_bytes", "Free bytes below which produce limits are lowered.", _VOLUME),
    gauge("storage_hard_limit_bytes", "Free bytes at which producing stops.", _VOLUME),
    gauge(
        "storage_fill_bytes_per_second",
        "Rate at which the volume fills, less deletions. No series before the third observation.",
        _VOLUME,
    ),
    gauge(
        "storage_soft_limit_in_seconds",
        "Time until the soft limit at this rate; no series if it won't be reached.",
        _VOLUME,
    ),
    gauge("storage_hard_limit_in_seconds", "The same for the hard limit.", _VOLUME),
    gauge(
        "storage_headroom_needed_bytes",
        "Bytes that producers may write to the volume [until the next observation](storage.md#choosing-limits); no "
        "series if nothing bounds them.",
        _VOLUME,
    ),
    gauge("storage_headroom_short_log_dirs", "Volumes with less than that behind their hard limit."),
)
OVERRIDES: Final = ("PAUSE", "OPEN")
OBSERVATIONS: Final = ("ok", "failed", "invalid")


class StorageMetrics(Collector):
    """The latest state of storage protection. Series of volumes that have gone are not in the next exposition.

    `make_gauges`: those without labels, by name.
    """

    def __init__(self) -> None:
        self.gauges = {each.name: 0.0 for each in STORAGE if each.kind == "gauge" and not each.labels}
        self.gauges["storage_throttle_factor"] = self.gauges["storage_enforced"] = 1.0
        self.state: FactorState = "OPEN"
        self.override: FactorState | None = None
        self._findings: tuple[VolumeFinding, ...] = ()
        self._fallbacks = 0
        self._observations = dict.fromkeys(OBSERVATIONS, 0)
        self._violated: dict[VolumeKey, int] = {}
        self._forecasts: Mapping[VolumeKey, VolumeForecast] = {}
        self._headrooms: Mapping[VolumeKey, VolumeHeadroom] = {}

    def count_observation(self, outcome: str, count: int = 1) -> None:
        self._observations[outcome] += count

    def count_fallback(self) -> None:
        self._fallbacks += 1

    def count_violated(self, findings: Iterable[VolumeFinding]) -> None:
        """`findings`: those at their hard limit, of the shown ones."""
        for finding in findings:
            key = finding.volume.key
            self._violated[key] = self._violated.get(key, 0) + 1

    def show_volumes(self, findings: tuple[VolumeFinding, ...], brokers: Collection[int] = ()) -> None:
        """`brokers`: the active ones. Of one whose volumes are not known just now, the counters go on."""
        keys = {finding.volume.key: 0 for finding in findings}
        unknown = frozenset(brokers) - {broker_id for broker_id, _ in keys}
        self._findings = findings
        kept = {key: count for key, count in self._violated.items() if key in keys or key[0] in unknown}
        self._violated = keys | kept

    def show_forecasts(
        self, forecasts: Mapping[VolumeKey, VolumeForecast], rooms: Mapping[VolumeKey, VolumeHeadroom]
    ) -> None:
        """Of the shown volumes, by broker and name."""
        self._forecasts, self._headrooms = forecasts, rooms
        self.gauges["storage_headroom_short_log_dirs"] = sum(room.is_short for room in rooms.values())

    def collect(self) -> Iterator[Metric]:
        counted = make_counters(STORAGE)
        for outcome, count in self._observations.items():
            counted["storage_observations"].add_metric([outcome], count)
        counted["storage_fallback_throttle_factor_applied"].add_metric([], self._fallbacks)
        for (broker_id, name), count in list(self._violated.items()):  # this runs in a thread
            counted["storage_limit_violated"].add_metric([str(broker_id), name], count)
        yield from counted.values()
        shown = make_gauges(STORAGE)
        for name, value in self.gauges.items():
            shown[name].add_metric([], value)
        for state in get_args(FactorState):
            shown["storage_state"].add_metric([state], float(state == self.state))
        for state in OVERRIDES:
            shown["storage_override"].add_metric([state], float(state == self.override))
        for finding in self._findings:
            self._add_volume(shown, finding)
        yield from shown.values()

    def _add_volume(self, shown: dict[str, GaugeMetricFamily], finding: VolumeFinding) -> None:
        volume, soft, hard = finding.volume, finding.soft_free, finding.hard_free
        values = {"size": volume.total, "available": volume.available, "consumed": volume.consumed}
        for name, value in {**values, "soft_limit": soft, "hard_limit": hard}.items():
            if value is not None:
                shown[f"storage_{name}_bytes"].add_metric([str(volume.broker_id), volume.name], value)
        for name, value in self._forecast_values(volume.key).items():
            if value is not None:
                shown[f"storage_{name}"].add_metric([str(volume.broker_id), volume.name], value)

    def _forecast_values(self, key: VolumeKey) -> dict[str, float | None]:
        forecast, room = self._forecasts.get(key), self._headrooms.get(key)
        return {
            "fill_bytes_per_second": None if forecast is None else forecast.fill_rate.net_rate,
            "soft_limit_in_seconds": None if forecast is None else forecast.soft_s,
            "hard_limit_in_seconds": None if forecast is None else forecast.hard_s,
            "headroom_needed_bytes": None if room is None else room.needed,
        }
