# Storage protection as a part of control: made as soon as its view of the disks can be had, where it is configured.
# What it does is storage/'s.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.channel import StorageSnapshot
from gateway.config import Settings, limits_production
from gateway.control.components.optional_components import STORAGE, OptionalComponents
from gateway.control.metrics import GatewayMetrics
from gateway.control.storage.forecast import DiskForecast, ForecastInputs
from gateway.control.storage.override import FindOverride
from gateway.control.storage.storage_control import Replicas, StorageControl, make_status
from policies.definitions.policy_set import PolicySet


class StorageService:
    """Args:
    policies: those in force.
    tell: sends a snapshot to workers.
    replicas: see StorageControl.
    around: for forecasts.
    hand, knows_hands: see StorageControl.
    restarted: workers may hold a factor that an earlier control sent them.
    """

    def __init__(
        self,
        settings: Settings,
        parts: OptionalComponents,
        metrics: GatewayMetrics,
        policies: Callable[[], PolicySet],
        tell: Callable[[StorageSnapshot], None],
        replicas: Callable[[], Replicas | None] = lambda: None,
        around: ForecastInputs | None = None,
        hand: FindOverride = lambda: None,
        knows_hands: Callable[[], bool] = lambda: True,
        *,
        restarted: bool,
    ) -> None:
        self._settings = settings
        self._components = parts
        self._metrics = metrics
        self._policies = policies
        self._publish = tell
        self._replicas = replicas
        self._forecast_inputs = around
        self._find_override, self._knows_overrides = hand, knows_hands
        self._restarted = restarted
        self._control: StorageControl | None = None
        self._has_worker_report = False  # a worker, while there was no control to report to …
        self._worker_factor: StorageSnapshot | None = None  # … and the factor that it holds

    async def run(self) -> None:
        """Workers get the state before the first observation at once, so that none is without one."""
        if STORAGE not in self._components:
            return
        view = await self._components.await_component(STORAGE)
        settings = self._settings
        assert settings.storage is not None
        metrics = self._metrics.create_storage_series()
        self._control = StorageControl(
            settings.storage,
            view,
            metrics,
            tell=self._publish,
            observe=settings.mode == "observe",
            has_limits=self._has_limits,
            restarted=self._restarted and not self._has_worker_report,
            held=self._worker_factor,
            hand=self._find_override,
            knows_hands=self._knows_overrides,
            replicas=self._replicas,
            outlook=DiskForecast(settings.storage.check_interval, metrics, self._broker_total, self._forecast_inputs),
        )
        await self._control.run()

    def _has_limits(self) -> bool:
        policies, storage = self._policies(), self._settings.storage
        if storage is not None and storage.scope == "affected":
            return policies.broker_total() is not None or bool(policies.broker_totals())
        return limits_production(policies.effective_values())

    def _broker_total(self, broker_id: int) -> float | None:
        """The most bytes per second that the broker's producers get. A rejecting threshold lets bursts in, so it is no
        bound.
        """
        thresholds = self._settings.thresholds
        is_bound = thresholds.on_exceed == "delay" and "observe" not in (self._settings.mode, thresholds.mode)
        return self._policies().broker_total(broker_id) if is_bound else None

    def on_replicas_changed(self) -> None:
        """Replicas of topics have moved."""
        if self._control is not None:
            self._control.on_replicas_changed()

    def on_policies_changed(self) -> None:
        """The operator's override has changed, or has just been read."""
        if self._control is not None:
            self._control.on_policies_changed()

    def adopt_factor(self, held: StorageSnapshot | None) -> None:
        """A worker's factor; None: it has none. Called before that worker gets any message."""
        if self._control is not None:
            self._control.adopt_factor(held)
        else:
            self._has_worker_report, self._worker_factor = True, held or self._worker_factor

    def apply_settings(self, settings: Settings) -> None:
        """Another configuration is in force: apply whether workers act or only count."""
        self._settings = settings
        if self._control is not None:
            self._control.set_observe(settings.mode == "observe")

    def status(self) -> Mapping[str, Any]:
        """The response of GET /v1/storage."""
        return make_status(self._control)()
