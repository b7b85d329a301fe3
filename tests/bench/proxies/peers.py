# The programs of others that `make bench` compares the gateway with: which of them are here, and their versions.

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.cpu import first_line


@dataclass(frozen=True)
class Peer:
    """`version`: arguments with which the command prints its version; none where that would start a JVM."""

    command: str
    version: tuple[str, ...] = ()


# By the beginning of their targets' names.
PEERS = {
    "kafka-proxy": Peer("kafka-proxy", ("version",)),
    "kroxylicious": Peer("kroxylicious-start.sh"),
    "haproxy": Peer("haproxy", ("-v",)),
    "nginx": Peer("nginx", ("-v",)),
}


def peer_of(target: str) -> str | None:
    return next((name for name in PEERS if target.startswith(name)), None)


def why_not_measured(target: str) -> str | None:
    """What is missing for that target; None: nothing, or it is no peer."""
    name = peer_of(target)
    if name is None:
        return None
    command = PEERS[name].command
    if shutil.which(command) is None:
        return f"no {command} on PATH"
    if name == "nginx" and load_stream_module(nginx_build()) is None:
        return "no stream module with TLS in nginx"
    return None


def versions(targets: Iterable[str]) -> list[str]:
    """Name and version of each peer among those targets, as far as it says it."""
    found = []
    for name in dict.fromkeys(filter(None, map(peer_of, targets))):
        peer = PEERS[name]
        said = first_line(peer.command, *peer.version) if peer.version else None
        number = re.search(r"\d+\.\d[\w.+~-]*", said or "")
        found.append(f"{name} {number[0] if number else said or 'of unknown version'}")
    return found


def nginx_build() -> str:
    """How the nginx on PATH was built (`nginx -V`)."""
    return subprocess.run(["nginx", "-V"], capture_output=True, text=True, timeout=30, check=False).stderr


def load_stream_module(build: str) -> str | None:
    """The line of nginx's configuration that loads its stream module, empty where it is built in. None: this build has
    no stream module, or one without TLS. `build`: what `nginx -V` says.
    """
    flags = build.split()
    if "--with-stream_ssl_module" not in flags:
        return None
    if "--with-stream=dynamic" not in flags:
        return "" if "--with-stream" in flags else None
    folder = re.search(r"--modules-path=(\S+)", build)
    module = Path(folder[1] if folder else "") / "ngx_stream_module.so"
    return f"load_module {module};" if module.is_file() else None
