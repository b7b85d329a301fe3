# The gate and the TLS of the admin port, from the section `admin` of the configuration.

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from gateway.access_tokens.roles import Role, role_of
from gateway.config import Admin
from gateway.control.access.admin_tls import AdminTls
from gateway.control.access.gate import Gate
from gateway.control.access.holders import Holders


def make_gate(admin: Admin, count: Callable[[str], None]) -> Gate:
    """`count`: see Gate."""
    principals = {name: role_of(role) for name, role in admin.principals.items()}
    return Gate(
        Holders(admin.tokens, admin.token_file, principals, admin.principal_rules),
        anonymous=Role.VIEWER if admin.anonymous == "viewer" else Role.NONE,
        metrics=Role.NONE if admin.metrics == "open" else Role.VIEWER,
        hosts=admin.names,
        proxies=tuple(map(ipaddress.ip_network, admin.trusted_proxies)),
        count=count,
    )


def make_tls(admin: Admin, count: Callable[[str], None]) -> AdminTls | None:
    """None: plain HTTP. `count`: see AdminTls."""
    return None if admin.tls is None else AdminTls(admin.tls, count)
