# The Kafka wire, pure: bytes in, values or bytes out. Standard library only; no I/O, no clock, no log, no policy.
#
# Words: a *frame* is one request or answer; buf[start:end] holds its content without the 4-byte size prefix, and what
# makes a frame returns it with the prefix. To *skim* is to read only what decisions and accounts need, to *walk* is to
# read step by step and know where everything lies. A *row* is one partition of a Produce answer. A *key* is a topic's
# name, or from Produce v13 on its 16-byte id, and the partition's index.
#
# The map:
#   wire.py           steps over integers, strings, arrays, tagged fields; MalformedFrame
#   fields.pxd        the smallest steps in C, for compiled modules
#   api.py            tables: API keys and names, flexible-from versions, the versions we speak, error codes
#   framing.py        whole frames out of a stream of bytes
#   describe.py       what bytes that are no Kafka frame look like, for the one log line
#   proxy_header.py   the PROXY protocol's header, by which a proxy passes a client's address on, read and written
#   message_codec.py  how messages are read and written from tables of their fields
#   produce/          Produce requests and answers
#   fetch/            Fetch requests and answers
#   rewriting/        what changes in a relayed message: addresses, versions, topic ids; names seen passing by
#   admin/            messages of admin APIs
#   authentication/   SASL, and names in certificates

from __future__ import annotations

from protocol.wire import MalformedFrame

__all__ = ["MalformedFrame"]
