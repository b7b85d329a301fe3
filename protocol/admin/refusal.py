# The answer that refuses a whole admin request, whichever of the six APIs it is of: the same error for everything that
# it names; and a step of SASL. For a request that was not begun: one that is refused in parts is split and merged
# (configs.py, quotas.py).

from __future__ import annotations

from protocol import api, wire
from protocol.admin.configs import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    AlterConfigsResponse,
    AlterConfigsResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from protocol.admin.quotas import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    DescribeClientQuotasResponse,
)
from protocol.admin.topics import CREATE_TOPICS, CreateTopicsResponse, topic_result
from protocol.authentication.handshake import SASL_AUTHENTICATE, SaslAuthenticateResponse


def refuse_request(request: bytes, code: int, message: str) -> bytes:
    """The frame of an answer to `request` (without size prefix) that has this error for each of its resources.

    Raises:
        MalformedFrame: it is no request of the seven, or none that can be read.
    """
    key, _ = wire.read_int16(request, 0, len(request))
    if key == api.SASL_AUTHENTICATE:
        step = SASL_AUTHENTICATE.decode_request(request, 0, len(request))
        failed = SaslAuthenticateResponse(code, message, b"", 0)
        return SASL_AUTHENTICATE.encode_response(failed, step.version, step.correlation_id)
    if key == api.DESCRIBE_CONFIGS:
        head = DESCRIBE_CONFIGS.decode_request(request, 0, len(request))
        results = tuple(DescribeConfigsResult(code, message, *row[:2]) for row in head.body.resources)
        return DESCRIBE_CONFIGS.encode_response(DescribeConfigsResponse(0, results), head.version, head.correlation_id)
    if key == api.DESCRIBE_CLIENT_QUOTAS:
        asked = DESCRIBE_CLIENT_QUOTAS.decode_request(request, 0, len(request))
        answer = DescribeClientQuotasResponse(0, code, message, None)
        return DESCRIBE_CLIENT_QUOTAS.encode_response(answer, asked.version, asked.correlation_id)
    if key == api.ALTER_CLIENT_QUOTAS:
        wanted = ALTER_CLIENT_QUOTAS.decode_request(request, 0, len(request))
        rows = tuple(AlterClientQuotasResult(code, message, entity) for entity, _ in wanted.body.entries)
        return ALTER_CLIENT_QUOTAS.encode_response(
            AlterClientQuotasResponse(0, rows), wanted.version, wanted.correlation_id
        )
    if key == api.ALTER_CONFIGS:
        replaces = ALTER_CONFIGS.decode_request(request, 0, len(request))
        refused = tuple(AlterConfigsResult(code, message, *row[:2]) for row in replaces.body.resources)
        return ALTER_CONFIGS.encode_response(
            AlterConfigsResponse(0, refused), replaces.version, replaces.correlation_id
        )
    if key == api.CREATE_TOPICS:
        creates = CREATE_TOPICS.decode_request(request, 0, len(request))
        topics = tuple(topic_result(topic.name, code, message) for topic in creates.body.topics)
        return CREATE_TOPICS.encode_response(CreateTopicsResponse(0, topics), creates.version, creates.correlation_id)
    changes = INCREMENTAL_ALTER_CONFIGS.decode_request(request, 0, len(request))
    refused = tuple(AlterConfigsResult(code, message, *row[:2]) for row in changes.body.resources)
    return INCREMENTAL_ALTER_CONFIGS.encode_response(
        AlterConfigsResponse(0, refused), changes.version, changes.correlation_id
    )
