# What Spark needs and PySpark does not bring along: the jars of the Kafka connector, and of Delta Lake for the tables.
#
# The connector has to be of exactly Spark's own version. For the versions in PINNED its jars are named one by one with
# their SHA-256, fetched once with the Ivy that PySpark carries, and kept in the cache directory; only four are needed,
# the other dependencies are in PySpark already. For any other version Ivy resolves them, and what came is noted down
# and compared ever after. Knows nothing of usage records, sessions or options of the command.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.embedded import MAVEN_ENV, EmbeddedError, cache_dir, java

_IVY_TIMEOUT_S: Final = 300.0
_MANIFEST: Final = "sha256.json"
# Dependencies of the connector that PySpark's own folder of jars holds already, by organisation.
_IN_PYSPARK: Final = (
    "com.google.code.findbugs",
    "org.apache.hadoop",
    "org.lz4",
    "org.scala-lang",
    "org.scala-lang.modules",
    "org.slf4j",
    "org.xerial.snappy",
)


class MissingDependency(Exception):
    """Java or the connector is not there; the text is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One artifact of a Maven repository."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """Its name in the cache directory."""
        return f"{self.name}-{self.version}.jar"


PINNED: Final[dict[str, tuple[Jar, ...]]] = {
    "4.0.0": (
        Jar(
            "org.apache.spark",
            "spark-sql-kafka-0-10_2.13",
            "4.0.0",
            "33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3",
        ),
        Jar(
            "org.apache.spark",
            "spark-token-provider-kafka-0-10_2.13",
            "4.0.0",
            "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        ),
        Jar(
            "org.apache.kafka",
            "kafka-clients",
            "3.9.0",
            "15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18",
        ),
        Jar(
            "org.apache.commons",
            "commons-pool2",
            "2.12.0",
            "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b",
        ),
    ),
}
# Delta Lake's own version is not Spark's: 4.0.1 is the newest one built for Spark 4.0 alone. What else it needs is in
# PySpark already.
DELTA_PINNED: Final[dict[str, tuple[Jar, ...]]] = {
    "4.0.0": (
        Jar(
            "io.delta",
            "delta-spark_2.13",
            "4.0.1",
            "a1e76860b19fe1e6b205a4ea7a9099a2f9575d39bb71d49b3e679b299d0efb91",
        ),
        Jar(
            "io.delta",
            "delta-storage",
            "4.0.1",
            "ecc42c5aaa51c423312d9e4e48aa4a12b34740bf2c37de0e8f279277ec3d12e4",
        ),
    ),
}
DELTA_COORDINATE: Final = "io.delta:delta-spark_2.13:4.0.1"


def coordinate(spark_version: str) -> str:
    """What `--packages` takes for that Spark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark_version}"


def find_java() -> str:
    """The Java that Spark's launcher will take.

    Raises:
        MissingDependency: there is none, or it is too old.
    """
    try:
        return java()
    except EmbeddedError as error:
        raise MissingDependency(str(error)) from None


def connector_jars(spark_version: str, pyspark_jars: Path, cache: Path | None = None) -> list[Path]:
    """The connector's jars for that Spark, from the cache, or fetched into it.

    `pyspark_jars` is PySpark's own folder of jars, in which its Ivy lies.

    Raises:
        MissingDependency: no Java, no network, or the repository has not got them.
    """
    folder = (cache or cache_dir()) / "spark-kafka-connector" / spark_version
    pinned = PINNED.get(spark_version)
    sums = {jar.file: jar.sha256 for jar in pinned} if pinned else _noted_sums(folder)
    if not sums or any(_sha256(folder / name) != wanted for name, wanted in sums.items()):
        try:
            sums = _fetch(spark_version, pinned, pyspark_jars, folder)
        except OSError as error:
            raise MissingDependency(f"the Kafka connector can't be kept in {folder}: {error.strerror}") from None
    return [folder / name for name in sums]


def delta_jars(spark_version: str, pyspark_jars: Path, cache: Path | None = None) -> list[Path]:
    """Delta Lake's jars for that Spark, from the cache, or fetched into it.

    Raises:
        MissingDependency: none is known for that Spark; no Java, no network, or the repository has not got them.
    """
    pinned = DELTA_PINNED.get(spark_version)
    if pinned is None:
        raise MissingDependency(
            f"no Delta Lake is known for Spark {spark_version}: install pyspark=={', '.join(DELTA_PINNED)}, or give it"
            " by --jars FILE,… (with those of the Kafka connector)"
        )
    folder = (cache or cache_dir()) / "spark-delta" / spark_version
    sums = {jar.file: jar.sha256 for jar in pinned}
    if any(_sha256(folder / name) != wanted for name, wanted in sums.items()):
        try:
            _fetch(spark_version, pinned, pyspark_jars, folder)
        except OSError as error:
            raise MissingDependency(f"Delta Lake can't be kept in {folder}: {error.strerror}") from None
        except MissingDependency as error:
            said = str(error).replace(f"the Kafka connector of Spark {spark_version}", "Delta Lake")
            said = said.replace("the connector", "it").replace(coordinate(spark_version), DELTA_COORDINATE)
            raise MissingDependency(said) from None
    return [folder / name for name in sums]


def _fetch(spark_version: str, pinned: tuple[Jar, ...] | None, pyspark_jars: Path, folder: Path) -> dict[str, str]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Everything happens in a folder of our own and is moved when it is right, so that two audits started at the same
    # moment on an empty cache don't meet.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_ivy_file(spark_version, pinned))
        (work / "settings.xml").write_text(_ivy_settings(os.environ.get(MAVEN_ENV)))
        _run_ivy(spark_version, pyspark_jars, work)
        got = sorted((work / "jars").glob("*.jar"))
        sums = {path.name: _sha256(path) or "" for path in got}
        _compare(sums, pinned or ())
        folder.mkdir(exist_ok=True)
        for path in got:
            path.replace(folder / path.name)
        if not pinned:
            (work / _MANIFEST).write_text(json.dumps(sums, indent=1))
            (work / _MANIFEST).replace(folder / _MANIFEST)
    return sums


def _ivy_file(spark_version: str, pinned: tuple[Jar, ...] | None) -> str:
    if pinned:
        wanted = [
            f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}" transitive="false"/>'
            for jar in pinned
        ]
    else:
        organisation, name, version = coordinate(spark_version).split(":")
        wanted = [
            f'<dependency org="{organisation}" name="{name}" rev="{version}"/>',
            *(f'<exclude org="{name}"/>' for name in _IN_PYSPARK),
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


def _run_ivy(spark_version: str, pyspark_jars: Path, work: Path) -> None:
    ivy = next(iter(sorted(pyspark_jars.glob("ivy-*.jar"))), None)
    if ivy is None:
        raise MissingDependency(f"no Ivy in {pyspark_jars}: install pyspark from PyPI, or give the connector by --jars")
    command = [find_java(), "-Xmx256m", "-jar", str(ivy), "-settings", "settings.xml", "-ivy", "ivy.xml"]
    command += ["-cache", "ivy", "-confs", "default", "-retrieve", "jars/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, errors="replace", timeout=_IVY_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingDependency(_unresolved(spark_version, f"no end within {_IVY_TIMEOUT_S:.0f} s")) from None
    if done.returncode != 0:
        raise MissingDependency(_unresolved(spark_version, done.stdout + done.stderr))


def _unresolved(spark_version: str, output: str) -> str:
    lines = [line.strip(" \t:") for line in output.splitlines()]
    # Most telling first: the network, then what is missing, then whatever came last.
    telling = [line for mark in ("UnknownHost", "timed out", "refused") for line in lines if mark in line]
    missing = sorted(set(re.findall(r":: (\S+#\S+;\S+): not found", output)))
    what = (telling[:1] or missing or [line for line in lines if line][-1:] or ["Ivy said nothing"])[0]
    pins = ", ".join(sorted(PINNED))
    other = "" if spark_version in PINNED else f"install pyspark=={pins}, whose connector is known to resolve, or "
    return (
        f"the Kafka connector of Spark {spark_version} could not be fetched ({what[:200]}): {other}name another Maven"
        f" repository by {MAVEN_ENV}=URL, or give the connector by --jars FILE,… or"
        f" --packages {coordinate(spark_version)}"
    )


def _compare(sums: dict[str, str], pinned: tuple[Jar, ...]) -> None:
    for jar in pinned:
        got = sums.get(jar.file)
        if got != jar.sha256:
            raise MissingDependency(
                f"{jar.file} from the repository is not what it should be (SHA-256 {got or 'missing'}, expected"
                f" {jar.sha256}): not used; try another repository by {MAVEN_ENV}=URL, or give the connector by --jars"
            )


def _noted_sums(folder: Path) -> dict[str, str]:
    try:
        noted = json.loads((folder / _MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in noted.items()} if isinstance(noted, dict) else {}


def _sha256(path: Path) -> str | None:
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
        found = [*connector_jars(version, own), *delta_jars(version, own)]
    except MissingDependency as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
