# The same command for `python -m gateway.audit` and for spark-submit, which wants a file to run.

from __future__ import annotations

import sys

from gateway.audit.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
