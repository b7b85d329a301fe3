# Refusals of all six APIs in every version, read by our decoders (which kio's check elsewhere).

from __future__ import annotations

from typing import Any

import pytest

from protocol import api
from protocol.admin import configs as c
from protocol.admin import quotas as q
from protocol.admin import topics as t
from protocol.admin.refusal import refuse_request
from protocol.wire import MalformedFrame
from tests.protocol import kio_messages as kio
from tests.protocol.admin_cases import APIS

ALICE: q.Entity = (q.EntityData(q.USER, "alice"),)
BOTH: q.Entity = (q.EntityData(q.USER, "alice"), q.EntityData(q.CLIENT_ID, None))
NAMED = [(c.TOPIC, "clicks"), (c.BROKER, "")]
BODIES: dict[int, Any] = {
    api.DESCRIBE_CONFIGS: c.DescribeConfigsRequest(tuple(c.DescribeConfigsResource(*name, None) for name in NAMED)),
    api.ALTER_CONFIGS: c.AlterConfigsRequest(tuple(c.AlterConfigsResource(*name, ()) for name in NAMED)),
    api.INCREMENTAL_ALTER_CONFIGS: c.IncrementalAlterConfigsRequest(
        tuple(c.IncrementalAlterConfigsResource(*name, ()) for name in NAMED)
    ),
    api.CREATE_TOPICS: t.CreateTopicsRequest(
        tuple(t.CreatableTopic(name, 1, 1, (), ()) for name in ("clicks", "views")), 1000
    ),
    api.DESCRIBE_CLIENT_QUOTAS: q.DescribeClientQuotasRequest(()),
    api.ALTER_CLIENT_QUOTAS: q.AlterClientQuotasRequest((q.EntityAlteration(ALICE, ()), q.EntityAlteration(BOTH, ()))),
}
EVERY = [(spoken, version) for spoken in APIS for version in range(spoken.lowest, spoken.highest + 1)]


@pytest.mark.parametrize(("spoken", "version"), EVERY, ids=lambda value: getattr(value, "name", value))
def test_everything_that_is_named_gets_the_error(spoken: Any, version: int) -> None:
    frame = spoken.encode_request(BODIES[spoken.key], version, 77, b"tool")
    refused = refuse_request(frame[4:], api.REQUEST_TIMED_OUT, "nobody answers")
    correlation, answer = spoken.decode_response(refused, 4, len(refused), version)
    assert correlation == 77
    assert kio.kio_decode(kio.answer_class(spoken.key, version), refused[9 if _has_tags(spoken, version) else 8 :])
    error = (api.REQUEST_TIMED_OUT, "nobody answers")
    if spoken.key == api.DESCRIBE_CLIENT_QUOTAS:
        assert answer == q.DescribeClientQuotasResponse(0, *error, None)
    elif spoken.key == api.ALTER_CLIENT_QUOTAS:
        assert answer.entries == (q.AlterClientQuotasResult(*error, ALICE), q.AlterClientQuotasResult(*error, BOTH))
    elif spoken.key == api.CREATE_TOPICS:
        assert [(row.error_code, row.error_message, row.name) for row in answer.topics] == [
            (*error, "clicks"), (*error, "views"),
        ]  # fmt: skip
    else:
        rows = answer.results if spoken.key == api.DESCRIBE_CONFIGS else answer.responses
        assert [row[:4] for row in rows] == [(*error, *name) for name in NAMED]


def _has_tags(spoken: Any, version: int) -> bool:
    return bool(version >= api.RESPONSE_FLEXIBLE_FROM[spoken.key])


def test_another_request_is_malformed() -> None:
    for frame in (b"", b"\0", b"\0\3\0\0\0\0\0\1\xff\xff", b"\0\x2c\0\1"):
        with pytest.raises(MalformedFrame):
            refuse_request(frame, 7, "")
