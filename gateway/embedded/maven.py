# Jars of a Maven repository, each taken only with its pinned SHA-256: from Maven Central, or from the repository that
# PRODUCE_GATEWAY_MAVEN names (https://user:password@host/path is possible). Proxies and CAs are those of the usual
# variables: HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE. Knows nothing of Kafka and Spark, whose jars these are.

from __future__ import annotations

import hashlib
import os
import ssl
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import httpx

MAVEN_ENV = "PRODUCE_GATEWAY_MAVEN"
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"

_STALL_S = 60.0  # without a byte
_JAR_S = 900.0
_CHUNK_BYTES = 1 << 16


class MavenError(Exception):
    """A jar that can't be had; one line, which names it."""


class UnexpectedJar(MavenError):
    """The repository has another jar than the pinned one."""


class MavenJar(NamedTuple):
    """One jar, by its coordinate in a Maven repository. `sha256`: in hex."""

    group: str
    name: str
    version: str
    sha256: str

    @classmethod
    def parse(cls, line: str) -> MavenJar:
        """Of `SHA256  GROUP:NAME:VERSION`."""
        sha256, coordinate = line.split()
        group, name, version = coordinate.split(":")
        return cls(group, name, version, sha256)

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Its place below a repository's address."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"

    def find_fault(self, folder: Path) -> str | None:
        """The fault of its file in `folder`, in one phrase; None: it is the pinned one."""
        try:
            with open(folder / self.file_name, "rb") as jar:
                got = hashlib.file_digest(jar, "sha256").hexdigest()
        except OSError as error:
            return f"{self.file_name}: {error.strerror}"
        if got != self.sha256:
            return f"{self.file_name} has SHA-256 {got[:16]}…, expected {self.sha256[:16]}…"
        return None


def find_fault(folder: Path, jars: Sequence[MavenJar]) -> str | None:
    """The fault of the jars in `folder`, in one phrase; None if they are exactly these."""
    wanted, present = {jar.file_name for jar in jars}, {path.name for path in folder.glob("*.jar")}
    if missing := sorted(wanted - present):
        return f"{len(missing)} of {len(wanted)} jars are missing, {missing[0]} among them"
    if strange := sorted(present - wanted):
        return f"{strange[0]} does not belong there"
    return next((fault for jar in jars if (fault := jar.find_fault(folder))), None)


def fetch_jars(jars: Sequence[MavenJar], folder: Path, report: Callable[[int], None] = lambda _: None) -> None:
    """Fetch the jars that `folder` lacks. `report` gets the number of those that are there, after each.

    Raises:
        UnexpectedJar: a jar has another SHA-256; it is not kept.
        MavenError: the repository doesn't answer, or lacks a jar.
        OSError: a jar can't be written.
    """
    lacking = [jar for jar in jars if jar.find_fault(folder) is not None]
    if not lacking:
        return
    # Not above: `make env` runs a module of this package before there is httpx.
    import httpx  # noqa: PLC0415

    repository = (os.environ.get(MAVEN_ENV) or MAVEN_CENTRAL).rstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    # With the system's CAs instead of httpx's own.
    with httpx.Client(follow_redirects=True, timeout=_STALL_S, verify=ssl.create_default_context()) as client:
        for number, jar in enumerate(lacking, len(jars) - len(lacking) + 1):
            try:
                _fetch_jar(client, f"{repository}/{jar.path}", folder / jar.file_name)
            except (httpx.HTTPError, httpx.InvalidURL, MavenError) as error:
                raise MavenError(f"{jar.group}:{jar.name}:{jar.version}: {error or type(error).__name__}") from None
            if (fault := jar.find_fault(folder)) is not None:
                (folder / jar.file_name).unlink()
                raise UnexpectedJar(fault)
            report(number)


def _fetch_jar(client: httpx.Client, url: str, path: Path) -> None:
    until = time.monotonic() + _JAR_S
    part = path.with_suffix(f".{os.getpid()}")
    try:
        with client.stream("GET", url) as response, open(part, "wb") as file:
            if response.status_code != HTTPStatus.OK:
                raise MavenError(f"{response.url.host} answers {response.status_code} {response.reason_phrase}")
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                file.write(chunk)
                if time.monotonic() > until:
                    raise MavenError(f"{response.url.host} sends too slowly")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
