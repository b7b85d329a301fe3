# The extension point: a policy of the operator's own, asked about each partition of a Produce request beside the
# built-in ones. The strictest verdict counts (verdict.strictest). The gateway makes it by a factory that the
# configuration names as "module:factory".
#
# It runs in the data path, in the worker's only thread: it must neither block nor do I/O. One instance serves all
# connections of a worker; workers and gateways don't share it.

from __future__ import annotations

from typing import Protocol

from policies.verdict import Verdict


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
        """What happens to `size` bytes for that partition; None = nothing to say.

        `node_id`: the upstream broker, -1 while it is not known. `producer_id`: -1 for producers that are not
        idempotent. `now`: seconds on a monotonic clock.

        A `Verdict` has an action (verdict.DELAY admits), a reason of a few fixed words (it becomes the label of a
        metric), a throttle in milliseconds (up to verdict.MAX_THROTTLE_MS; without one a rejected client tries again at
        once), and a text for the client and the log. A rejected batch comes again.
        """
        ...
