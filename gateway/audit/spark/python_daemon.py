# The daemon from which Spark forks its Python workers (`spark.python.daemon.module`): PySpark's own, with PySpark from
# the folder where it is installed. Spark has workers find it in archives first, of which Python up to 3.12 reads the
# whole directories anew, for each package once, at each task: 0.09 s of CPU time for every task.

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

_SPARKS_OWN = ("pyspark", "py4j")


def _is_sparks_archive(path: str) -> bool:
    """Others may have this program, or what it imports."""
    has_own = path.endswith(".zip") and any(PathFinder.find_spec(name, [path]) for name in _SPARKS_OWN)
    return has_own or path.endswith(".jar")


if __name__ == "__main__":
    archives = [path for path in sys.path if _is_sparks_archive(path)]
    folders = [path for path in sys.path if path not in archives]
    if all(PathFinder.find_spec(name, folders) is not None for name in _SPARKS_OWN):
        sys.path[:] = folders
        for path in archives:
            sys.path_importer_cache.pop(path, None)

    from pyspark import daemon

    daemon.manager()  # type: ignore[no-untyped-call]
