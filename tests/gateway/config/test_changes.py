# What a changed configuration changes in a gateway that runs, and what waits for a restart.

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import ConfigChanges, Settings, compare_settings, parse_settings
from gateway.config.changes import is_live

UPSTREAM = "upstream: {bootstrap_servers: 'b:9092'}\n"
TWO = UPSTREAM + "listeners:\n  a: {port: 1000, advertised_host: %s}\n  b: {port: 2000, ssl.keystore.location: %s}\n"


def change(before: str, after: str) -> ConfigChanges:
    return compare_settings(parse_settings(UPSTREAM + before), parse_settings(UPSTREAM + after))


def test_the_same_file_changes_nothing() -> None:
    found = change("mode: observe", "# a comment\nmode:   observe")
    assert found == (parse_settings(UPSTREAM + "mode: observe"), (), (), ())


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("", "mode: observe", "mode"),
        ("", "thresholds: {total.bytes.in.per.sec.threshold: 1MB}", "thresholds.total.bytes.in.per.sec.threshold"),
        ("thresholds: {topics: {a: {bytes.in.per.sec.threshold: 1}}}", "", "thresholds.topics"),
        ("", "client_quotas: [{user: a, producer_byte_rate: 1}]", "client_quotas"),
        ("resource_groups: {groups: {g: {}}}", "resource_groups: {groups: {h: {}}}", "resource_groups"),
        ("", "limits: {max_connections: 1}", "limits.max_connections"),
        ("", "limits: {max_connection_age: 5m}", "limits.max_connection_age"),
        ("", "listener: {advertised_host: gw}", "listener.advertised_host"),
        ("", "listener: {ssl.keystore.location: a.pem}", "listener.ssl.keystore.location"),
        ("", "log: {levels: {gateway.policy: debug}}", "log.levels"),
        ("", "drain_timeout: 5s", "drain_timeout"),
        ("", "internal: {principals: ['User:a']}", "internal"),
    ],
)
def test_what_holds_at_once(before: str, after: str, key: str) -> None:
    found = change(before, after)
    assert (found.live, found.pending, found.problems) == ((key,), (), ())
    assert found.settings == parse_settings(UPSTREAM + after)


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("", "workers: 2", "workers"),
        ("", "listener: {port: 1000}", "listener.port"),
        ("", "admin: {port: 1000}", "admin.port"),
        ("", "log: {format: json}", "log.format"),
        ("", "limits: {max_client_metrics: 1}", "limits.max_client_metrics"),
        ("storage: {min.available.bytes: 1}", "storage: {min.available.bytes: 2}", "storage.min.available.bytes"),
        ("", "storage: {min.available.bytes: 2}", "storage"),
        ("", "thresholds: {source: x}", "thresholds.source"),
        ("admin: {ssl.keystore.location: a}", "admin: {ssl.keystore.location: b}", "admin.ssl.keystore.location"),
        ("listener: {brokers: {1: 1000}}", "listener: {brokers: {1: 1001}}", "listener.brokers.1.port"),
        ("", "listener: {brokers: {1: 1001}}", "listener.brokers.1"),
    ],
)
def test_what_takes_a_restart(before: str, after: str, key: str) -> None:
    found = change(before, after)
    assert (found.live, found.pending, found.problems) == ((), (key,), ())
    assert found.settings == parse_settings(UPSTREAM + before)


def test_a_port_with_tls_keeps_it_until_a_restart_and_changes_it_at_once() -> None:
    tls = "ssl.keystore.location: a.pem, ssl.truststore.location: ca.pem, ssl.client.auth: required"
    before = f"listener: {{advertised_host: gw, {tls}}}"
    found = change(before, "listener: {advertised_host: other}")
    assert found.live == ("listener.advertised_host",)
    assert found.pending == tuple(f"listener.{key.split(':')[0]}" for key in tls.split(", "))
    assert found.settings == parse_settings(UPSTREAM + before.replace("gw", "other"))
    found = change(before, "listener: {advertised_host: gw, ssl.keystore.location: b.pem}")
    assert (found.pending, len(found.live)) == ((), 3)


def test_properties_have_the_names_that_the_file_has() -> None:
    before = "upstream: {bootstrap_servers: 'b:1', sasl.password: secret}\n"
    after = "upstream: {bootstrap_servers: 'b:1', sasl.password: Geheim, socket.timeout.ms: 5}\n"
    found = compare_settings(parse_settings(before), parse_settings(after))
    assert found.pending == ("upstream.sasl.password", "upstream.socket.timeout.ms")
    assert "Geheim" not in str(found.pending)


def test_both_at_once() -> None:
    found = change("", "mode: observe\nworkers: 3\nlimits: {max_connections: 1, max_topic_metrics: 7}")
    assert found.live == ("mode", "limits.max_connections")
    assert found.pending == ("workers", "limits.max_topic_metrics")
    assert found.settings == parse_settings(UPSTREAM + "mode: observe\nlimits: {max_connections: 1}")


def test_of_several_listeners_addresses_and_certificates_hold_at_once_and_another_listener_does_not() -> None:
    found = compare_settings(
        parse_settings(TWO % ("x", "a.pem")), parse_settings(TWO % ("y", "b.pem") + "  c: {port: 3000}\n")
    )
    assert found.live == ("listeners.a.advertised_host", "listeners.b.ssl.keystore.location")
    assert found.pending == ("listeners.c",)
    assert found.settings == parse_settings(TWO % ("y", "b.pem"))


def test_what_holds_at_once_has_to_go_with_what_still_is() -> None:
    """A soft limit wants a produce limit: it is taken away here together with that, but only that can be at once."""
    total = "thresholds: {total.bytes.in.per.sec.threshold: 1MB}\n"
    before = total + "storage: {soft: {type: MinFreeBytes, level: 2}, hard: {type: MinFreeBytes, level: 1}}"
    found = change(before, "storage: {hard: {type: MinFreeBytes, level: 1}}")
    assert found.settings == parse_settings(UPSTREAM + before)
    assert found.pending == ("storage.soft",)
    (problem,) = found.problems
    assert problem.startswith("storage.soft: a soft limit has no effect where no produce limit exists")


def test_the_first_key_on_the_way_that_says_yes_or_no_decides() -> None:
    """Listeners and the admin server have the same keys for TLS, and the admin server takes over none of its keys."""
    assert is_live(("listeners", "a", "ssl.keystore.location"))
    assert not is_live(("admin", "ssl.keystore.location"))
    assert is_live(("resource_groups", "groups", "g", "publishRateInBytes"))
    assert not is_live(("upstream", "properties", "sasl.password"))
    assert not is_live(("no", "such", "key"))


def test_every_section_survives_the_way_to_json_and_back() -> None:
    text = (
        UPSTREAM
        + "listener: {brokers: {1: 1000}}\nstorage: {min.available.bytes: 1}\nresource_groups: {groups: {g: {}}}"
    )
    settings = parse_settings(text)
    as_json: Any = json.loads(settings.model_dump_json(by_alias=True))
    assert Settings.model_validate(as_json) == settings
