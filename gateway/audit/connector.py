# The jars that Spark needs and PySpark does not bring along: those of the Kafka connector and of Delta Lake.
#
# The connector has to be of exactly Spark's own version, so they are known for pinned versions of Spark only: named one
# by one with their SHA-256, and kept in the cache directory. Their other dependencies are in PySpark already. For
# another Spark the user names them. Knows nothing of usage records, sessions or options of the command.

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.embedded import EmbeddedError, cache_dir, find_java_path, maven
from gateway.embedded.maven import MavenJar


class MissingDependency(Exception):
    """Java, the connector or Delta Lake is not there; the text is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class SparkLibrary:
    """Jars to fetch if they are missing: their name in a sentence, folder in the cache, Maven coordinate (`{spark}` is
    Spark's version), and the jars by Spark's version.
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


def provide_jars(library: SparkLibrary, spark_version: str, cache: Path | None = None) -> list[Path]:
    """The library's jars for that Spark, from the cache, or fetched into it.

    Raises:
        MissingDependency: none are known for that Spark, no network, or the repository has not got them.
    """
    jars = library.pinned.get(spark_version)
    by_hand = f"give it by --packages {library.coordinate.format(spark=spark_version)} or --jars FILE,…"
    if jars is None:
        raise MissingDependency(
            f"no {library.name.removeprefix('the ')} is known for Spark {spark_version}: install"
            f" pyspark=={', '.join(library.pinned)}, or {by_hand}"
        )
    folder = (cache or cache_dir()) / library.folder / spark_version
    try:
        maven.fetch_jars(jars, folder)
    except maven.UnexpectedJar as error:
        raise MissingDependency(
            f"{library.name} from the repository is not the expected one ({error}): not used; name another Maven"
            f" repository by {maven.MAVEN_ENV}=URL, or {by_hand}"
        ) from None
    except maven.MavenError as error:
        raise MissingDependency(
            f"{library.name} for Spark {spark_version} could not be fetched ({error}): name another Maven repository by"
            f" {maven.MAVEN_ENV}=URL, or {by_hand}"
        ) from None
    except OSError as error:
        raise MissingDependency(f"{library.name} can't be kept in {folder}: {error.strerror}") from None
    return [folder / jar.file_name for jar in jars]


def main() -> int:
    """`python -m gateway.audit.connector`: fetch the connector and Delta Lake, and print their files, for images and
    --jars."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None:
        print("PySpark is not installed: pip install 'produce-gateway[audit]'", file=sys.stderr)
        return 1
    try:
        version = importlib.metadata.version("pyspark")
        found = [*provide_jars(KAFKA_CONNECTOR, version), *provide_jars(DELTA_LAKE, version)]
    except MissingDependency as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
