# The parts of the hot path that are compiled by Cython, each from a module of Python: NAME.py becomes NAME_compiled,
# and NAME_compiled.pxd beside it has the types. Everything else about the package is in pyproject.toml.
#
# They are optional: without a C compiler, or with PURE_PYTHON=1, the package is built without them, and the modules run
# as the Python that they are.
#
#     python setup.py build_ext --inplace --force        what `make env` does, beside the sources

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MODULES = (
    "protocol/usual", "protocol/stream", "protocol/metadata_topics", "policies/duplicates", "policies/limits/meter",
    "gateway/data/ledger", "gateway/data/sums", "gateway/data/in_flight", "gateway/data/passing",
    "gateway/data/shortcut", "gateway/data/slices",
)  # fmt: skip
DIRECTIVES = {
    "annotation_typing": False,  # types are in the .pxd files; annotations are for mypy
    "language_level": 3,
}


class Optional(build_ext):
    """All of them, or none and one line about it."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as why:  # no compiler, no headers, and whatever else a machine may lack
            print(f"the hot path is not compiled, it runs as Python: {why}", file=sys.stderr)
            self.extensions = []


def extensions() -> list[Extension]:
    if os.environ.get("PURE_PYTHON"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError as why:
        print(f"the hot path is not compiled, it runs as Python: {why}", file=sys.stderr)
        return []
    # Without debug information: it is six sevenths of what is compiled, and a third of the time.
    found = [
        Extension(f"{module.replace('/', '.')}_compiled", [f"{module}.py"], extra_compile_args=["-g0"])
        for module in MODULES
    ]
    everything = "--force" in sys.argv  # Cython doesn't see that a .pxd file of functions has changed
    return list(
        cythonize(found, build_dir="build/cython", compiler_directives=DIRECTIVES, quiet=True, force=everything)
    )


setup(ext_modules=extensions(), cmdclass={"build_ext": Optional})
