# Parts of control that come from outside the process and may be unusable: the spool's directory, what looks at disks, a
# source of the operator's own. On a first start each has to be there. Where clients are at work already (an earlier
# control was up) the gateway goes on without what can't be had, and it is tried again until it can.
#
# Knows why one is lacking; not how they are made (outside.py), and not what they are for.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from gateway.plugins import PluginError

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

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        """`makers`: what makes each of those that are configured, in a thread; it may raise ComponentUnusable, or
        PluginError.
        """
        self._makers = makers
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
        except (ComponentUnusable, PluginError) as error:
            self.lacking[part] = str(error)
            return False
        self.lacking[part] = ""
        return True
