# The error of everything here.

from __future__ import annotations


class EmbeddedError(Exception):
    """Kafka can't be had or run here; the text is one line that says what to do."""
