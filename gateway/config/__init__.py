# The configuration file: YAML in, one frozen and validated value out, or lines that say what is wrong, where, and what
# would be right. Its public names are these; nothing outside of this package imports its modules.
#
#   fields.py          sizes, times, names: values that several sections have
#   clients.py         how a client of the gateway's own reaches a cluster
#   tls.py             the keys `ssl.…` of listeners and of the admin port
#   listeners.py       the section `listener`
#   logs.py            the section `log`
#   storage.py         the section `storage`
#   authentication.py  the section `authentication`
#   sections.py        all other sections, and the whole
#   keys.py            which keys there are, and of which types
#   environment.py     variables of the environment, which stand before the file
#   secret_files.py    secrets that stand in files of their own
#   loading.py         from the file to the value, or to what is wrong
#   examining.py       all that is wrong at once, also by stages outside of this package
#   changes.py         what of another configuration holds without a restart
#   addresses.py       whether addresses of several sections meet
#   checks.py          warnings
#   descriptions.py    what each key means
#
# Knows no sockets and no clients.

from gateway.config.addresses import find_relay_loops
from gateway.config.authentication import Authentication as AuthenticationSettings
from gateway.config.changes import ConfigChanges, compare_settings
from gateway.config.checks import find_warnings
from gateway.config.clients import KNOWN_PROPERTIES, property_text
from gateway.config.examining import ConfigExamination, examine_config
from gateway.config.listeners import Listener
from gateway.config.loading import ConfigError, ConfigFinding, load_settings, parse_settings
from gateway.config.sections import Admin, Settings
from gateway.config.storage import Storage, VolumeLimits, limits_production

__all__ = [
    "KNOWN_PROPERTIES",
    "Admin",
    "AuthenticationSettings",
    "ConfigChanges",
    "ConfigError",
    "ConfigExamination",
    "ConfigFinding",
    "Listener",
    "Settings",
    "Storage",
    "VolumeLimits",
    "compare_settings",
    "examine_config",
    "find_relay_loops",
    "find_warnings",
    "limits_production",
    "load_settings",
    "parse_settings",
    "property_text",
]
