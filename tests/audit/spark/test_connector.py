# The connector's jars: what is in the cache is checked, what is not there is fetched, and what fails says what to do.

from __future__ import annotations

import hashlib
from http.server import ThreadingHTTPServer
from pathlib import Path

import pyspark
import pytest

from gateway.audit.spark.connector import DELTA_LAKE, KAFKA_CONNECTOR, MissingDependency, SparkLibrary, provide_jars
from gateway.embedded import MAVEN_ENV, find_free_port
from gateway.embedded.maven import MavenJar
from tests.background import Handler, serving, url_of

JARS = {f"{name}-1.jar": name.encode() for name in ("one", "two")}
LIBRARY = SparkLibrary(
    "the Kafka connector",
    "connector",
    "org.example:one:{spark}",
    {
        "4.0.99": tuple(
            MavenJar("org.example", name, "1", hashlib.sha256(name.encode()).hexdigest()) for name in ("one", "two")
        )
    },
)


@pytest.fixture
def no_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAVEN_ENV, f"http://127.0.0.1:{find_free_port()}/maven2")


def test_each_line_of_spark_that_may_be_installed_has_pinned_jars() -> None:
    lines = [KAFKA_CONNECTOR.find_pinned(f"4.{minor}.7") for minor in range(3)]
    assert lines == [DELTA_LAKE.find_pinned(f"4.{minor}.7") for minor in range(3)] == ["4.0.0", "4.1.1", "4.2.0"]
    assert KAFKA_CONNECTOR.find_pinned(pyspark.__version__) is not None
    for version, jars in KAFKA_CONNECTOR.pinned.items():
        assert [jar.version for jar in jars if jar.group == "org.apache.spark"] == [version] * 2
    pinned = [jar for each in (KAFKA_CONNECTOR, DELTA_LAKE) for jars in each.pinned.values() for jar in jars]
    assert all(len(jar.sha256) == 64 for jar in pinned)


def test_jars_in_the_cache_are_used_without_a_network_as_long_as_they_are_whole(
    tmp_path: Path, no_repository: None
) -> None:
    folder = tmp_path / "connector" / "4.0.99"
    folder.mkdir(parents=True)
    for name, content in JARS.items():
        (folder / name).write_bytes(content)
    assert provide_jars([LIBRARY], "4.0.99", tmp_path) == [folder / name for name in JARS]
    (folder / "two-1.jar").write_bytes(b"other")
    with pytest.raises(MissingDependency) as error:
        provide_jars([LIBRARY], "4.0.99", tmp_path)
    said = str(error.value)
    assert said.startswith("the Kafka connector for Spark 4.0.99 could not be fetched (org.example:two:1: ")
    assert MAVEN_ENV in said
    assert "--packages org.example:one:4.0.99" in said
    assert "\n" not in said
    assert sorted(path.name for path in folder.iterdir()) == sorted(JARS)


def test_a_jar_that_is_not_the_pinned_one_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked, repository = [], {f"/m2/org/example/{name[:3]}/1/{name}": content for name, content in JARS.items()}

    class Repository(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(200, repository[self.path])

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Repository)) as server:
        monkeypatch.setenv(MAVEN_ENV, f"{url_of(server)}/m2/")
        repository["/m2/org/example/two/1/two-1.jar"] = b"changed"
        with pytest.raises(MissingDependency, match=r"two-1.jar has SHA-256 [0-9a-f]{16}…, expected .*: not used"):
            provide_jars([LIBRARY], "4.0.99", tmp_path)
        assert [path.name for path in (tmp_path / "connector" / "4.0.99").iterdir()] == ["one-1.jar"]
        repository["/m2/org/example/two/1/two-1.jar"] = b"two"
        found = provide_jars([LIBRARY], "4.0.99", tmp_path)
    assert [path.read_bytes() for path in found] == [b"one", b"two"]
    assert [path.rpartition("/")[2] for path in asked] == ["one-1.jar", "two-1.jar", "two-1.jar"]


def test_a_spark_without_pinned_jars_is_told_the_packages_to_give(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency) as error:
        provide_jars([KAFKA_CONNECTOR, DELTA_LAKE], "4.9.1", tmp_path)
    assert str(error.value) == (
        "no Kafka connector and no Delta Lake is known for Spark 4.9.1: install one of pyspark==4.0.0, 4.1.1, 4.2.0, or"
        " give --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.1,io.delta:delta-spark_4.9_2.13:4.4.0 or"
        " --jars FILE,…"
    )
