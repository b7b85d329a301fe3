# The topics of a Metadata answer from v10 on (KIP-516), walked for their ids. A large cluster has hundreds of thousands
# of partitions there, and all other connections of the worker wait meanwhile: so this is flat. Lengths are read as the
# one byte that they nearly always are, and nothing is compared with `end` but once per topic. A step behind it is seen
# then, one behind the buffer is an IndexError.
#
# Compiled where a C compiler is (setup.py): metadata_topics.pxd has its types in C.

from __future__ import annotations

from protocol.wire import UUID_SIZE, Buffer, MalformedFrame, read_compact_count, read_uvarint, skip_bytes, skip_tags

TopicNamesById = dict[bytes, bytes]  # topic id -> name

_ID = UUID_SIZE  # a number of C where this is compiled
_MAX_LOOKAHEAD = (
    14 + 3 * (4 * 0xFF - 3) + 1
)  # bytes of a partition, of which single ones are looked at before it is known
_NO_ID = bytes(UUID_SIZE)  # a broker that has none (or a failed lookup) sends zeros


def read_new_ids(buf: Buffer, pos: int, end: int, known: TopicNamesById) -> tuple[int, TopicNamesById]:
    """The position behind the array of topics at `pos`; and the ids in it, with their names, that are not `known`.

    Raises:
        MalformedFrame: the array doesn't end before `end`.
    """
    data = buf  # for single bytes
    last = len(data) - _MAX_LOOKAHEAD
    learned: TopicNamesById = {}
    try:
        count, pos = read_compact_count(buf, pos, end)
        for _ in range(count):
            size = data[pos + 2]  # behind the error code
            name = pos + 3
            if size >= 0x80:
                size, name = read_uvarint(buf, pos + 2, end)
            pos = name + size - 1 if size else name
            topic_id = bytes(buf[pos : pos + _ID])
            if size > 1 and topic_id not in known:
                learned[topic_id] = bytes(buf[name:pos])
            pos += _ID
            size = data[pos + 1]  # behind is_internal
            if size < 0x80:
                size, pos = size - 1, pos + 2
            else:
                size, pos = read_compact_count(buf, pos + 1, end)
            for _ in range(size):
                if pos > last:  # an IndexError would say nothing of this partition
                    pos = _skip_partition(buf, pos, end)
                    continue
                # error, index, leader, leader epoch; arrays of replicas, in-sync replicas, offline replicas; tags
                after = pos + 14
                replicas = data[after]
                after += 4 * replicas - 3
                in_sync = data[after]
                after += 4 * in_sync - 3
                offline = data[after]
                after += 4 * offline - 3
                if 0 < replicas < 0x80 and 0 < in_sync < 0x80 and 0 < offline < 0x80 and data[after] == 0:
                    pos = after + 1
                else:
                    pos = _skip_partition(buf, pos, end)
            pos += 4  # topic authorized operations
            pos = pos + 1 if data[pos] == 0 else skip_tags(buf, pos, end)
            if pos > end:
                break
    except IndexError:  # cheaper than a check at every step
        pos = end + 1
    if pos > end:
        raise MalformedFrame("the frame ends within its topics")
    learned.pop(_NO_ID, None)
    return pos, learned


def _skip_partition(buf: Buffer, pos: int, end: int) -> int:
    pos = skip_bytes(pos, 14, end)
    for _ in range(3):
        count, pos = read_compact_count(buf, pos, end)
        pos = skip_bytes(pos, 4 * max(count, 0), end)
    return skip_tags(buf, pos, end)
