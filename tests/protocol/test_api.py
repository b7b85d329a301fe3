# The tables against kio's, which are generated from the message definitions of Kafka 4.3. What came later is held to
# Kafka itself: tests/integration/admin_apis/test_kafka_tables.py.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.primitive import i16

from protocol import api

KEYS = sorted(api_key_map)
NEWER = {api.API_VERSIONS: 5}  # than kio


def _versions(key: int) -> list[int]:
    return sorted(schema_name_map[api_key_map[key]])


def _first_flexible(load: Callable[..., Any], key: int, header: int) -> int | None:
    versions = _versions(key)
    return next((v for v in versions if load(key, i16(v)).__header_schema__.__version__ == header), None)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: api.API_NAMES[key])
def test_headers_become_flexible_where_kafka_says(key: int) -> None:
    lowest = _versions(key)[0]
    for table, load, header in (
        (api.REQUEST_FLEXIBLE_FROM, load_request_schema, 2),
        (api.RESPONSE_FLEXIBLE_FROM, load_response_schema, 1),
    ):
        first = _first_flexible(load, key, header)
        if first is None:
            assert table[key] == api.NEVER
        else:
            # kio doesn't have versions that Kafka 4 removed: all of its may be flexible, and then so is its lowest.
            assert table[key] == first or (first == lowest > table[key] >= 0)


@pytest.mark.parametrize("key", KEYS)
def test_names_are_kafkas(key: int) -> None:
    assert api.API_NAMES[key].lower() == api_key_map[key].replace("_", "")


def test_the_constants_are_the_keys_of_their_names() -> None:
    for key, name in api.API_NAMES.items():
        constant = "".join(("_" if char.isupper() and at else "") + char.upper() for at, char in enumerate(name))
        assert getattr(api, constant, key) == key


@pytest.mark.parametrize("key", sorted(api.HIGHEST_VERSIONS), ids=lambda key: api.API_NAMES[key])
def test_we_speak_what_the_independent_decoder_can_check(key: int) -> None:
    assert api.HIGHEST_VERSIONS[key] == NEWER.get(key, _versions(key)[-1])
    assert api.LOWEST_VERSIONS.get(key, 0) == _versions(key)[0]


def test_the_header_of_an_api_versions_answer_never_has_tags() -> None:
    assert api.RESPONSE_FLEXIBLE_FROM[api.API_VERSIONS] == api.NEVER
    assert api.REQUEST_FLEXIBLE_FROM[api.API_VERSIONS] == 3


def test_errors_are_kafkas() -> None:
    for error in ErrorCode:
        assert api.ERROR_NAMES[error.value] == error.name.upper()
        assert api.ERROR_CODES[error.name.upper()] == error.value
        assert (error.value in api.RETRIABLE_ERRORS) == error.retriable
    assert len(api.ERROR_NAMES) == len(api.ERROR_CODES) >= len(ErrorCode)


def test_named_error_codes_are_those_of_the_table() -> None:
    named = {name: value for name, value in vars(api).items() if name in api.ERROR_CODES}
    assert named.keys() >= {"NOT_ENOUGH_REPLICAS", "THROTTLING_QUOTA_EXCEEDED", "UNSUPPORTED_VERSION"}
    assert all(api.ERROR_CODES[name] == value for name, value in named.items())


def test_clients_retry_both_codes_that_we_reject_with() -> None:
    assert {api.NOT_ENOUGH_REPLICAS, api.THROTTLING_QUOTA_EXCEEDED} <= api.RETRIABLE_ERRORS
