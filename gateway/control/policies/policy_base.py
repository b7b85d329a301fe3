# The policies that hold where nothing was changed at run time: those of the configuration, with the thresholds of the
# operator's own source in place of the file's once it has given some.

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import Settings
from gateway.control.context import ControlContext
from gateway.control.policies.service import PolicyService
from policies.definitions.policy_values import PolicyKey, PolicyValues


class PolicyBase:
    """Makes the base of changes at run time."""

    def __init__(self, context: ControlContext, policies: PolicyService) -> None:
        self._context = context
        self._policies = policies
        self._source_thresholds: tuple[float | None, Mapping[str, float]] | None = None

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

    async def use_source_thresholds(self, total: float | None, topics: Mapping[str, float]) -> None:
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
