# One connection's Kafka protocol without sockets (sans-IO): requests, verdicts, answers.
#
#   session.py      sans-IO: joins the parts below for one connection
#   requests.py     from the client's bytes to what goes upstream
#   responses.py    from the broker's bytes to what the client gets
#   enforcement.py  the gate's verdict on a Produce request, carried out
#   gate.py         sans-IO: what may pass
#   dispatch.py     the same for resource groups with a dispatch limit
#   fetches.py      what Fetch requests may ask for, and what their answers are charged
#   fast_path.pyx   the usual requests and answers, by the run; only compiled
#   accounts.py     sans-IO: how every byte is counted, and given back to limits where it is lost
#   termination.py  the same where SASL ends here
