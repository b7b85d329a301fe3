# What storage protection gets beside the context of every part of control: made once by the composition root, read by
# all of this folder.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.control.context import ControlContext
from gateway.control.storage.override import ActiveOverride
from policies.usage import DiskNotes

Rates = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class StorageContext:
    """
    Attributes:
        control: what every part gets. If an earlier control was up, workers may hold a factor that it sent them.
        find_override: returns the operator's override; None: there is none.
        knows_overrides: whether overrides have been read.
        rates: returns bytes per second by topic and principal, of this gateway.
        record_disks: takes what the usage log is to have.
    """

    control: ControlContext
    find_override: Callable[[], ActiveOverride | None] = lambda: None
    knows_overrides: Callable[[], bool] = lambda: True
    rates: Callable[[], Rates] = dict
    record_disks: Callable[[DiskNotes], None] = lambda disks: None
