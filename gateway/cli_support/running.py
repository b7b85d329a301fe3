# How a command line ends: when nobody reads its output any more, when that can't be written, and on Ctrl-C. Knows no
# command.

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Final

INTERRUPTED: Final = 130
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run_program(run: Callable[[], int], *, writes_only: bool = True) -> int:
    """The exit code of a program: that of `run`, 1 where its output can't be written, or 130 when it is interrupted.

    `writes_only`: an error of a disk can only be that of standard output.
    """
    _prepare_output()
    try:
        try:
            code = run()
        except SystemExit as end:  # argparse's, with its own text said
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
    except BrokenPipeError:  # `produce-gateway schema | head`
        _discard_output()
        code = 1
    except OSError as error:
        if error.errno not in _DISK_ERRORS or not writes_only:
            raise
        _discard_output()
        sys.stderr.write(f"standard output: can't be written: {error.strerror}\n")
        code = 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    return code


def _prepare_output() -> None:
    """There is one, and it takes any text: a terminal's encoding may lack letters of a name."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever began the program; print would take the other one
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  until the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """The flush at exit must not fail as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
