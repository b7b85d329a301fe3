# The what-if and the recommendation with a real gateway and real producers that are rejected and send again: what the
# policy in force would have done is what it did, and what is recommended the gateway takes. Without Spark, which
# test_whatif.py and test_recommend.py compare with this engine.
#
# Here as long as it takes for thresholds to close and open again; `python -m tests.integration.accounts.whatif_full`
# looks at each minute of five.

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import cli
from gateway import policy_document as document
from gateway.embedded import EmbeddedCluster, wait_for
from policies.definitions.policy_values import PolicyKey
from tests.integration.accounts.whatif_full import LIGHT_LOADS, POLICY, THRESHOLDS, TOTAL, offer_to
from tests.integration.gateways import Gateway, Outcomes, sums

SECONDS = 75.0
TOLERANCE = 0.02

pytestmark = pytest.mark.kafka


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The command in this process: what it prints."""

    def made(*args: str) -> str:
        capsys.readouterr()
        status = cli.main(list(args))
        out, err = capsys.readouterr()
        assert status == 0, err[-3000:]
        return out

    return made


def _bytes(found: Outcomes) -> int:
    return sum(each.bytes for rows in found.values() for each in rows.values())


def outcomes(answer: dict[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    """By topic and outcome: what really happened, and the difference."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in answer["rows"]:
        really, change = found.get((row["topic"], row["outcome"]), (0, 0))
        key = row["topic"], row["outcome"]
        found[key] = really + row["actual"]["bytes"], change + row["difference"]["bytes"]
    return found


def test_the_what_if_of_the_policy_in_force_and_a_recommendation_that_the_gateway_takes(
    kafka: EmbeddedCluster, tmp_path: Path, run: Callable[..., str]
) -> None:
    # A store of its own: what is applied below would hold for every gateway of this cluster, those of other tests too.
    store = {"policies_store": {"topic": "__policies-what-if"}}
    with Gateway(kafka.bootstrap_servers, {**POLICY, **store}) as gateway:
        offer_to(kafka, gateway, SECONDS, LIGHT_LOADS)
        wait_for("the spool to have everything", lambda: _bytes(sums(gateway.spooled())) == _bytes(gateway.counted()))

        wish = tmp_path / "wish.yaml"
        source = ("--engine", "local", "--spool", str(gateway.spool), "--quiet")
        asked = ("--total", "2MB", "--min", "100kB", "--window", "5s")
        wish.write_text(run("audit", "recommend", *asked, *source))
        recommended = document.parse_document(wish.read_text(), str(wish))
        run("policies", "apply", str(wish), "--url", gateway.admin)
        told = document.read_document(yaml.safe_load(run("policies", "export", "--url", gateway.admin)))
        assert recommended.items() <= told.items()
        assert recommended[PolicyKey.of_broker()] == 2e6
        assert sum(float(recommended[PolicyKey.of_topic(topic)]) for topic in THRESHOLDS) <= 2e6

        gateway.stop()
        policy = tmp_path / "gateway.yaml"
        policy.write_text(yaml.safe_dump({"upstream": {"bootstrap_servers": kafka.bootstrap_servers}, **POLICY}))
        same = outcomes(json.loads(run("audit", "what-if", str(policy), *source, "--format", "json")))

    rejected = {topic: really for (topic, outcome), (really, _) in same.items() if outcome == "rejected"}
    assert rejected.keys() >= {"whatif-clicks", "whatif-orders", "whatif-logs"}
    assert "whatif-calm" not in rejected
    # How much has been offered is the machine's affair: more than a second's worth in any case.
    assert sum(really for (_, outcome), (really, _) in same.items() if outcome == "accepted") > TOTAL
    wrong = {key: pair for key, pair in same.items() if abs(pair[1]) > TOLERANCE * pair[0]}
    assert wrong == {}, "really, and the difference"
