# Clients of a gateway at which SASL ends: users, keys, tokens and certificates, and what they say, right and wrong. A
# seed means the same everywhere: keys are made of a text, and EdDSA signs without chance.

from __future__ import annotations

import functools
import json
import struct
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from gateway.kafka import sasl
from gateway.tls.principal_rules import NoPrincipal, PrincipalRules
from protocol.authentication import scram
from tests.hostile.traffic import frames
from tests.hostile.traffic.frames import STRANGE

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ITERATIONS: Final = 2  # of the records: thousands of them would be all that is measured
USERS: Final = {"alice": "alice-secret", "bob": "=,\u20ac", "x=,y": "p", "\u20ac" * 300: "\U0001f600"}
SUBJECTS: Final = ("alice", "olivia")
NOW: Final = 1_800_000_000  # Unix time at which a play begins
_HARD: Final = (  # JSON, as it may stand in a token that an issuer signs: names that other people choose
    '"\\ud800"', '"a\\udfffb"', '"\\ud83d\\ude00"', '"a\\nb"', '"\\u001b[31m"', '"a\\u0000b"', '"\\u2028"', '"\\u202e"',
    '""', '" a"', f'"{"x" * 1024}"', f'"{"x" * 1025}"', '"ANONYMOUS"', "null", "true", "7", "-1", "1e308", "1e400",
    "-1e400", "NaN", "Infinity", "9" * 400, "0.5", str(2**63), "[]", '["alice"]', "{}", '{"a":"\\ud800"}',
)  # fmt: skip


_CLAIMS: Final = ("sub", "sub", "sub", "exp", "iat", "nbf", "aud", "iss")
_PIECES: Final = b"\0\0\0\0n,,n=a,r=b,c=biws,p=AAAA=\0\x01auth=Bearer "


def write_credentials(folder: Path, iterations: int = ITERATIONS) -> tuple[Path, Path, Path]:
    """Files: records of passwords, the gateway's own credentials for brokers, the issuer's keys."""
    records, own, keys = folder / "credentials.yaml", folder / "own.yaml", folder / "jwks.json"
    made = {
        user: {
            mechanism: scram.record_text(scram.make_record(name, password, sha256(user.encode()).digest(), iterations))
            for mechanism, name in scram.HASHES.items()
        }
        for user, password in USERS.items()
    }
    records.write_text(yaml.safe_dump(made))
    mine = {"mechanism": "PLAIN", "username": "gateway", "password": "own"}
    own.write_text(yaml.safe_dump({"default": mine, "User:bob": {**mine, "mechanism": "SCRAM-SHA-512"}}))
    keys.write_text(json.dumps({"keys": [_jwk("one"), _jwk("two")]}))
    return records, own, keys


# --- tokens -----------------------------------------------------------------------------------------------------------


@functools.cache
def _key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(sha256(name.encode()).digest())


def _jwk(name: str) -> dict[str, str]:
    public = _key(name).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {"kty": "OKP", "crv": "Ed25519", "kid": name, "alg": "EdDSA", "use": "sig", "x": _b64(public).decode()}


def _b64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def token(claims: str, header: str = '{"alg":"EdDSA","kid":"one"}', key: str = "one") -> bytes:
    """Signed by that key. Both are JSON, which need not be any."""
    signed = _b64(header.encode("utf-8", "surrogatepass")) + b"." + _b64(claims.encode("utf-8", "surrogatepass"))
    return signed + b"." + _b64(_key(key).sign(signed))


def claims(**others: str) -> str:
    """JSON of claims that are right, but for those."""
    found = {"sub": '"olivia"', "iss": '"https://issuer"', "aud": '"kafka"'}
    found |= {"iat": str(NOW - 1), "exp": str(NOW + 10**6), **others}
    return "{" + ",".join(f'"{name}":{value}' for name, value in found.items()) + "}"


@functools.cache
def tokens() -> tuple[bytes, ...]:
    """Good ones, and those with something strange in one place, or two."""
    rng = Random(1)
    found = [token(claims(sub=f'"{name}"')) for name in SUBJECTS] * 20
    found += [token(claims(**{name: value})) for name in _CLAIMS for value in _HARD]
    for value in _HARD:
        found.append(token(claims(), f'{{"alg":"EdDSA","kid":{value}}}'))
        found.append(token(claims(), f'{{"alg":{value},"kid":"one"}}'))
        found.append(token(claims(), f'{{"alg":"EdDSA","kid":"one","typ":{value}}}'))
        found.append(token(value))
        found.append(token(claims(), value))
    for _ in range(200):
        strange = {rng.choice(("sub", "exp", "nbf", "jti", "aud", "a" * 300)): rng.choice(_HARD) for _ in range(2)}
        found.append(token(claims(**strange), key=rng.choice(("one", "two"))))
    return tuple(found)


def bearer(value: bytes) -> bytes:
    return b"n,,\x01auth=Bearer " + value + b"\x01\x01"


# --- certificates -----------------------------------------------------------------------------------------------------

RULES: Final = (
    "DEFAULT",
    r"RULE:^CN=(.*?)[,+].*$/$1/L,DEFAULT",
    r"RULE:^.*?O=(.*?),.*$/$1@$1/U,RULE:^CN=([a-z]+)$/$1/",
)


@functools.cache
def rules() -> tuple[PrincipalRules, ...]:
    return tuple(map(PrincipalRules, RULES))


@functools.cache
def certificates() -> tuple[bytes, ...]:
    """In DER, with names that an authority may have signed."""
    kinds = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.EMAIL_ADDRESS, NameOID.DOMAIN_COMPONENT)
    rng, key, found = Random(2), _key("issuer"), []
    for _ in range(100):
        rows = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            text = rng.choice(
                ("alice", "a,b", 'a"b+c=d', "\u20ac\U0001f600", "a\nb", "\0", " a ", "#00", "x" * 60, "\u202e")
            )
            form = rng.choice((_ASN1Type.UTF8String, _ASN1Type.UTF8String, _ASN1Type.BMPString, _ASN1Type.IA5String))
            if form is not _ASN1Type.UTF8String:
                text = text.encode("ascii", "replace").decode()
            rows.append(x509.NameAttribute(rng.choice(kinds), text, form))
        name = x509.Name(rows)
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        builder = x509.CertificateBuilder(name, name, key.public_key(), 7, begin, begin + timedelta(days=999))
        found.append(builder.sign(key, None).public_bytes(Encoding.DER))
    return tuple(found)


def certified(rng: Random) -> str:
    """The principal that a rule makes of such a certificate, perhaps a broken one; "" where it makes none."""
    certificate = rng.choice(certificates())
    if rng.random() < 0.5:
        certificate = frames.mutate(rng, bytes(4) + certificate, bytes(4) + rng.choice(certificates()))[4:]
    try:
        return rng.choice(rules()).principal_of(certificate)
    except NoPrincipal:
        return ""


# --- what a client says -----------------------------------------------------------------------------------------------


class Login:
    """A client's way through one exchange, perhaps a crooked one. `frames`: what it says first."""

    def __init__(self, rng: Random, *, good: bool = False) -> None:
        self._rng = rng
        self._good = good
        self.mechanism = rng.choice(MECHANISMS)
        self.version = rng.randint(0, 2)
        user, password = rng.choice(list(USERS.items()))
        if not good and rng.random() < 0.3:
            user, password = rng.choice(("nobody", "ANONYMOUS", "a\nb", *STRANGE)) or "n", rng.choice(("", "guessed"))
        self._exchange: Any = None
        if self.mechanism == "OAUTHBEARER":
            message = bearer(token(claims()) if good else rng.choice(tokens()))
        else:
            nonce = b"n%d" % rng.randrange(10**9)
            self._exchange = sasl.start_exchange(self.mechanism, user, password, nonce)
            message = next(self._exchange)
        self.frames = [frames.handshake(self.mechanism.encode()), self._step(message)]

    def hear(self, said: bytes) -> bytes | None:
        """The next step, when the gateway has said that; None: it has come to an end."""
        if self._exchange is None:
            return None
        try:
            return self._step(self._exchange.send(said))
        except (StopIteration, sasl.SaslExchangeFailed, ValueError):
            self._exchange = None
            return None

    def _step(self, message: bytes) -> bytes:
        if not self._good and self._rng.random() < 0.15:  # the frame is whole, and what is in it isn't
            message = frames.mutate(self._rng, b"\0\0\0\0" + message, _PIECES[4:])[4:]
        return frames.authenticate(message, self.version)


def heard(answer: bytes, version: int) -> tuple[int, bytes]:
    """Error code and token in a whole SaslAuthenticate answer."""
    at = 8 + (version >= 2)
    (error,) = struct.unpack_from(">h", answer, at)
    at += 2
    if version >= 2:
        size, at = _number(answer, at)
        at += max(0, size - 1)
        size, at = _number(answer, at)
        return error, answer[at : at + size - 1]
    (size,) = struct.unpack_from(">h", answer, at)
    at += 2 + max(0, size)
    (size,) = struct.unpack_from(">i", answer, at)
    return error, answer[at + 4 : at + 4 + max(0, size)]


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
