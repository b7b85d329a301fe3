# The words for what is no Kafka frame: each kind of stray peer by its first bytes.

from __future__ import annotations

import ssl
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.describe import guess_protocol


def client_hello() -> bytes:
    """What a TLS client of the standard library says first."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(received, sent, server_hostname="broker").do_handshake()
    return sent.read()


@pytest.mark.parametrize(
    ("first_bytes", "words"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: broker\r\n", "an HTTP request"),
        (b"POST / HTTP/1.1\r\n", "an HTTP request"),
        (b"CONNECT broker:9092 HTTP/1.1\r\n", "an HTTP request"),
        (b"HTTP/1.1 400 Bad Request\r\n", "an HTTP response"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 5 9092\r\n", "PROXY protocol"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11", "PROXY protocol v2"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (b"EHLO mail.example\r\n", "SMTP"),
        (b"AMQP\x00\x00\x09\x01", "AMQP"),
        (b"*1\r\n$4\r\nPING\r\n", "Redis"),
        (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", "PostgreSQL"),
        (b"ruok", "ZooKeeper"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS ClientHello"),
        (b"\x16\x03\x03\x00\x40\x02\x00\x00\x3c", "a TLS handshake"),
        (b"\x16\x03\x01\x02", "a TLS handshake"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "a TLS alert"),
        (b"hello there\r\n", r"text ('hello there\r\n')"),
        (b"x" * 60, f"text ('{'x' * 24}...)"[:30]),
        (b"", "nothing at all"),
        (b"\x00\x00\x01", "cut off within its size, after 3 bytes"),
        (struct.pack(">i", -1), "a negative size (-1)"),
        (struct.pack(">i", -(2**31)), "a negative size (-2,147,483,648)"),
        (struct.pack(">i", 2**31 - 1), "a size of 2,147,483,647 bytes"),
        (struct.pack(">i", 3) + b"abc", "a size of 3 bytes"),
    ],
)
def test_the_words(first_bytes: bytes, words: str) -> None:
    assert words in guess_protocol(first_bytes)


def test_a_real_client_hello_asks_about_ssl() -> None:
    assert "is the client set to SSL" in guess_protocol(client_hello()[:64])


@pytest.mark.parametrize(
    "first_bytes",
    [b"\x00\x00\x00\x20\x00\x00\x00\x09\x00\x00\x00\x01", b"\x14\x03\x00", b"\x16\x03\x09\x00", b"\x16\x02\x01\x00"],
)
def test_kafka_like_bytes_are_not_taken_for_something_else(first_bytes: bytes) -> None:
    assert "size" in guess_protocol(first_bytes)


@given(st.binary(max_size=100))
@example(b"ok\r\nlevel=ERROR forged=1\r\n")
@example("text\u2028'\"\x1b[31m".encode())
def test_the_words_never_break_a_log_line(first_bytes: bytes) -> None:
    words = guess_protocol(first_bytes)
    assert words.isascii()
    assert words.isprintable()
    assert 0 < len(words) < 120
