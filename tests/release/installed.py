# The wheels in an environment, used from outside of the repository: its commands, its entry points, a gateway in front
# of a Kafka. A test uses it with the packages that are here; `make dist` with those that pip fetches.

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway import embedded

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("gateway", "policies", "protocol")
# What a release is made of; the rest of the folder is of no use to it.
SOURCES: Final = (
    *PACKAGES, "deploy", "docs", "extras", "requirements", "tools", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile",
    "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "constraints.txt", "mkdocs.yml", "pyproject.toml", "setup.py",
)  # fmt: skip
RUN_S: Final = 600.0  # against commands that hang
FETCH_S: Final = 1800.0  # 500 MB with the audit
RECORDS: Final = 10
_EXTRAS: Final = tomllib.loads((ROOT / "extras" / "pyproject.toml").read_text("utf-8"))
EXTRA_FOLDERS: Final = tuple(
    pattern.removesuffix("*").replace(".", "/") + "/"
    for pattern in _EXTRAS["tool"]["setuptools"]["packages"]["find"]["include"]
)


class Built(NamedTuple):
    wheel: Path
    extras: Path  # the wheel of produce-gateway-extras
    archive: Path


def build(folder: Path, *, compiled: bool = False) -> Built:
    """Wheels and source archive, from a copy of the sources: setuptools leaves files beside them.

    Of pure Python, as `make dist` builds them; or with the hot path in C, which the compiler does not optimise: that
    takes a quarter of the time, half a minute, and the wheel has the same in it.
    """
    source, out = folder / "source", folder / "dist"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy2(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    how: dict[str, Any] = {"CFLAGS": "-O0"} if compiled else {"PURE_PYTHON": "1"}
    _run([*command, str(source)], folder, **how)
    _run([*command, "--wheel", str(source / "extras")], folder)
    (wheel,), (extras,) = out.glob("produce_gateway-*.whl"), out.glob("produce_gateway_extras-*.whl")
    (archive,) = out.glob("*.tar.gz")
    return Built(wheel, extras, archive)


def files(*, extras: bool) -> set[str]:
    """Files of the packages, as the gateway's wheel names them, or that of its extras."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    names = {path.relative_to(ROOT).as_posix() for path in paths if path.suffix not in (".pyc", ".so")}
    return {name for name in names if name.startswith(EXTRA_FOLDERS) == extras}


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


class Installed:
    """The environment in `folder`; commands run in `folder`, with nothing of the repository on Python's path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "env" / "bin"

    @classmethod
    def beside_ours(cls, folder: Path, *wheels: Path) -> Installed:
        """The wheels alone; all that they need is found where this program found it."""
        made = cls(folder)
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], folder)
        (site,) = (folder / "env").glob("lib/python*/site-packages")
        (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(made.bin / "python"), "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", "--no-deps", "--no-index", *map(str, wheels)], folder)
        return made

    @classmethod
    def from_scratch(cls, folder: Path, wheel: Path, extra: str = "", *others: Path) -> Installed:
        """The wheel with all that it needs, and what an extra needs, of the versions of constraints.txt; `others` are
        wheels for it.
        """
        made = cls(folder)
        _run([sys.executable, "-m", "venv", str(folder / "env")], folder)
        pip = [str(made.bin / "python"), "-m", "pip", "--disable-pip-version-check"]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        _run([*pip, "install", "--quiet", *constraints, wanted, *map(str, others)], folder, timeout_s=FETCH_S)
        _run([*pip, "check"], folder)
        return made

    def run(self, program: str, *words: str) -> str:
        """What it prints.

        Raises:
            AssertionError: it fails; with what it says.
        """
        return _run([str(self.bin / program), *words], self.folder)

    def run_unchecked(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """The same, whatever its exit code."""
        return _run_unchecked([str(self.bin / program), *words], self.folder)

    def python(self, text: str) -> Any:
        """What a program prints as JSON."""
        return json.loads(self.run("python", "-I", "-c", text))

    @contextmanager
    def serving(self, bootstrap: str) -> Iterator[Path]:
        """A gateway in front of that cluster; gives its configuration. Afterwards it has ended with 0."""
        port = embedded.find_free_port(3)  # the bootstrap's, and broker 1's two further on
        path = self.folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(_settings(bootstrap, port)))
        with open(self.folder / "log", "wb") as log:
            command = [str(self.bin / "produce-gateway"), "serve", str(path)]
            process = embedded.spawn_process(command, stdout=log, stderr=log, cwd=self.folder, env=_environment())
        try:
            embedded.wait_for("the gateway", lambda: self._ready(process, path), timeout_s=RUN_S)
            self.run("produce-gateway", "health", "--ready", str(path))
            yield path
            status = embedded.reap_process(process, 60.0)
        finally:
            embedded.reap_process(process)
        said = (self.folder / "log").read_text("utf-8")
        assert status == 0, said
        assert "Traceback" not in said, said

    def _ready(self, process: subprocess.Popen[Any], path: Path) -> bool:
        assert process.poll() is None, (self.folder / "log").read_text("utf-8")
        health = yaml.safe_load(path.read_text())["health"]
        try:
            with urllib.request.urlopen(f"http://{health['host']}:{health['port']}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _settings(bootstrap: str, port: int) -> dict[str, Any]:
    return {
        "upstream": {"bootstrap_servers": bootstrap},
        "listener": {"host": embedded.HOST, "port": port},
        "admin": {"host": embedded.HOST, "port": embedded.find_free_port()},
        "health": {"host": embedded.HOST, "port": embedded.find_free_port()},
        "thresholds": {"total.bytes.in.per.sec.threshold": "10MB", "on_exceed": "delay"},
        "usage_log": {"spool_dir": "./spool"},
        "internal_topics": "none",
    }


def produce(bootstrap: str, topic: str) -> None:
    """A topic, and RECORDS records in it, all acknowledged."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60.0)
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "release"})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60.0) == 0
    assert failed == [None] * RECORDS


def try_commands(installed: Installed, version: str) -> None:
    """Commands, plugins and modules are those of the wheel."""
    assert installed.run("produce-gateway", "--version") == f"produce-gateway {version}\n"
    assert "--alter" in installed.run("kafka-quotas", "--help")
    assert json.loads(installed.run("produce-gateway", "schema"))["title"] == "Settings"
    assert "complete" in installed.run("produce-gateway", "completion", "bash")
    path = installed.folder / "check.yaml"
    path.write_text("upstream: {bootstrap_servers: 'broker:9092'}\n")
    assert installed.run("produce-gateway", "check", str(path)).startswith(f"{path}: OK\n")
    where = installed.python(
        "import gateway, json, policies, protocol\n"
        "print(json.dumps([each.__file__ for each in (gateway, policies, protocol)]))"
    )
    assert [Path(file).is_relative_to(installed.folder) for file in where] == [True] * 3, where
    plugins = installed.python(
        "import json; from importlib.metadata import entry_points\n"
        "found = entry_points(group='produce_gateway.volume_sources')\n"
        "print(json.dumps({each.name: each.load().__name__ for each in found}))"
    )
    assert plugins == {"log-dirs": "LogDirs", "prometheus": "Prometheus"}


def try_without_extras(installed: Installed) -> None:
    """Each module of the gateway's wheel is imported, so none needs the extras; their commands say what to install."""
    import_all = (
        "import gateway, importlib, json, pkgutil, policies, protocol\n"
        "names = [each.name for package in (gateway, policies, protocol)"
        " for each in pkgutil.walk_packages(package.__path__, package.__name__ + '.')]\n"
        "for name in names:\n"
        "    if not name.endswith('__main__'): importlib.import_module(name)\n"
        "print(json.dumps(names))"
    )
    names = set(installed.python(import_all))
    assert {"gateway.cli", "gateway.data.worker", "policies.engine"} <= names
    wanted = ("audit", "audit"), ("demo", "demo"), ("import-strimzi", "strimzi")
    for command, extra in wanted:
        done = installed.run_unchecked("produce-gateway", command)
        assert done.returncode == 1, done
        (line,) = done.stderr.splitlines()
        assert "needs produce-gateway-extras" in line
        assert f": pip install 'produce-gateway[{extra}]'" in line


def try_gateway(installed: Installed, bootstrap: str, topic: str) -> Path:
    """A record passes through a gateway, and is in its usage log; gives the spool."""
    with installed.serving(bootstrap) as path:
        listener = yaml.safe_load(path.read_text())["listener"]
        produce(f"{listener['host']}:{listener['port']}", topic)
        status = json.loads(installed.run("produce-gateway", "status", str(path), "-o", "json"))
        assert status["ready"]
        explained = json.loads(installed.run("produce-gateway", "explain", str(path), "--topic", topic, "-o", "json"))
        assert explained["rules"]
    spool = installed.folder / "spool"
    assert any(topic.encode() in file.read_bytes() for file in spool.rglob("*") if file.is_file())
    return spool


def _run(command: list[str], folder: Path, timeout_s: float = RUN_S, **environment: str) -> str:
    done = _run_unchecked(command, folder, timeout_s, **environment)
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def _run_unchecked(
    command: list[str], folder: Path, timeout_s: float = RUN_S, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=_environment() | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _environment() -> dict[str, str]:
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours}
