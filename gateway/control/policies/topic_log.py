# The records read of the policies' topic, in its order. A transaction is a few values and a head that ends it; only
# whole ones count. Pure: no I/O, no clock.

from __future__ import annotations

from collections import deque
from typing import Final

from policies.definitions.policy_records import AlterationHead, PastChange, PolicyEntry, decode_record
from policies.definitions.policy_values import PolicyKey

MAX_HISTORY: Final = 1000  # changes of single values, the newest
MAX_TOKENS: Final = 1000  # of alterations seen last: to find one's own again


class PolicyTopicLog:
    """
    Attributes:
        entries: the values of this topic as far as it was read; `version`: that of the last alteration.
        past: changes that were read, the oldest first, of earlier topics of the name too.
        end_offset: offset up to which everything has been read; -1: nothing yet.
        heads: of alterations that weren't taken over yet.
        is_fresh: records were read that weren't taken over yet.
        caught_up: the end of this topic has been reached once.
        tokens: of alterations seen last, of earlier topics of the name too.
    """

    def __init__(self) -> None:
        self.tokens: deque[str] = deque(maxlen=MAX_TOKENS)
        self.past: deque[PastChange] = deque(maxlen=MAX_HISTORY)
        self.begin_anew()

    def begin_anew(self) -> None:
        """The topic is another one, read from its beginning."""
        self.entries: dict[PolicyKey, PolicyEntry] = {}
        self.version = 0
        self.end_offset = -1
        self.heads: list[AlterationHead] = []
        self.is_fresh = self.caught_up = False
        self._whole = False  # what was read last ended a transaction

    def add_record(self, key: bytes | None, value: bytes | None, audit: bytes | None, offset: int) -> None:
        """Add one record, see policy_records.PolicyRecord.

        Raises:
            InvalidPolicyRecord: the record is ignored.
        """
        self.is_fresh, self._whole = True, False
        decoded = decode_record(key, value, audit)
        if isinstance(decoded, PolicyEntry):
            put_entry(self.entries, self.past, decoded)
        elif decoded is not None:
            self.version = decoded.version
            self.heads.append(decoded)
            self.tokens.append(decoded.token)
            self._whole = True
            self.end_offset = max(self.end_offset, offset + 2)  # the head, and the mark of the commit behind it

    def reach_end(self, offset: int) -> None:
        """There is nothing more to read now."""
        self.caught_up = self._whole = True
        self.end_offset = offset

    def check_settled(self) -> bool:
        """Whether all records read are whole transactions; True once after each reading."""
        settles, self._whole = self.caught_up and self._whole, self._whole and not self.caught_up
        return settles

    def accept_records(self) -> list[AlterationHead]:
        """The records read are known from now on; returns their alterations."""
        heads, self.heads = self.heads, []
        self.is_fresh = False
        return heads


def put_entry(held: dict[PolicyKey, PolicyEntry], past: deque[PastChange], entry: PolicyEntry) -> None:
    """Keep a value, or take it out. One that was only written again, with its topic's id, is no other change."""
    before = held.pop(entry.key, None)
    if entry.value is not None:
        held[entry.key] = entry
    if entry.past is not None and (before is None or entry.past != before.past):
        past.append(entry.past)
