# PIP-82 (the seed), what it says about gateways that talk to each other: each test's name and docstring say what one
# sentence demands. What each of them then may take: tests/policies/test_seed_82.py.

from __future__ import annotations

import pytest

from gateway import config
from gateway.fleet import form
from gateway.fleet.exchange import SPEC
from gateway.fleet.peers import STALE_CYCLES
from gateway.fleet.reports import EVERY
from gateway.kafka import topic_names
from policies.fleet.keys import group_key
from policies.fleet.shares import Use
from tests.gateway.fleet_play import Reporter
from tests.gateway.test_fleet_reports import Fleet, Gateway, boot, listed, only, trio_of

UPSTREAM = "upstream: {bootstrap_servers: '127.0.0.1:9092'}\n"


def group(name: str, topics: int, messages: float, size: float) -> dict[str, Use]:
    """What a broker publishes to it."""
    return {
        group_key(name, "publish", "msgs"): Use(messages, topics=topics),
        group_key(name, "publish", "bytes"): Use(size, topics=topics),
    }


SEED_UPDATE = {
    **group("resource-group-1", 1, 100, 100_000),
    **group("resource-group-2", 1, 1000, 500_000),
    **group("resource-group-3", 1, 80_000, 9_999_999),
}
ONE = group_key("resource-group-1", "publish", "bytes")


# --- communications between brokers -----------------------------------------------------------------------------------


def test_each_broker_publishes_its_current_usage_as_an_absolute_number() -> None:
    """Not what changed: who missed an update is right again with the next one."""
    fleet, a, b, _ = trio_of()
    a.uses = {ONE: Use(1000.0)}
    fleet.cycle(2)
    a.uses = {ONE: Use(2000.0)}
    a.say()  # lost
    a.uses = {ONE: Use(4000.0)}
    [message] = a.say()
    fleet.deliver(message)
    assert b.knows(ONE)[0].rate == pytest.approx(4000, rel=0.003)


def test_only_groups_that_have_traffic_are_reported() -> None:
    reporter = Reporter("broker-1", boot(1))
    assert listed(only(reporter.say({**SEED_UPDATE, ONE: Use(0.0)}))) == {0, 1, 2}
    quiet = {key: use for key, use in SEED_UPDATE.items() if "group-1" not in key}
    assert listed(only(Reporter("broker-1", boot(1)).say(quiet))) == {0, 1}


def test_only_groups_whose_traffic_has_changed_significantly_are_reported() -> None:
    """E.g. by 10 %."""
    reporter = Reporter("broker-1", boot(1))
    reporter.say(SEED_UPDATE)
    assert listed(only(reporter.say(SEED_UPDATE))) == set()
    more = group("resource-group-2", 1, 1100, 550_000)
    assert listed(only(reporter.say({**SEED_UPDATE, **more}))) == {1}


def test_each_broker_reports_once_in_n_cycles_even_if_the_traffic_has_not_changed() -> None:
    """N may be configured. Here by the range of ids that are as last told."""
    assert config.parse(UPSTREAM).resource_usage_report_every == EVERY == 5
    for every in (EVERY, 2):
        reporter = Reporter("broker-1", boot(1), every=every)
        reporter.say(SEED_UPDATE)
        said = [form.unpack(only(reporter.say(SEED_UPDATE))).unchanged for _ in range(every)]
        assert {number for span in said for number in range(span.first, span.end)} == {0, 1, 2}


def test_others_keep_track_of_which_brokers_are_active_on_a_group() -> None:
    fleet, a, b, c = trio_of()
    a.uses, b.uses = SEED_UPDATE, {ONE: Use(5.0)}
    fleet.cycle(2)
    assert len(c.knows(ONE)) == 2
    assert len(c.knows(group_key("resource-group-2", "publish", "bytes"))) == 1
    assert len(a.knows(ONE)) == 1  # not itself


def test_the_update_is_a_protocol_buffers_message_with_broker_topics_messages_and_bytes() -> None:
    """broker: "broker-1.example.com", and of each group topics, publishedMsg, publishedBytes."""
    said = form.unpack(only(Reporter("broker-1.example.com", boot(1)).say(SEED_UPDATE)))
    assert said.broker == "broker-1.example.com"
    assert list(said.names.name) == ["gresource-group-1", "gresource-group-2", "gresource-group-3"]
    assert list(said.groups.topics) == [1, 1, 1]
    messages = [form.rate_of(code) for code in said.groups.published_msg.rate]
    assert messages == pytest.approx([100, 1000, 80_000], rel=0.003)
    sizes = [form.rate_of(code) for code in said.groups.published_bytes.rate]
    assert sizes == pytest.approx([100_000, 500_000, 9_999_999], rel=0.003)


def test_the_same_is_reported_of_dispatch() -> None:
    uses = {
        group_key("resource-group-1", "dispatch", "msgs"): Use(7.0),
        group_key("resource-group-1", "dispatch", "bytes"): Use(900.0),
    }
    said = form.unpack(only(Reporter("broker-1", boot(1)).say(uses)))
    assert [form.rate_of(code) for code in said.groups.dispatched_msg.rate] == pytest.approx([7], rel=0.003)
    assert [form.rate_of(code) for code in said.groups.dispatched_bytes.rate] == pytest.approx([900], rel=0.003)


def test_every_broker_receives_every_update_of_the_others() -> None:
    """Map<ResourceGroup, Map<BrokerName, Usage>>."""
    gateways = [Gateway(f"broker-{n}", n) for n in range(1, 4)]
    fleet = Fleet(*gateways)
    for rate, gateway in zip((10.0, 50.0, 30.0), gateways, strict=True):
        gateway.uses = {ONE: Use(rate)}
    fleet.cycle(2)
    for gateway, others in zip(gateways, ([30, 50], [10, 30], [10, 50]), strict=True):
        assert sorted(use.rate for use in gateway.knows(ONE)) == pytest.approx(others, rel=0.003)
        assert sorted(gateway.peers.gateways.values()) == [g.reporter.gateway for g in gateways if g is not gateway]


def test_data_losses_lead_to_undercounting_for_a_brief_amount_of_time_only() -> None:
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    a.uses = SEED_UPDATE
    a.say()  # lost, names and all
    fleet.cycle(1)
    assert b.knows(ONE) == []
    fleet.cycle(2)
    assert b.knows(ONE)[0].rate == pytest.approx(100_000, rel=0.003)


# --- clearing up stale broker entries ---------------------------------------------------------------------------------


def test_a_broker_that_publishes_a_usage_of_0_is_removed_from_the_map() -> None:
    fleet, a, b, _ = trio_of()
    a.uses = SEED_UPDATE
    fleet.cycle(2)
    a.uses = {key: Use(0.0) if key == ONE else use for key, use in SEED_UPDATE.items()}
    fleet.cycle()
    assert b.knows(ONE) == []
    assert len(b.knows(group_key("resource-group-1", "publish", "msgs"))) == 1


def test_a_broker_that_went_down_is_cleared_from_all_the_maps() -> None:
    """The seed asks ZooKeeper; here silence for two cycles says so, while our own messages come through."""
    fleet, a, b, _ = trio_of()
    a.uses = SEED_UPDATE
    fleet.cycle(2)
    fleet.gateways.remove(a)
    fleet.cycle(2)
    fleet.now += 0.1
    assert b.peers.expire(fleet.now) == [a.label]
    assert all(b.knows(key) == [] for key in SEED_UPDATE)


# --- avoidance of old messages ----------------------------------------------------------------------------------------


def test_stale_messages_are_discarded_by_their_publish_time() -> None:
    """As determined from the publish time in the metadata: the broker's, LogAppendTime."""
    assert SPEC.config["message.timestamp.type"] == "LogAppendTime"
    fleet, a, b, _ = trio_of()
    fleet.cycle(2)
    a.uses = SEED_UPDATE
    fleet.deliver(only(a.say()), fleet.cluster_ms - round(1000 * STALE_CYCLES) - 100)
    assert b.knows(ONE) == []
    assert b.peers.counts["stale"] == 1


# --- bandwidth --------------------------------------------------------------------------------------------------------


def test_names_are_published_only_when_there_is_a_change_and_usage_carries_ids() -> None:
    """The mapping of names to ids only when there is a change; the usage report carries the id."""
    fleet, a, b, _ = trio_of()
    a.uses = SEED_UPDATE
    fleet.cycle(2)
    a.uses = {key: use._replace(rate=use.rate * 2) for key, use in SEED_UPDATE.items()}
    said = form.unpack(only(a.say()))
    assert (list(said.names.name), list(said.groups.id)) == ([], [0, 1, 1])
    a.uses |= group("resource-group-4", 1, 1, 1)
    said = form.unpack(only(a.say()))
    assert (list(said.names.name), list(said.names.id)) == (["gresource-group-4"], [3])
    assert b.peers.living == 2


def test_reports_are_compressed() -> None:
    uses = {group_key(f"tenant/namespace-{n}", "publish", "bytes"): Use(float(n + 1)) for n in range(500)}
    message = only(Reporter("broker-1", boot(1)).say(uses))
    assert len(message) < len(form.unpack(message).SerializeToString()) / 3


# --- global configuration ---------------------------------------------------------------------------------------------


def test_the_settings_have_the_seed_s_names() -> None:
    """resourceUsagePublishTopicName, resourceUsagePublishToTopic, resourceUsagePublishIntervalInSecs."""
    defaults = config.parse(UPSTREAM)
    assert (defaults.usage_topic, defaults.publishes_usage, defaults.usage_interval) == (
        topic_names.RESOURCE_USAGE,
        True,
        1.0,
    )
    chosen = config.parse(
        UPSTREAM
        + "resourceUsagePublishTopicName: resource-usage\n"
        + "resourceUsagePublishToTopic: false\n"
        + "resourceUsagePublishIntervalInSecs: 60\n"
    )
    assert (chosen.usage_topic, chosen.publishes_usage, chosen.usage_interval) == ("resource-usage", False, 60.0)
    assert not chosen.exchanges
