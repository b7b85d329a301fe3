# The parts of the hot path that are compiled by Cython. Everything else about the package is in pyproject.toml.
#
# NAME.pyx is the fast path, which is nothing but C: without it the modules that use it do everything, step by step.
# NAME.py with a NAME.pxd beside it, which has its types in C, is what both ways need: where it isn't compiled it is the
# Python that it is.
#
# All are optional: without a C compiler, or with PURE_PYTHON=1, the package is built without them.
#
#     python setup.py build_ext --inplace --force        what `make env` does, beside the sources
#
# SANITIZE=address,undefined builds them with these sanitizers: what `make sanitize` does, in a folder of its own.

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FAST_PATH = (
    "protocol/produce/produce_fast.pyx",
    "gateway/data/session/fast_path.pyx",
    "gateway/data/relay/shortcut.pyx",
)
EITHER = (
    "protocol/rewriting/stream.py", "protocol/rewriting/metadata_topics.py", "policies/idempotence/duplicates.py",
    "policies/meters/meter.py", "gateway/data/shared/ledger.py", "gateway/data/pending/in_flight.py",
    "gateway/data/sockets/slices.py", "gateway/data/sockets/tls.py",
)  # fmt: skip
DIRECTIVES = {
    "annotation_typing": False,  # types are in the .pxd files; annotations are for mypy
    "language_level": 3,
}
# These modules read bytes of strangers, so they are built as distributions build their servers. "-U" first: some
# compilers define the macro themselves, and complain of a second value. Before GCC 12 and glibc 2.34, 3 means 2.
HARDENING = ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-fstack-protector-strong", "-fstack-clash-protection")
HARDENED_LINK = ("-Wl,-z,relro", "-Wl,-z,now")


class Optional(build_ext):
    """All of them, or none and one line about it."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as why:  # no compiler, no headers, and whatever else a machine may lack
            print(f"the hot path is not compiled, all of it runs as Python: {why}", file=sys.stderr)
            self.extensions = []

    def build_extensions(self) -> None:
        # Without debug information: it is six sevenths of what is compiled, and a third of the time.
        compiling, linking = ["-g0"], list[str]()
        if sanitizers := os.environ.get("SANITIZE"):
            # Not hardened: a sanitizer doesn't see into the checked forms of memcpy and the like.
            compiling = ["-g1", "-O1", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}"]
            linking = [f"-fsanitize={sanitizers}"]
        elif sys.platform == "linux":
            compiling += [flag for flag in HARDENING if self._accepts(self.compiler.compiler_so, flag, "-c")]
            linking = [flag for flag in HARDENED_LINK if self._accepts(self.compiler.linker_so, flag, "-fPIC")]
        for extension in self.extensions:
            extension.extra_compile_args += compiling
            extension.extra_link_args += linking
        super().build_extensions()

    @staticmethod
    def _accepts(command: list[str], *flags: str) -> bool:
        """Whether the compiler knows them: an unknown one would cost the compiled hot path."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "empty.c")
            source.write_text("int nothing;\n")
            done = subprocess.run(
                [*command, "-Werror", *flags, "-o", f"{folder}/empty", source], capture_output=True, check=False
            )
        return done.returncode == 0


def extensions() -> list[Extension]:
    if os.environ.get("PURE_PYTHON"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError as why:
        print(f"the hot path is not compiled, all of it runs as Python: {why}", file=sys.stderr)
        return []
    found = [Extension(source.rpartition(".")[0].replace("/", "."), [source]) for source in (*FAST_PATH, *EITHER)]
    everything = "--force" in sys.argv  # Cython doesn't see that a .pxd file of functions has changed
    return list(
        cythonize(found, build_dir="build/cython", compiler_directives=DIRECTIVES, quiet=True, force=everything)
    )


setup(ext_modules=extensions(), cmdclass={"build_ext": Optional})
