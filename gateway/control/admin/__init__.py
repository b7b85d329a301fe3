# What the admin server answers. HTTP is http_server.py's; who may ask for what is access/'s.
#
#   application.py       the ASGI application: /metrics, /healthz, /readyz, and everything else beside them
#   lazy_application.py  the API and the console: made when they are first asked for
#   rest/                the API
#   console/             pages for people, which ask the API
