# For all tests: Hypothesis profiles; how several processes share the tests (`make test` runs JOBS of them with
# pytest-xdist); and real Kafka clusters, started when the first test asks for one.
#
# The default profile is small and derandomised: the same examples on every machine, in a
# second or two. HYPOTHESIS_PROFILE=exhaustive looks for new ones for minutes; what it finds becomes a named test.
# "unshrunk" is for mutants.py: any example that fails is as good there as the smallest.

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

from gateway.data.sockets import reactor
from gateway.embedded import EmbeddedCluster, ports
from tests.certificates import Authority
from tests.runner.costs import Costs

settings.register_profile("small", max_examples=15, derandomize=True, deadline=None, database=None)
settings.register_profile(
    "exhaustive", max_examples=1000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("unshrunk", settings.get_profile("small"), phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "small"))
if "HYPOTHESIS_PROFILE" not in os.environ and hasattr(providers, "_get_local_constants"):
    # From 6.131 on it also draws numbers and texts that it finds in modules of ours that are loaded: examples would
    # differ with each change of the code, and with the tests that run in the same process.
    providers._get_local_constants = lambda: providers._local_constants


# `make test` runs several processes, and a process takes one group of tests after the other: a file, or all files that
# share something that takes long to start. So each cluster, Spark session and gateway is started once. The groups are
# told by path, since that is all that the scheduler has of a test.
_TESTS = Path(__file__).parent
_AUDIT, _CLIENTS, _SPARK, _THREE = "audit", "clients", "commands that start Spark", "three brokers"
_STREAMS = "audit: streams"  # goes on with the session of what is named so before the colon, if in the same process
_SHARING = {
    **dict.fromkeys(
        (
            "audit/stream/test_stream.py",
            "audit/stream/test_stream_kafka.py",
            "audit/stream/test_upkeep.py",
            "audit/whatif/test_whatif_gateway.py",  # it waits a minute, in the shorter one of the two groups
        ),
        _STREAMS,
    ),
    **dict.fromkeys(
        (  # each command is a Java of its own, so these need no session: beside those that do
            "audit/test_class_data.py",
            "audit/test_cli.py",
            "integration/test_demo_run.py",
        ),
        _SPARK,
    ),
    **dict.fromkeys(
        (
            "integration/cluster/test_describe.py",
            "integration/cluster/test_listeners.py",
            "integration/storage/test_log_dirs.py",
            "integration/cluster/test_placement.py",
            "integration/cluster/test_recreated_topics.py",
            "integration/fleet/test_policy_fleet.py",
            "integration/cluster/test_resilience.py",
        ),
        _THREE,
    ),
}
# These begin first, in this order: a long group that began last would keep one process busy while the others are idle.
# With several processes the audit has two sessions: one of it after the other would take longer than all the rest.
_FIRST = (
    _AUDIT,
    _STREAMS,
    _CLIENTS,
    _THREE,
    _SPARK,
    "integration/storage/test_storage_events.py",
    "integration/storage/test_storage_disk.py",
    "integration/limits/test_client_quotas.py",
    "integration/limits/test_thresholds.py",
    "integration/storage/test_volume_agent.py",
    "integration/fleet/test_policy_store.py",
    "gateway/control/test_app.py",
    "integration",
    "chaos",
    "deploy",  # on a new machine it compiles Helm first
    "gateway/test_cli.py",
    "hostile",
)
_SHARED = pytest.StashKey[ExitStack]()
_HAS_FAILED = pytest.StashKey[bool]()  # in this attempt


def pytest_configure(config: pytest.Config) -> None:
    # A shell begins its background jobs with SIGINT ignored, and all programs that they start would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:  # a range of ports of its own: a port that is free may be another process's choice at the same moment
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        size = len(ports.PORT_RANGE) // count
        first = ports.PORT_RANGE.start + size * int(worker.removeprefix("gw"))
        ports.PORT_RANGE = range(first, first + size)
    if worker or not getattr(config.option, "numprocesses", None):  # else others collect
        gc.disable()  # nothing of what is imported and collected is garbage; to look for it takes half of the time
    # Where a test plays a reactor's clients and brokers in the same trio, each of their steps waits for a slice's end.
    # In processes of their own they never do.
    reactor.SLICE_S = reactor.BRIEF_S
    config.stash[_SHARED] = ExitStack()
    config.pluginmanager.register(Costs())
    # kafka-python 3.0 reads its schemas with importlib.resources.read_text, which Python 3.11 and 3.12 deprecate.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By our groups. pytest-xdist's own (`--dist loadgroup`) writes them into `Item._nodeid`, which pytest 9.2 doesn't
    read any more: every test would be a group of its own, and every process start everything.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.partition("::")[0].removeprefix("tests/"))

    return Groups(config, log)


@pytest.hookimpl(tryfirst=True)  # after pytest-randomly
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "TESTS_FULL" not in os.environ:
        long = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    for item in items:
        _check_group(item)
        if _place(_group_of(item)) < len(_FIRST) or any(map(item.get_closest_marker, ("kafka", "clients", "spark"))):
            item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=lambda item: _place(_group_of(item)))


def pytest_collection_finish() -> None:
    gc.freeze()  # likewise with every test that collects garbage
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before fixtures, which make topics
def pytest_runtest_setup(item: pytest.Item) -> None:
    """TEST_ATTEMPT is 2 where a test runs again: a broker may have what the first attempt left."""
    os.environ["TEST_ATTEMPT"] = str(_attempt_of(item))
    if _attempt_of(item) == 2:
        _finish_module_fixtures(item)
    item.stash[_HAS_FAILED] = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What drives real processes runs a second time where it fails: the machine may have stood still, and so much has
    to keep time there. Its first failure is printed in full: often it is the product's, and rare.
    """
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"failed, then run again: {report.nodeid}", sep="_", yellow=True)
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.write_line(f"--- {name} ---")
            terminalreporter.write_line(text)


def _attempt_of(item: pytest.Item) -> int:
    return getattr(item, "execution_count", 1)


def _finish_module_fixtures(item: pytest.Item) -> None:
    """What a fixture has measured for several tests is measured anew: pytest-rerunfailures keeps what didn't fail."""
    if isinstance(item, pytest.Function):
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            for fixture in fixtures:
                if fixture.scope == "module":
                    fixture.finish(item._request)  # type: ignore[arg-type]  # of which the node is used


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Captured text may hold lone surrogates (tests log such names), which would end the process that sends it."""
    report = yield
    item.stash[_HAS_FAILED] |= report.failed
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def _check_group(item: pytest.Item) -> None:
    group = _group_of(item)
    if "kafka3" in getattr(item, "fixturenames", ()) and group != _THREE:
        raise pytest.UsageError(f"{item.nodeid} uses kafka3: its file must be in _SHARING, see tests/conftest.py")
    if item.get_closest_marker("spark") and group not in (_AUDIT, _STREAMS, _SPARK):
        raise pytest.UsageError(f"{item.nodeid} starts Spark: its file must be in _SHARING, see tests/conftest.py")


def _group_of(item: pytest.Item) -> str:
    return _group_at(item.path)


@functools.cache
def _group_at(path: Path) -> str:
    return _group(path.relative_to(_TESTS).as_posix())


def _group(path: str) -> str:
    """`path`: of a file, relative to tests/."""
    folder = path.partition("/")[0]
    return _SHARING.get(path, folder if folder in (_AUDIT, _CLIENTS) else path)


def _session_of(item: pytest.Item) -> str:
    """What the group shares with the next one: the two of the audit one session."""
    return _group_of(item).partition(":")[0]


def _place(group: str) -> int:
    return next((at for at, name in enumerate(_FIRST) if group == name or group.startswith(f"{name}/")), len(_FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    runs_again = item.stash[_HAS_FAILED] and item.get_closest_marker("flaky") and _attempt_of(item) == 1
    if not runs_again and (nextitem is None or _session_of(nextitem) != _session_of(item)):
        item.config.stash[_SHARED].close()
    if nextitem is None or nextitem.path != item.path:
        # What is left then stays: modules, Hypothesis's memory of examples. After all files to look through it takes a
        # second, for each test that collects garbage and every time that Python does.
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def group_stack(pytestconfig: pytest.Config) -> ExitStack:
    """What enters here ends with the last test of the group: brokers and Spark cost time and memory while they idle."""
    return pytestconfig.stash[_SHARED]


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedCluster]:
    """One broker for all tests of a run: use topics and groups with names of your own, and leave it running."""
    with EmbeddedCluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3(group_stack: ExitStack) -> EmbeddedCluster:
    """Three brokers, likewise. A test that ends one of them starts it again, whatever happens."""
    return group_stack.enter_context(EmbeddedCluster(3))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))
