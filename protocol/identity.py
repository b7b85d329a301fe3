# Who a client is, read from what passes by: its software (ApiVersions v3+, KIP-511) and its SASL principal.
#
# The gateway authenticates nobody. It reads the name a client claims and believes it when the broker has accepted it;
# passwords, proofs and tokens are looked at for the name in them and never kept. What it can't read (GSSAPI, delegation
# tokens, mechanisms of one's own) is the principal `unknown`, never a guess and never ANONYMOUS.
#
# Several SaslAuthenticate requests may be on their way at once (no honest client does that, but a second name sent
# behind an accepted first must not rename the connection), so names wait in a FIFO for their answers.
#
# Specs: KIP-43, KIP-152 (SaslAuthenticate), KIP-368 (re-authentication); RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628
# (OAUTHBEARER).

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from collections import deque

from protocol import api
from protocol.wire import (
    Buffer,
    MalformedFrame,
    at_end,
    compact_string,
    int16,
    int32,
    skip,
    skip_tags,
    string,
    uvarint,
)

UNKNOWN = "unknown"  # without "User:": it can't be mistaken for a user of that name
_SOFTWARE = re.compile(rb"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")  # as the broker checks it (KIP-511)
_MAX_SOFTWARE = 128  # goes into log lines and metric labels
_MAX_NAME = 1024
_MAX_TOKEN = 256 * 1024
_REQUEST_HEAD = 8  # api key, api version, correlation id
_SASL_FLEXIBLE = 2


# --- software ---------------------------------------------------------------------------------------------------------


def software(buf: Buffer, start: int, end: int) -> tuple[str, str] | None:
    """Name and version of the client's software from its ApiVersions request; None where it gives none (below v3).

    Also None for what a broker would refuse as a name. Requests above v4 are read up to the name: what they carry
    behind it isn't known here, and the two fields are the first of every later version.

    Raises:
        MalformedFrame: the request ends too early, or (v0 to v4) not where it should.
    """
    version, pos = _request_head(buf, start, end)
    if version < 3:
        at_end(pos, end)
        return None
    pos = skip_tags(buf, pos, end)
    name, pos = compact_string(buf, pos, end)
    release, pos = compact_string(buf, pos, end)
    if version <= api.CAPS[api.API_VERSIONS]:
        at_end(skip_tags(buf, pos, end), end)
    texts = _software_text(name), _software_text(release)
    return texts if all(texts) else None


def _software_text(value: bytes | None) -> str:
    fits = value is not None and len(value) <= _MAX_SOFTWARE and _SOFTWARE.fullmatch(value)
    return fits.group().decode("ascii") if fits else ""


# --- SASL -------------------------------------------------------------------------------------------------------------


class Sasl:
    """Follows SaslHandshake and SaslAuthenticate of one connection, re-authentication included.

    Requests and answers must be shown in the order in which they pass. Names come from clients: at most 1,024
    characters of them are taken, any character may be among them.
    """

    __slots__ = ("_claims", "_mechanism", "_scram_name")

    def __init__(self) -> None:
        self._mechanism = b""
        self._scram_name: str = UNKNOWN
        self._claims: deque[tuple[int, bytes, str]] = deque()  # (version, mechanism, principal) per unanswered request

    def on_handshake(self, buf: Buffer, start: int, end: int) -> int:
        """A SaslHandshake request: its version, which decides what follows.

        After version 0 the client sends raw tokens, not Kafka frames (KIP-152): whoever lets it pass can read nothing
        of that connection until the exchange is over.

        Raises:
            MalformedFrame: it isn't a SaslHandshake request.
        """
        version, pos = _request_head(buf, start, end)
        mechanism, pos = string(buf, pos, end)
        at_end(pos, end)
        self._mechanism = (mechanism or b"").upper()
        self._scram_name = UNKNOWN
        return version

    def on_authenticate(self, buf: Buffer, start: int, end: int) -> None:
        """A SaslAuthenticate request: remembers whom it claims to be, until its answer.

        Raises:
            MalformedFrame: it isn't a SaslAuthenticate request.
        """
        version, pos = _request_head(buf, start, end)
        if version >= _SASL_FLEXIBLE:
            pos = skip_tags(buf, pos, end)
        token, pos = _token(buf, pos, end, version)
        if version >= _SASL_FLEXIBLE:
            pos = skip_tags(buf, pos, end)
        at_end(pos, end)
        self._claims.append((version, self._mechanism, self._claimed(token)))

    def on_authenticated(self, buf: Buffer, start: int, end: int) -> str | None:
        """A SaslAuthenticate answer: the principal (`User:alice`, or `unknown`) if the broker has accepted it with this
        answer, None if it was refused or if there are more steps.

        Raises:
            MalformedFrame: it isn't the answer to the oldest unanswered request.
        """
        if not self._claims:
            raise MalformedFrame("a SaslAuthenticate answer that nobody asked for")
        version, mechanism, principal = self._claims.popleft()
        pos = skip(start, 4, end)
        if version >= _SASL_FLEXIBLE:
            pos = skip_tags(buf, pos, end)
        error, pos = int16(buf, pos, end)
        _, pos = compact_string(buf, pos, end) if version >= _SASL_FLEXIBLE else string(buf, pos, end)
        token, pos = _token(buf, pos, end, version)
        if version >= 1:
            pos = skip(pos, 8, end)  # session lifetime
        if version >= _SASL_FLEXIBLE:
            pos = skip_tags(buf, pos, end)
        at_end(pos, end)
        return principal if error == 0 and _is_last_step(mechanism, token) else None

    def _claimed(self, token: bytes) -> str:
        if self._mechanism == b"PLAIN":
            return _plain_name(token)
        if self._mechanism == b"OAUTHBEARER":
            return _bearer_name(token)
        if self._mechanism.startswith(b"SCRAM-SHA-"):
            if not token.startswith(b"c="):  # the first message; the final one names nobody
                self._scram_name = _scram_name(token)
            return self._scram_name
        return UNKNOWN


def _request_head(buf: Buffer, start: int, end: int) -> tuple[int, int]:
    version, _ = int16(buf, start + 2, end)
    _, pos = string(buf, skip(start, _REQUEST_HEAD, end), end)
    return version, pos


def _token(buf: Buffer, pos: int, end: int, version: int) -> tuple[bytes, int]:
    if version >= _SASL_FLEXIBLE:
        size, pos = uvarint(buf, pos, end)
        size -= 1
    else:
        size, pos = int32(buf, pos, end)
    after = skip(pos, size, end)  # null isn't allowed here, and a negative size doesn't fit
    return bytes(buf[pos:after]), after


def _is_last_step(mechanism: bytes, token: bytes) -> bool:
    # A broker accepts PLAIN with an empty token. A SCRAM exchange is over with the server's signature ("v="); its first
    # answer ("r=") has error code 0 as well. A refused OAUTHBEARER token is answered with error code 0 and a JSON text,
    # the error comes a step later (RFC 7628, 3.2.2).
    if mechanism.startswith(b"SCRAM-SHA-"):
        return token.startswith(b"v=")
    return mechanism not in (b"PLAIN", b"OAUTHBEARER") or not token


def _principal(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return UNKNOWN
    return f"User:{text}" if 0 < len(text) <= _MAX_NAME else UNKNOWN


def _plain_name(token: bytes) -> str:
    parts = token.split(b"\0")  # [authorization id] NUL user NUL password; the broker wants the first empty or the same
    return _principal(parts[1]) if len(parts) == 3 and parts[0] in (b"", parts[1]) else UNKNOWN


def _scram_name(token: bytes) -> str:
    # n,[a=authzid],n=user,r=nonce[,extensions]; ',' and '=' of a name are =2C and =3D. With the extension
    # tokenauth=true "user" is the id of a delegation token (KIP-48), and who owns it only the broker knows.
    fields = token.split(b",")
    if len(fields) < 4 or not fields[2].startswith(b"n=") or b"tokenauth=true" in fields[4:]:
        return UNKNOWN
    return _principal(fields[2][2:].replace(b"=2C", b",").replace(b"=3D", b"="))


def _bearer_name(token: bytes) -> str:
    # n,[a=authzid],\x01auth=Bearer <JWT>\x01...\x01; the name is the claim `sub`, the default of the broker's
    # sasl.oauthbearer.sub.claim.name. The signature is the broker's business.
    if len(token) > _MAX_TOKEN:
        return UNKNOWN
    for field in token.split(b"\x01"):
        kind, _, value = field.partition(b" ")
        if kind.lower() == b"auth=bearer":
            return _subject(value.strip())
    return UNKNOWN


def _subject(jwt: bytes) -> str:
    parts = jwt.split(b".")
    if len(parts) != 3:
        return UNKNOWN
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return UNKNOWN
    subject = claims.get("sub") if isinstance(claims, dict) else None
    if not isinstance(subject, str):
        return UNKNOWN
    return _principal(subject.encode(errors="replace"))
