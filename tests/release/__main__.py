# `make dist`: tries the wheels in dist/ as a user has them, with all that pip fetches and outside of the repository,
# and writes the bill of materials of the gateway's environment beside them.
#
#     python -m tests.release dist

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from gateway.embedded import EmbeddedCluster
from tests.release import installed
from tests.release.installed import ROOT, Installed

TOPIC: Final = "release-dist"
BILL: Final = ("--only-binary", ":all:", "--require-hashes", "--requirement", str(ROOT / "requirements" / "bill.txt"))


def main(folder: Path) -> int:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    (wheel,) = folder.glob(f"produce_gateway-{version}-*.whl")
    (extras,) = folder.glob(f"produce_gateway_extras-{version}-*.whl")
    for each, wanted in ((wheel, installed.files(extras=False)), (extras, installed.files(extras=True))):
        if missing := wanted - installed.names_in(each):
            raise SystemExit(f"not in {each.name}: {', '.join(sorted(missing))}")
    with tempfile.TemporaryDirectory(prefix="produce-gateway-dist-") as name:
        plain = Installed.from_scratch(_folder(name, "plain"), wheel.absolute())
        installed.try_commands(plain, version)
        installed.try_without_extras(plain)
        write_bill(plain, folder / f"produce-gateway-{version}.cdx.json", _folder(name, "bill"))
        whole = Installed.from_scratch(_folder(name, "whole"), wheel.absolute(), "audit", extras.absolute())
        with EmbeddedCluster(1) as cluster:
            spool = installed.try_gateway(whole, cluster.bootstrap_servers, TOPIC)
        options = ["--quiet", "--format", "json", "--by", "topic", "--spool", str(spool)]
        said = whole.run("produce-gateway", "audit", *options)
        if TOPIC not in said:
            raise SystemExit(f"the audit doesn't have {TOPIC}: {said}")
    return 0


def write_bill(environment: Installed, path: Path, folder: Path) -> None:
    """What is installed there, in CycloneDX. The program for it is no part of that, so it has its own environment."""
    python = folder / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *BILL], check=True)
    command = [str(python), "-m", "cyclonedx_py", "environment", "--output-format", "JSON", "--output-reproducible"]
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(path.absolute())]
    subprocess.run([*command, *options, str(environment.bin / "python")], check=True)
    names = {component["name"] for component in json.loads(path.read_text("utf-8"))["components"]}
    if not {"trio", "pydantic"} <= names:
        raise SystemExit(f"{path} lacks packages: {sorted(names)}")


def _folder(parent: str, name: str) -> Path:
    path = Path(parent) / name
    path.mkdir()
    return path


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
