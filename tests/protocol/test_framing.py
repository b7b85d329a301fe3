# What can't be the head of a Kafka frame is refused on its first bytes.

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import api
from protocol.framing import MAX_API_KEY, RequestTooLarge, check_request_head, check_response_head, max_request_bytes
from protocol.wire import MalformedFrame

LIMIT = 1_000_000
MIB = 1024 * 1024


def head(size: int = 100, key: int = 0, version: int = 9, correlation: int = 1) -> bytes:
    return struct.pack(">ihhi", size, key, version, correlation)


@given(size=st.integers(8, LIMIT), key=st.integers(0, MAX_API_KEY), version=st.integers(0, 63))
def test_the_length_of_a_request_is_known_from_its_head(size: int, key: int, version: int) -> None:
    size = min(size, max_request_bytes(key, LIMIT))
    data = b"xx" + head(size, key, version)
    assert check_request_head(data, 2, len(data), LIMIT) == size + 4


@pytest.mark.parametrize(
    ("key", "most", "named"),
    [
        (api.PRODUCE, 100 * MIB, ""),
        (api.SASL_HANDSHAKE, 65_536, "SaslHandshake of"),
        (api.API_VERSIONS, 65_536, "ApiVersions of"),
        (api.SASL_AUTHENTICATE, 524_288, "SaslAuthenticate of"),  # as a broker's sasl.server.max.receive.size
        (api.FETCH, 16 * MIB, "Fetch of"),
        (200, 16 * MIB, "API key 200"),
    ],
)
def test_each_api_has_its_largest_request(key: int, most: int, named: str) -> None:
    assert max_request_bytes(key, 100 * MIB) == most
    assert check_request_head(head(most, key), 0, 12, 100 * MIB) == most + 4
    assert check_request_head(head(most + 1, key), 0, 11, 200 * MIB) == 0  # nobody knows yet which it is
    if key != api.PRODUCE:
        with pytest.raises(RequestTooLarge, match=f"{named}.*at most {most} bytes allowed"):
            check_request_head(head(most + 1, key), 0, 12, 100 * MIB)
    assert max_request_bytes(key, 1000) == 1000  # an operator's bound holds for all


@pytest.mark.parametrize("here", range(12))
def test_too_few_bytes_say_nothing_yet(here: int) -> None:
    assert check_request_head(head(), 0, here, LIMIT) == 0


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, LIMIT + 1, 2**31 - 1])
def test_a_size_outside_the_bounds_is_refused_on_four_bytes(size: int) -> None:
    with pytest.raises(MalformedFrame, match="at most 1000000 bytes allowed"):
        check_request_head(head(size), 0, 4, LIMIT)


def test_of_another_protocol_no_size_is_told() -> None:
    with pytest.raises(MalformedFrame, match=r"^an HTTP request$"):
        check_request_head(b"GET / HTTP/1.1\r\n", 0, 16, LIMIT)


@pytest.mark.parametrize(("key", "version"), [(-1, 0), (MAX_API_KEY + 1, 0), (0, -1), (0, 64)])
def test_an_api_that_cannot_be_is_refused(key: int, version: int) -> None:
    with pytest.raises(MalformedFrame, match="not a Kafka request"):
        check_request_head(head(key=key, version=version), 0, 12, LIMIT)


@pytest.mark.parametrize("here", range(8))
def test_an_answer_is_known_with_its_correlation_id(here: int) -> None:
    data = struct.pack(">ii", 20, 7)
    assert check_response_head(data, 0, here) == 0
    assert check_response_head(data, 0, 8) == 24


def test_an_answer_without_room_for_its_correlation_id_is_malformed() -> None:
    with pytest.raises(MalformedFrame, match="3 bytes"):
        check_response_head(struct.pack(">ii", 3, 7), 0, 8)
