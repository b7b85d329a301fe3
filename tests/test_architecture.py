# What pure packages may touch, and what each package says of itself. Who may import whom is import-linter's: the
# contracts are in pyproject.toml.

from __future__ import annotations

import ast
import errno
import re
import socket
import sys
from collections.abc import Callable, Iterable
from functools import cache
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
PURE_MODULES = sys.stdlib_module_names - IMPURE


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules that this file imports at run time (those under TYPE_CHECKING are no dependency)."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        waiting.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def top_packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def under(folder: str | tuple[str, ...]) -> list[Path]:
    return [path for path in SOURCES if path.relative_to(ROOT).as_posix().startswith(folder)]


def assert_all(holds: Callable[[Path], bool], paths: Iterable[Path]) -> None:
    assert [path.relative_to(ROOT).as_posix() for path in sorted(paths) if not holds(path)] == []


def test_protocol_is_pure_and_knows_no_policy() -> None:
    assert_all(lambda path: top_packages(path) <= PURE_MODULES | {"protocol"}, under("protocol/"))


def test_policies_are_pure_and_know_no_protocol() -> None:
    # Regular expressions in linear time are pure as well.
    assert_all(lambda path: top_packages(path) <= PURE_MODULES | {"policies", "re2"}, under("policies/"))


def test_pure_packages_print_nothing() -> None:
    def prints(path: Path) -> bool:
        calls = (node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
        return any(isinstance(func, ast.Name) and func.id in ("print", "open", "input") for func in calls)

    assert_all(lambda path: not prints(path), under(PURE))


def test_the_cores_of_the_data_plane_do_no_io() -> None:
    assert_all(lambda path: not top_packages(path) & (IMPURE | {"trio"}), under(CORES))


MAX_ATTRIBUTES = 15  # of a class of the data plane; one with more has several purposes, and is several classes


def test_no_class_of_the_data_plane_has_many_attributes() -> None:
    classes = [
        each for path in under("gateway/data/") for each in ast.walk(tree(path)) if isinstance(each, ast.ClassDef)
    ]
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


def test_only_the_demo_imports_kafka_python() -> None:
    assert_all(lambda path: "kafka" not in top_packages(path), set(SOURCES) - set(under("gateway/demo/")))


def test_only_the_audit_imports_pyspark() -> None:
    assert_all(lambda path: not top_packages(path) & {"pyspark", "py4j"}, set(SOURCES) - set(under("gateway/audit/")))


EXTRAS = ("gateway/audit/", "gateway/demo/", "gateway/embedded/", "gateway/strimzi/", "policies/whatif/")


def test_a_gateway_runs_without_its_extras() -> None:
    text = (ROOT / "extras" / "pyproject.toml").read_text()
    assert all(f'"{folder.rstrip("/").replace("/", ".")}*"' in text for folder in EXTRAS)
    modules = tuple(folder.rstrip("/").replace("/", ".") for folder in EXTRAS)
    found = {path: name for path in SOURCES for name in imports(path) if name.startswith(modules)}
    assert not found.keys() - set(under(EXTRAS)), found


def test_every_pure_module_has_its_tests() -> None:
    def has_tests(path: Path) -> bool:
        return (ROOT / "tests" / path.parent.relative_to(ROOT) / f"test_{path.name}").exists()

    assert_all(has_tests, (path for path in under(PURE) if path.name != "__init__.py"))


def test_every_module_opens_with_what_it_is() -> None:
    def opens_so(path: Path) -> bool:
        text = path.read_text()
        return text.startswith(("#", '"""')) or (path.name == "__init__.py" and not text.strip())

    assert_all(opens_so, SOURCES)


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=str)
def test_the_map_of_a_package_names_each_of_its_modules(path: Path) -> None:
    folder = path.parent
    named = {name.removesuffix(".py") for name in re.findall(r"(?<![/\w])(\w+\.py|\w+(?=/))", path.read_text())}
    there = {each.stem for each in folder.glob("*.py")} | {each.parent.name for each in folder.glob("*/__init__.py")}
    assert there - {"__init__"} <= named, f"not on the map: {sorted(there - named)}"


COMMENT = re.compile(r'^\s*r?"""(?:.|\n)*?"""|#.*', re.MULTILINE)  # or a docstring
COMPILED = sorted(path for top in (*PURE, "gateway") for path in (ROOT / top).rglob("*.p[xy][dx]"))
# Of operating systems, a deployment's environment, and Java.
FOREIGN_NAMES = {
    *vars(errno), *vars(socket), "HTTPS_PROXY", "IOV_MAX", "NO_PROXY", "PIPE_BUF", "PR_SET_PDEATHSIG", "SSL_CERT_FILE",
    "TCP_WINDOW_CLAMP", "NAME_FILE", "PRODUCE_GATEWAY_ADMIN__PORT", "UTF_8",
}  # fmt: skip


def test_constants_that_comments_name_exist() -> None:
    code = " ".join(COMMENT.sub("", path.read_text()) for path in (*SOURCES, *COMPILED))
    known = FOREIGN_NAMES | set(re.findall(r"\w+", code))
    pattern = re.compile(r"\b_?[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]\b")
    for path in SOURCES:
        named = set(pattern.findall("\n".join(COMMENT.findall(path.read_text()))))
        assert named <= known, f"{path}: {sorted(named - known)}"


def test_constants_of_modules_that_comments_name_exist() -> None:
    """`module.NAME`: that module has it."""
    names: dict[str, set[str]] = {}
    for path in (*SOURCES, *COMPILED):
        names.setdefault(path.stem, set()).update(re.findall(r"\w+", COMMENT.sub("", path.read_text())))
    pattern = re.compile(r"(?<![\w.])([a-z]\w*)\.(_?[A-Z][A-Z0-9_]+)\b")
    gone = [
        (str(path.relative_to(ROOT)), f"{module}.{name}")
        for path in SOURCES
        for module, name in pattern.findall("\n".join(COMMENT.findall(path.read_text())))
        if module in names and name not in names[module]
    ]
    assert not gone


def test_modules_that_comments_name_exist() -> None:
    known = {path.as_posix() for path in (*SOURCES, *(ROOT / "tests").rglob("*.py"))}
    for path in SOURCES:
        named = set(re.findall(r"(?<![\w.])\w[\w/]*/\w+\.py\b", "\n".join(COMMENT.findall(path.read_text()))))
        gone = {name for name in named if not any(each.endswith(f"/{name}") for each in known)}
        assert not gone - {"producer/sender.py"}, f"{path}: {sorted(gone)}"  # kafka-python's
