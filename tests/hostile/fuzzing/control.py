# The control side of a play: the real parts of it that need no network, on a real channel to the worker on stage. What
# these parts are asked and answer is noted, and so is each way in which a control process would have come to its end.
#
#   worker ── Channel ── Workers ─┬─ Authenticator     SASL that ends at the gateway, files of traffic/logins.py
#                                 ├─ KafkaAdmin ── PolicyService ── FileStore
#                                 ├─ Admission         connections, and verdicts about proxied ones
#                                 └─ Intake ── UsageLog ── Spool; Metrics; FleetControl

from __future__ import annotations

import atexit
import functools
import logging
import os
import secrets
import shutil
import socket
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar
from unittest import mock

import trio

from gateway.channel import AdminAnswer, AdminQuery, ProcessChannel, ToControl, ToWorker, decode_for_worker
from gateway.config import AuthenticationSettings, Settings
from gateway.control.fleet.exchange.exchange import DROP_REASONS
from gateway.control.fleet.shares import FleetControl
from gateway.control.internal_errors import InternalErrors
from gateway.control.metrics import GatewayMetrics
from gateway.control.policies.kafka_admin.admin_service import KafkaAdmin
from gateway.control.policies.store import FileStore
from gateway.control.sasl.authentication import SaslAuthenticator
from gateway.control.usage.usage_log import UsageLogWriter
from gateway.control.usage.usage_spool import UsageSpool
from gateway.control.workers.snapshots import groups_of, quotas_of, thresholds_of
from policies.definitions.policy_set import PolicySet
from policies.definitions.policy_values import PolicyKey
from protocol.admin import configs as c
from protocol.authentication import scram
from protocol.authentication.handshake import SASL_AUTHENTICATE, SaslAuthenticateRequest
from tests.gateway.control.contexts import (
    Surroundings,
    make_context,
    make_policy_service,
    make_worker_pool,
    set_places,
)
from tests.hostile.traffic import logins

T = TypeVar("T")
SPOOL: Final = 2**24
MOST_ASKED: Final = 2  # times the same question: once more when control was started again, or clients repeat it
LATE_S: Final = 1.0  # by the clock of a play: failures are answered after 0.1 s
PLACES: Final = {1: frozenset({"free", "calm", "clicks"}), 2: frozenset({"red.a.one", "free"})}
BASE: Final = {PolicyKey.of_broker(): 1e6, PolicyKey.of_topic("calm"): 300.0}
MEMORY: Final = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None  # a sync costs nothing there


class Ended(Exception):
    """A control process would have come to its end."""


class Watched(ProcessChannel[ToControl, ToWorker]):
    """A worker's end. `watch` is shown each message that the worker posts."""

    watch: Callable[[Any], None]

    def post(self, message: ToControl, fd: int = -1) -> None:
        super().post(message, fd)
        self.watch(message)


class Faults(logging.Handler):
    """Errors of the gateway's own that it has survived, as its log tells them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            self.found.append(f"{record.getMessage()}\n{''.join(traceback.format_exception(*record.exc_info))}")


class _Surroundings(Surroundings):
    def now(self) -> float:
        return _now()


class Control:
    """
    Attributes:
        told: frames that it has sent to brokers through the worker.
        principals: who it has let in.
        open: questions without an answer yet, by token, and when they were asked.
        repeated: those that a worker asks again and again.
        errors: of its own that it has survived, by where.
    """

    def __init__(
        self,
        folder: Path,
        tells_brokers: bool = False,
        max_reauth_ms: int = 0,
        most: int = 1000,
        before: Control | None = None,
    ) -> None:
        """`most`: connections, of which half from one address. `before`: in the place of that one, which has ended."""
        records, own, keys = _credentials()
        given: dict[str, Any] = {
            "sasl.enabled.mechanisms": list(logins.MECHANISMS),
            "credentials_file": records,
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": "https://issuer",
            "connections.max.reauth.ms": max_reauth_ms,
            **({"upstream_credentials_file": own} if tells_brokers else {}),
        }
        self._number: int = before._number + 1 if before is not None else 1
        self._scope = trio.CancelScope()
        self._is_over = trio.Event()
        self.metrics = metrics = GatewayMetrics()
        self.errors: list[str] = []
        errors = InternalErrors(self.errors.append)
        self._spool = UsageSpool(folder / "spool", SPOOL, 3600, published_only=False)
        self._usage_log = UsageLogWriter(self._spool, "gw", metrics)
        self._store = FileStore(folder / "policies.jsonl", BASE)
        context = make_context(settings_of_a_play(), metrics=metrics, errors=errors)
        set_places(context, PLACES)
        self._fleet = FleetControl(context, metrics.create_fleet_series(DROP_REASONS))
        context.facts.policies.subscribe("workers", self._tell)
        self.policies = make_policy_service(context, self._store, _Surroundings())
        self.admin = KafkaAdmin(context, self.policies)
        self.authenticator = SaslAuthenticator(
            AuthenticationSettings.model_validate(given), bytes(32), folder, _now, errors
        )
        self.workers = make_worker_pool(context, self._usage_log, self._fleet, queries=self)
        self.workers.admission.set_limits(most, most // 2)
        self.told: set[bytes] = set() if before is None else before.told
        self.principals: set[str] = set() if before is None else before.principals
        self._tries: Counter[int] = Counter() if before is None else before._tries
        self.open: dict[int, tuple[float, AdminQuery]] = {}
        self.repeated: list[AdminQuery] = []
        self.ended: BaseException | None = None
        self._asked: Counter[tuple[str, bytes, bytes, bytes]] = Counter()
        self._heard: dict[int, AdminAnswer] = {}
        self._post: Callable[[Any], None] = lambda message: None

    async def run(self, worker: Any, watch: Callable[[Any], None], dialling: trio.Nursery) -> None:
        """Be there for that worker, until cancelled or at its end. `dialling`: see DataWorker.serve_channel."""
        ours, theirs = socket.socketpair()
        channel = Watched(theirs, decode_for_worker)
        channel.watch = watch
        self._post = channel.post
        parts = (self._usage_log, self._fleet, self.policies, self.admin, self.authenticator)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(worker.serve_channel, channel, dialling, self._number)
                    for part in parts:
                        nursery.start_soon(part.run)
                    nursery.start_soon(self.workers.serve_worker, 0, ours)
        except Exception as error:
            self.ended = error
        finally:
            self._spool.close()
            self._store.close()
            self._is_over.set()

    async def run_alone(self) -> None:
        """Be there without a worker, for policies alone."""
        try:
            await self.policies.run()
        finally:
            self._spool.close()
            self._store.close()

    async def kill(self) -> None:
        """Return when it has ended, as if somebody had killed it."""
        self._scope.cancel()
        await self._is_over.wait()

    def _tell(self, policies: PolicySet) -> None:
        settings = settings_of_a_play()
        with self.workers.batch_snapshots():
            for snapshot in (thresholds_of, quotas_of, groups_of):
                self.workers.publish_snapshot(snapshot(policies, settings))

    def submit_query(self, question: AdminQuery, reply: Callable[[AdminAnswer], None]) -> None:
        """As gateway/control/query_tasks.py does it."""
        self.open[question.token] = trio.current_time(), question
        self._tries[question.token] += question.token > 0
        self._asked[question.peer, question.request, question.memo, question.answer] += bool(question.request)
        same = self._asked[question.peer, question.request, question.memo, question.answer]
        if same > MOST_ASKED or self._tries[question.token] > MOST_ASKED:
            self.repeated.append(question)
        part = self.authenticator if question.mechanism or not question.request else self.admin
        part.submit_query(question, functools.partial(self._reply, reply))

    def _reply(self, reply: Callable[[AdminAnswer], None], answer: AdminAnswer) -> None:
        reply(answer)
        self.open.pop(answer.token, None)
        if answer.upstream:
            self.told.add(answer.upstream)
        if answer.identity is not None:
            self.principals.add(answer.identity.principal)
        if answer.token < 0:
            self._heard[answer.token] = answer

    @property
    def late(self) -> list[AdminQuery]:
        """Questions that nobody has answered."""
        return [ask for at, ask in self.open.values() if trio.current_time() - at > LATE_S]

    # --- a good client, at the end of it all --------------------------------------------------------------------------

    def ask_well(self) -> None:
        """A right password, and a threshold that may be: `answers_well` says what came of them."""
        plain = SASL_AUTHENTICATE.encode_request(SaslAuthenticateRequest(b"\0alice\0alice-secret"), 1, 1, b"good")
        row = c.IncrementalAlterConfigsResource(c.TOPIC, "clicks", (c.ConfigOperation("x", c.SET, "1"),))
        configs = c.INCREMENTAL_ALTER_CONFIGS.encode_request(c.IncrementalAlterConfigsRequest((row,)), 1, 1, b"good")
        until = 2.0**40
        self._post(AdminQuery(-1, until, "10.9.9.9:9", "User:ANONYMOUS", plain[4:], mechanism="PLAIN"))
        self._post(AdminQuery(-2, until, "10.9.9.9:9", "User:good", configs[4:]))

    @property
    def answers_well(self) -> bool:
        signed_in, passed = self._heard.get(-1), self._heard.get(-2)
        if signed_in is None or passed is None:
            return False
        is_in = signed_in.identity is not None and signed_in.identity.principal == "User:alice"
        return (is_in or bool(signed_in.upstream)) and passed == AdminAnswer(-2)


def _now() -> float:
    return logins.NOW + trio.current_time()


@functools.cache
def settings_of_a_play() -> Settings:
    return Settings.model_validate({"upstream": {"bootstrap_servers": "127.0.0.1:9092"}})


@functools.cache
def _kept() -> Path:
    path = Path(tempfile.mkdtemp(prefix="produce-gateway-fuzz-", dir=MEMORY))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def _credentials() -> tuple[Path, Path, Path]:
    return logins.write_credentials(_kept())


@contextmanager
def folder() -> Iterator[Path]:
    """For what one control keeps."""
    with tempfile.TemporaryDirectory(dir=_kept()) as path:
        yield Path(path)


@contextmanager
def replayable() -> Iterator[Faults]:
    """Within it a control does the same again: what threads do is done at once, nonces follow from a seed, and records
    of passwords cost little. Its errors are told.
    """
    faults = Faults()
    log = logging.getLogger("gateway")
    propagates, level = log.propagate, log.level
    log.addHandler(faults)
    log.propagate = False
    log.setLevel(logging.ERROR)
    try:
        with (
            mock.patch.object(trio.to_thread, "run_sync", _at_once),
            mock.patch.object(secrets, "token_bytes", Random(1).randbytes),
            mock.patch.object(scram, "MIN_ITERATIONS", logins.ITERATIONS),
        ):
            yield faults
    finally:
        log.removeHandler(faults)
        log.propagate = propagates
        log.setLevel(level)  # not the attribute: loggers remember what they are enabled for


async def _at_once(call: Callable[..., T], *args: Any, **_: Any) -> T:
    await trio.lowlevel.checkpoint()
    return call(*args)
