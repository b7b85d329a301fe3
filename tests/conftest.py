# For all tests: Hypothesis profiles; real Kafka clusters, started when the first test asks for one; and how several
# processes share the files (`make test JOBS=3` runs three with pytest-xdist; a file stays in one process).
#
# The default profile is small and derandomised: the same examples on every machine, in a
# second or two. HYPOTHESIS_PROFILE=exhaustive looks for new ones for minutes; what it finds becomes a named test.

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gateway import embedded
from gateway.embedded import Cluster

settings.register_profile("small", max_examples=15, derandomize=True, deadline=None, database=None)
settings.register_profile(
    "exhaustive", max_examples=1000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "small"))


# What one process runs alone, the longest first: each has a session of its own to start (Spark, three brokers with a
# gateway), and together they would only take the cores from each other. Of the rest, each file is a group. Half of the
# time of tests that drive Kafka and clients is waiting, so several processes are worth having even on two cores.
_TESTS = Path(__file__).parent
_TOGETHER = ("audit", "clients")
_FIRST = (*_TOGETHER, "integration", "chaos", "hostile")


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:  # a range of ports of its own: a port that is free may be another process's choice at the same moment
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        size = len(embedded.FREE_PORTS) // count
        first = embedded.FREE_PORTS.start + size * int(worker.removeprefix("gw"))
        embedded.FREE_PORTS = range(first, first + size)
    config.pluginmanager.register(_Order())
    # kafka-python 3.0 reads its schemas with importlib.resources.read_text, which Python 3.11 and 3.12 deprecate.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "AUDIT_FULL" not in os.environ:
        long = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    for item in items:
        folder = _folder(item)
        item.add_marker(pytest.mark.xdist_group(folder if folder in _TOGETHER else item.path.as_posix()))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_TESTS).parts[0]


class _Order:
    """After pytest-randomly: what takes longest begins first, or one process would be busy with it at the end alone."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: _FIRST.index(_folder(item)) if _folder(item) in _FIRST else len(_FIRST))


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    """One broker for all tests of a run: use topics and groups with names of your own, and leave it running."""
    with Cluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3() -> Iterator[Cluster]:
    """Three brokers, likewise. A test that ends one of them starts it again, whatever happens."""
    with Cluster(3) as cluster:
        yield cluster
