# The jars that Spark needs and PySpark does not bring along: those of the Kafka connector and of Delta Lake.
#
# They have to be of Spark's own line (4.0, 4.1, …), so they are known for pinned lines only: named one by one with
# their SHA-256, and kept in the cache directory. Their other dependencies are in PySpark already. For another Spark the
# user names them. Knows nothing of usage records, sessions or options of the command.

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.embedded import EmbeddedError, cache_dir, find_java_path, maven
from gateway.embedded.maven import MavenJar


class MissingDependency(Exception):
    """Java, the connector or Delta Lake is not there; the text is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class SparkLibrary:
    """Jars to fetch if they are missing: their name in a sentence, folder in the cache, Maven coordinate (with Spark's
    version as `{spark}`, its line as `{line}`), and the jars by a version of Spark: they serve all of its line.
    """

    name: str
    folder: str
    coordinate: str
    pinned: Mapping[str, tuple[MavenJar, ...]]

    def find_pinned(self, spark_version: str) -> str | None:
        """The version of Spark whose jars serve that one; None: there are none."""
        line = _spark_line(spark_version)
        return next((version for version in self.pinned if _spark_line(version) == line), None)

    def name_package(self, spark_version: str) -> str:
        """The Maven coordinate for that Spark."""
        return self.coordinate.format(spark=spark_version, line=_spark_line(spark_version))


def _spark_line(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _parse_jars(text: str) -> tuple[MavenJar, ...]:
    return tuple(MavenJar.parse(line) for line in text.strip().splitlines())


KAFKA_CONNECTOR: Final = SparkLibrary(
    "the Kafka connector",
    "spark-kafka-connector",
    "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    {
        "4.0.0": _parse_jars(
            """
            33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3  org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0
            f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767  org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0
            15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18  org.apache.kafka:kafka-clients:3.9.0
            6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b  org.apache.commons:commons-pool2:2.12.0
            """  # noqa: E501
        ),
        "4.1.1": _parse_jars(
            """
            9c1ce986f548e6b1dcb0e2dfe2f253a0bc58f2232a32a0c9c6c674dd25a8570c  org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1
            e510adc37b03d01d0a190d0dab472b5538e05eaa77454f7e9477156d7a6820ae  org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1
            7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9  org.apache.kafka:kafka-clients:3.9.1
            5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef  org.apache.commons:commons-pool2:2.12.1
            """  # noqa: E501
        ),
        "4.2.0": _parse_jars(
            """
            64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705  org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
            641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c  org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0
            014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8  org.apache.kafka:kafka-clients:3.9.2
            f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f  org.apache.commons:commons-pool2:2.13.1
            """  # noqa: E501
        ),
    },
)
# Delta Lake's own version is not Spark's: 4.4.0 is the newest one, 4.0.1 the newest one built for Spark 4.0 alone.
# PySpark has everything else that it needs.
DELTA_LAKE: Final = SparkLibrary(
    "Delta Lake",
    "spark-delta",
    "io.delta:delta-spark_{line}_2.13:4.4.0",
    {
        "4.0.0": _parse_jars(
            """
            a1e76860b19fe1e6b205a4ea7a9099a2f9575d39bb71d49b3e679b299d0efb91  io.delta:delta-spark_2.13:4.0.1
            ecc42c5aaa51c423312d9e4e48aa4a12b34740bf2c37de0e8f279277ec3d12e4  io.delta:delta-storage:4.0.1
            """
        ),
        "4.1.1": _parse_jars(
            """
            75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10  io.delta:delta-spark_4.1_2.13:4.4.0
            c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc  io.delta:delta-storage:4.4.0
            ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11  io.delta:delta-kernel-api:4.4.0
            225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b  io.delta:delta-kernel-defaults:4.4.0
            cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa  io.delta:delta-kernel-unitycatalog:4.4.0
            """
        ),
        "4.2.0": _parse_jars(
            """
            27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead  io.delta:delta-spark_4.2_2.13:4.4.0
            c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc  io.delta:delta-storage:4.4.0
            ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11  io.delta:delta-kernel-api:4.4.0
            225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b  io.delta:delta-kernel-defaults:4.4.0
            cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa  io.delta:delta-kernel-unitycatalog:4.4.0
            """
        ),
    },
)


def missing_connector_text(spark_version: str) -> str:
    """To say to a user whose Spark has no Kafka connector."""
    package = KAFKA_CONNECTOR.name_package(spark_version)
    return f"Spark has no Kafka connector: give spark-submit --packages {package}, or its jars by --jars"


def find_java() -> str:
    """The Java that Spark's launcher will take.

    Raises:
        MissingDependency: there is none, or it is too old.
    """
    try:
        return find_java_path()
    except EmbeddedError as error:
        raise MissingDependency(str(error)) from None


def provide_jars(libraries: Sequence[SparkLibrary], spark_version: str, cache: Path | None = None) -> list[Path]:
    """The libraries' jars for that Spark, from the cache, or fetched into it.

    Raises:
        MissingDependency: none are known for that Spark, no network, or the repository has not got them.
    """
    # `--packages` takes the place of all of them.
    packages = ",".join(library.name_package(spark_version) for library in libraries)
    by_hand = f"give --packages {packages} or --jars FILE,…"
    found = [(library, library.find_pinned(spark_version)) for library in libraries]
    unknown = [library.name.removeprefix("the ") for library, version in found if version is None]
    if unknown:
        tried = ", ".join(libraries[0].pinned)
        raise MissingDependency(
            f"no {' and no '.join(unknown)} is known for Spark {spark_version}: install one of pyspark=={tried}, or"
            f" {by_hand}"
        )
    return [
        jar
        for library, version in found
        if version is not None
        for jar in _fetch_library(library, version, (cache or cache_dir()) / library.folder / version, by_hand)
    ]


def _fetch_library(library: SparkLibrary, version: str, folder: Path, by_hand: str) -> list[Path]:
    jars = library.pinned[version]
    try:
        maven.fetch_jars(jars, folder)
    except maven.UnexpectedJar as error:
        raise MissingDependency(
            f"{library.name} from the repository is not the expected one ({error}): not used; name another Maven"
            f" repository by {maven.MAVEN_ENV}=URL, or {by_hand}"
        ) from None
    except maven.MavenError as error:
        raise MissingDependency(
            f"{library.name} for Spark {version} could not be fetched ({error}): name another Maven repository by"
            f" {maven.MAVEN_ENV}=URL, or {by_hand}"
        ) from None
    except OSError as error:
        raise MissingDependency(f"{library.name} can't be kept in {folder}: {error.strerror}") from None
    return [folder / jar.file_name for jar in jars]


def main() -> int:
    """`python -m gateway.audit.spark.connector`: fetch the connector and Delta Lake, and print their files, for images
    and --jars."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None:
        print("PySpark is not installed: pip install 'produce-gateway[audit]'", file=sys.stderr)
        return 1
    try:
        version = importlib.metadata.version("pyspark")
        found = provide_jars((KAFKA_CONNECTOR, DELTA_LAKE), version)
    except MissingDependency as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
