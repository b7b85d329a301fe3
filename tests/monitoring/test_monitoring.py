# The rules and the dashboard under deploy/: Prometheus takes them, alerts fire when they should, every metric and label
# in them is one that the gateway has, and each alert has its section in docs/alerts.md.

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.audit.stream.metrics import StreamMetrics
from gateway.channel import UsageInterval, UsageRow, WorkerRates
from gateway.control.metrics import FAMILIES, PREFIX, GatewayMetrics
from policies.thresholds.broker_limits import BrokerRate, TopicRate

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "produce-gateway.json"
CASES = Path(__file__).parent / "rules_test.yml"
ALERTS = [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
PROCESS = {f"{PREFIX}_control_process_{name}" for name in ("resident_memory_bytes", "cpu_seconds_total")}
SCRAPED = {"instance", "job"}  # labels that Prometheus adds


def exposed() -> dict[str, set[str]]:
    """Every name that a query may use, with its labels."""
    found = {name: set(SCRAPED) for name in PROCESS}
    for family in FAMILIES.values():
        labels = {*family.labels, *SCRAPED}
        if family.kind == "histogram":
            found |= {f"{family.exposed_name}_{part}": labels for part in ("sum", "count")}
            found[f"{family.exposed_name}_bucket"] = labels | {"le"}
        else:
            found[family.exposed_name] = labels
    for metric in StreamMetrics().registry.collect():
        found |= {sample.name: {*sample.labels, *SCRAPED} for sample in metric.samples}
    return found


EXPOSED = exposed()


def promtool(*args: str, text: str = "", accepted: int = 0) -> str:
    """What it prints. `text`: for its standard input; `accepted`: the code that it has to end with."""
    binary = shutil.which("promtool")
    if binary is None:
        reason = "no promtool on PATH (Debian, Ubuntu: the package prometheus)"
        (pytest.fail if os.environ.get("CI", "").lower() in ("true", "1") else pytest.skip)(reason)
    done = subprocess.run([binary, *args], input=text, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == accepted, done.stdout + done.stderr
    return done.stdout + done.stderr


def queries() -> Iterator[tuple[str, str]]:
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in BOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


QUERIES = list(queries())


def wrong_names(query: str) -> list[str]:
    """Metrics that there aren't, and labels that a metric of the query hasn't."""
    names = re.findall(rf"\b{PREFIX}_\w+", query)
    wrong = [name for name in names if name not in EXPOSED]
    for name, matchers in re.findall(rf"\b({PREFIX}_\w+)\{{([^}}]*)\}}", query):
        wrong += [label for label in re.findall(r"(\w+)\s*[=!]~?", matchers) if label not in EXPOSED.get(name, ())]
    labels = {label for name in names for label in EXPOSED.get(name, ())}
    for by in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query):
        wrong += [label for label in re.split(r"[,\s]+", by.strip()) if label and label not in labels]
    return wrong


def test_the_check_of_names_finds_wrong_ones() -> None:
    assert wrong_names('sum by (topik) (produce_gateway_nothing{a="b"})') == ["produce_gateway_nothing", "a", "topik"]
    assert wrong_names('produce_gateway_upstream_up{broker="1"}') == ["broker"]
    assert wrong_names('sum by (le) (produce_gateway_produce_request_seconds_bucket{le="1"})') == []


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[f"{where}-{i}" for i, (where, _) in enumerate(QUERIES)])
def test_every_metric_and_label_in_a_query_is_one_of_the_gateway(where: str, query: str) -> None:
    assert PREFIX in query or where == "ProduceGatewayDown"
    assert wrong_names(query) == []


def test_prometheus_takes_the_rules() -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", str(RULES))


def test_prometheus_reads_the_exposition() -> None:
    metrics = GatewayMetrics()
    metrics.produced.expect_effects(frozenset({("rejected", "topic-threshold"), ("delayed", "topic-threshold")}))
    names = 'a "b" \\ {c} 100 %\n', "naïve 🙂"
    rows = [UsageRow(1, name, name, name, "accepted", "", 1, 1, 1) for name in names]
    metrics.add_interval(UsageInterval("boot", 0, 0, 0, 1000, tuple(rows)))
    metrics.set_rates(
        WorkerRates((BrokerRate(1, 1.5, 0, 0, None, [TopicRate(name, 0.1, None, False) for name in names]),))
    )
    style = promtool("check", "metrics", text=b"".join(metrics.render_text()).decode(), accepted=3)  # of names alone
    assert style == "produce_gateway_fetch_delay_ms_total metric names should not contain abbreviated units\n"


def test_alerts_fire_when_they_should_and_not_before() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(CASES))


def test_every_alert_is_tested() -> None:
    cases = yaml.safe_load(CASES.read_text("utf-8"))["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    assert {check["alertname"] for check in checks if check.get("exp_alerts")} == {alert["alert"] for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_every_alert_says_how_urgent_it_is_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("page", "ticket", "info")
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["runbook"] == f"docs/alerts.md#{alert['alert'].lower()}"


def test_the_page_on_alerts_has_each_alert_once_and_no_other() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text("utf-8")
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == [alert["alert"] for alert in ALERTS]
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        assert "\n- " in section, section.partition("\n")[0]  # what to do


def test_prometheus_takes_every_query_of_the_dashboard(tmp_path: Path) -> None:
    asked = [expr for where, expr in QUERIES if not expr.startswith("label_values") and where]
    rules = [
        {"record": f"a:b{i}", "expr": expr.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for i, expr in enumerate(asked)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(file))


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"]), panel["title"]
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))  # no panel lies over another
    assert max(x for x, _ in cells) < 24
