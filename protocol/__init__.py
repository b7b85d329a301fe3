# The Kafka wire, pure: bytes in, values or bytes out. Standard library only; no I/O, no clock, no log, no policy.
#
# Words: a *frame* is one request or answer; buf[start:end] holds its content without the 4-byte size prefix, and what
# makes a frame returns it with the prefix. To *skim* is to read only what decisions and accounts need, to *walk* is to
# read step by step and know where everything lies. A *row* is one partition of a Produce answer. A *key* is a topic's
# name, or from Produce v13 on its 16-byte id, and the partition's index.
#
# The map:
#   wire              steps over integers, strings, arrays, tagged fields; MalformedFrame
#   api               tables: API keys and names, flexible-from versions, the versions we speak, error codes
#   framing           whole frames out of a stream of bytes
#   describe          what bytes that are no Kafka frame look like, for the one log line
#   produce_request   skim, strip
#   produce_response  skim, local, merge, set_throttle, rewrite_endpoints
#   pending           what each request in flight is owed, in order
#   rewrite           ApiVersions caps; host and port in Metadata, FindCoordinator, DescribeCluster; topic ids
#   stream            addresses in Fetch, ShareFetch and ShareAcknowledge answers that are never held whole
#   fetch_request     how much a Fetch may ask for, changed in place
#   admin             how messages of admin APIs are read and written, from tables
#   configs, quotas   those tables, and how a request is split between the broker and us, and the answers merged
#   handshake         ApiVersions, SaslHandshake, SaslAuthenticate, as the gateway's own connections say them
#   cluster           DescribeCluster, Metadata, DescribeLogDirs, likewise
#   refusal           the answer that refuses a whole admin request
#   identity          who: client software, SASL principal seen passing by

from __future__ import annotations

from protocol.wire import MalformedFrame

__all__ = ["MalformedFrame"]
