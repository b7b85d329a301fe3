# Everything that is wrong with a configuration at once, for `check`, `serve` and a reload: what its sections refuse,
# and what other stages find in the part that can be used. Knows no stage.

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.config.loading import ConfigError, Finding, Sources, parse_all, read
from gateway.config.sections import Settings

STDIN: Final = "standard input"


class Examined(NamedTuple):
    """`settings`: without what the findings are about; None: nothing can be used. `files`: those that it was read
    from.
    """

    source: str
    settings: Settings | None
    findings: list[Finding]
    lines: list[str]
    files: tuple[Path, ...] = ()
    sources: Sources | None = None

    def locate(self, text: str) -> Finding:
        """With the place of the key that it begins with."""
        return Finding(None, text) if self.sources is None else self.sources.locate(text)

    def plus(self, problems: list[str]) -> Examined:
        """With these, of no line."""
        more = [Finding(None, problem) for problem in problems]
        lines = [f"{self.source}: {problem}" for problem in problems]
        return self._replace(findings=[*self.findings, *more], lines=[*self.lines, *lines])


def examine(path: Path, *stages: Callable[[Settings], list[str]], environ: Mapping[str, str] | None = None) -> Examined:
    """Everything that is wrong with a configuration: what a stage finds in the usable part is told along with the
    rest. "-" is standard input. `environ`: os.environ, if None.
    """
    source = STDIN if str(path) == "-" else str(path)
    files: tuple[Path, ...] = () if str(path) == "-" else (path,)
    try:
        text = _read_stdin() if str(path) == "-" else read(path)
    except ConfigError as error:
        return Examined(source, None, list(error.findings), error.lines, files)
    refused: ConfigError | None = None
    settings: Settings | None
    try:
        settings, sources, secrets = parse_all(text, source, os.environ if environ is None else environ)
    except ConfigError as error:
        settings, sources, secrets, refused = error.rest, error.sources or Sources(text), error.files, error
    problems = [problem for stage in stages for problem in stage(settings)] if settings is not None else []
    later = [sources.locate(problem) for problem in problems if refused is None or not refused.explains(problem)]
    later.sort(key=lambda finding: finding.line or 0)
    lines = [*(refused.lines if refused else ()), *ConfigError(source, later).lines]
    return Examined(
        source, settings, [*(refused.findings if refused else ()), *later], lines, (*files, *secrets), sources
    )


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        fault = Finding(None, f"not UTF-8 text: {error.reason} at byte {error.start}")
        raise ConfigError(STDIN, [fault]) from error
