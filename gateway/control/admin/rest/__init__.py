# The REST API of the admin server.
#
#   api.py       thresholds, client quotas, documents, views
#   groups.py    resource groups
#   state.py      what the gateway does just now: status, peers, clients, connections
#   configuration.py   the configuration file: whether it holds, and reading it again
#   storage.py   an operator's override of storage protection
#   context.py   what endpoints are handed
#   asker.py     who asks, and what that one may change
#   models.py    what the API takes and answers
#   problems.py  its errors (RFC 9457)
#   guard.py     the form that all requests must have
#   session.py   sessions of browsers, and who one is
