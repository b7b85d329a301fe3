# For all tests: Hypothesis profiles; real Kafka clusters, started when the first test asks for one; and how several
# processes share the files (`make test` runs JOBS of them with pytest-xdist; a file stays in one process).
#
# The default profile is small and derandomised: the same examples on every machine, in a
# second or two. HYPOTHESIS_PROFILE=exhaustive looks for new ones for minutes; what it finds becomes a named test.

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from gateway import embedded
from gateway.embedded import Cluster

settings.register_profile("small", max_examples=15, derandomize=True, deadline=None, database=None)
settings.register_profile(
    "exhaustive", max_examples=1000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "small"))


# Half of the time of tests that drive Kafka and clients is waiting, so processes are worth having even on two cores.
# Those begin first, the longest kind at their head: a long file that begins last would keep one process busy alone.
_KINDS = ("spark", "clients", "kafka")


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:  # a range of ports of its own: a port that is free may be another process's choice at the same moment
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        size = len(embedded.FREE_PORTS) // count
        first = embedded.FREE_PORTS.start + size * int(worker.removeprefix("gw"))
        embedded.FREE_PORTS = range(first, first + size)
    # kafka-python 3.0 reads its schemas with importlib.resources.read_text, which Python 3.11 and 3.12 deprecate.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.hookimpl(trylast=True)  # after pytest-randomly: the order within each kind stays random
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "AUDIT_FULL" not in os.environ:
        long = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    items.sort(key=_kind)


def _kind(item: pytest.Item) -> int:
    return next((place for place, mark in enumerate(_KINDS) if item.get_closest_marker(mark)), len(_KINDS))


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
