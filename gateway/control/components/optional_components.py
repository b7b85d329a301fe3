# Parts of control that come from outside the process and may be unusable: the spool's directory, what looks at disks, a
# source of the operator's own. On a first start each has to be there. Where clients are at work already (an earlier
# control was up) the gateway goes on without what can't be had, and it is tried again until it can.
#
# Knows how they are made and why one is lacking; not what they are for.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from gateway.config import Settings
from gateway.control.policies.store import FileStore, PolicyStore, RetriedStore
from gateway.control.policies.topic_store import TopicStore
from gateway.control.storage.sources import StorageError, make_storage_view
from gateway.control.usage.usage_log import SpoolInUse, UsageSpool
from gateway.plugins import PluginError
from gateway.storage import plugins

log = logging.getLogger("gateway.control")

RETRY_S: Final = (0.5, 30.0)  # first and longest pause before an unusable part is tried again
# By the thing that the operator has to look at.
SPOOL: Final = "usage_log.spool_dir"
STORAGE: Final = "storage"
SOURCE: Final = "thresholds.source"


class ComponentUnusable(Exception):
    """A component can't be used; one line with the reason."""


class OptionalComponents:
    """`lacking`: why each part can't be had just now; "" for those that can."""

    def __init__(self, settings: Settings) -> None:
        self._makers = _list_makers(settings)
        self._made: dict[str, Any] = {}
        self.lacking = dict.fromkeys(self._makers, "")

    def __contains__(self, part: str) -> bool:
        """Whether it is configured."""
        return part in self._makers

    async def make_all(self, *, patient: bool) -> None:
        """Make all of them; `patient`: go on without parts that can't be had.

        Raises:
            ComponentUnusable: a part can't be had, without `patient`.
        """
        for part in self._makers:
            if not await self._try_make(part) and not patient:
                raise ComponentUnusable(self.lacking[part])
        for why in filter(None, self.lacking.values()):
            log.error("%s; continuing without it and retrying", why)

    async def await_component(self, part: str) -> Any:
        """That part, once, as soon as it can be had."""
        pause = RETRY_S[0]
        while part not in self._made:
            await trio.sleep(pause)
            pause = min(2 * pause, RETRY_S[1])
            if await self._try_make(part):
                log.info("%s can be used again", part)
        return self._made.pop(part)

    async def _try_make(self, part: str) -> bool:
        try:
            self._made[part] = await trio.to_thread.run_sync(self._makers[part])
        except (ComponentUnusable, StorageError, PluginError) as error:
            self.lacking[part] = str(error)
            return False
        self.lacking[part] = ""
        return True


def make_policy_store(settings: Settings, client: Mapping[str, Any], *, patient: bool = False) -> PolicyStore:
    """The store of policies changed at run time. `client`: librdkafka's properties; `patient`: a file that can't be
    used is tried again.

    Raises:
        StoreError: the file can't be used, without `patient`.
    """
    kept, base = settings.policies_store, settings.policy_values()
    if settings.internal_topics == "none":
        path = settings.policies_file
        return RetriedStore(lambda: FileStore(path, base), base) if patient else FileStore(path, base)
    return TopicStore(client, kept.topic, base, replication=kept.replication, member=settings.gateway_name)


def _list_makers(settings: Settings) -> dict[str, Callable[[], Any]]:
    storage, thresholds = settings.storage, settings.thresholds
    makers: dict[str, Callable[[], Any]] = {SPOOL: lambda: _open_spool(settings)}
    if storage is not None and not storage.is_disabled:
        makers[STORAGE] = lambda: make_storage_view(settings, storage)
    if thresholds.source:
        makers[SOURCE] = lambda: plugins.load_plugin(plugins.QUOTA_SOURCES, thresholds.source, thresholds.options)
    return makers


def _open_spool(settings: Settings) -> UsageSpool:
    kept, published_only = settings.usage_log, settings.internal_topics == "kafka"
    try:
        return UsageSpool(kept.spool_dir, kept.max_spool_bytes, kept.retention, published_only=published_only)
    except SpoolInUse as error:
        raise ComponentUnusable(str(error)) from error
    except OSError as error:
        raise ComponentUnusable(f"{SPOOL} {kept.spool_dir}: {error.strerror or error}") from error
