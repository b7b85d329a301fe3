# The REST API of the admin server.
#
#   api.py       thresholds, client quotas, documents, views
#   groups.py    resource groups
#   context.py   what endpoints are handed
#   models.py    what the API takes and answers
#   problems.py  its errors (RFC 9457)
#   guard.py     which requests may reach the API at all
#   rights.py    who has admin rights
