# The connector's jars: what is in the cache is checked, what is not there is fetched, and what fails says what to do.

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyspark
import pytest

from gateway.audit import connector
from gateway.audit.connector import DELTA_LAKE, KAFKA_CONNECTOR, MissingDependency, provide_jars
from gateway.embedded import MAVEN_ENV, find_free_port

OWN_JARS = Path(pyspark.__file__).parent / "jars"


@pytest.fixture
def no_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAVEN_ENV, f"http://127.0.0.1:{find_free_port()}/maven2")


def test_the_installed_spark_has_a_pinned_connector_of_exactly_its_version() -> None:
    pinned = KAFKA_CONNECTOR.pinned[pyspark.__version__]
    assert [jar.version for jar in pinned if jar.organisation == "org.apache.spark"] == [pyspark.__version__] * 2
    assert all(len(jar.sha256) == 64 for jar in (*pinned, *DELTA_LAKE.pinned[pyspark.__version__]))


def test_jars_in_the_cache_are_used_without_a_network_as_long_as_they_are_whole(
    tmp_path: Path, no_repository: None
) -> None:
    folder = tmp_path / "spark-kafka-connector" / "4.0.99"
    folder.mkdir(parents=True)
    (folder / "a.jar").write_bytes(b"one")
    (folder / "sha256.json").write_text(json.dumps({"a.jar": hashlib.sha256(b"one").hexdigest()}))
    assert provide_jars(KAFKA_CONNECTOR, "4.0.99", OWN_JARS, tmp_path) == [folder / "a.jar"]
    (folder / "a.jar").write_bytes(b"other")
    with pytest.raises(MissingDependency) as error:
        provide_jars(KAFKA_CONNECTOR, "4.0.99", OWN_JARS, tmp_path)
    said = str(error.value)
    assert said.startswith("the Kafka connector for Spark 4.0.99 could not be fetched (")
    assert "install pyspark==4.0.0" in said
    assert MAVEN_ENV in said
    assert "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.99" in said
    assert "\n" not in said
    assert [path.name for path in folder.parent.iterdir()] == ["4.0.99"]


def test_a_jar_that_is_not_the_pinned_one_is_not_used() -> None:
    pinned = KAFKA_CONNECTOR.pinned["4.0.0"]
    right = {jar.file_name: jar.sha256 for jar in pinned}
    connector._verify_checksums(right, pinned)
    with pytest.raises(MissingDependency, match=r"kafka-clients-3.9.0.jar .*SHA-256 0000, expected .*: not used"):
        connector._verify_checksums(right | {"kafka-clients-3.9.0.jar": "0000"}, pinned)


def test_without_pysparks_own_ivy_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"no Ivy in .*: install pyspark from PyPI"):
        provide_jars(KAFKA_CONNECTOR, "4.0.0", tmp_path, tmp_path)


def test_delta_lake_is_fetched_only_for_a_spark_that_it_fits(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"^no Delta Lake is known for Spark 4\.9\.0: install pyspark==4\.0\.0"):
        provide_jars(DELTA_LAKE, "4.9.0", OWN_JARS, tmp_path)
