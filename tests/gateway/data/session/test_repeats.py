# What a client sends again after a rejection, and whose bytes they are: the fields of version 2 of the usage record.

from __future__ import annotations

import pytest

from gateway.channel import GroupSnapshot
from policies.groups.group_limiters import GroupLimitValues
from policies.idempotence.repeats import RETENTION_S
from tests.gateway.data.play import JAVA, TOPIC_ID, Play, answer, other_request, request, size_of

SIZE = size_of()
OVER = {"total": 100.0, "topics": {"clicks": 50.0}}
IDEMPOTENT = (7, 0, 12)
PLAIN = (-1, -1, -1)
ZERO = (-1, 0, 0)  # KafkaJS and sarama begin to count though they have no producer id
LIBRDKAFKA = ("librdkafka", "2.16.0")
PRODUCERS = pytest.mark.parametrize("producer", [IDEMPOTENT, PLAIN, ZERO], ids=["idempotent", "plain", "plain from 0"])


def overloaded(software: tuple[str, str] | None = JAVA, **settings: object) -> Play:
    return Play(**OVER, **settings).named(software).overload()  # type: ignore[arg-type]


def limit(play: Play, *, on: bool) -> None:
    """Set the thresholds that `overloaded` exceeds, or none."""
    play.engine.set_thresholds(100.0 if on else None, {"clicks": 50.0} if on else {})
    play.world.ledger.advance_epoch()


def again(play: Play, frame: bytes) -> tuple[bytes, bytes]:
    """The client waits as long as it was told, then sends."""
    play.now = max(play.now, play.session.hold.muted_until)
    play.session.hold.drained_at = play.now
    return play.client(frame)


def told(play: Play) -> dict[tuple[str, str], tuple[int, int | None]]:
    """(outcome, reason) -> (bytes, repeats) since the last call, of rows that are alone with their names."""
    rows = play.ledger()
    found = {(row.outcome, row.reason): (row.bytes, row.repeats) for row in rows}
    assert len(found) == len(rows)
    return found


REJECTED = ("rejected", "topic-threshold")
ACCEPTED = ("accepted", "")


@PRODUCERS
@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_batch_that_comes_again_after_a_rejection_is_a_repeat(producer: tuple[int, int, int], version: int) -> None:
    play = overloaded()
    frame = request(1, producer=producer, version=version)
    again(play, frame)
    assert told(play) == {REJECTED: (SIZE, 0)}
    again(play, frame)
    assert told(play) == {REJECTED: (SIZE, SIZE)}
    limit(play, on=False)
    assert again(play, frame)[0] == frame
    play.broker(answer(1, version=version))
    assert told(play) == {ACCEPTED: (SIZE, SIZE)}
    assert not play.world.rejected_batches.may_match
    again(play, frame)
    play.broker(answer(1, {"clicks": {0: (0, 9)}}, version=version))
    assert told(play) == {ACCEPTED: (SIZE, 0)}


@PRODUCERS
def test_a_topic_may_come_by_its_id(producer: tuple[int, int, int]) -> None:
    play = overloaded()
    play.world.cluster.topic_ids[TOPIC_ID] = b"clicks"
    for version in (13, 9):
        again(play, request(1, producer=producer, version=version))
    assert told(play) == {REJECTED: (2 * SIZE, SIZE)}


@PRODUCERS
def test_only_the_partitions_that_were_rejected_come_again(producer: tuple[int, int, int]) -> None:
    play = overloaded()
    play.client(request(1, {"free": [0], "clicks": [0, 1]}, producer=producer))
    play.broker(answer(1, {"free": {0: (0, 3)}}))
    assert told(play) == {ACCEPTED: (SIZE, 0), REJECTED: (2 * SIZE, 0)}
    limit(play, on=False)
    again(play, request(2, {"clicks": [1, 0, 2]}, producer=producer))
    play.broker(answer(2, {"clicks": {0: (0, 4), 1: (0, 4), 2: (0, 4)}}))
    assert told(play) == {ACCEPTED: (3 * SIZE, 2 * SIZE)}


@PRODUCERS
def test_a_client_may_come_again_over_another_connection(producer: tuple[int, int, int]) -> None:
    play = overloaded()
    play.client(request(1, producer=producer))
    play.rows()
    limit(play, on=False)
    other = play.beside()
    again(other, request(1, producer=producer))
    other.broker(answer(1))
    assert told(other) == {ACCEPTED: (SIZE, SIZE)}


@pytest.mark.parametrize(
    ("producer", "outcome"),
    [
        *(
            (producer, outcome)
            for producer in (IDEMPOTENT, PLAIN)
            for outcome in ("errored", "unanswered", "discarded")
        ),
        (IDEMPOTENT, "duplicate"),
    ],
)
def test_a_rejection_is_matched_whatever_becomes_of_the_next_attempt(
    producer: tuple[int, int, int], outcome: str
) -> None:
    play = overloaded()
    frame = request(1, producer=producer)
    if outcome == "duplicate":
        limit(play, on=False)
        again(play, frame)
        play.broker(answer(1, {"clicks": {0: (0, 3)}}))
        limit(play, on=True)
    again(play, frame)
    play.rows()
    limit(play, on=False)
    if outcome == "discarded":
        play.session.close((bytearray(frame), 0, len(frame)))
    else:
        again(play, frame)
    if outcome == "unanswered":
        play.session.close()
    elif outcome != "discarded":
        play.broker(answer(1, {"clicks": {0: (10, -1) if outcome == "errored" else (0, 3)}}))
    assert [(row.outcome, row.bytes, row.repeats) for row in play.ledger()] == [(outcome, SIZE, SIZE)]


@PRODUCERS
def test_a_code_that_the_client_does_not_retry_ends_it(producer: tuple[int, int, int]) -> None:
    play = overloaded(reject_code=44)
    again(play, request(1, producer=producer))
    assert not play.world.rejected_batches.may_match
    again(play, request(1, producer=producer))  # whoever that is, it isn't the client's own retry
    assert told(play) == {REJECTED: (2 * SIZE, 0)}


def test_batches_behind_a_rejected_one_are_rejected_and_come_again_as_well() -> None:
    play = overloaded()
    first, behind = request(1, producer=(7, 0, 0)), request(2, producer=(7, 0, 1))
    play.client(first + behind)
    assert told(play) == {REJECTED: (SIZE, 0), ("rejected", "fence"): (SIZE, 0)}
    limit(play, on=False)
    again(play, first + behind)
    play.broker(answer(1) + answer(2, {"clicks": {0: (0, 1)}}))
    assert told(play) == {ACCEPTED: (2 * SIZE, 2 * SIZE)}


def test_bytes_behind_a_batch_were_never_rejected() -> None:
    play = overloaded()
    frame = request(1, producer=IDEMPOTENT, trailing=b"12345")
    again(play, frame)
    again(play, frame)
    assert told(play) == {REJECTED: (2 * SIZE, SIZE), ("trailing", ""): (10, 0)}


@PRODUCERS
def test_notes_of_policies_beside_the_outcome_have_no_repeats(producer: tuple[int, int, int]) -> None:
    play = overloaded()
    again(play, request(1, producer=producer))
    play.rows()
    play.engine.set_thresholds(100.0, {"clicks": 50.0}, mode="observe")
    again(play, request(1, producer=producer))
    play.broker(answer(1))
    assert told(play) == {("would_reject", "topic-threshold"): (SIZE, None), ACCEPTED: (SIZE, SIZE)}


# --- what can't be told -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("software", [LIBRDKAFKA, None])
def test_repeats_of_a_client_that_makes_new_batches_are_unknown_while_something_of_it_is_outstanding(
    software: tuple[str, str] | None,
) -> None:
    play = overloaded(software)
    again(play, request(1))
    limit(play, on=False)
    again(play, request(2, values=(b"payload", b"more")))
    again(play, request(3, {"clicks": [1]}))
    play.broker(answer(2) + answer(3, {"clicks": {1: (0, 0)}}))
    both = size_of((b"payload", b"more"))
    rows = [row for row in play.ledger() if row.outcome == "accepted"]
    assert [(row.bytes, row.messages, row.requests, row.repeats) for row in rows] == [
        (SIZE, 1, 2, 0),
        (both, 2, 0, None),
    ]
    again(play, request(1))  # as it was: then it is told from its bytes all the same
    play.broker(answer(1))
    assert told(play) == {ACCEPTED: (SIZE, SIZE)}
    again(play, request(4, values=(b"payload", b"more")))  # and nothing is outstanding any more
    play.broker(answer(4))
    assert told(play) == {ACCEPTED: (both, 0)}


def test_a_client_that_sends_the_same_bytes_again_is_told_from_one_that_has_news() -> None:
    play = overloaded()
    again(play, request(1))
    limit(play, on=False)
    again(play, request(2, values=(b"news",)))
    play.broker(answer(2))
    rows = play.ledger()
    assert {(row.outcome, row.repeats) for row in rows} == {("rejected", 0), ("accepted", 0)}


def test_a_batch_under_way_before_the_rejection_is_new() -> None:
    """The repeats of this client are unknown, but it had sent this batch before it was told."""
    play = overloaded(LIBRDKAFKA)
    limit(play, on=False)
    play.client(request(1))
    limit(play, on=True)
    play.client(request(2, values=(b"more",)))
    play.broker(answer(1))
    assert {(row.outcome, row.repeats) for row in play.ledger()} == {("rejected", 0), ("accepted", 0)}


def test_the_start_of_a_producers_next_epoch_may_be_what_it_has_left() -> None:
    play = overloaded()
    again(play, request(1, producer=(7, 0, 12), values=(b"a", b"b")))
    play.rows()
    limit(play, on=False)
    for sequence in (0, 1, 2):
        again(play, request(sequence, producer=(7, 1, sequence)))
        play.broker(answer(sequence, {"clicks": {0: (0, sequence)}}))
    assert [(row.bytes, row.repeats) for row in play.ledger()] == [(SIZE, 0), (2 * SIZE, None)]


def test_a_batch_that_comes_after_its_rejection_is_forgotten_counts_as_new() -> None:
    play = overloaded()
    again(play, request(1, producer=IDEMPOTENT))
    play.rows()
    limit(play, on=False)
    play.now += RETENTION_S
    play.world.rejected_batches.expire_batches(play.now)
    again(play, request(1, producer=IDEMPOTENT))
    play.broker(answer(1))
    assert told(play) == {ACCEPTED: (SIZE, 0)}


def test_names_that_are_remembered_are_no_longer_than_they_need_be() -> None:
    play = overloaded()
    for topic in ("t" * 250, "t" * 249):
        play.overload(topic)
    play.client(request(1, {"t" * 250: [0]}))  # longer than any topic's: a broker may say so
    play.broker(answer(1, {"t" * 250: {0: (17, -1)}}))
    assert not play.world.rejected_batches.may_match
    client = "c" * 30_000
    again(play, request(2, {"t" * 249: [0]}, client_id=client))
    assert [owner for owner, _, _ in play.world.rejected_batches._places] == [("User:ANONYMOUS", client[:256])]
    limit(play, on=False)
    again(play, request(2, {"t" * 249: [0]}, client_id=client))
    play.broker(answer(2, {"t" * 249: {0: (0, 0)}}))
    assert [row.repeats for row in play.ledger() if row.outcome == "accepted"] == [SIZE]


# --- whose it is ------------------------------------------------------------------------------------------------------

GROUPS = GroupSnapshot(1, {"gold": GroupLimitValues(10**9), "tin": GroupLimitValues(10**9)}, {"acme": "gold"})
BY_PRINCIPAL = GroupSnapshot(
    2, {"gold": GroupLimitValues(10**9)}, {"acme": "gold"}, principal_pattern=r"User:(?P<tenant>\w+)"
)


def groups_of(play: Play) -> set[tuple[str, str]]:
    return {(row.topic, row.group) for row in play.ledger()}


def produce(play: Play, *topics: str) -> None:
    for correlation, topic in enumerate(topics, 1):
        play.client(request(correlation, {topic: [0]}))
        play.broker(answer(correlation, {topic: {0: (0, correlation)}}))


def test_rows_say_the_resource_group_that_is_charged() -> None:
    play = Play().named()
    for groups in (GroupSnapshot(0), GROUPS, GroupSnapshot(2, GROUPS.groups, {"acme": "tin"})):  # within one interval
        play.world.set_groups(groups, play.now)
        produce(play, "acme.orders.t", "plain")
        produce(play, "acme.orders.t", "plain")
    assert groups_of(play) == {("acme.orders.t", group) for group in ("", "gold", "tin")} | {("plain", "")}


def test_where_only_the_principal_says_the_group_it_is_that_one() -> None:
    play = Play().named()
    play.session.client.set_principal("User:acme")
    play.world.set_groups(BY_PRINCIPAL, play.now)
    produce(play, "plain", "other.orders.t")
    assert groups_of(play) == {("plain", "gold"), ("other.orders.t", "")}


def test_internal_clients_are_in_no_group() -> None:
    play = Play(internal_client_ids=("app",)).named()
    play.world.set_groups(GROUPS, play.now)
    produce(play, "acme.orders.t")
    assert groups_of(play) == {("acme.orders.t", "")}


def test_rows_say_the_clients_software_by_its_name() -> None:
    play = Play()
    produce(play, "clicks")
    body = b"\0" + b"\x0blibrdkafka" + b"\x062.1.0" + b"\0"
    hello = other_request(9, key=18, version=3, body=body)
    assert play.client(hello)[0] == hello
    play.session.in_flight.drop_all()
    produce(play, "clicks")
    assert {row.software for row in play.ledger()} == {"", "librdkafka"}
