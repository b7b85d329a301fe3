# Wheel and source archive as a release builds them, and the wheel in use outside of the repository. `make dist` does
# the same with packages that pip fetches.

from __future__ import annotations

import shutil
import tarfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.compiled import HOT_PATH_MODULES
from gateway.embedded import EmbeddedCluster
from tests.release import installed
from tests.release.installed import ROOT, Installed

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


class Built(NamedTuple):
    wheel: Path
    archive: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(*installed.build(tmp_path_factory.mktemp("build")))


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed.beside_ours(tmp_path_factory.mktemp("environment"), built.wheel)


def test_the_wheel_has_each_module_and_each_file_that_they_read(built: Built) -> None:
    names = installed.names_in(built.wheel)
    modules = {
        path.relative_to(ROOT).as_posix() for package in installed.PACKAGES for path in (ROOT / package).rglob("*.py")
    }
    assert installed.data_files() >= {"gateway/py.typed", "gateway/control/fleet/exchange/resource_usage.proto"}
    assert (modules | installed.data_files()) - names == set()
    made = [name for name in names if name.endswith(".so")]
    assert len(made) == (len(HOT_PATH_MODULES) if shutil.which("gcc") else 0)
    tops = {name.split("/")[0] for name in names}
    assert tops == {*installed.PACKAGES, f"produce_gateway-{VERSION}.dist-info"}


def test_the_source_archive_has_all_that_a_release_is_made_of(built: Built) -> None:
    with tarfile.open(built.archive) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(installed.SOURCES) <= {name.split("/")[0] for name in names}
    assert "deploy/helm/produce-gateway/Chart.yaml" in names
    assert "docs/how-to/kubernetes.md" in names
    assert not [name for name in names if name.startswith("tests/")]


def test_commands_and_plugins_work_outside_of_the_repository(environment: Installed) -> None:
    installed.try_commands(environment, VERSION)
    assert "--by" in environment.run("produce-gateway", "audit", "--help")


@pytest.mark.kafka
def test_a_gateway_runs_outside_of_the_repository(environment: Installed, kafka: EmbeddedCluster) -> None:
    installed.try_gateway(environment, kafka.bootstrap_servers, "release-package")
