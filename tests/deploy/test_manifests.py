# The audit's manifests, judged by Kubernetes' own schemas; what they tell the program is tests/audit/test_deploy.py's.

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUBERNETES = ("1.27", "1.37")
# Of operators and tools, which Kubernetes has no schema of.
CUSTOM = {"Kustomization", "SparkApplication"}


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text("utf-8")):
            yield path.name, each


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_are_valid_for_kubernetes(version: str) -> None:
    judged = [each for _, each in manifests() if each["kind"] not in CUSTOM]
    kinds = {"ConfigMap", "CronJob", "Deployment", "PersistentVolumeClaim", "Secret"}
    assert {each["kind"] for each in judged} == kinds
    for each in judged:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_kustomization_has_each_file_but_the_one_for_the_operator() -> None:
    (kustomization,) = (each for _, each in manifests() if each["kind"] == "Kustomization")
    files = {name for name, each in manifests() if each["kind"] not in CUSTOM}
    assert set(kustomization["resources"]) == files


def test_the_spark_application_is_written_as_its_operator_reads_it() -> None:
    (application,) = (each for _, each in manifests() if each["kind"] == "SparkApplication")
    assert application["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    spec = application["spec"]
    assert {"type", "mode", "image", "mainApplicationFile", "sparkVersion", "driver", "executor"} <= spec.keys()
    assert spec["type"] in ("Java", "Python", "R", "Scala")
    assert spec["mode"] in ("cluster", "client")
    for part in ("driver", "executor"):
        pod = spec[part]
        assert isinstance(pod["cores"], int)
        for secret in pod["secrets"]:  # its operator's own names, not those of Kubernetes
            assert secret.keys() == {"name", "path", "secretType"}
            assert secret["secretType"] in ("Generic", "GCPServiceAccount", "HadoopDelegationToken")
