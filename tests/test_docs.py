# What can be checked of the documentation: links lead somewhere, docs/metrics.md lists the metrics that there are, and
# docs/seeds.md the tests.

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import cli
from gateway.agent.metrics import AgentMetrics
from gateway.control.metrics import FAMILIES, PREFIX, GatewayMetrics
from policies.storage import Volume
from policies.units import parse_duration, parse_size
from tests import pages, seeds
from tools.site import settings

ROOT = Path(__file__).parent.parent
RULE = re.compile(r"\|[-:| ]+\|")  # below a table's head
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"`((?:deploy|extras|tests|tools)/[^`\s]*)`", prose(page)):
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_tables_have_rows_of_one_width_and_no_gap(page: Path) -> None:
    lines = prose(page).split("\n")
    for before, line in itertools.pairwise(lines):
        if RULE.fullmatch(before):
            assert line.startswith("|"), f"no row behind {before}"
        if before.startswith("|") and line.startswith("|"):
            assert len(cells(before)) == len(cells(line)), line
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        if line.startswith("|") and not before.startswith("|"):
            assert RULE.fullmatch(after), f"no head: {line}"


def cells(row: str) -> list[str]:
    """Of a table's row; a bar in code or behind a backslash is no border."""
    return re.sub(r"`[^`]*`|\\\|", "", row).strip().strip("|").split("|")


@pytest.mark.parametrize("page", pages.tables())
def test_tables_that_the_code_knows_are_those_of_the_code(page: str) -> None:
    assert pages.written(page) == (ROOT / "docs" / page).read_text("utf-8"), "python -m tests.pages writes it"


def test_the_table_of_metrics_has_every_metric_that_is_exposed_with_its_type() -> None:
    metrics = GatewayMetrics()
    metrics.create_fleet_series()
    metrics.create_storage_series()
    shown = {
        (family.name, family.type): set(family.samples[0].labels) if family.samples else None
        for family in text_string_to_metric_families(b"".join(metrics.render_text()).decode())
        if not family.name.startswith(f"{PREFIX}_control_process_")
    }
    table = {(f"{PREFIX}_{family.name}", str(family.kind)): set(family.labels) for family in FAMILIES.values()}
    assert shown.keys() == table.keys()
    assert [name for name, labels in shown.items() if labels is not None and labels - {"le"} != table[name]] == []


@pytest.mark.seed("DISK.42", "DISK.43")
def test_families_that_stand_for_mbeans_exist_with_these_labels() -> None:
    section = (ROOT / "docs" / "metrics.md").read_text("utf-8").partition("## Names in JMX")[2].partition("\n## ")[0]
    exposed = {family.exposed_name.removeprefix(f"{PREFIX}_"): set(family.labels) for family in FAMILIES.values()}
    agent = AgentMetrics()
    agent.volumes.shown = (Volume(1, "a", 2, 1),)
    for family in text_string_to_metric_families(prometheus_client.generate_latest(agent.registry).decode()):
        for sample in family.samples:
            exposed[sample.name.removeprefix(f"{PREFIX}_")] = set(sample.labels)
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    named = [re.findall(r"`([a-z_]+)(?:\{([^}]*)\})?`", row[1]) for row in rows]
    assert len(rows) >= 18
    assert all(named)
    for name, text in [each for row in named for each in row]:
        labels = {part.partition("=")[0] for part in text.split(",") if part}
        assert labels <= exposed[name], name
        assert "=" in text or labels == exposed[name] or not exposed[name], name
    mbeans = set(re.findall(r"type=(?:LocalThrottleFactor|ClusterVolumeSouce|StorageChecker),name=(\w+)", section))
    assert mbeans == {
        "ThrottleFactor", "FallbackThrottleFactorApplied", "LimitViolated", "ActiveBrokers", "ActiveLogDirs",
        "TotalStorageUsedBytes", "SoftLimitBytes", "HardLimitBytes",
    }  # fmt: skip


def test_the_page_on_the_proposals_names_the_tests_of_each_sentence() -> None:
    page = seeds.PAGE.read_text("utf-8")
    assert seeds.written(page) == page, "python -m tests.seeds writes it"
    rows = {row: said.strip() for row, _, said in seeds.ROW.findall(page)}
    assert seeds.tests_of_rows().keys() <= rows.keys()
    assert [row for row, said in rows.items() if not said] == []


def test_the_code_of_each_sentence_is_there_for_make_mutants() -> None:
    table = seeds.table()
    assert table["rows"].keys() == seeds.tests_of_rows().keys(), "tests/seeds.toml"
    for places in table["rows"].values():
        assert places
        for place in places if isinstance(places, list) else ():
            seeds.lines_of(place)
    for each in table["equivalent"]:
        assert each["old"] in (ROOT / each["file"]).read_text("utf-8"), each
        assert each.keys() == {"file", "old", "new", "why"}


def command_lines() -> list[tuple[str, str]]:
    """(page, line) of each command of ours in a block, but for those that leave something out."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            for line in re.sub(r"\\\n *", " ", block).splitlines():
                if re.match(r"\$? ?(produce-gateway|kafka-quotas) [a-z-]", line) and "…" not in line:
                    found.append((page.name, line.removeprefix("$ ")))
    return found


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_command_can_be_copied(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Parsed(Exception):
        pass

    def parse(self: argparse.ArgumentParser, args: list[str]) -> NoReturn:
        _, unknown = self.parse_known_args(args)
        assert unknown == [], "no options of that command"
        raise Parsed

    command = re.split(r" [|<>&] ?", re.sub(r"\$\([^)]*\)", "x", line.partition(" #")[0]))[0]
    program, *words = shlex.split(command)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises((Parsed, SystemExit)) as end:
        cli.main(words if program == "produce-gateway" else [program, *words])
    assert getattr(end.value, "code", 0) == 0, line


def settings_of_the_page(page: str) -> Iterator[tuple[str, str]]:
    """(path of a key, its default as it is written) of each key in the tables; `.x` is beside the row's first key."""
    section = None
    for line in page.splitlines():
        if head := re.match(r"\| Key(?: of `(\w+)`)? \| Default \|", line):
            section = f"{head[1]}." if head[1] else ""
        elif not line.startswith("|"):
            section = None
        elif section is not None and not RULE.fullmatch(line):
            names, values = (cell.strip("| ") for cell in line.split(" | ")[:2])
            keys = re.findall(r"`([^`]+)`", names)
            beside = keys[0].rpartition(".")[0]
            for key, value in itertools.zip_longest(keys, values.split(", ")[: len(keys)], fillvalue=""):
                yield f"{section}{beside if key.startswith('.') else ''}{key}", value


def number(text: str) -> object:
    """The value of a size or duration; other text as it is, of a list the first."""
    text = text.partition(",")[0].removeprefix("./")
    for parse in (parse_size, parse_duration):
        with contextlib.suppress(ValueError):
            return float(parse(text))
    return text


# Keys that have a page of their own, those that nobody needs to write, and those that can have one value only.
NOT_ON_THE_PAGE = re.compile(
    r"resource_groups\.|resourceUsage|storage\.prometheus\.|.*\.(properties|ssl\.(key|trust)store\.type)$"
)


def test_the_page_of_settings_has_each_key_and_right_defaults() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    defaults = {
        f"{path}.{row.key}".lstrip("."): row.default or ""
        for section in settings.list_sections()
        for path in section.paths
        for row in section.rows
    }
    rows = [row for row in settings_of_the_page(page) if not re.search(r"[*…]|^upstream\.(security|enable)", row[0])]
    assert len(rows) > 120
    assert [key for key, _ in rows if key not in defaults] == []
    written = [(key, value.strip("`")) for key, value in rows if value.startswith("`") and defaults[key]]
    assert len(written) > 50
    assert [row for row in written if number(row[1]) != number(defaults[row[0]])] == []
    words = {word for text in re.findall(r"`([^`\n]+)`", page) for word in re.findall(r"\w+", text)}
    missing = (key for key in defaults if key.rpartition(".")[2] not in words)
    assert [key for key in missing if not NOT_ON_THE_PAGE.match(key)] == []
