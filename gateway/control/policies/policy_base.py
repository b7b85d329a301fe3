# The policies that hold where nothing was changed at run time: those of the configuration, with the thresholds of the
# operator's own source in place of the file's once it has given some. The parent keeps these for the next control: the
# source may be away when that starts, and the file's may be no limit at all.

from __future__ import annotations

import logging
from typing import Final

import msgspec

from gateway.config import Settings
from gateway.control.context import ControlContext
from gateway.control.policies.service import PolicyService
from policies.definitions.policy_values import PolicyError, PolicyKey, PolicyValues
from policies.text import ERROR_CHARS, one_line

log = logging.getLogger("gateway.control")

SourceThresholds = tuple[float | None, dict[str, float]]  # of each broker, and of topics
_decode_thresholds: Final = msgspec.json.Decoder(SourceThresholds).decode


def find_kept_thresholds(context: ControlContext) -> SourceThresholds | None:
    """The thresholds that the operator's source gave an earlier control; None: none that are valid now."""
    kept = context.link.kept.thresholds
    if not kept:
        return None
    thresholds: SourceThresholds = _decode_thresholds(kept)
    try:
        context.settings.policy_values_with(*thresholds)
    except PolicyError as error:
        log.warning("thresholds.source: %s; the file's thresholds hold", one_line(str(error), ERROR_CHARS))
        return None
    return thresholds


class PolicyBase:
    """Makes the base of changes at run time. `thresholds`: the last ones of the operator's source; None: none."""

    def __init__(
        self, context: ControlContext, policies: PolicyService, thresholds: SourceThresholds | None = None
    ) -> None:
        self._context = context
        self._policies = policies
        self._source_thresholds = thresholds

    def of_settings(self, settings: Settings) -> PolicyValues:
        """The policies of this configuration.

        Raises:
            PolicyError: the source's thresholds are not valid.
        """
        if self._source_thresholds is None:
            return settings.policy_values()
        return settings.policy_values_with(*self._source_thresholds)

    def origin_of(self, key: PolicyKey) -> str:
        """Where the base's value of that key comes from."""
        is_replaced = self._source_thresholds is not None and (key.kind == "topic" or key == PolicyKey.of_broker())
        return f"source {self._context.settings.thresholds.source}" if is_replaced else "file"

    async def use_source_thresholds(self, total: float | None, topics: dict[str, float]) -> None:
        """The operator's source replaces the file's thresholds from now on.

        Raises:
            PolicyError: they are not valid; nothing was changed.
        """
        self._context.settings.policy_values_with(total, topics)
        self._source_thresholds = total, topics
        settings = None
        while settings is not self._context.settings:  # else another configuration came in between
            settings = self._context.settings
            await self._policies.replace_base(self.of_settings(settings))
        self._context.link.keep(thresholds=msgspec.json.encode(self._source_thresholds))
