# Requests of a client for which control is asked: SASL, admin requests, names of topic ids.
#
#   admin_requests.py  admin requests that control answers
#   authentication.py  the principal, by SASL or else by certificate
#   lookup.py          names of topic ids that this worker doesn't know
