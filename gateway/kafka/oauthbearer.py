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

from gateway.http.http_client import HttpError, fetch_url
from gateway.system.hosts import holds_credentials
from gateway.tls.broker_tls import InvalidProperties

MECHANISM: Final = "OAUTHBEARER"
PROPERTY_PREFIX: Final = "sasl.oauthbearer."
UNSECURED_PROPERTY: Final = "enable.sasl.oauthbearer.unsecure.jwt"
BEARER_PROPERTIES: Final = frozenset(
    {
        f"{PROPERTY_PREFIX}method",
        f"{PROPERTY_PREFIX}client.id",
        f"{PROPERTY_PREFIX}client.secret",
        f"{PROPERTY_PREFIX}token.endpoint.url",
        f"{PROPERTY_PREFIX}scope",
        f"{PROPERTY_PREFIX}extensions",
        f"{PROPERTY_PREFIX}config",
        UNSECURED_PROPERTY,
        "https.ca.location",
    }
)

RENEWAL_SHARE: Final = 0.8  # of a token's time, as librdkafka has it
DEFAULT_LIFETIME_S: Final = 60.0  # of a token whose issuer doesn't say it
FETCH_TIMEOUT_S: Final = 10.0
MAX_TOKEN_BYTES: Final = 2**20
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_EXTENSION: Final = re.compile(r"[A-Za-z]+=[\x21-\x7E \t]+")


class NoTokenError(Exception):
    """The issuer gives none: one line, without a secret."""


class TokenSource(NamedTuple):
    """Where tokens come from. `url` "": they are made here, unsecured, with `claims`."""

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    extensions: tuple[str, ...] = ()  # KEY=VALUE, for the broker (KIP-342)
    ca: str = ""
    claims: tuple[tuple[str, Any], ...] = ()
    lifetime_s: float = 3600.0


def parse_token_source(properties: Mapping[str, str]) -> TokenSource:
    """
    Raises:
        InvalidProperties: one is missing, or can't be used.
    """
    if properties.get(UNSECURED_PROPERTY, "false").lower() == "true":
        return _unsecured_source(properties.get(f"{PROPERTY_PREFIX}config", ""))
    if properties.get(f"{PROPERTY_PREFIX}method", "default").lower() != "oidc":
        raise InvalidProperties(f"{PROPERTY_PREFIX}method: must be oidc with sasl.mechanism {MECHANISM}")
    for key in ("client.id", "client.secret", "token.endpoint.url"):
        if not properties.get(PROPERTY_PREFIX + key):
            raise InvalidProperties(f"{PROPERTY_PREFIX}{key}: needed with {PROPERTY_PREFIX}method oidc")
    url = properties[f"{PROPERTY_PREFIX}token.endpoint.url"]
    if holds_credentials(url):
        raise InvalidProperties(
            f"{PROPERTY_PREFIX}token.endpoint.url: a user name or a password doesn't belong there: give client.id and"
            " client.secret"
        )
    if not url.startswith(("https://", "http://")):
        raise InvalidProperties(f"{PROPERTY_PREFIX}token.endpoint.url: must begin with https://")
    extensions = tuple(filter(None, properties.get(f"{PROPERTY_PREFIX}extensions", "").split(",")))
    return TokenSource(
        url,
        properties[f"{PROPERTY_PREFIX}client.id"],
        properties[f"{PROPERTY_PREFIX}client.secret"],
        properties.get(f"{PROPERTY_PREFIX}scope", ""),
        _check_extensions(extensions, f"{PROPERTY_PREFIX}extensions"),
        properties.get("https.ca.location", ""),
    )


def _check_extensions(extensions: tuple[str, ...], key: str) -> tuple[str, ...]:
    if not all(_EXTENSION.fullmatch(each) for each in extensions):
        raise InvalidProperties(f"{key}: must be KEY=VALUE,KEY=VALUE, keys of letters alone")
    return extensions


def _unsecured_source(config: str) -> TokenSource:
    given = dict(part.partition("=")[::2] for part in config.split())
    extensions = tuple(f"{key[10:]}={value}" for key, value in given.items() if key.startswith("extension_"))
    principal, seconds = given.get("principal", ""), given.get("lifeSeconds", "3600")
    if not principal or not seconds.isdigit() or not int(seconds):
        raise InvalidProperties(
            f"{PROPERTY_PREFIX}config: must say principal=NAME, and lifeSeconds as a number if at all"
        )
    claims: dict[str, Any] = {given.get("principalClaimName", "sub"): principal}
    if "scope" in given:
        claims[given.get("scopeClaimName", "scope")] = given["scope"].split(",")
    checked = _check_extensions(extensions, f"{PROPERTY_PREFIX}config")
    return TokenSource("", extensions=checked, claims=tuple(claims.items()), lifetime_s=float(seconds))


def client_first_message(token: str, extensions: tuple[str, ...]) -> bytes:
    """A client's first message (RFC 7628, 3.1)."""
    return "\x01".join(["n,,", f"auth=Bearer {token}", *extensions, "", ""]).encode()


def read_token_file(path: str) -> str:
    """The token in a file that another program renews.

    Raises:
        NoTokenError: there is none.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise NoTokenError(f"{path} can't be read: {error.strerror}") from error
    if not _TOKEN.fullmatch(text):
        raise NoTokenError(f"{path}: has no valid Bearer token (RFC 6750)")
    return text


class TokenCache:
    """One client's token, fetched when there is none or its time is nearly over; for any thread. `now`: Unix time."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._source: TokenSource | None = None
        self._token = ""
        self._renew_at = 0.0

    def get_token(self, bearer: TokenSource) -> str:
        """
        Raises:
            NoTokenError: see there.
        """
        with self._lock:
            now = self._now()
            if bearer != self._source or now >= self._renew_at:
                self._token, lasts_s = (
                    _fetch_token(bearer) if bearer.url else (_make_unsecured_token(bearer, now), bearer.lifetime_s)
                )
                self._source, self._renew_at = bearer, now + lasts_s * RENEWAL_SHARE
            return self._token


def _make_unsecured_token(bearer: TokenSource, now: float) -> str:
    claims = {**dict(bearer.claims), "iat": int(now), "exp": int(now + bearer.lifetime_s)}
    parts = (urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return b".".join((*parts, b"")).decode()


def _fetch_token(bearer: TokenSource) -> tuple[str, float]:
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
        answer = fetch_url(
            bearer.url,
            timeout_s=FETCH_TIMEOUT_S,
            max_bytes=MAX_TOKEN_BYTES,
            method="POST",
            headers=headers,
            body=urllib.parse.urlencode(form).encode(),
            trust=trust,
        )
    except (HttpError, OSError) as error:
        raise NoTokenError(f"{bearer.url}: {error}") from error
    if answer.status != 200:
        raise NoTokenError(f"{bearer.url}: answers {answer.status} {answer.reason}")
    try:
        response = json.loads(answer.body)
        token, lasts_s = str(response["access_token"]), float(response.get("expires_in", DEFAULT_LIFETIME_S))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoTokenError(f"{bearer.url}: answers without an access_token") from None
    if not _TOKEN.fullmatch(token):
        raise NoTokenError(f"{bearer.url}: the access_token is not a valid Bearer token (RFC 6750)")
    return token, lasts_s
