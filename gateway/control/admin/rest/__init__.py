# The REST API of the admin server.
#
#   api.py           the application
#   routers/         its resources: routes, requests, responses
#   context.py       the gateway, as endpoints see it
#   dependencies.py  what endpoints are handed: the gateway, the facts, the author of a request
#   facts.py         the facts about traffic that answers are worked out from
#   models.py        shapes that several resources share
#   json_bodies.py   bodies of requests
#   problems.py      errors (RFC 9457)
#   guard.py         the form that all requests must have
