# Writes constraints.txt: one exact version of everything that the gateway and its extras install, directly or not. They
# are the versions that are installed here, so those that `make test` ran with. Without them an image that is built
# tomorrow is another product.
#
#     python -m tools.constraints        after `make env` and `make test`; then commit the file

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
CONSTRAINTS_FILE = ROOT / "constraints.txt"
EXTRAS = ("audit", "audit-local", "audit-report", "audit-tables", "planning", "demo", "strimzi")
OWN_DISTRIBUTIONS = ("produce-gateway", "produce-gateway-extras")
FILE_HEAD = """\
# What `make test` ran with: pip install --constraint constraints.txt 'produce-gateway[audit]'
# Written by python -m tools.constraints.
"""


def read_requirements(pyproject: str, extras: Sequence[str] = ()) -> list[str]:
    """What a pyproject.toml depends on, one line for each, with the extras that are named; without our own.

    Raises:
        KeyError: there is no such extra.
    """
    project = tomllib.loads(pyproject)["project"]
    optional = project.get("optional-dependencies", {})
    lines = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    return [line for line in lines if canonicalize_name(Requirement(line).name) not in OWN_DISTRIBUTIONS]


def find_installed_versions(lines: Iterable[str]) -> dict[str, str]:
    """Versions of these requirements and of all that they need here, by name.

    Raises:
        PackageNotFoundError: one is not installed.
    """
    found: dict[str, str] = {}
    todo = [(Requirement(line), "") for line in lines]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        distribution = metadata.distribution(name)
        found[name] = distribution.version
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                todo += [(Requirement(line), wanted) for line in distribution.requires or ()]
    return found


def constraints_text(versions: Mapping[str, str]) -> str:
    return FILE_HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def own_requirements(extras: Sequence[str] = EXTRAS) -> list[str]:
    """What our pyproject.toml depends on, with all extras of users unless some are named."""
    return read_requirements((ROOT / "pyproject.toml").read_text("utf-8"), extras)


def main() -> int:
    CONSTRAINTS_FILE.write_text(constraints_text(find_installed_versions(own_requirements())), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
