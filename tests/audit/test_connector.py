# The connector's jars: what is in the cache is checked, what is not there is fetched, and what fails says what to do.

from __future__ import annotations

import hashlib
from http.server import ThreadingHTTPServer
from pathlib import Path

import pyspark
import pytest

from gateway.audit.connector import DELTA_LAKE, KAFKA_CONNECTOR, MissingDependency, SparkLibrary, provide_jars
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


def test_the_installed_spark_has_a_pinned_connector_of_exactly_its_version() -> None:
    pinned = KAFKA_CONNECTOR.pinned[pyspark.__version__]
    assert [jar.version for jar in pinned if jar.group == "org.apache.spark"] == [pyspark.__version__] * 2
    assert all(len(jar.sha256) == 64 for jar in (*pinned, *DELTA_LAKE.pinned[pyspark.__version__]))


def test_jars_in_the_cache_are_used_without_a_network_as_long_as_they_are_whole(
    tmp_path: Path, no_repository: None
) -> None:
    folder = tmp_path / "connector" / "4.0.99"
    folder.mkdir(parents=True)
    for name, content in JARS.items():
        (folder / name).write_bytes(content)
    assert provide_jars(LIBRARY, "4.0.99", tmp_path) == [folder / name for name in JARS]
    (folder / "two-1.jar").write_bytes(b"other")
    with pytest.raises(MissingDependency) as error:
        provide_jars(LIBRARY, "4.0.99", tmp_path)
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
            provide_jars(LIBRARY, "4.0.99", tmp_path)
        assert [path.name for path in (tmp_path / "connector" / "4.0.99").iterdir()] == ["one-1.jar"]
        repository["/m2/org/example/two/1/two-1.jar"] = b"two"
        found = provide_jars(LIBRARY, "4.0.99", tmp_path)
    assert [path.read_bytes() for path in found] == [b"one", b"two"]
    assert [path.rpartition("/")[2] for path in asked] == ["one-1.jar", "two-1.jar", "two-1.jar"]


@pytest.mark.parametrize(("library", "name"), [(DELTA_LAKE, "Delta Lake"), (KAFKA_CONNECTOR, "Kafka connector")])
def test_jars_are_fetched_only_for_a_spark_that_they_fit(library: SparkLibrary, name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=rf"^no {name} is known for Spark 4\.9\.0: install pyspark==4\.0\.0"):
        provide_jars(library, "4.9.0", tmp_path)
