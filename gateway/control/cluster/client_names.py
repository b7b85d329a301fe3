# Whether brokers know a client by another name than the gateway does: then their quotas of a user hold for other
# clients than the gateway's quotas of that user. Knows no quota.

from __future__ import annotations

from typing import Final

from gateway.config import Settings

_SASL: Final = (
    "SASL ends at the gateway, so brokers know a client by the user of authentication.upstream_credentials_file, and by"
    " its quotas"
)
_CERTIFICATES: Final = (
    "brokers don't see clients' certificates, so they know a client that has no other name than its certificate's as"
    " the gateway or as ANONYMOUS, and by the quotas of that"
)


def find_other_names(settings: Settings) -> str:
    """Why brokers may know clients by other names; "": they don't."""
    if any(settings.authentication_of(name) is not None for name in settings.all_listeners):
        return _SASL
    listeners = settings.all_listeners.values()
    takes_certificates = any(each.tls is not None and each.tls.client_auth != "none" for each in listeners)
    return _CERTIFICATES if takes_certificates and not settings.upstream.wants_sasl else ""
