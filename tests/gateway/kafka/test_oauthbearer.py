# Tokens of the gateway's own connections: librdkafka's properties, what an issuer on loopback is asked, and when again.

from __future__ import annotations

import jwt
import pytest

from gateway.kafka.oauthbearer import NoTokenError, TokenCache, client_first_message, parse_token_source
from gateway.kafka.sasl import SaslExchangeFailed, start_exchange
from gateway.tls.broker_tls import InvalidProperties
from protocol.rewriting.identity import bearer_token
from tests.integration.security.oidc import LASTS_S, Issuer

PREFIX = "sasl.oauthbearer."


def oidc(url: str, **more: str) -> dict[str, str]:
    own = {"method": "oidc", "client.id": "gateway", "client.secret": "a s:cret", "token.endpoint.url": url, **more}
    return {PREFIX + key: value for key, value in own.items()}


def test_a_token_is_asked_for_once_until_most_of_its_time_is_over() -> None:
    now = [1000.0]
    with Issuer() as issuer:
        bearer = parse_token_source(oidc(issuer.token_url, scope="kafka all"))
        tokens = TokenCache(lambda: now[0])
        first = tokens.get_token(bearer)
        now[0] += 0.79 * LASTS_S
        assert tokens.get_token(bearer) == first
        now[0] += 0.02 * LASTS_S
        tokens.get_token(bearer)
        asked = {"grant_type": "client_credentials", "scope": "kafka all", "id": "gateway", "secret": "a s:cret"}
        assert issuer.asked == [asked, asked]
        tokens.get_token(bearer._replace(client_id="another"))  # nothing is kept beyond its credentials
        assert len(issuer.asked) == 3


def test_an_issuer_that_gives_no_token() -> None:
    with pytest.raises(NoTokenError, match=r"^http://127\.0\.0\.1:9/token: Connection refused$"):
        TokenCache().get_token(parse_token_source(oidc("http://127.0.0.1:9/token")))


def test_unsecured_tokens_for_tests() -> None:
    config = "principal=admin scope=a,b lifeSeconds=60 extension_traceId=123"
    bearer = parse_token_source({"enable.sasl.oauthbearer.unsecure.jwt": "true", f"{PREFIX}config": config})
    token = TokenCache(lambda: 1000.0).get_token(bearer)
    assert jwt.decode(token, options={"verify_signature": False, "verify_exp": False}) == {
        "sub": "admin",
        "scope": ["a", "b"],
        "iat": 1000,
        "exp": 1060,
    }
    said = client_first_message(token, bearer.extensions)
    assert bearer_token(said) == token.encode()
    assert said.endswith(b"\x01traceId=123\x01\x01")


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({}, "method: must be oidc"),
        ({f"{PREFIX}method": "oidc"}, r"client\.id: needed"),
        (oidc(""), r"token\.endpoint\.url: needed"),
        (oidc("ftp://x"), "must begin with https://"),
        (oidc("https://u:s:cret@x"), "a user name or a password"),
        (oidc("https://x", extensions="a1=x"), "keys of letters alone"),
        (oidc("https://x", extensions="a=\x01"), "keys of letters alone"),
        ({"enable.sasl.oauthbearer.unsecure.jwt": "true"}, "principal=NAME"),
    ],
)
def test_properties_that_can_t_be_used(properties: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidProperties, match=said) as caught:
        parse_token_source(properties)
    assert "s:cret" not in str(caught.value)


def test_the_exchange() -> None:
    steps = start_exchange("OAUTHBEARER", "", "n,,\x01auth=Bearer x\x01\x01")
    assert next(steps) == b"n,,\x01auth=Bearer x\x01\x01"
    with pytest.raises(StopIteration):
        steps.send(b"")


def test_a_refusal_is_acknowledged_before_the_error() -> None:
    steps = start_exchange("OAUTHBEARER", "", "x")
    next(steps)
    assert steps.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(SaslExchangeFailed):
        steps.send(b"")
