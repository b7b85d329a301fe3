# Volumes as the brokers themselves describe them: DescribeCluster says who is active, DescribeLogDirs (KIP-827) how
# large and how full each log dir's volume is. librdkafka can't ask the latter; kafka-python can.
#
# Of kafka-python this takes the connections and the messages, not KafkaAdminClient: that one runs a thread of its own,
# has no time limit for a call as a whole (none at all for a TLS handshake), asks broker after broker, and throws away
# the error code of a DescribeLogDirs answer, so that a missing right looks like a broker without log dirs. Here the
# calling thread drives the loop, one deadline stands over everything, and each observation has connections of its own:
# nothing is left to break, leak or go stale between two of them a minute apart.
#
# The two answers may be of different worlds (a broker left in between). Whatever is incomplete is a failed observation,
# never a guess. Knows no limits and no gateway: addresses are the cluster's own.

from __future__ import annotations

import contextlib
import importlib.util
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from kafka.errors import IncompatibleBrokerVersion, KafkaTimeoutError, RequestTimedOutError
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeClusterRequest, DescribeLogDirsRequest

from policies.storage import Observation, ObservationFailed, Volume
from protocol.api import ERROR_NAMES

KAFKA_STORAGE_ERROR: Final = 56
CLUSTER_AUTHORIZATION_FAILED: Final = 31
CLIENT_ID: Final = "produce-gateway"
MAX_ANSWER_BYTES: Final = 10_000_000  # an answer without topics has about 100 bytes for each broker or log dir
PATIENCE: Final = 0.9  # of the time limit; the rest is for finding out who didn't answer
_BROKERS_NAMED: Final = 3  # in a message; of the rest, the number

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# librdkafka's name -> kafka-python's.
_PLAIN: Final = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}
_TLS: Final = (
    "enable.ssl.certificate.verification",
    "ssl.endpoint.identification.algorithm",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.crl.location",
    "ssl.cipher.suites",
)
# How librdkafka works with its sockets: nothing that decides who is reached or trusted, so taken over for nothing.
_TUNING: Final = frozenset(
    {
        "broker.address.family",  # here every address of a name is tried
        "broker.address.ttl",
        "socket.blocking.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
    }
)
KNOWN: Final = (*_PLAIN, *_TLS)

# It logs each attempt that fails, mostly as an error, some with a traceback. What matters is in ObservationFailed; who
# gave this logger a level wants to see more.
_noise = logging.getLogger("kafka")
if _noise.level == logging.NOTSET:
    _noise.setLevel(logging.CRITICAL)

T = TypeVar("T")


class InvalidProperties(ValueError):
    """Connection properties that can't be used: one line with the key and what would be right, never its value."""


class LogDirs:
    """A volume source. Constructing it connects nowhere, but reads the files that properties name.

    Args:
        properties: how to reach and trust the brokers, by librdkafka's names; `KNOWN` are those that are understood.
        bootstrap_servers: the cluster's own `host:port,host:port`.
        timeout_s: for one observation in all, but for name resolution, which takes what the system's resolver takes.

    Raises:
        InvalidProperties: one line.
    """

    def __init__(self, properties: Mapping[str, str], bootstrap_servers: str, timeout_s: float = 10.0) -> None:
        client_configs(properties)
        self._properties = dict(properties)
        self._servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._client: _Client | None = None
        self._closed = False

    def observe(self) -> Observation:
        """All volumes of all active brokers, as they are now. From one thread at a time.

        Raises:
            ObservationFailed: one line; also when only one active broker's volumes are not known.
        """
        with _Client(self._properties, self._servers) as client:
            with self._lock:
                if self._closed:
                    raise ObservationFailed("closed")
                self._client = client
            try:
                cluster, answers = client.run(_describe_all, self._timeout_s)
            finally:
                with self._lock:
                    self._client = None
        return observation(cluster, answers)

    def close(self) -> None:
        """End an observation that another thread is at, and all later ones, with ObservationFailed."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.abort()


def active_brokers(properties: Mapping[str, str], bootstrap_servers: str, timeout_s: float = 10.0) -> frozenset[int]:
    """Ids of the brokers that are registered and not fenced. Takes at most `timeout_s`, see `LogDirs`.

    Raises:
        InvalidProperties: one line.
        ObservationFailed: one line; nobody answered, or not what was asked.
    """
    client_configs(properties)
    with _Client(properties, bootstrap_servers) as client:
        return active(client.run(_describe_cluster, timeout_s))


# --- what the answers say ---------------------------------------------------------------------------------------------


def active(cluster: Mapping[str, Any]) -> frozenset[int]:
    """Ids of the active brokers in a DescribeCluster answer (a kafka-python response's `to_dict`).

    Version 2 (KIP-1073) marks fenced brokers where they were asked for; older versions never name them.

    Raises:
        ObservationFailed: the answer is an error, or names none.
    """
    if code := cluster.get("error_code", 0):
        raise ObservationFailed(f"DescribeCluster: {_error(code)}")
    brokers = frozenset(int(broker["broker_id"]) for broker in cluster["brokers"] if not broker.get("is_fenced"))
    if not brokers:
        raise ObservationFailed("DescribeCluster names no active broker")
    return brokers


def observation(cluster: Mapping[str, Any], answers: Mapping[int, Mapping[str, Any]]) -> Observation:
    """What one DescribeCluster answer and the DescribeLogDirs answers, by broker id, come to.

    An offline log dir (error 56, sizes -1) is left out and listed. Answers of other brokers than the active ones are
    ignored.

    Raises:
        ObservationFailed: an active broker's answer is missing, has errors, or lacks the sizes (before KIP-827).
    """
    brokers = active(cluster)
    volumes: list[Volume] = []
    offline: list[tuple[int, str]] = []
    for broker_id in sorted(brokers):
        if broker_id not in answers:
            raise ObservationFailed(f"broker {broker_id} is active but did not describe its log dirs")
        answer = answers[broker_id]
        if code := answer.get("error_code", 0):  # from version 3 on
            raise ObservationFailed(f"broker {broker_id}: DescribeLogDirs: {_error(code)}")
        if not answer["results"]:  # also what versions before 3 say to those who may not ask
            raise ObservationFailed(f"broker {broker_id} describes no log dir: is Describe on the cluster allowed?")
        for log_dir in answer["results"]:
            name, code = str(log_dir["log_dir"]), log_dir["error_code"]
            if code == KAFKA_STORAGE_ERROR:
                offline.append((broker_id, name))
            elif code:
                raise ObservationFailed(f"broker {broker_id}: log dir {name}: {_error(code)}")
            else:
                volumes.append(_volume(broker_id, name, log_dir.get("total_bytes"), log_dir.get("usable_bytes")))
    return Observation(brokers, tuple(volumes), tuple(offline))


def _volume(broker_id: int, name: str, total: int | None, usable: int | None) -> Volume:
    if total is None or usable is None or total < 0 or usable < 0:
        raise ObservationFailed(
            f"broker {broker_id} does not tell total and usable bytes of {name}: it has no KIP-827 (Kafka 3.3)"
        )
    if total == 0:
        raise ObservationFailed(f"broker {broker_id}: the volume of {name} has 0 bytes in total, so nothing is known")
    return Volume(broker_id, name, total, usable)


def _error(code: int) -> str:
    text = f"error {code} ({ERROR_NAMES.get(code, 'unknown')})"
    if code == CLUSTER_AUTHORIZATION_FAILED:
        text += ": allow this principal Describe on the cluster"
    return text


# --- asking -----------------------------------------------------------------------------------------------------------


class _Sockets(selectors.DefaultSelector):
    """Remembers sockets: kafka-python leaves those that fail before they are connections to the garbage collector."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[socket.socket] = set()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.seen.add(fileobj)
        return super().register(fileobj, events, data)


class _Socket(socket.socket):
    """Gives what came and then nothing until it is waited for again.

    kafka-python reads until there is no more, and where the end of the connection is right behind an answer it throws
    the answer away. That is how a broker says why it refuses a password.
    """

    _gave = False

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        if self._gave:
            self._gave = False
            raise BlockingIOError
        data = super().recv(bufsize, flags)
        self._gave = bool(data)
        return data


class _Direct(KafkaNetSocket):  # type: ignore[misc]
    """No proxy. Deriving from KafkaNetSocket is how kafka-python is told of a scheme of `proxy_url`."""

    SCHEMES = ("produce-gateway-direct",)

    def socket(self, family: int = -1, sock_type: int = -1, proto: int = -1) -> socket.socket:
        return _Socket(family, sock_type, proto)


def _tls_socket(seen: set[socket.socket]) -> type[ssl.SSLSocket]:
    class TlsSocket(ssl.SSLSocket):
        """`_Socket` for TLS. Adds itself to `seen`: a handshake that fails at once never meets the selector."""

        _gave = False

        def do_handshake(self, block: bool = False) -> None:
            seen.add(self)
            super().do_handshake(block)

        def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
            if self._gave and not self.pending():  # what is decrypted already would never be announced
                self._gave = False
                raise ssl.SSLWantReadError
            data = super().recv(buflen, flags)
            self._gave = bool(data)
            return data

    return TlsSocket


class _Client:
    """kafka-python's loop and connections, driven by whoever calls `run`; nothing is left of them after `with`.

    Raises:
        ObservationFailed: the properties' files can't be read any more.
    """

    def __init__(self, properties: Mapping[str, str], bootstrap_servers: str) -> None:
        try:
            configs = client_configs(properties)  # anew each time: certificates are renewed
        except InvalidProperties as error:
            raise ObservationFailed(str(error)) from error
        self._configs = {**configs, "bootstrap_servers": bootstrap_servers, "proxy_url": f"{_Direct.SCHEMES[0]}://"}
        self._aborted = False
        self._answer: Any = None

    def __enter__(self) -> _Client:
        self._sockets = _Sockets()
        self._net = NetworkSelector(selector=lambda: self._sockets)
        if "ssl_context" in self._configs:
            self._configs["ssl_context"].sslsocket_class = _tls_socket(self._sockets.seen)
        try:
            self._manager = KafkaConnectionManager(self._net, **self._configs)
        except Exception as error:
            self._net.close()
            raise ObservationFailed(
                f"bootstrap servers {self._configs['bootstrap_servers']}: {_reason(error)}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()
        self._net.close()
        for sock in self._sockets.seen:
            sock.close()

    def run(self, ask: Callable[[Any, float], Awaitable[T]], timeout_s: float) -> T:
        """What `ask(manager, deadline)` returns. The deadline is by time.monotonic.

        Raises:
            ObservationFailed: it did, or didn't return within `timeout_s`, or anything else went wrong.
        """
        deadline = time.monotonic() + timeout_s * PATIENCE
        self._answer = self._manager.call_soon(ask, self._manager, deadline)
        if self._aborted:
            raise ObservationFailed("closed")
        self._net.poll(timeout_ms=timeout_s * 1000, future=self._answer)
        if not self._answer.is_done:
            raise ObservationFailed(f"no answer within {timeout_s:g} s")
        error = self._answer.exception
        if isinstance(error, ObservationFailed):
            raise error
        if error is not None:
            raise ObservationFailed(_reason(error)) from error
        answer: T = self._answer.value
        return answer

    def abort(self) -> None:
        """Make `run` fail at once; from another thread, not after `with`."""
        self._aborted = True
        if self._answer is not None:
            self._net.call_soon_threadsafe(lambda: self._answer.failure(ObservationFailed("closed")))


async def _describe_all(manager: Any, deadline: float) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    cluster = await _describe_cluster(manager, deadline)
    # All are asked before the first answer is waited for: a slow one costs only its own time. No topics: the sizes of
    # volumes come all the same, and an answer with all partitions of a large broker has megabytes.
    asked = {
        node_id: manager.call_soon(_send, manager, node_id, DescribeLogDirsRequest(topics=[]), deadline)
        for node_id in sorted(active(cluster))
    }
    answers: dict[int, dict[str, Any]] = {}
    failed: list[str] = []
    for node_id, answer in asked.items():
        try:
            answers[node_id] = (await _within(manager, answer, deadline)).to_dict()
        except Exception as error:  # whatever became of one broker, the others are told as well
            failed.append(f"{_where(manager, node_id)}: {_reason(error)}")
    if failed:
        more = f"; and {len(failed) - _BROKERS_NAMED} more" if len(failed) > _BROKERS_NAMED else ""
        raise ObservationFailed("; ".join(failed[:_BROKERS_NAMED]) + more)
    return cluster, answers


async def _describe_cluster(manager: Any, deadline: float) -> dict[str, Any]:
    """The answer of the first bootstrap server that gives one; the manager knows the brokers' addresses after it."""
    servers = manager.cluster.bootstrap_brokers()  # in random order
    failed: list[str] = []
    for tried, server in enumerate(servers):
        # A share of the time for each that may still have to be asked, and one for what comes afterwards.
        now = time.monotonic()
        until = now + (deadline - now) / (len(servers) - tried + 1)
        asked = manager.call_soon(_describe_cluster_by, manager, server.node_id, until)
        try:
            cluster: dict[str, Any] = await _within(manager, asked, until)
        except Exception as error:
            failed.append(f"{_where(manager, server.node_id)}: {_reason(error)}")
        else:
            return cluster
    raise ObservationFailed("; ".join(sorted(failed)))


async def _describe_cluster_by(manager: Any, node_id: str, until: float) -> dict[str, Any]:
    metadata = await _send(manager, node_id, manager.cluster.metadata_request(), until)
    manager.cluster.update_metadata(metadata)
    try:
        answer = await _send(manager, node_id, DescribeClusterRequest(include_fenced_brokers=True), until)
    except IncompatibleBrokerVersion:  # before Kafka 2.8; Metadata never names a fenced broker
        return {"error_code": 0, "brokers": [{"broker_id": broker.node_id} for broker in metadata.brokers]}
    cluster: dict[str, Any] = answer.to_dict()
    return cluster


async def _send(manager: Any, node_id: int | str, request: Any, until: float) -> Any:
    left_ms = _left_ms(until)
    # No refresh on errors: it would start tasks that connect on their own.
    connection = manager.get_connection(node_id, timeout_ms=left_ms, refresh_metadata_on_err=False)
    return await connection.send_request(request, request_timeout_ms=left_ms)


def _within(manager: Any, future: Any, until: float) -> Awaitable[Any]:
    waiting: Awaitable[Any] = manager.wait_for(future, _left_ms(until))
    return waiting


def _left_ms(until: float) -> float:
    return max(0.0, (until - time.monotonic()) * 1000)


def _where(manager: Any, node_id: int | str) -> str:
    broker = manager.cluster.broker_metadata(node_id)
    address = f"{broker.host}:{broker.port}" if broker is not None else "not in the cluster's metadata"
    return address if isinstance(node_id, str) else f"broker {node_id} ({address})"


def _reason(error: BaseException) -> str:
    if isinstance(error, KafkaTimeoutError | RequestTimedOutError):
        return "no answer in time"
    text = " ".join(str(error).split())
    return text or type(error).__name__


# --- properties -------------------------------------------------------------------------------------------------------


def client_configs(properties: Mapping[str, str]) -> dict[str, Any]:
    """librdkafka's properties as kafka-python's. Connects nowhere; reads certificates and keys.

    Raises:
        InvalidProperties: one is unknown, missing, or names a file that can't be used.
    """
    for key in properties:
        if key not in KNOWN and key not in _TUNING:
            raise InvalidProperties(f"{key}: not understood for DescribeLogDirs; known are {', '.join(sorted(KNOWN))}")
    configs: dict[str, Any] = {"client_id": CLIENT_ID, "receive_message_max_bytes": MAX_ANSWER_BYTES}
    configs.update({_PLAIN[key]: value for key, value in properties.items() if key in _PLAIN})
    protocol = configs["security_protocol"] = str(configs.get("security_protocol", "PLAINTEXT")).upper()
    if protocol not in PROTOCOLS:
        raise InvalidProperties(f"security.protocol: must be one of {', '.join(PROTOCOLS)}")
    if protocol.startswith("SASL_"):
        _check_sasl(configs)
    if protocol.endswith("SSL"):
        configs["ssl_context"] = _ssl_context(properties)
    return configs


def _check_sasl(configs: dict[str, Any]) -> None:
    mechanism = configs["sasl_mechanism"] = str(configs.get("sasl_mechanism", "")).upper()
    if mechanism not in MECHANISMS:
        raise InvalidProperties(f"sasl.mechanism: must be one of {', '.join(MECHANISMS)} for DescribeLogDirs")
    if mechanism == "GSSAPI":
        if importlib.util.find_spec("gssapi") is None:
            raise InvalidProperties("sasl.mechanism: GSSAPI needs the Python package gssapi, which is not installed")
        return
    for key in ("sasl.username", "sasl.password"):
        if not configs.get(_PLAIN[key]):
            raise InvalidProperties(f"{key}: needed with sasl.mechanism {mechanism}")


def _ssl_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "none", ""):
        raise InvalidProperties("ssl.endpoint.identification.algorithm: must be https or none")
    verify = properties.get("enable.ssl.certificate.verification", "true").lower()
    if verify not in ("true", "false"):
        raise InvalidProperties("enable.ssl.certificate.verification: must be true or false")
    context.check_hostname = algorithm == "https" and verify == "true"
    context.verify_mode = ssl.CERT_REQUIRED if verify == "true" else ssl.CERT_NONE

    authorities, pem = properties.get("ssl.ca.location"), properties.get("ssl.ca.pem")
    if authorities and authorities != "probe":
        with _blaming("ssl.ca.location", authorities):
            kind = "capath" if Path(authorities).is_dir() else "cafile"
            context.load_verify_locations(**{kind: authorities})
    if pem:
        with _blaming("ssl.ca.pem"):
            context.load_verify_locations(cadata=pem)
    if not pem and authorities in (None, "", "probe"):
        context.load_default_certs()
    if revoked := properties.get("ssl.crl.location"):
        with _blaming("ssl.crl.location", revoked):
            context.load_verify_locations(revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if ciphers := properties.get("ssl.cipher.suites"):
        with _blaming("ssl.cipher.suites"):
            context.set_ciphers(ciphers)
    _load_own_certificate(context, properties)
    return context


def _load_own_certificate(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    certificate, key = properties.get("ssl.certificate.location"), properties.get("ssl.key.location")
    if not certificate:
        if key:
            raise InvalidProperties("ssl.certificate.location: needed with ssl.key.location")
        return
    for name, path in (("ssl.certificate.location", certificate), ("ssl.key.location", key)):
        if path:
            with _blaming(name, path), open(path, "rb"):
                pass
    with _blaming("ssl.certificate.location, ssl.key.location, ssl.key.password"):
        # Never None: OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate, key, password=properties.get("ssl.key.password", ""))


@contextlib.contextmanager
def _blaming(key: str, path: str = "") -> Any:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or "can't be used"
        raise InvalidProperties(": ".join(filter(None, (key, path, " ".join(str(reason).split()))))) from error
