# Whether the addresses of several sections meet: a gateway that would relay to itself, and ports that a broker would
# need and not get. Opens nothing and asks no resolver.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.config.sections.clients import Upstream
from gateway.config.sections.listeners import ANY_HOST, Listener, hosts_overlap
from gateway.system.hosts import is_loopback
from gateway.system.sockets import address_text

_USUAL_NODE_IDS: Final = range(10)  # most clusters count their brokers from 0 or 1


def find_relay_loops(upstream: Upstream, listeners: Mapping[str, Listener]) -> list[str]:
    """The bootstrap servers that are this gateway's own listeners: each connection would come back without end.

    `listeners`: by their path in the file.
    """
    return [
        f"upstream.bootstrap_servers: {address_text(host, port)} is this gateway's own address ({path}): write those of"
        " brokers"
        for host, port in upstream.addresses()
        for path, listener in listeners.items()
        if port == listener.port and _is_listener_host(host, listener)
    ]


def find_port_conflicts(
    upstream: Upstream, listeners: Mapping[str, Listener], beside: Mapping[str, tuple[str, int]]
) -> Iterator[str]:
    """Warnings: ports that brokers with usual node ids would have, were they not others' already. `beside`: host and
    port by key, of what is no listener.
    """
    own = {f"{path}.port": (listener.host, listener.port) for path, listener in listeners.items()} | dict(beside)
    for path, listener in listeners.items():
        if listener.sni is not None:
            continue  # brokers have no ports there
        others = {
            listener.broker_port(node_id): f"{path}.brokers.{node_id}"
            for node_id in listener.brokers
            if listener.port + 1 + node_id <= 65535  # else the file had to say some port, and brokers have such ids
        }
        here = [port for host, port in upstream.addresses() if _is_listener_host(host, listener)]
        others |= dict.fromkeys(here, "upstream.bootstrap_servers")
        others |= {port: what for what, (host, port) in own.items() if hosts_overlap(host, listener.host)}
        for node_id in _USUAL_NODE_IDS:
            taken = others.get(port := listener.broker_port(node_id))
            if taken is not None and taken != f"{path}.brokers.{node_id}":
                yield (
                    f"{taken}: {port} is the port that broker {node_id} would have by {path}.port: that broker would be"
                    " withheld from clients"
                )


def _is_listener_host(host: str, listener: Listener) -> bool:
    """Whether that host is the one the listener is reached under, as far as the file says."""
    if host.lower() in (listener.host.lower(), listener.advertised_host.lower()):
        return True
    return is_loopback(host.lower()) and (is_loopback(listener.host.lower()) or listener.host in ANY_HOST)
