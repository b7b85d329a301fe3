# Record batches as producers send them (magic v2, CRC and all), built from nothing but the format's description, so
# that what is tested shares no code with what tests it. Spec: kafka.apache.org/documentation/#recordbatch.

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c


def zigzag(value: int) -> bytes:
    unsigned = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while unsigned > 0x7F:
        out.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    out.append(unsigned)
    return bytes(out)


def record(offset_delta: int, value: bytes) -> bytes:
    body = b"\0" + zigzag(0) + zigzag(offset_delta) + zigzag(-1) + zigzag(len(value)) + value + zigzag(0)
    return zigzag(len(body)) + body


def batch(
    values: Sequence[bytes] = (b"payload",),
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp: int = 1_700_000_000_000,
    attributes: int = 0,
) -> bytes:
    """One record batch with a record per value."""
    records = b"".join(record(delta, value) for delta, value in enumerate(values))
    checked = (
        struct.pack(">hiqq", attributes, len(values) - 1, timestamp, timestamp)
        + struct.pack(">qhi", producer_id, epoch, sequence)
        + struct.pack(">i", len(values))
        + records
    )
    after_length = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def message_set(value: bytes = b"old") -> bytes:
    """A message set of magic 1 with one message: what producers sent before Kafka 0.11."""
    message = struct.pack(">bbqi", 1, 0, 1_700_000_000_000, -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qi", 0, len(message) + 4) + struct.pack(">I", 0) + message
