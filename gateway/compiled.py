# Which of the hot path's compiled modules run (setup.py). A compiled module lies beside its source, and Python prefers
# it; PURE_PYTHON=1 in the environment has it take the sources.

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

# Those that there are only compiled, and those that run as Python elsewhere.
FAST_PATH: Final = ("protocol.produce.produce_fast", "gateway.data.session.fast_path", "gateway.data.relay.shortcut")
EITHER_FORM: Final = (
    "protocol.rewriting.stream", "protocol.rewriting.metadata_topics", "policies.idempotence.duplicates",
    "policies.meters.meter", "gateway.data.shared.ledger", "gateway.data.pending.in_flight",
    "gateway.data.sockets.slices", "gateway.data.sockets.tls",
)  # fmt: skip
HOT_PATH_MODULES: Final = FAST_PATH + EITHER_FORM
PURE_PYTHON_VARIABLE: Final = "PURE_PYTHON"


class _SourceFinder:
    """A finder of modules that takes EITHER_FORM as Python."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in EITHER_FORM:
            return None
        folders = [Path(folder, f"{name.rpartition('.')[2]}.py") for folder in path or ()]
        return next((spec_from_file_location(name, file) for file in folders if file.exists()), None)


def apply_pure_python() -> None:
    """To be called before any of the modules is imported. None in sys.modules is Python's word for one that must not be
    found.
    """
    if os.environ.get(PURE_PYTHON_VARIABLE):
        sys.modules.update(dict.fromkeys(FAST_PATH))  # type: ignore[arg-type]
        sys.meta_path.insert(0, _SourceFinder)


def compilation_state() -> str:
    """What runs: "compiled" or "pure Python"; "partly compiled" where an import failed, which no build brings about."""
    found = sum(map(is_compiled, HOT_PATH_MODULES))
    return "compiled" if found == len(HOT_PATH_MODULES) else "partly compiled" if found else "pure Python"


def is_compiled(module: str) -> bool:
    """Whether that is what importing it brings."""
    if module in sys.modules and sys.modules[module] is None:
        return False
    spec = find_spec(module)
    return spec is not None and bool(spec.origin) and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))
