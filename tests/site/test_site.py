# The documentation site: it is built from docs/ as CI builds it, and its references have all that the program has.

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway import cli as program
from tools.site import cli, hooks, rest, settings, tables

ROOT = Path(__file__).parents[2]
BUILD_S = 240.0  # it takes six


class _Loads(HTMLParser):
    """The addresses that a page loads something from, without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = given.get("src") if tag in ("script", "img", "iframe") else None
        if tag == "link" and given.get("rel") in ("stylesheet", "preconnect", "icon", "preload"):
            loads = given.get("href")
        if loads:
            self.found.add(loads)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]  # --quiet forgives all
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Documentation built" in done.stdout
    assert "WARNING" not in done.stdout
    return folder


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    sources = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = {*hooks.GENERATED_PAGES, *hooks.TOP_PAGES.values()}
    assert pages == {page.replace(".md", ".html") for page in sources | made} | {"404.html"}
    for path in site.rglob("*.html"):
        loads = _Loads()
        loads.feed(path.read_text("utf-8"))
        assert not [address for address in loads.found if "//" in address], path.name


def test_links_of_files_at_the_top_lead_to_pages(site: Path) -> None:
    overview = (site / "index.html").read_text("utf-8")
    assert 'href="configuration.html"' in overview
    assert 'src="picture.svg"' in overview
    assert 'href="contributing.html"' in overview


def test_the_reference_of_settings_has_each_key_of_each_section() -> None:
    text = settings.make_page()
    found = settings.list_sections()
    assert found[0].name == "Settings"
    for place in found:
        for row in place.rows:
            assert f"| `{row.key}` |" in text, (place.name, row.key)
            assert row.text, (place.name, row.key)
    listener = next(place for place in found if place.name == "Listener")
    assert listener.paths == ("listener", "listeners.NAME")
    port = next(row for row in listener.rows if row.key == "port")
    assert (port.kind, port.default) == ("number (port), at least 1, at most 65,535", "19092")
    live = {f"{place.name}.{row.key}" for place in found for row in place.rows if row.is_live}
    assert {"Listener.ssl.keystore.location", "Limits.max_hold", "GroupRates.publishRateInBytes"} <= live
    assert not live & {
        "Admin.ssl.keystore.location",
        "Limits.max_client_metrics",
        "Settings.workers",
        "Snapshots.topic",
    }
    servers = next(row for place in found if place.name == "Upstream" for row in place.rows)
    assert (servers.key, servers.default) == ("bootstrap_servers", None)


def test_the_reference_of_commands_has_each_command() -> None:
    words = {each[0] for each in cli.list_commands() if each}
    assert words == set(program._command_names()) - set(cli._NO_OPTIONS)
    said = cli.capture_help(("check",))
    assert said.startswith("usage: produce-gateway check")
    assert "--strict" in said
    assert "--alter" in cli.capture_help(("kafka-quotas",))


def test_the_reference_of_rest_has_each_path_and_each_body() -> None:
    said, text = rest.load_openapi(), rest.make_page()
    for path, operations in said["paths"].items():
        for method in operations:
            assert f"### {method.upper()} {path}\n" in text
    headings = set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
    assert headings == set(said["components"]["schemas"])
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= {name.lower() for name in headings}


@pytest.mark.parametrize(
    ("text", "page", "from_top", "moved"),
    [
        ("[a](docs/x.md#b) [c](CHANGELOG.md)", "index.md", True, "[a](x.md#b) [c](changelog.md)"),
        ("![a](docs/p.svg)", "index.md", True, "![a](p.svg)"),
        ("[a](LICENSE)", "index.md", True, "a"),
        ("[`a`](../deploy/b.yaml) [c](d.md)", "e.md", False, "`a` [c](d.md)"),
        ("[a](../CONTRIBUTING.md)", "e.md", False, "[a](contributing.md)"),
        ("[a](../storage.md) [b](../../SECURITY.md#c)", "how-to/e.md", False,
         "[a](../storage.md) [b](../security-policy.md#c)"),
        ("[a](https://b.example/c) [d](#e)", "e.md", False, "[a](https://b.example/c) [d](#e)"),
        ("```\n[a](LICENSE)\n```\n", "index.md", True, "```\n[a](LICENSE)\n```\n"),
    ],
)  # fmt: skip
def test_links_lead_to_the_same_file_on_the_site(text: str, page: str, from_top: bool, moved: str) -> None:
    assert hooks.rewrite_links(text, page, from_top=from_top) == moved


def test_cells_of_tables_have_no_markup_of_their_own() -> None:
    assert tables.escape_cell("a|b <c> `d`\ne_f & [g]") == r"a\|b &lt;c&gt; \`d\` e\_f &amp; \[g\]"
    assert tables.markdown_table(("A", "B"), [("1", "2")]) == "| A | B |\n| --- | --- |\n| 1 | 2 |\n"


# --- commands that pages tell readers to type -------------------------------------------------------------------------

_COMMAND = re.compile(r"^\s*(?:kubectl exec \S+ -- |docker compose exec gateway )?(produce-gateway|kafka-quotas) (.*)$")


def _typed() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = []
    for page in pages:
        for block in re.findall(r"^```(?:sh|text)?\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            lines = block.replace("\\\n", " ").splitlines()
            found += [
                (page.name, f"{match[1]} {match[2]}") for line in lines if (match := _COMMAND.match(line)) is not None
            ]
    return found


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    return {" ".join(words): cli.capture_help(words) for words in cli.list_commands()}


def test_commands_on_pages_and_their_options_exist(helps: dict[str, str]) -> None:
    typed = _typed()
    assert len(typed) > 30
    for page, line in typed:
        words = line.partition("  #")[0].replace("produce-gateway ", "", 1).split()
        if words[0] in cli._NO_OPTIONS or words[0].startswith("-"):
            continue
        name = " ".join(words[:2]) if " ".join(words[:2]) in helps else words[0]
        assert name in helps, (page, line)
        if words[0] in ("policies", "groups") or "…" in line:  # commands with commands of their own, or not whole
            continue
        for option in (word.partition("=")[0] for word in words[1:]):
            if option.startswith("--") and len(option) > 2:
                assert re.search(rf"{option}\b", helps[name]), (page, line, option)
