# Whether brokers can be reached and trusted as the properties say, and what is wrong where they can't: for `check
# --connect`, and for the log when the cluster doesn't answer. librdkafka's own word for most of it is "transport
# failure".

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

import trio

from gateway.kafka.access import ACCESS_PROPERTIES, CLIENT_ID, BrokerAccess, InvalidProperties, parse_access
from gateway.kafka.client import (
    MAX_RESPONSE_BYTES,
    BrokerAddress,
    BrokerConnection,
    NoAnswer,
    RequestRound,
    parse_addresses,
)
from gateway.tls.broker_tls import NO_TLS, SPEAKS_TLS, make_broker_context, parse_broker_tls
from gateway.tls.certificates import CertificateError
from protocol.admin.cluster import METADATA, MetadataRequest
from protocol.authentication.handshake import API_VERSIONS, ApiVersionsRequest
from protocol.wire import INT32

PROBE_TIMEOUT_S: Final = 3.0  # for a look at what a server speaks instead
_CORRELATION_ID: Final = 7


class ReachResult(NamedTuple):
    """One address: `node_id` -1: of a bootstrap server. `problem` "": it answers as a broker."""

    node_id: int
    address: BrokerAddress
    problem: str

    def __str__(self) -> str:
        who = f"broker {self.node_id} ({self.address})" if self.node_id >= 0 else str(self.address)
        return f"{who}: {self.problem or 'answers'}"


def reach_brokers(properties: Mapping[str, str], bootstrap_servers: str, timeout_s: float) -> list[ReachResult]:
    """Every bootstrap server, and every broker that they name. `timeout_s`: for each. Not to be called in trio.

    Raises:
        NoAnswer: the properties can't be used.
    """
    return trio.run(_reach_brokers, properties, bootstrap_servers, timeout_s)


async def explain_unreachable(properties: Mapping[str, str], bootstrap_servers: str, timeout_s: float) -> str:
    """The fault of each bootstrap server; "" where nothing can be found."""
    try:
        access, servers = _usable_access(properties), parse_addresses(bootstrap_servers)
    except NoAnswer as error:
        return str(error)
    found: list[ReachResult] = []
    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(_try_address, access, ReachResult(-1, server, ""), timeout_s, found)
    return "; ".join(sorted(str(each) for each in found if each.problem))


async def _reach_brokers(properties: Mapping[str, str], bootstrap_servers: str, timeout_s: float) -> list[ReachResult]:
    access = _usable_access(properties)
    found: list[ReachResult] = []
    named: dict[int, BrokerAddress] = {}
    for server in parse_addresses(bootstrap_servers):
        named |= await _try_address(access, ReachResult(-1, server, ""), timeout_s, found)
    async with trio.open_nursery() as nursery:
        for node_id, address in named.items():
            nursery.start_soon(_try_address, access, ReachResult(node_id, address, ""), timeout_s, found)
    return sorted(found)


def _usable_access(properties: Mapping[str, str]) -> BrokerAccess:
    known = {key: value for key, value in properties.items() if key in ACCESS_PROPERTIES}
    try:
        return parse_access(known)
    except InvalidProperties as error:
        if not str(error).startswith("sasl."):
            raise NoAnswer(str(error)) from error
    try:  # of the mechanisms we speak only some, but TLS can be tried without
        trust = parse_broker_tls(known)
        return BrokerAccess(CLIENT_ID, make_broker_context(trust) if trust is not None else None, None, trust, True)
    except CertificateError as error:
        raise NoAnswer(str(error)) from error


async def _try_address(
    access: BrokerAccess, one: ReachResult, timeout_s: float, found: list[ReachResult]
) -> dict[int, BrokerAddress]:
    """Look at one address, and append to `found`; the brokers that it names."""
    brokers: dict[int, BrokerAddress] = {}

    async def ask(connection: BrokerConnection) -> None:
        if access.credentials is not None or not access.wants_sasl:
            answer = await connection.send_request(METADATA, MetadataRequest(()))
            brokers.update((broker.node_id, BrokerAddress(broker.host, broker.port)) for broker in answer.brokers)

    problem = ""
    try:
        until = trio.current_time() + timeout_s
        await RequestRound(access, [one.address], until, MAX_RESPONSE_BYTES).request_any_broker(ask)
    except NoAnswer as error:
        problem = str(error).removeprefix(f"{one.address}: ")
        problem = await _find_protocol_mismatch(one.address, access) or problem
    found.append(one._replace(problem=problem))
    return brokers


async def _find_protocol_mismatch(address: BrokerAddress, access: BrokerAccess) -> str:
    """Whether the server speaks TLS where we don't, or the reverse."""
    try:
        with trio.move_on_after(PROBE_TIMEOUT_S):
            stream = await trio.open_tcp_stream(address.host, address.port)
            async with stream:
                if access.tls_context is None:
                    return SPEAKS_TLS if await _speaks_tls(stream) else ""
                return NO_TLS if await _speaks_kafka(stream) else ""
    except (OSError, UnicodeError, trio.BrokenResourceError):  # UnicodeError: a name that no host can have
        pass
    return ""


async def _speaks_tls(stream: trio.SocketStream) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it gets no secret
    try:
        await trio.SSLStream(stream, context).do_handshake()
    except trio.BrokenResourceError as error:
        return " ALERT " in (getattr(error.__cause__, "reason", None) or "").replace("_", " ")
    return True


async def _speaks_kafka(stream: trio.SocketStream) -> bool:
    await stream.send_all(API_VERSIONS.encode_request(ApiVersionsRequest("", ""), 0, _CORRELATION_ID, b""))
    data = b""
    while len(data) < 8:
        more = await stream.receive_some(8 - len(data))
        if not more:
            return False
        data += more
    return bool(INT32.unpack_from(data, 4)[0] == _CORRELATION_ID)
