# Java, and Kafka's jars: fetched with the Ivy that PySpark carries, from the list in ivy/kafka.xml, checked against
# ivy/kafka.sha256, kept in a per-user cache, by one process at a time.

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.resources
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from gateway.embedded.errors import EmbeddedError

KAFKA_VERSION = "4.3.1"
MIN_JAVA = 17  # Kafka 4's brokers need it
CACHE_ENV = "PRODUCE_GATEWAY_CACHE"
MAVEN_ENV = "PRODUCE_GATEWAY_MAVEN"

FETCH_TIMEOUT_S = 900.0
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
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if version is None:
        raise EmbeddedError(f"{wanted}, but {found} did not say its version: {said.strip()[:200]!r}")
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


def read_ivy_file(name: str) -> bytes:
    return importlib.resources.files("gateway").joinpath("ivy", name).read_bytes()


def expected_checksums() -> dict[str, str]:
    """Jar name -> SHA-256 in hex, as ivy/kafka.sha256 has them."""
    lines = read_ivy_file("kafka.sha256").decode().split("\n")
    return {name: sha256 for sha256, name in (line.split() for line in lines if line)}


def find_jar_fault(libs: Path, sums: Mapping[str, str]) -> str | None:
    """The fault of the jars in `libs`, in one phrase; None if they are exactly the expected ones."""
    present = {path.name for path in libs.glob("*.jar")}
    if missing := sorted(sums.keys() - present):
        return f"{len(missing)} of {len(sums)} jars are missing, {missing[0]} among them"
    if strange := sorted(present - sums.keys()):
        return f"{strange[0]} does not belong there"
    for name, wanted in sums.items():
        with open(libs / name, "rb") as jar:
            got = hashlib.file_digest(jar, "sha256").hexdigest()
        if got != wanted:
            return f"{name} has SHA-256 {got[:16]}…, expected {wanted[:16]}…"
    return None


def fetch_kafka(progress: IO[str] | None = None) -> Path:
    """The folder with Kafka's jars; downloads them (44 MB) where the cache doesn't have them.

    Args:
        progress: the stream for the progress line; standard error if not given.

    Raises:
        EmbeddedError: no Java, no Ivy, no network, or a jar is not the one that is expected.
    """
    sums = expected_checksums()
    # The folder is named after the list of sums, so another version of it never meets these jars.
    name = f"kafka-{KAFKA_VERSION}-{hashlib.sha256(read_ivy_file('kafka.sha256')).hexdigest()[:8]}"
    cache = cache_dir()
    libs = cache / name / "libs"
    out = progress or sys.stderr
    # The folder came by a rename: no process has to wait for others that only look, too.
    if libs.is_dir() and find_jar_fault(libs, sums) is None:
        return libs
    with _lock_cache(cache / f"{name}.lock", out):
        if libs.is_dir():
            problem = find_jar_fault(libs, sums)
            if problem is None:
                return libs
            print(f"The cached Apache Kafka is damaged ({problem}); fetching it again.", file=out)
            shutil.rmtree(libs)
        fresh = cache / name / "fetching"
        _run_ivy(fresh, len(sums), out)
        problem = find_jar_fault(fresh / "libs", sums)
        if problem is not None:
            shutil.rmtree(fresh)
            raise EmbeddedError(f"Apache Kafka {KAFKA_VERSION} was downloaded, but {problem}: not used")
        (fresh / "libs").rename(libs)
        shutil.rmtree(fresh)
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


def find_ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EmbeddedError("PySpark is not installed, and its Ivy fetches Kafka: pip install 'produce-gateway[audit]'")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise EmbeddedError(f"PySpark in {Path(spec.origin).parent} has no ivy-*.jar, which fetches Kafka")
    return jars[-1]


def make_ivy_settings(maven: str | None) -> str:
    root = f' root="{maven.rstrip("/")}/"' if maven else ""  # without: Ivy's own default
    return (
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true" usepoms="false"{root}/>'
        "</resolvers></ivysettings>\n"
    )


def _run_ivy(folder: Path, total: int, out: IO[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)  # the files that an interrupted run left in its cache are used
    (folder / "settings.xml").write_text(make_ivy_settings(os.environ.get(MAVEN_ENV)))
    (folder / "ivy.xml").write_bytes(read_ivy_file("kafka.xml"))
    command = [
        *(find_java_path(), "-Xmx256m", *JVM_OPTIONS, "-jar", str(find_ivy_jar())),
        *("-settings", str(folder / "settings.xml"), "-ivy", str(folder / "ivy.xml"), "-cache", str(folder / "cache")),
        *("-confs", "default", "-retrieve", str(folder / "libs" / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    started = time.monotonic()
    head = f"Fetching Apache Kafka {KAFKA_VERSION}"
    live = out.isatty()
    if not live:
        print(f"{head}: {total} jars, 44 MB …", file=out, flush=True)
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        deadline = threading.Timer(FETCH_TIMEOUT_S, ivy.kill)
        deadline.start()
        assert ivy.stdout is not None
        done = 0
        for line in ivy.stdout:
            said.append(line.strip())
            done += "[SUCCESSFUL ]" in line
            if live:
                print(
                    f"\r{head}: {done} of {total} jars, {time.monotonic() - started:.0f} s ",
                    end="",
                    file=out,
                    flush=True,
                )
        deadline.cancel()
    if live:
        print(file=out)
    if ivy.returncode != 0:
        raise EmbeddedError(_why_ivy_failed(said))
    if not live:
        print(f"{head}: done in {time.monotonic() - started:.0f} s, kept in {folder.parent}", file=out, flush=True)


def _why_ivy_failed(said: Sequence[str]) -> str:
    # Most telling first: what the network said, then what is missing, then whatever came last.
    marks = ("UnknownHost", "timed out", "refused", "SERVER ERROR", "Exception", "module not found", "FAILED")
    telling = [line for mark in marks for line in said if mark in line] or [line for line in said if line][-1:]
    cause = telling[0].strip(":# ") if telling else "it said nothing"
    return (
        f"Ivy could not fetch Apache Kafka {KAFKA_VERSION} ({cause[:200]}): "
        f"is there a network? {MAVEN_ENV}=URL names another Maven repository"
    )


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
    if not config.exists() or config.read_bytes() != read_ivy_file("log4j2.xml"):
        config.write_bytes(read_ivy_file("log4j2.xml"))
    return [
        *(find_java_path(), f"-Xmx{heap_mb}m", *JVM_OPTIONS, *class_data_options(libs), *java_options),
        *(f"-Dlog4j2.configurationFile={config}", f"-Dkafka.log.file={log or os.devnull}"),
        *("-cp", f"{libs}/*", main_class, *args),
    ]
