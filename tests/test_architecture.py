# What pure packages may touch, and what each package says of itself. Who may import whom is import-linter's: the
# contracts are in pyproject.toml.

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = ("protocol", "policies")
# Of the data plane: bytes and numbers in, bytes and verdicts out. Whole folders, and modules of others.
CORES = (
    "gateway/data/session/", "gateway/data/control_requests/", "gateway/data/pending/",
    *(f"gateway/data/shared/{name}.py" for name in (
        "admin_turn", "budget", "client", "complaints", "errors", "latencies", "ledger", "topics", "world",
    )),
    "gateway/data/relay/parked.py", "gateway/data/relay/watch.py",
)  # fmt: skip
SOURCES = sorted(path for top in (*PURE, "gateway") for path in (ROOT / top).rglob("*.py"))

# Standard library modules that do I/O or read a clock: none of them in a pure package.
IMPURE = {
    "asyncio",
    "datetime",
    "io",
    "logging",
    "os",
    "pathlib",
    "select",
    "socket",
    "subprocess",
    "threading",
    "time",
}


def imports(path: Path) -> set[str]:
    """Modules that this file imports at run time (those under TYPE_CHECKING are no dependency)."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def under(folder: str | tuple[str, ...]) -> list[Path]:
    return [path for path in SOURCES if path.relative_to(ROOT).as_posix().startswith(folder)]


def ids(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.mark.parametrize("path", under("protocol/"), ids=ids(under("protocol/")))
def test_protocol_is_pure_and_knows_no_policy(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & IMPURE
    assert tops <= sys.stdlib_module_names | {"protocol"}


@pytest.mark.parametrize("path", under("policies/"), ids=ids(under("policies/")))
def test_policies_are_pure_and_know_no_protocol(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & IMPURE
    assert tops <= sys.stdlib_module_names | {"policies", "re2"}  # regular expressions in linear time: pure as well


@pytest.mark.parametrize("path", under(PURE), ids=ids(under(PURE)))
def test_pure_packages_print_nothing(path: Path) -> None:
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not {"print", "open", "input"} & calls


@pytest.mark.parametrize("path", under(CORES), ids=ids(under(CORES)))
def test_the_cores_of_the_data_plane_do_no_io(path: Path) -> None:
    tops = {module.split(".")[0] for module in imports(path)}
    assert not tops & (IMPURE | {"trio"})


MAX_ATTRIBUTES = 15  # of a class of the data plane; one with more has several purposes, and is several classes


@pytest.mark.parametrize("path", under("gateway/data/"), ids=ids(under("gateway/data/")))
def test_no_class_of_the_data_plane_has_many_attributes(path: Path) -> None:
    classes = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ClassDef)]
    assert [each.name for each in classes if len(attributes(each)) > MAX_ATTRIBUTES] == []


def attributes(node: ast.ClassDef) -> set[str]:
    """What a class declares, or its methods set on `self`."""
    declared = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    stored = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    return {each.id for each in declared if isinstance(each, ast.Name)} | {
        each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"
    }


@pytest.mark.parametrize("name", ["usage_codec", "reports", "peers"])
def test_the_messages_between_gateways_are_made_without_io(name: str) -> None:
    names = imports(ROOT / "gateway" / "control" / "fleet" / "exchange" / f"{name}.py")
    assert not {module.split(".")[0] for module in names} & (IMPURE | {"trio", "confluent_kafka"})
    assert not [
        module
        for module in names
        if module.startswith("gateway.") and not module.startswith("gateway.control.fleet.exchange.")
    ]


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_only_the_demo_imports_kafka_python(path: Path) -> None:
    if "gateway/demo/" not in path.as_posix():
        assert "kafka" not in {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_only_the_audit_imports_pyspark(path: Path) -> None:
    if "gateway/audit/" not in path.as_posix():
        assert not [name for name in imports(path) if name.split(".")[0] in {"pyspark", "py4j"}]


EXTRAS = ("gateway/audit/", "gateway/demo/", "gateway/embedded/", "gateway/strimzi/", "policies/whatif/")


def test_a_gateway_runs_without_its_extras() -> None:
    text = (ROOT / "extras" / "pyproject.toml").read_text()
    assert all(f'"{folder.rstrip("/").replace("/", ".")}*"' in text for folder in EXTRAS)
    modules = tuple(folder.rstrip("/").replace("/", ".") for folder in EXTRAS)
    found = {path: name for path in SOURCES for name in imports(path) if name.startswith(modules)}
    assert not found.keys() - set(under(EXTRAS)), found


@pytest.mark.parametrize("path", [p for p in under(PURE) if p.name != "__init__.py"], ids=str)
def test_every_pure_module_has_its_tests(path: Path) -> None:
    assert (ROOT / "tests" / path.parent.relative_to(ROOT) / f"test_{path.name}").exists()


@pytest.mark.parametrize("path", SOURCES, ids=ids(SOURCES))
def test_every_module_opens_with_what_it_is(path: Path) -> None:
    text = path.read_text()
    if path.name == "__init__.py" and not text.strip():
        return
    assert text.startswith(("#", '"""'))


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=str)
def test_the_map_of_a_package_names_each_of_its_modules(path: Path) -> None:
    folder = path.parent
    named = {name.removesuffix(".py") for name in re.findall(r"(?<![/\w])(\w+\.py|\w+(?=/))", path.read_text())}
    there = {each.stem for each in folder.glob("*.py")} | {each.parent.name for each in folder.glob("*/__init__.py")}
    assert there - {"__init__"} <= named, f"not on the map: {sorted(there - named)}"
