# Images: hadolint's rules, and what it has no rule for: the user, the health check, what gets into the build, versions.

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway import cli

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "Dockerfile", ROOT / "deploy" / "spark" / "Dockerfile"]
HADOLINT = Path(sys.executable).with_name("hadolint")
TEXT = (ROOT / "Dockerfile").read_text("utf-8")


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction with its arguments, in one line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name.upper(), rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def last_stage() -> list[tuple[str, str]]:
    found = instructions(TEXT)
    begin = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[begin:]


def given(name: str) -> list[str]:
    return [rest for each, rest in last_stage() if each == name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_hadolint_finds_nothing(path: Path) -> None:
    done = subprocess.run([HADOLINT, path], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM python:latest\nRUN cd /x && pip install trio\n")
    done = subprocess.run([HADOLINT, path], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert {"DL3007", "DL3013", "DL3042"} <= set(re.findall(r"DL\d{4}", done.stdout))


def test_the_gateway_runs_without_rights_on_a_file_system_that_it_can_not_write() -> None:
    user, group = given("USER")[-1].split(":")
    assert int(user) == int(group) > 1000  # a number, so that Kubernetes knows that it isn't root
    state = given("VOLUME")[0]
    assert given("WORKDIR")[-1] == state  # the default spool is ./spool
    assert f"--owner {user} --group {group}" in " ".join(given("RUN"))
    assert "PYTHONDONTWRITEBYTECODE=1" in given("ENV")[0]
    assert not [rest for rest in given("RUN") if "apt" in rest or "pip" in rest]  # the build's stage has the tools


def test_its_health_check_and_command_are_commands_of_the_program() -> None:
    check, command = given("HEALTHCHECK")[0], given("CMD")[0]
    words = re.findall(r'"([^"]+)"', check)
    assert words[0] == "produce-gateway"
    assert words[1] in cli._command_names()
    assert given("ENTRYPOINT") == ['["produce-gateway"]']
    assert re.findall(r'"([^"]+)"', command) == ["serve", words[2]]


def test_labels_are_those_of_open_containers() -> None:
    (labels,) = given("LABEL")
    keys = set(re.findall(r"([\w.]+)=", labels))
    assert {"title", "description", "licenses", "version", "revision", "base.name"} == {
        key.removeprefix("org.opencontainers.image.") for key in keys
    }
    base = next(rest for name, rest in last_stage() if name == "FROM")
    assert f'base.name="{base}"' in labels


def test_what_the_build_copies_is_there_and_reaches_it() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    sources = [
        source
        for name, rest in instructions(TEXT)
        if name == "COPY" and "--from=" not in rest
        for source in rest.split()[:-1]
    ]
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == name or f"{source}/" == name or source.startswith(name) for name in allowed), source


def test_the_image_has_each_package_that_the_wheel_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = [name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]]
    copied = {rest.split()[0] for name, rest in instructions(TEXT) if name == "COPY"}
    assert set(packages) <= copied


def test_nothing_else_of_the_folder_gets_into_a_build() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert next(line for line in lines if not line.startswith("#")) == "*"
