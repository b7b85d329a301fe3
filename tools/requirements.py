# Prints what a pyproject.toml depends on as requirements for pip, with the extras that are named. Standard library
# only: it runs in the image's build before anything is installed.
#
#     python tools/requirements.py pyproject.toml [EXTRA…]

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(pyproject: str, extras: Sequence[str] = ()) -> list[str]:
    """One line for each dependency.

    Raises:
        KeyError: there is no such extra.
    """
    project = tomllib.loads(pyproject)["project"]
    optional = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text("utf-8"), sys.argv[2:])))
