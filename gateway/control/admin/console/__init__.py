# The web console, on the admin server beside the API: pages made on the server, without a build step, nothing from
# outside. It knows the gateway by the API alone, which it calls within the process and with the rights of its caller
# for the page; so it can neither show nor change what the API would refuse, and it computes nothing a second time.
#
#   site.py       the ASGI application: which path is whose, headers, files
#   pages.py      the pages: what each asks of the API
#   edits.py      changes of limits: looked at first, then made
#   api_client.py the API, asked within the process
#   rendering.py  templates, and values as people read them
#   charts.py     numbers over time as the geometry of a drawing: pure
#
# templates/ has a page each. In static/ is all that a browser loads; htmx (its version is its folder's name, its
# licence beside it) asks for a page's live part again and again. Nothing inline: the policy (CSP) forbids it.
