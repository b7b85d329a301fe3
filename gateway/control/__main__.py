# `python -m gateway.control --fd N`: the control process, started by the parent only. N is its socket to the parent.

from __future__ import annotations

import argparse
import logging
import sys

import trio

from gateway.control import app
from gateway.supervisor import LOG_FORMAT, ParentGone, attach


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.control", description="started by produce-gateway serve")
    parser.add_argument("--fd", type=int, required=True)
    link = attach(parser.parse_args().fd)
    logging.basicConfig(stream=sys.stderr, format=LOG_FORMAT, level=logging.INFO)
    code = 0
    try:
        trio.run(app.run, link)
    except* ParentGone:
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
