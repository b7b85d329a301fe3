# The meaning of each key, and the JSON Schema that has it.

from __future__ import annotations

import json

import jsonschema
import pytest

from gateway.cli import main
from gateway.config import Settings
from gateway.config.schema import DESCRIPTIONS, described_schema

SCHEMA = Settings.model_json_schema(by_alias=True)
SECTIONS = {"Settings": SCHEMA, **SCHEMA["$defs"]}


def test_each_key_of_each_section_has_a_description_and_no_other_has() -> None:
    keys = {name: set(section["properties"]) for name, section in SECTIONS.items()}
    assert {name: set(texts) for name, texts in DESCRIPTIONS.items()} == keys


@pytest.mark.parametrize("section", list(DESCRIPTIONS))
def test_descriptions_are_sentences_without_markup(section: str) -> None:
    for key, text in DESCRIPTIONS[section].items():
        assert text.endswith((".", "….")), key
        assert "`" not in text, key


def test_the_schema_that_is_printed_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["properties"]["drain_timeout"]["description"] == DESCRIPTIONS["Settings"]["drain_timeout"]
    assert said["$defs"]["Listener"]["properties"]["port"]["description"] == DESCRIPTIONS["Listener"]["port"]
    jsonschema.Draft202012Validator.check_schema(said)


def test_the_schema_takes_what_is_right_and_refuses_what_is_not() -> None:
    validator = jsonschema.Draft202012Validator(described_schema())
    right = {"upstream": {"bootstrap_servers": "b:9092"}, "listener": {"port": 9092}, "admin": {"open": True}}
    assert list(validator.iter_errors(right)) == []
    for wrong in ({"listener": {"port": 70_000}}, {"listener": {"prot": 9092}}, {"mode": "off"}):
        assert list(validator.iter_errors({**right, **wrong})), wrong
