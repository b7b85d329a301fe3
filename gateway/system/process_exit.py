# The end of a process whose threads may still have a librdkafka client.

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def exit_process(code: int) -> NoReturn:
    """End this process at once, when all that it has logged and printed is written; nothing of `atexit` runs.

    A thread that waits for a broker can't be ended, and keeps its client. OpenSSL's own handler takes away what the
    client's connections to brokers use (SIGSEGV in `rdk:broker`), and callbacks of a client meet an interpreter that is
    half gone.
    """
    logging.shutdown()
    with suppress(OSError, ValueError):  # nobody reads it any more
        sys.stdout.flush()
    os._exit(code)
