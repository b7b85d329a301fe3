# Tokens for the gateway's own connections with OAUTHBEARER: from an issuer (OIDC, client credentials), or unsecured
# ones for tests, by librdkafka's properties. A token is kept until most of its time is over.
#
# Specs: RFC 6749, 4.4 (client credentials); KIP-768; librdkafka's CONFIGURATION.md (sasl.oauthbearer.*). Blocks: for
# threads in which trio doesn't run.

from __future__ import annotations

import json
import re
import ssl
import threading
import time
import urllib.parse
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.http_client import HttpError, fetch
from gateway.tls.broker_tls import InvalidProperties

MECHANISM: Final = "OAUTHBEARER"
PREFIX: Final = "sasl.oauthbearer."
UNSECURED: Final = "enable.sasl.oauthbearer.unsecure.jwt"
KNOWN: Final = frozenset(
    {
        f"{PREFIX}method",
        f"{PREFIX}client.id",
        f"{PREFIX}client.secret",
        f"{PREFIX}token.endpoint.url",
        f"{PREFIX}scope",
        f"{PREFIX}extensions",
        f"{PREFIX}config",
        UNSECURED,
        "https.ca.location",
    }
)
RENEW_AT: Final = 0.8  # of a token's time, as librdkafka has it
DEFAULT_S: Final = 60.0  # of a token whose issuer doesn't say it
FETCH_S: Final = 10.0
MAX_BYTES: Final = 2**20
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_EXTENSION: Final = re.compile(r"[A-Za-z]+=[\x21-\x7E \t]+")


class NoToken(Exception):
    """The issuer gives none: one line, without a secret."""


class Bearer(NamedTuple):
    """Where tokens come from. `url` "": they are made here, unsecured, with `claims`."""

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    extensions: tuple[str, ...] = ()  # KEY=VALUE, for the broker (KIP-342)
    ca: str = ""
    claims: tuple[tuple[str, Any], ...] = ()
    lasts_s: float = 3600.0


def bearer_of(properties: Mapping[str, str]) -> Bearer:
    """
    Raises:
        InvalidProperties: one is missing, or can't be used.
    """
    if properties.get(UNSECURED, "false").lower() == "true":
        return _unsecured(properties.get(f"{PREFIX}config", ""))
    if properties.get(f"{PREFIX}method", "default").lower() != "oidc":
        raise InvalidProperties(f"{PREFIX}method: must be oidc with sasl.mechanism {MECHANISM}")
    for key in ("client.id", "client.secret", "token.endpoint.url"):
        if not properties.get(PREFIX + key):
            raise InvalidProperties(f"{PREFIX}{key}: needed with {PREFIX}method oidc")
    url = properties[f"{PREFIX}token.endpoint.url"]
    if not url.startswith(("https://", "http://")):
        raise InvalidProperties(f"{PREFIX}token.endpoint.url: must begin with https://")
    extensions = tuple(filter(None, properties.get(f"{PREFIX}extensions", "").split(",")))
    return Bearer(
        url,
        properties[f"{PREFIX}client.id"],
        properties[f"{PREFIX}client.secret"],
        properties.get(f"{PREFIX}scope", ""),
        _checked(extensions, f"{PREFIX}extensions"),
        properties.get("https.ca.location", ""),
    )


def _checked(extensions: tuple[str, ...], key: str) -> tuple[str, ...]:
    if not all(_EXTENSION.fullmatch(each) for each in extensions):
        raise InvalidProperties(f"{key}: must be KEY=VALUE,KEY=VALUE, keys of letters alone")
    return extensions


def _unsecured(config: str) -> Bearer:
    given = dict(part.partition("=")[::2] for part in config.split())
    extensions = tuple(f"{key[10:]}={value}" for key, value in given.items() if key.startswith("extension_"))
    principal, seconds = given.get("principal", ""), given.get("lifeSeconds", "3600")
    if not principal or not seconds.isdigit() or not int(seconds):
        raise InvalidProperties(f"{PREFIX}config: must say principal=NAME, and lifeSeconds as a number if at all")
    claims: dict[str, Any] = {given.get("principalClaimName", "sub"): principal}
    if "scope" in given:
        claims[given.get("scopeClaimName", "scope")] = given["scope"].split(",")
    checked = _checked(extensions, f"{PREFIX}config")
    return Bearer("", extensions=checked, claims=tuple(claims.items()), lasts_s=float(seconds))


def message(token: str, extensions: tuple[str, ...]) -> bytes:
    """A client's first message (RFC 7628, 3.1)."""
    return "\x01".join(["n,,", f"auth=Bearer {token}", *extensions, "", ""]).encode()


def read_token(path: str) -> str:
    """The token in a file that somebody else renews.

    Raises:
        NoToken: there is none.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise NoToken(f"{path} can't be read: {error.strerror}") from error
    if not _TOKEN.fullmatch(text):
        raise NoToken(f"{path}: has no token that fits a Bearer (RFC 6750)")
    return text


class Tokens:
    """One client's token, fetched when there is none or its time is nearly over; for any thread. `now`: Unix time."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._of: Bearer | None = None
        self._token = ""
        self._until = 0.0

    def get(self, bearer: Bearer) -> str:
        """
        Raises:
            NoToken: see there.
        """
        with self._lock:
            now = self._now()
            if bearer != self._of or now >= self._until:
                self._token, lasts_s = _ask(bearer) if bearer.url else (_made(bearer, now), bearer.lasts_s)
                self._of, self._until = bearer, now + lasts_s * RENEW_AT
            return self._token


def _made(bearer: Bearer, now: float) -> str:
    claims = {**dict(bearer.claims), "iat": int(now), "exp": int(now + bearer.lasts_s)}
    parts = (urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return b".".join((*parts, b"")).decode()


def _ask(bearer: Bearer) -> tuple[str, float]:
    """A token, and for how many seconds it holds."""
    form = {"grant_type": "client_credentials"} | ({"scope": bearer.scope} if bearer.scope else {})
    own = b64encode(f"{bearer.client_id}:{bearer.client_secret}".encode()).decode()
    headers = {
        "Authorization": f"Basic {own}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    try:
        trust = ssl.create_default_context(cafile=bearer.ca) if bearer.ca else None
        answer = fetch(
            bearer.url,
            timeout_s=FETCH_S,
            max_bytes=MAX_BYTES,
            method="POST",
            headers=headers,
            body=urllib.parse.urlencode(form).encode(),
            trust=trust,
        )
    except (HttpError, OSError) as error:
        raise NoToken(f"{bearer.url}: {error}") from error
    if answer.status != 200:
        raise NoToken(f"{bearer.url}: answers {answer.status} {answer.reason}")
    try:
        said = json.loads(answer.body)
        token, lasts_s = str(said["access_token"]), float(said.get("expires_in", DEFAULT_S))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoToken(f"{bearer.url}: answers without an access_token") from None
    if not _TOKEN.fullmatch(token):
        raise NoToken(f"{bearer.url}: the access_token is none that fits a Bearer (RFC 6750)")
    return token, lasts_s
