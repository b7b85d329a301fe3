# The one reader of YAML: what it refuses, and the lines of what it has read.

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gateway.yaml_text import MAX_ADDED, MAX_ADDED_EACH, YamlError, YamlLines, load_all_yaml, load_yaml, read_input
from tests.effort import lines_run

TEXT = """\
upstream: {bootstrap_servers: b}
topics:
  clicks: {threshold: 1}
quotas:
  - {user: alice}
  - user: bob
    rate: 1
1: one
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: {c: 1, c: 2}", "x.yaml:2: c is there twice"),
        ("a: 1\nb: {1: 1,\n 1.0: 2}", "x.yaml:3: 1.0 is there twice: it is the same as 1"),
        ("a: &a {p: 1, q: 2}\nb: {<<: *a, 1: 1, 1.0: 2}", "x.yaml:2: 1.0 is there twice: it is the same as 1"),
        ("null: 1\n~: 2", "x.yaml:2: ~ is there twice: it is the same as null"),
        ("a: [", "x.yaml:1: expected the node content"),
        ("a: 1\n\tb: 2", "x.yaml:2: a tab: YAML is indented by spaces"),
        ("a: \0", "x.yaml: not valid YAML: unacceptable character"),
        ("{a: &x 1, b: *y}", "x.yaml:1: YAML takes what begins with * for an alias"),
        ("a: !!python/name:os.system x", "x.yaml:1: YAML takes what begins with ! for a tag"),
        ("a: 1\nb: 2026-13-45", "x.yaml:2: YAML takes this for a value of the type timestamp"),
        ("a: !!int x", "x.yaml:1: YAML takes this for a number whose value depends"),
        ("a: !!bool x", "x.yaml:1: YAML takes this for a value of the type bool"),
        ("a: !!float x", "x.yaml:1: YAML takes this for a value of the type float"),
        ("a: !!timestamp x", "x.yaml:1: YAML takes this for a value of the type timestamp"),
        ("a: 1" + "0" * 5000, "x.yaml:1: YAML takes this for a value of the type int"),
        ("a: 1\nb: &b [1, *b]", "x.yaml:2: an alias (*name) refers to a node that contains it"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(text: str, told: str) -> None:
    with pytest.raises(YamlError) as error:
        load_yaml(text, "x.yaml")
    assert str(error.value).startswith(told)
    assert "\n" not in str(error.value)


def test_what_is_merged_is_overridden() -> None:
    text = "a: &a {p: 1, q: 2}\nb: {<<: *a, p: 3, q: 4}\nc: {<<: [*a], 1: 1}"
    assert load_yaml(text, "x.yaml") == {"a": {"p": 1, "q": 2}, "b": {"p": 3, "q": 4}, "c": {"p": 1, "q": 2, 1: 1}}


@pytest.mark.parametrize("key", ["p", "1"])
def test_what_is_merged_may_be_deeper_than_where_it_is_merged(key: str) -> None:
    text = f"m: &m {{{key}: 0, q: 2}}\nx: {{y: {{z: &a {{<<: *m, {key}: 1}}}}}}\nb: {{<<: *a, r: 1}}"
    loaded = load_yaml(text, "x.yaml")
    assert (loaded["x"]["y"]["z"], loaded["b"]) == (
        load_yaml(f"{{{key}: 1, q: 2}}", ""),
        {**loaded["x"]["y"]["z"], "r": 1},
    )


@pytest.mark.parametrize("number", ["010", "-010", "0x10", "0b11", "1_000", "1:30", "1:30.5"])
def test_a_number_that_versions_of_yaml_read_differently_is_refused(number: str) -> None:
    with pytest.raises(YamlError, match=r"x\.yaml:2: YAML takes this for a number whose value depends"):
        load_yaml(f"a: 1\nb: {number}", "x.yaml")
    with pytest.raises(YamlError, match=r"x\.yaml:2"):
        load_yaml(f"a: 1\n{number}: 1", "x.yaml")
    assert load_yaml(f"a: '{number}'", "x.yaml") == {"a": number}


def test_files_of_kubernetes_have_octal_modes() -> None:
    assert load_all_yaml("mode: 0644", "x.yaml") == [{"mode": 0o644}]


@pytest.mark.parametrize("begin", ["!", "*", "!!", "!a!", "@", "%", "!!int ", "!!binary é"])
def test_a_refusal_repeats_no_secret(begin: str) -> None:
    with pytest.raises(YamlError) as error:
        load_yaml(f"sasl.password: {begin}hunter2", "x.yaml")
    assert "hunter2" not in str(error.value)
    with pytest.raises(YamlError) as error:
        load_yaml("a: &hunter2 1\nb: &hunter2 2\nc: *hunter2x", "x.yaml")
    assert "hunter2" not in str(error.value)


def test_standard_input_is_utf_8_whatever_the_locale_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("user: zoë".encode()), "latin-1"))
    assert read_input("-") == "user: zoë"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"user: zo\xeb")))
    with pytest.raises(YamlError, match=r"^standard input: not UTF-8 text: .* at byte 8$"):
        read_input("-")


def test_merged_keys_are_not_given_twice() -> None:
    assert load_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}", "x.yaml")["b"] == {"x": 3, "y": 2}


def bomb(levels: int, reference: str = "[{}]") -> str:
    """Each level has nine of the one before it."""
    lines = ["- &l0 {x: 1}"]
    for level in range(1, levels + 1):
        lines.append(f"- &l{level} " + reference.format(", ".join([f"*l{level - 1}"] * 9)))
    return "\n".join(lines)


# Of the second, PyYAML itself copies what is merged; of the first, whoever validates or prints the data does.
@pytest.mark.parametrize("reference", ["[{}]", "{{<<: [{}]}}"])
@pytest.mark.parametrize("read", [load_yaml, load_all_yaml])
def test_aliases_of_aliases_are_refused_before_somebody_walks_through_them(
    reference: str, read: Callable[[str, str], Any]
) -> None:
    def refused(levels: int) -> None:
        with pytest.raises(YamlError) as error:
            read("# a comment\n" + bomb(levels, reference), "x.yaml")
        assert re.match(r"x\.yaml:[78]: with its aliases \(\*name\) this has \d{3},\d{3} keys", str(error.value))
        assert str(error.value).endswith("; write values out instead of aliases of aliases")

    assert lines_run(refused, 60) < 10 * lines_run(refused, 6)


def test_aliases_may_make_a_text_many_times_as_large() -> None:
    users = 3 * MAX_ADDED // 10
    text = "base: &base {producer_byte_rate: 1, consumer_byte_rate: 2}\nquotas:\n"
    data = load_yaml(text + "".join(f"- {{user: u{number}, values: *base}}\n" for number in range(users)), "x.yaml")
    assert data["quotas"][-1]["values"] == {"producer_byte_rate": 1, "consumer_byte_rate": 2}
    assert users * 5 > MAX_ADDED
    assert MAX_ADDED_EACH >= 5


def test_each_document_of_a_text_is_read() -> None:
    assert load_all_yaml("a: 1\n---\nb: 2\n", "x.yaml") == [{"a": 1}, {"b": 2}]


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(YamlError, match=r"^x\.yaml"):
        load_yaml("[" * 5000, "x.yaml")


def test_there_is_libyaml_here() -> None:
    assert yaml.__with_libyaml__


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("topics",), 2),
        (("topics", "clicks", "threshold"), 3),
        (("topics", "views"), 2),  # as far as the text goes
        (("quotas", 0), 5),
        (("quotas", 1, "rate"), 7),
        (("quotas", 2), 4),
        ((1,), 8),
    ],
)
def test_the_line_of_a_path_is_that_of_its_deepest_part(path: tuple[str | int, ...], line: int) -> None:
    assert YamlLines(TEXT).find_line(path) == line


def test_keys_are_those_of_a_mapping_and_the_indices_of_a_list() -> None:
    lines = YamlLines(TEXT)
    assert lines.find_keys(()) == ["upstream", "topics", "quotas", "1"]
    assert lines.find_keys(("quotas", 1)) == ["user", "rate"]
    assert lines.find_keys(("quotas",)) == ["0", "1"]
    assert lines.find_keys(("quotas", "1")) == ["user", "rate"]
    assert lines.find_keys(("nothing",)) == lines.find_keys(("quotas", "x")) == lines.find_keys(("quotas", 7)) == []


def test_a_text_that_is_not_yaml_has_its_first_line_only() -> None:
    assert YamlLines("{").find_line(("a",)) == 1
