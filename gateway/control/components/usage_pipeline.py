# The usage log's way to disk and to its topic: the spool, as soon as there is one, its publisher, and what is shown of
# both.

from __future__ import annotations

import logging
from typing import Final

import trio

from gateway.config.sections.logs import UsageLog
from gateway.control.components.optional_components import SPOOL, OptionalComponents
from gateway.control.context import ControlContext
from gateway.control.usage.usage_log import LogChain, UsageLogWriter
from gateway.control.usage.usage_publisher import UsagePublisher
from gateway.control.usage.usage_spool import UsageSpool
from gateway.secret_key import read_secret

log = logging.getLogger("gateway.control")

GAUGE_INTERVAL_S: Final = 1.0
PRUNE_INTERVAL_S: Final = 60.0
PUBLISH_AT_END_S: Final = 5.0  # the rest stays in the spool, and goes out after the next start


class UsagePipeline:
    """`run` has to be running until `flush_records` has returned; `close` comes last."""

    def __init__(self, context: ControlContext, components: OptionalComponents, usage_log: UsageLogWriter) -> None:
        self._settings = context.settings
        self._components = components
        self._usage_log = usage_log
        self._metrics = context.metrics
        self._spool: UsageSpool | None = None
        self._publisher: UsagePublisher | None = None

    @property
    def lacking(self) -> dict[str, str]:
        """Why each of its components can't be used now, "" where it can."""
        found = {SPOOL: self._components.lacking[SPOOL] or self._usage_log.problem}
        if self._settings.internal_topics == "kafka":
            found["usage_log.topic"] = "" if self._publisher is None else self._publisher.problem
        return found

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_records)
            nursery.start_soon(self._update_gauges)

    async def flush_records(self, *, is_reached: bool) -> None:
        """Return when all reports are on disk; and in the topic, if the cluster `is_reached`, or soon after."""
        await self._usage_log.wait_drained()
        if self._publisher is not None and is_reached:
            with trio.move_on_after(PUBLISH_AT_END_S):
                await self._publisher.wait_caught_up()

    def stop(self) -> None:
        """Make calls that run in threads return soon."""
        if self._publisher is not None:
            self._publisher.stop()

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    async def _publish_records(self) -> None:
        settings = self._settings
        self._spool = spool = await self._components.await_component(SPOOL)
        self._usage_log.attach_spool(spool)
        self._usage_log.enqueue_lost_beyond(settings.worker_count)
        if settings.internal_topics == "kafka":
            kept, client = settings.usage_log, settings.client_properties
            self._publisher = UsagePublisher(
                spool, client, kept.topic, kept.partitions, kept.replication, self._metrics
            )
            await self._publisher.run(self._usage_log)

    async def _update_gauges(self) -> None:
        next_prune = trio.current_time()
        shown = self._metrics.usage_log
        while True:
            if self._spool is not None:
                shown.spool_bytes.set(self._spool.total_bytes)
                shown.backlog_bytes.set(self._spool.backlog_bytes if self._publisher is not None else 0)
                if trio.current_time() >= next_prune:
                    await trio.to_thread.run_sync(_prune_spool, self._spool)
                    next_prune = trio.current_time() + PRUNE_INTERVAL_S
            await trio.sleep(GAUGE_INTERVAL_S)


def make_chain(kept: UsageLog) -> LogChain | None:
    """The usage log's chain, with its key. None: records get no digests, also where the key can't be read: usage has to
    be written, and the audit tells.
    """
    if not kept.chain or kept.chain_key_file is None:
        return LogChain() if kept.chain else None
    try:
        return LogChain(read_secret(kept.chain_key_file))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        log.error("usage_log.chain_key_file: %s: %s; records have no digests", kept.chain_key_file, why)
        return None


def _prune_spool(spool: UsageSpool) -> None:
    try:
        spool.prune_expired()
    except OSError as error:
        log.warning("usage log: can't delete old spool files: %s", error)
