# What a setting is, and values that several sections have: sizes, times, names, with their units and checks. Knows no
# section.

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from gateway.listener_names import DEFAULT_LISTENER
from gateway.system.hosts import is_ip_address
from gateway.tls.server_names import is_host_name
from policies.groups import finder as groups
from policies.groups import names as group_names
from policies.units import parse_duration, parse_size

MAX_WORKERS: Final = 256  # more than cores of any machine that a gateway would have for itself
MAX_SIZE: Final = 2**63 - 1  # Kafka's LONG
MAX_GATEWAY_ID: Final = 200  # characters, with room for a port behind it: other gateways drop reports of one with more
# than 255 (gateway/control/fleet/exchange/usage_codec.py)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def setting(
    default: Any,
    meaning: str,
    *,
    live: bool | None = None,
    workers: bool = False,
    unit: str = "",
    **field: Any,
) -> Any:
    """A key of a section, with all that the rest of the gateway has to know of it.

    Args:
        default: ... if the key is required.
        meaning: plain sentences, for the schema and the reference page.
        live: a reload takes a change over. None: only a restart does, or for a section what its own keys say; False: a
            restart, whatever its keys say.
        workers: workers get the value, a section's with all its keys (gateway/worker_config.py, made of these).
        unit: of a number whose type has none.
        field: what else pydantic's Field takes: alias, bounds, repr.
    """
    marks: dict[str, Any] = {"live": live, "workers": workers, "unit": unit}
    return Field(default, description=meaning, json_schema_extra=marks, **field)


class SettingMarks(NamedTuple):
    """What `setting` says of a key; `unit` is that of its type where it has none of its own."""

    live: bool | None
    workers: bool
    unit: str


def marks_of(field: FieldInfo) -> SettingMarks:
    marks: Any = field.json_schema_extra
    return SettingMarks(marks["live"], marks["workers"], marks["unit"] or _unit_in((field.annotation, *field.metadata)))


def _unit_in(parts: Iterable[Any]) -> str:
    """The unit in a type or in what is said about it; of several the last, which is said about another one's type."""
    for part in reversed(list(parts)):
        if isinstance(part, Unit):
            return part.name
        if unit := _unit_in(get_args(part)):
            return unit
    return ""


class Unit(NamedTuple):
    """Of the numbers of a type."""

    name: str


class FieldFaults(ValueError):
    """Several faults at once, from one validator; each names the key that it is about first."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(texts)
        super().__init__("; ".join(self.texts))


def reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is needed here, not true or false")
    return value


def _validate_with(check: Callable[[str], None]) -> AfterValidator:
    """As a validator: `check` raises ValueError for a name that can't be."""

    def validate(name: str) -> str:
        check(name)
        return name

    return AfterValidator(validate)


def _check_topic(name: str) -> None:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
        raise ValueError(f"{name!r} can't be a topic's name: letters, digits, '.', '_' and '-', at most 249")


def _check_plugin(name: str) -> None:
    if name and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ValueError(f"{name!r} can't be the name of an entry point: letters, digits, '.', '_' and '-'")


def _check_listener(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,62}", name) or name == DEFAULT_LISTENER:
        raise ValueError(
            f"{name!r} can't be a listener's name: letters, digits, '-' and '_', not {DEFAULT_LISTENER} alone"
        )


def _check_principal(principal: str) -> None:
    if ":" not in principal:
        raise ValueError(f"{principal!r} is not a valid principal: write User:{principal}")


def _check_percent(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ValueError(
            f"{value!r} is not a valid percentage: write a number from 0 to 100 without a sign, for example 5"
        )
    return value


def _check_node_id(value: object) -> object:
    """One text for each: 1 and 01 would be two keys of a section, of which one broker had the last."""
    if isinstance(value, str) and not re.fullmatch(r"0|-?[1-9][0-9]*", value):
        raise ValueError(f"{value!r} is not a broker's id: write decimal digits without a leading 0, for example 1")
    return reject_bool(value)


def _check_written_path(path: Path) -> Path:
    """Of a file or folder that the gateway makes: what a shell expands would be made as it is written."""
    if re.match(r"~|\$", str(path)):
        raise ValueError(f"{path}: ~ and variables are a shell's: write the whole path")
    return path


def _read_host(host: str) -> str:
    """An IPv6 literal may be written in brackets, as in an address with a port."""
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if host and not is_ip_address(host) and not is_host_name(host.lower().removesuffix(".")):
        raise ValueError(
            f"{host!r} is neither a host name nor an IP address: write it alone, without a port; for example"
            " gateway.example.com"
        )
    return host


def _check_network(network: str) -> None:
    try:
        ipaddress.ip_network(network)
    except ValueError as error:
        raise ValueError(
            f"{network!r} is not a valid network: {error}; for example 10.0.0.0/8, or 192.0.2.7"
        ) from error


Size = Annotated[int, BeforeValidator(parse_size), BeforeValidator(reject_bool), Field(le=MAX_SIZE), Unit("bytes")]
Seconds = Annotated[
    float, BeforeValidator(parse_duration), BeforeValidator(reject_bool), Field(allow_inf_nan=False), Unit("seconds")
]
Count = Annotated[int, BeforeValidator(reject_bool)]  # True would be 1
Milliseconds = Annotated[Count, Unit("milliseconds")]
ByteRate = Annotated[Size, Unit("bytes per second")]
Copies = Annotated[Count, Field(ge=1, le=100), Unit("copies")]
Number = Annotated[float, BeforeValidator(reject_bool), Field(allow_inf_nan=False)]
Percent = Annotated[float, BeforeValidator(_check_percent), Unit("percent")]
Port = Annotated[Count, Field(ge=1, le=65535), Unit("port")]
NodeId = Annotated[int, BeforeValidator(_check_node_id), Field(ge=0, le=2**31 - 1)]
ListenerName = Annotated[str, _validate_with(_check_listener)]
KafkaName = Annotated[str, _validate_with(_check_topic)]
Workers = Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WORKERS)]
GroupName = Annotated[str, _validate_with(group_names.check_group)]
TenantName = Annotated[str, _validate_with(group_names.check_tenant)]
NamespaceName = Annotated[str, _validate_with(group_names.check_namespace)]
Pattern = Annotated[str, _validate_with(groups.check_pattern)]
PluginName = Annotated[str, _validate_with(_check_plugin)]
WrittenPath = Annotated[Path, AfterValidator(_check_written_path)]
Host = Annotated[str, AfterValidator(_read_host)]
Network = Annotated[str, _validate_with(_check_network)]
Principal = Annotated[str, _validate_with(_check_principal)]
