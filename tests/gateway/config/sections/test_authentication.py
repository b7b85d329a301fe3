# The section `authentication`: what it takes, and what is wrong with the rest.

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.channel import TerminatedSasl
from gateway.cli import summarize_settings
from gateway.config import ConfigError, Settings, parse_settings
from gateway.control.internal_errors import InternalErrors
from gateway.control.sasl.authentication import make_authenticators
from gateway.control.workers.snapshots import worker_settings

FILES = {"credentials_file": "users.yaml"}
BEARER = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://idp.example/keys",
    "sasl.oauthbearer.expected.audience": "a, b",
    "sasl.oauthbearer.expected.issuer": "https://idp.example",
}


def settings(**authentication: Any) -> Settings:
    return parse_settings(json.dumps({"upstream": {"bootstrap_servers": "b:9092"}, "authentication": authentication}))


def refused(**authentication: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(**authentication)
    return str(caught.value)


def test_it_is_off_unless_it_is_there() -> None:
    assert parse_settings('upstream: {bootstrap_servers: "b:9092"}').authentication is None


def test_mechanisms_are_a_list_or_text_and_survive_the_way_to_control() -> None:
    for mechanisms in ("PLAIN,SCRAM-SHA-512", ["PLAIN", "SCRAM-SHA-512"]):
        found = settings(**FILES, **{"sasl.enabled.mechanisms": mechanisms})
        again = Settings.model_validate_json(found.model_dump_json(by_alias=True))
        assert again == found
        assert again.authentication is not None
        assert again.authentication.mechanisms == ("PLAIN", "SCRAM-SHA-512")


LISTENERS = """
upstream: {bootstrap_servers: "b:9092"}
listeners:
  outside: {port: 9092}
  inside: {port: 9192, authentication: {enabled: false}}
  other: {port: 9292, authentication: {sasl.enabled.mechanisms: PLAIN, credentials_file: others.yaml}}
"""
AT_ALL = """
authentication: {sasl.enabled.mechanisms: SCRAM-SHA-512, credentials_file: x.yaml, upstream_credentials_file: own.yaml}
"""


@pytest.mark.parametrize(("at_all", "outside"), [("", None), (AT_ALL, TerminatedSasl(("SCRAM-SHA-512",), True))])
def test_a_listener_may_have_its_own(at_all: str, outside: TerminatedSasl | None) -> None:
    found = parse_settings(LISTENERS + at_all)
    found = Settings.model_validate_json(found.model_dump_json(by_alias=True))  # as control does
    assert {name: each.sasl for name, each in worker_settings(found, b"").listeners.items()} == {
        "outside": outside,
        "inside": None,
        "other": TerminatedSasl(("PLAIN",)),
    }
    made = make_authenticators(found, b"secret", InternalErrors())
    assert made.keys() == {"other"} | ({"outside"} if at_all else set())
    assert "clients    SASL ends here: PLAIN; to brokers: none" in summarize_settings(found)


def test_listeners_with_the_same_have_the_same_authenticator() -> None:
    text = LISTENERS.replace(", authentication: {enabled: false}", "")
    made = make_authenticators(parse_settings(text + AT_ALL), b"secret", InternalErrors())
    assert made["outside"] is made["inside"]
    assert made["other"] is not made["inside"]


def test_what_is_wrong_with_a_listeners_own_is_said_there() -> None:
    with pytest.raises(ConfigError, match=r"listeners\.other\.authentication: .*nobody has a password"):
        parse_settings(LISTENERS.replace(", credentials_file: others.yaml", ""))


def test_tokens() -> None:
    found = settings(**BEARER).authentication
    assert found is not None
    assert (found.audience, found.clock_skew_s, found.sub_claim) == (("a", "b"), 30, "sub")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "authentication: has no effect: write sasl.enabled.mechanisms"),
        ({**FILES, "enabled": False}, "credentials_file: has no effect with enabled: false"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "nobody has a password: write credentials_file"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms"),
        (FILES, "credentials_file, credentials_command: have no effect"),
        ({**FILES, **BEARER}, "credentials_file, credentials_command: have no effect"),
        ({**BEARER, "sasl.oauthbearer.jwks.endpoint.url": ""}, "the keys of OAUTHBEARER tokens are needed"),
        ({**BEARER, "sasl.oauthbearer.jwks.endpoint.url": "http://idp.example/keys"}, "write https://"),
        ({**BEARER, "sasl.oauthbearer.jwks.endpoint.url": "https://u:p@idp.example/keys"}, "a user name or a password"),
        ({**BEARER, "sasl.oauthbearer.expected.audience": ""}, "must be given with OAUTHBEARER"),
        ({**BEARER, "sasl.oauthbearer.expected.issuer": ""}, "must be given with OAUTHBEARER"),
        ({**BEARER, "sasl.enabled.mechanisms": "PLAIN", **FILES}, "has no effect without OAUTHBEARER"),
        ({**BEARER, "sasl.oauthbearer.clock.skew.second": 5}, "did you mean sasl.oauthbearer.clock.skew.seconds"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], said: str) -> None:
    assert said in refused(**given)
