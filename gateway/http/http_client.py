# The gateway's own HTTP client, for its commands and for Prometheus: one request and its answer, bounded as a whole in
# time and in size. A redirect is an answer like any other: following it would carry the credentials wherever it says.
# Knows no address.

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import trio

from gateway.tls.tls_reasons import BROKEN_RECORD, NOT_TLS, openssl_reason

logging.getLogger("httpx").setLevel(logging.WARNING)  # else it logs each request

_CERTIFICATE_WANTED: Final = (
    *("TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE"),
    *("SSLV3_ALERT_HANDSHAKE_FAILURE", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"),
)
HEADERS: Final = {"User-Agent": "produce-gateway", "Accept-Encoding": "identity", "Connection": "close"}


class HttpError(Exception):
    """There is no answer; one line."""


TlsFault = Literal["untrusted", "plain", "wanted", "other"]


class TlsError(HttpError):
    """There is no TLS. `fault`: its certificate isn't trusted; it speaks none; it wants a client certificate."""

    def __init__(self, text: str, fault: TlsFault) -> None:
        super().__init__(text)
        self.fault: TlsFault = fault


class ResponseTooLarge(HttpError):
    """There is more of it than the caller takes."""


class HttpResponse(NamedTuple):
    status: int
    reason: str
    headers: Mapping[str, str]  # by names in any case
    body: bytes


def fetch_url(
    url: str,
    *,
    timeout_s: float,
    max_bytes: int,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    trust: ssl.SSLContext | None = None,
    proxies: bool = False,
) -> HttpResponse:
    """Ask once. Blocks, for `timeout_s` at most, name resolution and a TLS handshake included: a time limit of each
    read would begin again with each byte. Call it where trio doesn't run: in a command, or in a thread.

    Args:
        max_bytes: of the answer's body.
        trust: for https; None: the system's authorities.
        proxies: whether the environment's proxies are used.

    Raises:
        HttpError: no whole answer.
    """
    # Here, since it brings a command line of its own along: a tenth of control's start, and few gateways ever ask.
    import httpx  # noqa: PLC0415

    if trust is None:
        is_tls = url.lower().startswith("https:")
        trust = ssl.create_default_context() if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts none

    async def ask() -> HttpResponse:
        streams: list[Any] = []
        found = bytearray()

        async def keep(event: str, info: Mapping[str, Any]) -> None:
            if event.endswith("connect_tcp.complete"):
                streams.append(info["return_value"])

        try:
            with trio.move_on_after(timeout_s) as scope:
                client = httpx.AsyncClient(verify=trust, trust_env=proxies, timeout=None, headers=HEADERS)  # noqa: S113
                asking = client.stream(method, url, headers=headers, content=body, extensions={"trace": keep})
                async with client, asking as response:
                    async for part in response.aiter_raw():
                        found += part
                        if len(found) > max_bytes:
                            scope.cancel()  # leaving the loop would leave httpx's generators as they are
                if len(found) <= max_bytes:
                    return HttpResponse(response.status_code, response.reason_phrase, response.headers, bytes(found))
        finally:
            for stream in streams:  # where time runs out in a TLS handshake, httpx leaves its socket open
                await stream.aclose()
        if len(found) > max_bytes:
            raise ResponseTooLarge(f"the answer is larger than {max_bytes:,} bytes")
        raise HttpError("timed out")

    try:
        return trio.run(ask)
    except httpx.LocalProtocolError:  # h11 would say the header with its value, which may be a token
        raise HttpError("a header or the address holds a character that HTTP does not allow") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ImportError) as error:  # of a proxy's address
        below = _root_cause(error)
        if isinstance(below, ssl.SSLError):
            raise _tls_error(below) from error
        raise HttpError(_error_text(below)) from error


def _root_cause(error: BaseException) -> BaseException:
    """The system's error, below those of the libraries on top of it."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below.exceptions[-1] if isinstance(below, BaseExceptionGroup) else below
    return error


def _tls_error(error: ssl.SSLError) -> TlsError:
    reason = openssl_reason(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"its certificate can't be verified: {error.verify_message}", "untrusted")
    if reason in (*NOT_TLS, BROKEN_RECORD):  # in the handshake; records that are broken behind it are rare
        return TlsError("there is no TLS", "plain")
    if reason in _CERTIFICATE_WANTED:
        return TlsError("it wants a client certificate, or another one", "wanted")
    return TlsError(f"TLS failed: {_error_text(error)}", "other")


def _error_text(error: BaseException) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(getattr(error, "strerror", None) or error or "").split()) or type(error).__name__
