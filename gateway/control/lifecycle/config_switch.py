# Makes another configuration hold in all parts of control at once, and in each worker at once: nothing in here waits.
# Which keys may be others than before is gateway/config/changes.py's; the effect of each is that of a follower of the
# configuration (app.py).

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.config import Settings
from gateway.control.context import ControlContext
from gateway.control.workers.workers import WorkerPool
from gateway.parent_link import AdoptConfig, ConfigOrigin


class ConfigSwitch:
    def __init__(self, context: ControlContext, workers: WorkerPool) -> None:
        self._context = context
        self._workers = workers

    @contextmanager
    def switch_to(self, settings: Settings, origin: ConfigOrigin) -> Iterator[None]:
        """The configuration takes effect together with the policies that are published within. The parent then keeps it
        for the next control.
        """
        facts = self._context.facts
        with self._workers.batch_snapshots():
            facts.configuration.publish(settings)
            yield
            facts.policies.publish(facts.policies.latest)  # how they are enforced is the configuration's
        self._context.link.adopt_config(
            AdoptConfig(
                settings.model_dump_json(by_alias=True).encode(),
                origin,
                settings.shutdown_delay,
                settings.drain_timeout,
            )
        )
