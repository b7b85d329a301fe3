# What deploy/ tells Spark and Kubernetes is what this program understands: options, files, versions. Whether it is what
# Kubernetes understands, kubernetes-validate and hadolint say (docs/spark.md).

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.audit import cli
from gateway.audit.spark import connector
from gateway.audit.stream import command as commands

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def _manifests() -> Iterator[dict[str, Any]]:
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def _pods(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from _pods(each)


def _parsed(args: list[str]) -> None:
    filled = [arg.replace("$(BOOTSTRAP_SERVERS)", "kafka:9093") for arg in args]
    if filled[0] in commands._PARSERS:
        commands._PARSERS[filled[0]]().parse_args(filled[1:])
    else:
        cli._make_parser().parse_args(filled)


def test_containers_give_options_that_there_are_and_mount_what_they_name() -> None:
    pods = [pod for manifest in _manifests() for pod in _pods(manifest)]
    names = {container["name"] for pod in pods for container in pod["containers"]}
    assert names == {"stream", "compact", "expire"}
    for pod in pods:
        (container,) = pod["containers"]
        assert container["command"] == ["produce-gateway", "audit"]
        _parsed(container["args"])
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
        paths = [path for arg in container["args"] for path in re.findall(r"(?:^|=)(/[^,]*)", arg)]
        assert paths
        assert all(any(path.startswith(mount) for mount in mounts.values()) for path in paths), paths


def test_an_option_that_there_is_not_would_be_seen() -> None:
    with pytest.raises(SystemExit):
        _parsed(["stream", "--bootstrap-servers=x:1", "--output=o", "--colour"])


def test_the_large_audit_runs_the_same_command_on_the_same_spark() -> None:
    (application,) = (each for each in _manifests() if each["kind"] == "SparkApplication")
    spec = application["spec"]
    _parsed(spec["arguments"])
    assert all(spec["sparkVersion"] in library.pinned for library in (connector.KAFKA_CONNECTOR, connector.DELTA_LAKE))
    dockerfile = (DEPLOY / "spark" / "Dockerfile").read_text()
    assert f"FROM apache/spark:{spec['sparkVersion']}-" in dockerfile
    assert spec["mainApplicationFile"].removeprefix("local://") in dockerfile
    assert spec["image"] in dockerfile
    for source in re.findall(r"^COPY (deploy/\S+)", dockerfile, re.MULTILINE):
        assert (ROOT / source).exists()


def test_client_properties_are_read_as_they_stand_there(tmp_path: Path) -> None:
    (secret,) = (each for each in _manifests() if each["kind"] == "Secret")
    path = tmp_path / "client.properties"
    path.write_text(secret["stringData"]["client.properties"])
    found = cli.read_properties_file(str(path))
    assert found["security.protocol"] == "SASL_SSL"
    assert found["sasl.jaas.config"].endswith('password="CHANGE-ME";')
    assert Path(found["ssl.truststore.location"]).name in secret["stringData"]
