# Workflows of CI and of releases: actionlint's rules, and what they rely on.

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import config
from tests.deploy import programs

pytestmark = pytest.mark.timeout(1200)  # the first test on a machine compiles actionlint

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def actionlint(paths: list[Path]) -> tuple[int, str]:
    # What shell they have is judged where shellcheck is installed; the rest needs nothing.
    command = [programs.actionlint(), *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def steps(path: Path) -> list[dict[str, Any]]:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_actionlint_finds_nothing() -> None:
    assert actionlint(WORKFLOWS) == (0, "")


WRONG = """\
on: push
jobs:
  a:
    runs-on: ubuntu-24.04
    needs: [b]
    steps:
      - run: echo ${{ nobody.at }}
"""


def test_actionlint_would_find_something(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yml"
    path.write_text(WRONG)
    code, said = actionlint([path])
    assert code == 1
    assert "undefined variable" in said


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_of_others_are_pinned_to_what_was_read(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len([step for step in steps(path) if "uses" in step]) == text.count("uses: ")
    for uses in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", uses), uses


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_no_more_rights_than_they_need(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "by env: a name that others choose would be run as a command"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_are_those_of_the_repository(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for step in steps(path):
        for words in re.findall(r"^\s*make ([a-z ]+?)(?: [A-Z]+=\S+)*$", step.get("run", ""), re.MULTILINE):
            assert set(words.split()) <= targets
        for name in re.findall(r"^\s*(\.ci/\S+)", step.get("run", ""), re.MULTILINE):
            assert (ROOT / name).exists()


def test_the_weekly_workflow_has_the_hot_path_under_sanitizers() -> None:
    path = ROOT / ".github" / "workflows" / "weekly.yml"
    assert yaml.safe_load(path.read_text("utf-8"))[True]["schedule"]  # YAML 1.1 takes "on" for a truth value
    assert [step["run"].split()[:2] for step in steps(path) if "run" in step] == [["make", "sanitize"]]


def test_make_understands_its_file() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_published_that_was_not_tested() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))["jobs"]
    for name, needs in (("publish", {"build", "test", "wheels"}), ("image", {"build", "test"})):
        assert set(jobs[name]["needs"]) == needs
        assert jobs[name]["environment"] == "release"


def test_the_image_that_ci_starts_has_a_configuration() -> None:
    settings = config.load_settings(ROOT / ".github" / "smoke.yaml")
    assert settings.internal_topics == "none"
