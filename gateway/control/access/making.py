# The gate and the TLS of the admin port, from the section `admin` of the configuration.

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from gateway.access_tokens.roles import AccessRole, parse_role
from gateway.config import Admin
from gateway.control.access.admin_tls import AdminTls
from gateway.control.access.gate import AccessGate
from gateway.control.access.holders import CredentialHolders


def make_gate(admin: Admin, count: Callable[[str], None]) -> AccessGate:
    """`count`: see AccessGate."""
    principals = {name: parse_role(role) for name, role in admin.principals.items()}
    return AccessGate(
        CredentialHolders(admin.tokens, admin.token_file, principals, admin.principal_rules),
        anonymous=AccessRole.VIEWER if admin.anonymous == "viewer" else AccessRole.NONE,
        metrics=AccessRole.NONE if admin.metrics == "open" else AccessRole.VIEWER,
        hosts=admin.host_names,
        proxies=tuple(map(ipaddress.ip_network, admin.trusted_proxies)),
        count=count,
    )


def make_admin_tls(admin: Admin, count: Callable[[str], None]) -> AdminTls | None:
    """None: plain HTTP. `count`: see AdminTls."""
    return None if admin.tls is None else AdminTls(admin.tls, count)
