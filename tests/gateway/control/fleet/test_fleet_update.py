# The updates that gateways send each other, as PIP-82 has them; its sentences are in docs/seeds.md.

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from gateway import config
from gateway.control import app
from gateway.control.outside import Outside
from gateway.kafka import topic_names
from gateway.parent_link import NO_ORIGIN, NOTHING_KEPT
from policies.fleet.keys import group_key
from policies.fleet.shares import LimitDemand
from tests.gateway.control.fleet.exchange.test_fleet_reports import boot, trio_of
from tests.gateway.control.fleet.fleet_play import Reporter

UPSTREAM = "upstream: {bootstrap_servers: '127.0.0.1:9092'}\n"


def group(name: str, topics: int, messages: float, size: float) -> dict[str, LimitDemand]:
    """The message that a broker publishes."""
    return {
        group_key(name, "publish", "msgs"): LimitDemand(messages, topics=topics),
        group_key(name, "publish", "bytes"): LimitDemand(size, topics=topics),
    }


SEED_UPDATE = {
    **group("resource-group-1", 1, 100, 100_000),
    **group("resource-group-2", 1, 1000, 500_000),
    **group("resource-group-3", 1, 80_000, 9_999_999),
}
ONE = group_key("resource-group-1", "publish", "bytes")


# --- communications between brokers -----------------------------------------------------------------------------------


@pytest.mark.seed("82.17")
def test_each_broker_publishes_its_current_usage_as_an_absolute_number() -> None:
    """The whole value, not the change: a broker that missed an update is right again after the next one."""
    fleet, a, b, _ = trio_of()
    a.uses = {ONE: LimitDemand(1000.0)}
    fleet.cycle(2)
    a.uses = {ONE: LimitDemand(2000.0)}
    a.say()  # lost
    a.uses = {ONE: LimitDemand(4000.0)}
    [message] = a.say()
    fleet.deliver(message)
    assert b.knows(ONE)[0].rate == pytest.approx(4000, rel=0.003)


# --- bandwidth --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("82.39")
def test_usage_carries_a_number_instead_of_a_name() -> None:
    """The number follows from the name, so no mapping is published, nor can one be lost."""
    [message] = Reporter("broker-1", boot(1)).say(SEED_UPDATE)
    assert b"resource-group" not in message
    assert len(message) < 250


# --- global configuration ---------------------------------------------------------------------------------------------


@pytest.mark.seed("82.40")
def test_the_settings_have_the_seed_s_names() -> None:
    defaults = config.parse_settings(UPSTREAM)
    assert (defaults.usage_topic, defaults.publishes_usage, defaults.usage_interval) == (
        topic_names.RESOURCE_USAGE,
        True,
        1.0,
    )
    chosen = config.parse_settings(
        UPSTREAM
        + "resourceUsagePublishTopicName: resource-usage\n"
        + "resourceUsagePublishToTopic: false\n"
        + "resourceUsagePublishIntervalInSecs: 60\n"
    )
    assert (chosen.usage_topic, chosen.publishes_usage, chosen.usage_interval) == ("resource-usage", False, 60.0)
    assert not chosen.exchanges_usage


@pytest.mark.seed("82.40")
@pytest.mark.parametrize(
    ("given", "exchange"),
    [
        ("", (topic_names.RESOURCE_USAGE, 1.0)),
        ("resourceUsagePublishTopicName: usage\nresourceUsagePublishIntervalInSecs: 60\n", ("usage", 60.0)),
        ("resourceUsagePublishToTopic: false\n", None),
    ],
    ids=["defaults", "other values", "off"],
)
def test_control_publishes_as_the_settings_say(tmp_path: Path, given: str, exchange: tuple[str, float] | None) -> None:
    settings = config.parse_settings(f"{UPSTREAM}usage_log: {{spool_dir: {tmp_path}}}\n{given}")
    control = app._ControlProcess(
        settings,
        Mock(origin=NO_ORIGIN, kept=NOTHING_KEPT),
        Outside().make_components(settings),
        lambda settings: None,
    )
    made = control._fleet.exchange
    assert exchange == (None if made is None else (made._topic.name, made._cycle_s))
    assert made is None or exchange == (made.writer._topic, made._reporter.cycle_s)
