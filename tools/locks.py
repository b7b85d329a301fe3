# Writes requirements/*.txt: exact versions with the SHA-256 of each file that pip may take, for pip's --require-hashes.
# What a release is made with, and what its images have in them, is by these what it was when somebody looked.
#
#     python -m tools.locks [NAME…]      after `python -m tools.constraints`; then commit the files
#
# pip is asked what it would install, for each Python and machine that there is a release for; it asks the index. No
# address gets into the files: from where, is the affair of whoever installs.

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from packaging.utils import canonicalize_name

from tools.constraints import ROOT, find_installed_versions, own_requirements

FOLDER: Final = ROOT / "requirements"
GLIBC: Final = ("_2_28", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")  # of manylinux, the newest first
MACHINES: Final = ("x86_64", "aarch64")
PYTHONS: Final = ("3.11", "3.12", "3.13")
ANY_PLATFORM: Final = ("--platform", "any")  # files that fit every machine, too: for a developer's


def _pip_targets(pythons: Iterable[str]) -> list[Sequence[str]]:
    """Words for pip, of each Python on each machine."""
    found: list[Sequence[str]] = []
    for python in pythons:
        for machine in MACHINES:
            platforms = [word for glibc in GLIBC for word in ("--platform", f"manylinux{glibc}_{machine}")]
            found.append(("--python-version", python, *platforms))
    return found


class LockFile(NamedTuple):
    """One file. `versions`: by name; `targets`: words for pip, of each place that it is for."""

    what: str
    versions: Callable[[], Mapping[str, str]]
    targets: Sequence[Sequence[str]]


LOCK_FILES: Final = {
    "run": LockFile(
        "What the gateway needs", lambda: find_installed_versions(own_requirements(())), _pip_targets(PYTHONS)
    ),
    "audit": LockFile(
        "What the gateway and its audit need",
        lambda: find_installed_versions(own_requirements(("audit",))),
        _pip_targets(PYTHONS[:1]),
    ),
    "build": LockFile(
        "What makes wheels and source archives",
        lambda: find_installed_versions(["build", "Cython", "setuptools"]),
        [*_pip_targets(PYTHONS), ANY_PLATFORM],
    ),
    "wheels": LockFile(
        "What makes wheels for many Pythons", lambda: resolve_versions("cibuildwheel"), _pip_targets(PYTHONS[:1])
    ),
    "bill": LockFile(
        "What writes bills of materials", lambda: resolve_versions("cyclonedx-bom"), _pip_targets(PYTHONS[:1])
    ),
}


def lock_text(name: str, what: str, hashes: Mapping[tuple[str, str], Iterable[str]]) -> str:
    """The file. `hashes`: by name and version."""
    lines = [f"# {what}: pip install --require-hashes --requirement requirements/{name}.txt"]
    lines.append(f"# Written by python -m tools.locks {name}.")
    for (package, version), sums in sorted(hashes.items()):
        lines.append(" \\\n    ".join((f"{package}=={version}", *(f"--hash=sha256:{each}" for each in sorted(sums)))))
    return "\n".join(lines) + "\n"


def find_hashes(versions: Mapping[str, str], targets: Iterable[Sequence[str]]) -> dict[tuple[str, str], set[str]]:
    """SHA-256 of the files that pip would take for one of these places."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for target in targets:
        pins = [f"{name}=={version}" for name, version in versions.items()]
        for each in _pip_report("--no-deps", *target, *pins):
            package = canonicalize_name(each["metadata"]["name"]), each["metadata"]["version"]
            found[package].add(each["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def resolve_versions(requirement: str) -> dict[str, str]:
    """The newest version of a program, and of all that it needs."""
    found = _pip_report("--only-binary", ":all:", requirement)
    return {canonicalize_name(each["metadata"]["name"]): each["metadata"]["version"] for each in found}


def _pip_report(*words: str) -> list[Any]:
    """What pip would install.

    Raises:
        CalledProcessError: it says on standard error why it can't.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
    with tempfile.TemporaryDirectory() as nowhere:
        command = [*pip, "--ignore-installed", "--target", nowhere, "--report", "-", *words]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return list(json.loads(said)["install"])


def main(names: Sequence[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in names or LOCK_FILES:
        lock = LOCK_FILES[name]
        print(f"{name}.txt …", file=sys.stderr)
        (FOLDER / f"{name}.txt").write_text(
            lock_text(name, lock.what, find_hashes(lock.versions(), lock.targets)), "utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
