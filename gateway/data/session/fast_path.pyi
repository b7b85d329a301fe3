from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.data.pending.in_flight import InFlight
from gateway.data.shared.ledger import Counts, Ledger
from policies.decision import Credit
from policies.idempotence.duplicates import Acknowledged
from policies.limits.meter import FleetMeter
from policies.thresholds.topic_meter import TopicMeter
from protocol.produce_fast import Partitions
from protocol.produce_request import Partition, Parts, Span
from protocol.produce_response import Results

class Terms:
    in_flight: InFlight
    def __init__(
        self,
        in_flight: InFlight,
        by_name: dict[bytes, TopicMeter],
        by_id: dict[bytes, TopicMeter],
        total: FleetMeter,
        awaits: Callable[[Parts, int], bool],
        credit: Callable[[TopicMeter, float], tuple[Credit, float] | None],
        ledger: Ledger,
    ) -> None: ...
    def set(self, mask: int, client_id: bytes | None, asks_always: bool, max_bytes: int, most: int) -> None: ...
    def set_fetches(self, owed: tuple[int, ...], most: int) -> None: ...
    def pass_requests(
        self, buf: bytearray, pos: int, end: int, now: float, arrived: float, asks: bool
    ) -> tuple[int, int]: ...

class Counted:
    in_flight: InFlight
    ledger: Ledger
    def __init__(
        self,
        in_flight: InFlight,
        rows: dict[bytes, Counts],
        acknowledged: Acknowledged,
        name_of: Callable[[bytes, int], bytes],
        count_repeats: Callable[[Counts, Partition, bytes], None],
        count_some: Callable[[Partitions[Partition], Sequence[Span], Iterable[int], Any], None],
        ledger: Ledger,
        node_id: int,
    ) -> None: ...
    def pass_answers(self, buf: bytearray, pos: int, end: int, now: float, asks: bool) -> int: ...

def sums_by_topic(parts: Partitions[Partition]) -> list[tuple[bytes, int, int]]: ...
def offsets(parts: Parts, answered: Results) -> array[int] | None: ...
