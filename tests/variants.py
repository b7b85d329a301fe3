# The compiled modules of the hot path (setup.py), each beside the Python that it is made from. Tests ask both, or have
# all of the gateway run with one of them.

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Final

import pytest

from gateway.compiled import MODULES, SUFFIX

PURE, COMPILED = "pure", "compiled"
# Who has chosen one of them when it was imported, and under which name.
USERS: Final = {
    "protocol.usual": (("protocol.produce_request", "usual"), ("protocol.produce_response", "usual")),
    "protocol.stream": (),  # it is passing's, which has the one of its own kind
    "protocol.metadata_topics": (("protocol.rewrite", "metadata_topics"),),
    "policies.duplicates": (("gateway.data.world", "Acknowledged"),),
    "policies.limits.meter": (
        ("policies.thresholds.topic_meter", "FleetMeter"),
        ("policies.thresholds.broker_meters", "FleetMeter"),
    ),
    "gateway.data.ledger": (("gateway.data.world", "Ledger"),),
    "gateway.data.in_flight": (("gateway.data.session", "InFlight"),),
    "gateway.data.sums": (("gateway.data.accounts", "sums"),),
    "gateway.data.passing": (("gateway.data.requests", "passing"), ("gateway.data.answers", "passing")),
    "gateway.data.shortcut": (("gateway.data.links", "Shortcut"),),
    "gateway.data.slices": (("gateway.data.reactor", "Slice"),),
}


def module(name: str, variant: str) -> ModuleType:
    """One of MODULES. Where the compiled one is missing the test is skipped; in CI it fails: it would be no test."""
    if variant == PURE:
        return import_module(name)
    try:
        return import_module(f"{name}{SUFFIX}")
    except ImportError as why:
        if os.environ.get("CI") and not os.environ.get("PURE_PYTHON"):
            pytest.fail(f"{name} is not compiled: {why}")
        pytest.skip(f"{name} is not compiled")


@contextmanager
def running(variant: str) -> Iterator[None]:
    """Sessions that begin within it run with that variant."""
    with pytest.MonkeyPatch.context() as patch:
        for name in MODULES:
            chosen = module(name, variant)
            for user, attribute in USERS[name]:
                value = chosen if attribute == name.rpartition(".")[2] else getattr(chosen, attribute)
                patch.setattr(f"{user}.{attribute}", value)
        yield
