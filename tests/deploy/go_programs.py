# Programs that are Go modules: built once, of one version each, into the cache that Kafka is in too.

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
from pathlib import Path

from gateway import embedded

BUILD_TIMEOUT_S = 900.0


@functools.cache
def built(package: str, version: str, name: str, variables: tuple[str, ...] = (), folder: str = "") -> Path:
    """The program of that package; the first call on a machine fetches and compiles it, which takes a minute or more.

    Args:
        name: of the file that Go makes of it: the last part of the package's path.
        variables: of the program, as package.name=text, that its own releases set when they are linked.
        folder: in the cache, without its version; `name` where that says enough.
    """
    place = embedded.cache_dir() / f"{folder or name}-{version}"
    program = place / name
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            # -s -w: without symbols for a debugger, which are a third of it.
            flags = " ".join(["-s -w", *(f"-X {each}" for each in variables)])
            command = ["go", "install", "-trimpath", f"-ldflags={flags}", f"{package}@{version}"]
            subprocess.run(command, env={**os.environ, "GOBIN": str(place)}, check=True, timeout=BUILD_TIMEOUT_S)
    return program
