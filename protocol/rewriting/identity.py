# A client's identity, read from the bytes that pass: its software (ApiVersions v3+, KIP-511) and its SASL principal.
#
# Where SASL passes through, the gateway authenticates no client. It reads the name that one claims, exactly as the
# broker does, and believes it when the broker has accepted that very request; passwords, proofs and tokens are looked
# at for the name in them and never kept. Where only the broker knows the name (GSSAPI, delegation tokens, mechanisms of
# one's own) the principal is `unknown`, never a guess and never ANONYMOUS; where two readers could differ, the
# connection ends.
#
# The session knows which request an answer belongs to: nothing here waits for answers.
#
# Specs: KIP-43, KIP-152 (SaslAuthenticate), KIP-368 (re-authentication); RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628
# (OAUTHBEARER), RFC 7519 (JWT).

from __future__ import annotations

import json
import re
import unicodedata
from base64 import b64decode
from typing import Any, Final, NamedTuple

from protocol import api
from protocol.wire import (
    Buffer,
    MalformedFrame,
    check_end,
    read_compact_string,
    read_int16,
    read_int32,
    read_string,
    read_uvarint,
    skip_bytes,
    skip_tags,
)

UNKNOWN_PRINCIPAL = "unknown"  # without "User:": it can't be mistaken for a user of that name
_SOFTWARE = re.compile(rb"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")  # as the broker checks it (KIP-511)
_MAX_SOFTWARE = 128  # goes into log lines and metric labels
MAX_NAME_CHARS: Final = 1024  # characters of a principal's name
_MAX_TOKEN = 512 * 1024  # the default of the broker's sasl.server.max.receive.size
_MAX_FIELDS = 64
_REQUEST_HEAD = 8  # api key, api version, correlation id
_SASL_FLEXIBLE = 2
_SCRAM = frozenset((b"SCRAM-SHA-256", b"SCRAM-SHA-512"))
_MECHANISMS = _SCRAM | {b"PLAIN", b"OAUTHBEARER", b"GSSAPI"}
_SPECIAL = frozenset((b"auth", b"tokenauth"))  # keys that decide whom a message names
JAVA_TRIMMED: Final = "".join(map(chr, range(0x21)))  # the characters that Java's String.trim removes
_URL_TO_BASE64 = bytes.maketrans(b"-_", b"+/")

# No two parts of a pattern can match the same bytes, so none takes longer than its message is long. Not by possessive
# repetition: in Python up to 3.11.4 it fails where it should match.
_PLAIN = rb"[\x01-\x2B\x2D-\x3C\x3E-\x7F]"  # anything but ',' and '='
SCRAM_NAME: Final = rb"(?:" + _PLAIN + rb"|=2C|=3D)" + _PLAIN + rb"*(?:=(?:2C|3D)" + _PLAIN + rb"*)*"
_SCRAM_FIRST = re.compile(
    rb"n,(?:a=" + SCRAM_NAME + rb")?,(m=[\x01-\x2B\x2D-\x7F]+,)?n=(" + SCRAM_NAME + rb"),r=[\x21-\x2B\x2D-\x7E]+"
    rb"((?:,[A-Za-z]+=[\x01-\x2B\x2D-\x7F]+)*)"
)
_BEARER_FIRST = re.compile(rb"n,(?:a=" + SCRAM_NAME + rb")?,\x01((?:[A-Za-z]+=[\x21-\x7E \t\r\n]+\x01)*)\x01")
_BEARER_AUTH = re.compile(rb"(?i:bearer) +([-_~+/.a-zA-Z0-9]+=*)")


# --- names that the gateway gives ------------------------------------------------------------------------------------

# Categories of Unicode: control characters, surrogates (which UTF-8 can't hold), format characters (which make two
# names look alike), characters without a meaning that all share, line and paragraph separators.
_UNPRINTABLE = frozenset(("Cc", "Cs", "Cf", "Cn", "Co", "Zl", "Zp"))


class UnusableName(ValueError):
    """No client can be called that. The text says why and doesn't repeat the name."""


def principal_name(text: str | bytes) -> str:
    """The name of a principal that the gateway itself makes, of text from outside: a client's message, a
    token, a certificate, a file. Whatever it becomes a part of (messages between processes, records, log lines) can
    hold it.

    Raises:
        UnusableName: it isn't 1 to 1,024 printable characters of UTF-8, or would be ANONYMOUS.
    """
    try:
        name = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise UnusableName("is not UTF-8") from None
    if not name or len(name) > MAX_NAME_CHARS:
        raise UnusableName(f"has {len(name)} characters, 1 to {MAX_NAME_CHARS} are allowed")
    if name != name.strip():
        raise UnusableName("begins or ends with a space")
    if not name.isascii() or not name.isprintable():
        unprintable = next((char for char in name if unicodedata.category(char) in _UNPRINTABLE), "")
        if unprintable:
            raise UnusableName(f"has the unprintable character U+{ord(unprintable):04X}")
    if name == "ANONYMOUS":
        raise UnusableName("is that of clients that have not authenticated")
    return name


# --- software ---------------------------------------------------------------------------------------------------------


def read_software(buf: Buffer, start: int, end: int) -> tuple[str, str] | None:
    """Name and version of the client's software from its ApiVersions request; None where it gives none (below v3).

    Also None for a name that a broker would refuse. Requests above v5 are read up to the version: the fields behind it
    aren't known here, and these two are the first of every later version. Cluster id and node id (v5, KIP-1242) are
    the broker's to compare: a node's listener here leads to that node alone.

    Raises:
        MalformedFrame: the request ends too early, or (v0 to v5) not where it should.
    """
    version, pos = _request_head(buf, start, end)
    if version < 3:
        check_end(pos, end)
        return None
    pos = skip_tags(buf, pos, end)
    name, pos = read_compact_string(buf, pos, end)
    release, pos = read_compact_string(buf, pos, end)
    if version == 5:
        _, pos = read_compact_string(buf, pos, end)  # cluster id
        pos = skip_bytes(pos, 4, end)  # node id
    if version <= api.HIGHEST_VERSIONS[api.API_VERSIONS]:
        check_end(skip_tags(buf, pos, end), end)
    texts = _software_text(name), _software_text(release)
    return texts if all(texts) else None


def _software_text(value: bytes | None) -> str:
    fits = value is not None and len(value) <= _MAX_SOFTWARE and _SOFTWARE.fullmatch(value)
    return fits.group().decode("ascii") if fits else ""


# --- SASL -------------------------------------------------------------------------------------------------------------


class AmbiguousIdentity(MalformedFrame):
    """A token that two readers could understand as two principals: the connection must be closed."""


class SaslRefused(Exception):
    """The broker refused a step of SASL, with that error code; the text is its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class SaslClaim(NamedTuple):
    """The principal that one SaslAuthenticate request claims; it belongs to the answer to that request, and to no
    other.
    """

    version: int  # of the request, and so of its answer
    mechanism: bytes  # as Kafka spells its own; empty for any other
    principal: str  # User:alice, or `unknown`


class SaslFollower:
    """Follows SaslHandshake and SaslAuthenticate requests of one connection in order, re-authentication included.

    Each handshake begins a new exchange. A claim is believed only when `accepted_principal` says so of its answer.
    """

    __slots__ = ("_mechanism", "_scram_principal")

    def __init__(self) -> None:
        self._mechanism: bytes | None = None  # None before the first handshake
        self._scram_principal: str | None = None  # from the first message of this exchange; the final one has no name

    def on_handshake(self, buf: Buffer, start: int, end: int) -> int:
        """Read a SaslHandshake request. Returns its version, which decides how the exchange goes on.

        After version 0 the client sends raw tokens, not Kafka frames (KIP-152): a gateway that lets it pass can read
        nothing of that connection until the exchange is over.

        Raises:
            MalformedFrame: it isn't a SaslHandshake request.
        """
        version, pos = _request_head(buf, start, end)
        mechanism, pos = read_string(buf, pos, end)
        check_end(pos, end)
        if mechanism is None:
            raise MalformedFrame("a SaslHandshake request without a mechanism")
        # Compared as the broker does: by its exact spelling. Nothing of another name is kept.
        self._mechanism = mechanism if mechanism in _MECHANISMS else b""
        self._scram_principal = None
        return version

    def read_claim(self, buf: Buffer, start: int, end: int) -> SaslClaim:
        """Read a SaslAuthenticate request. Claims the principal that the broker will give its sender, if it accepts it.

        The principal is `unknown` where the broker alone knows it: delegation tokens, OAUTHBEARER tokens that aren't
        JWTs, GSSAPI and mechanisms of one's own; also for messages that Kafka refuses. Else it is exactly the broker's,
        with at most 1,024 characters, of any kind.

        Raises:
            AmbiguousIdentity: the broker may read another principal in it, or it is over 512 KiB long.
            MalformedFrame: it isn't a SaslAuthenticate request, or no SaslHandshake came before it.
        """
        version, pos = _request_head(buf, start, end)
        if version >= _SASL_FLEXIBLE:
            pos = skip_tags(buf, pos, end)
        token, pos = _read_token(buf, pos, end, version)
        if version >= _SASL_FLEXIBLE:
            pos = skip_tags(buf, pos, end)
        check_end(pos, end)
        if len(token) > _MAX_TOKEN:
            raise AmbiguousIdentity(f"a SASL token of {len(token)} bytes")
        mechanism = self._mechanism
        if mechanism is None:
            raise MalformedFrame("SaslAuthenticate without a SaslHandshake before it")
        if mechanism not in _SCRAM:
            return SaslClaim(version, mechanism, _claimed_principal(mechanism, token))
        if self._scram_principal is None:
            self._scram_principal = _scram_principal(token)
        return SaslClaim(version, mechanism, self._scram_principal)


def accepted_principal(buf: Buffer, start: int, end: int, claim: SaslClaim) -> str | None:
    """The answer to the SaslAuthenticate request that made this claim: its principal if the broker has accepted it with
    this answer, None if there are more steps.

    Of a mechanism that isn't Kafka's own the first answer without an error counts, as the gateway can't recognise its
    last.

    Raises:
        SaslRefused: the broker has not.
        MalformedFrame: it isn't a SaslAuthenticate answer of that version.
    """
    version = claim.version
    pos = skip_bytes(start, 4, end)
    if version >= _SASL_FLEXIBLE:
        pos = skip_tags(buf, pos, end)
    error, pos = read_int16(buf, pos, end)
    message, pos = read_compact_string(buf, pos, end) if version >= _SASL_FLEXIBLE else read_string(buf, pos, end)
    token, pos = _read_token(buf, pos, end, version)
    if version >= 1:
        pos = skip_bytes(pos, 8, end)  # session lifetime
    if version >= _SASL_FLEXIBLE:
        pos = skip_tags(buf, pos, end)
    check_end(pos, end)
    if error:
        raise SaslRefused(error, (message or b"").decode("utf-8", "replace") or f"error {error}")
    return claim.principal if _is_last_step(claim.mechanism, token) else None


def _request_head(buf: Buffer, start: int, end: int) -> tuple[int, int]:
    version, _ = read_int16(buf, start + 2, end)
    _, pos = read_string(buf, skip_bytes(start, _REQUEST_HEAD, end), end)
    return version, pos


def _read_token(buf: Buffer, pos: int, end: int, version: int) -> tuple[bytes, int]:
    if version >= _SASL_FLEXIBLE:
        size, pos = read_uvarint(buf, pos, end)
        size -= 1
    else:
        size, pos = read_int32(buf, pos, end)
    after = skip_bytes(pos, size, end)  # null isn't allowed here, and a negative size doesn't fit
    return bytes(buf[pos:after]), after


def _is_last_step(mechanism: bytes, token: bytes) -> bool:
    # A SCRAM exchange is over with the server's signature ("v="); its first answer ("r=") has error code 0 as well. So
    # have all steps of GSSAPI, and a refused OAUTHBEARER token: its answer is a JSON text, and the error comes a step
    # later (RFC 7628, 3.2.2). Where Kafka accepts these or PLAIN, its answer is empty.
    if mechanism in _SCRAM:
        return token.startswith(b"v=")
    return not token or not mechanism


# --- whom a token names -----------------------------------------------------------------------------------------------
#
# As the classes of Kafka 4.3 read it; tests/integration/security/test_sasl_identity.py holds this to them. The grammars
# are from ScramMessages and OAuthBearerClientInitialResponse, with possessive quantifiers: one pass over any text.
# Where these classes take one of two, or drop or repair something, another reader may not: that is ambiguous.


def _claimed_principal(mechanism: bytes, token: bytes) -> str:
    if mechanism == b"PLAIN":
        return _plain_principal(token)
    return _bearer_principal(token) if mechanism == b"OAUTHBEARER" else UNKNOWN_PRINCIPAL


def _plain_principal(token: bytes) -> str:
    # [authorization id] NUL user NUL password. The broker accepts no authorization id but the user itself.
    parts = token.split(b"\0", 3)
    return _user_principal(parts[1]) if len(parts) == 3 else UNKNOWN_PRINCIPAL


def _scram_principal(token: bytes) -> str:
    # ',' and '=' of a name are =2C and =3D. With the extension tokenauth=true the name is the id of a delegation token
    # (KIP-48), and only the broker knows its owner.
    found = _SCRAM_FIRST.fullmatch(token)
    if found is None:
        return UNKNOWN_PRINCIPAL
    reserved, name, extensions = found.groups()
    if reserved:
        raise AmbiguousIdentity("a SCRAM message with m=, which RFC 5802 reserves")
    if _read_fields(extensions[1:], b",").get(b"tokenauth", b"").lower() == b"true":
        return UNKNOWN_PRINCIPAL
    return _user_principal(name.replace(b"=2C", b",").replace(b"=3D", b"="))


def _bearer_principal(token: bytes) -> str:
    jwt = bearer_token(token)
    return UNKNOWN_PRINCIPAL if jwt is None else _jwt_principal(jwt)


def bearer_token(message: bytes) -> bytes | None:
    """The token in a client's first message of OAUTHBEARER; None where there is none.

    Raises:
        AmbiguousIdentity: there may be several.
    """
    found = _BEARER_FIRST.fullmatch(message)
    if found is None:
        return None
    auth = _BEARER_AUTH.fullmatch(_read_fields(found[1][:-1], b"\x01").get(b"auth", b""))
    return auth[1] if auth else None


def _read_fields(text: bytes, separator: bytes) -> dict[bytes, bytes]:
    """KEY=VALUE by key, where no two keys could be taken for one another."""
    if not text:
        return {}
    parts = text.split(separator, _MAX_FIELDS)
    fields = {key: value for key, _, value in (part.partition(b"=") for part in parts)}
    folded = {key.lower() for key in fields}
    if len(folded) < len(parts) or len(parts) > _MAX_FIELDS or not folded & _SPECIAL <= fields.keys():
        raise AmbiguousIdentity("SASL extensions that repeat a key, or in other letters, or are too many")
    return fields


def _jwt_principal(jwt: bytes) -> str:
    # The claim `sub` is the default of the broker's sasl.oauthbearer.sub.claim.name. The signature is its business.
    parts = jwt.split(b".", 3)
    if len(parts) != 3:
        return UNKNOWN_PRINCIPAL  # Kafka's validators accept only signed JWTs; an operator's own may accept others
    header, claims = _json_object(parts[0]), _json_object(parts[1])
    subjects = [value for name, value in claims if name == "sub"]
    if not subjects:
        return UNKNOWN_PRINCIPAL
    subject = subjects[0]
    if len(subjects) > 1 or not isinstance(subject, str):
        raise AmbiguousIdentity("a JWT whose sub is there twice, or is not a string")  # one validator makes true "true"
    if subject != subject.strip(JAVA_TRIMMED):
        raise AmbiguousIdentity("a JWT whose sub begins or ends with a space")  # one validator trims it, the other not
    if any(name == "cty" for name, _ in header):
        raise AmbiguousIdentity("a JWT that may hold another one (RFC 7519, 5.2)")
    return _user_principal(subject.encode(errors="surrogatepass"))


def _json_object(part: bytes) -> tuple[tuple[str, Any], ...]:
    """Names and values of a part of a JWT, with repeated ones. Takes only texts that all decoders of base64 and JSON
    read alike.
    """
    try:
        # Both alphabets are in use, and lenient decoders take either.
        data = b64decode(part.translate(_URL_TO_BASE64) + b"=" * (-len(part) % 4), validate=True)
        value = json.loads(data.decode(), object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        raise AmbiguousIdentity("a JWT that is not base64url of JSON in UTF-8") from None
    if not isinstance(value, tuple):
        raise AmbiguousIdentity("a JWT that is not a JSON object")
    return value


def _user_principal(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise AmbiguousIdentity("a name that is not UTF-8") from None
    if len(text) > MAX_NAME_CHARS:
        raise AmbiguousIdentity(f"a name of {len(text)} characters")
    return f"User:{text}" if text else UNKNOWN_PRINCIPAL  # the broker refuses an empty one
