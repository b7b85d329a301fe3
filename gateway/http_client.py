# The gateway's own HTTP client, for its commands and for Prometheus: one request and its answer, bounded as a whole in
# time and in size. A redirect is an answer like any other: following it would carry the credentials wherever it says.
# Knows no address.

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import httpx
import trio

HEADERS: Final = {"User-Agent": "produce-gateway", "Accept-Encoding": "identity", "Connection": "close"}


class HttpError(Exception):
    """There is no answer; one line."""


class AnswerTooLarge(HttpError):
    """There is more of it than the caller takes."""


class Answer(NamedTuple):
    status: int
    reason: str
    headers: Mapping[str, str]  # by names in any case
    body: bytes


def fetch(
    url: str,
    *,
    timeout_s: float,
    max_bytes: int,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    trust: ssl.SSLContext | None = None,
    proxies: bool = False,
) -> Answer:
    """Ask once. Blocks, for `timeout_s` at most, name resolution and a TLS handshake included: a time limit of each
    read would begin again with each byte. Call it where trio doesn't run: in a command, or in a thread.

    Args:
        max_bytes: of the answer's body.
        trust: for https; None: the system's authorities.
        proxies: whether the environment's proxies are used.

    Raises:
        HttpError: no whole answer.
    """
    if trust is None:
        is_tls = url.lower().startswith("https:")
        trust = ssl.create_default_context() if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody

    async def ask() -> Answer:
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
                    return Answer(response.status_code, response.reason_phrase, response.headers, bytes(found))
        finally:
            for stream in streams:  # where time runs out in a TLS handshake, httpx leaves its socket open
                await stream.aclose()
        if len(found) > max_bytes:
            raise AnswerTooLarge(f"the answer is larger than {max_bytes:,} bytes")
        raise HttpError("timed out")

    try:
        return trio.run(ask)
    except httpx.LocalProtocolError:  # h11 would say the header with its value, which may be a token
        raise HttpError("a header or the address holds a character that HTTP does not allow") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ImportError) as error:  # of a proxy's address
        raise HttpError(_reason(error)) from error


def _reason(error: BaseException) -> str:
    """What the system said, below what the libraries on top of it make of that."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below.exceptions[-1] if isinstance(below, BaseExceptionGroup) else below
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(getattr(error, "strerror", None) or error or "").split()) or type(error).__name__
