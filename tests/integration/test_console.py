# The console in Chromium, in front of a real Kafka: every page, an edit that binds, an edit that is refused, from the
# overview to the reason of a client that is held back; nothing that a browser or axe-core complains of.

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, Page, expect

from gateway.access_tokens.roles import AccessRole
from gateway.access_tokens.tokens import format_token_line
from gateway.control.admin.console import pages
from gateway.embedded import EmbeddedCluster, wait_for
from tests import browser
from tests.browser import Looker
from tests.integration.gateways import Gateway, create_topic

TOKEN = "anna-0123456789abcdef0123"
SEEN_MS = 30_000  # the machine may be busy with something else
LIMIT = "10kB"  # of a client that sends thirty times as much
expect.set_options(timeout=SEEN_MS)


class Shown(NamedTuple):
    """A gateway with one busy topic, and a client that is held back since a quota was set in the console."""

    gateway: Gateway
    topic: str
    client_id: str


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.started() as found:
        yield found


@pytest.fixture(scope="module")
def shown(kafka: EmbeddedCluster) -> Iterator[Shown]:
    topic = create_topic(kafka, f"console-{uuid.uuid4().hex[:8]}")
    settings = {
        "admin": {"tokens": [format_token_line("anna", AccessRole.ADMIN, TOKEN)]},
        "thresholds": {
            "total.bytes.in.per.sec.threshold": "20MB",
            "topics": {topic: {"bytes.in.per.sec.threshold": "5MB"}},
        },
        "resource_groups": {
            "groups": {"gold": {"publishRateInBytes": "12MB"}},
            "tenants": {"acme": "gold"},
        },
    }
    with Gateway(kafka.bootstrap_servers, settings) as gateway:
        yield Shown(gateway, topic, f"noisy-{topic}")


def open_page(chromium: Browser, shown: Shown, width: int = 1280, dark: bool = False) -> Looker:
    """Logged in, at the overview."""
    looker = Looker(chromium, width, "dark" if dark else "light")
    page = looker.page
    page.goto(f"{shown.gateway.admin}/login")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    return looker


def offer(shown: Shown) -> None:
    """Three requests, the first of which takes all that its quota allows for a while."""
    producer = Producer({"bootstrap.servers": shown.gateway.bootstrap, "client.id": shown.client_id, "linger.ms": 0})
    for _ in range(3):
        producer.produce(shown.topic, bytes(100_000))
        producer.poll(0)
    wait_for("the first one's answer", lambda: producer.flush(0.1) < 3, SEEN_MS / 1000)
    producer.flush(1)  # the rest has to wait, and ends with the producer
    producer.purge()


def test_from_a_limit_to_whom_it_holds_back_and_why(chromium: Browser, shown: Shown) -> None:
    looker = open_page(chromium, shown)
    page = looker.page

    # An edit that binds: looked at while it is typed, then made.
    page.goto(f"{shown.gateway.admin}/console/quota?{urlencode({'client_id': shown.client_id})}")
    page.get_by_label("producer_byte_rate").press_sequentially(LIMIT)
    expect(page.locator("#outcome")).to_contain_text("producer_byte_rate: – → 10.0 kB/s")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("Saved: policies are at version")).to_be_visible()

    # It shows without a reload; from there one click to limit, rate and reason.
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    offer(shown)
    link = page.get_by_role("link", name=shown.client_id)
    expect(link.first).to_be_visible()
    link.first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(shown.client_id)
    rule = page.locator("tr", has=page.get_by_role("rowheader", name="client-quota on broker 1")).first
    expect(rule.locator("td").nth(0)).to_have_text("10.0 kB/s")
    expect(rule.locator("td").nth(1)).to_contain_text("/s")
    expect(page.get_by_text("client-quota").first).to_be_visible()

    # An edit that is refused, with the sum in its place.
    page.goto(f"{shown.gateway.admin}/console/topic?topic={shown.topic}")
    page.get_by_label("Bytes per second").fill("15MB")
    expect(page.locator("#outcome")).to_contain_text("the sum would be 15.0 MB/s of 20.0 MB/s")
    page.get_by_label("Bytes per second").fill("23MB")
    expect(page.locator("#outcome")).to_contain_text("exceeds")
    looker.complaints.clear()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("Refused, nothing is changed.")).to_be_visible()
    assert [each for each in looker.complaints if "422" not in each] == []  # the browser notes the answer's status
    page.goto(f"{shown.gateway.admin}/console/history?kind=quota")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("anna")


def test_every_page_is_fine_for_browser_and_axe(chromium: Browser, shown: Shown) -> None:
    things = {
        "/console/topic": {"topic": shown.topic},
        "/console/client": {"principal": "User:ANONYMOUS", "client_id": shown.client_id},
        "/console/quota": {"client_id": shown.client_id},
        "/console/group": {"group": "gold"},
        "/console/explain": {"topic": shown.topic},
    }
    wide, narrow = open_page(chromium, shown), open_page(chromium, shown, width=390, dark=True)
    found = []
    for path in pages.PAGES:
        query = f"?{urlencode(things[path])}" if path in things else ""
        for looker in (wide, narrow):
            looker.page.goto(f"{shown.gateway.admin}{path}{query}")
            assert looker.page.locator("main h1").is_visible()
            assert not looker.is_too_wide, (path, looker.page.viewport_size)
            found += looker.judge()
    for looker in (wide, narrow):
        found += looker.complaints
        assert looker.hosts == {shown.gateway.admin.removeprefix("http://")}
    assert found == []


def test_a_group_is_attached_and_detached_by_keyboard_on_a_phone(chromium: Browser, shown: Shown) -> None:
    page = open_page(chromium, shown, width=375).page
    page.goto(f"{shown.gateway.admin}/console/group?group=gold")
    page.get_by_label("Attach to").focus()
    page.keyboard.type("acme/orders")
    expect(page.locator("#outcome-place")).to_contain_text("gold")
    expect(page.locator("#outcome")).to_be_empty()
    for name in ("Preview", "Attach"):
        page.keyboard.press("Tab")
        assert focused(page) == name
    page.keyboard.press("Enter")
    expect(page.get_by_text("Saved: policies are at version")).to_be_visible()
    page.get_by_role("button", name="Detach acme/orders").press("Enter")
    expect(page.get_by_role("rowheader", name="acme/orders")).to_have_count(0)


def test_it_works_by_keyboard_and_can_be_paused(chromium: Browser, shown: Shown) -> None:
    looker = open_page(chromium, shown)
    page = looker.page
    page.reload()
    names = []
    for _ in range(16):
        page.keyboard.press("Tab")
        names.append(focused(page))
        if names[-1] == "Pause":
            break
    assert names[0] == "Skip to the content"
    assert names[-1] == "Pause"
    assert names.index("Overview") < names.index("History")
    page.keyboard.press("Enter")
    expect(page.locator("#pulse")).to_have_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)  # more than a look and the next one
    assert asked == []
    page.keyboard.press("Enter")
    with page.expect_request("**/console/", timeout=SEEN_MS):
        pass
    expect(page.locator("#pulse")).to_have_text("Live")


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim()"))
