# What can be checked of the documentation: links lead somewhere, and docs/metrics.md lists the metrics that there are.

import re
from pathlib import Path

import pytest

from gateway.control.metrics import PREFIX, Metrics

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_page_on_metrics_lists_every_metric_with_its_type() -> None:
    metrics = Metrics()
    metrics.show_fleet()
    metrics.show_storage()
    shown = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type)
        for family in metrics.registry.collect()
        if not family.name.startswith(f"{PREFIX}_control_process_")
    }
    rows = re.findall(
        r"^\| `(\w+)` \| (counter|gauge) \|", (ROOT / "docs" / "metrics.md").read_text("utf-8"), re.MULTILINE
    )
    assert {(f"{PREFIX}_{name}", kind) for name, kind in rows} == shown
    assert len(rows) == len(shown)
