# Plugins: objects of the operator's own. Sources and limits by name, as packages have registered them under an entry
# point group, ours among them, so that the extension point is the one we use ourselves; policies as "module:factory".
#
# Knows no source and no policy, only which methods each kind must have (policies/storage/, policies/plugin.py). Any
# failure in a package is one line that names the package: `check` and control show it, and no process dies of it.

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gateway.name_hints import find_nearest_name
from policies.plugin import TrafficPolicy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

VOLUME_SOURCES: Final = "produce_gateway.volume_sources"
LIMIT_POLICIES: Final = "produce_gateway.limit_policies"
FACTOR_SOURCES: Final = "produce_gateway.factor_sources"
QUOTA_SOURCES: Final = "produce_gateway.quota_sources"

REQUIRED_METHODS: Final = {
    VOLUME_SOURCES: ("observe",),
    LIMIT_POLICIES: ("breaches_hard_limit", "breaches_soft_limit", "quota_factor", "levels"),
    FACTOR_SOURCES: ("factor",),
    QUOTA_SOURCES: ("quotas",),
}
SNAPSHOTS: Final = "snapshots"  # a source that is no plugin: the volume topic
# The entry points that pyproject.toml registers. An installation older than the source tree may not list it yet.
OWN_PLUGINS: Final = {VOLUME_SOURCES: ("log-dirs", "prometheus")}


class PluginError(Exception):
    """A plugin can't be made; the text is one line that says which and why."""


def load_policy(name: str) -> TrafficPolicy:
    """The policy that `name`, "module:factory", makes. The module must be on the interpreter's path (PYTHONPATH).

    Raises:
        PluginError: it can't be imported or made, or has no `decide`.
    """
    what = f"policies: {name}"
    module, _, factory = name.partition(":")
    try:
        found = getattr(import_module(module), factory)
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what}: {_one_line(error)}") from error
    made: TrafficPolicy = _make_product(what, found, {}, ("decide",), "policies/plugin.py")
    return made


def load_plugin(group: str, name: str, options: Mapping[str, Any], offers: Mapping[str, Any] | None = None) -> Any:
    """The object that the factory registered as `name` in `group` makes of `options`, its keyword arguments.

    `offers`: objects that the gateway has to give, such as `active_brokers`. A factory gets those that it has a
    parameter for, where `options` don't say otherwise.

    Raises:
        PluginError: nothing of that name, or two; it can't be imported or made; it doesn't know an option or needs one
            that isn't there; its product lacks a method.
    """
    what = f"{group} {name}"
    factory = _find_factory(group, name)
    arguments = _factory_arguments(what, factory, options, offers or {})
    return _make_product(what, factory, arguments, REQUIRED_METHODS[group], "policies/storage/")


def _make_product(
    what: str, factory: Callable[..., Any], arguments: Mapping[str, Any], methods: Iterable[str], where: str
) -> Any:
    try:
        made = factory(**arguments)
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what}: {_one_line(error)}") from error
    missing = [method for method in methods if not callable(getattr(made, method, None))]
    if missing:
        raise PluginError(f"{what}: its product has no method {', '.join(missing)} (see {where})")
    return made


def _list_entries(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - workers need none of it

    return list(entry_points(group=group))


def _find_factory(group: str, name: str) -> Callable[..., Any]:
    entries = _list_entries(group)
    found = [each for each in entries if each.name == name]
    if not found:
        raise PluginError(_unknown_text(group, name, sorted({each.name for each in entries})))
    if len({entry.value for entry in found}) > 1:
        owners = ", ".join(sorted(f"{entry.value} of {_package_name(entry)}" for entry in found))
        raise PluginError(f"{group} {name}: registered more than once: {owners}; uninstall all but one")
    try:
        factory = found[0].load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{group} {name}: {found[0].value} of {_package_name(found[0])}: {_one_line(error)}"
        ) from error
    if not callable(factory):
        raise PluginError(
            f"{group} {name}: {found[0].value} of {_package_name(found[0])} is not a factory: it can't be called"
        )
    made: Callable[..., Any] = factory
    return made


def _unknown_text(group: str, name: str, known: list[str]) -> str:
    if name in OWN_PLUGINS.get(group, ()):
        return f"{group} {name}: the installed produce-gateway does not list it: install it again (pip install …)"
    if not known:
        return f"{group} {name}: no installed package registers anything there (see docs/plugins.md)"
    if group == VOLUME_SOURCES:
        known = sorted([*known, SNAPSHOTS])
    near = find_nearest_name(name, known)
    meant = f"did you mean {near}? " if near else ""
    return f"{group} {name}: unknown; {meant}known: {', '.join(known)}"


def _factory_arguments(
    what: str, factory: Callable[..., Any], options: Mapping[str, Any], offers: Mapping[str, Any]
) -> dict[str, Any]:
    """Checked before the call: a TypeError out of a factory would not tell its own mistake from a wrong option."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C
        return dict(options)
    by_name = {each.name: each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        unknown = [key for key in options if key not in by_name]
        if unknown:
            known = ", ".join(key for key in by_name if key not in offers) or "none"
            raise PluginError(f"{what}: unknown option {', '.join(map(str, unknown))}; known: {known}")
    arguments = {**{key: value for key, value in offers.items() if key in by_name}, **options}
    missing = [key for key, each in by_name.items() if each.default is each.empty and key not in arguments]
    if missing:
        raise PluginError(f"{what}: needs the option {', '.join(missing)}")
    return arguments


def _package_name(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"


def _one_line(error: BaseException) -> str:
    # Its own refusals speak for themselves; of other errors the kind is half of what they say.
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}".removesuffix(": ")
