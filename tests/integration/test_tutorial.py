# docs/tutorial.md as a newcomer follows it: its configuration, its producer, its commands, on a real Kafka. Addresses
# are free ones, and the producer runs for seconds in place of minutes; the rest stands there as it is run here.

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from gateway import cli
from gateway.commands import kafka_quotas
from gateway.embedded import EmbeddedCluster, wait_for
from tests.integration.gateways import Gateway

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SECONDS = 4


def block(kind: str, word: str) -> str:
    (found,) = (text for name, text in BLOCKS if name == kind and word in text)
    return str(found)


def command(start: str) -> list[str]:
    """The words behind the program's name of the page's only line that begins so."""
    (line,) = (line for _, text in BLOCKS for line in text.splitlines() if line.startswith(start))
    return shlex.split(line, comments=True)[1:]


def asked(capsys: pytest.CaptureFixture[str], words: list[str], url: str) -> dict[str, Any]:
    assert cli.main([*words, "--url", url, "-o", "json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


@pytest.mark.kafka
def test_a_newcomer_sees_a_client_held_its_reason_and_the_limit_raised(
    kafka: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = yaml.safe_load(block("yaml", "upstream:"))
    address = settings.pop("upstream")["bootstrap_servers"]
    port = settings.pop("listener")["port"]
    assert address in PAGE.partition("## 2")[2]
    topic = f"clicks-{tmp_path.name}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(120)
    own = {"policies_store": {"topic": f"__policies_{tmp_path.name}"}}  # tests share a cluster
    with Gateway(kafka.bootstrap_servers, {**settings, **own}) as gateway:
        script = block("python", "Producer(").replace(f"127.0.0.1:{port}", gateway.bootstrap)
        assert gateway.bootstrap in script
        script = script.replace('"clicks"', f'"{topic}"').replace("< 120", f"< {SECONDS}")
        assert f"< {SECONDS}" in script
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr

        def held() -> list[Any]:
            clients = asked(capsys, command("produce-gateway clients"), gateway.admin)["clients"]
            return [each for each in clients if each["client_id"] == "tutorial" and each["held"]]

        wait_for("it to be held", lambda: len(held()) == 1)
        assert "quota" in held()[0]["held"]["reason"]
        asked(capsys, command("produce-gateway connections"), gateway.admin)
        words = [topic if word == "clicks" else word for word in command("produce-gateway explain")]
        first = next(rule for rule in asked(capsys, words, gateway.admin)["rules"] if rule["first"])
        assert first["limit"] == 200_000.0, first
        assert "tutorial" in first["text"]
        alter = [gateway.bootstrap if word == f"127.0.0.1:{port}" else word for word in command("kafka-quotas")]
        assert kafka_quotas.main(alter) == 0
        capsys.readouterr()
        # Of this rule only: the topic's share of the total is 200 kB/s as well where other tests have left 19 topics.
        rules = asked(capsys, words, gateway.admin)["rules"]
        raised = [rule["limit"] for rule in rules if rule["name"] == first["name"]]
        assert raised == [1_000_000.0]
        changes = asked(capsys, ["history"], gateway.admin)["changes"]
        assert [(change["old"], change["new"]) for change in changes] == [(200_000.0, 1_000_000.0)]
        gateway.stop()
        steps = ("produce-gateway audit --spool", "produce-gateway audit report")
        spool = str(gateway.spool)
        audit, report = ([spool if word == "./spool" else word for word in command(step)] for step in steps)
        assert cli.main(audit) == 0
        assert re.search(rf"^{topic} +tutorial +[1-9]", capsys.readouterr().out, re.MULTILINE)
        report[-1] = str(tmp_path / report[-1])
        assert cli.main([*report, "--quiet"]) == 0
        assert "tutorial" in Path(report[-1]).read_text("utf-8")
