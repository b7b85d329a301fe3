# Hostile plays of one session: random but valid traffic of several APIs with a broker that answers as brokers do, cut
# anywhere, with limits, mutes, topic ids that nobody knows and a sudden end. With broken bytes: test_everything_on.py.
#
# Invariants: one answer per request that is owed one, in order; nothing of a rejected partition reaches the broker;
# every byte of a whole request ends in exactly one outcome; what was rejected and has not come again is outstanding;
# meters hold what was admitted and not refused. What the fuzzing has found has a named test below.

from __future__ import annotations

import struct
from collections import Counter, deque
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channel import UsageRow
from gateway.data.shared.errors import UpstreamError
from gateway.data.shared.topics import INVALID_TOPIC
from policies.meters.broker_meters import OTHER_TOPICS
from policies.usage import NOTES
from policies.verdict import NEVER_PASSES
from protocol import api
from protocol.produce import produce_request
from protocol.rewriting import rewrite
from protocol.wire import MalformedFrame
from tests.gateway.data.play import (
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
from tests.protocol import produce_cases as cases
from tests.protocol.batches import batch

SIZE = size_of()
OVER: dict[str, Any] = {"total": 100.0, "topics": {"clicks": 50.0}, "protected_topics": ("__usage",)}
NAMES = ("free", "calm", "clicks", "__usage", "sixteen-letters!")
IDS = {name: (name.encode() * 16)[:16] for name in NAMES}  # the last one's id reads like its name
UNKNOWN_ID = b"\xee" * 16
SEEDS = st.integers(0, 2**32)


class Sent:
    """A request that the client has made, and what may come of it."""

    def __init__(
        self, frame: bytes, correlation: int, version: int, acks: int, parts: dict[tuple[bytes, int], int]
    ) -> None:
        self.frame = frame
        self.correlation = correlation
        self.version = version
        self.acks = acks
        self.parts = parts  # (topic as on the wire, partition) -> bytes of `records`
        self.key = struct.unpack_from(">h", frame, 4)[0]

    @property
    def owed(self) -> bool:
        return self.key != api.PRODUCE or self.acks != 0


def produce(rng: Random, correlation: int) -> Sent:
    version = rng.randint(3, 13)
    acks = rng.choice((0, 1, -1, -1))
    topics: list[cases.Topic] = []
    parts: dict[tuple[bytes, int], int] = {}
    for name in rng.sample(NAMES, rng.choice((1, 1, 2, 3))):
        topic_id = UNKNOWN_ID if rng.random() < 0.05 else IDS[name]
        if version >= 13 and any(topic_id == topic.id for topic in topics):
            continue
        rows = []
        for index in rng.sample(range(4), rng.choice((1, 1, 2))):
            producer = (rng.randint(7, 8), 0, rng.randint(0, 5)) if rng.random() < 0.3 else (-1, -1, -1)
            values = [rng.randbytes(rng.randint(0, 30)) for _ in range(rng.randint(1, 3))]
            records = batch(values, producer_id=producer[0], epoch=producer[1], sequence=producer[2])
            records += rng.choice((b"", b"", b"", b"tail"))
            rows.append((index, cases.Batch(records, (0, 0, 0, 0, 0, 0))))
            parts[topic_id if version >= 13 else name.encode(), index] = len(records)
        topics.append(cases.Topic(name, topic_id, rows))
    client_id = rng.choice(("app", "app", None, "other"))
    content = cases.encode(cases.Request(version, client_id, None, acks, topics), correlation_id=correlation)
    return Sent(cases.framed(content), correlation, version, acks, parts)


def other(rng: Random, correlation: int) -> Sent:
    key, version, body = rng.choice(
        (
            (12, 0, b""),  # Heartbeat: passes
            (12, 0, b"x" * 200),
            (api.API_VERSIONS, 9, b""),  # answered here
            (api.API_VERSIONS, 0, b""),
            (api.FETCH, 16, b""),  # streamed
            (api.METADATA, 1, b"\0\0\0\0"),  # rewritten
        )
    )
    return Sent(other_request(correlation, key, version, body), correlation, version, 1, {})


def metadata_by_id(rng: Random, correlation: int, content: bytes) -> bytes:
    """An answer to the gateway's own question (Metadata v12), with names for some of the ids."""
    ids = [topic_id for topic_id in (*IDS.values(), UNKNOWN_ID) if topic_id in content]
    out = b"\0" + struct.pack(">i", 0) + b"\x01\0" + struct.pack(">i", 1) + bytes((len(ids) + 1,))
    for topic_id in ids:
        name = next((name for name, known in IDS.items() if known == topic_id), "")
        if not name or rng.random() < 0.2:
            out += struct.pack(">h", api.UNKNOWN_TOPIC_ID) + b"\0" + topic_id
        else:
            out += struct.pack(">h", 0) + bytes((len(name) + 1,)) + name.encode() + topic_id
        out += b"\0\x01" + struct.pack(">i", -(2**31)) + b"\0"
    return other_answer(correlation, out + b"\0")


class FakeBroker:
    """Reads what comes upstream and answers in order, partitions shuffled, with errors now and then."""

    def __init__(self, rng: Random, sent: dict[int, Sent]) -> None:
        self.rng = rng
        self.sent = sent
        self.got: dict[int, set[tuple[bytes, int]]] = {}
        self.answers = b""
        self._read = b""
        self._offset = 0

    def read(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= 4 and len(self._read) >= (size := struct.unpack_from(">i", self._read)[0] + 4):
            frame, self._read = self._read[:size], self._read[size:]
            self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        key, version, correlation = struct.unpack_from(">hhi", frame, 4)
        sent = self.sent.get(correlation)
        if frame == rewrite.NO_TOPICS_REQUEST:  # behind acks=0
            self.answers += TOOK
            return
        if sent is None:
            assert (key, version) == (api.METADATA, 12), "something that nobody has asked"
            self.answers += metadata_by_id(self.rng, correlation, frame)
            return
        assert correlation not in self.got, "forwarded twice"
        self.got[correlation] = set()
        if key == api.PRODUCE:
            self._produced(frame, sent)
        elif key == api.API_VERSIONS:
            self.answers += other_answer(correlation, struct.pack(">hi", 0, 1) + struct.pack(">hhh", 0, 0, 99))
        elif key == api.FETCH:
            self.answers += other_answer(correlation, b"\0" + bytes(10) + b"\x01\0")
        elif key == api.METADATA:
            self.answers += other_answer(correlation, bytes(4) + bytes(4) + bytes(4))
        else:
            self.answers += other_answer(correlation, self.rng.randbytes(self.rng.choice((2, 2, 5000))))

    def _produced(self, frame: bytes, sent: Sent) -> None:
        rng, version = self.rng, sent.version
        _, acks, _, _, parts = produce_request.skim_request(frame, 4, len(frame))
        keys = [part[:2] for part in parts]
        self.got[sent.correlation] = set(keys)
        assert keys
        assert set(keys) <= sent.parts.keys()
        if len(keys) == len(sent.parts):
            assert frame == sent.frame
        if not acks:
            return
        topics: dict[bytes, list[cases.Answer]] = {}
        for topic, index in rng.sample(keys, len(keys)):
            self._offset += 1
            code = rng.choice((0, 0, 0, 0, 6, 10))
            topics.setdefault(topic, []).append(cases.Answer(index, code, -1 if code else self._offset))
        rows = [
            cases.AnswerTopic("" if version >= 13 else topic.decode(), topic, answers)
            for topic, answers in topics.items()
        ]
        endpoints = (cases.Endpoint(2, "10.0.0.2", 9092, None),) if version >= 10 and rng.random() < 0.2 else ()
        response = cases.Response(version, sent.correlation, rows, rng.choice((0, 0, 7)), endpoints)
        self.answers += cases.framed(cases.encode_answer(response))


class Scene:
    """Everything of one play: what the client has to say, and what it has heard."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.play = Play(**OVER).named(rng.choice((JAVA, ("librdkafka", "2.0"), None)))
        if rng.random() < 0.7:
            self.play.overload()
        self.play.session.hold.drained_at = self.play.now
        for name in rng.sample(NAMES, 3):
            self.play.world.cluster.topic_ids[IDS[name]] = name.encode()
        self.requests = [rng.choice((produce, produce, other))(rng, i) for i in range(1, rng.randint(2, 25))]
        self.sent = {one.correlation: one for one in self.requests}
        self.broker = FakeBroker(rng, self.sent)
        self.unsent = b"".join(one.frame for one in self.requests)
        self.fed = 0
        self.heard = b""

    def cut(self, data: bytes) -> int:
        return min(len(data), self.rng.choice((1, 7, 50, 300, 5000)))

    def step(self) -> None:
        rng, play = self.rng, self.play
        session = play.session
        choice = rng.random()
        if choice < 0.45 and self.unsent and play.now >= session.hold.held_until:
            self.say(self.cut(self.unsent))
        elif choice < 0.85 and self.broker.answers:
            size = self.cut(self.broker.answers)
            data, self.broker.answers = self.broker.answers[:size], self.broker.answers[size:]
            self.heard += play.broker(data)
        elif choice < 0.95:
            play.now = max(play.now + rng.random(), rng.choice((0.0, session.hold.held_until)))
            if play.now >= session.hold.held_until:
                self.say(0)
        else:
            play.world.ledger.advance_epoch()
        if not session.hold.held_until:
            self.say(0)

    def say(self, size: int) -> None:
        data, self.unsent = self.unsent[:size], self.unsent[size:]
        self.fed += size
        upstream, client = self.play.client(data)
        self.broker.read(upstream)
        self.heard += client

    def finish(self) -> None:
        self.play.engine.set_thresholds(None, {})  # or acks=0 above its limit would wait for ever
        self.play.world.ledger.advance_epoch()
        for _ in range(10_000):
            if not (self.unsent or self.play.unhandled or self.broker.answers):
                return
            self.play.now = max(self.play.now, self.play.session.hold.held_until)
            self.say(len(self.unsent))
            data, self.broker.answers = self.broker.answers, b""
            self.heard += self.play.broker(data)
        raise AssertionError("the play doesn't come to its end")

    def check_answers(self, *, all_of_them: bool) -> None:
        owed = deque(one for one in self.requests if one.owed)
        data = self.heard
        while data:
            size, correlation = struct.unpack_from(">ii", data)
            frame, data = data[: size + 4], data[size + 4 :]
            assert len(frame) == size + 4
            sent = owed.popleft()
            assert correlation == sent.correlation, "answers out of order"
            if sent.key == api.PRODUCE:
                self.check_produced(sent, frame)
        if all_of_them:
            assert not owed

    def check_produced(self, sent: Sent, frame: bytes) -> None:
        _, _, rows = decode_answer(frame, sent.version)
        wanted = {(t.hex() if sent.version >= 13 else t.decode(), i) for t, i in sent.parts}
        assert rows.keys() == wanted, "an answer for exactly what was asked"
        forwarded = self.broker.got.get(sent.correlation, set())
        ours = {key for key, (code, _) in rows.items() if code in (19, 29, 89, api.UNKNOWN_TOPIC_ID)}
        there = {(t.hex() if sent.version >= 13 else t.decode(), i) for t, i in forwarded}
        assert ours == wanted - there, "a rejected partition reached the broker, or one was lost"

    def check_accounts(self, *, all_answered: bool = True) -> None:
        rows = self.play.ledger()
        outcomes: Counter[str] = Counter()
        for row in rows:
            if row.outcome not in NOTES:
                outcomes[row.outcome] += row.bytes
        position, offered = 0, 0
        for one in self.requests:
            position += len(one.frame)
            if position <= self.fed:
                offered += sum(one.parts.values())
        assert sum(outcomes.values()) == offered, outcomes
        meters = self.play.engine.broker_meters(1)
        got = outcomes["accepted"] + outcomes["unanswered"] + outcomes["unacknowledged"]
        if all_answered:
            assert meters.total.uncounted == got, outcomes
        assert outcomes["accepted"] <= meters.total.uncounted <= got, outcomes
        known = {*self.play.session.gate.accounts.accepted_topics, OTHER_TOPICS}
        assert not any(meter.uncounted for name, meter in meters.topics.items() if name not in known)
        assert meters.errors.uncounted == outcomes["errored"]
        assert meters.throttled.uncounted == sum(
            row.bytes
            for row in rows
            if (row.outcome == "rejected" and row.reason not in NEVER_PASSES)
            or (row.outcome == "dropped" and row.reason == "acks0-limit")
        )
        self.check_repeats([row for row in rows if row.outcome not in NOTES])

    def check_repeats(self, rows: list[UsageRow]) -> None:
        assert all(0 <= (row.repeats or 0) <= row.bytes for row in rows)
        rejected = [row for row in rows if row.outcome == "rejected" and row.topic != INVALID_TOPIC]
        # A protected topic's batch is to come again only where others of its request are.
        protected = OVER["protected_topics"]
        refused = sum(row.bytes for row in rejected if row.topic not in protected)
        outstanding = Counter[bool]()
        for (_, topic, _), batches in self.play.world.rejected_batches._places.items():
            outstanding[topic.decode() in protected] += sum(size for _, _, size, _ in batches)
        assert refused - sum(row.repeats or 0 for row in rows if row.topic not in protected) == outstanding[False]
        assert outstanding[True] <= sum(row.bytes for row in rejected if row.topic in protected)


@given(seed=SEEDS)
def test_valid_traffic_is_answered_in_order_and_counted_once(seed: int) -> None:
    scene = Scene(seed)
    for _ in range(scene.rng.randint(0, 200)):
        scene.step()
    scene.finish()
    assert scene.play.session.is_idle
    scene.check_answers(all_of_them=True)
    scene.play.session.close()
    scene.check_accounts()


@given(seed=SEEDS)
def test_a_connection_that_ends_anywhere_leaves_no_byte_uncounted(seed: int) -> None:
    scene = Scene(seed)
    for _ in range(scene.rng.randint(0, 60)):
        scene.step()
    unhandled = bytearray(scene.play.unhandled)
    scene.play.session.close((unhandled, 0, len(unhandled)))
    scene.check_accounts(all_answered=False)
    scene.check_answers(all_of_them=False) if _whole(scene.heard) else None


def _whole(data: bytes) -> bool:
    while data:
        if len(data) < 8 or len(data) < (size := struct.unpack_from(">i", data)[0] + 4):
            return False
        data = data[size:]
    return True


@given(seed=SEEDS)
def test_a_client_that_has_gone_leaves_no_byte_uncounted(seed: int) -> None:
    scene = Scene(seed)
    for _ in range(scene.rng.randint(0, 60)):
        scene.step()
    session = scene.play.session
    setattr(session.hold, scene.rng.choice(("is_client_gone", "is_draining")), True)
    scene.finish()
    session.close()
    scene.check_accounts()


# --- what was found ---------------------------------------------------------------------------------------------------


def test_a_topic_id_that_reads_like_the_name_of_a_topic_is_a_topic_id() -> None:
    # Meters were found by what the request calls the topic, whether that was a name or an id: an id with the bytes of a
    # name took the fast way without being known, and its answer ended in a KeyError, twice: the second left
    # the reactor.
    play = Play()
    name = "sixteen-letters!"
    play.client(request(1, {name: [0]}))
    play.broker(answer(1, {name: {0: (0, 0)}}))
    upstream, _ = play.client(request(2, version=13, topic_id=name.encode()))
    assert struct.unpack_from(">hh", upstream, 4) == (api.METADATA, 12)
    play.now = play.session.hold.held_until
    play.again()
    play.session.close()
    assert sum(row.bytes for row in play.ledger()) == 2 * SIZE


@pytest.mark.parametrize("what", ["endpoints", "a row that was rejected here"])
def test_the_contents_of_a_broken_answer_are_counted_once(what: str) -> None:
    # The answer was settled before it was merged; when that failed the request was counted as unanswered as well.
    play = Play(total=100.0, topics={"clicks": 50.0}).named().overload()
    if what == "endpoints":
        play.client(request(1, {"free": [0]}, version=10))
        body = cases.encode_answer(
            cases.Response(10, 1, [cases.AnswerTopic("free", TOPIC_ID, [cases.Answer(0)])], 0, ())
        )
        assert body[-1:] == b"\0"
        broken = cases.framed(body[:-1] + b"\x01\x00\x02\x09\x09")
        offered = SIZE
    else:
        play.client(request(1, {"free": [0], "clicks": [0]}))
        broken = answer(1, {"free": {0: (0, 3)}, "clicks": {0: (0, 3)}})
        offered = 2 * SIZE
    with pytest.raises(MalformedFrame):
        play.broker(broken)
    play.session.close()
    assert sum(row.bytes for row in play.ledger() if row.outcome not in NOTES) == offered


def test_answers_before_a_broken_one_reach_the_client() -> None:
    # They were counted as accepted and thrown away: the client would have sent the records once more.
    play = Play()
    play.client(request(1) + request(2))
    with pytest.raises(UpstreamError):
        play.broker(answer(1) + answer(5))
    assert b"".join(play.session.to_client) == answer(1)


def test_the_late_answer_to_one_lookup_does_not_end_the_next() -> None:
    # The second id was given up at once, and forwarded without any limit for as long as the connection lived.
    play = Play()
    first = play.client(request(1, version=13))[0]
    play.now = play.session.hold.held_until
    assert play.again()[0] == b""
    second = play.client(request(2, version=13, topic_id=IDS["calm"]))[0]
    assert struct.unpack_from(">hh", second, 4) == (api.METADATA, 12)
    late = metadata_by_id(Random(0), struct.unpack_from(">i", first, 8)[0], b"")
    play.broker(late)
    assert play.session.hold.held_until > play.now
    assert play.again() == (b"", b"")


@pytest.mark.parametrize("behind", [other_request(2), other_request(2, key=18, version=9)], ids=["forwarded", "local"])
def test_while_draining_nothing_behind_a_discarded_request_is_answered(behind: bytes) -> None:
    # Its client waits for the answer to the discarded one first: any other has the wrong correlation id.
    play = Play()
    play.session.hold.is_draining = True
    upstream, client = play.client(request(1) + behind + request(3, acks=0))
    assert client == b""
    assert upstream == with_question(request(3, acks=0))


def test_acks_0_behind_a_mute_is_forwarded_when_the_gateway_drains() -> None:
    # The mute came first: it stayed parked, and was dropped with the connection.
    play = Play()
    play.session.hold.muted_until = play.now + 5
    assert play.client(request(1, acks=0)) == (b"", b"")
    play.session.hold.is_draining = True
    assert play.again()[0] == with_question(request(1, acks=0))


def test_a_partition_refused_for_good_does_not_let_acks_0_pass_its_limit() -> None:
    # With one protected topic in the request, everything else in it passed at any rate.
    play = Play(**OVER).named().overload()
    upstream, _ = play.client(request(1, {"clicks": [0], "__usage": [0]}, acks=0))
    assert upstream == b""


def test_topics_that_clients_make_up_do_not_multiply_the_rows() -> None:
    play = Play(max_client_keys=100)
    for i in range(300):
        play.client(request(i, {f"made-up-{i}": [0]}, acks=0))
    rows = play.ledger()
    assert sum(row.bytes for row in rows) == 300 * SIZE
    assert len(rows) <= 201
