# The programs that judge what deploy/ has, each of one version.

from __future__ import annotations

from pathlib import Path

from tests.deploy.go_programs import built

HELM = "v3.22.0"
KUBERNETES = "1.37"  # the newest that there are schemas for
ACTIONLINT = "v1.7.12"


def helm() -> Path:
    # The Kubernetes that it takes for granted without a cluster; 1.20 unless it is told.
    kubernetes = [
        f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}={number}"
        for package in ("chartutil", "lint/rules")
        for part, number in zip(("Major", "Minor"), KUBERNETES.split("."), strict=True)
    ]
    return built("helm.sh/helm/v3/cmd/helm", HELM, "helm", tuple(kubernetes))


def actionlint() -> Path:
    return built("github.com/rhysd/actionlint/cmd/actionlint", ACTIONLINT, "actionlint")
