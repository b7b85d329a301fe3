# The brokers' own client quotas, as far as the gateway's own principal may see them. Brokers go on enforcing what was
# set there, so of their value and the gateway's the lesser holds; people who query what is in force, or set a quota,
# learn of both. Fetched on demand only, and then kept for some seconds.
#
# Knows no quota of the gateway's own.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import trio

from gateway.quotas.client import DescribedQuotas, QuotaApi, QuotaClient, QuotaClientError
from policies.quotas.store import QuotaStore

CACHE_S: Final = 5.0
TIMEOUT_S: Final = 3.0  # its callers wait for other things


class BrokerQuotas:
    """Client quotas that brokers enforce. `problem`: why they are not known, one line; "": they are, or have not been
    requested.
    """

    def __init__(self, connect: Callable[[], QuotaApi]) -> None:
        self._connect = connect
        self._lock = trio.Lock()
        self._fetched_at = -math.inf
        self._known: QuotaStore | None = None
        self.problem = ""

    @classmethod
    def of_cluster(cls, bootstrap_servers: str, properties: Mapping[str, str]) -> BrokerQuotas:
        return cls(lambda: QuotaClient(bootstrap_servers, properties, TIMEOUT_S))

    async def fetch_quotas(self) -> QuotaStore | None:
        """The quotas as of now, or some seconds ago; None: not known, see `problem`."""
        async with self._lock:
            if trio.current_time() >= self._fetched_at + CACHE_S:
                try:
                    self._known = _make_store(
                        await trio.to_thread.run_sync(self._describe_quotas, abandon_on_cancel=True)
                    )
                    self.problem = ""
                except QuotaClientError as error:
                    self._known, self.problem = None, str(error)
                self._fetched_at = trio.current_time()
        return self._known

    def _describe_quotas(self) -> tuple[DescribedQuotas, ...]:
        return self._connect().describe()


def _make_store(described: tuple[DescribedQuotas, ...]) -> QuotaStore:
    found = {each.entity: each.values for each in described}
    return QuotaStore.from_broker({entity: values for entity, values in found.items() if entity is not None})
