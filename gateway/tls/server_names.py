# The broker that a client means by the server name in its TLS ClientHello (SNI, RFC 6066), where one port serves them
# all.
#
# Pure, and the same for who hands addresses out and for who takes connections: a new broker needs nothing new.

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

NODE_ID: Final = "$(node_id)"  # stands for a node id in a pattern
MAX_NAME_LENGTH: Final = 253  # characters of a host name, without the dot at its end
_LARGEST_ID: Final = 2**31 - 1
_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")

NameFaultReason = Literal["no_server_name", "unknown_server_name"]
NO_SERVER_NAME: Final = "no_server_name"
UNKNOWN_SERVER_NAME: Final = "unknown_server_name"
NAME_FAULT_REASONS: Final[tuple[NameFaultReason, ...]] = (NO_SERVER_NAME, UNKNOWN_SERVER_NAME)


class UnknownServerName(Exception):
    """No broker goes by that server name, nor does the bootstrap.

    Attributes:
        reason: one of NAME_FAULT_REASONS, for counting.
    """

    def __init__(self, text: str, reason: NameFaultReason) -> None:
        super().__init__(text)
        self.reason: NameFaultReason = reason


class ServerNames(msgspec.Struct, frozen=True):
    """The names of one listener, in lower case and without a dot at the end.

    Attributes:
        bootstrap: of any broker.
        brokers: a broker's, with NODE_ID in place of its node id.
    """

    bootstrap: str
    brokers: str

    def find_broker(self, name: str | None) -> int | None:
        """The node id in a client's server name; None: it is the bootstrap's.

        Raises:
            UnknownServerName: it is neither, or the client sent none.
        """
        if not name:
            raise UnknownServerName(
                "the client sent no server name (SNI), as clients do that connect to an IP address: its"
                f" bootstrap.servers must name {self.bootstrap}",
                NO_SERVER_NAME,
            )
        host = name.lower().removesuffix(".")
        if host == self.bootstrap:
            return None
        node_id = self._parse_node_id(host)
        if node_id is None:
            raise UnknownServerName(
                f"server name {name[:MAX_NAME_LENGTH]!r} is neither {self.bootstrap} nor one like {self.brokers}",
                UNKNOWN_SERVER_NAME,
            )
        return node_id

    def _parse_node_id(self, host: str) -> int | None:
        before, _, behind = self.brokers.partition(NODE_ID)
        if len(host) <= len(before) + len(behind) or not (host.startswith(before) and host.endswith(behind)):
            return None
        digits = host[len(before) : len(host) - len(behind)]
        if not _ID.fullmatch(digits) or int(digits) > _LARGEST_ID:
            return None
        return int(digits)

    def broker_name(self, node_id: int) -> str:
        """That broker's name."""
        return expand_node_id(self.brokers, node_id)

    def find_problem(self) -> str:
        """Why these names can't tell brokers apart; "": they can."""
        if self.brokers.count(NODE_ID) != 1:
            return f"{self.brokers} must have {NODE_ID} once, in place of the node id: broker-{NODE_ID}.kafka.example"
        for name in (self.bootstrap, self.broker_name(_LARGEST_ID)):
            if not is_host_name(name):
                return f"{name} is not a valid host name: letters, digits and '-' in parts between dots"
        if self._parse_node_id(self.bootstrap) is not None:
            return f"the bootstrap's name {self.bootstrap} is a broker's as well: write kafka.example, for example"
        return ""


def expand_node_id(pattern: str, node_id: int) -> str:
    """The pattern with that node id in it."""
    return pattern.replace(NODE_ID, str(node_id))


def is_host_name(name: str) -> bool:
    """Whether a client can send it as server name: no IP address (RFC 6066, 3)."""
    is_address = all(part.isdigit() for part in name.split("."))
    return len(name) <= MAX_NAME_LENGTH and not is_address and _HOST.fullmatch(name) is not None
