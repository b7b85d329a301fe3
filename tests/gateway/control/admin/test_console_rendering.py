# Values as people read them, addresses, and that strangers' names stay text.

from __future__ import annotations

import jinja2
import pytest

from gateway.control.admin.console import rendering
from gateway.control.admin.console.rendering import ConsoleTemplates
from policies.units import format_duration

MS = 1_700_000_000_123


def test_values_are_shown_in_the_unit_that_matters() -> None:
    assert rendering.rate_text(None) == "–"
    assert rendering.rate_text(0.0) == "0 B/s"
    assert rendering.rate_text(2_500_000.0) == "2.5 MB/s"
    assert rendering.rate_text(12_345.0, "msg/s") == "12,345 msg/s"
    assert rendering.rate_text(0.25, "msg/s") == "0.25 msg/s"
    assert (rendering.size_text(None), rendering.size_text(12e9)) == ("–", "12.0 GB")
    assert [format_duration(seconds) for seconds in (0.4, 119, 121, 7300, 200_000)] == [
        "0 s", "119 s", "2 min", "2 h", "2 d",
    ]  # fmt: skip
    assert (rendering.clock_text(MS), rendering.day_text(MS)) == ("22:13:20Z", "2023-11-14 22:13:20Z")
    assert [rendering.percent_text(each) for each in (None, float("inf"), 0.126)] == ["–", "–", "13%"]


def test_addresses_keep_empty_names_and_drop_what_is_not_asked() -> None:
    assert rendering.make_url("/x", a="b&c=d", client_id="", user=None) == "/x?a=b%26c%3Dd&client_id="
    assert rendering.make_url("/x", user=None) == "/x"
    assert rendering.make_url("/x", path="/y") == "/x?path=%2Fy"  # an address that somebody wrote by hand


def test_names_are_escaped() -> None:
    macros = ConsoleTemplates()._environment.globals["ui"]
    shown = str(macros.topic_link('<script>"', "x"))  # type: ignore[attr-defined]
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert 'href="/console/topic?topic=%3Cscript%3E%22"' in shown


def test_every_template_compiles_and_an_unknown_name_is_an_error() -> None:
    templates = ConsoleTemplates()
    for name in templates._environment.list_templates():
        templates._environment.get_template(name)
    with pytest.raises(jinja2.UndefinedError):
        templates.render_page("login.html", {})
