# A guess at bytes that are no Kafka frame, in words for the one line that is logged when a connection is closed.
#
# An operator who reads "an HTTP request" or "a TLS ClientHello" knows the cause; "a size of 1,195,725,856 bytes" is
# the same event and says nothing. Each protocol here has been seen at a Kafka port: health checks,
# scrapers, browsers, load balancers with the PROXY protocol, clients whose security.protocol isn't the listener's. It
# refuses to decide anything: whether a frame is let in is known in protocol/framing.py, this only finds words.

from __future__ import annotations

from struct import unpack_from

_HTTP_METHODS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"CONNECT ")

_PROXY_HINT = "from an address that is not in listener.proxy_protocol.from"

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"PRI * HTTP/2", "an HTTP/2 connection preface"),
    *((method, "an HTTP request") for method in _HTTP_METHODS),
    (b"HTTP/", "an HTTP response"),
    (b"PROXY ", f"a PROXY protocol header ({_PROXY_HINT})"),
    (b"\r\n\r\n\0\r\nQUIT\n", f"a PROXY protocol v2 header ({_PROXY_HINT})"),
    (b"SSH-", "an SSH client"),
    (b"EHLO", "an SMTP client"),
    (b"HELO", "an SMTP client"),
    (b"AMQP", "an AMQP client"),
    (b"CONNECT\n", "a STOMP client"),
    (b"*1\r\n$", "a Redis client"),
    (b"\0\0\0\x08\x04\xd2\x16\x2f", "a PostgreSQL SSLRequest"),
    (b"ruok", "a ZooKeeper four-letter command"),
    (b"srvr", "a ZooKeeper four-letter command"),
    (b"stat\n", "a ZooKeeper four-letter command"),
)
_TLS_RECORDS = {
    0x14: "a TLS ChangeCipherSpec",
    0x15: "a TLS alert",
    0x16: "a TLS handshake",
    0x17: "TLS application data",
}
_CLIENT_HELLO = 1
_MAX_QUOTED = 24


def guess_protocol(first_bytes: bytes) -> str:
    """The likely protocol of a frame that can't be read as Kafka's, as a noun phrase for a log line.

    Args:
        first_bytes: the bytes that are there, from the frame's size prefix on; 64 bytes are plenty, fewer than four are
            allowed.

    Returns:
        Printable ASCII of bounded length, whatever the bytes are: nothing of them can forge a log line.
    """
    for beginning, text in _BEGINNINGS:
        if first_bytes.startswith(beginning):
            return text
    if len(first_bytes) < 4:
        return f"a frame cut off within its size, after {len(first_bytes)} bytes" if first_bytes else "nothing at all"
    return _guess_tls(first_bytes) or _guess_text(first_bytes) or _size_text(first_bytes)


def _guess_tls(data: bytes) -> str | None:
    # A record is type, version 3.0 to 3.4, two bytes of length, then (in a handshake) its kind.
    if data[0] not in _TLS_RECORDS or data[1] != 3 or data[2] > 4:
        return None
    if data[0] == 0x16 and len(data) > 5 and data[5] == _CLIENT_HELLO:
        return "a TLS ClientHello (is the client set to SSL where this listener is plaintext?)"
    return _TLS_RECORDS[data[0]]


def _guess_text(data: bytes) -> str | None:
    head = data[:_MAX_QUOTED]
    if not all(32 <= byte < 127 or byte in b"\r\n\t" for byte in head):
        return None
    more = "..." if len(data) > _MAX_QUOTED else ""
    return f"text ({head.decode('ascii')!r}{more})"


def _size_text(data: bytes) -> str:
    (size,) = unpack_from(">i", data)
    return f"a negative size ({size:,})" if size < 0 else f"a size of {size:,} bytes"
