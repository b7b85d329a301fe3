# One connection as a play: what goes upstream, what comes back, in which order, and how every byte was counted.

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.data.pending.hold import MAX_MUTE_S, MAX_WAIT_S
from gateway.data.shared.errors import UpstreamError
from gateway.data.shared.topics import MAX_REFUSED_IDS
from gateway.worker_config import WorkerInternalClient
from policies.verdict import DELAY, NOT_ENOUGH_REPLICAS, REJECT, THROTTLING_QUOTA_EXCEEDED, Verdict
from protocol import api
from protocol.wire import MalformedFrame
from tests.gateway.data.play import (
    APP,
    JAVA,
    TOOK,
    TOPIC_ID,
    Play,
    answer,
    decode_answer,
    other_answer,
    other_request,
    request,
    size_of,
    with_question,
)
from tests.gateway.data.session.limits_play import TOPIC, set_limit
from tests.protocol import produce_cases as cases
from tests.protocol.batches import batch
from tests.variants import COMPILED, PURE, running

STEPS = pytest.mark.parametrize("step", [0, 1, 7], ids=["glued", "byte by byte", "by sevens"])
SIZE = size_of()
OVER: dict[str, Any] = {"total": 100.0, "topics": {"clicks": 50.0}}


@pytest.fixture(scope="module", params=[PURE, COMPILED], autouse=True)
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiled or not; all tests hold for both."""
    with running(request.param):
        yield


# --- what is admitted -------------------------------------------------------------------------------------------------


@STEPS
@pytest.mark.parametrize("version", range(3, 13))
def test_admitted_requests_and_their_answers_pass_untouched(step: int, version: int) -> None:
    play = Play()
    requests = [request(1, version=version), other_request(2), request(3, {"a": [0, 3], "b": [1]}, version=version)]
    upstream, client = play.client(b"".join(requests), step)
    assert upstream == b"".join(requests)
    assert client == b""

    answers = [
        answer(1, version=version),
        other_answer(2),
        answer(3, {"b": {1: (0, 5)}, "a": {3: (0, 9), 0: (0, 7)}}, version=version),
    ]
    assert play.broker(b"".join(answers), step) == b"".join(answers)
    assert play.rows() == {
        ("clicks", "accepted", ""): (SIZE, 1, 1),
        ("a", "accepted", ""): (2 * SIZE, 2, 1),
        ("b", "accepted", ""): (SIZE, 1, 1),
    }
    assert play.session.is_idle


@pytest.mark.seed("V1.15", "V1.16")
def test_a_batch_that_the_broker_refuses_moves_from_bytes_in_to_errors() -> None:
    play, size = Play(), size_of((b"x" * 500,))
    for times in (1, 2):
        play.client(request(1, values=(b"x" * 500,)))
        play.broker(answer(1, {"clicks": {0: (10, -1)}}))
        meters = play.engine.broker_meters(1)
        assert (meters.total.uncounted, meters.topics[b"clicks"].uncounted) == (0, 0)
        assert meters.errors.uncounted == times * size
    assert play.rows() == {("clicks", "errored", "MESSAGE_TOO_LARGE"): (2 * size, 2, 2)}


@pytest.mark.parametrize(("code", "name"), [(7, "REQUEST_TIMED_OUT"), (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND")])
def test_a_batch_whose_error_came_after_the_append_stays_in_bytes_in(code: int, name: str) -> None:
    play, size = Play(), size_of((b"x" * 500,))
    play.client(request(1, values=(b"x" * 500,)))
    play.broker(answer(1, {"clicks": {0: (code, 40)}}))
    meters = play.engine.broker_meters(1)
    assert (meters.total.uncounted, meters.topics[b"clicks"].uncounted) == (size, size)
    assert meters.errors.uncounted == size
    assert play.rows() == {("clicks", "errored", name): (size, 1, 1)}


def test_an_idempotent_batch_acknowledged_again_at_the_same_offset_is_a_duplicate() -> None:
    play = Play()
    for _ in range(2):
        play.client(request(1, producer=(7, 0, 0)))
        play.broker(answer(1, {"clicks": {0: (0, 40)}}))
    assert play.rows() == {("clicks", "accepted", ""): (SIZE, 1, 1), ("clicks", "duplicate", ""): (SIZE, 1, 1)}


def test_bytes_behind_the_batch_are_trailing() -> None:
    play = Play()
    play.client(request(1, trailing=b"12345"))
    play.broker(answer(1))
    assert play.rows() == {("clicks", "accepted", ""): (SIZE, 1, 1), ("clicks", "trailing", ""): (5, 0, 1)}


def test_acks_0_is_owed_no_answer_and_counted_as_unacknowledged() -> None:
    play = Play()
    assert play.client(request(1, acks=0) + other_request(2))[0] == with_question(request(1, acks=0)) + other_request(2)
    assert play.broker(TOOK + other_answer(2)) == other_answer(2)
    assert play.rows() == {("clicks", "unacknowledged", ""): (SIZE, 1, 1)}


def test_a_changed_client_id_begins_rows_of_its_own() -> None:
    play = Play()
    play.client(request(1, client_id="one") + request(2, client_id=None))
    play.broker(answer(1) + answer(2))
    # The client id is the one of the last request read: answers don't carry it (docs/design.md).
    assert {row.client_id for row in play.ledger()} <= {"one", ""}


def test_a_request_that_was_forwarded_and_never_answered_is_unanswered() -> None:
    play = Play()
    play.client(request(1))
    play.session.close()
    assert play.rows() == {("clicks", "unanswered", ""): (SIZE, 1, 1)}


# --- order ------------------------------------------------------------------------------------------------------------


@STEPS
def test_a_local_answer_waits_for_the_upstream_answers_before_it_and_for_nothing_else(step: int) -> None:
    play = Play()
    own = other_request(2, key=18, version=9)
    ours = play.client(own)[1]
    assert struct.unpack_from(">iih", ours) == (len(ours) - 4, 2, api.UNSUPPORTED_VERSION)
    assert play.client(other_request(1) + own + other_request(3), step) == (other_request(1) + other_request(3), b"")
    assert play.broker(other_answer(1) + other_answer(3), step) == other_answer(1) + ours + other_answer(3)


def test_a_local_answer_never_comes_between_the_parts_of_a_streamed_one() -> None:
    play = Play()
    long = other_answer(1, b"x" * 1000)
    play.client(other_request(1))
    first = play.broker(long[:500])
    assert play.client(other_request(2, key=18, version=9)) == (b"", b"")
    rest = play.broker(long[500:])
    assert (first + rest)[: len(long)] == long
    assert len(first + rest) > len(long)


def test_an_answer_that_no_request_waits_for_closes_both_sides() -> None:
    play = Play()
    play.client(other_request(1))
    with pytest.raises(UpstreamError, match="correlation id 2"):
        play.broker(other_answer(2))


# --- rejection --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("V1.14")
@pytest.mark.parametrize("version", range(3, 14))
def test_a_topic_over_its_limit_is_rejected_here_with_throttle_time_and_a_mute(version: int) -> None:
    play = Play(**OVER).named().overload()
    play.world.cluster.topic_ids[TOPIC_ID] = b"clicks"
    upstream, client = play.client(request(1, version=version))
    assert upstream == b""
    correlation, throttle_ms, rows = decode_answer(client, version)
    code, text = rows["clicks" if version < 13 else TOPIC_ID.hex(), 0]
    assert (correlation, code) == (1, THROTTLING_QUOTA_EXCEEDED)
    assert 0 < throttle_ms <= 10_000
    if version >= 8:
        assert text is not None
        assert "topic clicks is over its threshold" in text
    assert play.session.hold.muted_until == pytest.approx(play.now + throttle_ms / 1000)
    assert play.rows() == {("clicks", "rejected", "topic-threshold"): (SIZE, 1, 1)}
    assert play.engine.broker_meters(1).throttled.uncounted == SIZE
    assert play.engine.broker_meters(1).total.uncounted == 0


def test_only_the_partitions_over_their_limit_are_taken_out_of_a_mixed_request() -> None:
    play = Play(**OVER).named().overload()
    upstream, client = play.client(request(1, {"free": [0], "clicks": [0, 1]}))
    assert upstream == request(1, {"free": [0]})
    assert client == b""
    merged = play.broker(answer(1, {"free": {0: (0, 3)}}))
    _, throttle_ms, rows = decode_answer(merged)
    assert throttle_ms > 0
    assert {key: code for key, (code, _) in rows.items()} == {("free", 0): 0, ("clicks", 0): 89, ("clicks", 1): 89}
    assert play.rows() == {
        ("free", "accepted", ""): (SIZE, 1, 1),
        ("clicks", "rejected", "topic-threshold"): (2 * SIZE, 2, 1),
    }


@pytest.mark.parametrize(
    ("software", "settings", "code"),
    [
        (None, {}, NOT_ENOUGH_REPLICAS),
        (("librdkafka", "2.16.0"), {}, NOT_ENOUGH_REPLICAS),
        (("apache-kafka-java", "2.4.1"), {}, NOT_ENOUGH_REPLICAS),
        (JAVA, {"reject_code": 44}, 44),
    ],
)
def test_clients_that_do_not_retry_89_get_19_and_a_configured_code_wins(
    software: tuple[str, str] | None, settings: dict[str, Any], code: int
) -> None:
    play = Play(**OVER, **settings).named(software).overload()
    _, client = play.client(request(1))
    assert decode_answer(client)[2]["clicks", 0][0] == code


def test_a_client_that_has_named_itself_stays_who_it_is() -> None:
    # librdkafka asks again with version 0 where a broker knows no later one.
    play = Play()
    names = b"\0" + b"".join(bytes((len(name) + 1,)) + name for name in (b"librdkafka", b"2.16")) + b"\0"
    play.client(other_request(1, api.API_VERSIONS, 3, names))
    hold = play.session.hold
    patience_s = hold.patience_s
    play.client(other_request(2, api.API_VERSIONS, 0))
    assert play.session.client.software == ("librdkafka", "2.16")
    assert (hold.patience_s, hold.sends_ahead) == (patience_s, True)


def test_clients_without_a_name_get_all_partitions_rejected_together() -> None:
    play = Play(**OVER).named(None).overload()
    upstream, client = play.client(request(1, {"free": [0], "clicks": [0]}))
    assert upstream == b""
    assert {code for code, _ in decode_answer(client)[2].values()} == {NOT_ENOUGH_REPLICAS}


def test_a_client_without_a_name_waits_for_no_partition_that_is_rejected_because_of_another() -> None:
    play = Play(**OVER).named(None).overload()
    set_limit(play, "group", 1.0)  # which delays, and for longer
    play.session.hold.drained_at = play.now
    _, client = play.client(request(1, {TOPIC: [0], "clicks": [0]}))
    _, throttle_ms, rows = decode_answer(client)
    assert all(text and text.endswith(f"retry in {throttle_ms / 1000:.1f} s") for _, text in rows.values())
    assert play.session.hold.muted_until == pytest.approx(play.now + throttle_ms / 1000)
    assert set(play.rows()) == {(topic, "rejected", "topic-threshold") for topic in (TOPIC, "clicks")}


def test_a_rejection_waits_for_its_turn_behind_an_admitted_request() -> None:
    play = Play(**OVER).named().overload()
    upstream, client = play.client(request(1, {"free": [0]}) + request(2))
    assert (upstream, client) == (request(1, {"free": [0]}), b"")
    out = play.broker(answer(1, {"free": {0: (0, 3)}}))
    first = answer(1, {"free": {0: (0, 3)}})
    assert out.startswith(first)
    assert decode_answer(out[len(first) :])[0] == 2


def test_internal_clients_are_metered_and_never_limited() -> None:
    play = Play(**OVER, internal_client_ids=("app",)).named().overload()
    upstream, _ = play.client(request(1))
    assert upstream == request(1)
    assert play.engine.broker_meters(1).total.uncounted == SIZE


def test_an_internal_pair_exempts_both_together_only() -> None:
    def of(principal: str, client_id: str) -> Play:
        own = WorkerInternalClient(principal=principal, client_id=client_id)
        return Play(**OVER, internal_clients=(own,)).named().overload()

    assert of("User:ANONYMOUS", "app").client(request(1))[0] == request(1)
    for principal, client_id in (("User:mirror", "app"), ("User:ANONYMOUS", "mirror")):
        assert of(principal, client_id).client(request(1))[0] == b""


def test_the_gateways_own_topics_are_not_for_producers() -> None:
    play = Play(protected_topics=("__usage",)).named()
    upstream, client = play.client(request(1, {"__usage": [0]}))
    assert upstream == b""
    assert decode_answer(client)[1:] == (
        0,
        {("__usage", 0): (29, "topic __usage is written by the gateway only")},
    )
    assert play.session.hold.muted_until == 0.0
    assert play.client(request(2, {"__usage": [0]}))[0] == b""  # the second time as well: no fast way around it
    assert play.engine.broker_meters(1).throttled.uncounted == 0  # no limit was reached


def test_a_client_without_a_name_loses_nothing_because_of_a_topic_that_is_not_for_it() -> None:
    """Error 29 is final: with it the client would give up records that the broker takes."""
    mixed = {"__usage": [0], "free": [0]}
    play = Play(protected_topics=("__usage",)).named(None)
    assert play.client(request(1, mixed)) == (request(1, {"free": [0]}), b"")
    _, _, rows = decode_answer(play.broker(answer(1, {"free": {0: (0, 3)}})))
    assert {key: code for key, (code, _) in rows.items()} == {("__usage", 0): 29, ("free", 0): 0}
    assert play.client(request(2, mixed, acks=0)) == (request(2, {"free": [0]}, acks=0), b"")


def test_a_client_without_a_name_learns_what_is_final_when_nothing_else_has_to_come_again() -> None:
    """It goes by the first error, and sends all of the request again or none of it."""
    mixed = {"__usage": [0], "free": [0], "clicks": [0]}
    play = Play(**OVER, protected_topics=("__usage",)).named(None).overload()
    upstream, client = play.client(request(1, mixed))
    assert upstream == b""
    assert {code for code, _ in decode_answer(client)[2].values()} == {NOT_ENOUGH_REPLICAS}
    assert play.rows()["__usage", "rejected", "protected-topic"] == (SIZE, 1, 1)
    play.now = play.session.hold.muted_until
    _, client = play.client(request(2, {"__usage": [0]}))
    assert decode_answer(client)[2]["__usage", 0][0] == 29


def test_a_client_without_a_name_that_retries_no_rejection_loses_the_rejected_partitions_only() -> None:
    play = Play(**OVER, reject_code=44).named(None).overload()
    upstream, _ = play.client(request(1, {"free": [0], "clicks": [0]}))
    assert upstream == request(1, {"free": [0]})


# --- mute -------------------------------------------------------------------------------------------------------------


def test_a_mute_holds_produce_and_requests_behind_it_and_none_before() -> None:
    play = Play(**OVER).named().overload()
    play.client(request(1))
    until = play.session.hold.muted_until
    upstream, _ = play.client(other_request(2) + request(3, {"free": [0]}) + other_request(4))
    assert upstream == other_request(2)
    assert play.session.hold.held_until == until
    play.now = until
    upstream, _ = play.again()
    assert upstream == request(3, {"free": [0]}) + other_request(4)
    assert play.session.hold.held_until == 0.0


def test_a_single_mute_is_bounded() -> None:
    play = Play(**OVER).named().overload()
    play.session.hold.drained_at = play.now
    play.client(request(1))
    assert play.session.hold.muted_until <= play.now + MAX_MUTE_S


def test_a_request_that_has_waited_as_long_as_it_may_is_answered_at_once() -> None:
    play = Play(**OVER).named().overload()
    play.session.hold.drained_at = play.now - 25.0  # its client waits for 30 s
    _, client = play.client(request(1))
    assert decode_answer(client)[2]["clicks", 0][0] == 89
    assert play.session.hold.muted_until == 0.0  # the next one in the queue has waited as long


def test_requests_read_together_with_a_rejected_one_are_decided_together() -> None:
    play = Play(**OVER).named().overload()
    upstream, client = play.client(request(1) + request(2, {"free": [0]}) + request(3))
    assert upstream == request(2, {"free": [0]})
    assert decode_answer(client)[0] == 1
    assert decode_answer(play.broker(answer(2, {"free": {0: (0, 1)}}))[len(answer(2, {"free": {0: (0, 1)}})) :])[0] == 3


# --- fence ------------------------------------------------------------------------------------------------------------


def test_batches_behind_a_rejected_one_of_an_idempotent_producer_are_rejected_until_it_comes_again() -> None:
    play = Play(**OVER).named().overload()
    play.client(request(1, producer=(7, 0, 0)))
    play.engine.set_thresholds(None, {})  # the limit is lifted while a later batch is under way
    play.world.ledger.advance_epoch()
    play.now = play.session.hold.muted_until
    upstream, client = play.client(request(2, producer=(7, 0, 1)))
    assert upstream == b""
    assert decode_answer(client)[2]["clicks", 0][0] == THROTTLING_QUOTA_EXCEEDED
    both = request(3, producer=(7, 0, 0)) + request(4, producer=(7, 0, 1))
    assert play.client(both)[0] == both
    assert play.rows()[("clicks", "rejected", "fence")] == (SIZE, 1, 1)


@pytest.mark.parametrize("versions", [(13, 9), (9, 13)])
def test_a_fence_is_the_topics_whether_it_comes_by_id_or_by_name(versions: tuple[int, int]) -> None:
    # Java's client sends v12 while any topic of the request has no id.
    play = Play(**OVER).named().overload()
    play.world.cluster.topic_ids[TOPIC_ID] = b"clicks"
    first, second = versions
    play.client(request(1, producer=(7, 0, 0), version=first))
    play.engine.set_thresholds(None, {})
    play.world.ledger.advance_epoch()
    play.now = play.session.hold.muted_until
    assert play.client(request(2, producer=(7, 0, 1), version=second))[0] == b""
    retried = request(3, producer=(7, 0, 0), version=second)
    assert play.client(retried)[0] == retried
    behind = request(4, producer=(7, 0, 1), version=first)
    assert play.client(behind)[0] == behind


def test_no_fence_behind_a_code_that_the_client_does_not_retry() -> None:
    play = Play(**OVER, reject_code=44).named().overload()
    play.client(request(1, producer=(7, 0, 0)))
    assert play.session.gate.fence.entries == {}


# --- acks=0 over a limit ----------------------------------------------------------------------------------------------


def test_acks_0_over_its_limit_waits_and_is_never_dropped() -> None:
    play = Play(**OVER).named().overload()
    assert play.client(request(1, acks=0)) == (b"", b"")
    until = play.session.hold.held_until
    assert play.now < until <= play.now + MAX_MUTE_S
    play.engine.set_thresholds(None, {})
    play.world.ledger.advance_epoch()
    play.now = until
    assert play.again() == (with_question(request(1, acks=0)), b"")
    assert play.rows() == {
        ("clicks", "unacknowledged", ""): (SIZE, 1, 1),
        ("clicks", "delayed", "topic-threshold"): (SIZE, 1, 1),
    }


# --- after a pause ----------------------------------------------------------------------------------------------------


def test_unforwarded_requests_of_a_client_that_has_gone_are_discarded_but_acks_0_is_forwarded() -> None:
    play = Play().named()
    play.session.hold.is_client_gone = True
    assert play.client(request(1) + request(2, acks=0)) == (with_question(request(2, acks=0)), b"")
    assert play.rows() == {("clicks", "discarded", ""): (SIZE, 1, 1), ("clicks", "unacknowledged", ""): (SIZE, 1, 1)}


def test_acks_0_over_a_limit_waits_for_it_though_its_client_has_gone() -> None:
    play = Play(total=1000.0, topics={"clicks": 1000.0}).named().overload()
    play.session.hold.is_client_gone = True
    assert play.client(request(1, acks=0)) == (b"", b"")
    assert play.session.hold.held_until > play.now
    play.session.hold.is_draining = True
    assert play.again() == (with_question(request(1, acks=0)), b"")


def test_requests_parked_when_the_connection_ends_are_discarded() -> None:
    play = Play()
    parked = bytearray(request(1) + other_request(2) + request(3) + request(4, acks=0))
    play.session.close((parked, 0, len(parked)))
    assert play.rows() == {
        ("clicks", "discarded", ""): (2 * SIZE, 2, 2),
        ("clicks", "dropped", "connection-lost"): (SIZE, 1, 1),  # its client will not send it again
    }


# --- topic ids --------------------------------------------------------------------------------------------------------


def test_an_unknown_topic_id_is_asked_for_on_the_clients_own_connection() -> None:
    play = Play()
    upstream, client = play.client(other_request(1) + request(2, version=13) + other_request(3))
    assert upstream.startswith(other_request(1))
    lookup = upstream[len(other_request(1)) :]
    _, key, version, correlation = struct.unpack_from(">ihhi", lookup)
    assert (key, version, client) == (api.METADATA, 12, b"")
    assert TOPIC_ID in lookup
    told = (
        b"\0"  # header tags
        + struct.pack(">i", 0)
        + b"\x01\0\0\0\0\0\1"[:1]  # no brokers
        + b"\0"  # cluster id
        + struct.pack(">i", 1)
        + b"\x02"
        + struct.pack(">h", 0)
        + b"\x07clicks"
        + TOPIC_ID
        + b"\0"
        + b"\x01"
        + struct.pack(">i", -(2**31))
        + b"\0"
        + b"\0"
    )
    assert play.broker(other_answer(1) + other_answer(correlation, told)) == other_answer(1)
    assert play.world.cluster.topic_ids[TOPIC_ID] == b"clicks"
    assert play.session.hold.held_until == 0.0
    assert play.again()[0] == request(2, version=13) + other_request(3)


def test_a_topic_id_that_no_broker_names_in_time_is_refused_and_counted_under_the_id() -> None:
    # A long poll is before the question: its answer comes too late. The topic may be one of the gateway's own.
    play = Play(protected_topics=("own",)).named()
    lookup = play.client(other_request(7, key=1, version=4, body=bytes(21)) + request(1, version=13))[0]
    play.now = play.session.hold.held_until
    assert play.again()[0] == b""
    (asked,) = struct.unpack_from(">i", lookup, len(other_request(7, key=1, version=4, body=bytes(21))) + 8)
    no_topics = b"\0" + struct.pack(">i", 0) + b"\1\0" + struct.pack(">i", 1) + b"\1\0"
    client = play.broker(other_answer(7) + other_answer(asked, no_topics))
    assert client.startswith(other_answer(7))
    refused = decode_answer(client[len(other_answer(7)) :], 13)[2]
    assert refused[TOPIC_ID.hex(), 0][0] == api.UNKNOWN_TOPIC_ID
    name = "topic-id:AAECAwQFBgcICQoLDA0ODw"
    assert play.rows() == {(name, "rejected", "unknown-topic-id"): (size_of(), 1, 1)}
    assert play.counts["topic_ids_unknown"] == 1


def test_acks_0_to_a_topic_id_that_no_broker_names_is_dropped() -> None:
    play = Play()
    play.client(request(1, version=13, acks=0))
    began, looks = play.now, 0
    while play.session.hold.held_until > play.now and play.now < began + 20:
        play.now = play.session.hold.held_until
        looks += play.again() != (b"", b"")
    assert play.now - began == MAX_WAIT_S
    assert looks == 14  # it was asked for again and again
    assert [key[1:] for key in play.rows()] == [("dropped", "unknown-topic-id")]


@pytest.mark.parametrize("software", [None, JAVA])
def test_acks_0_to_other_topics_passes_beside_a_topic_id_that_no_broker_names(software: tuple[str, str] | None) -> None:
    # Clients without a name send all of a request again, but nothing that has acks=0.
    play = Play().named(software)
    play.world.cluster.topic_ids[TOPIC_ID] = b"clicks"
    records = batch((b"payload",))
    read = (len(records), 1, -1, -1, -1, 0)
    topics = [cases.Topic("", topic, [(0, cases.Batch(records, read))]) for topic in (TOPIC_ID, bytes(16))]
    frame = cases.framed(cases.encode(cases.Request(13, "app", None, 0, topics, 30_000), correlation_id=1))
    upstream, _ = play.client(frame)
    while play.session.hold.held_until > play.now:
        play.now = play.session.hold.held_until
        upstream += play.again()[0]
    assert upstream.count(records) == 1
    assert play.rows()["clicks", "unacknowledged", ""] == (len(records), 1, 1)


@pytest.mark.parametrize("software", [None, JAVA])
def test_acks_0_that_is_dropped_takes_no_other_topic_with_it(software: tuple[str, str] | None) -> None:
    play = Play(total=1.0, topics={"clicks": 1.0, "views": 1e12}, acks0="drop").named(software).overload()
    upstream, _ = play.client(request(1, {"clicks": [0], "views": [0]}, acks=0))
    assert upstream == with_question(request(1, {"views": [0]}, acks=0))
    assert play.rows()["clicks", "dropped", "acks0-limit"] == (size_of(), 1, 1)


def test_what_never_passes_is_not_counted_as_delayed_beside_acks_0_that_waits() -> None:
    play = Play(total=1.0, topics={"clicks": 1.0}, protected_topics=("own",)).overload()
    play.client(request(1, {"clicks": [0], "own": [0]}, acks=0))
    assert play.session.hold.held_until > play.now
    assert play.rows() == {("clicks", "delayed", "topic-threshold"): (size_of(), 1, 1)}
    play.now = play.session.hold.held_until
    play.run_clockwork(play.now)
    play.engine.set_thresholds(None, {})
    play.again()
    assert play.rows().keys() == {("clicks", "unacknowledged", ""), ("own", "dropped", "protected-topic")}


@pytest.mark.parametrize(("acks", "counted"), [(0, (3 * SIZE, 3, 1)), (-1, (0, 0, 0))])
def test_a_request_waits_once_however_many_partitions_it_has(acks: int, counted: tuple[int, int, int]) -> None:
    play = Play().named().set_quotas((APP, "producer_byte_rate", float(SIZE)))
    for _ in range(40):  # the queue is full
        play.beside().client(request(1))
    play.ledger()
    play.client(request(1, {"clicks": [0, 1, 2]}, acks=acks))
    (row,) = play.ledger()
    assert (row.bytes, row.messages, row.requests) == counted
    assert row.delay_ms == round(1000 * (play.session.hold.held_until - play.now)) > 0


def test_batches_that_may_stand_behind_a_refused_topic_id_wait_for_it() -> None:
    # The name comes to be known in between: without a fence the second batch would pass, and the first never again.
    play = Play().named()
    play.client(request(1, version=13, producer=(7, 0, 0)))
    play.now = play.session.hold.held_until
    play.again()
    play.world.cluster.topic_ids[TOPIC_ID] = b"clicks"
    assert play.client(request(2, version=13, producer=(7, 0, 1)))[0] == b""
    assert play.client(request(3, version=13, producer=(7, 0, 0)))[0] == request(3, version=13, producer=(7, 0, 0))


def behind_refused_id(play: Play) -> bytes:
    """A first batch is refused, as no broker names its topic in time; then others come by name, to that topic and to
    another one. What goes upstream at once.
    """
    play.client(request(1, version=13, producer=(7, 0, 0)))
    play.now = play.session.hold.held_until
    play.again()
    return play.client(request(2, {"clicks": [0], "free": [0]}, version=12, producer=(7, 0, 1)))[0]


@pytest.mark.parametrize("version", [12, 13])
def test_batches_by_name_wait_for_one_that_was_refused_by_its_id(version: int) -> None:
    # Java's client sends v12 while any topic of the request has no id. A broker without state for that producer would
    # take the second batch, and the first never again.
    play = Play().named()
    lookup = behind_refused_id(play)
    assert struct.unpack_from(">hh", lookup, 4) == (api.METADATA, 12)
    assert TOPIC_ID in lookup
    play.world.cluster.topic_ids[TOPIC_ID] = b"clicks"
    assert play.again()[0] == request(2, {"free": [0]}, version=12, producer=(7, 0, 1))
    assert play.rows()["clicks", "rejected", "fence"] == (SIZE, 1, 1)
    retried = request(3, version=version, producer=(7, 0, 0)) + request(4, version=12, producer=(7, 0, 1))
    assert play.client(retried)[0] == retried
    assert not play.session.gate.fence.entries


def test_while_no_broker_names_a_refused_id_it_may_be_that_of_any_topic() -> None:
    play = Play().named()
    behind_refused_id(play)
    play.now = play.session.hold.held_until
    assert play.again()[0] == b""
    assert {key[0] for key in play.rows() if key[2] == "fence"} == {"clicks", "free"}
    for number in range(100, 120):
        play.client(request(number, version=13, topic_id=bytes([number]) * 16, producer=(7, 0, 0)))
        play.now = play.session.hold.held_until
        play.again()
    assert len(play.session.gate.fence.entries) > len(play.session.gate.topics.refused_ids) == MAX_REFUSED_IDS


def test_by_name_no_refused_id_is_asked_about_behind_which_nothing_stands() -> None:
    play = Play().named()
    lookup = play.client(request(1, version=13))[0]  # of a producer without an id
    play.now = play.session.hold.held_until
    play.again()
    assert lookup
    behind = request(2, version=12, producer=(7, 0, 1))
    assert play.client(behind)[0] == behind


# --- malformed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20), "TLS"),
        (struct.pack(">i", -5) + bytes(20), "negative"),
        (struct.pack(">i", 2**31 - 1) + bytes(20), "2,147,483,647"),
        (struct.pack(">ihh", 100, 20_000, 1) + bytes(20), "API key 20000"),
        (struct.pack(">i", 3) + bytes(20), "3"),
        (cases.framed(request(1)[4:] + b"\0"), "1 bytes behind the end"),
        *((other_request(1, key=0, version=v, body=bytes(40)), f"Produce version {v}") for v in (0, 2, 14)),
        (other_request(1, key=17, version=0, body=b"\0\5PLAIN"), "SaslHandshake version 0"),
        *((other_request(1, key=k, version=0, body=bytes(40)), "version 0: versions 1 to 2") for k in (78, 79)),
    ],
    ids=["http", "tls", "negative size", "2 GiB", "unknown key", "too short", "a byte behind its end", "Produce v0",
         "Produce v2", "Produce v14", "SaslHandshake v0", "ShareFetch v0", "ShareAcknowledge v0"],
)  # fmt: skip
@STEPS
def test_data_that_is_no_request_that_is_spoken_is_refused_with_what_it_looks_like(
    data: bytes, what: str, step: int
) -> None:
    with pytest.raises(MalformedFrame, match=what):
        Play().client(data, step)


# --- delay, by a policy through the real interface --------------------------------------------------------------------


class Fixed:
    """A policy of the operator's own that says the same about one topic."""

    def __init__(self, verdict: Verdict | None, topic: str = "clicks") -> None:
        self.verdict, self.topic = verdict, topic

    def decide(
        self,
        node_id: Any,
        topic: Any,
        partition: Any,
        producer_id: Any,
        size: Any,
        principal: Any,
        client_id: Any,
        now: Any,
    ) -> Verdict | None:
        return self.verdict if topic == self.topic.encode() else None


def asked(verdict: Verdict | None, **settings: Any) -> Play:
    play = Play(**settings).named()
    play.world.plugins = [Fixed(verdict)]
    return play


def delay(ms: int, **more: bool) -> Verdict:
    return Verdict(DELAY, "test", ms, "slow down", **more)


def reject(ms: int = 1000, **more: bool) -> Verdict:
    return Verdict(REJECT, "test", ms, "no", **more)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_delayed_request_is_forwarded_at_once_and_its_answer_carries_the_throttle_time(version: int) -> None:
    play = asked(delay(2500))
    play.world.cluster.topic_ids[TOPIC_ID] = b"clicks"
    assert play.client(request(1, version=version)) == (request(1, version=version), b"")
    frame = play.broker(answer(1, version=version))
    topic = "clicks" if version < 13 else TOPIC_ID.hex()
    assert decode_answer(frame, version) == (1, 2500, {(topic, 0): (0, None)})
    assert play.rows()["clicks", "accepted", ""] == (SIZE, 1, 1)
    assert play.session.hold.muted_until == play.now + 2.5


def test_the_larger_of_the_brokers_throttle_time_and_ours_is_told() -> None:
    play = asked(delay(2500))
    play.client(request(1))
    assert decode_answer(play.broker(answer(1, throttle_ms=9000)))[1] == 9000
    play = Play(**OVER).named().overload()
    play.client(request(1, {"free": [0], "clicks": [0]}))  # a part of it is rejected
    assert decode_answer(play.broker(answer(1, {"free": {0: (0, 3)}}, throttle_ms=60_000)))[1] == 60_000


def test_requests_behind_a_delayed_one_stay_parked_and_undecided() -> None:
    play = asked(delay(1000))
    upstream, _ = play.client(request(1) + request(2) + other_request(3))
    assert upstream == request(1)
    assert play.session.hold.held_until == play.now + 1.0
    play.now = play.session.hold.held_until
    upstream, _ = play.again()
    assert upstream == request(2) + other_request(3)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [(12, 0, b""), (26, 0, b"\0\2tx" + bytes(11)), (17, 1, b"\0\5PLAIN"), (8, 2, b"")],
    ids=["Heartbeat", "EndTxn", "SaslHandshake", "OffsetCommit"],
)
def test_requests_other_than_produce_pass_a_mute(key: int, version: int, body: bytes) -> None:
    play = asked(delay(1000))
    play.client(request(1))
    assert play.session.hold.muted_until > play.now
    frame = other_request(2, key=key, version=version, body=body)
    assert play.client(frame)[0] == frame
    assert play.client(request(3) + frame)[0] == b""  # but what is behind a Produce request waits with it


def test_a_single_delay_is_at_most_ten_seconds() -> None:
    play = asked(delay(60_000))
    play.client(request(1))
    assert play.session.hold.muted_until == play.now + MAX_MUTE_S
    assert decode_answer(play.broker(answer(1)))[1] == 10_000  # and no client is told more


@pytest.mark.parametrize(
    ("software", "timeout_ms", "longest_s"),
    [(JAVA, 30_000, 25.0), (JAVA, 5000, 4.0), (("kgo", "v1.22.2"), 10_000, 16.0), (("sarama", "v1.61.1"), 10_000, 25.0),
     (None, 40_000, 34.0), (None, 5000, 8.0), (JAVA, 120_000, 50.0)],
)  # fmt: skip
def test_no_request_waits_longer_in_all_than_its_client_and_the_operator_allow(
    software: tuple[str, str] | None, timeout_ms: int, longest_s: float
) -> None:
    play = asked(delay(6000)).named(software)
    start = play.now
    frames = [request(i, timeout_ms=timeout_ms) for i in range(1, 11)]
    assert play.client(b"".join(frames))[0] == frames[0]
    waits = [play.session.hold.held_until - start]
    while play.unhandled:
        play.now = play.session.hold.held_until
        play.again()
        waits.append(play.session.hold.held_until - start)
    assert max(waits) == pytest.approx(longest_s)
    assert play.unhandled == b""


@pytest.mark.parametrize("software", [("librdkafka", "2.16.0"), ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0")])
def test_librdkafka_is_kept_for_as_long_as_it_waits_itself(software: tuple[str, str]) -> None:
    play = asked(delay(6000)).named(software)
    start = play.now
    upstream = play.client(b"".join(request(i) for i in range(1, 12)))[0]
    while play.session.hold.held_until < start + 50.0:
        play.now = play.session.hold.held_until
        upstream += play.again()[0]
    assert upstream == b"".join(request(i) for i in range(1, 10)), "one in 6 s, for 50 s"
    assert play.session.hold.held_until == start + 50.0


def test_a_mixed_request_is_told_the_longer_of_its_waits() -> None:
    play = asked(delay(5000))
    play.world.plugins.append(Fixed(reject(1000), "bad"))
    upstream, _ = play.client(request(1, {"clicks": [0], "bad": [0]}))
    assert upstream == request(1, {"clicks": [0]})
    assert decode_answer(play.broker(answer(1)))[1] == 5000


def test_the_time_of_delays_is_in_the_accounts() -> None:
    play = asked(delay(700))
    play.client(request(1))
    play.broker(answer(1))
    rows = {(row.outcome, row.reason): (row.bytes, row.requests, row.delay_ms) for row in play.ledger()}
    assert rows == {("accepted", ""): (SIZE, 1, 700), ("delayed", "test"): (SIZE, 1, 700)}


def test_acks_0_is_delayed_beyond_the_fifteen_seconds_since_no_client_times_out_on_it() -> None:
    play = asked(delay(9000))
    play.session.hold.drained_at = play.now - 60
    assert play.client(request(1, acks=0))[0] == with_question(request(1, acks=0))
    assert play.session.hold.muted_until == play.now + 9.0


def test_acks_0_is_dropped_and_counted_only_where_the_operator_says_so() -> None:
    play = asked(reject(), acks0="drop")
    free = request(1, {"free": [1]}, acks=0)
    assert play.client(request(1, {"clicks": [0], "free": [1]}, acks=0)) == (with_question(free), b"")
    assert play.client(request(2, acks=0)) == (b"", b"")
    assert play.rows() == {
        ("clicks", "dropped", "acks0-limit"): (2 * SIZE, 2, 2),
        ("free", "unacknowledged", ""): (SIZE, 1, 1),
    }
    assert play.engine.broker_meters(1).throttled.uncounted == 2 * SIZE


def test_acks_0_to_a_topic_of_the_gateways_own_is_dropped_under_that_reason() -> None:
    play = Play(protected_topics=("__usage",))
    assert play.client(request(1, {"__usage": [0, 1]}, acks=0)) == (b"", b"")
    assert play.rows() == {("__usage", "dropped", "protected-topic"): (2 * SIZE, 2, 1)}
    assert play.engine.broker_meters(1).throttled.uncounted == 0


# --- observe ----------------------------------------------------------------------------------------------------------


def observing_thresholds() -> Play:
    play = Play(**OVER).named()
    play.engine.set_thresholds(100.0, {"clicks": 50.0}, mode="observe")
    return play.overload()


@pytest.mark.parametrize(
    ("play", "outcome", "reason"),
    [
        (lambda: asked(reject(800), mode="observe"), "would_reject", "test"),
        (lambda: asked(delay(800), mode="observe"), "would_delay", "test"),
        (observing_thresholds, "would_reject", "topic-threshold"),
    ],
    ids=["a policy that rejects", "a policy that delays", "thresholds"],
)
def test_observe_touches_nothing_and_counts_what_would_have_been(
    play: Callable[[], Play], outcome: str, reason: str
) -> None:
    on = play()
    assert on.client(request(1)) == (request(1), b"")
    assert on.broker(answer(1)) == answer(1)
    assert on.session.hold.muted_until == 0.0
    assert on.rows() == {("clicks", "accepted", ""): (SIZE, 1, 1), ("clicks", outcome, reason): (SIZE, 1, 1)}


def test_a_policy_that_only_observes_does_not_stop_one_that_enforces() -> None:
    play = asked(reject(800, observed_only=True))
    play.world.plugins.append(Fixed(reject(1), "bad"))
    upstream, _ = play.client(request(1, {"clicks": [0], "bad": [0]}))
    assert upstream == request(1, {"clicks": [0]})
