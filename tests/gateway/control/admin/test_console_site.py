# The console over ASGI, as the admin server has it: gate, API and pages; without a browser. What a browser makes of it:
# tests/integration/test_console.py.

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from gateway import channel
from gateway.access_tokens.roles import AccessRole
from gateway.access_tokens.tokens import format_token_line
from gateway.channel import StorageSnapshot, UsageInterval, UsageRow
from gateway.control.access.gate import AccessGate
from gateway.control.access.holders import CredentialHolders
from gateway.control.access.rules import ACCESS_TABLE
from gateway.control.admin.application import AdminApplication
from gateway.control.admin.console import edits, pages
from gateway.control.admin.console.site import MAX_FORM, make_console
from gateway.control.admin.rest import api as rest
from gateway.control.lifecycle.reload import ConfigStatus, ReloadResult
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey, PolicyOperation
from policies.quotas.names import Entity, QuotaKey
from policies.storage import AffectedTopics, StorageFactor
from tests.gateway.control.admin.rest_server import BASE, MB, NOW_MS, Server, rates
from tests.gateway.control.admin.test_rest_state import busy

HOST = "127.0.0.1:9190"
OURS = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
TOKENS = {role: f"{role.label}-0123456789abcdef" for role in (AccessRole.VIEWER, AccessRole.OPERATOR, AccessRole.ADMIN)}
THINGS = {
    "/console/topic": {"topic": "clicks"},
    "/console/client": {"principal": "User:alice", "client_id": "app"},
    "/console/quota": {"user": "alice"},
    "/console/group": {"group": "gold"},
    "/console/explain": {"topic": "clicks", "user": "alice"},
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Browser(Server):
    """Asks as a browser does: with the cookies that it got, and saying which page a form is from."""

    def __init__(self) -> None:
        super().__init__()
        self.cookie = ""
        self.peer = "127.0.0.1"
        self.storage: dict[str, Any] = {"enabled": False}
        self._served: Any = None

    def lock(self) -> None:
        """From now on there are tokens, one of each role."""
        self._served = None
        self.gate = AccessGate(
            CredentialHolders([format_token_line(role.label, role, token) for role, token in TOKENS.items()])
        )

    def application(self) -> Any:
        if self._served is None:
            api = rest.make_api(self.gateway())
            views = {"/v1/storage": self.show_storage}
            self._served = AdminApplication(
                lambda: iter(()), list, views, api, gate=self.gate, make_console=make_console
            )
        return self._served

    async def get(
        self, path: str, headers: dict[str, str] | None = None, /, method: str = "GET", **query: str
    ) -> Answer:
        return await self._send(method, path, query, headers or {}, b"")

    async def post(self, path: str, form: dict[str, str], headers: dict[str, str] = OURS, /, **query: str) -> Answer:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return await self._send("POST", path, query, {**kind, **headers}, urlencode(form).encode())

    async def log_in(self, role: AccessRole, place: str = "") -> Answer:
        return await self.post("/login", {"token": TOKENS[role], "next": place})

    async def _send(
        self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> Answer:
        path, _, more = path.partition("?")
        given = {"host": HOST, **({"cookie": self.cookie} if self.cookie else {}), **headers}
        scope = {
            "type": "http", "http_version": "1.1", "scheme": "http", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": (more or urlencode(query)).encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": (self.peer, 40000), "server": ("127.0.0.1", 9190),
        }  # fmt: skip
        said: dict[str, Any] = {"body": b""}

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                said.update(message)
            else:
                said["body"] += message.get("body", b"")

        await self.application()(scope, receive, send)
        found = {name.decode().lower(): value.decode() for name, value in said["headers"]}
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        return Answer(said["status"], found, said["body"].decode())


@pytest.fixture
def browser() -> Browser:
    browser = Browser()
    busy(browser)
    browser.policies.policies = PolicySet(
        {**BASE, PolicyKey.of_group("gold"): 1, PolicyKey.of_group("gold", "publishRateInBytes"): 5.0 * MB,
         PolicyKey.of_tenant("acme"): "gold"}
    )  # fmt: skip
    browser.told[channel.WorkerRates] = rates(
        [("clicks", 6.1 * MB, 5.0 * MB, True), ("views", 1.0 * MB, 7.0 * MB, False)]
    )
    return browser


class _Loaded(HTMLParser):
    """What a page has inline, and what it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.places: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = dict(attributes)
        self.inline += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in names):
            self.inline.append(tag)
        self.places += [
            value or "" for name, value in attributes if name in ("src", "href", "action", "hx-get", "hx-post")
        ]


def loaded(text: str) -> _Loaded:
    parser = _Loaded()
    parser.feed(text)
    return parser


# --- every page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages.PAGES.values(), ids=lambda page: page.path)
async def test_a_page_shows_its_part_again_and_loads_nothing_from_elsewhere(
    browser: Browser, page: pages.ConsolePage
) -> None:
    given = THINGS.get(page.path, {})
    whole = await browser.get(page.path, **given)
    assert (whole.status, whole.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = whole.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert whole.headers["cache-control"] == "no-store"
    found = loaded(whole.text)
    assert found.inline == []
    assert [place for place in found.places if not place.startswith(("/", "#main"))] == []
    if page.every_s:
        assert f'hx-trigger="every {page.every_s}s"' in whole.text
        part = await browser.get(page.path, {"hx-request": "true"}, **given)
        assert part.status == 200
        assert "<html" not in part.text
        assert part.text.strip() in whole.text


@pytest.mark.parametrize("page", pages.PAGES.values(), ids=lambda page: page.path)
async def test_a_page_of_a_gateway_at_rest_says_that_there_is_nothing(page: pages.ConsolePage) -> None:
    browser = Browser()
    browser.told.clear()
    browser.policies.policies = PolicySet()
    answer = await browser.get(page.path, **THINGS.get(page.path, {}))
    assert answer.status == 200
    assert "<main" in answer.text


def test_every_page_and_form_has_its_row_in_the_table_of_roles() -> None:
    rows = {(rule.method, rule.path): rule for rule in ACCESS_TABLE}
    for path in pages.PAGES:
        assert rows["GET", path].page
    for path in edits.EDITS:
        assert rows["POST", path].role >= AccessRole.OPERATOR


async def test_the_root_leads_to_the_console(browser: Browser) -> None:
    for path in ("/", "/console"):
        answer = await browser.get(path)
        assert (answer.status, answer.headers["location"]) == (303, "/console/")


async def test_files_are_kept_under_the_address_of_their_version(browser: Browser) -> None:
    page = await browser.get("/console/")
    for place in {place for place in loaded(page.text).places if place.startswith("/console/static/")}:
        answer = await browser.get(place)
        assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert answer.headers["content-type"].partition(";")[0] in ("text/css", "text/javascript", "image/svg+xml")
        assert (await browser.get(place.partition("?")[0])).headers["cache-control"] == "no-cache"
    assert (await browser.get("/console/static/../site.py")).status == 404
    head = await browser.get("/console/static/style.css", method="HEAD")
    assert (head.status, head.text) == (200, "")


async def test_names_of_strangers_stay_text(browser: Browser) -> None:
    name = "<img src=x onerror=alert(1)>\"'"
    row = UsageRow(1, name, f"User:{name}", name, "rejected", "topic-threshold", 15 * MB, 2, 2, 0)
    browser.recent.add_interval(UsageInterval("b", 0, 4, NOW_MS - 8_000, NOW_MS - 7_000, (row,)), NOW_MS)
    for path, given in (
        ("/console/", {}), ("/console/clients", {}), ("/console/decisions", {}), ("/console/explain", {"topic": name}),
        ("/console/topic", {"topic": name}), ("/console/client", {"principal": f"User:{name}", "client_id": name}),
        ("/console/quota", {"user": name}), ("/console/group", {"group": name}),
        ("/console/topics", {"contains": name}),
    ):  # fmt: skip
        answer = await browser.get(path, **given)
        assert answer.status == 200
        assert "&lt;img" in answer.text
        assert "<img src=x" not in answer.text
        assert loaded(answer.text).inline == []


@pytest.mark.parametrize(
    "minutes", ["²", "9" * 5000, "-10", "", "11"], ids=["no digit", "long", "negative", "none", "another"]
)
async def test_a_range_that_is_not_offered_is_the_usual_one(browser: Browser, minutes: str) -> None:
    usual = (await browser.get("/console/")).text
    assert (await browser.get("/console/", minutes=minutes)).text.count("The last 10 minutes") == usual.count(
        "The last 10 minutes"
    )
    assert "The last 60 minutes" in (await browser.get("/console/", minutes="60")).text


async def test_a_client_without_a_name_leads_to_what_holds_for_it(browser: Browser) -> None:
    row = UsageRow(1, "clicks", "unknown", "app", "rejected", "topic-threshold", 15 * MB, 2, 2, 0)
    browser.recent.add_interval(UsageInterval("b", 0, 4, NOW_MS - 8_000, NOW_MS - 7_000, (row,)), NOW_MS)
    client = await browser.get("/console/client", principal="unknown", client_id="app")
    assert "Nothing of this client was rejected" not in client.text
    places = {place for place in loaded(client.text).places if place.startswith("/console/explain?")}
    assert places
    for place in places:
        explained = (await browser.get(place)).text
        assert "user <bdi>unknown</bdi>" in explained
        assert "Nothing of it in the last ten minutes" not in explained
    assert (await browser.get("/console/client", principal="other", client_id="other")).status == 200


async def test_from_the_overview_one_step_leads_to_limit_rate_and_reason(browser: Browser) -> None:
    overview = await browser.get("/console/")
    (place,) = {place for place in loaded(overview.text).places if "principal=User%3Aalice" in place}
    client = await browser.get(place)
    assert "topic-threshold" in client.text
    row = client.text[client.text.index("<code>topic-threshold</code>") :].partition("</tr>")[0]
    assert re.findall(r'data-label="(?:Limit|Rate)" class="n">([^<]+)<', row) == ["2.5 MB/s", "6.1 MB/s"]  # times 0.5


async def test_a_configuration_that_was_not_taken_over_is_said(browser: Browser) -> None:
    attempt = ReloadResult("refused", NOW_MS, ("line 7: a fault",))
    browser.config = ConfigStatus("gateway.yaml", NOW_MS, ("workers",), attempt)
    text = (await browser.get("/console/")).text
    assert "was not taken over</strong> at 22:13:20Z, the old one holds: line 7: a fault" in text
    assert "Waits for a restart:</strong> workers" in text


async def test_storage_is_drawn_with_its_limits(browser: Browser) -> None:
    volume = {"name": "/d", "total_bytes": 100, "available_bytes": 12, "consumed_bytes": 88, "soft_limit_bytes": 20,
              "hard_limit_bytes": 5, "factor": 0.5,
              "forecast": {"fill_bytes_per_s": 2_000_000, "soft_limit_in_s": 0, "hard_limit_in_s": 7201},
              "headroom": {"bytes": 5, "needed_bytes": 6, "short": True},
              "topics": [{"name": "clicks", "bytes_per_s": 2_000_000}]}  # fmt: skip
    idle = volume | {"name": "/idle", "forecast": None, "headroom": None, "topics": []}
    browser.storage = {
        "enabled": True, "source": "log-dirs", "mode": "enforce", "factor": 0.5, "state": "THROTTLE", "origin": "x",
        "why": "broker 1 /d", "observed_at": None, "age_s": None, "next": None, "check_interval_s": 5.0,
        "next_check_s": 1.0, "connected": True, "problem": "", "throttle_without_effect": False,
        "override": {"state": "PAUSE", "until": "2026-11-23T06:00:00Z", "who": "alice", "reason": "a disk"},
        "brokers": [{"id": 1, "unknown": "", "left": None, "volumes": [volume, idle], "offline": ["/e"]}],
        "scope": "affected",
        "affected": [
            {"by": "1 /d", "factor": 0.5, "state": "THROTTLE", "why": "less than 20 free", "topics": list("abcdef"),
             "topics_count": 1200},
        ],
    }  # fmt: skip
    text = (await browser.get("/console/storage")).text
    assert 'class="fill" width="88.00"' in text
    assert '<path class="soft-line" d="M80.00,0V8"/><path class="hard-line" d="M95.00,0V8"/>' in text
    assert "offline" in text
    assert "An operator pauses all producers until 2026-11-23T06:00:00Z, by alice: a disk." in text
    assert "less than 20 free" in text
    assert "and 1,195 more" in text
    assert "2.0 MB/s, hard limit in 2 h: <a" in text
    assert text.count("head-room short") == 1
    assert "not known yet" in text


async def test_what_the_api_refuses_is_said(browser: Browser) -> None:
    answer = await browser.get("/console/topics", by="size")
    assert answer.status == 422
    assert "query.by" in answer.text
    assert (await browser.get("/console/nothing")).status == 404
    assert (await browser.get("/console/topic")).status == 404
    assert (await browser.post("/console/history", {})).status == 405
    assert (await browser.get("/console/", {"host": "evil.example"})).status == 421
    assert (await browser.post("/console/topic", {"value": "1" * MAX_FORM}, topic="clicks")).status == 413


# --- changes ----------------------------------------------------------------------------------------------------------


async def test_a_change_is_looked_at_first_and_then_made(browser: Browser) -> None:
    seen = await browser.post("/console/topic", {"value": "6MB"}, {**OURS, "hx-request": "true"}, topic="clicks")
    assert seen.status == 200
    assert "<html" not in seen.text
    assert "5.0 MB/s → <strong>6.0 MB/s</strong>" in seen.text
    assert "the sum would be 6.0 MB/s of 12.0 MB/s" in seen.text
    whole = await browser.post("/console/topic", {"value": "6MB", "do": "preview"}, topic="clicks")
    assert seen.text.strip() in whole.text
    assert 'value="6MB"' in whole.text
    assert browser.policies.policies.version == 0
    made = await browser.post("/console/topic", {"value": "6MB", "until": "2h", "do": "apply"}, topic="clicks")
    assert (made.status, made.headers["location"]) == (303, "/console/topic?topic=clicks&saved=1")
    setting = browser.policies.policies.find_setting(PolicyKey.of_topic("clicks"))
    assert setting is not None
    assert setting.value == 6 * MB
    assert setting.end is not None
    assert setting.end.until_ms == NOW_MS + 7_200_000
    page = await browser.get(made.headers["location"])
    assert "policies are at version 1" in page.text
    removed = await browser.post("/console/topic", {"do": "remove"}, topic="clicks")
    assert removed.status == 303
    assert browser.policies.policies.topic_thresholds()["clicks"] == 5 * MB


async def test_what_topics_take_of_totals_is_shown_the_fullest_first(browser: Browser) -> None:
    base = {**BASE, PolicyKey.of_broker(2): 0.0, PolicyKey.of_broker(3): 5.0 * MB}
    browser.policies.policies = PolicySet(base)
    browser.policies.places = {1: {"clicks"}, 2: {"clicks"}, 3: {"clicks"}}
    text = (await browser.get("/console/topics")).text
    taken = [row.partition("</td>")[0] for row in text.split('data-label="Committed">')[1:]]
    assert [re.findall(r">([^<>]+)</span>", row) for row in taken] == [["42%"], ["over a limit of 0"], ["100%"]]
    seen = await browser.post("/console/topic", {"value": "4MB"}, topic="clicks")
    sums = seen.text[seen.text.index('<ul class="sums">') :]
    assert re.findall(r"broker (\d): the sum", sums) == ["2", "3", "1"]


@pytest.mark.parametrize(
    ("form", "what"),
    [
        ({"value": "23MB"}, "exceeds total.bytes.in.per.sec.threshold = 12,000,000 bytes/s by 11,000,000"),
        ({"value": "many"}, "is not a valid size; for example: 20MB"),
        ({"value": "6MB", "until": "soon"}, "neither a time nor a duration; for example: 2h"),
        ({"do": "remove"}, "is set in the configuration file"),
    ],
)
async def test_a_refused_change_says_what_would_be_right(browser: Browser, form: dict[str, str], what: str) -> None:
    answer = await browser.post("/console/topic", {"do": "apply", **form}, topic="clicks")
    assert answer.status == 422
    assert "Refused, nothing is changed." in answer.text
    assert what in answer.text.replace("&#39;", "'")
    assert browser.policies.policies.version == 0


async def test_totals_are_changed_of_all_brokers_or_of_one(browser: Browser) -> None:
    assert (await browser.post("/console/total", {"value": "20MB", "do": "apply"})).status == 303
    assert (await browser.post("/console/total", {"value": "8MB", "do": "apply"}, broker="2")).status == 303
    assert browser.policies.policies.broker_total() == 20 * MB
    assert browser.policies.policies.broker_totals() == {2: 8.0 * MB}
    assert "8.0 MB/s" in (await browser.get("/console/total", broker="2")).text


async def test_of_a_quota_only_what_differs_is_changed(browser: Browser) -> None:
    page = await browser.get("/console/quota", user="alice")
    form = dict(re.findall(r'name="(was\.[^"]+)" value="([^"]*)"', page.text))
    assert form == {"was.producer_byte_rate": "", "was.consumer_byte_rate": "", "was.producer_byte_rate.bps": "3MB"}
    form |= {name.removeprefix("was."): value for name, value in form.items()}
    same = await browser.post("/console/quota", {**form, "do": "apply"}, user="alice")
    assert (same.status, "nothing is different" in same.text) == (422, True)
    form["consumer_byte_rate"] = "2MB"
    assert (await browser.post("/console/quota", {**form, "do": "apply"}, user="alice")).status == 303
    values = browser.policies.policies.quota_store().entries[Entity("alice")]
    assert values == {QuotaKey.parse("producer_byte_rate.bps"): 3 * MB, QuotaKey.parse("consumer_byte_rate"): 2 * MB}
    form |= {"was.consumer_byte_rate": "2MB", "consumer_byte_rate": "-1"}
    refused = await browser.post("/console/quota", {**form, "do": "apply"}, user="alice")
    assert (refused.status, "Refused" in refused.text) == (422, True)
    default = await browser.post(
        "/console/quota",
        {"was.producer_byte_rate": "", "producer_byte_rate": "9MB", "do": "apply"},
        default_user="true",
    )
    assert default.status == 303
    assert default.headers["location"].startswith("/console/quota?default_user=true&")
    assert "9.0 MB/s" in (await browser.get("/console/quotas")).text


async def test_a_group_is_made_and_changed(browser: Browser) -> None:
    assert (
        await browser.post("/console/group", {"publishRateInBytes": "3MB", "do": "apply"}, group="new")
    ).status == 303
    assert browser.policies.policies.group_limits()["new"] == {"publishRateInBytes": 3 * MB}
    assert "5.0 MB/s" in (await browser.get("/console/groups")).text
    assert (await browser.post("/console/group", {"publishRateInBytes": "1MB"}, group="a/b")).status == 404


async def test_of_a_group_only_what_differs_is_changed(browser: Browser) -> None:
    """The form used to send all values again: one with an end lost it, and numbers came back with six digits."""
    group = PolicyKey.of_group("gold", "publishRateInBytes")._replace
    browser.policies.policies = browser.policies.policies.alter_policies(
        [
            PolicyOperation(group(), 9.0 * MB, NOW_MS + 7_200_000),
            PolicyOperation(group(key="publishRateInMsgs"), 1_234_567.0),
        ],
        now_ms=NOW_MS,
    )
    page = await browser.get("/console/group", group="gold")
    form = dict(re.findall(r'name="(was\.[^"]+)" value="([^"]*)"', page.text))
    assert form["was.publishRateInMsgs"] == "1234567"
    form |= {name.removeprefix("was."): value for name, value in form.items()}
    same = await browser.post("/console/group", {**form, "until": "2h", "do": "apply"}, group="gold")
    assert (same.status, "nothing is different" in same.text) == (422, True)
    form["dispatchRateInBytes"] = "7MB"
    assert (await browser.post("/console/group", {**form, "do": "apply"}, group="gold")).status == 303
    policies = browser.policies.policies
    assert policies.group_limits()["gold"] == {
        "publishRateInBytes": 9 * MB, "publishRateInMsgs": 1_234_567, "dispatchRateInBytes": 7 * MB,
    }  # fmt: skip
    assert [each.until_ms for each in policies.ends.values()] == [NOW_MS + 7_200_000]


async def test_values_that_differ_never_look_the_same(browser: Browser) -> None:
    part = {**OURS, "hx-request": "true"}
    seen = await browser.post("/console/topic", {"value": "5040000"}, part, topic="clicks")
    assert "5.0 MB/s → <strong>5,040,000 bytes/s</strong>" in seen.text
    for until in ("2h", ""):
        again = {"value": "5040000", "until": until, "do": "apply"}
        seen = await browser.post("/console/topic", {**again, "do": "preview"}, part, topic="clicks")
        assert ("without an end" in seen.text) == (not until)
        assert (await browser.post("/console/topic", again, topic="clicks")).status == 303
    assert "5,040,000 bytes/s" in (await browser.get("/console/history")).text
    assert "No such change is known." in (await browser.get("/console/history", kind="quota")).text


async def test_a_limit_below_a_byte_per_second_is_shown(browser: Browser) -> None:
    form = {"publishRateInBytes": "0.4"}
    seen = await browser.post("/console/group", form, {**OURS, "hx-request": "true"}, group="gold")
    assert (seen.status, "0.400 bytes/s</strong>" in seen.text) == (200, True)
    assert (await browser.post("/console/group", {**form, "do": "apply"}, group="gold")).status == 303
    page = await browser.get("/console/history")
    assert (page.status, "0.400 bytes/s" in page.text) == (200, True)


async def test_storage_protection_that_observes_or_holds_some_topics_is_not_said_to_lower_quotas(
    browser: Browser,
) -> None:
    factor, held = (
        StorageFactor(0.25, why="broker 1 /d"),
        (AffectedTopics("broker 1 /d", 0.25, "broker 1 /d", ("clicks",)),),
    )
    for snapshot, text in (
        (StorageSnapshot(factor), "(throttle) multiplies what producers may by 0.25: broker 1 /d"),
        (StorageSnapshot(factor, "observe"), "(throttle) only observes, and lowers nothing: broker 1 /d"),
        (StorageSnapshot(factor, affected=held), "(throttle) holds topics on full volumes, and lowers no quota:"),
    ):
        browser.told[StorageSnapshot] = snapshot
        assert text in (await browser.get("/console/quota", user="alice")).text
        overview = (await browser.get("/console/")).text
        assert ("factor 0.25, only observed" in overview) == (snapshot.mode == "observe")


async def test_a_group_is_attached_and_detached_and_deleted(browser: Browser) -> None:
    page = await browser.get("/console/group", group="gold")
    assert re.findall(r'scope="row"><bdi>([^<]*)</bdi>', page.text) == ["acme"]
    form = {"place": " acme/orders "}
    seen = await browser.post("/console/group", form, {**OURS, "hx-request": "true"}, group="gold")
    assert (seen.status, "<strong>gold</strong>" in seen.text) == (200, True)
    whole = await browser.post("/console/group", {**form, "do": "preview"}, group="gold")
    limits, _, places = whole.text.partition('id="outcome-place"')
    assert ("This would change" in limits, "This would change" in places) == (False, True)
    assert browser.policies.policies.namespace_groups() == {}
    done = await browser.post("/console/group", {**form, "do": "apply"}, group="gold")
    assert (done.status, done.headers["location"]) == (303, "/console/group?group=gold&saved=1")
    assert browser.policies.policies.namespace_groups() == {"acme/orders": "gold"}
    refused = await browser.post("/console/group", {"place": "a/b/c", "do": "apply"}, group="gold")
    assert (refused.status, "nothing is changed" in refused.text) == (422, True)
    assert (await browser.post("/console/group", {"place": "", "do": "apply"}, group="gold")).status == 422
    assert (await browser.post("/console/group", {**form, "do": "remove"}, group="gold")).status == 303
    assert browser.policies.policies.namespace_groups() == {}

    assert (await browser.post("/console/group", {"publishRateInMsgs": "5", "do": "apply"}, group="new")).status == 303
    assert (await browser.post("/console/group", {**form, "do": "apply"}, group="new")).status == 303
    used = await browser.post("/console/group", {"do": "remove"}, group="new")
    assert (used.status, "group new is in use by namespace acme/orders" in used.text) == (422, True)
    assert (await browser.post("/console/group", {**form, "do": "remove"}, group="new")).status == 303
    assert (await browser.post("/console/group", {"do": "remove"}, group="new")).status == 303
    assert set(browser.policies.policies.group_limits()) == {"gold"}


# --- who may ----------------------------------------------------------------------------------------------------------


async def test_a_page_that_names_people_asks_for_a_login_and_comes_back(browser: Browser) -> None:
    browser.lock()
    overview = await browser.get("/console/")
    assert (overview.status, 'href="/login?next=%2Fconsole%2F"' in overview.text) == (200, True)
    answer = await browser.get("/console/connections", muted="true")
    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2Fconsole%2Fconnections%3Fmuted%3Dtrue")
    client = await browser.get("/console/client", principal="User:alice", client_id="app")
    assert (client.status, "10.0.0.1" in client.text) == (200, False)
    part = await browser.get("/console/connections?muted=true", {"hx-request": "true"})  # of a session that has ended
    assert (part.status, part.headers["hx-redirect"]) == (401, answer.headers["location"])
    wrong = await browser.post("/login", {"token": "wrong-0123456789abcdef", "next": ""})
    assert (wrong.status, "the token is not valid" in wrong.text) == (401, True)
    done = await browser.log_in(AccessRole.VIEWER, "/console/connections?muted=true")
    assert (done.status, done.headers["location"]) == (303, "/console/connections?muted=true")
    page = await browser.get(done.headers["location"])
    assert (page.status, "10.0.0.1:5" in page.text, "Log out" in page.text) == (200, True, True)


@pytest.mark.parametrize("place", ["//evil.example", "/\\evil.example", "https://evil.example", "", "/a\r\nb: c"])
async def test_a_login_never_leads_elsewhere(browser: Browser, place: str) -> None:
    browser.lock()
    assert (await browser.log_in(AccessRole.VIEWER, place)).headers["location"] == "/console/"


async def test_who_may_not_change_anything_gets_no_form(browser: Browser) -> None:
    browser.lock()
    assert "Log in</a> as an operator or an admin" in (await browser.get("/console/topic", topic="clicks")).text
    await browser.log_in(AccessRole.VIEWER)
    page = await browser.get("/console/topic", topic="clicks")
    assert "Changes need the role operator or admin; viewer has viewer" in page.text
    form = {"value": "6MB", "do": "apply", "csrf_token": csrf(page)}
    assert (await browser.post("/console/topic", form, topic="clicks")).status == 403
    assert browser.policies.policies.version == 0


async def test_an_operator_s_change_ends_soon_and_an_admin_s_needn_t(browser: Browser) -> None:
    browser.lock()
    await browser.log_in(AccessRole.OPERATOR)
    page = await browser.get("/console/topic", topic="clicks")
    form = {"value": "6MB", "do": "apply", "csrf_token": csrf(page)}
    refused = await browser.post("/console/topic", form, topic="clicks")
    assert (refused.status, "with until, at most 7 days" in refused.text) == (422, True)
    assert (await browser.post("/console/topic", {**form, "until": "1d"}, topic="clicks")).status == 303
    assert browser.policies.sources[-1].who == "operator"
    await browser.log_in(AccessRole.ADMIN)
    form["csrf_token"] = csrf(await browser.get("/console/topic", topic="clicks"))
    assert (await browser.post("/console/topic", form, topic="clicks")).status == 303


async def test_a_session_ends_with_the_logout(browser: Browser) -> None:
    browser.lock()
    await browser.log_in(AccessRole.ADMIN)
    token = csrf(await browser.get("/console/"))
    before = browser.cookie
    answer = await browser.post("/logout", {"csrf_token": token})
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    browser.cookie = before
    assert (await browser.get("/console/history")).status == 303


def csrf(page: Answer) -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', page.text)
    assert found is not None
    return found[1]
