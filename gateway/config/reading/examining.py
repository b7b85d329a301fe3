# Everything that is wrong with a configuration at once, for `check`, `serve` and a reload: what its sections refuse,
# and what other stages find in the part that can be used. Knows no stage.

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from gateway import yaml_text
from gateway.config.reading.loading import ConfigError, ConfigFinding, ConfigSources, parse_all, read_config_file
from gateway.config.settings import Settings


class ConfigExamination(NamedTuple):
    """`settings`: without what the findings are about; None: nothing can be used. `files`: those that it was read
    from.
    """

    source: str
    settings: Settings | None
    findings: list[ConfigFinding]
    lines: list[str]
    files: tuple[Path, ...] = ()
    sources: ConfigSources | None = None

    def locate_finding(self, text: str) -> ConfigFinding:
        """With the place of the key that it begins with."""
        return ConfigFinding(None, text) if self.sources is None else self.sources.locate_finding(text)

    def with_problems(self, problems: list[str]) -> ConfigExamination:
        """With these, of no line."""
        more = [ConfigFinding(None, problem) for problem in problems]
        lines = [f"{self.source}: {problem}" for problem in problems]
        return self._replace(findings=[*self.findings, *more], lines=[*self.lines, *lines])


def examine_config(
    path: Path, *stages: Callable[[Settings], list[str]], environ: Mapping[str, str] | None = None
) -> ConfigExamination:
    """Everything that is wrong with a configuration: what a stage finds in the usable part is told along with the
    rest. "-" is standard input. `environ`: os.environ, if None.
    """
    source = yaml_text.STDIN_NAME if str(path) == "-" else str(path)
    files: tuple[Path, ...] = () if str(path) == "-" else (path,)
    try:
        text = read_config_file(path)
    except ConfigError as error:
        return ConfigExamination(source, None, list(error.findings), error.lines, files)
    refused: ConfigError | None = None
    settings: Settings | None
    try:
        settings, sources, secrets = parse_all(text, source, os.environ if environ is None else environ)
    except ConfigError as error:
        settings, sources, secrets, refused = (
            error.usable_settings,
            error.sources or ConfigSources(text),
            error.secret_files,
            error,
        )
    problems = [problem for stage in stages for problem in stage(settings)] if settings is not None else []
    later = [
        sources.locate_finding(problem)
        for problem in problems
        if refused is None or not refused.explains_fault(problem)
    ]
    later.sort(key=lambda finding: finding.line or 0)
    lines = [*(refused.lines if refused else ()), *ConfigError(source, later).lines]
    return ConfigExamination(
        source, settings, [*(refused.findings if refused else ()), *later], lines, (*files, *secrets), sources
    )
