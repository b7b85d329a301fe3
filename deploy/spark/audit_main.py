# What spark-submit runs: the same command as `produce-gateway audit`, with all its options and subcommands. Everything
# else (master, memory, jars) is spark-submit's; docs/audit.md has the command lines.

from __future__ import annotations

import sys

from gateway.audit.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
