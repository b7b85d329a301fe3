# `make sanitize`: the compiled hot path under AddressSanitizer and UBSan. A copy of the sources in build/sanitize is
# built with them, so what runs otherwise is left alone; there run the tests of the compiled modules, the readers at the
# ends of their buffers (boundaries.py), and fuzzing (fuzz.py). A report of a sanitizer is a failure, whatever else runs
# on; so is anything that fails without one.
#
#     python -m tests.hostile.sanitize [--seconds S]        S: of fuzzing; a quarter more for boundaries.py

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.variants import PURE

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "sanitize"
COPIED: Final = (
    "gateway",
    "policies",
    "protocol",
    "tests",
    "tools",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)
SANITIZERS: Final = "address,undefined"
LIBRARIES: Final = (
    "libasan.so",
    "libubsan.so",
    "libstdc++.so",
)  # the last for packages in C++: it has to be found first
CORES: Final = os.cpu_count() or 1
# By module, what drives it most; test_sanitize.py wants one for each.
TESTS: Final = {
    "protocol.produce.produce_fast": "tests/protocol/produce/test_produce_fast.py",
    "protocol.rewriting.stream": "tests/protocol/rewriting/test_stream.py",
    "protocol.rewriting.metadata_topics": "tests/protocol/rewriting/test_metadata_topics.py",
    "policies.idempotence.duplicates": "tests/policies/idempotence/test_duplicates.py",
    "policies.meters.meter": "tests/policies/meters/test_meter.py",
    "gateway.data.shared.ledger": "tests/gateway/data/shared/test_ledger.py",
    "gateway.data.pending.in_flight": "tests/gateway/data/pending/test_in_flight.py",
    "gateway.data.session.fast_path": "tests/gateway/data/session/fast_path/test_fast_path.py",
    "gateway.data.relay.shortcut": "tests/gateway/data/relay/test_shortcut.py",
    "gateway.data.sockets.slices": "tests/gateway/data/sockets/test_reactor_slices.py",
    "gateway.data.sockets.tls": "tests/gateway/data/relay/test_tls_shortcut.py",
}
MORE_TESTS: Final = (
    "tests/gateway/data/session/fast_path/test_fast_path_sums.py",
    "tests/gateway/data/relay/test_links.py",
)  # all of them together
HAVE: Final = "GCC with its sanitizers is needed (Debian, Ubuntu: gcc libc6-dev; Fedora: gcc libasan libubsan)"


class Failed(Exception):
    """One line that says what."""


def libraries(compiler: str) -> list[Path]:
    """Those of the sanitizers, as GCC has them.

    Raises:
        Failed: it lacks them, or there is no GCC.
    """
    found = []
    for name in LIBRARIES:
        command = [compiler, f"-print-file-name={name}"]
        try:
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            raise Failed(f"{HAVE}: {compiler} can't be used: {error}") from error
        if not os.path.isabs(said):  # it prints the name that it was asked for
            raise Failed(f"{HAVE}: {compiler} has no {name}")
        found.append(Path(said))
    return found


def copy_sources() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "node_modules")
            shutil.copytree(ROOT / name, FOLDER / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, FOLDER / name)


def build() -> None:
    """
    Raises:
        Failed: a module can't be built.
    """
    command = [sys.executable, "setup.py", "build_ext", "--inplace", "--force", "--parallel", str(CORES)]
    environment = os.environ | {"SANITIZE": SANITIZERS}
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    there = [path.name for path in FOLDER.glob("[gp]*/**/*.so")]
    if done.returncode or len(there) != len(TESTS):
        raise Failed(f"{len(there)} of {len(TESTS)} modules were built:\n{(done.stdout + done.stderr)[-4000:]}")


def environment(preloaded: list[Path]) -> Mapping[str, str]:
    """Of a Python that loads what was built."""
    common = f"halt_on_error=1:print_stacktrace=1:log_path={FOLDER}/report"
    return os.environ | {
        "LD_PRELOAD": " ".join(str(path) for path in preloaded if "ubsan" not in path.name),
        # CPython keeps what it has made until the end. What was freed is kept, too, so that its use is seen.
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:quarantine_size_mb=64",
        "UBSAN_OPTIONS": common,
        "PYTHONMALLOC": "malloc",  # else one block of Python's has many objects, and AddressSanitizer sees none of them
        "PYTHONPATH": str(FOLDER),
        "CI": "true",  # a module that is not compiled is a failure
    }


def reports() -> list[Path]:
    return sorted(FOLDER.glob("report.*"))


class Steps:
    """Runs one after the other, each with a line of what it is and how long it took."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.failed: list[str] = []

    def somebody_looks(self) -> None:
        """A read of a forbidden byte has to be reported: else nothing that follows would say anything.

        Raises:
            Failed: it was not.
        """
        done = self._start("-m", "tests.hostile.boundaries", "--forbidden", piped=True).wait()
        found = [path.read_text("utf-8", "replace") for path in reports()]
        if done == 0 or not any("use-after-poison" in text and "produce_fast" in text for text in found):
            raise Failed(f"a read of a forbidden byte was not reported (status {done})")
        for path in reports():
            path.unlink()

    def run(self, name: str, *commands: tuple[str, ...]) -> None:
        """Of Python, side by side."""
        print(f"{name} …", flush=True)
        began = time.monotonic()
        statuses = [process.wait() for process in [self._start(*command) for command in commands]]
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{name}: {'failed' if any(statuses) else 'ok'}, {took}, {len(reports())} reports", flush=True)
        if any(statuses):
            self.failed.append(name)

    def _start(self, *words: str, piped: bool = False) -> subprocess.Popen[bytes]:
        output = subprocess.DEVNULL if piped else None
        return subprocess.Popen([sys.executable, *words], cwd=FOLDER, env=self._variables, stdout=output, stderr=output)


def sanitize(seconds: float) -> int:
    """
    Raises:
        Failed: it can't be done here.
    """
    preloaded = libraries(os.environ.get("CC", "gcc"))
    print(f"building with {SANITIZERS}, in {FOLDER.relative_to(ROOT)} …", flush=True)
    began = time.monotonic()
    copy_sources()
    build()
    print(f"built, {time.monotonic() - began:.0f} s", flush=True)
    steps = Steps(environment(preloaded))
    steps.somebody_looks()
    options = ("--quiet", "-p", "no:cacheprovider", "-n", str(CORES), "--dist", "loadscope", "-k", f"not {PURE}")
    steps.run("tests", ("-m", "pytest", *options, *TESTS.values(), *MORE_TESTS))
    each = [
        ("-m", "tests.hostile.boundaries", "--seconds", str(seconds / 4), "--seed", str(int(time.time()) + process))
        for process in range(CORES)
    ]
    steps.run("boundaries", *each)
    steps.run("fuzz", ("-m", "tests.hostile.fuzz", "--seconds", str(seconds), "--slow"))
    for path in reports():
        print(path.read_text("utf-8", "replace"), file=sys.stderr)
    failed = [*steps.failed, *([f"{len(reports())} reports"] if reports() else [])]
    print(f"sanitize: {', '.join(failed) or 'ok, 0 reports'}", flush=True)
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.sanitize")
    parser.add_argument("--seconds", type=float, default=600.0, help="of fuzzing")
    try:
        return sanitize(parser.parse_args(arguments).seconds)
    except Failed as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
