# Which form of the hot path's compiled modules runs (setup.py): C where they were built, else the Python that they are
# made from. Importers try the compiled one first; PURE_PYTHON=1 in the environment has them take the other.

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final

MODULES: Final = (
    "protocol.usual", "protocol.stream", "protocol.metadata_topics", "policies.duplicates", "policies.limits.meter",
    "gateway.data.ledger", "gateway.data.sums", "gateway.data.in_flight", "gateway.data.passing",
    "gateway.data.shortcut", "gateway.data.slices",
)  # fmt: skip
SUFFIX: Final = "_compiled"
VARIABLE: Final = "PURE_PYTHON"


def obey() -> None:
    """To be called before any of the modules is imported. None in sys.modules is Python's word for one that must not be
    found.
    """
    if os.environ.get(VARIABLE):
        sys.modules.update(dict.fromkeys(f"{module}{SUFFIX}" for module in MODULES))  # type: ignore[arg-type]


def form() -> str:
    """What runs: "compiled" or "pure Python"; "partly compiled" where an import failed, which no build brings about."""
    found = sum(map(_is_there, MODULES))
    return "compiled" if found == len(MODULES) else "partly compiled" if found else "pure Python"


def _is_there(module: str) -> bool:
    try:
        import_module(f"{module}{SUFFIX}")
    except ImportError:
        return False
    return True
