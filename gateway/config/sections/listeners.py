# The section `listener`, or each in the section `listeners`: where clients connect, how it is told which broker they
# want (by port, or by server name on one port), the addresses that they are told, TLS, and the proxies before it.

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from pydantic import field_validator, model_validator

from gateway.config.sections.authentication import Authentication
from gateway.config.sections.fields import Host, Network, NodeId, Port, Section, setting
from gateway.config.sections.tls import TlsSection
from gateway.listener_names import DEFAULT_LISTENER, config_path
from gateway.tls.certificate_names import AdvertisedHost
from gateway.tls.server_names import NODE_ID, ServerNames, expand_node_id, is_host_name

ANY_HOST: Final = ("0.0.0.0", "::", "")  # noqa: S104  compared, not bound


class BrokerPlace(Section):
    """Of one broker, where it differs from all others."""

    # None: the listener's port + 1 + node id.
    port: Port | None = setting(None, "The broker's port.")
    advertised_host: Host = setting("", "Its host name in answers to clients.", live=True)
    # None: as far from `port` as the listener's is from its own.
    advertised_port: Port | None = setting(None, "Its port in answers to clients.", live=True)


class Sni(Section):
    """One port for all brokers: the server name in a client's TLS handshake tells which it wants."""

    # Behind a load balancer the port may differ from the listener's.
    bootstrap_address: str = setting(..., "The name, or name:port, that leads clients to any broker.", live=True)
    advertised_broker_address_pattern: str = setting(..., "The same with $(node_id) in it, for each broker.", live=True)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if NODE_ID in (_port_in(self.advertised_broker_address_pattern) or ""):
            raise ValueError("advertised_broker_address_pattern: all brokers have one port, only the host may differ")
        for key, value in self:
            if "$(nodeId)" in value or "{nodeId}" in value:
                raise ValueError(f"{key}: write {NODE_ID} in place of the node id, not as in {value}")
            port = _port_in(value)
            if port is not None and not (port.isdigit() and 1 <= int(port) <= 65535):
                raise ValueError(f"{key}: {value} has no port from 1 to 65535: write kafka.example:9093")
        problem = self.server_names.find_problem()
        if problem:
            names_broker = self.server_names.brokers.count(NODE_ID) != 1 or is_host_name(self.server_names.bootstrap)
            key = "advertised_broker_address_pattern" if names_broker else "bootstrap_address"
            raise ValueError(f"{key}: {problem}")
        return self

    @property
    def server_names(self) -> ServerNames:
        return ServerNames(_host_name_in(self.bootstrap_address), _host_name_in(self.advertised_broker_address_pattern))


def _port_in(address: str) -> str | None:
    return address.rpartition(":")[2] if ":" in address else None


def _host_name_in(address: str) -> str:
    return address.partition(":")[0].lower().removesuffix(".")


class ProxyProtocol(Section):
    """Proxies that begin each connection with a header of the PROXY protocol; from everybody else none is read."""

    networks: tuple[Network, ...] = setting(
        ...,
        "Addresses and networks of the proxies. Their header is required; from others none is read.",
        alias="from",
        min_length=1,
    )


class Listener(TlsSection):
    # Reachable from elsewhere only when somebody says so.
    host: Host = setting("127.0.0.1", "The address that the gateway listens on.")
    port: Port = setting(
        19092, "The bootstrap's port. Broker N listens on port + 1 + N, unless brokers or sni say otherwise."
    )
    advertised_host: Host = setting(
        "", "The host name in the gateway's answers to clients. Empty: host. Required if host is 0.0.0.0.", live=True
    )
    advertised_port: Port | None = setting(
        None, "The bootstrap's port as clients see it. Brokers' ports are shifted by the same difference.", live=True
    )
    advertised_broker_host_pattern: str = setting(
        "", "A host name with $(node_id) in it, if each broker has a name of its own.", live=True
    )
    # A number is its port, where port + 1 + node id doesn't fit.
    brokers: dict[NodeId, BrokerPlace] = setting(
        {}, "By node id, a port, or {port, advertised_host, advertised_port}, for brokers that differ."
    )
    sni: Sni | None = setting(None, "All brokers on one port, told apart by the server name in the TLS handshake.")
    proxy_protocol: ProxyProtocol | None = setting(
        None, "Proxies that begin each connection with a PROXY protocol header.", live=True
    )
    authentication: Authentication | None = setting(
        None, "The section authentication of this listener, in place of the one that holds for all."
    )

    @field_validator("brokers", mode="before")
    @classmethod
    def _read_ports(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {key: own if isinstance(own, dict | BrokerPlace) else {"port": own} for key, own in value.items()}

    @field_validator("advertised_broker_host_pattern")
    @classmethod
    def _check_pattern(cls, value: str) -> str:
        if value and (value.count(NODE_ID) != 1 or not is_host_name(expand_node_id(value.lower(), 0))):
            raise ValueError(
                f"{value} is not a valid host name with {NODE_ID} in it: write broker-{NODE_ID}.kafka.example"
            )
        return value

    @model_validator(mode="after")
    def _check_sni(self) -> Self:
        if self.sni is None:
            return self
        if not self.keystore:
            raise ValueError(
                "sni: clients send a server name only with TLS: write ssl.keystore.location: server.pem, with a"
                f" certificate for {self.sni.server_names.bootstrap} and"
                f" {self.sni.server_names.brokers.replace(NODE_ID, '0')}"
            )
        for key in ("advertised_host", "advertised_port", "advertised_broker_host_pattern", "brokers"):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key}: has no effect with sni, where all brokers have one port: write the names that clients"
                    " use into sni.bootstrap_address and sni.advertised_broker_address_pattern"
                )
        return self

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        if self.sni is None and not self.advertised_host and self.host in ANY_HOST:
            raise ValueError(
                f"advertised_host is needed, because {self.host or 'an empty host'} is not an address that clients can"
                " connect to: give the name under which they reach this gateway",
            )
        advertised = {f"brokers.{node_id}.": place.advertised_host for node_id, place in self.brokers.items()}
        for prefix, host in {"": self.advertised_host, **advertised}.items():
            if host and host in ANY_HOST:
                raise ValueError(f"{prefix}advertised_host: {host} is not an address that clients can connect to")
        by_port: dict[int, str] = {self.port: "the bootstrap listener"}
        for node_id in self.brokers:
            port = self.broker_port(node_id)
            if port in by_port:
                raise ValueError(f"brokers.{node_id}: port {port} is taken by {by_port[port]}")
            by_port[port] = f"broker {node_id}"
        return self

    @property
    def public_host(self) -> str:
        return self.advertised_host or self.host

    @property
    def server_names(self) -> ServerNames | None:
        """That tell brokers apart; None: ports do."""
        return None if self.sni is None else self.sni.server_names

    @property
    def bootstrap_address(self) -> tuple[str, int]:
        """Host and port that clients begin with."""
        if self.sni is not None:
            return self._split_address(self.sni.bootstrap_address)
        return self.public_host, self.advertised_port or self.port

    @property
    def advertised_hosts(self) -> tuple[AdvertisedHost, ...]:
        """The hosts that clients are told, each once."""
        if self.sni is not None:
            return (
                AdvertisedHost(self.sni.server_names.bootstrap, "sni.bootstrap_address"),
                AdvertisedHost(self.sni.server_names.brokers, "sni.advertised_broker_address_pattern"),
            )
        found = {self.public_host: "advertised_host" if self.advertised_host else "host"}
        if self.advertised_broker_host_pattern:
            found[self.advertised_broker_host_pattern] = "advertised_broker_host_pattern"
        for node_id, place in self.brokers.items():
            if place.advertised_host:
                found.setdefault(place.advertised_host, f"brokers.{node_id}.advertised_host")
        return tuple(AdvertisedHost(host, key) for host, key in found.items())

    def broker_address(self, node_id: int) -> tuple[str, int]:
        """Host and port that clients are told; as with `broker_port` there may be no such port."""
        if self.sni is not None:
            host, port = self._split_address(self.sni.advertised_broker_address_pattern)
            return expand_node_id(host, node_id), port
        place = self.brokers.get(node_id, BrokerPlace())
        host = place.advertised_host or expand_node_id(self.advertised_broker_host_pattern, node_id) or self.public_host
        shift = (self.advertised_port or self.port) - self.port
        return host, place.advertised_port or self.broker_port(node_id) + shift

    def _split_address(self, address: str) -> tuple[str, int]:
        return _host_name_in(address), int(_port_in(address) or self.port)

    @property
    def bound_ports(self) -> dict[int, str]:
        """Every port that is certain to be bound, and what for."""
        own = {self.broker_port(node_id): f"broker {node_id}" for node_id in self.brokers}
        return {self.port: "the bootstrap listener", **own}

    @property
    def proxy_networks(self) -> tuple[str, ...]:
        """Networks whose connections begin with a header of the PROXY protocol."""
        return self.proxy_protocol.networks if self.proxy_protocol is not None else ()

    def broker_port(self, node_id: int) -> int:
        """The port of that broker's listener; it may be beyond 65535, then nothing can be opened there."""
        place = self.brokers.get(node_id)
        return self.port + 1 + node_id if place is None or place.port is None else place.port


def check_port_conflicts(listeners: Mapping[str, Listener], others: Mapping[str, tuple[str, int]]) -> None:
    """Addresses that can't be bound twice. Ports of brokers yet unknown are addresses.py's to warn of. `others`: host
    and port by key, of what is no listener.

    Raises:
        ValueError: two of these have the same port, or one is no port.
    """
    bound: list[tuple[str, int, str]] = []
    for name, listener in listeners.items():
        for port, purpose in listener.bound_ports.items():
            for host, other, whose in bound:
                if other == port and hosts_overlap(host, listener.host):
                    raise ValueError(
                        f"{config_path(name)}.port: {port}, of {purpose}, is taken by {whose}: choose another"
                    )
        bound += [
            (listener.host, port, f"{purpose} in {config_path(name)}") for port, purpose in listener.bound_ports.items()
        ]
    for key, (host, port) in others.items():
        if port > 65535:
            raise ValueError(f"{key}: without it the port would be {port}, which is beyond 65535: write one")
        for name, listener in listeners.items():
            if port in listener.bound_ports and hosts_overlap(host, listener.host):
                whose = "the listener" if name == DEFAULT_LISTENER else f"listener {name}"
                raise ValueError(f"{key}: {port} is a port of {whose} as well: choose another one")
        for beside, (beside_host, beside_port) in others.items():
            if beside < key and beside_port == port and hosts_overlap(host, beside_host):
                raise ValueError(f"{key}: {port} is {beside} as well: choose another one")


def hosts_overlap(host: str, other: str) -> bool:
    """Whether sockets bound to these can't have the same port."""
    return host == other or host in ANY_HOST or other in ANY_HOST
