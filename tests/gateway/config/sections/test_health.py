# The section `health`: the address of the health port, and what it may not be.

from __future__ import annotations

import pytest

from gateway import config

UPSTREAM = "upstream: {bootstrap_servers: broker:9092}\n"


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("", ("127.0.0.1", 9295), "http://127.0.0.1:9295"),
        ("admin: {port: 9000}", ("127.0.0.1", 9105), "http://127.0.0.1:9105"),
        ("admin: {host: 0.0.0.0, open: true}", ("0.0.0.0", 9295), "http://127.0.0.1:9295"),
        ("admin: {host: 0.0.0.0, open: true}\nhealth: {host: '::1', port: 80}", ("::1", 80), "http://[::1]:80"),
        ("admin: {ssl.keystore.location: server.pem}", ("127.0.0.1", 9295), "http://127.0.0.1:9295"),
        ("health:", ("127.0.0.1", 9295), "http://127.0.0.1:9295"),
    ],
)
def test_it_is_beside_the_admin_server_unless_it_is_given(text: str, address: tuple[str, int], url: str) -> None:
    settings = config.parse_settings(UPSTREAM + text)
    assert (settings.health_address, settings.health_url) == (address, url)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("health: {port: 9190}", 2, "9190 is admin.port as well: choose another one"),
        ("health: {port: 19092}", 2, "19092 is a port of the listener as well: choose another one"),
        ("admin: {port: 65500}", 1, "without it the port would be 65605, which is beyond 65535: write one"),
        ("listener: {port: 9295}", 1, "9295 is a port of the listener as well: choose another one"),
    ],
)
def test_a_port_that_is_taken_is_refused(text: str, line: int, why: str) -> None:
    with pytest.raises(config.ConfigError) as error:
        config.parse_settings(UPSTREAM + text)
    assert error.value.lines == [f"configuration:{line}: health.port: {why}"]


def test_addresses_that_do_not_meet_may_have_one_port() -> None:
    assert config.parse_settings(UPSTREAM + "health: {host: 127.0.0.2, port: 9190}").health_address == (
        "127.0.0.2",
        9190,
    )


def test_a_port_that_a_broker_would_have_is_warned_of() -> None:
    found = config.find_warnings(config.parse_settings(UPSTREAM + "health: {port: 19094}"))
    assert any(line.startswith("health.port: 19094 is the port that broker 1 would have") for line in found)
