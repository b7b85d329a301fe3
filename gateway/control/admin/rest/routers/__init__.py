# The resources of the REST API: each module has an APIRouter, and the shapes of its requests and responses. A response
# model names the fields of the gateway's own value, from which FastAPI reads them.
#
#   thresholds.py   totals of brokers, thresholds of topics
#   quotas.py       client quotas
#   documents.py    all policies as a document, and their history
#   groups.py       resource groups
#   state.py        what the gateway does just now: status, peers, clients, connections; its configuration
#   storage.py      an operator's override of storage protection
#   explain.py      what holds for whom and why; topics by traffic
#   session.py      sessions of browsers, and who one is
