# A Kafka connection with nothing between the test and the bytes: frames of tests/gateway/data/play.py go out as they
# are, answers are read by kio. Blocking, with a deadline.

from __future__ import annotations

import socket
import struct
from types import TracebackType

from gateway import embedded
from tests.gateway.data import play

TIMEOUT_S = 30.0


class Wire:
    """One connection to a port on loopback."""

    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self.sock = socket.create_connection((embedded.HOST, port), timeout_s)
        self.local_port = int(self.sock.getsockname()[1])

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def send(self, frame: bytes) -> None:
        self.sock.sendall(frame)

    def receive(self) -> bytes:
        """The next frame with its size prefix.

        Raises:
            ConnectionError: the other side closed.
        """
        head = self._read(4)
        return head + self._read(struct.unpack(">i", head)[0])

    def produce(self, frame: bytes, version: int = 9) -> tuple[int, dict[tuple[str, int], tuple[int, str | None]]]:
        """Send a Produce request and wait: (throttle time in ms, answers by topic and partition)."""
        self.send(frame)
        _, throttle_ms, rows = play.decode_answer(self.receive(), version)
        return throttle_ms, rows

    def ends(self) -> bool:
        """Whether the other side closes; what it says before is thrown away. A reset is a close as well."""
        try:
            while self.sock.recv(65_536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += more
        return bytes(data)


def base_offset(frame: bytes) -> int:
    """Of the only partition in a version 9 answer."""
    from tests.protocol import produce_cases as cases

    _, body = cases.kio_decode_answer(9, frame[4:])
    return int(body.responses[0].partition_responses[0].base_offset)
