# Addresses as text: IPv6 literals are in brackets wherever a port follows, and are read with and without.

from __future__ import annotations

import re
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from gateway import config
from gateway.channel import AcceptedConnection
from gateway.cli import main
from gateway.config import Listener
from gateway.control.cluster.listeners import BrokerListeners
from gateway.data.connecting.addresses import ArrivingConnection
from gateway.kafka.client import BrokerAddress
from gateway.listener_names import DEFAULT_LISTENER
from gateway.parent_link import ListenFailed
from gateway.supervisor import open_listener
from gateway.system.sockets import address_text, broker_text, host_of_peer, network_of_peer
from protocol.proxy_header import ConnectionEnds
from tests.gateway.control.contexts import SETTINGS, make_context

ROOT = Path(__file__).parents[3]
V6 = """\
upstream: {bootstrap_servers: "[::1]:9092"}
listener: {host: HOST, port: 19092, advertised_host: ADVERTISED, brokers: {7: {advertised_host: BROKER}}}
admin: {host: HOST, port: 9190}
"""


def v6(host: str = "'::1'") -> str:
    return re.sub("HOST|ADVERTISED|BROKER", host, V6)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1:5"),
        ("kafka.example", "kafka.example:5"),
        ("::1", "[::1]:5"),
        ("fe80::1%lo", "[fe80::1%lo]:5"),
    ],
)
def test_an_ipv6_literal_is_in_brackets_before_a_port(host: str, text: str) -> None:
    assert address_text(host, 5) == str(BrokerAddress(host, 5)) == text
    assert host_of_peer(text) == host_of_peer(f"{host}:5") == host
    assert network_of_peer(text) == network_of_peer(f"{host}:5")


@pytest.mark.parametrize("host", ["'::1'", "'[::1]'"])
def test_hosts_are_read_with_and_without_brackets(host: str) -> None:
    settings = config.parse_settings(v6(host))
    listener = settings.all_listeners[DEFAULT_LISTENER]
    assert (listener.host, settings.admin.host, settings.admin.url) == ("::1", "::1", "http://[::1]:9190")
    assert (listener.bootstrap_address, listener.broker_address(7)[0]) == (("::1", 19092), "::1")


def test_check_prints_addresses_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gw.yaml").write_text(v6().replace("}\nadmin", "}\nusage_log: {spool_dir: spool}\nadmin"))
    main(["check", str(tmp_path / "gw.yaml")])
    said = capsys.readouterr().out
    for text in (
        "[::1]:19092, listening on",
        "broker 7   [::1]:19100",
        "broker N   [::1]:19093+N",
        "http://[::1]:9190;",
    ):
        assert text in said
    assert not re.search(r"(?<![\[:])::1:\d", said)


def test_a_client_by_ipv6_is_passed_on_as_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        arriving = ArrivingConnection(AcceptedConnection(1, "[2001:db8::1]:5"), server)
        assert arriving.endpoints == ConnectionEnds(("2001:db8::1", 5), server.getsockname())
        assert arriving.address == "2001:db8::/64"


def test_the_log_prints_addresses_that_can_be_used() -> None:
    context = make_context(SETTINGS.model_copy(update={"listener": Listener(host="::1", port=19092)}))
    listeners = BrokerListeners(context, Mock())
    lines = listeners.describe_all("[::1]:9092", {})
    assert lines == ["bootstrap: [::1]:19092 -> [::1]:9092", "try: kcat -b [::1]:19092 -L"]


def test_a_port_that_is_taken_is_named_with_its_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ListenFailed, match=r"^127\.0\.0\.1:\d+: "):
            open_listener("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ListenFailed, match=r"^\[::1\]:70000: a port is at most 65535"):
        open_listener("::1", 70000)


def test_no_other_place_puts_host_and_port_together() -> None:
    """By hand it would be without brackets."""
    by_hand = re.compile(r"(host|address\[0\])\}:\{|\{\}:\{\}|%s:%d")
    left = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "gateway").rglob("*.py"))
        if path.relative_to(ROOT).parts[1] not in ("embedded", "demo")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if by_hand.search(line) and "def address_text" not in line and 'if ":" in host else f"{host}' not in line
    ]
    assert left == []


def test_a_bootstrap_server_is_no_broker_minus_one() -> None:
    assert broker_text(2, "kafka:9092") == "broker 2 (kafka:9092)"
    assert broker_text(-1, "kafka:9092") == "bootstrap server (kafka:9092)"
    assert broker_text(-1) == "bootstrap server"
