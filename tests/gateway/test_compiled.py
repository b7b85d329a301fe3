# Which form of the hot path runs, and that both are tried.

from __future__ import annotations

import os
import platform
import re
import struct
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gateway.compiled import MODULES, SUFFIX, VARIABLE
from tests.variants import COMPILED, USERS, module

ROOT = Path(__file__).parents[2]


def said(**variables: str) -> str:
    own = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "gateway", "version"]
    done = subprocess.run(
        command, cwd=ROOT, env=own | variables, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip().rpartition(": ")[2]


def test_a_variable_has_it_run_as_python() -> None:
    assert said(**{VARIABLE: "1"}) == "pure Python"


def test_otherwise_what_was_built_runs() -> None:
    module("protocol.usual", COMPILED)  # fails or skips where it was not
    assert said() == "compiled"


@pytest.mark.parametrize("name", MODULES)
def test_what_was_built_is_of_these_sources(name: str) -> None:
    """`make env` builds it again when one of them changes; without that another program would be tested."""
    path = ROOT / name.replace(".", "/")
    library = Path(str(module(name, COMPILED).__file__))
    of_all = ROOT / "protocol/layouts.pxd", ROOT / "gateway/data/calls.pxd"
    for source in (path.with_suffix(".py"), path.with_name(f"{path.name}{SUFFIX}.pxd"), *of_all):
        assert source.stat().st_mtime <= library.stat().st_mtime, f"{source} is newer than {library}: make env"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only Linux has them so")
def test_what_was_built_is_hardened() -> None:
    """setup.py adds the flags that the compiler takes, and GCC and Clang take all."""
    libraries = [Path(str(module(name, COMPILED).__file__)).read_bytes() for name in MODULES]
    for name, library in zip(MODULES, libraries, strict=True):
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


def test_everybody_who_chooses_is_known_to_the_tests() -> None:
    choosing = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for top in ("protocol", "policies", "gateway")
        for path in (ROOT / top).rglob("*.py")
        if re.search(rf"import .*{SUFFIX} as|{SUFFIX} import", path.read_text("utf-8"))
    }
    assert choosing == {user for users in USERS.values() for user, _ in users}
    for name in MODULES:
        assert import_module(name).__file__ == str(ROOT / f"{name.replace('.', '/')}.py")
