# A producer as an application has it: librdkafka, idempotent, a number after the other, whatever happens behind it. In
# the end everything it was told is in the log must be there, once, in order.

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from gateway.embedded import EmbeddedCluster, wait_for
from tests.background import Background
from tests.integration.gateways import read_topic

RECOVERY_S = 60.0


def _value(number: int, size: int) -> bytes:
    return b"%d" % number + b"." * size


class Steady(Background):
    """Sends numbers to partition 0 of a topic from the beginning of its `with` until `finish`.

    Args:
        per_s: values per second.
        size: of what is put behind each number.
        in_flight: requests; librdkafka with several keeps a core busy for as long as it waits for an answer.
    """

    def __init__(self, bootstrap: str, topic: str, per_s: int = 400, size: int = 0, in_flight: int = 1) -> None:
        super().__init__()
        self._topic = topic
        self._per_s = per_s
        self._size = size
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "max.in.flight": in_flight,
                "linger.ms": 5 if size else 20,  # of numbers alone a quarter of the requests, which are enough
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 2,
                "on_delivery": self._settle,
            }
        )
        self.sent = self.acknowledged = 0
        self.failed: list[str] = []

    def __enter__(self) -> Steady:
        super().__enter__()
        self.wait_for(50)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._producer.purge()
        self._producer.flush(5)

    def wait_for(self, more: int) -> None:
        """Until so many more messages are acknowledged."""
        wanted = self.acknowledged + more
        wait_for(f"{more} acknowledgements", lambda: self.acknowledged >= wanted, RECOVERY_S)

    def finish(self) -> int:
        """How many were sent; all of them have been acknowledged."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(RECOVERY_S) == 0, f"{self.acknowledged} of {self.sent}"
        assert self.failed == []
        assert self.acknowledged == self.sent
        return self.sent

    def _settle(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(error.str())

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(self._topic, _value(self.sent, self._size), partition=0)
            self.sent += 1
            self._producer.poll(1 / self._per_s)


def assert_in_log_once_and_in_order(kafka: EmbeddedCluster, topic: str, count: int, size: int = 0) -> None:
    assert read_topic(kafka, topic) == [_value(number, size) for number in range(count)]
