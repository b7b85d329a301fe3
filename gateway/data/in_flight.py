# The requests of one connection that are owed an answer: their order (protocol/pending.py), how many there may be, and
# the memory that they keep meanwhile.

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.pending import SASL, Pending

if TYPE_CHECKING:
    from gateway.data.budget import Account
    from protocol.produce_request import Parts

MAX_PENDING = 1000  # on one connection before it is no longer read; clients send 1 to 5
PARTITION_BYTES = (
    280  # what one partition of a request keeps until its answer, about, with the limits that it was charged to
)
FEW_PARTITIONS = 16  # this many are not worth counting


class InFlight(Pending):
    """`is_waiting`: nothing more may be read before an answer: to a step of SASL, or, while memory is short, to a
    request of many partitions.
    """

    __slots__ = ("_account", "is_waiting")

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account
        self.is_waiting = False

    @property
    def is_full(self) -> bool:
        """Nothing more may be taken from the client before something is answered."""
        return self.is_waiting or len(self.entries) >= MAX_PENDING

    @property
    def has_room(self) -> bool:
        """Reading may go on where it had stopped."""
        return not self.is_waiting and len(self.entries) < MAX_PENDING // 2

    def keep(self, parts: Parts) -> bool:
        """These wait for their answer. True: nothing more may be read before one."""
        if len(parts) > FEW_PARTITIONS:
            self._account.charge(len(parts) * PARTITION_BYTES)
            self.is_waiting = self.is_waiting or self._account.is_short
        return self.is_waiting

    def forget(self, parts: Parts) -> None:
        """These wait no longer."""
        if len(parts) > FEW_PARTITIONS:
            self._account.discharge(len(parts) * PARTITION_BYTES)
            self.is_waiting = self.is_waiting and any(entry[1] == SASL for entry in self.entries)
