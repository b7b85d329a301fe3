# One question, and what all rules look up to answer it. Rules return what they find; what says nothing about the
# traffic is noted in `shadowed` on the way.

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.decision import Mode
from policies.definitions.policy_records import end_text
from policies.definitions.policy_values import PolicyKey, PolicySetting, as_number, value_text
from policies.explain.idle_limits import IdleLimits
from policies.explain.model import ExplainInputs, ExplainSubject, HeldTraffic, ShadowedRule, origin_of
from policies.fleet.keys import FleetKey
from policies.limits.description import NOT_SHARED, FleetUse
from policies.quotas.names import Entity
from policies.quotas.text import quota_text
from policies.verdict import MAX_DELAY_MS

# What was rejected or delayed no longer ago is so now: as long as one wait may last, and until its end is reported.
RECENT_MS: Final = MAX_DELAY_MS + 5_000


class ExplainCase:
    def __init__(self, asked: ExplainSubject, known: ExplainInputs, held: Sequence[HeldTraffic]) -> None:
        self.subject = asked
        self.inputs = known
        self.shadowed: list[ShadowedRule] = []
        self.limits = IdleLimits(known)
        self.quota_rates = {line.bucket: line for line in known.rates.quotas}
        self.entity = Entity(asked.user, asked.client_id)
        self.settings = {setting.key: setting for setting in known.policies.list_settings()}
        self.held = [each for each in held if known.now_ms - each.last_ms <= RECENT_MS]
        self.leaders = known.topic_leaders(asked.topic)
        self.brokers = known.subject_brokers(asked)
        self.observed = known.rollout.observed_policies(asked.principal, asked.client_id, known.rollout_key)

    @property
    def mode(self) -> Mode:
        """Of rules that have none of their own."""
        return "observe" if self.inputs.observe else "enforce"

    def fleet_use(self, key: FleetKey) -> FleetUse:
        """A limit that gateways share."""
        return self.inputs.rates.fleet.get(key, NOT_SHARED)

    def fleet_traffic(self, broker: int | None, topic: str | None = None) -> FleetUse:
        """The bytes that gateways bring to a broker, or to a topic there."""
        return NOT_SHARED if broker is None else self.inputs.rates.peer_rates.get((broker, topic), NOT_SHARED)

    def total_origin(self, broker: int | None) -> str:
        own = PolicyKey.of_broker(broker)
        return self.setting_origin(own if own in self.settings else PolicyKey.of_broker())

    def setting_origin(self, key: PolicyKey) -> str:
        setting = self.settings.get(key)
        end = "" if setting is None or setting.end is None else f" until {end_text(setting.end)}"
        return origin_of(setting, self.inputs.base_origin) + end

    def was_held(self, reason: str, broker: int | None) -> bool:
        return self.held_since_ms(reason, broker) is not None

    def held_since_ms(self, reason: str, broker: int | None) -> int | None:
        """Since when the traffic has been held back for that reason; None: it isn't now."""
        since = [
            each.since_ms
            for each in self.held
            if each.is_by(reason) and each.outcome in ("rejected", "delayed") and broker in (None, each.broker)
        ]
        return min(since, default=None)

    def add_shadowed_base(self, key: PolicyKey, name: str, broker: int | None) -> None:
        """The values that a change wins over: the base's, and one set at run time that holds again when it ends."""
        setting = self.settings.get(key)
        if setting is None or setting.change is None:
            return
        then = None if setting.end is None else setting.end.then
        again = "another value was set at run time" if setting.end is None else f"another value {until_text(setting)}"
        why = again if then is None else "another value was set at run time"
        base_origin = self.inputs.base_origin(key)
        for origin, value, because in (("run time", then, again), (base_origin, setting.base, why)):
            if value not in (None, setting.change):
                assert value is not None
                text = quota_text(key.quota_key, as_number(value)) if key.kind == "quota" else value_text(key, value)
                self.add_shadowed(name, broker, str(key), origin, text, because)

    def add_shadowed(self, name: str, broker: int | None, what: str, origin: str, value: str, why: str) -> None:
        self.shadowed.append(ShadowedRule(name, broker, what, origin, value, why))


def until_text(setting: PolicySetting) -> str:
    return f"was set at run time until {end_text(setting.end)}, then this one holds again"
