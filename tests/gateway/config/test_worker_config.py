# gateway/worker_config.py is what the fields of the configuration say.

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest

from gateway.config import parse_settings
from gateway.config.sections.fields import Seconds, Section, setting
from gateway.control.workers.snapshots import worker_settings
from gateway.worker_config import WorkerConfig, WorkerLimits
from tools.worker_config import MODULE, _structs, _type_text, make_module

UPSTREAM = "upstream: {bootstrap_servers: 'b:9092'}\n"


def test_the_module_is_what_the_fields_say() -> None:
    assert MODULE.read_text("utf-8") == make_module(), "run: python -m tools.worker_config"


def test_defaults_are_the_configuration_s() -> None:
    made = worker_settings(parse_settings(UPSTREAM), b"")
    assert {name: getattr(made, name) for name in WorkerConfig.__struct_fields__} == {
        name: getattr(WorkerConfig(), name) for name in WorkerConfig.__struct_fields__
    }


def test_each_worker_gets_its_part_of_what_all_have_together() -> None:
    limits = "max_buffered_bytes: 1GiB, max_connections_per_principal: 10, max_request_bytes: 300MiB"
    settings = parse_settings(f"{UPSTREAM}workers: 4\nlimits: {{{limits}}}\n")
    assert worker_settings(settings, b"").limits == WorkerLimits(
        max_buffered_bytes=300 * 2**20,  # it has to take a whole request
        max_connections_per_principal=2,
        max_request_bytes=300 * 2**20,
    )


class Inner(Section):
    level: Seconds = setting(1.0, "A number.")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Annotated[int, "more"], "int"),
        (Seconds | None, "float | None"),
        (Literal["auto"] | int, 'Literal["auto"] | int'),
        (tuple[Inner, ...], "tuple[WorkerInner, ...]"),
        (dict[str, Inner | None], "dict[str, WorkerInner | None]"),
    ],
)
def test_types_without_what_pydantic_is_told(kind: object, text: str) -> None:
    assert _type_text(kind) == text


class Marked(Section):
    level: Seconds = setting(1.0, "A number.", workers=True)
    other: int = setting(1, "Another one.", unit="things")


class Outer(Section):
    one: Marked = setting(Marked(), "A section.")
    two: Inner = setting(Inner(), "Another one.")


class Several(Section):
    each: dict[str, Marked] = setting({}, "Several by name.")


def test_of_a_section_workers_get_the_keys_that_are_marked() -> None:
    first, second = _structs(Outer, is_whole=False)
    head = "class {}(msgspec.Struct, frozen=True, kw_only=True):\n"
    assert first == head.format("WorkerMarked") + "    level: float = 1.0  # seconds\n"
    assert second == head.format("WorkerOuter") + "    one: WorkerMarked = WorkerMarked()\n"


def test_a_mark_that_would_be_without_effect_is_refused() -> None:
    with pytest.raises(TypeError, match="each: workers can get all of its keys or none"):
        list(_structs(Several, is_whole=False))


def test_what_workers_cannot_be_sent_is_refused() -> None:
    with pytest.raises(TypeError, match="workers can't be sent"):
        _type_text(Path)
