# Who plays: random clients and brokers for a worker and its control on stage (plays.py), and orders of that control's.
# Reads nothing of the gateway but how long a session holds, so that time passes where something waits for it.
#
# Each connection has its own share of broken frames, on either side: where all were broken none would get far.

from __future__ import annotations

import re
import struct
from collections import deque
from random import Random

import msgspec
import trio

from gateway.channel import (
    BrokerTable,
    GroupSnapshot,
    LimitShares,
    ListenerSettings,
    PeerRates,
    QuotaSnapshot,
    StorageSnapshot,
    TerminatedSasl,
    ThresholdPolicy,
    TopicSnapshot,
    UpstreamBroker,
    WorkerSettings,
)
from gateway.listener_names import DEFAULT_LISTENER
from policies.decision import Mode
from policies.engine import OnExceed
from policies.fleet.keys import total_key
from policies.fleet.shares import ShareGrant
from policies.groups.group_limiters import GroupLimitValues
from policies.meters.broker_meters import PeerTraffic
from policies.quotas.names import DEFAULT, Entity, QuotaKey
from policies.storage import StorageFactor
from protocol import api
from tests.gateway.data.made_settings import made_settings
from tests.hostile.fuzzing.plays import Op, Play, Start
from tests.hostile.traffic import frames, logins, managing
from tests.hostile.traffic.frames import IDS, NAMES, PROTECTED, Corpus, answering, numbered
from tests.hostile.traffic.logins import Login
from tests.protocol import produce_cases as cases

BROKERS = (UpstreamBroker(1, "10.0.0.1", 9092), UpstreamBroker(2, "10.0.0.2", 9092))
TOLD = {DEFAULT_LISTENER: {1: ("gateway", 19094), 2: ("gateway", 19095)}}
MANAGED = tuple(managing.APIS)
_TOPIC = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
_encode = msgspec.msgpack.encode


class Peer:
    """The two ends of one connection."""

    def __init__(self, rng: Random, number: int, logs_in: bool, own: Login | None = None) -> None:
        self.number = number
        self.correlation = 1 + int(rng.random() * 1000)
        self.broken = rng.choice((0.0, 0.0, 0.03, 0.3, 0.9))  # of requests
        self.lies = rng.choice((0.0, 0.0, 0.02, 0.3))  # of answers
        self.script = frames.login(rng.choice(frames.USERS), rng.randint(0, 2)) if logs_in else []
        self.login: Login | None = None  # of SASL that ends at the gateway
        self.manages = rng.choice((0.02, 0.1, 0.7))  # so many of its requests are for control
        if own is not None:
            self.begin(own)
        self.unsent = b""  # cut off the last piece
        self.answers: deque[tuple[bytes, bool]] = deque()  # whether it is a lie
        self.is_lying = False
        self.answer_rest = b""
        self.steps = 5 + int(rng.random() * rng.choice((10, 40, 150)))

    def begin(self, login: Login) -> None:
        """Authenticate at the gateway, again perhaps."""
        self.login = login
        self.script = list(login.frames)

    def hear(self, frame: bytes) -> None:
        """The gateway's answer to a step."""
        if self.login is None or self.script or len(frame) < 14:
            return
        try:
            error, said = logins.heard(frame, self.login.version)
        except (struct.error, IndexError):  # to something else
            return
        step = None if error else self.login.hear(said)
        self.script = [] if step is None else [step]


class Answers:
    """A broker that knows no state: it has captured and generated answers, and makes those that must fit."""

    def __init__(self, rng: Random, *, sasl: bool = True) -> None:
        """`sasl`: it wants clients to authenticate."""
        self.rng = rng
        self._sasl = sasl
        self._corpus = frames.corpus()

    def lie_to(self, frame: bytes, answer: bytes) -> bytes:
        """Something else than `answer`: nothing, it twice, what belongs to other requests, or a broken one."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.1:
            return b""
        if draw < 0.2:
            return answer + answer
        (correlation,) = struct.unpack_from(">i", frame, 8)
        other = answering(rng.choice(rng.choice(list(self._corpus.answers.values()))), correlation)
        return other if draw < 0.3 else frames.mutate(rng, answer, other)

    def to(self, frame: bytes) -> bytes | None:
        """What a broker may say to this request; None: nothing (acks=0)."""
        rng = self.rng
        key, version, correlation = struct.unpack_from(">hhi", frame, 4)
        if key == api.PRODUCE:
            return self._produced(frame, correlation)
        if key == api.SASL_HANDSHAKE:
            return frames.handshake_answer(correlation, rng.choice((0, 0, 0, 0, 33)) if self._sasl else 34)
        if key == api.SASL_AUTHENTICATE:
            token = rng.choice((b"", b"", b"v=signature")) if b"n," not in frame else b"r=nonce,s=c2FsdA==,i=4096"
            lifetime_ms = rng.choice((0, 0, 3000)) if correlation == 2 else 0  # the gateway's own, or of anybody
            error = rng.choice((0, 0, 0, 0, 58)) if self._sasl else 34
            return frames.sasl_answer(version, correlation, error, token, lifetime_ms)
        if correlation >= 0x7FFF0000 and (key, version) == (api.METADATA, 12):
            return self._named(frame, correlation)
        if key in managing.APIS and rng.random() < 0.8 and (said := managing.answer(rng, frame)) is not None:
            return said
        pool = self._corpus.answers.get((key, version))
        if pool is None:
            return cases.framed(struct.pack(">i", correlation) + rng.randbytes(rng.choice((0, 2, 30))))
        return answering(pool[int(rng.random() * len(pool))], correlation)

    def knows(self, frame: bytes) -> bool:
        """Whether `to` can say what Kafka would, as far as the gateway looks into it."""
        key, version = struct.unpack_from(">hh", frame, 4)
        return key not in frames.READ or (key, version) in self._corpus.answers or key in (0, 17, 36)

    def _produced(self, frame: bytes, correlation: int) -> bytes | None:
        rng = self.rng
        offer = frames.offered(frame)
        if not offer.acks:
            return None
        version = offer.version
        flexible = version >= api.PRODUCE_FLEXIBLE
        topics: dict[bytes, list[cases.Answer]] = {}
        for topic, index, _ in rng.sample(offer.parts, len(offer.parts)):
            code = rng.choice((0, 0, 0, 0, 0, 0, 3, 6, 7, 10, 20, 29, 45))
            if version < api.PRODUCE_TOPIC_IDS and not _TOPIC.fullmatch(topic):
                code = 17  # INVALID_TOPIC_EXCEPTION, as any broker says
            offset = -1 if code else rng.choice((5, rng.randrange(10_000)))
            topics.setdefault(topic, []).append(cases.Answer(index, code, offset))
        out = [struct.pack(">i", correlation), b"\0" if flexible else b"", cases._count(len(topics), flexible)]
        for topic, answers in topics.items():  # by hand: a mutated name need not be text
            if version < api.PRODUCE_TOPIC_IDS:
                out.append(cases.uvarint(len(topic) + 1) if flexible else struct.pack(">h", len(topic)))
            out += (topic, cases._count(len(answers), flexible))
            out += (cases.encode_partition(answer, version) for answer in answers)
            out.append(b"\0" if flexible else b"")
        out.append(struct.pack(">i", rng.choice((0, 0, 7, 20_000))))
        if flexible:
            moved = version >= api.PRODUCE_ENDPOINTS and rng.random() < 0.1
            endpoints = [(0, cases.encode_endpoints([cases.Endpoint(2, "10.0.0.2", 9092, None)]))] if moved else []
            out.append(cases.tag_fields(endpoints))
        return cases.framed(b"".join(out))

    def _named(self, frame: bytes, correlation: int) -> bytes:
        """An answer to the gateway's own question (Metadata v12), with names for some of the ids."""
        rng = self.rng
        ids = {topic_id: name for name, topic_id in IDS.items() if topic_id in frame and rng.random() < 0.8}
        out = b"\0" + struct.pack(">i", 0) + b"\x01\0" + struct.pack(">i", 1) + bytes((len(ids) + 1,))
        for topic_id, name in ids.items():
            out += struct.pack(">h", 0) + bytes((len(name) + 1,)) + name.encode() + topic_id
            out += b"\0\x01" + struct.pack(">i", -(2**31)) + b"\0"
        return cases.framed(struct.pack(">i", correlation) + out + b"\0")


class Player:
    """Says what happens next, `inputs` frames long. `dear`: how often a frame is one that is dear to read."""

    def __init__(self, seed: int, inputs: int, dear: float = 0.0, most: int = 50_000) -> None:
        self.rng = rng = Random(seed)
        self._left = inputs
        self._dear, self._most = dear, most
        self._corpus: Corpus = frames.corpus()
        self._peers: dict[int, Peer] = {}
        self._opened = 0
        draw = rng.random()
        self._sasl, self._asks_sasl = draw < 0.45, draw < 0.6
        here = TerminatedSasl(logins.MECHANISMS), TerminatedSasl(logins.MECHANISMS, True), TerminatedSasl((), True)
        self._own = rng.choice((None, None, *here))  # SASL that ends at the gateway
        self._answers = Answers(rng, sasl=self._asks_sasl)  # between the two the gateway is not told, and learns it
        start = Start(self._own is not None and self._own.authenticates_upstream, rng.choice((0, 0, 2000)))
        self._control = Op("control", data=_encode(start))
        self._queue: deque[Op] = deque((self._control,))
        self._queue += (Op("down", data=_encode(message)) for message in self._beginning())

    def __call__(self, play: Play) -> Op | None:
        if self._queue:
            return self._queue.popleft()
        if self._left <= 0:
            return None
        for number in [number for number in self._peers if number not in play.connections]:
            del self._peers[number]
        return self._next(play)

    # --- control ------------------------------------------------------------------------------------------------------

    def _beginning(self) -> list[msgspec.Struct]:
        known = {name: IDS[name] for name in NAMES if name in PROTECTED or self.rng.random() < 0.8}
        leads = {1: tuple(name for name in known if name not in PROTECTED), 2: ("red.a.one", "free")}
        yield_all = [
            self._settings(),
            BrokerTable((("10.0.0.1", 9092),), BROKERS, TOLD),
            TopicSnapshot(leads, _by_id(known)),
        ]
        return [
            *yield_all,
            self._policy(),
            self._quotas(),
            self._groups(),
            self._storage(),
            self._parts(),
            self._others(),
        ]

    def _settings(self) -> WorkerSettings:
        rng = self.rng
        return made_settings(
            max_request_bytes=rng.choice((2**20, 100 * 2**20)),
            reject_code=rng.choice(("auto", "auto", 19, 89)),
            unknown_apis=rng.choice(("pass", "hide")),
            max_client_keys=rng.choice((5, 50, 10_000)),
            internal_principals=rng.choice(((), ("User:bob",))),
            internal_client_ids=rng.choice(((), ("tool",))),
            protected_topics=PROTECTED,
            acks0=rng.choice(("delay", "drop")),
            policies=rng.choice(((), (), ("tests.hostile.fuzzing.plays:Plugin",))),
            managed_apis=rng.choice(((), MANAGED, MANAGED)),
            mode="observe" if rng.random() < 0.15 else "enforce",
            upstream_sasl=self._sasl,
            max_partitions_per_request=rng.choice((3, 10_000, 10_000, 10_000, 10_000)),
            max_connections_per_principal=rng.choice((1, 5000, 5000, 5000)),
            listeners={DEFAULT_LISTENER: ListenerSettings(sasl=self._own)},
        )

    def _policy(self) -> ThresholdPolicy:
        rng = self.rng
        total = rng.choice((None, 300.0, 1e5))
        topics = rng.choice(({}, {"clicks": 200.0, "red.a.one": 1e4}))
        how: OnExceed = rng.choice(("reject", "delay"))
        return ThresholdPolicy(
            1, total, topics, how, rng.choice(("enforce", "enforce", "observe")), rng.choice(({}, {2: 100.0}))
        )

    def _quotas(self) -> QuotaSnapshot:
        rng = self.rng
        rate, fetched = QuotaKey("producer_byte_rate", "broker_bps"), QuotaKey("consumer_byte_rate", "broker_bps")
        entries = {
            Entity("alice"): {fetched: 50.0, rate: 500.0},
            Entity(None, "app"): {rate: 2000.0, QuotaKey("request_percentage", "percent"): 5.0},
            Entity(DEFAULT): {rate: 1e6},
            Entity(DEFAULT, DEFAULT): {rate: 300.0},
        }
        chosen = {entity: values for entity, values in entries.items() if rng.random() < 0.4}
        return QuotaSnapshot(1, chosen, rng.choice(("enforce", "enforce", "observe")))

    def _groups(self) -> GroupSnapshot:
        rng = self.rng
        low = GroupLimitValues(200.0, 20.0, 20.0, None)
        groups = {
            "gold": rng.choice((low, GroupLimitValues(1e6))),
            "blue": rng.choice((low, GroupLimitValues(None, 3.0, None, 3.0))),
        }
        if rng.random() < 0.3:
            return GroupSnapshot(1)
        by_principal = rng.choice(("", "User:{tenant}"))
        namespaces = rng.choice(({}, {"blue/b": "blue"}))
        mode: Mode = rng.choice(("enforce", "enforce", "observe"))
        return GroupSnapshot(1, groups, {"red": "gold"}, namespaces, principal_pattern=by_principal, mode=mode)

    def _storage(self) -> StorageSnapshot:
        rng = self.rng
        factor = rng.choice((1.0, 1.0, 0.5, 0.01, 0.0))
        why = "disk /data is full" if factor < 1 else ""
        return StorageSnapshot(StorageFactor(factor, why=why), rng.choice(("enforce", "observe")))

    def _parts(self) -> LimitShares:
        if self.rng.random() < 0.5:
            return LimitShares({})
        return LimitShares({total_key(1): ShareGrant(200.0, 100.0)}, 2, settle_s=2.0, lease_s=5.0)

    def _others(self) -> PeerRates:
        return PeerRates({1: PeerTraffic(100.0, {b"clicks": 150.0})} if self.rng.random() < 0.5 else {}, 2)

    # --- what happens next --------------------------------------------------------------------------------------------

    def _next(self, play: Play) -> Op:
        rng = self.rng
        peers = self._peers
        draw = rng.random()
        if not peers or (len(peers) < 4 and draw < 0.03):
            return self._open()
        if draw < 0.032:
            return self._control
        if draw < 0.07:
            return self._time(play)
        if draw < 0.08:
            made = (self._policy, self._quotas, self._groups, self._storage, self._parts, self._others, self._settings)
            return Op("down", data=_encode(rng.choice(made)()))
        peer = peers[rng.choice(list(peers))] if len(peers) > 1 else next(iter(peers.values()))
        connection = play.connections[peer.number]
        for frame in connection.forwarded:
            self._serve(peer, frame)
        for frame in connection.heard:
            peer.hear(frame)
        connection.forwarded, connection.heard = [], []
        peer.steps -= 1
        if connection.is_finishing and not (peer.answers or peer.answer_rest):
            return Op("close", peer.number)
        if draw < 0.084 or peer.steps < 0:
            return Op(rng.choice(("close", "close", "close", "gone", "drain", "short")), peer.number)
        if (peer.answers or peer.answer_rest) and draw < 0.55:
            return self._say(peer)
        return self._ask(peer)

    def _open(self) -> Op:
        self._opened += 1
        rng, own = self.rng, self._own
        logs_in = rng.random() < (0.9 if self._asks_sasl else 0.2)
        login = Login(rng) if own is not None and own.mechanisms and rng.random() < 0.95 else None
        self._peers[self._opened] = Peer(rng, self._opened, logs_in and own is None, login)
        certified = ""
        while own is not None and not own.mechanisms and not certified:  # others are not let in
            certified = logins.certified(rng)
        return Op("open", self._opened, certified.encode(), rng.choice((1, 1, 2, -1)))

    def _time(self, play: Play) -> Op:
        rng = self.rng
        held = [one.session.hold.held_until for one in play.connections.values() if one.is_parked]
        if held and rng.random() < 0.7:
            return Op("time", value=min(max(0.001, min(held) - trio.current_time()), 60.0))
        return Op("time", value=rng.choice((0.001, 0.05, 0.3, 1.0, 1.0, 5.0)))

    # --- the client ---------------------------------------------------------------------------------------------------

    def _ask(self, peer: Peer) -> Op:
        rng = self.rng
        if peer.unsent:
            data, peer.unsent = peer.unsent, b""
            return Op("client", peer.number, data)
        many = 1 if rng.random() < 0.8 else rng.randint(2, 6)
        found = [self._request(peer) for _ in range(many)]
        if many > 1 and peer.broken and rng.random() < 0.2:
            rng.shuffle(found)
            found.append(found[0])
        self._left -= len(found)
        data = b"".join(found)
        if rng.random() < 0.15:
            at = rng.randrange(len(data)) if len(data) else 0
            data, peer.unsent = data[:at], data[at:]
        return Op("client", peer.number, data)

    def _request(self, peer: Peer) -> bytes:
        rng, corpus = self.rng, self._corpus
        peer.correlation += 1
        if peer.login is not None and not peer.script and rng.random() < 0.02:
            peer.begin(Login(rng))
        if peer.script:
            frame = peer.script.pop(0)
        elif self._dear and rng.random() < self._dear:
            return numbered(frames.dear(rng, rng.randint(1000, self._most)), peer.correlation)
        elif rng.random() < peer.manages:
            frame = managing.request(rng)
        else:
            draw = rng.random()
            pool = corpus.produce if draw < 0.6 else corpus.others if draw < 0.95 else corpus.sasl
            frame = pool[int(rng.random() * len(pool))]
        frame = numbered(frame, peer.correlation)
        if peer.broken and rng.random() < peer.broken:
            pool = corpus.others if rng.random() < 0.3 else corpus.produce
            return frames.mutate(rng, frame, pool[int(rng.random() * len(pool))])
        return frame

    # --- the broker ---------------------------------------------------------------------------------------------------

    def _serve(self, peer: Peer, frame: bytes) -> None:
        answer = self._answers.to(frame)
        if answer is not None:
            lies = bool(peer.lies) and self.rng.random() < peer.lies
            answer = self._answers.lie_to(frame, answer) if lies else answer
            peer.answers.append((answer, lies or not self._answers.knows(frame)))

    def _say(self, peer: Peer) -> Op:
        rng = self.rng
        data, peer.answer_rest = peer.answer_rest, b""
        if not data:
            many = min(len(peer.answers), 1 if rng.random() < 0.7 else 4)
            self._left -= many
            taken = [peer.answers.popleft() for _ in range(many)]
            peer.is_lying = any(lies for _, lies in taken)
            if peer.lies and many > 1 and rng.random() < 0.05:
                taken.reverse()
                peer.is_lying = True
            data = b"".join(answer for answer, _ in taken)
        if data and rng.random() < 0.15:
            at = rng.randrange(len(data))
            data, peer.answer_rest = data[:at], data[at:]
        return Op("broker", peer.number, data, float(peer.is_lying))


def _by_id(names: dict[str, bytes]) -> dict[bytes, str]:
    return {topic_id: name for name, topic_id in names.items()}
