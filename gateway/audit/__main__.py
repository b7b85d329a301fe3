# The same command for `python -m gateway.audit` and for spark-submit, which wants a file to run.

from __future__ import annotations

import sys

from gateway.audit.cli import main
from gateway.cli_support.running import run_program

if __name__ == "__main__":
    sys.exit(run_program(lambda: main(sys.argv[1:])))
