# What each setting says of itself, and the JSON Schema that has it.

from __future__ import annotations

import json

import jsonschema
import pytest
from pydantic.fields import FieldInfo

from gateway.cli import main
from gateway.config.schema import described_schema
from gateway.config.sections.fields import SettingMarks, marks_of
from tests.gateway.config.every_setting import every_setting, is_number

EVERY = dict(every_setting())


@pytest.mark.parametrize("path", EVERY, ids=".".join)
def test_each_setting_has_a_meaning_in_sentences_without_markup_and_each_number_a_unit(path: tuple[str, ...]) -> None:
    field = EVERY[path]
    assert field.description, "a setting is made by `setting` (gateway/config/sections/fields.py)"
    assert field.description.endswith((".", "…."))
    assert "`" not in field.description
    if is_number(field.annotation):
        assert marks_of(field).unit


def unit_of(*path: str) -> str:
    return marks_of(EVERY[path]).unit


def test_a_unit_is_the_key_s_own_or_that_of_its_type() -> None:
    assert unit_of("limits", "frame_timeout") == "seconds"
    assert unit_of("limits", "max_request_bytes") == "bytes"
    assert unit_of("limits", "min_rate") == "bytes per second"
    assert unit_of("storage", "min.available.bytes") == "bytes"
    assert unit_of("mode") == ""


def test_the_schema_that_is_printed_has_the_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == described_schema()
    for name, key in (("drain_timeout", "drain_timeout"), ("listener.port", "Listener.port")):
        field: FieldInfo = EVERY[tuple(name.split("."))]
        section, _, last = key.rpartition(".")
        properties = (said["$defs"][section] if section else said)["properties"]
        assert properties[last]["description"] == field.description
    jsonschema.Draft202012Validator.check_schema(said)


def test_the_schema_has_no_words_of_the_gateway_s_own() -> None:
    schema = described_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, field in section.get("properties", {}).items():
            assert not field.keys() & set(SettingMarks._fields), key


def test_the_schema_takes_what_is_right_and_refuses_what_is_not() -> None:
    validator = jsonschema.Draft202012Validator(described_schema())
    right = {"upstream": {"bootstrap_servers": "b:9092"}, "listener": {"port": 9092}, "admin": {"open": True}}
    assert list(validator.iter_errors(right)) == []
    for wrong in ({"listener": {"port": 70_000}}, {"listener": {"prot": 9092}}, {"mode": "off"}):
        assert list(validator.iter_errors({**right, **wrong})), wrong
