# Wheels and source archive as a release builds them, and the wheels in use outside of the repository. `make dist` does
# the same with packages that pip fetches.

from __future__ import annotations

import shutil
import tarfile
import tomllib
from pathlib import Path

import pytest

from gateway.compiled import HOT_PATH_MODULES
from gateway.embedded import EmbeddedCluster
from tests.release import installed
from tests.release.installed import ROOT, Installed

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> installed.Built:
    return installed.build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def gateway_alone(built: installed.Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed.beside_ours(tmp_path_factory.mktemp("alone"), built.wheel)


@pytest.fixture(scope="module")
def environment(built: installed.Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed.beside_ours(tmp_path_factory.mktemp("environment"), built.wheel, built.extras)


def test_the_wheels_have_each_module_and_each_file_that_they_read(built: installed.Built) -> None:
    core, extras = installed.names_in(built.wheel), installed.names_in(built.extras)
    assert installed.files(extras=False) >= {"gateway/py.typed", "gateway/control/fleet/exchange/resource_usage.proto"}
    assert installed.files(extras=True) >= {"gateway/audit/report.html", "gateway/embedded/kafka.sha256"}
    assert {name for name in core if ".dist-info/" not in name} == installed.files(extras=False)
    assert {name for name in extras if ".dist-info/" not in name} == installed.files(extras=True)
    tops = {name.split("/")[0] for name in core}
    assert tops == {*installed.PACKAGES, f"produce_gateway-{VERSION}.dist-info"}


@pytest.mark.full  # `make env` compiles the same, and a release's workflow tries the wheels that it has compiled
@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no C compiler")
def test_a_compiled_wheel_has_each_module_of_the_hot_path(tmp_path: Path) -> None:
    names = installed.names_in(installed.build(tmp_path, compiled=True).wheel)
    made = {name for name in names if name.endswith(".so")}
    assert {name for name in names - made if ".dist-info/" not in name} == installed.files(extras=False)
    assert len(made) == len(HOT_PATH_MODULES)


def test_the_source_archive_has_all_that_a_release_is_made_of(built: installed.Built) -> None:
    with tarfile.open(built.archive) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(installed.SOURCES) <= {name.split("/")[0] for name in names}
    assert "deploy/helm/produce-gateway/Chart.yaml" in names
    assert "docs/how-to/kubernetes.md" in names
    assert installed.files(extras=True) <= names
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".so")]


def test_commands_of_the_extras_work_outside_of_the_repository(environment: Installed) -> None:
    assert "--by" in environment.run("produce-gateway", "audit", "--help")
    assert "--aggregate-limits" in environment.run("produce-gateway", "import-strimzi", "--help")


def test_the_gateway_s_wheel_does_without_its_extras(gateway_alone: Installed) -> None:
    installed.try_commands(gateway_alone, VERSION)
    installed.try_without_extras(gateway_alone)


@pytest.mark.kafka
def test_a_gateway_runs_outside_of_the_repository(environment: Installed, kafka: EmbeddedCluster) -> None:
    installed.try_gateway(environment, kafka.bootstrap_servers, "release-package")
