# Values that several sections have: sizes, times, names, and how each is checked. Knows no section.

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from policies.groups import finder as groups
from policies.groups import names as group_names
from policies.units import parse_duration, parse_size

MAX_WORKERS: Final = 256  # more than cores of any machine that a gateway would have for itself


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is needed here, not true or false")
    return value


def _checked(check: Callable[[str], None]) -> AfterValidator:
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


def _check_principal(principal: str) -> None:
    if ":" not in principal:
        raise ValueError(f"{principal!r} is not a valid principal: write User:{principal}")


Size = Annotated[int, BeforeValidator(parse_size), BeforeValidator(reject_bool)]
Seconds = Annotated[float, BeforeValidator(parse_duration), BeforeValidator(reject_bool), Field(allow_inf_nan=False)]
Number = Annotated[float, BeforeValidator(reject_bool), Field(allow_inf_nan=False)]
Port = Annotated[int, BeforeValidator(reject_bool), Field(ge=1, le=65535)]
KafkaName = Annotated[str, _checked(_check_topic)]
Workers = Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WORKERS)]
GroupName = Annotated[str, _checked(group_names.check_group)]
TenantName = Annotated[str, _checked(group_names.check_tenant)]
NamespaceName = Annotated[str, _checked(group_names.check_namespace)]
Pattern = Annotated[str, _checked(groups.check_pattern)]
PluginName = Annotated[str, _checked(_check_plugin)]
Principal = Annotated[str, _checked(_check_principal)]
