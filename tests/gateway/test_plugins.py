# Plugins as somebody else would bring them: a distribution that is really installed (a folder on the path with metadata
# and entry points), and the example of docs/plugins.md word for word, so that what it says stays true.

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gateway import config, plugins
from gateway.control.components.optional_components import SOURCE
from gateway.control.outside import Outside
from gateway.control.storage import sources
from gateway.plugins import PluginError
from policies.storage import ObservationFailed, QuotaValues, Volume, VolumeLimit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """install(distribution, {group: {name: value}}, {module: source}): what pip leaves behind."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(distribution: str, groups: Mapping[str, Mapping[str, str]], modules: Mapping[str, str]) -> None:
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items()) for group, names in groups.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for module, source in modules.items():
            (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))

    return put


def refused(group: str, name: str, **options: object) -> str:
    with pytest.raises(PluginError) as error:
        plugins.load_plugin(group, name, options)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- the example of docs/plugins.md -----------------------------------------------------------------------------------


def block(language: str, containing: str) -> str:
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in text]
    assert len(found) == 1, (language, containing)
    return str(found[0])


@pytest.fixture
def example(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads(block("toml", "acme-limits"))["project"]
    (module,) = tomllib.loads(block("toml", "acme-limits"))["tool"]["setuptools"]["py-modules"]
    monkeypatch.delitem(sys.modules, module, raising=False)
    install(project["name"], project["entry-points"], {module: block("python", "class FileQuotas")})


@pytest.mark.seed("DISK.9", "035.40")
@pytest.mark.usefixtures("example")
def test_the_example_of_a_quota_source_gives_what_its_file_says(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    source = plugins.load_plugin(plugins.QUOTA_SOURCES, "acme-file", {"path": str(path)})
    with pytest.raises(ObservationFailed, match=r"limits\.json"):
        source.quotas()
    path.write_text(json.dumps({"total": 20_000_000, "topics": {"clicks": 5_000_000}}))
    assert source.quotas() == QuotaValues(20_000_000.0, {"clicks": 5_000_000.0})
    path.write_text("[]")
    with pytest.raises(ObservationFailed):
        source.quotas()
    upstream = "upstream: {bootstrap_servers: '127.0.0.1:9092'}\n"
    named = f"{upstream}thresholds: {{source: acme-file, options: {{path: {path}}}}}"
    assert [SOURCE in Outside().make_components(config.parse_settings(text)) for text in (upstream, named)] == [
        False,
        True,
    ]


@pytest.mark.usefixtures("example")
def test_the_example_of_a_factor_source_gives_what_its_file_says(tmp_path: Path) -> None:
    path = tmp_path / "factor"
    source = plugins.load_plugin(plugins.FACTOR_SOURCES, "acme-shared", {"path": str(path), "lowest": 0.1})
    for text, factor in (("0.5\n", 0.5), ("0", 0.1), ("1", 1.0)):
        path.write_text(text)
        assert source.factor() == factor
    for text in ("7", "nan", "half"):
        path.write_text(text)
        with pytest.raises(ObservationFailed):
            source.factor()


@pytest.mark.usefixtures("example")
def test_the_example_refuses_in_one_line() -> None:
    group = plugins.QUOTA_SOURCES
    assert refused(group, "acme-file", path="limits.json") == (
        f"{group} acme-file: path: limits.json must be absolute, since the gateway may be started from anywhere"
    )
    expected = f"{group} acme-fiel: unknown; did you mean acme-file? known: acme-file"
    assert refused(group, "acme-fiel") == expected
    assert expected in PAGE


def test_the_examples_configurations_are_accepted() -> None:
    settings = config.parse_settings(block("yaml", "acme-file"))
    assert settings.storage is not None
    assert (settings.thresholds.source, settings.storage.factor_source) == ("acme-file", "acme-shared")
    upstream = "upstream: {bootstrap_servers: 'broker1:9092'}\n"
    prometheus = block("yaml", "job=")
    assert config.parse_settings(upstream + prometheus).storage
    kubelet = block("yaml", "kubelet_volume_stats")
    parts = re.split(r"(?m)^    available: .*\n    size: .*\n", prometheus)
    assert config.parse_settings(upstream + parts[0] + kubelet + parts[1]).storage


@pytest.mark.seed("DISK.6")
def test_groups_and_methods_are_those_of_the_page() -> None:
    for group, methods in plugins.REQUIRED_METHODS.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{group}`"))
        assert all(method in row for method in methods)


# --- our own ----------------------------------------------------------------------------------------------------------


def test_our_own_sources_are_found_by_the_same_way() -> None:
    registered = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert set(registered) <= set(plugins.REQUIRED_METHODS)
    assert tuple(registered[plugins.VOLUME_SOURCES]) == plugins.OWN_PLUGINS[plugins.VOLUME_SOURCES]
    entries = {each.name for each in plugins._list_entries(plugins.VOLUME_SOURCES)}
    assert set(plugins.OWN_PLUGINS[plugins.VOLUME_SOURCES]) <= entries
    offers = {"properties": {}, "bootstrap_servers": "127.0.0.1:9092", "active_brokers": frozenset}
    source = plugins.load_plugin(plugins.VOLUME_SOURCES, "log-dirs", {}, offers)
    source.close()
    assert plugins.load_plugin(plugins.VOLUME_SOURCES, "prometheus", {"url": "http://127.0.0.1:9090"}, offers)
    told = refused(plugins.VOLUME_SOURCES, "prometheus", url="ftp://127.0.0.1")
    assert told.endswith("url 'ftp://127.0.0.1' is not a valid URL of Prometheus; for example: http://prometheus:9090")


UPSTREAM = "upstream: {bootstrap_servers: 'broker1:9092'}\n"


@pytest.mark.parametrize(
    ("name", "storage"),
    [("log-dirs", "{min.available.bytes: 1}"),
     ("prometheus", "{source: prometheus, min.available.bytes: 1, prometheus: {url: 'http://p'}}")],
)  # fmt: skip
def test_the_gateway_itself_looks_ours_up_there(install: Install, name: str, storage: str) -> None:
    settings = config.parse_settings(UPSTREAM + f"storage: {storage}")
    assert settings.storage is not None
    sources.check_storage(settings, settings.storage)
    install("other", {plugins.VOLUME_SOURCES: {name: "json:loads"}}, {})
    with pytest.raises(sources.StorageError, match="registered more than once"):
        sources.check_storage(settings, settings.storage)


@pytest.mark.seed("DISK.6")
def test_a_source_and_limits_of_ones_own_have_options_of_their_own(install: Install) -> None:
    source = """
        class Source:
            def __init__(self, path): self.path = path
            def observe(self): return None

        class Limits:
            def __init__(self, level): self.level = level
            def breaches_hard_limit(self, volume): return False
            def breaches_soft_limit(self, volume): return False
            def quota_factor(self, volume): return self.level
            def levels(self, volume): return None, None
    """
    groups = {
        plugins.VOLUME_SOURCES: {"mine": "two_plugins:Source"},
        plugins.LIMIT_POLICIES: {"my": "two_plugins:Limits"},
    }
    install("two", groups, {"two_plugins": source})
    text = "{source: mine, options: {path: /x}, limit_policy: my, limit_policy_options: {level: 0.25}}"
    settings = config.parse_settings(UPSTREAM + f"storage: {text}")
    assert settings.storage is not None
    policy, made = sources.make_policy_and_source(settings, settings.storage)
    assert getattr(made, "path", None) == "/x"
    assert policy.quota_factor(Volume(1, "/data", 100, 50)) == 0.25


# --- what somebody's package can have wrong ---------------------------------------------------------------------------

MODULE = """
    class Source:
        def __init__(self, url, depth=1, *, active_brokers=None):
            self.arguments = (url, depth, active_brokers)

        def observe(self):
            return self.arguments

    def swallow(**options):
        return Source("", **options)

    def lacks(): return object()
    def raises(): raise RuntimeError("two\\n  lines")
    def silent(): raise KeyError
    def wants_type(): return Source()
    number = 7
"""


@pytest.fixture
def zoo(install: Install) -> None:
    values = ("Source", "swallow", "lacks", "raises", "silent", "wants_type", "number", "absent")
    names = {value.lower(): f"zoo_sources:{value}" for value in values}
    names |= {"gone": "zoo_nowhere:make", "broken": "zoo_broken:make"}
    install("zoo", {plugins.VOLUME_SOURCES: names}, {"zoo_sources": MODULE, "zoo_broken": "import zoo_missing_too"})


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("gone", {}, "zoo_nowhere:make of zoo: ModuleNotFoundError: No module named 'zoo_nowhere'"),
        ("broken", {}, "zoo_broken:make of zoo: ModuleNotFoundError: No module named 'zoo_missing_too'"),
        ("absent", {}, "zoo_sources:absent of zoo: AttributeError: module 'zoo_sources' has no attribute 'absent'"),
        ("number", {}, "zoo_sources:number of zoo is not a factory: it can't be called"),
        ("raises", {}, "RuntimeError: two lines"),
        ("silent", {}, "KeyError"),
        ("lacks", {}, "its product has no method observe (see policies/storage/)"),
        ("source", {}, "needs the option url"),
        ("source", {"url": "x", "dept": 2}, "unknown option dept; known: url, depth, active_brokers"),
        ("swallow", {"dept": 2}, "TypeError: Source.__init__() got an unexpected keyword argument 'dept'"),
    ],
)
def test_a_mistake_of_a_plugin_is_one_line(name: str, options: dict[str, object], told: str) -> None:
    text = refused(plugins.VOLUME_SOURCES, name, **options)
    prefix = f"{plugins.VOLUME_SOURCES} {name}: "
    assert text.startswith(prefix)
    # Python itself words some of it, from release to release a little differently.
    assert text.removeprefix(prefix) == told or name == "swallow"


@pytest.mark.usefixtures("zoo")
def test_options_and_offers_become_arguments() -> None:
    load = plugins.load_plugin
    made = load(plugins.VOLUME_SOURCES, "source", {"url": "x", "depth": 3}, {"active_brokers": 7, "other": 8})
    assert made.observe() == ("x", 3, 7)
    made = load(plugins.VOLUME_SOURCES, "source", {"url": "x", "active_brokers": 1}, {"active_brokers": 7})
    assert made.observe() == ("x", 1, 1)


@pytest.mark.usefixtures("zoo")
def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    told = refused(plugins.VOLUME_SOURCES, "promethius")
    assert "did you mean prometheus? known: absent, " in told
    assert all(name in told for name in ("log-dirs", "prometheus", "swallow"))
    assert "no installed package registers anything there" in refused(plugins.FACTOR_SOURCES, "anything")


def test_a_name_that_two_packages_claim_is_refused(install: Install) -> None:
    module = {"one_source": "class S:\n    def factor(self): return 1.0\n"}
    install("one", {plugins.FACTOR_SOURCES: {"twice": "one_source:S"}}, module)
    assert plugins.load_plugin(plugins.FACTOR_SOURCES, "twice", {}).factor() == 1.0
    install("two", {plugins.FACTOR_SOURCES: {"twice": "two_source:S"}}, {})
    told = refused(plugins.FACTOR_SOURCES, "twice")
    assert "registered more than once: one_source:S of one, two_source:S of two" in told


def test_a_factory_that_ends_the_process_is_one_line(install: Install) -> None:
    install(
        "exits",
        {plugins.VOLUME_SOURCES: {"call": "exits_on_call:make", "import": "exits_on_import:make"}},
        {"exits_on_call": "import sys\ndef make(): sys.exit(3)\n", "exits_on_import": "import sys\nsys.exit(3)\n"},
    )
    assert refused(plugins.VOLUME_SOURCES, "call").endswith("SystemExit: 3")
    assert refused(plugins.VOLUME_SOURCES, "import").endswith("SystemExit: 3")


@pytest.mark.seed("035.26", "DISK.6")
def test_a_limit_policy_needs_all_four_methods(install: Install) -> None:
    source = """
        class Half:
            def breaches_hard_limit(self, volume): return False
            def breaches_soft_limit(self, volume): return volume.available_ratio < 0.5
            def quota_factor(self, volume): return 0.5 if self.breaches_soft_limit(volume) else 1.0

        class Whole(Half):
            def levels(self, volume): return (volume.total / 2, None)
    """
    names = {"half": "half_policy:Half", "whole": "half_policy:Whole"}
    install("half", {plugins.LIMIT_POLICIES: names}, {"half_policy": source})
    assert refused(plugins.LIMIT_POLICIES, "half").endswith("has no method levels (see policies/storage/)")
    policy = plugins.load_plugin(plugins.LIMIT_POLICIES, "whole", {})
    volume = Volume(1, "/data", 100, 40, hard=VolumeLimit("MinFreeBytes", 1))
    assert (policy.quota_factor(volume), policy.levels(volume)) == (0.5, (50.0, None))
