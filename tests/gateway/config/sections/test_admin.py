# The section `admin`: who may reach the port, and with what.

from __future__ import annotations

import pytest

from gateway import config
from gateway.control.metrics.certificates import CertificateLocation, certificate_locations


def warnings_of(admin: str) -> list[str]:
    text = f"upstream: {{bootstrap_servers: broker:9092}}\nadmin: {admin}\n"
    return [each for each in config.find_warnings(config.parse_settings(text)) if each.startswith("admin.")]


@pytest.mark.parametrize("host", ["0.0.0.0", "'::'", "''", "10.0.0.7", "gw.example"])
def test_a_port_for_others_without_tokens_is_refused_unless_that_is_meant(host: str) -> None:
    with pytest.raises(config.ConfigError, match="write token_file: FILE, tokens, or open: true if that is meant"):
        warnings_of(f"{{host: {host}}}")
    assert [each.partition(":")[0] for each in warnings_of(f"{{host: {host}, open: true}}")] == ["admin.open"]
    for more in ("tokens: [0123456789abcdef]", "token_file: t"):
        (said,) = warnings_of(f"{{host: {host}, {more}}}")
        assert said.startswith("admin.ssl.keystore.location: tokens come over the network in plain text")
        assert warnings_of(f"{{host: {host}, {more}, ssl.keystore.location: server.pem}}") == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.9", "'::1'"])
def test_a_port_for_this_machine_needs_no_token(host: str) -> None:
    assert warnings_of(f"{{host: {host}}}") == []


def test_a_token_that_can_not_be_is_refused_with_its_place_and_not_shown() -> None:
    with pytest.raises(config.ConfigError) as error:
        warnings_of("{tokens: [0123456789abcdef, hunter2]}")
    assert error.value.lines == [
        "configuration:2: admin.tokens.1: a token has 16 to 4096 characters, not 7: produce-gateway token create --name"
        " NAME --role ROLE makes one"
    ]


TLS = "ssl.keystore.location: s.pem, ssl.truststore.location: ca.pem, ssl.client.auth: requested"


@pytest.mark.parametrize(
    ("admin", "said"),
    [
        ("principals: {User:anna: admin}", "admin: principals: clients are asked for no certificate: write ssl.client"),
        (f"{TLS}, principals: {{anna: admin}}", "admin.principals.anna: 'anna' is not a valid principal"),
        (f"{TLS}, principals: {{User:anna: root}}", "admin.principals.User:anna: should be 'viewer', 'operator' or"),
        (f"{TLS}, principals: {{User:ANONYMOUS: viewer}}", "admin: principals.User:ANONYMOUS: every client without"),
        ("anonymous: none", "admin: anonymous: none would need credentials, and there are none: write token_"),
        ("metrics: viewer", "admin: metrics: viewer would need credentials, and there are none: write token_"),
        ("anonymous: admin, token_file: t", "admin.anonymous: should be 'viewer' or 'none'"),
        ("ssl.client.auth: required", "admin: ssl.client.auth: has no effect without a certificate: write ssl.key"),
        ("tokens: [\"a:root:sha256:00\"]", "admin.tokens.0: a hash has 64"),
    ],
)  # fmt: skip
def test_a_fault_is_said_with_its_place_and_what_would_be_right(admin: str, said: str) -> None:
    with pytest.raises(config.ConfigError) as error:
        warnings_of(f"{{{admin}}}")
    (line,) = error.value.lines
    assert said in line


def test_its_settings_survive_the_way_to_control() -> None:
    admin = f"{{{TLS}, principals: {{User:anna: admin}}, metrics: viewer}}"
    settings = config.parse_settings(f"upstream: {{bootstrap_servers: b:9092}}\nadmin: {admin}\n")
    again = config.Settings.model_validate_json(settings.model_dump_json(by_alias=True))
    assert again == settings
    assert again.admin.tls is not None
    assert (again.admin.tls.keystore, again.admin.url) == ("s.pem", "https://127.0.0.1:9190")


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:9190"), ("'::'", "http://[::1]:9190"), ("gw.example", "http://gw.example:9190")],
)
def test_this_machine_reaches_it_under_an_address(host: str, url: str) -> None:
    settings = config.parse_settings(f"upstream: {{bootstrap_servers: b:9092}}\nadmin: {{host: {host}, open: true}}\n")
    assert settings.admin.url == url


def test_the_end_of_its_certificate_is_watched() -> None:
    settings = config.parse_settings(f"upstream: {{bootstrap_servers: b:9092}}\nadmin: {{{TLS}}}\n")
    assert certificate_locations(settings) == {"admin": CertificateLocation("s.pem")}


def test_proxies_are_networks() -> None:
    text = "upstream: {bootstrap_servers: broker:9092}\nadmin: {trusted_proxies: [%s]}\n"
    assert config.parse_settings(text % "10.0.7.0/24, '::1'").admin.trusted_proxies == ("10.0.7.0/24", "::1")
    with pytest.raises(config.ConfigError, match=r"admin.trusted_proxies.0: 'ingress.example' is not a valid network"):
        config.parse_settings(text % "ingress.example")
