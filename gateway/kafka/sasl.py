# The client's side of an exchange of SASL, and how it knows the server: PLAIN and SCRAM. Each mechanism is a generator
# that gives the client's next message, takes the server's answer to it, and returns when the exchange is over.
#
# Specs: RFC 4616 (PLAIN), RFC 5802 and 7677 (SCRAM), as Kafka has them: names and passwords are UTF-8, unprepared.
# Knows no socket and no Kafka message.

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Generator
from typing import Final

SaslExchange = Generator[bytes, bytes, None]

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = ("PLAIN", *_HASHES)
MAX_ITERATIONS: Final = 1_000_000  # half a second; Kafka takes 4,096 to 16,384
_NONCE_BYTES: Final = 24


class SaslExchangeFailed(Exception):
    """The server broke the protocol, or doesn't know the password itself: one line."""


def start_exchange(mechanism: str, username: str, password: str, nonce: bytes = b"") -> SaslExchange:
    """The exchange of one of `MECHANISMS`, or of OAUTHBEARER, whose first message is `password`. `nonce`: SCRAM's; b"":
    one is drawn.
    """
    if mechanism == "PLAIN":
        return _plain_exchange(username, password)
    if mechanism == "OAUTHBEARER":
        return _bearer_exchange(password)
    return scram_exchange(_HASHES[mechanism], username, password, nonce or b64encode(secrets.token_bytes(_NONCE_BYTES)))


def _bearer_exchange(message: str) -> SaslExchange:
    verdict = yield message.encode()
    if verdict:  # a refusal, in JSON: the server's error comes behind our acknowledgement (RFC 7628, 3.2.3)
        yield b"\x01"
        raise SaslExchangeFailed("OAUTHBEARER: the server refuses the token and gives no reason")


def _plain_exchange(username: str, password: str) -> SaslExchange:
    yield b"\0%b\0%b" % (username.encode(), password.encode())


def scram_exchange(hash_name: str, username: str, password: str, nonce: bytes) -> SaslExchange:
    """SCRAM without channel binding.

    Raises:
        SaslExchangeFailed: see there.
    """

    def mac(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, hash_name)

    name = username.replace("=", "=3D").replace(",", "=2C").encode()
    first = b"n=%b,r=%b" % (name, nonce)
    challenge = yield b"n,," + first

    fields = _parse_fields(challenge)
    whole_nonce, salt, rounds = fields.get(b"r", b""), fields.get(b"s", b""), fields.get(b"i", b"")
    if (
        not whole_nonce.startswith(nonce)
        or not rounds.isdigit()
        or len(rounds) > 9
        or not 0 < int(rounds) <= MAX_ITERATIONS
    ):
        raise SaslExchangeFailed("SCRAM: the server's first message can't be used")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), _decode_base64(salt), int(rounds))
    final = b"c=biws,r=" + whole_nonce
    messages = b",".join((first, challenge, final))
    key = mac(salted, b"Client Key")
    signature = mac(hashlib.new(hash_name, key).digest(), messages)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    verdict = yield final + b",p=" + b64encode(proof)

    expected = mac(mac(salted, b"Server Key"), messages)
    if not hmac.compare_digest(_decode_base64(_parse_fields(verdict).get(b"v", b"")), expected):
        raise SaslExchangeFailed("SCRAM: the server does not prove that it knows the password")


def _parse_fields(message: bytes) -> dict[bytes, bytes]:
    return {key: value for key, _, value in (part.partition(b"=") for part in message.split(b","))}


def _decode_base64(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise SaslExchangeFailed("SCRAM: the server's message is not valid base64") from None
