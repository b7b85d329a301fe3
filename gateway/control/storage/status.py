# The answer of GET /v1/storage, read from the attributes of the values that say what holds. Sizes are in bytes, limits
# in free bytes, rates in bytes per second, times in seconds.
#
# Beside the service and not among the API's routes: it is answered before the API's framework is loaded.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from gateway.config import Storage
from gateway.control.storage.override import ActiveOverride
from gateway.storage.views import StorageViewState
from policies.storage import FactorState, StorageFactor, VolumeFinding, VolumeForecast, VolumeHeadroom, VolumeWriters
from policies.units import format_time

SHOWN_TOPICS: Final = 1000  # of each volume


# --- what it is read from ---------------------------------------------------------------------------------------------


class VolumeOutlook(NamedTuple):
    """What is to come of one volume. `forecast`, `headroom` None: not known. `writers_of`: what writers are known for,
    the volume alone or all of its broker.
    """

    finding: VolumeFinding
    forecast: VolumeForecast | None
    headroom: VolumeHeadroom | None
    writers: VolumeWriters
    writers_of: Literal["volume", "broker"]


class FollowingFactor(NamedTuple):
    factor: StorageFactor
    in_s: float


class StorageFacts(NamedTuple):
    """`now`: monotonic; `observed_at`: the Unix time of the last valid observation; None: there is none."""

    settings: Storage
    mode: str
    state: StorageViewState
    outlooks: Iterable[VolumeOutlook]
    override: ActiveOverride | None
    now: float
    observed_at: float | None
    next_check_s: float
    problem: str
    throttle_without_effect: bool

    @property
    def source(self) -> str:
        own = self.settings.factor_source
        return f"factor_source {own}" if own else self.settings.source

    @property
    def age_s(self) -> float | None:
        at = self.state.factor.observed_at
        return None if at is None else self.now - at

    @property
    def next(self) -> FollowingFactor | None:
        state = self.state
        return (
            None if state.until is None or state.next is None else FollowingFactor(state.next, state.until - self.now)
        )

    @property
    def brokers(self) -> list[dict[str, Any]]:
        """As ShownBroker."""
        state = self.state
        volumes: dict[int, list[VolumeOutlook]] = defaultdict(list)
        for each in self.outlooks:
            volumes[each.finding.volume.broker_id].append(each)
        offline: dict[int, list[str]] = defaultdict(list)
        for broker_id, log_dir in state.offline:
            offline[broker_id].append(log_dir)
        return [
            {
                "id": each,
                "unknown": state.brokers.get(each, ""),
                "left": None if each in state.brokers else {"forgotten_in_s": state.departed[each] - self.now},
                "volumes": volumes[each],
                "offline": offline[each],
            }
            for each in sorted({**state.brokers, **state.departed})
        ]


# --- how it is shown --------------------------------------------------------------------------------------------------


def _round_time(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _round_whole(value: float | None) -> int | None:
    return None if value is None else round(value)


Seconds = Annotated[float, BeforeValidator(_round_time)]
SecondsOrNone = Annotated[float | None, BeforeValidator(_round_time)]
Whole = Annotated[int, BeforeValidator(_round_whole)]
WholeOrNone = Annotated[int | None, BeforeValidator(_round_whole)]
TimeOrNone = Annotated[
    str | None, BeforeValidator(lambda at_s: None if at_s is None else format_time(int(at_s) * 1000))
]
Free = int | float | None  # as a limit policy gives it


class _Shown(BaseModel):
    model_config = ConfigDict(from_attributes=True, defer_build=True)  # most starts are never asked


class ShownAffected(_Shown):
    by: str = Field(validation_alias="key")
    factor: float = Field(validation_alias="value")
    state: FactorState
    why: str
    topics: Annotated[list[str], BeforeValidator(lambda topics: topics[:SHOWN_TOPICS])]
    topics_count: Annotated[int, BeforeValidator(len)] = Field(validation_alias="topics")


class ShownNext(_Shown):
    in_s: Seconds
    factor: float = Field(validation_alias=AliasPath("factor", "value"))
    state: FactorState = Field(validation_alias=AliasPath("factor", "state"))
    origin: str = Field(validation_alias=AliasPath("factor", "origin"))
    why: str = Field(validation_alias=AliasPath("factor", "why"))


class ShownForecast(_Shown):
    fill_bytes_per_s: Whole = Field(validation_alias=AliasPath("fill_rate", "net_rate"))
    written_bytes_per_s: Whole = Field(validation_alias=AliasPath("fill_rate", "written"))
    deleted_bytes_per_s: Whole = Field(validation_alias=AliasPath("fill_rate", "deleted"))
    soft_limit_in_s: WholeOrNone = Field(validation_alias="soft_s")
    hard_limit_in_s: WholeOrNone = Field(validation_alias="hard_s")


class ShownHeadroom(_Shown):
    bytes: Whole = Field(validation_alias="room")
    needed_bytes: WholeOrNone = Field(validation_alias="needed")
    short: bool = Field(validation_alias="is_short")


class ShownWriter(_Shown):
    name: str
    bytes_per_s: Whole = Field(validation_alias="rate")


class ShownVolume(_Shown):
    name: str = Field(validation_alias=AliasPath("finding", "volume", "name"))
    total_bytes: int = Field(validation_alias=AliasPath("finding", "volume", "total"))
    available_bytes: int = Field(validation_alias=AliasPath("finding", "volume", "available"))
    consumed_bytes: int = Field(validation_alias=AliasPath("finding", "volume", "consumed"))
    soft_limit_bytes: Free = Field(validation_alias=AliasPath("finding", "soft_free"))
    hard_limit_bytes: Free = Field(validation_alias=AliasPath("finding", "hard_free"))
    soft_limit: str = Field(validation_alias=AliasPath("finding", "soft_by"))
    hard_limit: str = Field(validation_alias=AliasPath("finding", "hard_by"))
    factor: float = Field(validation_alias=AliasPath("finding", "factor"))
    forecast: ShownForecast | None
    headroom: ShownHeadroom | None
    writers_of: str
    topics: list[ShownWriter] = Field(validation_alias=AliasPath("writers", "topics"))
    principals: list[ShownWriter] = Field(validation_alias=AliasPath("writers", "principals"))


class ShownLeft(_Shown):
    """A broker that isn't active any more, and counts for so long."""

    forgotten_in_s: Seconds


class ShownBroker(_Shown):
    """`unknown`: the fault of the broker's snapshot, or "". `left` null: it is active. `offline`: log dirs."""

    id: int
    unknown: str
    left: ShownLeft | None
    volumes: list[ShownVolume]
    offline: list[str]


class ShownOverride(_Shown):
    state: str = Field(validation_alias=AliasPath("override", "state"))
    force: bool = Field(validation_alias=AliasPath("override", "force"))
    reason: str = Field(validation_alias=AliasPath("override", "reason"))
    who: str = Field(validation_alias="author")
    at: Annotated[str | None, BeforeValidator(lambda at_ms: format_time(at_ms) if at_ms else None)] = Field(
        validation_alias="at_ms"
    )
    until: Annotated[str, BeforeValidator(format_time)] = Field(validation_alias="until_ms")
    left_s: Seconds


class StorageStatus(_Shown):
    enabled: bool = True
    source: str
    mode: str
    scope: str = Field(validation_alias=AliasPath("settings", "scope"))
    affected: list[ShownAffected] | None = Field(validation_alias=AliasPath("state", "affected"))
    factor: float = Field(validation_alias=AliasPath("state", "factor", "value"))
    state: FactorState = Field(validation_alias=AliasPath("state", "factor", "state"))
    origin: str = Field(validation_alias=AliasPath("state", "factor", "origin"))
    why: str = Field(validation_alias=AliasPath("state", "factor", "why"))
    observed_at: TimeOrNone
    age_s: SecondsOrNone
    next: ShownNext | None
    check_interval_s: float = Field(validation_alias=AliasPath("settings", "check_interval"))
    next_check_s: Seconds
    connected: bool = Field(validation_alias=AliasPath("state", "connected"))
    problem: str
    throttle_without_effect: bool
    override: ShownOverride | None
    brokers: list[ShownBroker]


def show_storage(facts: StorageFacts) -> dict[str, Any]:
    return StorageStatus.model_validate(facts).model_dump()
