# `python -m gateway`, the same as the command `produce-gateway`.

from __future__ import annotations

import sys


def main() -> int:
    from gateway.cli import main as run  # noqa: PLC0415  the command's own time to start is the import's
    from gateway.cli_support.running import run_program  # noqa: PLC0415

    argv = sys.argv[1:]
    return run_program(lambda: run(argv), writes_only=argv[:1] not in (["serve"], ["demo"], ["volume-agent"]))


if __name__ == "__main__":
    sys.exit(main())
