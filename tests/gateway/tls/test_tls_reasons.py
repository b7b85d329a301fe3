# What OpenSSL says of a peer that speaks no TLS, or whose records are broken, in the words of its older versions and of
# those from 3.2 on: an operator is told the same.

from __future__ import annotations

import ssl

import pytest

from gateway.data.sockets.tls import explain_client_error
from gateway.http.http_client import _tls_error
from gateway.tls.broker_tls import NO_TLS, BrokerTls, explain_tls_failure
from gateway.tls.tls_reasons import BROKEN_RECORD, BROKEN_RECORD_REASON, openssl_reason


def failed(first: bytes) -> ssl.SSLError:
    """What this OpenSSL says to a server that begins with these bytes."""
    incoming = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    client = context.wrap_bio(incoming, ssl.MemoryBIO())
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(first)
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    return caught.value


@pytest.mark.parametrize("first", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x20\0\0\0\1" + bytes(30)])
def test_a_server_without_tls_is_told_as_such(first: bytes) -> None:
    error = failed(first)
    assert explain_tls_failure(error, "broker", BrokerTls()) in (NO_TLS, BROKEN_RECORD_REASON)
    assert str(_tls_error(error)) == "there is no TLS"


def test_a_reason_without_a_name_is_known_by_its_text() -> None:
    newer = ssl.SSLError(1, "[SSL] record layer failure (_ssl.c:2580)")
    assert openssl_reason(newer) == BROKEN_RECORD
    assert explain_tls_failure(newer, "broker", BrokerTls()) == explain_client_error(newer) == BROKEN_RECORD_REASON
    assert str(_tls_error(newer)) == "there is no TLS"
    assert openssl_reason(ssl.SSLError(1, "[SSL] something else (_ssl.c:2580)")) == ""
