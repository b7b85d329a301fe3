# Every message of the five admin APIs against kio, in every version, both ways; and how each can be broken.

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.index import api_key_map, schema_name_map

from protocol import api
from protocol.admin.configs import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResult,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
)
from protocol.admin.quotas import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
    AlterClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityAlteration,
    EntityData,
    EntityQuotas,
    QuotaOperation,
    QuotaValue,
)
from protocol.wire import MalformedFrame
from tests.examples import FEW
from tests.protocol import kio_messages as kio
from tests.protocol.admin_cases import (
    APIS,
    CASES,
    CLIENT_ID,
    CORRELATION_ID,
    EVERY_CLASS,
    FLEXIBLE,
    Case,
    ours,
)
from tests.protocol.kio_messages import encode, filled, messages

Buffers = Callable[[bytes], Any]
HEADER_TAGS = b"\x02\x00\x01h\x5a\x00"


def whole(case: Case) -> bytes:
    return case.head() + kio.kio_encode(filled(case.cls))


# --- against kio ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoken", APIS, ids=lambda each: each.name)
def test_the_versions_are_those_that_kafka_4_has(spoken: Any) -> None:
    known = sorted(schema_name_map[api_key_map[spoken.key]])
    assert (spoken.lowest, spoken.highest) == (known[0], known[-1])


@pytest.mark.parametrize("case", CASES, ids=str)
@FEW
@given(data=st.data())
def test_messages_are_written_as_kio_writes_them_and_read(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case.cls))
    content = kio.kio_encode(message)
    assert encode(message) == content, "the encoder of the tests that follow"
    frame = case.head() + content
    assert case.decode(b"1234" + frame + b"more", 4, 4 + len(frame)) == ours(case.struct, message)
    written = case.encode(ours(case.struct, message))
    assert written[:4] == struct.pack(">i", len(written) - 4)
    assert written[4:] == frame
    assert kio.kio_decode(case.cls, content) == message


@pytest.mark.parametrize("case", FLEXIBLE, ids=str)
@FEW
@given(data=st.data())
def test_unknown_tagged_fields_are_skipped(case: Case, data: st.DataObject) -> None:
    message, extra = data.draw(messages(case.cls)), data.draw(kio.extras(*EVERY_CLASS))
    frame = case.head(tags=HEADER_TAGS) + encode(message, extra)
    assert case.decode(frame, 0, len(frame)) == ours(case.struct, message)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_frame_may_lie_in_any_buffer(case: Case, kind: Buffers) -> None:
    frame = whole(case)
    assert case.decode(kind(b"1234" + frame + b"more"), 4, 4 + len(frame)) == ours(case.struct, filled(case.cls))


@pytest.mark.parametrize("spoken", APIS, ids=lambda each: each.name)
@pytest.mark.parametrize("client_id", [None, "", CLIENT_ID])
def test_the_header_is_read_and_written(spoken: Any, client_id: str | None) -> None:
    for version in range(spoken.lowest, spoken.highest + 1):
        case = Case(spoken, version, "request")
        frame = case.head(client_id, HEADER_TAGS) + kio.kio_encode(filled(case.cls))
        request = spoken.decode_request(frame, 0, len(frame))
        name = None if client_id is None else client_id.encode()
        assert request[:3] == (version, CORRELATION_ID, name)
        again = spoken.encode_request(request.body, version, -5, name)
        assert spoken.decode_request(again, 4, len(again)) == request._replace(correlation_id=-5)
        answer = ours(spoken.response, filled(Case(spoken, version, "response").cls))
        frame = spoken.encode_response(answer, version, -5)
        assert spoken.decode_response(frame, 4, len(frame), version) == (-5, answer)


# --- broken -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_frame_cut_anywhere_or_too_long_is_malformed(case: Case) -> None:
    frame = whole(case)
    for cut in range(len(frame)):
        with pytest.raises(MalformedFrame):
            case.decode(frame, 0, cut)  # the rest of it lies behind `end`
        with pytest.raises(MalformedFrame):
            case.decode(frame[:cut], 0, cut)
    with pytest.raises(MalformedFrame, match="1 bytes behind the end"):
        case.decode(frame + b"\0", 0, len(frame) + 1)
    with pytest.raises(MalformedFrame, match="1 bytes behind the buffer"):
        case.decode(frame, 0, len(frame) + 1)


@pytest.mark.parametrize("case", FLEXIBLE, ids=str)
def test_tagged_fields_cut_anywhere_are_malformed(case: Case) -> None:
    extra = {name: [(90, b"new"), (200, b"")] for name in EVERY_CLASS}
    frame = case.head(tags=HEADER_TAGS) + encode(filled(case.cls), extra)
    assert case.decode(frame, 0, len(frame)) == ours(case.struct, filled(case.cls))
    for cut in range(len(frame)):
        with pytest.raises(MalformedFrame):
            case.decode(frame, 0, cut)


def said(case: Case, frame: bytes | bytearray) -> str:
    """Of a frame that may be malformed: why it is, or nothing. Any other exception fails the test."""
    try:
        case.decode(frame, 0, len(frame))
    except MalformedFrame as error:
        return str(error)
    return ""


@pytest.mark.parametrize("case", CASES, ids=str)
@FEW
@given(data=st.data())
def test_a_changed_byte_is_read_or_malformed_and_nothing_else(case: Case, data: st.DataObject) -> None:
    frame = bytearray(whole(case))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    assert said(case, frame).isprintable()


@pytest.mark.parametrize("case", CASES, ids=str)
@FEW
@given(noise=st.binary(max_size=60))
def test_noise_is_malformed_and_nothing_else(case: Case, noise: bytes) -> None:
    frame = case.head() + noise
    assert said(case, frame).isprintable()


@pytest.mark.parametrize("spoken", APIS, ids=lambda each: each.name)
def test_versions_that_are_not_spoken_are_refused_both_ways(spoken: Any) -> None:
    case = Case(spoken, spoken.highest, "request")
    frame = bytearray(whole(case))
    for version in (spoken.lowest - 1, spoken.highest + 1, 32767):
        frame[2:4] = struct.pack(">h", version)
        with pytest.raises(MalformedFrame, match=f"{spoken.name} v{version}, v{spoken.lowest} to v{spoken.highest}"):
            spoken.decode_request(frame, 0, len(frame))
        with pytest.raises(MalformedFrame, match="are spoken"):
            spoken.decode_response(bytes(100), 0, 100, version)
        with pytest.raises(ValueError, match="are spoken"):
            spoken.encode_request(ours(spoken.request, filled(case.cls)), version, 1, None)
        with pytest.raises(ValueError, match="are spoken"):
            spoken.encode_response(None, version, 1)


def test_a_request_of_another_api_is_refused() -> None:
    frame = whole(Case(ALTER_CONFIGS, 1, "request"))
    with pytest.raises(MalformedFrame, match="API key 33, IncrementalAlterConfigs has 44"):
        INCREMENTAL_ALTER_CONFIGS.decode_request(frame, 0, len(frame))


def misread(frame: bytes, decode: Callable[[bytes, int, int], Any]) -> str:
    with pytest.raises(MalformedFrame) as caught:
        decode(b"size" + frame, 4, 4 + len(frame))
    return str(caught.value)


def test_the_text_says_what_and_where() -> None:
    case = Case(INCREMENTAL_ALTER_CONFIGS, 1, "request")
    frame = whole(case)  # head, 2 resources, type 1, "text", 2 configs, "text" …
    at = len(case.head()) + 1 + 1 + 5 + 1
    assert frame[at] == 5
    broken = frame[:at] + b"\xff\xff\x03" + frame[at + 1 :]
    assert misread(broken, case.decode) == (
        f"IncrementalAlterConfigs v1 request, resources[0].configs[0].name at byte {at}: "
        f"65534 bytes announced, {len(broken) - at - 3} left"
    )


@pytest.mark.parametrize(
    ("at", "put", "text"),
    [
        (0, b"\0", "resources at byte 16: null in place of an array"),
        (0, b"\x7f", "resources at byte 16: an array of 126 elements, 11 bytes left"),
        (2, b"\0", "resources[0].resource_name at byte 18: null in place of a text"),
        (2, b"\x03\xc3\x28", "resources[0].resource_name at byte 18: a text that isn't UTF-8"),
        (4, b"\0", "resources[0].configs at byte 20: null in place of an array"),
        (5, b"\0", "resources[0].configs[0].name at byte 21: null in place of a text"),
        (8, b"\x01", "resources[0].configs[0].tagged fields at byte 24: the frame ends within"),
    ],
)
def test_null_and_bytes_that_are_no_text(at: int, put: bytes, text: str) -> None:
    # AlterConfigs v2: [type 2, "t", [("k", null)]], validate_only
    case = Case(ALTER_CONFIGS, 2, "request")
    head = struct.pack(">hhih", 33, 2, 1, 5) + b"admin\0"
    body = b"\x02" + b"\x02" + b"\x02t" + b"\x02" + b"\x02k" + b"\0" + b"\0" + b"\0" + b"\0" + b"\0"
    assert len(head) == 16
    assert case.decode(head + body, 0, 28).resources[0].configs[0] == ("k", None)
    end = {5: 2, 2: 2}.get(at, 1)
    if at == 8:
        end = len(body)
    broken = head + body[:at] + put + body[at + end :]
    assert misread(broken, case.decode).startswith(f"AlterConfigs v2 request, {text}")


def test_no_text_is_longer_than_kafka_allows() -> None:
    case = Case(ALTER_CONFIGS, 2, "request")
    longest = AlterConfigsRequest((AlterConfigsResource(2, "x" * 32767, ()),))
    frame = case.encode(longest)
    assert case.decode(frame, 4, len(frame)) == longest
    name = "x" * 32768
    with pytest.raises(ValueError, match="resource_name: a text of 32768 bytes, at most 32767"):
        case.encode(AlterConfigsRequest((AlterConfigsResource(2, name, ()),)))
    content = case.head() + b"\x02\x02" + kio.uvarint(len(name) + 1) + name.encode() + b"\x01\0\0\0"
    assert "resources[0].resource_name at byte 20: a text of 32768 bytes" in misread(content, case.decode)


def test_a_count_is_checked_before_anything_is_made_of_it() -> None:
    for case in CASES:
        count = b"\xff\xff\xff\xff\x0f" if case.flexible else b"\x7f\xff\xff\xff"
        behind_throttle = b"" if case.what == "request" else bytes(4)
        if case.what == "answer" and case.api is DESCRIBE_CLIENT_QUOTAS:
            behind_throttle += b"\0\0" + (b"\0" if case.flexible else b"\xff\xff")
        text = misread(case.head() + behind_throttle + count + bytes(50), case.decode)
        assert "an array of" in text
        assert "50 bytes left" in text


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -0.0, 1e300, 5e-324, math.inf, -math.inf, math.nan])
def test_quota_values_keep_every_bit(value: float) -> None:
    body = AlterClientQuotasRequest((EntityAlteration((EntityData("user", None),), (QuotaOperation("k", value),)),))
    frame = ALTER_CLIENT_QUOTAS.encode_request(body, 1, 1, None)
    read = ALTER_CLIENT_QUOTAS.decode_request(frame, 4, len(frame)).body.entries[0].ops[0].value
    assert struct.pack(">d", read) == struct.pack(">d", value)
    answer = DescribeClientQuotasResponse(
        0, 0, None, (EntityQuotas((EntityData("user", "a"),), (QuotaValue("k", value),)),)
    )
    frame = DESCRIBE_CLIENT_QUOTAS.encode_response(answer, 0, 1)
    entries = DESCRIBE_CLIENT_QUOTAS.decode_response(frame, 4, len(frame), 0)[1].entries
    assert entries is not None
    assert struct.pack(">d", entries[0].values[0].value) == struct.pack(">d", value)


def test_any_byte_but_zero_is_true() -> None:
    """As Kafka reads a bool."""
    frame = bytearray(ALTER_CONFIGS.encode_request(AlterConfigsRequest((), True), 1, 1, None))
    for byte, value in ((0, False), (1, True), (2, True), (255, True)):
        frame[-1] = byte
        assert ALTER_CONFIGS.decode_request(frame, 4, len(frame)).body.validate_only is value


@pytest.mark.parametrize("version", [0, 2])
def test_an_error_message_is_cut_between_characters_rather_than_not_sent(version: int) -> None:
    rows = (AlterConfigsResult(40, "é" * 20_000, 2, "t"), AlterConfigsResult(40, "half \ud800 a pair", 2, "t"))
    frame = ALTER_CONFIGS.encode_response(AlterConfigsResponse(0, rows), version, 1)
    read = ALTER_CONFIGS.decode_response(frame, 4, len(frame), version)[1].responses
    assert read[0].error_message == "é" * 16_383
    assert read[1].error_message == "half ? a pair"


def test_fields_that_a_version_lacks_are_left_out_and_read_as_their_defaults() -> None:
    row = DescribedConfig("k", "v", False, 1, False, (ConfigSynonym("k", "v", 1),), 5, "what it does")
    answer = DescribeConfigsResponse(7, (DescribeConfigsResult(0, None, 2, "t", (row,)),))
    for version, expected in (
        (1, row._replace(config_type=0, documentation=None)),
        (2, row._replace(config_type=0, documentation=None)),
        (3, row),
        (4, row),
    ):
        frame = DESCRIBE_CONFIGS.encode_response(answer, version, 1)
        _, read = DESCRIBE_CONFIGS.decode_response(frame, 4, len(frame), version)
        assert read.results[0].configs == (expected,)
        body = DescribeConfigsRequest((), True, True)
        frame = DESCRIBE_CONFIGS.encode_request(body, version, 1, None)
        assert DESCRIBE_CONFIGS.decode_request(frame, 4, len(frame)).body.include_documentation is (version >= 3)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (AlterConfigsRequest((AlterConfigsResource(128, "t", ()),)), "resource_type: 128 is not a valid int8"),
        (AlterConfigsRequest((AlterConfigsResource(2, None, ()),)), "resource_name: null"),  # type: ignore[arg-type]
        (AlterConfigsRequest(None), "resources: null in place of an array"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_does_not_fit_is_a_value_error_that_names_the_field(body: AlterConfigsRequest, text: str) -> None:
    for version in (0, 2):
        with pytest.raises(ValueError, match=text):
            ALTER_CONFIGS.encode_request(body, version, 1, None)


def test_flexible_versions_are_those_of_the_table() -> None:
    for case in CASES:
        table = api.REQUEST_FLEXIBLE_FROM if case.what == "request" else api.RESPONSE_FLEXIBLE_FROM
        assert case.flexible == (case.version >= table[case.api.key])
