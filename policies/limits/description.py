# What a limit says of itself. Each kind of limit makes this value from the numbers and functions by which it decides;
# explain, REST and console show it. Utilization is rate by limit, not capped, NaN where there is no limit or nothing is
# known (KIP-1373).
#
# Knows no kind of limit and no traffic.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from policies.decision import Mode
from policies.limits.limit_use import limit_utilization
from policies.text import one_line
from policies.units import format_messages, format_rate

Action = Literal["refuse", "hold", "reject", "delay"]  # refuse: for good, whatever the limits say
Traffic = Literal["produce", "fetch", "both"]

MAX_NAMED: Final = 3  # gateways in a text
MIN_SHOWN_WAIT_S: Final = 0.05  # shown as 0.1 s
OTHER_GATEWAYS: Final = "other gateways"  # for the names of several, or of one that isn't known


class FleetUse(NamedTuple):
    """One limit that holds over several gateways, per second. `share`: granted to this one, None: not known. `others`:
    taken by other gateways, by name, as this one counts it when it allocates shares. `gateways`: that share it.
    `hears_others`: else what they take is not known.
    """

    share: float | None = None
    others: Mapping[str, float] = {}
    gateways: int = 1
    hears_others: bool = True

    def combined_rate(self, here: float) -> float:
        """Per second, by all gateways. `here`: by this one."""
        return here + math.fsum(self.others.values())

    def scaled_by(self, factor: float) -> FleetUse:
        """The same of a limit that the storage factor makes smaller."""
        if factor == 1.0:
            return self
        share = None if self.share is None else self.share * factor
        return self._replace(share=share, others={name: rate * factor for name, rate in self.others.items()})


NOT_SHARED: Final = FleetUse()


class LimitLevel(NamedTuple):
    """One number that a rule compares a rate with.

    `configured`: as it is set, before the storage factor and before shares are allocated; `whole`: in force over all
    gateways together; `limit`: in force here, by which this gateway decides; None where there is none. `rate`: compared
    with `limit`, None: not known. `here`: the part of `rate` that passes here, where others' is in it. `wait_s`: until
    the bucket's debt is paid. `unit`: of all numbers but that.
    """

    what: str
    origin: str
    configured: float | None
    limit: float | None
    rate: float | None
    unit: str = "bytes/s"
    wait_s: float = 0.0
    whole: float | None = None
    here: float | None = None
    fleet: FleetUse = NOT_SHARED

    @property
    def utilization(self) -> float:
        return limit_utilization(self.rate, self.limit)

    @property
    def utilization_text(self) -> str:
        return ratio_text(self.utilization, is_limited=self.limit is not None)

    @property
    def whole_limit(self) -> float | None:
        """In force over all gateways together, also where this one is alone."""
        return self.limit if self.whole is None else self.whole

    @property
    def used_here(self) -> float | None:
        """Per second; None: not known."""
        return self.rate if self.here is None else self.here

    @property
    def fleet_used(self) -> float | None:
        """Per second, by all gateways together, as far as it is known; None: not at all."""
        if self.here is not None or (self.rate is None and self.fleet.gateways == 1):
            return self.rate
        return self.fleet.combined_rate(self.rate or 0.0)

    @property
    def fleet_utilization(self) -> float:
        return limit_utilization(self.fleet_used, self.whole_limit)

    @property
    def fleet_utilization_text(self) -> str:
        return ratio_text(self.fleet_utilization, is_limited=self.limit is not None)

    @property
    def headroom(self) -> float | None:
        """By how much the traffic here can grow: up to this gateway's share, and as far as others leave it more."""
        if self.limit is None or self.unit != "bytes/s":
            return None
        own = self.limit - (self.rate or 0.0)
        if self.whole is None or self.fleet.gateways == 1 or not self.fleet.hears_others:
            return own
        return max(own, self.whole - (self.fleet_used or 0.0))

    @property
    def text(self) -> str:
        held = f"; held {self.wait_s:.1f} s" if self.wait_s >= MIN_SHOWN_WAIT_S else ""
        return self._rates_text() + held

    def _rates_text(self) -> str:
        amount = amount_text(self.unit)
        limit = "no limit" if self.limit is None else amount(self.limit)
        if self.rate is None:
            return f"{limit}, nothing known of its rate"
        if self.limit is None:
            return f"{amount(self.rate)}, no limit"
        percent = "" if math.isnan(self.utilization) else f" ({self.utilization:.0%})"
        if self.fleet.gateways == 1 or self.whole is None:
            return f"{amount(self.rate)} of {limit}{percent}"
        over = f"{amount(self.whole)} over {self.fleet.gateways} gateways"
        if not self.fleet.hears_others:
            here = amount(self.used_here or 0.0)
            return f"{over}: {here} used here, others aren't heard, the share of this gateway is now {limit}{percent}"
        used = f"{over}: {amount(self.fleet_used or 0.0)} used"
        by = ", ".join((f"{amount(self.used_here or 0.0)} here", *self._others_text(amount)))
        if self.here is not None:  # the sum is what decides
            return f"{used}{percent} ({by})"
        return f"{used} ({by}), the share of this gateway is now {limit}{percent}"

    def _others_text(self, amount: Callable[[float], str]) -> Iterator[str]:
        """The gateways that take most; those that take nothing are left out."""
        busy = sorted(((rate, name) for name, rate in self.fleet.others.items() if rate > 0), reverse=True)
        for rate, name in busy[:MAX_NAMED]:
            yield f"{amount(rate)} at {one_line(name)}"
        if left := [rate for rate, _ in busy[MAX_NAMED:]]:
            yield f"{amount(math.fsum(left))} at {len(left)} more"


class LimitDescription(NamedTuple):
    """A limit, or another rule that looks at the traffic.

    `name`: the reason in answers, metrics and usage log. `broker` None: all brokers together. `levels`: it binds when
    every one of them is exceeded; none: it doesn't go by a rate. `limits_now`: it does so just now. Only explain knows
    whether that is about this traffic, `since_ms` (Unix time; None: others only), and which enforced rule is `first`:
    the one that limits, or else the one that is nearest to it.
    """

    name: str
    broker: int | None
    levels: tuple[LimitLevel, ...]
    action: Action
    traffic: Traffic
    mode: Mode
    limits_now: bool
    note: str = ""
    first: bool = False
    since_ms: int | None = None

    @property
    def utilization(self) -> float:
        """Of the level that is exceeded last."""
        found = [level.utilization for level in self.levels]
        return math.nan if not found or any(map(math.isnan, found)) else min(found)

    @property
    def utilization_text(self) -> str:
        return ratio_text(self.utilization, is_limited=any(level.limit is not None for level in self.levels))

    @property
    def limit(self) -> float | None:
        """Of the first level."""
        return self.levels[0].limit if self.levels else None

    @property
    def rate(self) -> float | None:
        """Of the first level."""
        return self.levels[0].rate if self.levels else None

    @property
    def headroom(self) -> float | None:
        """Bytes per second by which this traffic can grow before the rule binds; None: not known."""
        if not self.levels or any(level.limit is None or level.unit != "bytes/s" for level in self.levels):
            return None
        return max(level.headroom or 0.0 for level in self.levels)

    @property
    def text(self) -> str:
        if not self.levels:
            return self.note
        levels = " and ".join(f"{level.what}: {level.text}" for level in self.levels)
        return f"{levels}; {self.note}" if self.note else levels


# --- words ------------------------------------------------------------------------------------------------------------


def amount_text(unit: str) -> Callable[[float], str]:
    """Text of a LimitLevel's numbers."""
    return _AMOUNTS.get(unit, format_rate)


def ratio_text(ratio: float, *, is_limited: bool) -> str:
    """Of rate and limit. `is_limited`: there is a limit, also where the ratio is NaN."""
    if math.isinf(ratio):
        return "over a limit of 0"
    if math.isnan(ratio):
        return "not known" if is_limited else "no limit"
    return f"{ratio:.0%}"


def known_broker(node_id: int) -> int | None:
    """None: all brokers, or one that isn't known yet."""
    return None if node_id < 0 else node_id


def place_text(broker: int | None) -> str:
    return "each broker" if broker is None else f"broker {broker}"


def scale_text(scale: float) -> str:
    return "" if scale == 1.0 else f"times the storage factor {scale:.3g}"


def _percent_text(value: float) -> str:
    return f"{value:,.0f} %" if value >= 100 else f"{value:.3g} %"


_AMOUNTS: Final[Mapping[str, Callable[[float], str]]] = {
    "%": _percent_text, "bytes/s": format_rate, "messages/s": format_messages,
}  # fmt: skip
