# docs/config-mistakes.md: `check` says of each of its rows, and of OTHERS, what stands there, no more and no less.

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gateway import cli

PAGE = (Path(__file__).parents[4] / "docs" / "config-mistakes.md").read_text("utf-8")
BASE = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0].splitlines()
ROWS = [
    (written, said.replace("`<br>`", "\n"))
    for written, said in re.findall(r"^\| `(.*?)` \| `(.*)` \|$", PAGE, re.MULTILINE)
]
# Further ones, of what `check` looks into beyond the configuration itself, and of where a finding belongs.
OTHERS = [
    (
        'gateway_id: "gw',
        "gw.yaml:3: a quotation mark is opened here and never closed",
    ),
    (
        "thresholds: {total.bytes.in.per.sec.threshold: 10MB, topics: {a: {bytes.in.per.sec.threshold: 6MB}, b: "
        "{bytes.in.per.sec.threshold: 6MB}}}",
        "gw.yaml:3: warning: thresholds: the topics' bytes.in.per.sec.threshold sum up to 12,000,000 bytes/s, "
        "which exceeds total.bytes.in.per.sec.threshold = 10,000,000 bytes/s by 2,000,000 bytes/s: lower some of "
        "them, or raise the total to at least 12,000,000 bytes/s, unless no broker has all of these topics",
    ),
    (
        "listener: {host: 127.0.0.1, port: 19092, ssl.keystore.location: /nowhere.pem, ssl.client.auth: required}",
        "gw.yaml:2: listener: ssl.client.auth: required needs the CAs to trust: write "
        "ssl.truststore.location: clients-ca.pem\ngw.yaml:2: listener.ssl.keystore.location: /nowhere.pem can't "
        "be read: No such file or directory",
    ),
    (
        'upstream: {bootstrap_servers: "127.0.0.1:9092"}, mode: observe',
        "gw.yaml:1: expected <block end>, but found ','",
    ),
    (
        "listener: {host: 127.0.0.1, port: 19092, brokers: {5: 19094}}",
        "gw.yaml:2: warning: listener.brokers.5: 19094 is the port that broker 1 would have by listener.port: "
        "that broker would be withheld from clients",
    ),
    (
        "client_quotas: [{user: a, producer_byte_rate: lots}, {user: b}]",
        "gw.yaml:3: client_quotas.0.producer_byte_rate: 'lots' is not a valid size; for example: 20MB (20 * "
        "10^6), 20MiB (20 * 2^20) or 20000000\ngw.yaml:3: client_quotas.1: {user=b} has no quota: write for "
        "example producer_byte_rate: 1MB",
    ),
    (
        "storage: {source: prometeus, min.available.bytes: 1GB}",
        "gw.yaml:3: storage: produce_gateway.volume_sources prometeus: unknown; did you mean prometheus? known: "
        "log-dirs, prometheus, snapshots",
    ),
    (
        "limits: {max_connections: many, max_hold: }",
        "gw.yaml:3: limits.max_connections: a whole number is needed here, not 'many'\n"
        "gw.yaml:3: limits.max_hold: a number is needed here, not an empty value",
    ),
    ("admin: {open: perhaps}", "gw.yaml:3: admin.open: true or false is needed here, not 'perhaps'"),
    (
        "admin: {host: 0.0.0.0, tokens: [short]}",
        "gw.yaml:3: admin.tokens.0: a token has 16 to 4096 characters, not 5: produce-gateway token create --name NAME "
        "--role ROLE makes one",
    ),
    ("gateway_id: 5", "gw.yaml:3: gateway_id: text is needed here, not 5: put it in quotes"),
    (
        "thresholds: {topics: {clicks: 5MB}}",
        "gw.yaml:3: thresholds.topics.clicks: keys with values are needed here, not text; known here: "
        "bytes.in.per.sec.threshold",
    ),
    (
        "storage: {soft: 5GB, hard: {type: MinFreeBytes, level: 1GB}}",
        "gw.yaml:3: storage.soft: keys with values, or a list of such, are needed here, not text; known here: level, "
        "type",
    ),
    (
        "admin: {token_file: /nowhere}",
        "gw.yaml:3: admin.token_file: /nowhere: No such file or directory",
    ),
    (
        "storage: {factor_source: mine}",
        "gw.yaml:3: storage: produce_gateway.factor_sources mine: no installed package registers anything there "
        "(see docs/plugins.md)",
    ),
]


def configuration(line: str) -> str:
    """With this line in place of the one with the same key, else behind them."""
    key = line.partition(":")[0]
    lines = [line if each.startswith(f"{key}:") else each for each in BASE]
    return "\n".join(lines if line in lines else [*lines, line]) + "\n"


def test_the_page_s_rows_are_found_and_what_they_are_added_to_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(ROWS) == sum(line.startswith("| `") for line in PAGE.splitlines())
    assert len(ROWS) >= 12
    monkeypatch.chdir(tmp_path)
    Path("gw.yaml").write_text("\n".join(BASE), "utf-8")
    assert cli.main(["check", "--strict", "gw.yaml"]) == 0


@pytest.mark.parametrize(("written", "said"), ROWS + OTHERS, ids=[written for written, _ in ROWS + OTHERS])
def test_a_mistake_is_answered_as_it_stands_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    written: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PRODUCE_GATEWAY_")]:
        monkeypatch.delenv(name)
    Path("gw.yaml").write_text(configuration(written), "utf-8")
    expected = said.splitlines()
    assert cli.main(["check", "--strict", "gw.yaml"]) == 1
    assert capsys.readouterr().err.splitlines() == expected
    assert cli.main(["check", "gw.yaml"]) == (0 if all(": warning: " in line for line in expected) else 1)
