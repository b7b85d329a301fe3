# The configuration file: YAML in, one frozen and validated value out, or lines that say what is wrong, where, and what
# would be right. Its public names are these; nothing outside of this package imports its modules.
#
#   fields.py    sizes, times, names: values that several sections have
#   clients.py   how a client of the gateway's own reaches a cluster
#   storage.py   the section `storage`
#   sections.py  all other sections, and the whole
#   loading.py   from the file to the value, or to what is wrong
#   checks.py    warnings
#
# Knows no sockets and no clients.

from gateway.config.checks import warnings
from gateway.config.clients import property_text
from gateway.config.loading import ConfigError, load, parse
from gateway.config.sections import Listener, Settings
from gateway.config.storage import Storage, StorageLimit, limits_production

__all__ = [
    "ConfigError",
    "Listener",
    "Settings",
    "Storage",
    "StorageLimit",
    "limits_production",
    "load",
    "parse",
    "property_text",
    "warnings",
]
