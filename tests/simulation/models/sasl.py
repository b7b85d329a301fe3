# SASL as models do it, PLAIN and SCRAM-SHA-256, written anew: a client's steps, a broker's, and what a client says on a
# connection before its first request.

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import random
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from tests.simulation.models import wire

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256")
UNKNOWN_MECHANISM, ILLEGAL_STATE, FAILED = 33, 34, 58
ITERATIONS: Final = 64  # brokers have 4096 at least: it is the same to all between
GATEWAY_ITERATIONS: Final = 4096  # of records that gateways have: they take no less

Steps = Generator[bytes, bytes, None]


class LoginFailed(Exception):
    """The other end says no, or something else than it has to."""


class Identity(NamedTuple):
    """`password`: "" for the right one."""

    user: str
    mechanism: str
    password: str = ""

    @property
    def secret(self) -> str:
        return self.password or password_of(self.user)


def password_of(user: str) -> str:
    return f"the password of {user}"


@functools.cache
def _salted(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)


def record_of(user: str) -> str:
    """What a gateway keeps of a user whose SASL ends there, as Kafka writes it."""
    salt = f"the salt of {user}".encode()
    salted = _salted(password_of(user), salt, GATEWAY_ITERATIONS)
    stored = hashlib.sha256(_mac(salted, b"Client Key")).digest()
    fields = {"salt": salt, "stored_key": stored, "server_key": _mac(salted, b"Server Key")}
    texts = [f"{name}={base64.b64encode(value).decode()}" for name, value in fields.items()]
    return ",".join([*texts, f"iterations={GATEWAY_ITERATIONS}"])


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def client_steps(who: Identity, chance: random.Random) -> Steps:
    """What the client sends; it is sent the broker's answers."""
    user = who.user
    if who.mechanism == "PLAIN":
        yield f"\0{user}\0{who.secret}".encode()
        return
    bare = f"n={user},r={chance.randbytes(12).hex()}".encode()
    challenge = yield b"n,," + bare
    fields = dict(part.split(b"=", 1) for part in challenge.split(b","))
    without_proof = b"c=biws,r=" + fields[b"r"]
    said = b",".join((bare, challenge, without_proof))
    salted = _salted(who.secret, base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    key = _mac(salted, b"Client Key")
    proof = _xor(key, _mac(hashlib.sha256(key).digest(), said))
    final = yield without_proof + b",p=" + base64.b64encode(proof)
    signature = _mac(_mac(salted, b"Server Key"), said)
    if final != b"v=" + base64.b64encode(signature):
        raise LoginFailed(f"the broker's signature is wrong: {final!r}")


class Door:
    """A broker's side of one connection. `user`: who has authenticated."""

    def __init__(self, chance: random.Random) -> None:
        self.user: str | None = None
        self.mechanism = ""
        self._chance = chance
        self._bare = self._challenge = b""

    def answer(self, data: bytes) -> bytes:
        """What it answers.

        Raises:
            LoginFailed, ValueError, KeyError: it is not who it says, or makes no sense.
        """
        if self.mechanism == "PLAIN":
            _, user, password = data.decode().split("\0")
            if password != password_of(user):
                raise LoginFailed(user)
            self.user = user
            return b""
        if not self._challenge:
            self._bare = data[data.index(b"n=") :]
            fields = dict(part.split(b"=", 1) for part in self._bare.split(b","))
            nonce = fields[b"r"] + self._chance.randbytes(12).hex().encode()
            salt = base64.b64encode(fields[b"n"])
            self._challenge = b"r=%b,s=%b,i=%d" % (nonce, salt, ITERATIONS)
            return self._challenge
        user = dict(part.split(b"=", 1) for part in self._bare.split(b","))[b"n"].decode()
        without_proof, _, proof = data.partition(b",p=")
        said = b",".join((self._bare, self._challenge, without_proof))
        salted = _salted(password_of(user), user.encode(), ITERATIONS)
        key = _mac(salted, b"Client Key")
        if base64.b64decode(proof) != _xor(key, _mac(hashlib.sha256(key).digest(), said)):
            raise LoginFailed(user)
        self.user = user
        return b"v=" + base64.b64encode(_mac(_mac(salted, b"Server Key"), said))


Greeting = Generator[Callable[[int], bytes], bytes, None]


def greet(client_id: str, software: tuple[str, str] | None, who: Identity | None, chance: random.Random) -> Greeting:
    """The requests before the first, made from a correlation id; it is sent their answers.

    Raises:
        LoginFailed: when it is sent an answer that says so.
    """
    version = 3 if software else 2
    yield lambda correlation: wire.encode_api_versions(version, correlation, client_id, software or ("", ""))
    if who is None:
        return
    answer = yield lambda correlation: wire.encode_sasl_handshake(1, correlation, client_id, who.mechanism)
    if error := wire.decode_sasl_handshake_answer(answer):
        raise LoginFailed(f"error {error} at the handshake")
    steps, version = client_steps(who, chance), 2 if software else 1
    data = next(steps)
    while True:
        answer = yield functools.partial(_encode_step, version, client_id, data)
        error, challenge = wire.decode_sasl_authenticate_answer(version, answer)
        if error:
            raise LoginFailed(f"error {error} for {who.user}")
        try:
            data = steps.send(challenge)
        except StopIteration:
            return


def _encode_step(version: int, client_id: str, data: bytes, correlation: int) -> bytes:
    return wire.encode_sasl_authenticate(version, correlation, client_id, data)
