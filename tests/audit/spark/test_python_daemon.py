# Which archives Spark's Python workers do without.

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from gateway.audit.spark.python_daemon import _is_sparks_archive


def test_archives_with_this_program_or_a_library_stay(tmp_path: Path) -> None:
    for name in ("pyspark", "py4j", "gateway", "library"):
        with ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr(f"{name}/__init__.py", "")
    places = [*sorted(tmp_path.iterdir()), tmp_path / "spark-core.jar", tmp_path, Path("/usr/lib/python311.zip")]
    found = [place.name for place in places if _is_sparks_archive(str(place))]
    assert found == ["py4j.zip", "pyspark.zip", "spark-core.jar"]
