# A page in a real browser (Chromium, headless, without a network): what it makes of it, and what it complains of.

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest


def _browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium is installed")
    return found


def open_page(html: str, folder: Path) -> tuple[str, list[str], list[str]]:
    """What a browser makes of the page (its DOM), what its console says, and what the page asks for on the network."""
    browser = _browser()
    (folder / "report.html").write_text(html, encoding="utf-8")
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *quiet),
            # Whatever the browser itself would like to ask for stays on this machine.
            *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={folder}/profile"),
            *("--enable-logging=stderr", f"--log-net-log={folder}/net.json", "--dump-dom", f"file://{folder}/report.html"),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=200,
        check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    events = [event.get("params", {}) for event in json.loads((folder / "net.json").read_text())["events"]]
    # What the browser asks for by itself has no origin.
    asked = [each["url"] for each in events if each.get("initiator", "not an origin") != "not an origin"]
    return done.stdout, console, [url for url in asked if url.startswith("http")]
