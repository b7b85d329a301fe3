# SASL that ends at the gateway.
#
#   authentication.py   the exchanges, and the credentials that brokers get for each client
#   credentials.py      records of passwords, and the gateway's own credentials: from files, or the operator's command
#   decoys.py           records of names that no user has, for challenges that don't give that away
#   bearer.py           JWTs, by the issuer's keys
#   fair_semaphore.py   bounds concurrency; waiting addresses take turns
