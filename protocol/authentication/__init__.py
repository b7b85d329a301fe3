# SASL, and names in certificates.
#
# handshake.py            ApiVersions, SaslHandshake, SaslAuthenticate, as the gateway's own connections say them
# scram.py                SCRAM as a server says it, and what it knows passwords by
# distinguished_name.py   the name in a client's certificate, written as Java writes it
