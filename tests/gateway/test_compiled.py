# Which form of the hot path runs, and that it is what its sources say.

from __future__ import annotations

import ast
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.compiled import EITHER_FORM, FAST_PATH, HOT_PATH_MODULES, PURE_PYTHON_VARIABLE
from tests.variants import COMPILED, PURE, module

ROOT = Path(__file__).parents[2]
SUFFIXES = (".py", ".pyx", ".pxd")


def said(**variables: str) -> str:
    own = {name: value for name, value in os.environ.items() if name != PURE_PYTHON_VARIABLE}
    command = [sys.executable, "-m", "gateway", "version"]
    done = subprocess.run(
        command, cwd=ROOT, env=own | variables, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip().rpartition(": ")[2]


def test_a_variable_has_it_run_as_python() -> None:
    assert said(**{PURE_PYTHON_VARIABLE: "1"}) == "pure Python"


def test_otherwise_what_was_built_runs() -> None:
    module("protocol.produce.produce_fast", COMPILED)  # fails or skips where it was not
    assert said() == "compiled"


@pytest.mark.parametrize("name", HOT_PATH_MODULES)
def test_what_was_built_is_of_these_sources(name: str) -> None:
    """`make env` builds it again when one of them changes; without that another program would be tested."""
    path = ROOT / name.replace(".", "/")
    library = Path(str(module(name, COMPILED).__file__))
    of_all = ROOT / "protocol/fields.pxd", ROOT / "gateway/data/sockets/calls.pxd"
    own = [path.with_suffix(suffix) for suffix in SUFFIXES if path.with_suffix(suffix).exists()]
    assert own
    for source in (*own, *of_all):
        assert source.stat().st_mtime <= library.stat().st_mtime, f"{source} is newer than {library}: make env"


def test_make_env_builds_it_again_when_one_of_its_sources_changes() -> None:
    command = ["make", "--no-print-directory", "--eval", "shown: ; @echo $(COMPILED_FROM)", "shown"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    paths = [(ROOT / name.replace(".", "/")).with_suffix(suffix) for name in HOT_PATH_MODULES for suffix in SUFFIXES]
    sources = {str(path.relative_to(ROOT)) for path in paths if path.exists()}
    assert sources <= set(done.stdout.split())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only Linux has them so")
def test_what_was_built_is_hardened() -> None:
    """setup.py adds the flags that the compiler takes, and GCC and Clang take all."""
    libraries = [Path(str(module(name, COMPILED).__file__)).read_bytes() for name in HOT_PATH_MODULES]
    for name, library in zip(HOT_PATH_MODULES, libraries, strict=True):
        assert full_relro(library), name
        assert b"__stack_chk_fail\0" in library, name
    assert any(b"__memcpy_chk\0" in library for library in libraries)  # not where the compiler has seen that it fits


def full_relro(elf: bytes) -> bool:
    """Whether all addresses of functions are found at the start, and can't be written afterwards. Of 64 bits, little
    endian.
    """
    (headers,), (size, count) = struct.unpack_from("<Q", elf, 32), struct.unpack_from("<HH", elf, 54)
    segments = {}
    for at in range(headers, headers + size * count, size):
        kind, offset, length = struct.unpack_from("<I4xQ16xQ", elf, at)
        segments[kind] = elf[offset : offset + length]
    dynamic = dict(struct.iter_unpack("<QQ", segments[2]))  # PT_DYNAMIC
    return 0x6474E552 in segments and bool(dynamic.get(30, 0) & 8)  # PT_GNU_RELRO; DT_FLAGS: DF_BIND_NOW


@pytest.mark.parametrize("name", EITHER_FORM)
def test_a_module_that_is_either_has_the_same_names_in_both(name: str) -> None:
    as_python, compiled = vars(module(name, PURE)), vars(module(name, COMPILED))
    public = {name for name in as_python if not name.startswith("_")} - {"annotations"}
    assert public <= compiled.keys()


@pytest.mark.parametrize("name", FAST_PATH)
def test_types_are_told_of_what_is_there(name: str) -> None:
    """Type checkers see the stub alone."""
    tree = ast.parse((ROOT / f"{name.replace('.', '/')}.pyi").read_text("utf-8"))
    made = module(name, COMPILED)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(made, node.name)), node.name
        elif isinstance(node, ast.ClassDef):
            own = getattr(made, node.name)
            told = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            told |= {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}  # type: ignore[union-attr]
            assert told <= set(dir(own)), (node.name, told - set(dir(own)))
