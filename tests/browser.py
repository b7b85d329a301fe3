# A page in a real browser (Chromium, headless, without a network): what it makes of it, and what it complains of. The
# browser itself opens a file; Playwright drives it through the pages of a server.

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, sync_playwright

from gateway.embedded import cache_dir

QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
# Whatever the browser itself would like to ask for stays on this machine.
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
PLAIN = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
AXE = Path(__file__).parent / "axe"


def find_browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium is installed")
    return found


def open_page(html: str, folder: Path) -> tuple[str, list[str], list[str]]:
    """What a browser makes of the page (its DOM), what its console says, and what the page asks for on the network."""
    browser = find_browser()
    (folder / "report.html").write_text(html, encoding="utf-8")
    done = subprocess.run(
        [
            *(browser, "--headless", *PLAIN, *QUIET, ALONE, f"--user-data-dir={folder}/profile"),
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


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """The installed browser, driven by Playwright."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=[*PLAIN, *QUIET, ALONE])
        try:
            yield browser
        finally:
            browser.close()


class Looker:
    """A page (a tab) that keeps what its console says, and which hosts it asks."""

    def __init__(self, browser: Browser, width: int, scheme: Literal["light", "dark"]) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{self.page.url}: {message.text}")

    def judge(self) -> list[str]:
        """What axe-core finds wrong with the page as it is, by the rules of WCAG 2.2 AA and its best practices."""
        self.page.evaluate(axe_source())  # from outside of the page, so its policy (CSP) doesn't forbid it
        found = self.page.evaluate(
            "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
        )
        return [
            f"{self.page.url}: {each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary']}"
            for each in found["violations"]
        ]

    @property
    def is_too_wide(self) -> bool:
        """Whether one has to scroll sideways."""
        width = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return bool(width > 0)


@functools.cache
def axe_source() -> str:
    """axe-core, fetched once."""
    folder = cache_dir() / f"axe-{hashlib.sha256((AXE / 'package-lock.json').read_bytes()).hexdigest()[:16]}"
    source = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not source.exists():
        if shutil.which("npm") is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)("npm is needed: axe-core is fetched with it")
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache_dir()))
        for name in ("package.json", "package-lock.json"):
            shutil.copy(AXE / name, fresh)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=fresh, check=True, capture_output=True, timeout=300)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return source.read_text(encoding="utf-8")
