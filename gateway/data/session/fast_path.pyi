from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.data.pending.in_flight import InFlightRequests
from gateway.data.shared.ledger import RowCounts, UsageLedger
from policies.decision import AdmissionCredit
from policies.idempotence.duplicates import AcknowledgedBatches
from policies.meters.meter import FleetMeter
from policies.meters.topic_meter import TopicMeter
from protocol.produce.produce_fast import PartitionArray
from protocol.produce.produce_request import PartitionBatch, RequestPartitions, TopicSpan
from protocol.produce.produce_response import PartitionResults

class ForwardingTerms:
    in_flight: InFlightRequests
    def __init__(
        self,
        in_flight: InFlightRequests,
        by_name: dict[bytes, TopicMeter],
        by_id: dict[bytes, TopicMeter],
        total: FleetMeter,
        awaits: Callable[[RequestPartitions, int], bool],
        credit: Callable[[TopicMeter, float], tuple[AdmissionCredit, float] | None],
        ledger: UsageLedger,
    ) -> None: ...
    def update_terms(
        self, mask: int, client_id: bytes | None, asks_always: bool, max_bytes: int, most: int
    ) -> None: ...
    def update_fetch_terms(self, owed: tuple[int, ...], most: int) -> None: ...
    def admit_requests(
        self, buf: bytearray, pos: int, end: int, now: float, arrived: float, asks: bool
    ) -> tuple[int, int]: ...

class ResponseCounters:
    in_flight: InFlightRequests
    ledger: UsageLedger
    def __init__(
        self,
        in_flight: InFlightRequests,
        rows: dict[bytes, RowCounts],
        acknowledged: AcknowledgedBatches,
        name_of: Callable[[bytes, int], bytes],
        count_repeats: Callable[[RowCounts, PartitionBatch, bytes], None],
        count_some: Callable[[PartitionArray[PartitionBatch], Sequence[TopicSpan], Iterable[int], Any], None],
        ledger: UsageLedger,
        node_id: int,
    ) -> None: ...
    def count_responses(self, buf: bytearray, pos: int, end: int, now: float, asks: bool) -> int: ...

def sums_by_topic(parts: PartitionArray[PartitionBatch]) -> list[tuple[bytes, int, int]]: ...
def written_offsets(parts: RequestPartitions, answered: PartitionResults) -> array[int] | None: ...
