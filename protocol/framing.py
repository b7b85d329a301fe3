# Where one Kafka frame ends and the next begins: the size prefix and the fixed head of a request.
#
# A frame is a 4-byte size and that many bytes; a request begins with api key, api version, correlation id. Bytes that
# can't be the head of a Kafka request are refused as soon as the first of them are here, before a byte of memory is set
# aside for it: a stray HTTP request or TLS hello reads as a frame of several hundred megabytes. Nor may a request be
# larger than those of its API are: only Produce carries data.

from __future__ import annotations

from struct import Struct

from protocol import api
from protocol.describe import guess_protocol
from protocol.wire import MalformedFrame

SIZE_PREFIX = Struct(">i")
REQUEST_HEAD = Struct(">ihhi")  # size, api key, api version, correlation id
RESPONSE_HEAD = Struct(">ii")  # size, correlation id
MIN_REQUEST_BYTES = 8  # key, version, correlation id
MAX_API_KEY = 255  # Apache Kafka 4.4 uses 0..94; far above it there is only noise
MAX_API_VERSION = 63


class RequestTooLarge(MalformedFrame):
    """A request larger than any of its API needs to be."""


def max_request_bytes(key: int, max_bytes: int) -> int:
    """Bytes that a request of that API may have, without its size prefix: Produce `max_bytes`, others less."""
    return (
        max_bytes if key == api.PRODUCE else min(max_bytes, api.MAX_REQUEST_BYTES.get(key, api.MAX_OTHER_REQUEST_BYTES))
    )


def check_request_head(buf: bytes | bytearray | memoryview, pos: int, end: int, max_bytes: int) -> int:
    """The whole length (with its prefix) of the request that begins at `pos`, 0 if too few bytes have arrived.

    Raises:
        MalformedFrame: this can't be a Kafka request, or it is larger than `max_bytes`; the message describes it.
        RequestTooLarge: it is larger than the `max_request_bytes` of its API.
    """
    if end - pos < 4:
        return 0
    (size,) = SIZE_PREFIX.unpack_from(buf, pos)
    if not MIN_REQUEST_BYTES <= size <= max_bytes:
        found = guess_protocol(bytes(buf[pos : min(end, pos + 64)]))
        raise MalformedFrame(f"{found} (at most {max_bytes} bytes allowed)" if " size" in found else found)
    if end - pos < 12:
        return 0
    _, key, version, _ = REQUEST_HEAD.unpack_from(buf, pos)
    if not (0 <= key <= MAX_API_KEY and 0 <= version <= MAX_API_VERSION):
        raise MalformedFrame(f"not a Kafka request: API key {key}, version {version}")
    most = max_request_bytes(key, max_bytes)
    if size > most:
        name = api.API_NAMES.get(key, f"a request with API key {key}")
        raise RequestTooLarge(f"{name} of {size} bytes (at most {most} bytes allowed)")
    return int(size) + 4


def unsupported_version(key: int, version: int) -> MalformedFrame:
    """The error for a version that the gateway doesn't speak: only a client that ignores our ApiVersions answer sends
    one, and a broker closes such a connection as well.
    """
    low, high = api.LOWEST_VERSIONS.get(key, 0), api.HIGHEST_VERSIONS[key]
    return MalformedFrame(f"{api.API_NAMES[key]} version {version}: versions {low} to {high} are spoken")


def check_response_head(buf: bytes | bytearray | memoryview, pos: int, end: int) -> int:
    """The whole length of the answer that begins at `pos`, 0 if its size prefix and correlation id aren't here yet."""
    if end - pos < 8:
        return 0
    (size,) = SIZE_PREFIX.unpack_from(buf, pos)
    if size < 4:
        raise MalformedFrame(f"an upstream answer with a size of {size} bytes")
    return int(size) + 4


def is_tls_alert(buf: bytes | bytearray | memoryview, pos: int, end: int) -> bool:
    """Whether buf[pos:end], where an answer begins, is an alert of TLS instead. As a Kafka frame it would be one of 352
    MB.
    """
    return end - pos >= 7 and buf[pos : pos + 2] == b"\x15\x03" and buf[pos + 3 : pos + 5] == b"\0\x02"
