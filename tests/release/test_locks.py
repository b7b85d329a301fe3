# The lock files that a release is made by: what is in them, and that everything that makes one goes by them.

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tools import constraints, locks

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FILES = sorted(locks.FOLDER.glob("*.txt"))
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(name: str) -> dict[str, str]:
    found = re.findall(r"^([a-z0-9.-]+)==(\S+) ", (locks.FOLDER / f"{name}.txt").read_text("utf-8"), re.MULTILINE)
    return dict(found)


def test_there_is_a_file_for_each_purpose() -> None:
    assert {path.stem for path in FILES} == locks.LOCK_FILES.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_package_has_its_version_and_its_sums_and_nobody_s_address(path: Path) -> None:
    head, body = path.read_text("utf-8").split("\n", 2)[:2], path.read_text("utf-8").split("\n", 2)[2]
    assert all(line.startswith("# ") for line in head)
    for entry in body.replace("\\\n", " ").splitlines():
        pin, *sums = entry.split()
        assert re.fullmatch(r"[a-z0-9.-]+==[\w.]+", pin), entry
        assert sums, entry
        assert all(SHA256.fullmatch(each) for each in sums), entry


def test_what_runs_is_what_the_constraints_say() -> None:
    pinned = dict(
        line.split("==") for line in constraints.CONSTRAINTS_FILE.read_text("utf-8").splitlines() if "==" in line
    )
    for file, extras in (("run", ()), ("audit", ("audit",))):
        wanted = constraints.find_installed_versions(constraints.own_requirements(extras))
        assert pins(file) == {name: pinned[name] for name in wanted}, f"python -m tools.locks {file}"


def test_what_builds_is_within_the_ranges_of_a_source_build() -> None:
    found = pins("build")
    for line in PROJECT["build-system"]["requires"]:
        requirement = Requirement(line)
        assert Version(found[requirement.name.lower()]) in requirement.specifier, line


def test_nothing_that_a_release_has_is_made_by_tools_that_somebody_chooses_later() -> None:
    """Whatever pip fetches there has its sum in a lock file; and a build fetches nothing for itself."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    texts = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    texts += [str(value) for value in PROJECT["tool"]["cibuildwheel"].values()]
    images = [(ROOT / name).read_text("utf-8") for name in ("Dockerfile", "deploy/spark/Dockerfile")]
    texts += [text.replace("\\\n", " ") for text in images]
    installs = [line for text in texts for line in re.findall(r"pip [^&\n]*?\binstall\b[^&\n]*", text)]
    assert len(installs) > 6
    for line in installs:
        assert "--require-hashes" in line or "--no-index" in line, line
        for name in re.findall(r"requirements/(\w+)\.txt", line):
            assert name in locks.LOCK_FILES
    for line in (line for text in texts for line in re.findall(r"pip wheel[^&\n]*", text)):
        assert "--no-build-isolation" in line, line
    assert PROJECT["tool"]["cibuildwheel"]["build-frontend"]["args"] == ["--no-isolation"]
    make = (ROOT / "Makefile").read_text("utf-8")
    assert re.findall(r"-m build(.*?) --outdir", make) == [" --no-isolation", " --no-isolation --wheel"]


def test_a_file_is_written_as_pip_reads_it() -> None:
    written = locks.lock_text("run", "All", {("b", "2"): ["f" * 64, "0" * 64], ("a", "1"): ["1" * 64]})
    assert written.splitlines()[2:] == [
        "a==1 \\",
        f"    --hash=sha256:{'1' * 64}",
        "b==2 \\",
        f"    --hash=sha256:{'0' * 64} \\",
        f"    --hash=sha256:{'f' * 64}",
    ]
