# The jars that Spark needs and PySpark does not bring along: those of the Kafka connector and of Delta Lake.
#
# The connector has to be of exactly Spark's own version. For the versions of Spark that are pinned the jars are named
# one by one with their SHA-256, fetched once with the Ivy that PySpark carries, and kept in the cache directory; the
# other dependencies are in PySpark already. For any other version Ivy resolves the connector, and what came is noted
# down and compared ever after. Knows nothing of usage records, sessions or options of the command.

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.embedded import MAVEN_ENV, EmbeddedError, cache_dir, find_java_path

_IVY_TIMEOUT_S: Final = 300.0
_CHECKSUM_FILE: Final = "sha256.json"
# Dependencies that PySpark's own folder of jars holds already, by organisation.
_BUNDLED_ORGANISATIONS: Final = (
    "com.google.code.findbugs",
    "org.apache.hadoop",
    "org.lz4",
    "org.scala-lang",
    "org.scala-lang.modules",
    "org.slf4j",
    "org.xerial.snappy",
)


class MissingDependency(Exception):
    """Java, the connector or Delta Lake is not there; the text is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class MavenJar:
    """One artifact of a Maven repository."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Its name in the cache directory."""
        return f"{self.name}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class SparkLibrary:
    """Something to fetch if it is missing: its name in a sentence, folder in the cache, Maven coordinate, and the jars
    that are known, by Spark's version. `{spark}` in the coordinate is that version; without it only these are known to
    fit.
    """

    name: str
    folder: str
    coordinate: str
    pinned: Mapping[str, tuple[MavenJar, ...]]


KAFKA_CONNECTOR: Final = SparkLibrary(
    "the Kafka connector",
    "spark-kafka-connector",
    "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    {
        "4.0.0": (
            MavenJar(
                "org.apache.spark",
                "spark-sql-kafka-0-10_2.13",
                "4.0.0",
                "33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3",
            ),
            MavenJar(
                "org.apache.spark",
                "spark-token-provider-kafka-0-10_2.13",
                "4.0.0",
                "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
            ),
            MavenJar(
                "org.apache.kafka",
                "kafka-clients",
                "3.9.0",
                "15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18",
            ),
            MavenJar(
                "org.apache.commons",
                "commons-pool2",
                "2.12.0",
                "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b",
            ),
        ),
    },
)
# Delta Lake's own version is not Spark's: 4.0.1 is the newest one built for Spark 4.0 alone. PySpark has everything
# else that it needs.
DELTA_LAKE: Final = SparkLibrary(
    "Delta Lake",
    "spark-delta",
    "io.delta:delta-spark_2.13:4.0.1",
    {
        "4.0.0": (
            MavenJar(
                "io.delta",
                "delta-spark_2.13",
                "4.0.1",
                "a1e76860b19fe1e6b205a4ea7a9099a2f9575d39bb71d49b3e679b299d0efb91",
            ),
            MavenJar(
                "io.delta",
                "delta-storage",
                "4.0.1",
                "ecc42c5aaa51c423312d9e4e48aa4a12b34740bf2c37de0e8f279277ec3d12e4",
            ),
        ),
    },
)


def find_java() -> str:
    """The Java that Spark's launcher will take.

    Raises:
        MissingDependency: there is none, or it is too old.
    """
    try:
        return find_java_path()
    except EmbeddedError as error:
        raise MissingDependency(str(error)) from None


def provide_jars(
    library: SparkLibrary, spark_version: str, pyspark_jars: Path, cache: Path | None = None
) -> list[Path]:
    """The library's jars for that Spark, from the cache, or fetched into it.

    `pyspark_jars` is PySpark's own folder of jars, in which its Ivy lies.

    Raises:
        MissingDependency: no Java, no network, or the repository has not got them.
    """
    folder = (cache or cache_dir()) / library.folder / spark_version
    pinned = library.pinned.get(spark_version)
    if pinned is None and "{spark}" not in library.coordinate:
        raise MissingDependency(
            f"no {library.name} is known for Spark {spark_version}: install pyspark=={', '.join(library.pinned)}, or"
            " give it, and any other jars needed, by --jars FILE,…"
        )
    sums = {jar.file_name: jar.sha256 for jar in pinned} if pinned else _recorded_checksums(folder)
    if not sums or any(_file_sha256(folder / name) != wanted for name, wanted in sums.items()):
        try:
            sums = _fetch_library(library, spark_version, pyspark_jars, folder)
        except OSError as error:
            raise MissingDependency(f"{library.name} can't be kept in {folder}: {error.strerror}") from None
    return [folder / name for name in sums]


def _fetch_library(library: SparkLibrary, spark_version: str, pyspark_jars: Path, folder: Path) -> dict[str, str]:
    pinned = library.pinned.get(spark_version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Everything happens in a folder of our own and is moved when it is right, so that two audits started at the same
    # moment on an empty cache don't meet.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_ivy_file(library.coordinate.format(spark=spark_version), pinned))
        (work / "settings.xml").write_text(_ivy_settings(os.environ.get(MAVEN_ENV)))
        _run_ivy(library, spark_version, pyspark_jars, work)
        got = sorted((work / "jars").glob("*.jar"))
        sums = {path.name: _file_sha256(path) or "" for path in got}
        _verify_checksums(sums, pinned or ())
        folder.mkdir(exist_ok=True)
        for path in got:
            path.replace(folder / path.name)
        if not pinned:
            (work / _CHECKSUM_FILE).write_text(json.dumps(sums, indent=1))
            (work / _CHECKSUM_FILE).replace(folder / _CHECKSUM_FILE)
    return sums


def _ivy_file(coordinate: str, pinned: tuple[MavenJar, ...] | None) -> str:
    if pinned:
        wanted = [
            f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}" transitive="false"/>'
            for jar in pinned
        ]
    else:
        organisation, name, version = coordinate.split(":")
        wanted = [
            f'<dependency org="{organisation}" name="{name}" rev="{version}"/>',
            *(f'<exclude org="{name}"/>' for name in _BUNDLED_ORGANISATIONS),
            '<exclude org="org.apache.spark" module="spark-tags_2.13"/>',
        ]
    return (
        '<ivy-module version="2.0"><info organisation="local" module="spark-kafka-connector"/>'
        '<configurations><conf name="default"/></configurations>'
        f'<dependencies defaultconf="default->default">{"".join(wanted)}</dependencies></ivy-module>\n'
    )


def _ivy_settings(maven: str | None) -> str:
    root = f' root="{maven.rstrip("/")}/"' if maven else ""  # without: Ivy's own default, Maven Central
    return (
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true"{root}/></resolvers></ivysettings>\n'
    )


def _run_ivy(library: SparkLibrary, spark_version: str, pyspark_jars: Path, work: Path) -> None:
    ivy = next(iter(sorted(pyspark_jars.glob("ivy-*.jar"))), None)
    if ivy is None:
        raise MissingDependency(
            f"no Ivy in {pyspark_jars}: install pyspark from PyPI, or give {library.name} by --jars"
        )
    command = [find_java(), "-Xmx256m", "-jar", str(ivy), "-settings", "settings.xml", "-ivy", "ivy.xml"]
    command += ["-cache", "ivy", "-confs", "default", "-retrieve", "jars/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, errors="replace", timeout=_IVY_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingDependency(
            _unresolved_text(library, spark_version, f"no end within {_IVY_TIMEOUT_S:.0f} s")
        ) from None
    if done.returncode != 0:
        raise MissingDependency(_unresolved_text(library, spark_version, done.stdout + done.stderr))


def _unresolved_text(library: SparkLibrary, spark_version: str, output: str) -> str:
    lines = [line.strip(" \t:") for line in output.splitlines()]
    # Most telling first: the network, then what is missing, then whatever came last.
    telling = [line for mark in ("UnknownHost", "timed out", "refused") for line in lines if mark in line]
    missing = sorted(set(re.findall(r":: (\S+#\S+;\S+): not found", output)))
    what = (telling[:1] or missing or [line for line in lines if line][-1:] or ["Ivy said nothing"])[0]
    pins = ", ".join(sorted(library.pinned))
    other = "" if spark_version in library.pinned else f"install pyspark=={pins}, for which it is known to resolve, or "
    return (
        f"{library.name} for Spark {spark_version} could not be fetched ({what[:200]}): {other}name another Maven"
        f" repository by {MAVEN_ENV}=URL, or give it by --jars FILE,… or"
        f" --packages {library.coordinate.format(spark=spark_version)}"
    )


def _verify_checksums(sums: dict[str, str], pinned: tuple[MavenJar, ...]) -> None:
    for jar in pinned:
        got = sums.get(jar.file_name)
        if got != jar.sha256:
            raise MissingDependency(
                f"{jar.file_name} from the repository is not the expected one (SHA-256 {got or 'missing'}, expected"
                f" {jar.sha256}): not used; try another repository by {MAVEN_ENV}=URL, or give it by --jars"
            )


def _recorded_checksums(folder: Path) -> dict[str, str]:
    try:
        noted = json.loads((folder / _CHECKSUM_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in noted.items()} if isinstance(noted, dict) else {}


def _file_sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def main() -> int:
    """`python -m gateway.audit.connector`: fetch the connector and Delta Lake, and print their files, for images and
    --jars."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        print("PySpark is not installed: pip install 'produce-gateway[audit]'", file=sys.stderr)
        return 1
    try:
        version, own = importlib.metadata.version("pyspark"), Path(spec.origin).parent / "jars"
        found = [*provide_jars(KAFKA_CONNECTOR, version, own), *provide_jars(DELTA_LAKE, version, own)]
    except MissingDependency as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
