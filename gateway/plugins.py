# Policies of the operator's own: made from what the configuration names, "module:factory", by the worker that asks them
# and, before anything is opened, by `check` and by control, so that a mistake is one line and not a worker that dies.

from __future__ import annotations

from importlib import import_module

from policies.plugin import TrafficPolicy


class PluginError(Exception):
    """A policy can't be made; the text is one line that says which and why."""


def load_policy(name: str) -> TrafficPolicy:
    """The policy that `name`, "module:factory", makes. The module must be on the interpreter's path (PYTHONPATH).

    Raises:
        PluginError: it can't be imported or made, or has no `decide`.
    """
    module, _, factory = name.partition(":")
    try:
        policy = getattr(import_module(module), factory)()
    except Exception as error:
        raise PluginError(f"policies: {name}: {type(error).__name__}: {error}") from error
    if not callable(getattr(policy, "decide", None)):
        raise PluginError(f"policies: {name}: its product has no method decide (see policies/plugin.py)")
    made: TrafficPolicy = policy
    return made
