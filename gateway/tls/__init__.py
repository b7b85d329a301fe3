# TLS as it is configured, on both sides of the gateway. The data plane speaks it: gateway/data/sockets/tls.py.
#
#   certificates.py        a listener's certificate, and the clients' that it accepts: files, renewal
#   certificate_names.py   whether a certificate is for the names that clients are told
#   server_names.py        which broker a client wants by the server name in its handshake
#   principal_rules.py     which principals clients' certificates make (ssl.principal.mapping.rules)
#   java_patterns.py       Java's regular expressions, for these rules
#   broker_tls.py          TLS to brokers, from librdkafka's properties
#   tls_reasons.py         OpenSSL's reasons of an error
