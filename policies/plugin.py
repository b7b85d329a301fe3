# The extension point: a policy of the operator's own, asked about each partition of a Produce request beside the
# built-in ones. The strictest verdict counts (decision.strictest). The gateway makes it by a factory that the
# configuration names as "module:factory".
#
# It runs in the data path, in the worker's only thread: it must neither block nor do I/O. One instance serves all
# connections of a worker; workers and gateways don't share it.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from policies.decision import ClientPatience, RequestLimit, strictest_verdict
from policies.verdict import MAX_THROTTLE_MS, Verdict


class TrafficPolicy(Protocol):
    """Decides about partitions of Produce requests."""

    def decide(
        self,
        node_id: int,
        topic: bytes,
        partition: int,
        producer_id: int,
        size: int,
        principal: str,
        client_id: str,
        now: float,
    ) -> Verdict | None:
        """The verdict on `size` bytes for that partition; None = nothing to say.

        `node_id`: the upstream broker, -1 while it is not known. `producer_id`: -1 for producers that are not
        idempotent. `now`: seconds on a monotonic clock.

        A `Verdict` has an action (verdict.DELAY admits), a reason of a few fixed words (it becomes the label of a
        metric), a throttle in milliseconds (up to verdict.MAX_THROTTLE_MS; without one a rejected client tries again at
        once), and a text for the client and the log. A rejected batch comes again.
        """
        ...


class PluginLimit(RequestLimit):
    """The verdict of all policies of the operator's own on one partition of one request."""

    __slots__ = ("_batch", "_client", "_plugins")

    def __init__(
        self, plugins: Sequence[TrafficPolicy], batch: tuple[int, bytes, int, int], client: tuple[str, str]
    ) -> None:
        """`batch`: broker, topic, partition and producer id; `client`: principal and client id."""
        self._plugins = plugins
        self._batch = batch
        self._client = client

    def judge_request(self, size: int, messages: int, patience: ClientPatience, now: float) -> Verdict | None:
        why = strictest_verdict(plugin.decide(*self._batch, size, *self._client, now) for plugin in self._plugins)
        if why is not None and why.throttle_ms > MAX_THROTTLE_MS:  # its client would obey it, and time out elsewhere
            return replace(why, throttle_ms=MAX_THROTTLE_MS)
        return why
