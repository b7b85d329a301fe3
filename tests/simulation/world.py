# One simulated world from its seed: what there is (a plan), what goes wrong when (faults), and how it ends.

from __future__ import annotations

import bisect
import gc
import hashlib
import hmac
import itertools
import json
import logging
import os
import random
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from gateway.control.policies.store import StoreError
from gateway.control.storage.override import OVERRIDE_KEY
from gateway.parent_link import NOTHING_KEPT
from policies.definitions.policy_records import ChangeSource
from policies.definitions.policy_values import PolicyOperation
from policies.storage import StorageOverride
from tests.simulation.asking import Asking
from tests.simulation.clock import START_S, UNIX_S, Agenda, Process, current_process, deterministic
from tests.simulation.judge import (
    BACK_S,
    FAIR_SHARE,
    FLOORS,
    KEPT_PART_S,
    WINDOW_S,
    FairShares,
    Judge,
    Limit,
    RejectingTotal,
)
from tests.simulation.models import clients as models
from tests.simulation.models.clients import Client
from tests.simulation.models.cluster import BROKER_USER, Cluster
from tests.simulation.models.consumers import Consumer
from tests.simulation.models.network import End, KernelEnd, Network, Stream
from tests.simulation.models.sasl import MECHANISMS, Identity, password_of, record_of
from tests.simulation.models.transactional import TransactionalClient
from tests.simulation.processes import Gateway, simulated_system
from tests.simulation.strangers import send_intruder, send_strange

BROKERS: Final = 3
WARM_UP_S: Final = 8.0  # until clients begin
SETTLE_S: Final = 20.0  # after an event until limits are judged over windows again
SETTLE_OVER_S: Final = 4.0  # … until a full second must not exceed them
ASK_AFTER_S: Final = 60.0  # … until explain has to know all that clients were told
ASK_EVERY_S: Final = 10.0
SILENCE_S: Final = 90.0  # for which a silent connection stays so, at least
CALM_END_S: Final = 45.0  # without faults, at the end
IDLE_TIMEOUT_S: Final = 400.0  # for clients to come to an end
_MALFORMED: Final = re.compile(r"client\d+:\d+ .*connection closed: (?!half a frame)")
MESSAGES_PER_S: Final = 5.5  # of one gateway to one topic: five reports per cycle, and some at its start
CLOSE_S: Final = 45.0  # after the last client is gone until no worker has a socket: one may be muted for 30 s
KEPT_S: Final = 590.0  # explain keeps what was held back for ten minutes
MAX_LINES: Final = 500  # of the product's log
_BY: Final = ChangeSource("User:operator", "simulation")
_FOLDER: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None


@dataclass(frozen=True, slots=True)
class ClientPlan:
    profile: str
    client_id: str
    topics: dict[str, int]
    rate: float
    batch_bytes: int
    gateways: tuple[int, ...]
    starts_s: float = 0.0
    backlog: int = 0
    user: str = ""
    mechanism: str = ""

    @property
    def limit_name(self) -> str:
        """By which a quota knows it."""
        return self.user or self.client_id


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: seconds after the clients' start."""

    at: float
    kind: str
    number: int = 0  # whatever the kind makes of it
    seconds: float = 0.0
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a world consists of. `theme`: which limits there are."""

    seed: int
    seconds: float
    theme: str
    limit: float
    gateways: int
    workers: int
    topics: dict[str, int]
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    has_nights: bool = False  # hours with next to nothing to do


THEMES: Final = ("group", "quota", "total", "reject", "free", "mixed", "storage")
NEWER_THEMES: Final = ("affected", "percent", "fetch", "dispatch", "users")
NEWEST_THEMES: Final = ("transactions", "logins")
SASL_THEMES: Final = ("users", "logins")  # in the second one SASL ends at the gateways
INTRUDER_EVERY_S: Final = 4.0
FAULTS_S: Final = 25.0  # between two, on average …
NIGHT_FAULTS_S: Final = 900.0  # … and where there are nights
DAY_S, NIGHT_S = 90.0, 3510.0  # an hour
NIGHT_SHARE: Final = 0.001  # of what clients bring by day
READ_EVERY_S: Final = 0.2  # by a consumer where limits don't concern it
NIGHT_POLL_S: Final = 5.0  # for which gateways' consumers wait where nothing comes
READ_THEMES: Final = ("fetch", "dispatch")
UNDER_TRANSACTIONS: Final = ("group", "quota", "reject")  # the limits in worlds of that theme
TRANSACTION_TIMEOUTS_MS: Final = (20_000, 60_000)
DISK_THEMES: Final = ("storage", "affected")
BURST_S: Final = 5.0  # of totals that reject
PERCENT: Final = 50.0  # of clients, for which a limit is enforced in worlds of that theme
SASL: Final = ", security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.username: me, sasl.password: mine"
_AUTHENTICATION: Final = (
    "authentication: {{sasl.enabled.mechanisms: 'PLAIN, SCRAM-SHA-256', credentials_file: {0}/users.yaml,"
    " upstream_credentials_file: {0}/brokers.yaml}}\n"
)
SECRET: Final = b"a secret of all gateways of a world, for what clients must not compute"
STOPS_S: Final = (0.5, 100.0)  # for which a process is stopped
KEPT_AFTER_STOP_S: Final = 5.0  # by workers, of what control dealt them before it was stopped
DISKS_SEEN_AFTER_S: Final = 3.0  # control that goes on has looked at disks, and workers do what it says
PAUSED_AFTER_S: Final = 3.0  # an operator's pause is carried out everywhere
RETENTION_S: Final = 40.0  # in worlds where disks fill up
# Each fault and its weight.
FAULTS: Final = {
    "broker killed": 3, "leader moved": 4, "connection cut": 8, "connection silent": 3, "connection trickles": 2,
    "half closed": 2, "clock step": 2, "topic deleted": 1, "disk full": 2, "worker killed": 3, "control killed": 3,
    "gateway killed": 1, "gateway restarted": 1, "limit changed": 4, "limit lent": 2, "messages lost": 2,
    "messages repeated": 2, "exchange deleted": 1, "compaction": 2,
}  # fmt: skip
MORE_FAULTS: Final = {
    "strangers": 4, "spool full": 2, "foreign messages": 2, "gateway cut off": 2, "gateway joins": 1, "broker joins": 1,
}  # fmt: skip
NEWER_FAULTS: Final = {"storage paused": 2}
TRANSACTION_FAULTS: Final = {"producer replaced": 8, "producer stalls": 3, "coordinator moved": 4}
NEWEST_FAULTS: Final = {"process stopped": 6}
NEWER_FROM: Final = 20_000  # the first seed that has what is newer
NEWEST_FROM: Final = 30_000
STOPS_FROM: Final = 100_000
MORE_FAULTS_FROM: Final = 1000  # the first seed that has them: those before are still the worlds that reports name
LASTING: Final = frozenset({"gateway killed", "limit lent"})
HARMLESS: Final = frozenset({"strangers", "foreign messages", "spool full", "compaction"})  # limits hold meanwhile
_PROFILES: Final = {
    profile.name: profile for profile in (*models.PROFILES, models.LIBRDKAFKA_ACKS0, *models.TRANSACTIONAL)
}
_TRANSACTIONAL: Final = [profile.name for profile in models.TRANSACTIONAL]
_PLAIN: Final = [name for name, profile in _PROFILES.items() if profile.transactions is None]


def make_plan(
    seed: int, hours: float, *, theme: str | None = None, calm: bool | None = None, has_nights: bool = False
) -> Plan:
    """The world of that seed."""
    chance = random.Random(f"plan {seed}")
    is_newer = seed >= NEWER_FROM
    more = NEWER_THEMES * is_newer + NEWEST_THEMES * (seed >= NEWEST_FROM)
    theme = theme or chance.choice(THEMES + more)
    calm = chance.random() < 0.25 if calm is None else calm
    gateways, workers = chance.choice((1, 1, 2, 3)), chance.choice((1, 1, 2))
    topics = {f"acme.orders.{name}": chance.randint(2, 6) for name in ("new", "paid", "sent")[: chance.randint(1, 3)]}
    limit = float(chance.choice((60_000, 100_000, 160_000)))
    seconds = hours * 3600
    names = (
        _PLAIN
        if theme not in ("reject", "storage", "affected", "transactions")
        else [name for name in _PLAIN if name != "kafka-go"]
    )
    under = limits_theme(theme, seed)
    plans = []
    count = chance.randint(2, 5)
    for number in range(count):
        ours = dict(chance.sample(sorted(topics.items()), chance.randint(1, len(topics))))
        hungry = number == 0 or chance.random() < 0.6
        share = limit / count * (BROKERS if under in ("quota", "users", "total", "reject", "affected") else 1)
        rate = share * (chance.uniform(1.5, 3.0) if hungry else chance.uniform(0.1, 0.5))
        mine = list(range(gateways))
        chance.shuffle(mine)
        plans.append(
            ClientPlan(
                chance.choice(names if theme != "transactions" or chance.random() < 0.3 else _TRANSACTIONAL),
                f"app-{number if theme != 'quota' else number % 2}", ours, round(rate),
                max(800, round(limit * chance.uniform(0.02, 0.05))), tuple(mine),
                0.0 if chance.random() < 0.7 else round(chance.uniform(0.0, seconds / 3), 3),
                chance.randrange(20),
                *((f"user-{number % 2}", MECHANISMS[chance.randrange(2)]) if theme in SASL_THEMES else ()),
            )
        )  # fmt: skip
    faults = []
    if not calm:
        at = 0.0
        pause_s = NIGHT_FAULTS_S if has_nights else FAULTS_S
        while (at := at + chance.expovariate(1 / pause_s)) < seconds - CALM_END_S:
            weights = FAULTS | (MORE_FAULTS if seed >= MORE_FAULTS_FROM else {}) | (NEWER_FAULTS if is_newer else {})
            weights |= TRANSACTION_FAULTS if theme == "transactions" else {}
            weights |= NEWEST_FAULTS if seed >= STOPS_FROM else {}
            kind = chance.choices(list(weights), list(weights.values()))[0]
            number, seconds_of, value = chance.randrange(1000), chance.uniform(3.0, 25.0), chance.random()
            if kind == "process stopped":  # as often for less than 7 s as for more
                seconds_of = STOPS_S[0] * (STOPS_S[1] / STOPS_S[0]) ** value
            faults.append(Fault(round(at, 3), kind, number, round(seconds_of, 3), value))
    return Plan(seed, seconds, theme, limit, gateways, workers, topics, tuple(plans), tuple(faults), has_nights)


def limits_theme(theme: str, seed: int) -> str:
    """The theme whose limits it has."""
    if theme == "transactions":
        return UNDER_TRANSACTIONS[seed % len(UNDER_TRANSACTIONS)]
    return theme if theme != "logins" else "users"


class _Enough(Exception):
    """What the world was to show was seen."""


class World:
    """
    Attributes:
        judge: what came of it, once `run` has returned.
        until: kinds of violations, any of which ends the world.
    """

    def __init__(self, plan: Plan, until: tuple[str, ...] = ()) -> None:
        self.plan = plan
        self.until = until
        self.under = limits_theme(plan.theme, plan.seed)
        self.chance = random.Random(f"world {plan.seed}")
        self.agenda = Agenda()
        self.judge = Judge(lambda: self.agenda.now)
        self.network = Network(
            self.agenda,
            lambda: self.chance.uniform(0.0002, 0.003),
            lambda: self.chance.uniform(5e5, 5e6),
            current_process.get,
        )
        self.cluster = Cluster(self.agenda, self.network, self.chance, self.judge, BROKERS)
        self.gateways: list[Gateway] = []
        self.clients: list[Client] = []
        self.consumers: list[Consumer] = []
        self.limit = plan.limit
        self._log = _LogCounter(self.judge)
        self._unsure_bytes = 0.0
        self._stops: list[tuple[str, float, float]] = []  # of processes of a gateway's host, from when until when
        self._controls_killed = set[str]()
        self._is_lent = False
        self._quiet_from = 0.0  # when the last fault has been over for ASK_AFTER_S
        self._is_ending = False
        self._is_stopping = False
        self._traffic_share = 1.0  # of what the clients' plans say
        self._nursery: trio.Nursery
        self._folder: Path

    def run(self) -> Judge:
        root = logging.getLogger("gateway")
        level, propagates = root.level, root.propagate
        root.setLevel(logging.INFO)
        root.propagate = False
        root.addHandler(self._log)
        gc.disable()  # a collection must not decide when something ends
        if is_first := not gc.get_freeze_count():
            gc.freeze()  # what was there before costs more than a world's own garbage
        try:
            with (
                tempfile.TemporaryDirectory(dir=_FOLDER) as folder,
                deterministic(self.agenda, self.plan.seed),
                simulated_system(self.network, self.cluster, self._current_gateway),
            ):
                trio.run(self._main, Path(folder), clock=self.agenda.make_clock())
                gc.collect()
        except* _Enough:
            pass
        finally:
            if is_first:
                gc.unfreeze()
            gc.enable()
            root.removeHandler(self._log)
            root.setLevel(level)
            root.propagate = propagates
        return self.judge

    @property
    def logs(self) -> list[str]:
        """The last lines of the product's log, with time and process."""
        return list(self._log.lines)

    @property
    def simulated_s(self) -> float:
        return self.agenda.now - START_S

    @property
    def unix_s(self) -> float:
        return UNIX_S + self.simulated_s

    def _current_gateway(self) -> Gateway | None:
        name = current_process.get().name.split("/")[0]
        return next((each for each in self.gateways if each.name == name), None)

    # --- from its beginning to its end --------------------------------------------------------------------------------

    async def _main(self, folder: Path) -> None:
        self._folder = folder
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._collect_garbage)
            self.cluster.wants_sasl = self.plan.theme in SASL_THEMES
            (folder / "secret").write_bytes(SECRET)
            if self.plan.theme == "logins":
                _write_credentials(folder, {client.user for client in self.plan.clients})
                nursery.start_soon(self._intrude)
            if self.plan.theme == "affected":  # by the first broker's disk only topics that it has
                self.cluster.homes = {name: at % BROKERS + 1 for at, name in enumerate(self.plan.topics)}
            if self.plan.has_nights:
                self.cluster.idle_poll_s = NIGHT_POLL_S
            if self.plan.theme == "transactions":
                self.cluster.serve_transactions()
            for name, partitions in self.plan.topics.items():
                self.cluster.create_topic(name, partitions)
            if self.plan.theme in DISK_THEMES:
                nodes = self.cluster.brokers if self.plan.theme == "storage" else [1]
                self.cluster.limit_disks(self.plan.limit * RETENTION_S, RETENTION_S, nodes)
            for number in range(self.plan.gateways):
                self._make_gateway(number)
            await trio.sleep(WARM_UP_S)
            if self.plan.theme in (*READ_THEMES, "transactions"):
                self._make_consumers()
            self._set_limits()
            self._settle()
            for number, plan in enumerate(self.plan.clients):
                self.agenda.after(plan.starts_s, self._make_client, number, plan)
            nursery.start_soon(self._watch_seconds)
            nursery.start_soon(self._ask_gateways)
            if self.plan.has_nights:
                nursery.start_soon(self._alternate)
            for fault in self.plan.faults:
                self.agenda.after(fault.at, self._do, fault)
            try:
                await trio.sleep(self.plan.seconds)
                await self._end()
            except BaseException:
                self.agenda.clear()  # or models would go on, and what they run into would hide this
                raise
            nursery.cancel_scope.cancel()
        self.agenda.clear()

    async def _collect_garbage(self) -> None:
        while True:
            await trio.sleep(600.0 if self.plan.has_nights else 60.0)
            gc.collect()

    def _make_gateway(self, number: int) -> None:
        brokers = ",".join(f"{host}:{port}" for host, port in (each.address for each in self.cluster.brokers.values()))
        config = (
            f"upstream: {{bootstrap_servers: '{brokers}'{SASL if self.cluster.wants_sasl else ''}}}\n"
            "admin: {port: 9190}\n"
            f"secret_key_file: {self._folder / 'secret'}\n"
            + _config(self.plan)
            + (_AUTHENTICATION.format(self._folder) if self.plan.theme == "logins" else "")
        )
        gateway = Gateway(
            self.agenda, self.network, self._nursery, self._folder, number, self.plan.workers, config, self._on_gateway
        )
        self.gateways.append(gateway)
        self._start_gateway(gateway)

    def _start_gateway(self, gateway: Gateway) -> None:
        """Its buckets begin full."""
        gateway.start()
        for total in self.judge.rejecting.values():
            total.excuse(gateway.host, 0.0, 2.0 * BURST_S / len(self.gateways))

    def _on_gateway(self, kind: str, *about: object) -> None:
        self.judge.tell(kind, *about)
        if kind in ("crashed", "gave up"):
            self.judge.accuse("a process ended by itself", f"{kind} {about}")

    def _make_client(self, number: int, plan: ClientPlan) -> None:
        make: Callable[..., Client] = Client
        if _PROFILES[plan.profile].transactions is not None:
            timeout_ms = TRANSACTION_TIMEOUTS_MS[number % len(TRANSACTION_TIMEOUTS_MS)]
            name = f"transactions-{number % len(self.plan.clients)}"
            make = partial(TransactionalClient, transactional_id=name, timeout_ms=timeout_ms)
        client = make(
            number, _PROFILES[plan.profile], self.agenda, self.network,
            random.Random(f"client {self.plan.seed} {number}"), self.judge,
            [self.gateways[gateway].bootstrap for gateway in plan.gateways], plan.topics, plan.client_id,
            rate=plan.rate * self._traffic_share, batch_bytes=plan.batch_bytes, records=8,
            who=Identity(plan.user, plan.mechanism) if plan.user else None,
        )  # fmt: skip
        self.clients.append(client)
        self._settle()
        client.start(plan.backlog)

    def _make_consumers(self) -> None:
        """One of each gateway; where there are transactions, with read_committed, and one without."""
        committed = self.plan.theme == "transactions"
        for number, gateway in enumerate((*self.gateways, *self.gateways[:1] * committed)):
            chance = random.Random(f"consumer {self.plan.seed} {number}")
            consumer = Consumer(
                number, self.agenda, self.network, chance, self.judge, [gateway.bootstrap], self.plan.topics,
                f"reader-{number}", round(self.plan.limit / 4),
                is_committed=committed and number < len(self.gateways), pause_s=READ_EVERY_S * committed,
            )  # fmt: skip
            self.consumers.append(consumer)
            consumer.start()

    def _unread_bytes(self, consumers: Iterable[Consumer], node_id: int | None = None) -> float:
        return sum(
            each.batch.size
            for consumer in consumers
            for (topic, index), position in consumer.positions.items()
            if (found := self.cluster.topics.get(topic)) is not None
            for partition in (found.partitions[index],)
            if node_id in (None, partition.leader)
            for each in partition.log[bisect.bisect_left(partition.log, position, key=lambda one: one.offset) :]
        )

    async def _watch_seconds(self) -> None:
        while True:
            await trio.sleep(1.0)
            if not self._is_stopping:  # gateways that stop forward the acks=0 requests that they hold
                self.judge.end_second()
            if any(self.judge.counts[f"violation: {kind}"] for kind in self.until):
                raise _Enough

    async def _alternate(self) -> None:
        """Days and nights."""
        await trio.sleep(DAY_S)
        while not self._is_ending:
            self._set_traffic(NIGHT_SHARE)
            await trio.sleep(NIGHT_S)
            self._set_traffic(1.0)
            self._settle()
            await trio.sleep(DAY_S)

    def _set_traffic(self, share: float) -> None:
        """That share of what each client's plan says, also for clients that begin later."""
        self._traffic_share = share
        for client in self.clients:
            client.set_rate(self._plan_of(client).rate * share)

    def _plan_of(self, client: Client) -> ClientPlan:
        """Also of one that takes the place of another one."""
        return self.plan.clients[client.number % len(self.plan.clients)]

    async def _intrude(self) -> None:
        """Somebody knows who the users are, and tries a password now and then, or goes without."""
        chance = random.Random(f"intruders {self.plan.seed}")
        users = [client.user for client in self.plan.clients]

        def told(is_in: bool) -> None:
            self.judge.counts["intruders"] += 1
            if is_in:
                self.judge.accuse("let in", "somebody with a wrong password, or none")

        while not self._is_ending:
            await trio.sleep(INTRUDER_EVERY_S * chance.uniform(0.5, 1.5))
            who: Identity | None = Identity(
                chance.choice((*users, "nobody")), chance.choice(MECHANISMS), "a wrong password"
            )
            who = who if chance.random() < 0.7 else None
            send_intruder(chance, self.network, chance.choice(self.gateways).bootstrap, who, told)

    async def _ask_gateways(self) -> None:
        """Ask at random moments what gateways say, and compare it with what their clients were told."""
        chance = random.Random(f"asking {self.plan.seed}")
        asking = Asking(self.judge, self.under, lambda: self.limit)
        clients = self.plan.clients
        untold = {each.client_id for each in clients if not _PROFILES[each.profile].acks}
        pairs = sorted(
            (client_id, topic)
            for client_id in {each.client_id for each in clients} - untold
            for topic in {topic for each in clients if each.client_id == client_id for topic in each.topics}
        )
        if self.cluster.wants_sasl:
            pairs = []  # it would be asked about users
        while pairs and not self._is_ending:
            await trio.sleep((60.0 if self.plan.has_nights else 1.0) * ASK_EVERY_S * chance.uniform(0.5, 1.5))
            gateway, (client_id, topic) = chance.choice(self.gateways), chance.choice(pairs)
            is_whole = gateway.name not in self._controls_killed and self.simulated_s < KEPT_S
            is_quiet = is_whole and self.agenda.now >= self._quiet_from and not gateway.wall_offset_s
            await asking.ask(gateway, client_id, topic, is_quiet=is_quiet)
            if self.plan.theme == "affected":
                await asking.ask_storage(
                    gateway, [name for name, node_id in self.cluster.homes.items() if node_id == 1]
                )
            if is_whole and chance.random() < 0.3:
                await asking.compare_metrics(gateway, topic)

    async def _end(self) -> None:
        self._is_ending = True
        for client in self.clients:
            client.stop()
        for limit in self.judge.limits.values():
            limit.is_lower_judged = False  # some come to their end before others
        with trio.move_on_after(IDLE_TIMEOUT_S):
            while not all(client.is_idle for client in self.clients):  # noqa: ASYNC110  clients are no tasks
                await trio.sleep(1.0)
        with trio.move_on_after(IDLE_TIMEOUT_S + 2.0 * self._unread_bytes(self.consumers) / self.plan.limit):
            while self._unread_bytes(self.consumers):  # noqa: ASYNC110
                await trio.sleep(1.0)
        while any(until > self.agenda.now for _, _, until in self._stops):  # noqa: ASYNC110
            await trio.sleep(1.0)
        self.judge.check_consumers(self.consumers, self.cluster)
        for consumer in self.consumers:
            consumer.close()
        self._judge_clients()
        self._judge_messages()
        await trio.sleep(5.0)
        for gateway in self.gateways:
            await self._judge_gauges(gateway)
        texts = {}
        for client in self.clients:
            client.close()
        # Of a client that waits for no answer there may be more on its way than a limit lets through by then.
        is_all_answered = all(client.profile.acks for client in self.clients)
        with trio.move_on_after(CLOSE_S):
            while is_all_answered and self._worker_sockets():  # noqa: ASYNC110  nobody tells of it
                await trio.sleep(1.0)
        for name, address in self._worker_sockets() if is_all_answered else ():
            self.judge.accuse("a socket is left", f"of {name}, to {address}")
        self._is_stopping = True
        for gateway in self.gateways:
            await gateway.stop()
            if gateway.name not in self._controls_killed:
                texts[gateway.name] = [b"".join(each.render_text()).decode() for each in gateway.all_metrics]
        if len(texts) < len(self.gateways):
            texts = {}
        self.judge.check_logs(self.cluster)
        self.judge.transactions.check(self.judge.deleted_names)
        self.judge.check_usage([gateway.spool_dir for gateway in self.gateways], texts, unsure_bytes=self._unsure_bytes)
        if self.cluster.wants_sasl:
            self.judge.check_users([gateway.spool_dir for gateway in self.gateways], unsure_bytes=self._unsure_bytes)

    def _judge_clients(self) -> None:
        is_calm = not self.plan.faults
        for client in self.clients:
            profile = client.profile
            who = f"{profile.name} {client.number}"
            if not client.is_idle:
                self.judge.accuse("no end", f"{who} still waits for {client.pending_bytes} bytes")
            allowed = 2 * profile.request_timeout_s + profile.backoff_s[1] + profile.metadata_age_s + 20.0
            for began, ended in client.long_waits:
                if ended - began > allowed + self._stopped_s(client, began, ended):
                    self.judge.accuse("no progress", f"{who} waited for {ended - began:.1f} s")
            if is_calm and isinstance(client, TransactionalClient) and client.given_up:
                self.judge.accuse("given up", f"{who} gave up {client.given_up} transactions in a calm world")
            # Disks stay full as long as they do.
            may_fail = not is_calm or self.plan.theme in DISK_THEMES or self._brought_too_much(client)
            if client.failed_bytes and not may_fail:
                self.judge.accuse("given up", f"{who} gave up {client.failed_bytes} bytes in a calm world")
            if (
                is_calm
                and self.under not in ("reject", *DISK_THEMES)
                and client.sent_bytes > 1.1 * client.acknowledged_bytes + 50_000
            ):
                self.judge.accuse("sent again", f"{who} sent {client.sent_bytes} for {client.acknowledged_bytes}")

    def _stopped_s(self, client: Client, began: float, ended: float) -> float:
        """For how long of that time a process of one of its gateways was stopped."""
        until, total = began, 0.0
        for host, since, to in self._stops:  # in the order of their beginnings
            if host in client.hosts and since < ended and to > until:
                total += min(to, ended) - max(since, until)
                until = to
        return total

    def _brought_too_much(self, client: Client) -> bool:
        """Whether what it gave up was more than its part of a broker's total serves until a batch is too old: it got
        that part for as long. Connections that wait take turns, so within a gateway it goes by the sizes of batches.
        """
        mine = self._plan_of(client)
        at_its_gateway = sum(plan.batch_bytes for plan in self.plan.clients if plan.gateways[0] == mine.gateways[0])
        for node_id, served in client.served_at_expiry.items():
            total = self.judge.limits.get(node_id) or self.judge.rejecting.get(node_id)
            if total is None:
                return False
            part = total.rate / self.plan.gateways * mine.batch_bytes / at_its_gateway
            if served < FAIR_SHARE * part * client.profile.delivery_timeout_s:
                return False
        return bool(client.served_at_expiry)

    def _judge_messages(self) -> None:
        """What gateways write to their own topics is bounded, whatever clients do."""
        most = round(MESSAGES_PER_S * (self.simulated_s + 10.0)) * len(self.gateways)
        for topic, count in self.judge.messages.items():
            if count > most:
                self.judge.accuse("too many messages", f"{count} in {topic}, at most {most}")

    async def _judge_gauges(self, gateway: Gateway) -> None:
        """What /metrics says of the present, after some seconds without a request, is what there is."""
        answer = await gateway.ask("/metrics")
        if answer is None:
            return
        ends = [
            end
            for end in self.network.ends.values()
            if isinstance(end, KernelEnd) and isinstance(end.owner, Process)
            if end.owner.name.startswith(f"{gateway.name}/worker-") and self._is_client(end.peer_address[0])
        ]
        unknown = sum(end.tx.is_hole or end.rx.is_hole or end.is_reset for end in ends)
        there = {"connections": (len(ends) - unknown, len(ends))}
        if self.agenda.now >= self._quiet_from:
            workers, peers = gateway.worker_count, sum(each.is_answering for each in self.gateways) - 1
            there |= {"worker_up": (workers, workers), "fleet_peers": (peers, peers), "lacking": (0, 0)}
            there |= dict.fromkeys(("upstream_up", "policy_store_up"), (1, 1))
        self.judge.check_gauges(gateway.name, answer.decode(), there)

    def _is_client(self, host: str) -> bool:
        """Not a broker; nor a stranger, who may have sent nothing that is a request."""
        brokers = {broker.address[0] for broker in self.cluster.brokers.values()}
        return host not in brokers | {"stranger", "intruder"}

    def _worker_sockets(self) -> list[tuple[str, tuple[str, int]]]:
        """Sockets that workers have, but those that know nothing of an end, with what they are connected to."""
        return [
            (end.owner.name, end.peer_address)
            for end in self.network.ends.values()
            if isinstance(end, KernelEnd) and isinstance(end.owner, Process) and "/worker-" in end.owner.name
            if not (end.tx.is_hole or end.rx.is_hole or end.is_reset)
        ]

    # --- limits -------------------------------------------------------------------------------------------------------

    def _set_limits(self) -> None:
        """What the judge has to expect of the present limits."""
        theme, limits = self.under, dict[object, Limit]()
        # A request of each client, whose batches may be half as large again, and there may be two in it.
        slack = 3.0 * sum(client.batch_bytes for client in self.plan.clients)

        rate = 2 * self.limit if theme == "affected" else self.limit

        def limit_of(name: str, client_ids: Container[str], node_id: int | None = None) -> Limit:
            mine = [client for client in self.plan.clients if client.limit_name in client_ids]

            def ours() -> list[Client]:
                return [client for client in self.clients if client.limit_name in client_ids]

            return Limit(
                name, rate,
                lambda: self._held(ours(), node_id),
                lambda: all(client.held_bytes(node_id) >= rate / len(mine) for client in ours()),
                slack, lambda: self._held_at_hosts(ours(), node_id),
            )  # fmt: skip

        client_ids = sorted({client.limit_name for client in self.plan.clients})
        if theme == "percent":
            self.judge.not_held = {client_id for client_id in client_ids if rollout_place(client_id) >= PERCENT}
            client_ids = [client_id for client_id in client_ids if client_id not in self.judge.not_held]
        nodes = list(self.cluster.brokers)
        if theme in ("group", "mixed", "percent") and client_ids:
            limits["group"] = limit_of("group gold", client_ids)
        if theme in ("quota", "mixed", "users"):
            for client_id, node_id in itertools.product(client_ids, nodes):
                name = f"quota of {client_id} at broker {node_id}"
                limits[client_id, node_id] = limit_of(name, {client_id}, node_id)
        if theme in ("total", "affected"):
            for node_id in nodes if theme == "total" else nodes[1:]:  # the first one's is lower
                limits[node_id] = limit_of(f"total of broker {node_id}", client_ids, node_id)
        if theme == "dispatch":
            limits["dispatch"] = self._reading_limit("dispatch of group gold", self.consumers, None)
        if theme == "fetch":
            for consumer, node_id in itertools.product(self.consumers, nodes):
                name = f"quota of {consumer.client_id} at broker {node_id}"
                limits[consumer.client_id, node_id, "fetch"] = self._reading_limit(name, [consumer], node_id)
        if theme == "reject" and not self.judge.rejecting:
            self.judge.rejecting = {
                node_id: RejectingTotal(f"total of broker {node_id}", self.limit, BURST_S, slack) for node_id in nodes
            }
        for key, limit in limits.items():
            known = self.judge.limits.get(key)
            if known is None:
                self.judge.limits[key] = limit
            else:
                known.rate = limit.rate
        self.judge.limits_of = self._limits_of
        if theme == "group" and self.plan.gateways > 1 and self.judge.shares is None:
            self.judge.shares = FairShares(self.judge.limits["group"], self._held_by_host)
        for limit in self.judge.limits.values():
            limit.is_lower_judged, limit.saves_nothing = (
                # Applications that wait for the end of a transaction hold nothing, or give up what they hold.
                theme not in ("mixed", "percent")
                and self.plan.theme != "transactions",  # of the latter others take a part, as far as there is room
                theme not in ("total", "affected"),
            )

    def _reading_limit(self, name: str, consumers: list[Consumer], node_id: int | None) -> Limit:
        rate = self.limit if node_id is None else round(self.limit / 3)

        def held() -> float:
            return self._unread_bytes(consumers, node_id)

        largest = max(
            round(1.5 * client.batch_bytes) for client in self.plan.clients
        )  # an answer's last batch is whole
        answers = [consumer.max_bytes + largest for consumer in consumers]
        return Limit(name, rate, held, lambda: held() >= rate, sum(answers), answer_bytes=max(answers))

    def _held(self, clients: Iterable[Client], node_id: int | None = None) -> float:
        return sum(client.held_bytes(node_id) for client in clients)

    def _held_at_hosts(self, clients: Iterable[Client], node_id: int | None) -> Mapping[str, float]:
        """Of a client that is at several, at each."""
        found = Counter[str]()
        for client in clients if len(self.gateways) > 1 else ():
            for host in client.hosts:
                found[host] += round(client.held_bytes(node_id))
        return found

    def _held_by_host(self) -> dict[str, float] | None:
        held = {gateway.host: 0.0 for gateway in self.gateways}
        if any(gateway.is_stopped or gateway.control is None for gateway in self.gateways):
            return None
        if any(child.process.is_stopped for gateway in self.gateways for child in gateway.children):
            return None
        for client in self.clients:
            if len(client.hosts) > 1:
                return None
            for host in client.hosts:
                held[host] += client.held_bytes()
        return held

    def _limits_of(self, client: Client, leader: int) -> tuple[object, ...]:
        if client.client_id in self.judge.not_held:
            return ()
        return ("group", leader)

    def _settle(self, over_s: float = SETTLE_OVER_S, quiet_s: float = SETTLE_S) -> None:
        now = self.agenda.now
        for limit in self.judge.limits.values():
            limit.over_from = max(limit.over_from, now + over_s)
            limit.quiet_from = max(limit.quiet_from, now + quiet_s)
            limit.bounded_from = max(limit.bounded_from, now + quiet_s)

    def _settle_stop(self, over_s: float, quiet_s: float, *excused: tuple[float, float]) -> None:
        """A process is stopped, or goes on: less than a limit may come. `excused`: for how many seconds more may come,
        and how many seconds' worth.
        """
        now = self.agenda.now
        for limit in self.judge.limits.values():
            limit.over_from = max(limit.over_from, now + over_s)
            limit.quiet_from = max(limit.quiet_from, now + quiet_s)
            limit.excuses += [(now, now + for_s, worth_s) for for_s, worth_s in excused]

    def _settle_change(self, over_s: float = SETTLE_OVER_S) -> None:
        """A gateway whose control is stopped learns of another limit when that goes on."""
        left_s = max(0.0, *(until - self.agenda.now for _, _, until in self._stops), 0.0)
        self._settle(over_s + left_s, SETTLE_S + left_s)

    async def _change_limit(self, gateway: Gateway, value: float, seconds: float = 0.0) -> None:
        """`seconds`: after which it is what it was before; 0.0: it stays."""
        policies = gateway.policies
        if policies is None or not gateway.is_answering:
            return
        document = _document(self.plan, value)
        try:
            until_ms = round(1000 * (self.unix_s + seconds)) if seconds else None
            await policies.apply_document(document, _BY, until_ms=until_ms)
        except StoreError as error:
            self.judge.tell("change refused", error)
        else:
            before, self.limit = self.limit, value
            self._set_limits()
            if seconds:
                self.agenda.after(seconds, self._end_loan, before)
        self._settle_change()

    def _end_loan(self, before: float) -> None:
        self._is_lent = False
        self.limit = before
        self._set_limits()
        self._settle_change(SETTLE_OVER_S + 3.0)

    # --- faults -------------------------------------------------------------------------------------------------------

    def _do(self, fault: Fault) -> None:
        self._quiet_from = max(self._quiet_from, self.agenda.now + fault.seconds + ASK_AFTER_S)
        self.judge.tell(f"fault: {fault.kind}", fault.number, fault.seconds, fault.value)
        if fault.kind in LASTING:  # no more than its beginning and its end count
            self._settle()
            self.agenda.after(fault.seconds, self._settle)
        elif fault.kind not in HARMLESS and fault.kind not in NEWEST_FAULTS:
            self._settle(quiet_s=SETTLE_S + fault.seconds, over_s=SETTLE_OVER_S + fault.seconds)
        getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)

    def _pick(self, many: Iterable[Any], number: int) -> Any:
        found = list(many)
        return found[number % len(found)] if found else None

    def _broker_killed(self, fault: Fault) -> None:
        alive = [broker for broker in self.cluster.brokers.values() if broker.is_up]
        if len(alive) < len(self.cluster.brokers):
            return
        broker = self._pick(alive, fault.number)
        self.cluster.kill_broker(broker.node_id)
        self.agenda.after(fault.seconds, self.cluster.start_broker, broker.node_id)

    def _leader_moved(self, fault: Fault) -> None:
        partitions = [each for topic in self.cluster.topics.values() for each in topic.partitions]
        partition = self._pick(partitions, fault.number)
        if partition is not None:
            self.cluster.move_leader(partition)

    def _connection(self, fault: Fault) -> Any:
        found = self._pick(self.network.alive(), fault.number)
        return None if found is None else found[1]

    def _connection_cut(self, fault: Fault) -> None:
        ends = self._connection(fault)
        for end in ends or ():
            end.arrive_reset()

    def _connection_silent(self, fault: Fault) -> None:
        ends = self._connection(fault)
        if ends is not None:
            streams = [ends[0].tx, ends[0].rx]
            for stream in streams if fault.value < 0.5 else streams[fault.number % 2 :][:1]:
                stream.is_hole = True
            self.agenda.after(SILENCE_S + fault.seconds, _reset, ends)
            if self.plan.has_nights:  # whose windows are nearly all judged: a client may find out when it ends only
                self._settle(SILENCE_S + fault.seconds + SETTLE_OVER_S, SILENCE_S + fault.seconds + SETTLE_S)

    def _connection_trickles(self, fault: Fault) -> None:
        ends = self._connection(fault)
        if ends is not None:
            streams = (ends[0].tx, ends[0].rx)
            before = streams[0].rate
            for stream in streams:
                stream.rate = 1_000 + 50_000 * fault.value
            self.agenda.after(fault.seconds, self._end_trickle, streams, before)

    def _end_trickle(self, streams: tuple[Stream, Stream], rate: float) -> None:
        """What is under way still comes slowly, and behind it what has gathered meanwhile."""
        for stream in streams:
            stream.rate = rate
        left_s = max(0.0, *(stream.arrives_at - self.agenda.now for stream in streams))
        self._settle(SETTLE_OVER_S + left_s, SETTLE_S + left_s)

    def _half_closed(self, fault: Fault) -> None:
        ends = self._connection(fault)
        if ends is not None:
            ends[0].shutdown_write()

    def _clock_step(self, fault: Fault) -> None:
        gateway = self._pick(self.gateways, fault.number)
        gateway.step_wall_clock((fault.value - 0.5) * 20.0 if fault.number % 3 else (fault.value - 0.5) * 7200.0)

    def _topic_deleted(self, fault: Fault) -> None:
        name = self._pick(self.plan.topics, fault.number)
        if name not in self.cluster.topics:
            return
        topic = self.cluster.delete_topic(name)
        self.judge.deleted.add(topic.topic_id)
        self.judge.deleted_names.add(name)
        self.judge.transactions.forget_topic(name)
        self.agenda.after(min(fault.seconds, 8.0), lambda: self.cluster.create_topic(name, self.plan.topics[name]))

    def _disk_full(self, fault: Fault) -> None:
        broker = self._pick(self.cluster.brokers.values(), fault.number)
        broker.is_full = True
        self.agenda.after(fault.seconds, lambda: setattr(broker, "is_full", False))

    def _worker_killed(self, fault: Fault) -> None:
        gateway = self._pick(self.gateways, fault.number)
        self._kill_worker(gateway, self._pick(gateway.workers.values(), fault.number))

    def _kill_worker(self, gateway: Gateway, child: Any) -> None:
        alive_at = int(min(self.agenda.now, child.process.stopped_at)) if child is not None else 0
        if gateway.kill(child):
            self._unsure_bytes += sum(self.judge.recent[second] for second in range(alive_at - 3, alive_at + 1))

    def _control_killed(self, fault: Fault) -> None:
        gateway = self._pick(self.gateways, fault.number)
        if gateway.kill(gateway.control):
            self._controls_killed.add(gateway.name)

    def _gateway_killed(self, fault: Fault) -> None:
        if len(self.gateways) == 1:
            return
        gateway = self._pick(self.gateways, fault.number)
        self._controls_killed.add(gateway.name)
        for child in list(gateway.workers.values()):
            self._kill_worker(gateway, child)
        gateway.kill(gateway.control)
        gateway.is_stopped, gateway.is_frozen = True, False
        self.network.close_listeners(list(gateway.listeners.values()))
        gateway.listeners.clear()
        gateway.kept = NOTHING_KEPT
        self.agenda.after(max(1.0, fault.seconds), self._start_gateway, gateway)

    def _gateway_restarted(self, fault: Fault) -> None:
        gateway = self._pick(self.gateways, fault.number)
        if gateway.is_stopped or gateway.is_frozen or len(self.gateways) == 1:
            return
        self._controls_killed.add(gateway.name)

        async def restart() -> None:
            await gateway.stop(10.0)
            await trio.sleep(1.0)
            gateway.kept = NOTHING_KEPT
            self._start_gateway(gateway)

        self._nursery.start_soon(restart)

    def _process_stopped(self, fault: Fault) -> None:
        """Control, a worker, or all processes of a gateway, for a while."""
        gateway, what = self._pick(self.gateways, fault.number // 3), ("control", "worker", "gateway")[fault.number % 3]
        children = [gateway.control] if what == "control" else gateway.children
        if what == "worker":
            children = [self._pick(gateway.workers.values(), fault.number // 9)]
        gateway.is_frozen |= what == "gateway"
        stopped = [child.process for child in children if child is not None and not child.process.is_stopped]
        for process in stopped:
            process.stop()
        now, share = self.agenda.now, 1.0 / len(self.gateways)
        self._stops.append((gateway.host, now, now + fault.seconds))
        if what == "control":  # the last factor holds for as long as it is valid: longer than any stop
            unseen_until = now + fault.seconds + DISKS_SEEN_AFTER_S
            self.judge.disks_unseen_until = max(self.judge.disks_unseen_until, unseen_until)
        keeps, returns = share < 1.0 and what == "control", share < 1.0 and what != "worker"
        self._settle_stop(
            KEPT_AFTER_STOP_S + SETTLE_OVER_S, fault.seconds + SETTLE_S,
            (KEPT_AFTER_STOP_S, KEPT_PART_S * keeps), (fault.seconds, FLOORS * share * WINDOW_S * keeps),
        )  # fmt: skip
        for total in self.judge.rejecting.values():
            total.excuse(gateway.host, KEPT_PART_S * keeps, FLOORS * share * fault.seconds * keeps)

        def end() -> None:
            for process in stopped:
                process.resume()
            gateway.is_frozen &= what != "gateway"
            self._settle_stop(SETTLE_OVER_S, SETTLE_S, (KEPT_AFTER_STOP_S, BACK_S * returns))
            for total in self.judge.rejecting.values():
                total.excuse(gateway.host, 0.0, BACK_S * share * returns)

        self.agenda.after(fault.seconds, end)

    def _limit_changed(self, fault: Fault) -> None:
        if self.under in ("free", "reject", *DISK_THEMES, *READ_THEMES):
            return
        gateway = self._pick(self.gateways, fault.number)
        value = round(self.plan.limit * (0.5 + fault.value))
        if not self._is_lent:
            self._nursery.start_soon(self._change_limit, gateway, float(value))

    def _limit_lent(self, fault: Fault) -> None:
        if self.under in ("free", "reject", *DISK_THEMES, *READ_THEMES) or self._is_lent:
            return
        self._is_lent = True
        gateway = self._pick(self.gateways, fault.number)
        value = round(self.plan.limit * (0.5 + fault.value))
        self._nursery.start_soon(self._change_limit, gateway, float(value), 5.0 + fault.seconds)

    def _messages_lost(self, fault: Fault) -> None:
        self._with_copies(fault, lambda: 0 if self.chance.random() < fault.value else 1)

    def _messages_repeated(self, fault: Fault) -> None:
        self._with_copies(fault, lambda: 2 if self.chance.random() < fault.value else 1)

    def _with_copies(self, fault: Fault, copies: Callable[[], int]) -> None:
        self.cluster.copies = lambda topic: copies() if "resource_usage" in topic else 1
        self.agenda.after(fault.seconds, lambda: setattr(self.cluster, "copies", lambda topic: 1))

    def _exchange_deleted(self, fault: Fault) -> None:
        for name in [name for name in self.cluster.internal if "resource_usage" in name]:
            self.cluster.delete_topic(name)

    def _strangers(self, fault: Fault) -> None:
        gateway = self._pick(self.gateways, fault.number)
        chance = random.Random(f"strangers {self.plan.seed} {fault.at}")
        for _ in range(1 + fault.number % 20):
            at = chance.uniform(0.0, fault.seconds)
            self.agenda.after(at, send_strange, chance, self.agenda, self.network, gateway.bootstrap)

    def _spool_full(self, fault: Fault) -> None:
        gateway = self._pick(self.gateways, fault.number)
        gateway.full_spools += 1

        def end() -> None:
            gateway.full_spools -= 1

        self.agenda.after(fault.seconds, end)

    def _foreign_messages(self, fault: Fault) -> None:
        """Of gateways of other versions, and of nobody knows whom."""
        for name, log in self.cluster.internal.items():
            if "resource_usage" in name and log.records:
                value = self._pick(log.records, fault.number).value or b"\0"
                versions = [bytes([number]) + value[1:] for number in (0, 1, 2, 4, 255) if number != value[0]]
                for one in (*versions, value[:1], value[:7], value[:1] + b"\xff" * 40, b""):
                    for _ in range(1 + fault.number % 5):
                        log.write(self.agenda.now, one)

    def _gateway_cut_off(self, fault: Fault) -> None:
        """It reaches no topic of the gateways' own for a while; what clients send passes."""
        gateway = self._pick(self.gateways, fault.number)
        self.cluster.cut_off[gateway.name] += 1

        def end() -> None:
            self.cluster.cut_off[gateway.name] -= 1
            self._settle()

        self.agenda.after(fault.seconds, end)

    def _gateway_joins(self, fault: Fault) -> None:
        if len(self.gateways) <= self.plan.gateways:
            self._make_gateway(len(self.gateways))

    def _broker_joins(self, fault: Fault) -> None:
        """With a part of each topic's partitions."""
        if len(self.cluster.brokers) > BROKERS or self.plan.theme in DISK_THEMES:
            return
        node_id = self.cluster.add_broker()
        for topic in list(self.cluster.topics.values()):
            if topic.name in self.plan.topics:
                for partition in topic.partitions[fault.number % 2 :: 2]:
                    partition.replicas = [node_id, *partition.replicas[:-1]]
                    partition.leader = node_id
        self._set_limits()
        self._settle()

    def _storage_paused(self, fault: Fault) -> None:
        """By an operator, for a while."""
        if self.plan.theme in DISK_THEMES:
            self._nursery.start_soon(self._pause, self._pick(self.gateways, fault.number), fault)

    async def _pause(self, gateway: Gateway, fault: Fault) -> None:
        policies = gateway.policies
        if policies is None or not gateway.is_answering:
            return
        seconds = max(8.0, fault.seconds)
        override = PolicyOperation(OVERRIDE_KEY, str(StorageOverride("PAUSE", "a larger disk")))
        ends_at, until_ms = self.agenda.now + seconds, round(1000 * (self.unix_s + seconds))
        try:
            await policies.alter_policies([override._replace(until_ms=until_ms)], _BY)
        except StoreError as error:
            self.judge.tell("change refused", error)
            return
        others = (each for each in self.plan.faults if each is not fault and each.kind not in HARMLESS)
        if not any(each.at - 5.0 < fault.at + seconds and fault.at < each.at + each.seconds + 20.0 for each in others):
            self.judge.paused = (self.agenda.now + PAUSED_AFTER_S, ends_at - PAUSED_AFTER_S)
            self.judge.counts["pauses judged"] += 1
        self._settle(quiet_s=SETTLE_S + seconds, over_s=SETTLE_OVER_S + seconds)

    def _producer_replaced(self, fault: Fault) -> None:
        """Another application begins with the same transactional id, and the first one goes on."""
        client = self._pick(self._transactional_clients(), fault.number)
        if client is not None and not self._is_ending:
            client.is_replaced = True
            number = len(self.plan.clients) * (1 + len(self.clients)) + client.number % len(self.plan.clients)
            self._make_client(number, self._plan_of(client))

    def _producer_stalls(self, fault: Fault) -> None:
        """For longer than a transaction may take, or not."""
        client = self._pick(self._transactional_clients(), fault.number)
        if client is not None and not self._is_ending:
            client.stall(fault.seconds * 3)

    def _transactional_clients(self) -> list[TransactionalClient]:
        return [each for each in self.clients if isinstance(each, TransactionalClient) and not each.is_replaced]

    def _coordinator_moved(self, fault: Fault) -> None:
        if self.cluster.coordinator is not None:
            self.cluster.move_leader(self._pick(self.cluster.coordinator.topic.partitions, fault.number))

    def _compaction(self, fault: Fault) -> None:
        for log in self.cluster.internal.values():
            if log.is_compacted:
                self.judge.tell("compacted", log.compact())


def _reset(ends: Iterable[End]) -> None:
    """As by whatever was between them, and forgot them."""
    for end in ends:
        end.arrive_reset()


def _write_credentials(folder: Path, users: Iterable[str]) -> None:
    """What gateways know of users whose SASL ends there, and who they are to brokers for each."""
    records = {user: {"SCRAM-SHA-256": record_of(user)} for user in sorted(users)}
    names = {user: f"{BROKER_USER}{user}" for user in records}
    brokers = {
        f"User:{user}": {
            "mechanism": MECHANISMS[number % 2], "username": names[user], "password": password_of(names[user])
        }
        for number, user in enumerate(records)
    }  # fmt: skip
    for name, content in (("users", records), ("brokers", brokers)):
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps(content))
        path.chmod(0o600)


def _config(plan: Plan) -> str:
    """The part of the gateways' configuration that is the plan's."""
    theme, limit = limits_theme(plan.theme, plan.seed), round(plan.limit)
    if theme == "group":
        return f"resource_groups: {{groups: {{gold: {{publishRateInBytes: {limit}}}}}, tenants: {{acme: gold}}}}\n"
    if theme == "quota":
        return f"client_quotas: [{{client_id: <default>, producer_byte_rate: {limit}}}]\n"
    if theme == "total":
        return f"thresholds: {{total.bytes.in.per.sec.threshold: {limit}, on_exceed: delay}}\n"
    if theme == "users":
        return f"client_quotas: [{{user: <default>, producer_byte_rate: {limit}}}]\n"
    if theme == "fetch":
        return f"client_quotas: [{{client_id: <default>, consumer_byte_rate: {round(limit / 3)}}}]\n"
    if theme == "dispatch":
        return f"resource_groups: {{groups: {{gold: {{dispatchRateInBytes: {limit}}}}}, tenants: {{acme: gold}}}}\n"
    if theme == "percent":
        return (
            f"resource_groups: {{groups: {{gold: {{publishRateInBytes: {limit}}}}}, tenants: {{acme: gold}},"
            f" enforce_percent: {PERCENT:g}}}\n"
        )
    if theme in DISK_THEMES:  # no more than twice what disks have room for, and less the fuller they are
        return (
            f"thresholds: {{total.bytes.in.per.sec.threshold: {2 * limit}, on_exceed: delay}}\n"
            "storage: {check_interval: 1s, soft: {type: MinFreePercentage, level: 0.5},"
            " hard: {type: MinFreePercentage, level: 0.2}" + (", scope: affected}\n" if theme == "affected" else "}\n")
        )
    if theme == "reject":
        return f"thresholds: {{total.bytes.in.per.sec.threshold: {limit}, on_exceed: reject, burst: {BURST_S:.0f}s}}\n"
    if theme == "mixed":
        return (
            f"resource_groups: {{groups: {{gold: {{publishRateInBytes: {limit}}}}}, tenants: {{acme: gold}}}}\n"
            f"client_quotas: [{{client_id: <default>, producer_byte_rate: {limit}}}]\n"
        )
    return ""


def _document(plan: Plan, value: float) -> dict[str, Any]:
    """The same at run time."""
    number, theme = round(value), limits_theme(plan.theme, plan.seed)
    groups = {"resource_groups": {"groups": {"gold": {"publishRateInBytes": number}}, "tenants": {"acme": "gold"}}}
    quotas = {"client_quotas": [{"client_id": "<default>", "producer_byte_rate": number}]}
    if theme in ("group", "percent"):
        return groups
    if theme == "quota":
        return quotas
    if theme == "users":
        return {"client_quotas": [{"user": "<default>", "producer_byte_rate": number}]}
    if theme == "mixed":
        return groups | quotas
    return {"thresholds": {"total": number}}


def rollout_place(client_id: str) -> float:
    """Between 0 and 100: a client without a principal is under a limit that is enforced for a larger percentage."""
    key = hmac.digest(SECRET, b"rollout", "sha256")
    digest = hashlib.blake2b(client_id.encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big") * 100.0 / 2**64


class _LogCounter(logging.Handler):
    """The product's log is part of what happens."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self._judge = judge
        self.lines: deque[str] = deque(maxlen=MAX_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.lines.append(f"{self._judge.now():.3f} {current_process.get().name} {record.levelname} {text}")
        self._judge.tell(f"log {record.levelname.lower()}", record.name, text)
        if _MALFORMED.match(text):
            self._judge.accuse("called malformed", text)
        if "bug" in text or record.levelno >= logging.CRITICAL:
            self._judge.accuse("a bug in the log", text)
