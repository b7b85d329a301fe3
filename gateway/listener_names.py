# Names of listeners: in the configuration, and of the sockets that the parent keeps for them. Knows no sockets.

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_LISTENER: Final = "default"  # the one of the section `listener`
_BOOTSTRAP, _BROKER = "bootstrap", "broker"


def config_path(listener: str) -> str:
    """The place of that listener in the configuration, for messages."""
    return "listener" if listener == DEFAULT_LISTENER else f"listeners.{listener}"


def log_prefix(listener: str) -> str:
    """The beginning of log lines about that listener; nothing, where there is only one."""
    return "" if listener == DEFAULT_LISTENER else f"listener {listener}: "


class BrokerSocket(NamedTuple):
    listener: str
    node_id: int

    @property
    def name(self) -> str:
        return f"{_BROKER} {self.node_id} {self.listener}"


def bootstrap_socket_name(listener: str) -> str:
    """The name of the listener's own socket; where server names tell brokers apart there is no other."""
    return f"{_BOOTSTRAP} {listener}"


def parse_broker_socket(name: str) -> BrokerSocket | None:
    """None: it is no broker's."""
    kind, _, rest = name.partition(" ")
    node_id, _, listener = rest.partition(" ")
    return BrokerSocket(listener, int(node_id)) if kind == _BROKER else None
