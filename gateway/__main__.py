# `python -m gateway`, the same as the command `produce-gateway`.

from __future__ import annotations

import os
import sys


def main() -> int:
    from gateway.cli import main as run  # noqa: PLC0415  the command's own time to start is the import's

    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `produce-gateway schema | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        code = 130
    return code


if __name__ == "__main__":
    sys.exit(main())
