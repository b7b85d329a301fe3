# The archive of Spark's classes: one that can't be used costs nothing but time. That an audit takes its classes from it
# is in test_cli.py, with all else that one run of the command shows.

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.audit import class_data
from gateway.audit.errors import AuditError
from gateway.audit.spark import spark_session
from gateway.audit.spark.connector import MissingDependency
from gateway.embedded import jars

pytestmark = pytest.mark.spark


@pytest.mark.full  # Java goes on without one that it can't use; that one is used: test_cli.py
def test_an_archive_that_is_none_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").symlink_to(spark_session.SPARK_JARS)
    monkeypatch.setattr(spark_session, "SPARK_JARS", tmp_path / "jars")
    archive = jars.class_data_path(spark_session.SPARK_JARS)
    archive.write_bytes(b"none")
    assert class_data.make_archive() == archive
    assert any(str(archive) in option for option in jars.class_data_options(spark_session.SPARK_JARS))
    with spark_session.open_session(kafka=False) as spark:
        assert spark.range(3).count() == 3


def test_other_jars_have_another_archive(tmp_path: Path) -> None:
    before = jars.class_data_path(tmp_path)
    (tmp_path / "one.jar").write_bytes(b"first")
    first = jars.class_data_path(tmp_path)
    (tmp_path / "one.jar").write_bytes(b"of another release")
    assert len({before, first, jars.class_data_path(tmp_path)}) == 3


@pytest.fixture
def no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that it would be in."""
    monkeypatch.setattr(spark_session, "SPARK_JARS", tmp_path / "jars")
    return tmp_path


def test_where_nothing_can_be_written_it_says_so(
    no_archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != no_archive)
    assert class_data.main([]) == 1
    assert capsys.readouterr().err.startswith(f"{no_archive} can't be written: ")
    assert list(no_archive.iterdir()) == []


def test_half_an_archive_is_none(no_archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(archive: Path) -> None:
        archive.write_bytes(b"half")
        raise AuditError("killed")

    monkeypatch.setattr(class_data, "_dump_classes", fail)
    with pytest.raises(AuditError, match="killed"):
        class_data.make_archive()
    assert list(no_archive.iterdir()) == []


def test_without_java_it_says_what_to_install(
    no_archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jars.find_java_path.cache_clear()
    try:
        monkeypatch.setenv("JAVA_HOME", str(no_archive))
        assert class_data.main([]) == 1
        assert capsys.readouterr().err.startswith("Kafka and Spark need Java 17 or newer")
        with pytest.raises(MissingDependency, match=r"^Kafka and Spark need"), spark_session.open_session(kafka=False):
            pass
    finally:
        jars.find_java_path.cache_clear()
