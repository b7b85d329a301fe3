# SCRAM as a server says it, and the records that it knows passwords by: a salt, and two keys from which no password can
# be had. The client's side is in gateway/kafka/sasl.py.
#
# Nothing is kept between a client's two messages: who asks brings the first one and the challenge again. Names and
# passwords are UTF-8, unprepared, as Kafka has them. Salts and nonces are the caller's to draw.
#
# Spec: RFC 5802, RFC 7677; KIP-84 (SCRAM in Kafka), KIP-48 (delegation tokens, which aren't taken here). The text of a
# record is Kafka's (ScramCredentialUtils).

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

from protocol.rewriting.identity import SCRAM_NAME

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MIN_ITERATIONS: Final = 4096  # RFC 7677, 4; Kafka takes no less either
MAX_ITERATIONS: Final = 1_000_000  # half a second
MAX_MESSAGE: Final = 4096  # bytes of either message of a client
_MIN_SALT: Final = 8
# Kafka's own salts are text, 130 random bits to the base of 36 (ScramFormatter.secureRandomBytes).
_KAFKA_SALT_BITS: Final = 130
_KAFKA_SALT: Final = re.compile(rb"[1-9a-z][0-9a-z]{19,25}")
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"

# As ScramMessages has them, and as in identity.py: no two parts can match the same bytes, and none is possessive.
_NONCE = rb"[\x21-\x2B\x2D-\x7E]+"
_MORE = rb"((?:,(?!p=)[A-Za-z]+=[\x01-\x2B\x2D-\x7F]+)*)"
_FIRST = re.compile(
    rb"(n,(?:a=(" + SCRAM_NAME + rb"))?,)(n=(" + SCRAM_NAME + rb"),r=(" + _NONCE + rb")" + _MORE + rb")"
)
_FINAL = re.compile(rb"(c=([A-Za-z0-9+/]+=*),r=(" + _NONCE + rb")" + _MORE + rb"),p=([A-Za-z0-9+/]+=*)")


class ScramRefused(Exception):
    """The client isn't let in. The text is for the log, not for the client."""


class ScramRecord(NamedTuple):
    """Of one user, for one hash. The keys are enough to answer a client, and not enough to be one."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class RecordShape(NamedTuple):
    """What a challenge shows of a record besides the random bits of its salt. `salt_bytes` 0: the salt is Kafka's own.

    The default is what `produce-gateway scram-record` makes.
    """

    salt_bytes: int = 24
    iterations: int = 8192


class FirstMessage(NamedTuple):
    """A client's first message: its header (`n,,`), what is behind that, and the name and the nonce in it."""

    header: bytes
    bare: bytes
    name: str
    nonce: bytes


# --- records ----------------------------------------------------------------------------------------------------------


def make_record(hash_name: str, password: str, salt: bytes, iterations: int) -> ScramRecord:
    """The record of a password. Takes milliseconds: that is the purpose of `iterations`."""
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    return ScramRecord(salt, _stored_key(hash_name, salted), hmac.digest(salted, b"Server Key", hash_name), iterations)


def matches_password(record: ScramRecord, hash_name: str, password: bytes) -> bool:
    """Whether it is this record's password. Takes milliseconds, without the interpreter's lock."""
    salted = hashlib.pbkdf2_hmac(hash_name, password, record.salt, record.iterations)
    return hmac.compare_digest(_stored_key(hash_name, salted), record.stored_key)


def _stored_key(hash_name: str, salted: bytes) -> bytes:
    return hashlib.new(hash_name, hmac.digest(salted, b"Client Key", hash_name)).digest()


def shape_of(record: ScramRecord) -> RecordShape:
    salt = record.salt
    is_kafkas = _KAFKA_SALT.fullmatch(salt) is not None and int(salt, 36) < 1 << _KAFKA_SALT_BITS
    return RecordShape(0 if is_kafkas else len(salt), record.iterations)


def make_decoy(hash_name: str, key: bytes, name: str, shape: RecordShape) -> ScramRecord:
    """A record of that shape for a name that no user has, always the same one: the challenge doesn't reveal that.
    No password opens it. `key`: a secret.
    """
    # With another shape another salt, as when a user gets another password.
    of = b"\0".join((hash_name.encode(), b"%d,%d" % shape, name.encode("utf-8", "surrogatepass")))
    random = hashlib.shake_256(hmac.digest(key, of, "sha512"))
    salt = random.digest(shape.salt_bytes) if shape.salt_bytes else _kafka_salt(random.digest(_KAFKA_SALT_BITS))
    size = hashlib.new(hash_name).digest_size
    return ScramRecord(salt, bytes(size), bytes(size), shape.iterations)


def _kafka_salt(random: bytes) -> bytes:
    left, digits = int.from_bytes(random, "big") % (1 << _KAFKA_SALT_BITS), b""
    while left:
        left, digit = divmod(left, len(_DIGITS))
        digits = _DIGITS[digit : digit + 1] + digits
    return digits


def record_text(record: ScramRecord) -> str:
    """As Kafka writes it: `salt=…,stored_key=…,server_key=…,iterations=4096`."""
    keys = (("salt", record.salt), ("stored_key", record.stored_key), ("server_key", record.server_key))
    return ",".join([*(f"{key}={b64encode(value).decode()}" for key, value in keys), f"iterations={record.iterations}"])


def parse_record(text: str, hash_name: str) -> ScramRecord:
    """The reverse of `record_text`, in any order.

    Raises:
        ValueError: one line that doesn't repeat the text.
    """
    fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
    if fields.keys() != {"salt", "stored_key", "server_key", "iterations"}:
        raise ValueError("must have exactly salt=…,stored_key=…,server_key=…,iterations=…")
    try:
        salt, stored, server = (b64decode(fields[key], validate=True) for key in ("salt", "stored_key", "server_key"))
    except ValueError:
        raise ValueError("salt, stored_key and server_key must be base64") from None
    size = hashlib.new(hash_name).digest_size
    if not len(stored) == len(server) == size:
        raise ValueError(f"stored_key and server_key must have {size} bytes each")
    if len(salt) < _MIN_SALT:
        raise ValueError(f"salt must have {_MIN_SALT} bytes or more")
    rounds = fields["iterations"]
    if not (rounds.isascii() and rounds.isdigit() and MIN_ITERATIONS <= int(rounds[:9]) <= MAX_ITERATIONS):
        raise ValueError(f"iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return ScramRecord(salt, stored, server, int(rounds))


# --- messages ---------------------------------------------------------------------------------------------------------


def read_first_message(message: bytes) -> FirstMessage:
    """
    Raises:
        ScramRefused: it is none that a server takes.
    """
    found = _FIRST.fullmatch(message) if len(message) <= MAX_MESSAGE else None
    if found is None:
        raise ScramRefused("the client's first message is not a valid SCRAM message")
    header, other, bare, name, nonce, more = found.groups()
    if other is not None and other != name:
        raise ScramRefused("the client asks for another identity (authzid) than the one it authenticates as")
    if b",tokenauth=true" in more.lower():
        raise ScramRefused("delegation tokens are the broker's: they can't be used where SASL ends at the gateway")
    return FirstMessage(header, bare, name.replace(b"=2C", b",").replace(b"=3D", b"=").decode(), nonce)


def make_challenge(first: FirstMessage, record: ScramRecord, nonce: bytes) -> bytes:
    """The server's first message. `nonce`: the server's part, printable and without a comma."""
    return b"r=%b%b,s=%b,i=%d" % (first.nonce, nonce, b64encode(record.salt), record.iterations)


def verify_final(hash_name: str, record: ScramRecord, first: FirstMessage, challenged: bytes, message: bytes) -> bytes:
    """The server's final message, where the client's final `message` proves that it knows the password.

    Raises:
        ScramRefused: it doesn't.
    """
    found = _FINAL.fullmatch(message) if len(message) <= MAX_MESSAGE else None
    if found is None:
        raise ScramRefused("the client's final message is not a valid SCRAM message")
    unproven, binding, nonce, _, proof = found.groups()
    if binding != b64encode(first.header) or nonce != challenged[2 : challenged.index(b",")]:
        raise ScramRefused("the client's final message belongs to another exchange")
    messages = b",".join((first.bare, challenged, unproven))
    signature = hmac.digest(record.stored_key, messages, hash_name)
    try:
        key = bytes(a ^ b for a, b in zip(b64decode(proof, validate=True), signature, strict=True))
    except ValueError:
        raise ScramRefused("the client's proof is not valid") from None
    if not hmac.compare_digest(hashlib.new(hash_name, key).digest(), record.stored_key):
        raise ScramRefused("wrong password, or no such user")
    return b"v=" + b64encode(hmac.digest(record.server_key, messages, hash_name))
