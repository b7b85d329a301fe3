# HTTP as a client: of the admin server's API, of Prometheus, of those who issue tokens.
#
#   http_client.py   one request and its response, bounded in time and size
#   admin_api.py     requests to the admin server's API and its responses, without I/O
