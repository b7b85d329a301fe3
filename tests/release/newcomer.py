# docs/tutorial.md as somebody follows it who has a wheel and no repository: its own commands, in a fresh environment,
# at the addresses that it names, in front of a real Kafka. Prints how long each step takes, and what is said meanwhile:
#
#     python -m tests.release.newcomer dist/produce_gateway-….whl
#
# Ports 9092, 19092 and 19093 onwards, and 9190 must be free.

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gateway.embedded import EmbeddedCluster

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
BLOCKS: Final = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
WAIT_S: Final = 120.0


class Newcomer:
    """Types the page's lines into a shell, in a folder of his own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[tuple[str, float]] = []
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.environ = {**clean, "PATH": f"{folder / 'gw' / 'bin'}:{clean['PATH']}"}

    def types(self, line: str, code: int = 0) -> str:
        print(f"$ {line}", flush=True)
        done = subprocess.run(
            line, shell=True, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        print("".join(f"    {each}\n" for each in said.splitlines()[:12]), end="", flush=True)
        if done.returncode != code:
            raise SystemExit(f"{line}: exit code {done.returncode}: {said}")
        return said

    def begins(self, line: str, stack: ExitStack) -> None:
        """It runs on in a terminal of its own."""
        print(f"$ {line} &", flush=True)
        # exec: the signal is for it and not for a shell.
        command = ["/bin/sh", "-c", f"exec {line}"]
        process = subprocess.Popen(command, cwd=self.folder, env=self.environ, stdout=subprocess.DEVNULL)
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)

    def waits_for(self, line: str, word: str) -> None:
        until = time.monotonic() + WAIT_S
        while True:
            done = subprocess.run(
                line, shell=True, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
            )
            if done.returncode == 0 and word in done.stdout:
                return
            if time.monotonic() > until:
                raise SystemExit(f"{line}: no {word!r} after {WAIT_S:.0f} s: {done.stdout}{done.stderr}")
            time.sleep(0.2)

    def done(self, step: str, began: float) -> None:
        self.steps.append((step, time.monotonic() - began))


def block(kind: str, word: str) -> str:
    (found,) = (text for name, text in BLOCKS if name == kind and word in text)
    return str(found)


def line(start: str) -> str:
    (found,) = (each for _, text in BLOCKS for each in text.splitlines() if each.startswith(start))
    return str(found).partition("  #")[0].strip()


def follow(wheel: Path, newcomer: Newcomer) -> None:
    began = time.monotonic()
    for each in block("", "python3 -m venv").splitlines():
        if not each.startswith("export"):  # his shell has it from the beginning
            each = each.replace("python3 ", f"{sys.executable} ")
            newcomer.types(each.replace("constraints.txt", str(ROOT / "constraints.txt")).replace(" .", f" {wheel}"))
    newcomer.done("install", began)
    with ExitStack() as stack:
        began = time.monotonic()
        stack.enter_context(EmbeddedCluster(1, {"auto.create.topics.enable": "true"}, port=9092))
        newcomer.done("a Kafka of one broker", began)
        began = time.monotonic()
        text = block("yaml", "upstream:")
        (newcomer.folder / "gateway.yaml").write_text(text, "utf-8")
        newcomer.types(line("produce-gateway check"))
        (newcomer.folder / "slip.yaml").write_text(text.replace("total.bytes", "tottal.bytes"), "utf-8")
        newcomer.types("produce-gateway check slip.yaml", code=1)
        newcomer.begins(line("produce-gateway serve"), stack)
        newcomer.waits_for(line("produce-gateway health"), "ready")
        newcomer.done("check, serve, until it is ready", began)
        newcomer.types(line("produce-gateway status"))
        (newcomer.folder / "tutorial.py").write_text(block("python", "Producer("), "utf-8")
        began = time.monotonic()
        newcomer.begins(line("python tutorial.py"), stack)
        newcomer.waits_for(line("produce-gateway clients"), "delayed")
        newcomer.done("produce, until the client is held", began)
        time.sleep(5)  # until meters have said their rates
        began = time.monotonic()
        newcomer.types(line("produce-gateway clients"))
        newcomer.types(line("produce-gateway connections"))
        why = newcomer.types(line("produce-gateway explain"))
        newcomer.done("ask who, and why", began)
        if not why.startswith("delayed now by client-quota"):
            raise SystemExit(f"the reason isn't in the first line: {why}")
        began = time.monotonic()
        newcomer.types(line("kafka-quotas"))
        newcomer.types("produce-gateway history")
        newcomer.done("raise the limit, see who did", began)


def main(arguments: Sequence[str]) -> int:
    (wheel,) = arguments
    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    newcomer = Newcomer(folder)
    try:
        follow(Path(wheel).resolve(), newcomer)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for step, took in [*newcomer.steps, ("all of it", sum(took for _, took in newcomer.steps))]:
        print(f"{took:8.1f} s  {step}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
