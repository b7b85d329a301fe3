# An operator who changes his mind: every few seconds he lowers thresholds, of one topic and of one broker after the
# other, to below what passes, and a moment later takes that back. So producers are rejected again and again however
# short a scene is, by the rate that the proposal has, and policies change at run time whatever else happens; the other
# brokers go on, so that a pause of all is not his. What can't be changed just now (nobody answers) is tried again.

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

from tests.background import Background
from tests.integration.gateways import Gateway

BROKERS = ("1", "2", "3")
TIGHT_S = 0.5
LOOSE_S = 5.0  # a tick: clients of one broker at a time are told to wait
LOOK_S = 0.5
OF_RATE = 0.98  # clients are told to wait until the rate has fallen to the threshold, hence for one tick
NOT_SET = 404
AWAY = (OSError, http.client.HTTPException)  # nobody answers, or not to the end, or with an error


class Squeeze(Background):
    """Lowers and takes back from the beginning of its `with` to its end; thresholds are the file's again then."""

    def __init__(self, gateway: Gateway, topic: str) -> None:
        super().__init__()
        self._gateway = gateway
        self._topic = topic
        self.refusal = ""  # the last one, for who wonders why nothing bites
        self._turn = threading.Lock()  # held while thresholds are low

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Thresholds are the file's until the `with` ends: for when they could not be taken back."""
        with self._turn:
            yield

    def _run(self) -> None:
        for broker in itertools.cycle(BROKERS):
            while min(rate := self._rate(broker), self._rate(broker, self._topic)) <= 1 and not self._stop.wait(LOOK_S):
                pass
            if self._stop.is_set():
                return
            with self._turn:
                with contextlib.suppress(*AWAY):
                    self._set(f"topics/{self._topic}", OF_RATE * self._rate(broker, self._topic))
                    self._set(f"total/{broker}", OF_RATE * rate)
                self._stop.wait(TIGHT_S)
                while not self._take_back(broker) and not self._stop.wait(LOOK_S):
                    pass
            self._stop.wait(LOOSE_S)

    def _rate(self, broker: str, topic: str | None = None) -> float:
        """0 until something has passed, or while nobody answers."""
        try:
            if topic is not None:
                return self._gateway.metric("topic_rate_bytes_per_second", broker=broker, topic=topic)
            return self._gateway.metric("broker_rate_bytes_per_second", broker=broker)
        except AWAY:
            return 0.0

    def _take_back(self, broker: str) -> bool:
        """False: nobody answered, or nothing could be changed."""
        try:
            self._set(f"total/{broker}", None)
            self._set(f"topics/{self._topic}", None)
        except AWAY:
            return False
        return True

    def _set(self, path: str, value: float | None) -> None:
        """None: what the file says."""
        request = urllib.request.Request(
            f"{self._gateway.admin}/v1/thresholds/{path}",
            None if value is None else json.dumps({"value": int(value)}).encode(),
            {"content-type": "application/json"},
            method="DELETE" if value is None else "PUT",
        )
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError as error:
            with error:
                if error.code != NOT_SET:
                    self.refusal = f"{path}: {error.read(1000).decode(errors='replace')}"
                    raise
