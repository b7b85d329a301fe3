# The hot path, compiled and as Python (setup.py). Tests ask both of a module that is either, or have all of a session
# run with one of them: as Python it has no fast path, and everything is looked at step by step.

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from gateway.compiled import EITHER_FORM, HOT_PATH_MODULES, is_compiled
from gateway.data.relay.no_shortcut import NoShortcut

ROOT = Path(__file__).parent.parent
PURE, COMPILED = "pure", "compiled"
# What sessions have where nothing is compiled; of modules that are either, the name of what they have of it.
_WITHOUT_FAST_PATH: Final[dict[str, Any]] = {
    "protocol.produce.produce_request.read_request": lambda *_: None,
    "protocol.produce.produce_request.gather_partitions": list,
    "protocol.produce.produce_response.read_response": lambda *_: None,
    "protocol.produce.produce_response.gather_partitions": list,
    "gateway.data.session.enforcement.gather_partitions": list,
    "gateway.data.session.accounts.written_offsets": lambda *_: None,
    "gateway.data.session.requests.ForwardingTerms": None,
    "gateway.data.session.responses.ResponseCounters": None,
    "gateway.data.relay.links.Shortcut": NoShortcut,
}
_OF_EITHER: Final = {
    "protocol.rewriting.rewrite.metadata_topics": ("protocol.rewriting.metadata_topics", ""),
    "gateway.data.shared.worker_state.AcknowledgedBatches": ("policies.idempotence.duplicates", "AcknowledgedBatches"),
    "gateway.data.shared.worker_state.UsageLedger": ("gateway.data.shared.ledger", "UsageLedger"),
    "gateway.data.session.session.InFlightRequests": ("gateway.data.pending.in_flight", "InFlightRequests"),
    "gateway.data.sockets.reactor.EventSlice": ("gateway.data.sockets.slices", "EventSlice"),
    "gateway.data.connecting.arrivals.TlsConnection": ("gateway.data.sockets.tls", "TlsConnection"),
    "gateway.data.connecting.upstream_tls.TlsConnection": ("gateway.data.sockets.tls", "TlsConnection"),
}


def module(name: str, variant: str) -> ModuleType:
    """One of EITHER as Python, or one of MODULES compiled. Where the compiled one is missing the test is skipped; in CI
    it fails: it would be no test.
    """
    if variant == PURE:
        return _as_python(name)
    if is_compiled(name):
        return import_module(name)
    if os.environ.get("CI") and not os.environ.get("PURE_PYTHON"):
        pytest.fail(f"{name} is not compiled")
    pytest.skip(f"{name} is not compiled")


@cache
def _as_python(name: str) -> ModuleType:
    assert name in EITHER_FORM
    spec = spec_from_file_location(f"{name}_as_python", ROOT / f"{name.replace('.', '/')}.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@contextmanager
def running(variant: str) -> Iterator[None]:
    """Sessions that begin within it run with that variant."""
    with pytest.MonkeyPatch.context() as patch:
        if variant == COMPILED:
            for name in HOT_PATH_MODULES:
                module(name, COMPILED)
        else:
            for place, value in _WITHOUT_FAST_PATH.items():
                patch.setattr(place, value)
            for place, (name, attribute) in _OF_EITHER.items():
                chosen = module(name, PURE)
                patch.setattr(place, getattr(chosen, attribute) if attribute else chosen)
        yield
