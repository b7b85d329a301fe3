# The programs that make a release, and the file of constraints that one of them writes.

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools import changelog, constraints
from tools.constraints import read_requirements

ROOT = Path(__file__).parents[2]
LINES = [line for line in constraints.CONSTRAINTS_FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
PINS = dict(line.split("==") for line in LINES)


def test_constraints_are_plain_pins_that_pip_understands() -> None:
    for line in LINES:
        requirement = Requirement(line)
        assert re.fullmatch(r"[a-z0-9-]+==\S+", line)
        assert (requirement.url, requirement.marker, requirement.extras) == (None, None, set()), line
    assert sorted(PINS) == list(PINS)


def test_constraints_have_all_that_is_installed_and_no_more() -> None:
    assert PINS.keys() == constraints.find_installed_versions(constraints.own_requirements()).keys(), (
        "python -m tools.constraints writes it"
    )


def test_constraints_are_within_the_ranges_of_pyproject() -> None:
    for line in constraints.own_requirements():
        requirement = Requirement(line)
        assert Version(PINS[canonicalize_name(requirement.name)]) in requirement.specifier, line


def test_extras_are_part_of_the_closure() -> None:
    found = constraints.find_installed_versions(["PyJWT[crypto]"])
    assert {"pyjwt", "cryptography", "cffi"} <= found.keys()
    assert "cryptography" not in constraints.find_installed_versions(["PyJWT"])


def test_requirements_are_those_of_the_extras_that_are_named() -> None:
    text = '[project]\ndependencies = ["a>=1"]\n[project.optional-dependencies]\n'
    text += 'x = ["b<2"]\ny = ["c", "produce-gateway-extras==1"]\n'
    assert read_requirements(text) == ["a>=1"]
    assert read_requirements(text, ["x"]) == ["a>=1", "b<2"]
    assert read_requirements(text, ["y"]) == ["a>=1", "c"]
    with pytest.raises(KeyError):
        read_requirements(text, ["z"])


LOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\nNew.\n\n## 0.1.0 (2026-01-02)\n\n- First.\n\n### Limits\n\n- Old.\n"


def test_a_release_is_announced_by_its_part_of_the_changelog() -> None:
    assert changelog.find_release_notes(LOG, "0.1.0") == "- First.\n\n### Limits\n\n- Old."
    assert changelog.find_release_notes(LOG.replace("unreleased", "2026-02-03"), "0.2.0") == "New."


@pytest.mark.parametrize(("version", "words"), [("0.2.0", "has no date"), ("0.3.0", "no heading")])
def test_a_release_without_a_date_is_none(version: str, words: str) -> None:
    with pytest.raises(changelog.NotReleasedError, match=words):
        changelog.find_release_notes(LOG, version)


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    found = {
        "CHANGELOG.md": r"^## (\S+) \(",
        "Dockerfile": r"^ARG VERSION=(\S+)",
        "deploy/compose/compose.yaml": r"image: produce-gateway:(\S+)",
        "deploy/helm/produce-gateway/Chart.yaml": r"^version: (\S+)",
        "deploy/kubernetes/kustomization.yaml": r"newTag: (\S+)",
        "deploy/kubernetes/spark-application.yaml": r"image: produce-gateway-audit:(\S+)",
        "extras/pyproject.toml": r'^version = "(\S+)"',
    }
    for name, pattern in found.items():
        match = re.search(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
        assert match is not None, name
        assert match[1] == version, name
    for name in ("pyproject.toml", "extras/pyproject.toml"):  # the two distributions need each other of one version
        own = re.findall(r'"produce-gateway\S*==(\S+)"', (ROOT / name).read_text("utf-8"))
        assert set(own) == {version}, name
