# Storage protection as a part of control: made as soon as its view of the disks can be had, where it is configured.
# What it does is storage/'s.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.channel import Storage
from gateway.config import Settings, limits_production
from gateway.control.components.parts import STORAGE, Parts
from gateway.control.metrics import Metrics
from gateway.control.storage.forecast import Around, Outlook
from gateway.control.storage.override import Hands
from gateway.control.storage.storage_control import Replicas, StorageControl, make_status
from policies.definitions.policy_set import PolicySet


class Protection:
    """Args:
    policies: those in force.
    tell: tells workers.
    replicas: see StorageControl.
    around: for forecasts.
    hand, knows_hands: see StorageControl.
    restarted: workers may hold a factor that an earlier control told them.
    """

    def __init__(
        self,
        settings: Settings,
        parts: Parts,
        metrics: Metrics,
        policies: Callable[[], PolicySet],
        tell: Callable[[Storage], None],
        replicas: Callable[[], Replicas | None] = lambda: None,
        around: Around | None = None,
        hand: Hands = lambda: None,
        knows_hands: Callable[[], bool] = lambda: True,
        *,
        restarted: bool,
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._metrics = metrics
        self._policies = policies
        self._tell = tell
        self._replicas = replicas
        self._around = around
        self._hand, self._knows_hands = hand, knows_hands
        self._restarted = restarted
        self._control: StorageControl | None = None
        self._is_heard = False  # a worker, while there was no control to tell …
        self._held: Storage | None = None  # … and the factor that it holds

    async def run(self) -> None:
        """Workers are told the state before the first look at once, so that none is without one."""
        if STORAGE not in self._parts:
            return
        view = await self._parts.obtain(STORAGE)
        settings = self._settings
        assert settings.storage is not None
        metrics = self._metrics.show_storage()
        self._control = StorageControl(
            settings.storage,
            view,
            metrics,
            tell=self._tell,
            observe=settings.mode == "observe",
            has_limits=self._has_limits,
            restarted=self._restarted and not self._is_heard,
            held=self._held,
            hand=self._hand,
            knows_hands=self._knows_hands,
            replicas=self._replicas,
            outlook=Outlook(settings.storage.check_interval, metrics, self._total, self._around),
        )
        await self._control.run()

    def _has_limits(self) -> bool:
        policies, storage = self._policies(), self._settings.storage
        if storage is not None and storage.scope == "affected":
            return policies.total() is not None or bool(policies.totals())
        return limits_production(policies.effective())

    def _total(self, broker_id: int) -> float | None:
        """What that broker's producers get at most. A threshold that rejects lets bursts in, so it is no bound."""
        thresholds = self._settings.thresholds
        is_bound = thresholds.on_exceed == "delay" and "observe" not in (self._settings.mode, thresholds.mode)
        return self._policies().total(broker_id) if is_bound else None

    def look(self) -> None:
        """Topics have other replicas."""
        if self._control is not None:
            self._control.look()

    def heed(self) -> None:
        """The operator's hand is another one, or has been read now."""
        if self._control is not None:
            self._control.heed()

    def adopt(self, held: Storage | None) -> None:
        """A worker's factor, before that worker is told anything; None: it holds none."""
        if self._control is not None:
            self._control.adopt(held)
        else:
            self._is_heard, self._held = True, held or self._held

    def configure(self, settings: Settings) -> None:
        """Another configuration is in force: of it, whether workers act or only count."""
        self._settings = settings
        if self._control is not None:
            self._control.set_observe(settings.mode == "observe")

    def status(self) -> Mapping[str, Any]:
        """The answer of GET /v1/storage."""
        return make_status(self._control)()
