# OAUTHBEARER tokens that end at the gateway: JWTs whose signature is one of the issuer's, by its JSON Web Key Set. Keys
# come from a file, which is read again when it changes, or from an address: now and then, and when a token names one
# that isn't known, since issuers renew them.
#
# Spec: RFC 7628 (the message), RFC 7519 (JWT), RFC 7517 (JWKS); settings as in KIP-768. Knows no connection.

from __future__ import annotations

import json
import logging
import math
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import jwt
import trio
from cryptography.exceptions import UnsupportedAlgorithm

from gateway.config import AuthenticationSettings
from gateway.control.sasl.credentials import CredentialsError, WatchedFile
from gateway.http.http_client import HttpError, fetch_url
from policies.text import one_line
from protocol.authentication.scram import ScramRefused
from protocol.rewriting.identity import UnusableName, bearer_token, principal_name

log = logging.getLogger("gateway.authentication")

MAX_TOKEN: Final = 64 * 1024  # bytes; larger ones would take control's time
MAX_JWKS: Final = 2**20
FETCH_S: Final = 5.0
RETRY_S: Final = (1.0, 30.0)  # first and longest pause
UNKNOWN_S: Final = 10.0  # between two looks for keys that tokens name: strangers can name any
LATEST: Final = 253_402_300_799.0  # the end of the year 9999: the latest time that is taken from a token
# Of PyJWT for texts from an issuer, or from any client: beside its own errors those of numbers of any length, of
# names that UTF-8 can't hold, of brackets within brackets (RecursionError), of a key with the algorithm `none`
# (NotImplementedError), and of a curve that this machine's OpenSSL lacks.
UNREADABLE: Final = (jwt.PyJWTError, ValueError, TypeError, RuntimeError, UnsupportedAlgorithm)
KEY_TYPES: Final = ("RSA", "EC", "OKP")  # no secrets that the gateway would share with the issuer

Keys = Mapping[str, jwt.PyJWK]  # by id; "": of the only key, which needs none


class _KeySource(Protocol):
    async def run(self) -> None: ...

    async def find_key(self, kid: str) -> jwt.PyJWK | None: ...


class BearerTokens:
    """Checks OAUTHBEARER tokens. `now`: Unix time in seconds."""

    def __init__(self, settings: AuthenticationSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        url = settings.jwks_url
        self._keys: _KeySource = _KeyFile(url) if url.startswith("file:") else _KeyAddress(settings)

    async def run(self) -> None:
        """Keep the keys up to date."""
        await self._keys.run()

    async def check_token(self, message: bytes) -> tuple[str, float]:
        """The name in the token of a client's first message, and the Unix time at which the token expires.

        Raises:
            ScramRefused: the token is not accepted.
            CredentialsError: there are no keys.
        """
        token = bearer_token(message) if message.startswith(b"n,,") else None
        if token is None or len(token) > MAX_TOKEN:
            raise ScramRefused("OAUTHBEARER: the message is not valid, or has no usable token")
        text = token.decode("ascii")
        try:
            header = jwt.get_unverified_header(text)
        except UNREADABLE as error:
            raise ScramRefused(f"OAUTHBEARER: {one_line(str(error))}") from None
        if "crit" in header or "cty" in header:
            raise ScramRefused("OAUTHBEARER: a token with crit or cty, which the gateway does not support")
        kid = header.get("kid", "")
        key = await self._keys.find_key(kid)
        if key is None:
            raise ScramRefused(f"OAUTHBEARER: no key {one_line(repr(kid))} at {self._settings.jwks_url}")
        return self._read_claims(text, key)

    def _read_claims(self, token: str, key: jwt.PyJWK) -> tuple[str, float]:
        settings = self._settings
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=settings.audience,
                issuer=settings.issuer,
                options={"require": ["exp", settings.sub_claim], "verify_exp": False, "verify_nbf": False,
                         "verify_iat": False, "verify_sub": False},
            )  # fmt: skip
        except UNREADABLE as error:
            raise ScramRefused(f"OAUTHBEARER: {one_line(str(error))}") from None
        # The clock is ours to choose, and PyJWT's is not.
        now, skew = self._now(), settings.clock_skew_s
        expires = _claim_time(claims, "exp")
        if now >= expires + skew:
            raise ScramRefused("OAUTHBEARER: the token has expired")
        if now < max(_claim_time(claims, name) for name in ("nbf", "iat") if name in claims or name == "iat") - skew:
            raise ScramRefused("OAUTHBEARER: the token is not valid yet: check the clocks")
        name = claims[settings.sub_claim]
        if not isinstance(name, str):
            raise ScramRefused(f"OAUTHBEARER: the claim {settings.sub_claim} is not a string")
        try:
            return principal_name(name), expires + skew
        except UnusableName as error:
            raise ScramRefused(f"OAUTHBEARER: the name in the claim {settings.sub_claim} {error}") from None


def _claim_time(claims: Mapping[str, Any], name: str) -> float:
    """Unix time in seconds, at most LATEST: an issuer may write any number."""
    value = claims.get(name, 0)
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer of more than 308 digits
        number = math.nan
    if not math.isfinite(number):
        raise ScramRefused(f"OAUTHBEARER: the claim {name} is not a valid time")
    return min(number, LATEST)


# --- keys -------------------------------------------------------------------------------------------------------------


def parse_keys(text: bytes, where: str) -> Keys:
    """
    Raises:
        CredentialsError: there is no key in it that can be used.
    """
    try:
        rows = [row for row in json.loads(text)["keys"] if row["kty"] in KEY_TYPES and row.get("use", "sig") == "sig"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise CredentialsError(f"{where}: is not a JSON Web Key Set") from None
    keys = {}
    for row in rows:
        try:
            keys[str(row.get("kid", ""))] = jwt.PyJWK(row)
        except UNREADABLE as error:  # of a kind that this release doesn't know: others may still be used
            log.warning("authentication: %s: a key is left out: %s", where, one_line(str(error)))
    if not keys:
        raise CredentialsError(f"{where}: has no key for signatures ({', '.join(KEY_TYPES)})")
    return keys if len(keys) > 1 else keys | {"": next(iter(keys.values()))}


class _KeyFile:
    def __init__(self, url: str) -> None:
        self._watched_file = WatchedFile(path_of_url(url), read_keys)

    async def run(self) -> None:
        """It is checked when a client authenticates."""

    async def find_key(self, kid: str) -> jwt.PyJWK | None:
        return (await self._watched_file.get()).get(kid)


def path_of_url(url: str) -> Path:
    """The path of an address file:///…"""
    return Path(unquote(urlsplit(url).path))


def read_keys(path: Path) -> Keys:
    """
    Raises:
        CredentialsError: it can't be used.
    """
    try:
        return parse_keys(path.read_bytes(), str(path))
    except OSError as error:
        raise CredentialsError(f"{path}: can't be read: {error.strerror}") from error


class _KeyAddress:
    def __init__(self, settings: AuthenticationSettings) -> None:
        self._url = settings.jwks_url
        self._ca = settings.jwks_ca
        self._every_s = settings.jwks_refresh_ms / 1000
        self._keys: Keys | None = None
        self._problem = ""
        self._fetched_at = -math.inf
        self._renewal_lock = trio.Lock()

    async def run(self) -> None:
        pause = RETRY_S[0]
        while True:
            if await self._renew_keys(0.0):
                pause = RETRY_S[0]
                await trio.sleep(self._every_s)
            else:
                await trio.sleep(pause)
                pause = min(2 * pause, RETRY_S[1])

    async def find_key(self, kid: str) -> jwt.PyJWK | None:
        if self._keys is None or kid not in self._keys:
            await self._renew_keys(UNKNOWN_S if self._keys is not None else RETRY_S[0])
        if self._keys is None:
            raise CredentialsError(self._problem)
        return self._keys.get(kid)

    async def _renew_keys(self, after_s: float) -> bool:
        """Ask for the keys, unless they were asked for within that time. Whether they are known."""
        async with self._renewal_lock:
            if trio.current_time() < self._fetched_at + after_s:
                return self._keys is not None
            self._fetched_at = trio.current_time()
            try:
                self._keys = await trio.to_thread.run_sync(self._fetch_keys)
            except CredentialsError as error:
                if str(error) != self._problem:
                    kept = "" if self._keys is None else "; the keys that were read before stay in force"
                    log.error("authentication: %s%s", error, kept)
                self._problem = str(error)
                return False
            self._problem = ""
            return True

    def _fetch_keys(self) -> Keys:
        try:
            trust = ssl.create_default_context(cafile=self._ca) if self._ca else None
            answer = fetch_url(self._url, timeout_s=FETCH_S, max_bytes=MAX_JWKS, trust=trust)
        except (HttpError, OSError) as error:
            raise CredentialsError(f"{self._url}: {error}") from error
        if answer.status != 200:
            raise CredentialsError(f"{self._url}: answers {answer.status} {one_line(answer.reason)}")
        return parse_keys(answer.body, self._url)
