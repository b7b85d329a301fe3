# Who asks on the admin port, and whether that one may: before any endpoint sees a request.
#
#   caller.py      who asks: name, role, and how that was proven
#   rules.py       one table: which request needs which role
#   holders.py     from a token or a certificate to a name and a role; the token file while it changes
#   sessions.py    sessions of browsers
#   failures.py    failed attempts by address
#   forwarded.py   the client's address behind a proxy
#   origin.py      which pages may change something
#   gate.py        all of it in front of an ASGI application
#   making.py      the gate, from the configuration
#   admin_tls.py   TLS of the admin server
#
# For pages of a console:
#
# - Each path has a row in rules.ACCESS_TABLE, else only admins reach it. `page=True` sends a browser that has to log in
#   to rules.LOGIN_PATH?next=…, where others get a problem document (RFC 9457).
# - `caller_of(scope)` is the caller: `.name` ("" unknown), `.role` (ordered: `caller.role >= AccessRole.OPERATOR`),
#   `.csrf`.
# - A change that a browser sends within a session has to bring `caller.csrf`, as the header X-CSRF-Token (htmx:
#   hx-headers on the body) or as the form field `csrf_token`. The gate checks it, and that the page is ours.
# - Login: `gate_of(scope).log_in(scope, token)` returns `LoginOutcome(headers, problem, retry_after_s)`; with a
#   `problem` the login failed, else `headers` have the cookie for the answer, such as a 303.
#   `gate_of(scope).log_out(scope)` returns such headers as well. The row of a login has the role NONE, for which no
#   credentials are needed, nor a CSRF token; that of a logout VIEWER. /v1/session is the same for programs
#   (admin/rest/routers/session.py).
# - Without any credentials in the configuration there is no login: who asks from this machine is an admin.
