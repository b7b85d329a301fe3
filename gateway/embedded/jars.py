# Java, and Kafka's jars: those that kafka.sha256 lists, fetched into a per-user cache by one process at a time.

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.resources
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from gateway.embedded import maven
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.maven import MavenJar

KAFKA_VERSION = "4.3.1"
MIN_JAVA = 17  # Kafka 4's brokers need it
CACHE_ENV = "PRODUCE_GATEWAY_CACHE"

# 64 MB is the floor for one 100 MB/s producer; the rest is room for consumers, transactions and many connections.
HEAP_MB = 128
# One collector thread and only the first compiler: a broker is up in 1.6 s instead of 2.2, in 200 MB instead of 220.
JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)


@functools.cache
def find_java_path() -> str:
    """Path of a Java that can run Kafka: JAVA_HOME's, else the first on PATH.

    Raises:
        EmbeddedError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    wanted = f"Kafka and Spark need Java {MIN_JAVA} or newer"
    if found is None:
        where = f"JAVA_HOME={home} has none" if home else "none is on PATH"
        raise EmbeddedError(
            f"{wanted}, but {where}: install a JDK {MIN_JAVA} (Debian, Ubuntu: openjdk-17-jdk-headless)"
        )
    output = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if version is None:
        raise EmbeddedError(f"{wanted}, but {found} did not say its version: {output.strip()[:200]!r}")
    major = int(version[2] or 0) if version[1] == "1" else int(version[1])  # Java 8 calls itself 1.8
    if major < MIN_JAVA:
        raise EmbeddedError(f"{wanted}, but {found} is Java {major}: put a newer one first on PATH or set JAVA_HOME")
    return found


def cache_dir() -> Path:
    """The folder of downloads: $PRODUCE_GATEWAY_CACHE, else produce-gateway in the user's cache directory."""
    own = os.environ.get(CACHE_ENV)
    if own:
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "produce-gateway"


def read_own_file(name: str) -> str:
    return importlib.resources.files("gateway.embedded").joinpath(name).read_text("utf-8")


@functools.cache
def kafka_jars() -> tuple[MavenJar, ...]:
    """The jars of `KAFKA_VERSION`, as kafka.sha256 lists them."""
    lines = read_own_file("kafka.sha256").splitlines()
    return tuple(MavenJar.parse(line) for line in lines if not line.startswith("#"))


def fetch_kafka(progress: IO[str] | None = None) -> Path:
    """The folder with Kafka's jars; downloads them (44 MB) where the cache doesn't have them.

    Args:
        progress: the stream for the progress line; standard error if not given.

    Raises:
        EmbeddedError: no network, or a jar is not the one that is expected.
    """
    # The folder is named after the sums, so another version of the list never meets these jars.
    listed = "".join(sorted((f"{jar.sha256}  {jar.file_name}\n" for jar in kafka_jars()), key=lambda line: line[64:]))
    name = f"kafka-{KAFKA_VERSION}-{hashlib.sha256(listed.encode()).hexdigest()[:8]}"
    cache = cache_dir()
    libs = cache / name / "libs"
    out = progress or sys.stderr
    # The folder came by a rename: no process has to wait for others that only look, too.
    if maven.find_fault(libs, kafka_jars()) is None:
        return libs
    with _lock_cache(cache / f"{name}.lock", out):
        if libs.is_dir():
            problem = maven.find_fault(libs, kafka_jars())
            if problem is None:
                return libs
            print(f"The cached Apache Kafka is damaged ({problem}); fetching it again.", file=out)
            shutil.rmtree(libs)
        fresh = cache / name / "fetching"  # the jars that an interrupted run left in it are used
        _fetch_jars(fresh, out)
        fresh.rename(libs)
    return libs


@contextlib.contextmanager
def _lock_cache(path: Path, out: IO[str]) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    except OSError as error:
        raise EmbeddedError(
            f"no cache at {path.parent} ({error.strerror}): set {CACHE_ENV} to another folder"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another process is fetching Apache Kafka; waiting for it.", file=out, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file ends the lock, and so does the end of the process


def _fetch_jars(folder: Path, out: IO[str]) -> None:
    head, total = f"Fetching Apache Kafka {KAFKA_VERSION}", len(kafka_jars())
    started = time.monotonic()
    live = out.isatty()

    def report(done: int) -> None:
        if live:
            took = time.monotonic() - started
            print(f"\r{head}: {done} of {total} jars, {took:.0f} s ", end="", file=out, flush=True)

    if not live:
        print(f"{head}: {total} jars, 44 MB …", file=out, flush=True)
    try:
        maven.fetch_jars(kafka_jars(), folder, report)
    except maven.UnexpectedJar as error:
        raise EmbeddedError(f"Apache Kafka {KAFKA_VERSION} was downloaded, but {error}: not used") from None
    except maven.MavenError as error:
        raise EmbeddedError(
            f"could not fetch Apache Kafka {KAFKA_VERSION} ({error}): is there a network? "
            f"{maven.MAVEN_ENV}=URL names another Maven repository"
        ) from None
    except OSError as error:
        raise EmbeddedError(f"{folder} can't keep Apache Kafka: {error.strerror}") from error
    finally:
        if live:
            print(file=out)
    if not live:
        print(f"{head}: done in {time.monotonic() - started:.0f} s, kept in {folder.parent}", file=out, flush=True)


@functools.cache
def _fetch_kafka_once(cache: Path) -> Path:
    """`fetch_kafka`, whose look at every jar takes 50 ms, once for each cache."""
    return fetch_kafka()


def class_data_path(libs: Path) -> Path:
    """The file of the class data archive of this Java and these jars (class_data.py), which need not be there."""
    made_of = [Path(find_java_path()).resolve(), *sorted(libs.glob("*.jar"))]
    facts = [f"{path} {status.st_size} {status.st_mtime_ns}" for path in made_of if (status := path.stat())]
    which = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
    return libs.parent / f"classes-{which}.jsa"


def class_data_options(libs: Path) -> list[str]:
    """For a JVM whose class path begins with these jars: it takes their classes from the archive if there is one, and
    is silent about one that it can't use.
    """
    archive = class_data_path(libs)
    quiet = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
    return [f"-XX:SharedArchiveFile={archive}", *quiet] if archive.exists() else []


def java_command(
    main_class: str,
    *args: str,
    heap_mb: int = HEAP_MB,
    log: Path | None = None,
    java_options: Sequence[str] = (),
    libs: Path | None = None,
) -> list[str]:
    """Command line that runs a class of Kafka's (a tool, or the broker), logging warnings to `log` or nowhere.

    `libs`: a folder with the jars of another version; nothing checks them.
    """
    libs = libs or _fetch_kafka_once(cache_dir())
    config = libs.parent / "log4j2.xml"
    if not config.exists() or config.read_text("utf-8") != read_own_file("log4j2.xml"):
        config.write_text(read_own_file("log4j2.xml"), "utf-8")
    return [
        *(find_java_path(), f"-Xmx{heap_mb}m", *JVM_OPTIONS, *class_data_options(libs), *java_options),
        *(f"-Dlog4j2.configurationFile={config}", f"-Dkafka.log.file={log or os.devnull}"),
        *("-cp", f"{libs}/*", main_class, *args),
    ]
