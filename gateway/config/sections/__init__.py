# The sections of the configuration file as frozen, validated values. Each default stands here with its reason.
#
#   fields.py          sizes, times, names: values that several sections have
#   clients.py         the section `upstream`, and how a client of the gateway's own reaches a cluster
#   tls.py             the keys `ssl.…` of listeners and of the admin port
#   listeners.py       the section `listener`
#   authentication.py  the section `authentication`
#   admin.py           the sections `admin` and `health`
#   policies.py        the sections `thresholds`, `resource_groups`, `policies_store` and `internal`
#   limits.py          the section `limits`
#   storage.py         the section `storage`
#   logs.py            the sections `log` and `usage_log`
#
# Knows no sockets, no clients and no file but those that sections name.
