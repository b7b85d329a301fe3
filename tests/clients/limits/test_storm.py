# The table's own numbers, and that each mode is a configuration. No broker, no client.

from __future__ import annotations

import pytest
import yaml

from gateway.config import parse_settings
from tests.clients.limits.storm import QUOTA, ROWS, Run, p99, settings


def test_records_are_late_by_what_was_acknowledged_before_them() -> None:
    assert p99([[10] * 60], 10.0) == 1, "at once: in the second in which it was due"
    assert p99([[10] * 60], 20.0) == 30, "half as fast as they were due"
    assert p99([[10] * 60, []], 20.0) == 30
    assert p99([[]], 10.0) == 0


@pytest.mark.parametrize("mode", ["quota", "group", "threshold"])
def test_each_row_has_a_limit_of_its_own_which_its_clients_share(mode: str) -> None:
    runs = [Run(row, False, number) for row in ROWS for number in range(2)]
    given = settings(mode, runs, "mark")
    config = parse_settings(yaml.safe_dump({"upstream": {"bootstrap_servers": "127.0.0.1:9092"}, **given}))
    if mode == "quota":
        assert len(config.client_quotas) == len(ROWS)
    elif mode == "group":
        assert len(config.resource_groups.groups) == len(ROWS)
    else:
        topics = [config.thresholds.topics[run.topic("mark")] for run in runs]
        assert sum(topic.threshold for topic in topics) == QUOTA * len(ROWS)
