# The Kafka wire, pure: bytes in, values or bytes out. Standard library only; no I/O, no clock, no log, no policy.
#
# Words: a *frame* is one request or answer; buf[start:end] holds its content without the 4-byte size prefix, and what
# makes a frame returns it with the prefix. To *skim* is to read only what decisions and accounts need, to *walk* is to
# read step by step and know where everything lies. A *row* is one partition of a Produce answer. A *key* is a topic's
# name, or from Produce v13 on its 16-byte id, and the partition's index.
#
# The map:
#   wire.py                 steps over integers, strings, arrays, tagged fields; MalformedFrame
#   api.py                  tables: API keys and names, flexible-from versions, the versions we speak, error codes
#   framing.py              whole frames out of a stream of bytes
#   describe.py             what bytes that are no Kafka frame look like, for the one log line
#   produce_fast.pyx        the form of nearly all Produce requests and answers, read fast; only compiled
#   fields.pxd              the smallest steps in C, for compiled modules
#   produce_request.py      skim, strip
#   produce_response.py     skim, local, merge, set_throttle, rewrite_endpoints
#   rewrite.py              ApiVersions caps; host and port in Metadata, FindCoordinator, DescribeCluster; topic ids
#   metadata_topics.py      the ids in a Metadata answer about any number of partitions; compiled where it can be
#   stream.py               addresses in Fetch, ShareFetch and ShareAcknowledge answers that are never held whole
#   fetch_request.py        how much a Fetch may ask for, changed in place
#   fetch_response.py       how many bytes of records each partition of a Fetch answer has
#   admin.py                how messages of admin APIs are read and written, from tables
#   configs.py, quotas.py, topics.py   those tables, and how a request is split between the broker and us, and the
#                           answers merged
#   topic_deletion.py       DeleteTopics, which is only read
#   handshake.py            ApiVersions, SaslHandshake, SaslAuthenticate, as the gateway's own connections say them
#   cluster.py              DescribeCluster, Metadata, DescribeLogDirs, likewise
#   refusal.py              the answer that refuses a whole admin request
#   proxy_header.py         whose connection a proxy passes on: the PROXY protocol's header, read and written
#   distinguished_name.py   the name in a client's certificate, written as Java writes it
#   identity.py             who: client software, SASL principal seen passing by
#   scram.py                SCRAM as a server says it, and what it knows passwords by

from __future__ import annotations

from protocol.wire import MalformedFrame

__all__ = ["MalformedFrame"]
