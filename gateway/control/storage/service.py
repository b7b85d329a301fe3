# Storage protection as the rest of control sees it: there as soon as its view of the disks can be had, where it is
# configured. What it does is storage_control.py's.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.channel import StorageSnapshot
from gateway.control.components.optional_components import STORAGE, OptionalComponents
from gateway.control.storage.context import StorageContext
from gateway.control.storage.storage_control import StorageControl

STATUS_OFF: Final[Mapping[str, Any]] = {"enabled": False}


class StorageService:
    """`run` has to be running; everything else may be called at any time."""

    def __init__(self, context: StorageContext, components: OptionalComponents) -> None:
        self._context = context
        self._components = components
        self._control: StorageControl | None = None
        self._has_report = False  # of a worker, while there was no control to report to …
        self._reported: list[StorageSnapshot] = []  # … and the factors that workers hold, each once

    async def run(self) -> None:
        if STORAGE not in self._components:
            return
        view = await self._components.await_component(STORAGE)
        self._control = StorageControl(self._context, view)
        # The youngest first: each is in force until the next one is known.
        for held in sorted(self._reported, key=lambda each: (-(each.valid_until or 0.0), each.factor.value)):
            self._control.adopt_factor(held)
        if self._has_report and not self._reported:
            self._control.adopt_factor(None)
        await self._control.run()

    def refresh(self) -> None:
        """The configuration, policies or the replicas of topics have changed, or have just been read."""
        if self._control is not None:
            self._control.refresh()

    def adopt_factor(self, reported: StorageSnapshot | None) -> None:
        """A worker's factor; None: it has none. Called before that worker gets any message."""
        if self._control is not None:
            self._control.adopt_factor(reported)
        else:
            self._has_report = True
            if reported is not None and reported not in self._reported:
                self._reported.append(reported)

    def status(self, identified: bool = True) -> Mapping[str, Any]:
        """See StorageControl."""
        return STATUS_OFF if self._control is None else self._control.status(identified)
