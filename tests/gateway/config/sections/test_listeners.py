# The sections `listener` and `listeners`: addresses of each, by port and by server name, and what is wrong with them.

from __future__ import annotations

import pytest

from gateway.channel import ListenerSettings
from gateway.cli import summarize_settings
from gateway.config import ConfigError, Listener, Settings, find_warnings, parse_settings
from gateway.control.workers.snapshots import worker_settings
from gateway.listener_names import DEFAULT_LISTENER
from gateway.tls.certificates import ListenerTls
from gateway.tls.server_names import ServerNames

UPSTREAM = "upstream: {bootstrap_servers: 'b:9092'}\n"
SNI = "sni: {bootstrap_address: kafka.example, advertised_broker_address_pattern: 'b$(node_id).kafka.example'}"
LISTENERS = """
listeners:
  internal:
    host: 0.0.0.0
    port: 9092
    advertised_host: gw.internal
    advertised_port: 19092
    advertised_broker_host_pattern: broker-$(node_id).gw.internal
    brokers: {5: 9555, 6: {advertised_host: six, advertised_port: 6666}, 7: {port: 9777, advertised_host: seven}}
  external:
    port: 19093
    ssl.keystore.location: x.pem
    sni: {bootstrap_address: Kafka.Example:9093, advertised_broker_address_pattern: b$(node_id).kafka.example.:443}
"""


def one(text: str) -> Listener:
    return parse_settings(UPSTREAM + f"listener: {{{text}}}").all_listeners[DEFAULT_LISTENER]


def test_each_listener_has_addresses_of_its_own() -> None:
    settings = parse_settings(UPSTREAM + LISTENERS)
    assert settings.listener is None
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)) == settings
    internal, external = settings.all_listeners.values()
    assert internal.bootstrap_address == ("gw.internal", 19092)
    assert [(n, internal.broker_port(n), *internal.broker_address(n)) for n in (0, 5, 6, 7)] == [
        (0, 9093, "broker-0.gw.internal", 19093),
        (5, 9555, "broker-5.gw.internal", 19555),
        (6, 9099, "six", 6666),
        (7, 9777, "seven", 19777),
    ]
    assert internal.server_names is None
    assert external.bootstrap_address == ("kafka.example", 9093)
    assert external.broker_address(12) == ("b12.kafka.example", 443)
    assert external.server_names == ServerNames("kafka.example", "b$(node_id).kafka.example")
    assert settings.gateway_name.endswith("-9092"), "the first one's port"
    assert worker_settings(settings, b"").listeners == {
        "internal": ListenerSettings(),
        "external": ListenerSettings(ListenerTls("x.pem"), external.server_names, external.advertised_hosts),
    }
    assert internal.advertised_hosts == (
        ("gw.internal", "advertised_host"),
        ("broker-$(node_id).gw.internal", "advertised_broker_host_pattern"),
        ("six", "brokers.6.advertised_host"),
        ("seven", "brokers.7.advertised_host"),
    )
    assert external.advertised_hosts == (
        ("kafka.example", "sni.bootstrap_address"),
        ("b$(node_id).kafka.example", "sni.advertised_broker_address_pattern"),
    )


def test_addresses_without_a_port_have_the_listeners_own() -> None:
    listener = one(f"port: 9093, ssl.keystore.location: x, {SNI}")
    assert (listener.bootstrap_address, listener.broker_address(3)) == (
        ("kafka.example", 9093),
        ("b3.kafka.example", 9093),
    )


def test_with_server_names_any_host_may_be_bound() -> None:
    assert one(f"host: 0.0.0.0, ssl.keystore.location: x, {SNI}").bootstrap_address == ("kafka.example", 19092)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (
            "listener: {port: 5000, brokers: {1: x}}",
            ":2: listener.brokers.1.port: a whole number is needed here, not 'x'",
        ),
        ("listener: {port: 5000, brokers: [1]}", ":2: listener.brokers: keys with values are needed here"),
        ("listener: {brokers: {1: {prot: 1}}}", "listener.brokers.1.prot: unknown key; did you mean port?"),
        (
            "listener: {port: 5000, brokers: {3: {advertised_port: 1}, 7: 5004}}",
            "listener: brokers.7: port 5004 is taken by broker 3",
        ),
        (
            "listener: {advertised_broker_host_pattern: broker.example}",
            "pattern: broker.example is not a valid host name with $(node_id) in it: write"
            " broker-$(node_id).kafka.example",
        ),
        (
            "listener:\n  port: 5000\nlisteners: {a: {port: 6000}}",
            ":4: listeners: there is a section listener as well: move it in here, under a name",
        ),
        ("listeners: {default: {}}", "listeners.default: 'default' can't be a listener's name: letters"),
        ("listeners: {'a b': {}}", "listeners.a b: 'a b' can't be a listener's name: letters"),
        ("listeners:\n  a: {prot: 1}", ":3: listeners.a.prot: unknown key; did you mean port?"),
        ("listeners:\n  a: 5000", ":3: listeners.a: keys with values are needed here, not a number"),
        (
            "listeners:\n  a: {port: 5000, brokers: {1: 6000}}\n  b: {port: 6000}",
            ":4: listeners.b.port: 6000, of the bootstrap listener, is taken by broker 1 in listeners.a: choose",
        ),
        (
            "listeners: {a: {port: 5000}, b: {port: 5000, host: 0.0.0.0, advertised_host: x}}",
            "listeners.b.port: 5000, of the bootstrap listener, is taken by the bootstrap listener in listeners.a",
        ),
        (
            "listeners: {a: {port: 5000}}\nadmin: {port: 5000}",
            ":3: admin.port: 5000 is a port of listener a as well: choose another one",
        ),
        (
            "listeners:\n  a:\n    " + SNI,
            ":4: listeners.a: sni: clients send a server name only with TLS: write ssl.keystore.location: server.pem,"
            " with a certificate for kafka.example and b0.kafka.example",
        ),
        (
            "listener: {ssl.keystore.location: x, sni: {bootstrap_address: kafka.example}}",
            "listener.sni.advertised_broker_address_pattern: is required",
        ),
    ],
)
def test_a_mistake_is_told_with_place_and_remedy(text: str, finding: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(UPSTREAM + text, "gw.yaml")
    assert any(finding in line for line in caught.value.lines), caught.value.lines


@pytest.mark.parametrize(
    "text",
    [
        "advertised_host: gw",
        "advertised_port: 1",
        "advertised_broker_host_pattern: b$(node_id)",
        "brokers: {1: 2}",
    ],
)
def test_keys_of_ports_have_no_place_beside_server_names(text: str) -> None:
    key = text.partition(":")[0]
    with pytest.raises(ConfigError, match=f"listener: {key}: has no effect with sni, where all brokers have one port"):
        one(f"ssl.keystore.location: x, {text}, {SNI}")


@pytest.mark.parametrize(
    ("right", "wrong", "finding"),
    [
        ("$(node_id)", "{nodeId}", "advertised_broker_address_pattern: write $(node_id) in place of the node id"),
        ("$(node_id)", "$(nodeId)", "advertised_broker_address_pattern: write $(node_id) in place of the node id"),
        ("$(node_id)", "", "advertised_broker_address_pattern: b.kafka.example must have $(node_id) once"),
        ("example'", "example:9$(node_id)'", "advertised_broker_address_pattern: all brokers have one port"),
        ("b$", "b_ $", "advertised_broker_address_pattern: b_ 2147483647.kafka.example is not a valid host name"),
        ("s: kafka.example", "s: 'kafka.example:x'", "bootstrap_address: kafka.example:x has no port from 1 to 65535"),
        ("s: kafka.example", "s: 'kafka.example:0'", "bootstrap_address: kafka.example:0 has no port from 1 to 65535"),
        ("s: kafka.example", "s: 10.0.0.1", "bootstrap_address: 10.0.0.1 is not a valid host name"),
        ("s: kafka.example", "s: b7.kafka.example", "advertised_broker_address_pattern: the bootstrap's name b7.kafka"),
    ],
)
def test_server_names_that_can_not_be_are_refused(right: str, wrong: str, finding: str) -> None:
    with pytest.raises(ConfigError) as caught:
        one(f"ssl.keystore.location: x, {SNI.replace(right, wrong, 1)}")
    (line,) = caught.value.lines
    assert f"listener.sni: {finding}" in line


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("listener: {port: 5000}\nadmin: {port: 5010}", "admin.port: 5010 is the port that broker 9 would have by"),
        ("listener: {port: 5000}\nadmin: {port: 5011}", ""),
        ("listener: {port: 5000}\nadmin: {port: 5005, host: 127.0.0.2}", ""),
        ("listener: {port: 5000, brokers: {9: 6000}}\nadmin: {port: 5010}", ""),
        ("listeners: {a: {port: 5000}, b: {port: 5003}}", "listeners.b.port: 5003 is the port that broker 2 would"),
        (f"listeners: {{a: {{port: 5000, ssl.keystore.location: x, {SNI}}}, b: {{port: 5003}}}}", ""),
    ],
)
def test_a_port_that_a_broker_is_likely_to_need_is_warned_of(text: str, warned: str) -> None:
    found = [line for line in find_warnings(parse_settings(UPSTREAM + text)) if "would be withheld" in line]
    assert [warned in line for line in found] == [True] * bool(warned)


def test_the_summary_of_check_has_every_listener() -> None:
    lines = [line.split(maxsplit=1) for line in summarize_settings(parse_settings(UPSTREAM + LISTENERS))]
    at = {text: i for i, (key, text) in enumerate(lines) if key == "listener"}
    assert [text for _, text in lines[at["internal"] + 1 : at["external"]]] == [
        "gw.internal:19092, listening on 0.0.0.0:9092",
        "0   broker-0.gw.internal:19093",
        "1   broker-1.gw.internal:19094",
        "2   broker-2.gw.internal:19095",
        "5   broker-5.gw.internal:19555",
        "6   six:6666",
        "7   seven:19777",
        "N   broker-$(node_id).gw.internal:19093+N, up to N = 46442",
        "none: plain TCP",
    ]
    assert [text for _, text in lines[at["external"] + 1 : at["external"] + 7]] == [
        "kafka.example:9093, listening on 127.0.0.1:19093",
        "0   b0.kafka.example:443",
        "1   b1.kafka.example:443",
        "2   b2.kafka.example:443",
        "N   on the same port, by the server name in the TLS handshake (SNI)",
        "TLSv1.2 and TLSv1.3, certificate x.pem; client certificates not asked for",
    ]
