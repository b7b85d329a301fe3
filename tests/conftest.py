# For all tests: Hypothesis profiles, and real Kafka clusters that are started when the first test asks for them.
#
# The default profile is small and derandomised: the same examples on every machine, in a
# second or two. HYPOTHESIS_PROFILE=exhaustive looks for new ones for minutes; what it finds becomes a named test.

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from gateway.embedded import Cluster

settings.register_profile("small", max_examples=15, derandomize=True, deadline=None, database=None)
settings.register_profile(
    "exhaustive", max_examples=1000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "small"))


def pytest_configure(config: pytest.Config) -> None:
    # kafka-python 3.0 reads its schemas with importlib.resources.read_text, which Python 3.11 and 3.12 deprecate.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "AUDIT_FULL" not in os.environ:
        long = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


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
