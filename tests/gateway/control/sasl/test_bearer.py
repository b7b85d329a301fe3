# Tokens that end at the gateway: whose signature is taken, which claims, and where keys come from. Tokens are made by
# PyJWT with keys of the test's own; time is the test's.

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from gateway.config import AuthenticationSettings
from gateway.control.sasl.bearer import LATEST, BearerTokens, parse_keys
from gateway.control.sasl.credentials import CredentialsError
from protocol.authentication.scram import ScramRefused
from protocol.rewriting.identity import AmbiguousIdentity
from tests.integration.security.oidc import Issuer

NOW = 1_800_000_000.0
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
KEYS: dict[str, tuple[Any, Any]] = {
    "RS256": (RSA, jwt.algorithms.RSAAlgorithm),
    "PS512": (RSA, jwt.algorithms.RSAPSSAlgorithm),
    "ES256": (EC, jwt.algorithms.ECAlgorithm),
    "EdDSA": (ED, jwt.algorithms.OKPAlgorithm),
}
CLAIMS = {"sub": "olivia", "iss": "https://issuer.example", "aud": "kafka", "iat": NOW - 1, "exp": NOW + 60}


def jwk(alg: str, **more: Any) -> dict[str, Any]:
    key, kind = KEYS[alg]
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": alg, "alg": alg, "use": "sig", **more}


def message(token: str, before: str = "n,,", more: str = "") -> bytes:
    return f"{before}\x01auth=Bearer {token}\x01{more}\x01".encode()


def token(alg: str = "ES256", kid: str | None = None, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(given, KEYS[alg][0], alg, headers={"kid": kid or alg, **(headers or {})})


def settings(url: str, **more: Any) -> AuthenticationSettings:
    return AuthenticationSettings.model_validate(
        {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "sasl.oauthbearer.expected.audience": "other, kafka",
            "sasl.oauthbearer.expected.issuer": "https://issuer.example",
            **more,
        }
    )


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(alg) for alg in KEYS]}))
    return path


def tokens(keys: Path, **more: Any) -> BearerTokens:
    return BearerTokens(settings(keys.as_uri(), **more), lambda: NOW)


@pytest.mark.parametrize("alg", sorted(KEYS))
async def test_a_token_of_the_issuer_names_its_subject(keys: Path, alg: str) -> None:
    assert await tokens(keys).check_token(message(token(alg))) == ("olivia", NOW + 60 + 30)


async def test_another_claim_may_name_it(keys: Path) -> None:
    named = tokens(keys, **{"sasl.oauthbearer.sub.claim.name": "client_id"})
    assert (await named.check_token(message(token(client_id="app"))))[0] == "app"
    with pytest.raises(ScramRefused, match="client_id"):
        await named.check_token(message(token()))


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://issuer.example/"},
        {"iss": None},
        {"exp": NOW - 30},
        {"exp": None},
        {"exp": True},
        {"nbf": NOW + 31},
        {"iat": NOW + 31},
        {"sub": ""},
        {"sub": " olivia"},
        {"sub": 7},
        {"sub": None},
        {"sub": "ANONYMOUS"},
        {"sub": "x" * 1025},
    ],
    ids=str,
)
async def test_claims_that_are_not_taken(keys: Path, claims: dict[str, Any]) -> None:
    with pytest.raises(ScramRefused, match="OAUTHBEARER"):
        await tokens(keys).check_token(message(token(**claims)))


@pytest.mark.parametrize("claims", [{"exp": NOW - 29}, {"nbf": NOW + 29}, {"aud": ["x", "kafka"]}], ids=str)
async def test_a_clock_may_go_wrong_a_little(keys: Path, claims: dict[str, Any]) -> None:
    assert (await tokens(keys).check_token(message(token(**claims))))[0] == "olivia"


def forged() -> dict[str, bytes]:
    good = token()
    head, body, signature = good.split(".")
    public = jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key())
    return {
        "another's key": message(
            jwt.encode(CLAIMS, ec.generate_private_key(ec.SECP256R1()), "ES256", {"kid": "ES256"})
        ),
        "no signature": message(f"{head}.{body}."),
        "algorithm none": message(jwt.encode(CLAIMS, "", "none", {"kid": "ES256"})),
        "a public key as a secret": message(jwt.encode(CLAIMS, public.encode() * 2, "HS256", {"kid": "RS256"})),
        "another algorithm of the key": message(jwt.encode(CLAIMS, RSA, "RS512", {"kid": "RS256"})),
        "another kid": message(token(kid="RS256")),
        "an unknown kid": message(token(kid="unknown")),
        "crit": message(token(headers={"crit": ["b64"], "b64": True})),
        "cty": message(token(headers={"cty": "JWT"})),
        "no JWT": message("abc"),
        "two tokens": message(good, more=f"AUTH=Bearer {good}\x01"),
        "another authzid": message(good, before="n,a=admin,"),
        "no token": b"n,,\x01\x01",
        "empty": b"",
        "large": message(token(padding="x" * 70_000)),
        "signature of another": message(f"{head}.{body}.{signature[:-4]}AAAA"),
    }


@pytest.mark.parametrize("kind", sorted(forged()))
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_what_the_issuer_has_not_made(keys: Path, kind: str) -> None:
    with pytest.raises((ScramRefused, AmbiguousIdentity)):
        await tokens(keys).check_token(forged()[kind])


async def test_the_only_key_needs_no_id(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    row = jwk("ES256")
    del row["kid"]
    path.write_text(json.dumps({"keys": [row]}))
    text = jwt.encode(CLAIMS, EC, "ES256")
    assert (await tokens(path).check_token(message(text)))[0] == "olivia"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"keys": [{"kty": "oct", "k": "AAAA", "kid": "x"}]}',
        '{"keys": [5]}',
        '{"keys": []}',
        json.dumps({"keys": [jwk("RS256", use="enc")]}),
        '{"keys": ' + "[" * 100_000,
        '{"keys": [{"kty": "RSA", "n": "\\ud800", "e": 5}]}',
        json.dumps({"keys": [{**jwk("RS256"), "alg": "none"}]}),
    ],
    ids=lambda text: text[:40],
)
def test_sets_without_a_key_for_signatures_or_that_nobody_could_read(text: str) -> None:
    with pytest.raises(CredentialsError, match=r"keys\.json"):
        parse_keys(text.encode(), "keys.json")


@pytest.mark.parametrize("part", [0, 1], ids=["header", "claims"])
async def test_brackets_within_brackets_are_refused(keys: Path, part: int) -> None:
    parts = token().split(".")
    parts[part] = base64.urlsafe_b64encode(b'{"a":' + b"[" * 40_000).decode().rstrip("=")
    if part:  # rightly signed, as an issuer might
        signature = EC.sign(".".join(parts[:2]).encode(), ec.ECDSA(hashes.SHA256()))
        r, s = decode_dss_signature(signature)
        parts[2] = base64.urlsafe_b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode().rstrip("=")
    with pytest.raises(ScramRefused, match="OAUTHBEARER"):
        await tokens(keys).check_token(message(".".join(parts)))


@pytest.mark.parametrize(
    ("given", "until"),
    [(1e308, LATEST + 30), (10**300, LATEST + 30), (10**400, None), (-(10**400), None), (math.nan, None), (True, None)],
)
async def test_times_are_bounded(keys: Path, given: float, until: float | None) -> None:
    text = message(token(exp=given))
    if until is None:
        with pytest.raises(ScramRefused, match="exp is not a valid time"):
            await tokens(keys).check_token(text)
    else:
        assert await tokens(keys).check_token(text) == ("olivia", until)


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_file_that_changes_is_read_again(keys: Path, autojump_clock: object) -> None:
    known = tokens(keys)
    await known.check_token(message(token()))
    write(keys, json.dumps({"keys": [jwk("ES256", kid="new")]}))
    await trio.sleep(2)
    assert (await known.check_token(message(token(kid="new"))))[0] == "olivia"
    write(keys, "broken")
    await trio.sleep(2)
    assert (await known.check_token(message(token(kid="new"))))[0] == "olivia"


async def test_keys_of_an_address_are_fetched_again_for_a_key_that_is_new() -> None:
    with Issuer() as issuer:
        known = BearerTokens(settings(issuer.jwks_url), lambda: NOW)
        text = issuer.token("olivia", iat=NOW, exp=NOW + 9)
        assert await known.check_token(message(text)) == ("olivia", NOW + 39)
        issuer.renew()
        renewed = message(issuer.token("olivia", iat=NOW, exp=NOW + 9))
        with pytest.raises(ScramRefused, match="no key 'key-2'"):  # strangers can't make the gateway ask all the time
            await known.check_token(renewed)
        known._keys._fetched_at = trio.current_time() - 10  # type: ignore[attr-defined]
        assert (await known.check_token(renewed))[0] == "olivia"


async def test_an_address_that_does_not_answer_is_said() -> None:
    known = BearerTokens(settings("http://127.0.0.1:9/keys"), lambda: NOW)
    with pytest.raises(CredentialsError, match=r"127\.0\.0\.1:9/keys: Connection refused"):
        await known.check_token(message(token()))
