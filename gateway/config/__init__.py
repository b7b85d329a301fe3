# The configuration file: YAML in, one frozen and validated value out, or lines that say what is wrong, where, and what
# would be right. Its public names are these; nothing outside of this package imports its modules.
#
#   sections/      the sections, one module for each or for a few that belong together
#   settings.py    the whole: all sections, and the keys beside them
#   reading/       from the file and the environment to the value, or to what is wrong
#   changes.py     what of another configuration holds without a restart
#   addresses.py   whether addresses of several sections meet
#   checks.py      warnings
#   schema.py      what each key means, as a JSON Schema
#
# Knows no sockets and no clients.

from gateway.config.addresses import find_relay_loops
from gateway.config.changes import ConfigChanges, compare_settings
from gateway.config.checks import find_warnings
from gateway.config.reading.examining import ConfigExamination, examine_config
from gateway.config.reading.loading import ConfigError, ConfigFinding, load_settings, parse_settings
from gateway.config.sections.admin import Admin
from gateway.config.sections.authentication import Authentication as AuthenticationSettings
from gateway.config.sections.clients import KNOWN_PROPERTIES, property_text
from gateway.config.sections.listeners import Listener
from gateway.config.sections.storage import Storage, VolumeLimits, limits_production
from gateway.config.settings import Settings

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
