# Produce requests and answers in the form that nearly all have, read in C: they decide what the gateway costs. Only the
# compiled gateway has this module.
#
# Each of these functions gives None, False or -1 for whatever else is there: a tagged field, a batch of an old format,
# the same topic twice, a frame that is cut or damaged. The careful readers (produce_request.py, produce_response.py)
# know every form, and say what is wrong; tests hold the two to each other.
#
# Spec: ProduceRequest.json, ProduceResponse.json; KIP-98 (batch v2), KIP-467 (error_message), KIP-482 (flexible
# versions), KIP-516 (topic ids).

cimport cython
from cpython.array cimport array, clone, resize

from protocol cimport fields
from protocol.fields cimport Bytes, Reader, Text

from protocol import api

cdef int OLDEST = api.LOWEST_VERSIONS[api.PRODUCE], NEWEST = api.HIGHEST_VERSIONS[api.PRODUCE]
cdef int FLEXIBLE = api.PRODUCE_FLEXIBLE, TOPIC_IDS = api.PRODUCE_TOPIC_IDS
cdef int LOG_START = api.PRODUCE_LOG_START, ERROR_TEXT = api.PRODUCE_ERROR_TEXT

cdef enum:
    HEADER = 61  # bytes of a batch before its first record …
    PREFIX = 12  # … of which its own length doesn't count the first
    MAGIC = 2
    LEAST_RESULT = 14  # bytes of a partition in an answer

cdef enum:
    MANY = 128  # topics, for which there is room before any of them was read

cdef array _NUMBERS = array("q")  # the template of all


@cython.final
cdef class PartitionArray:
    """Several partitions of a request (produce_request.Partition) or of an answer (produce_response.Answered), as
    numbers in one array: an object for each would cost more than reading and judging them does.

    `topics`: (name or id, its first row, the row behind its last) of each. `numbers`: `width` for each row, whatever
    else is behind the last one. To be gone through like a list of tuples (topic, *numbers), which are made when asked
    for.
    """

    def __init__(self, list topics, array numbers, Py_ssize_t width):
        self.topics = topics
        self.numbers = numbers
        self.width = width
        self.count = topics[len(topics) - 1][2]
        if self.count * width > len(numbers):
            raise ValueError("fewer numbers than the rows have")

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(self.rows())

    def __getitem__(self, place):
        return self.rows()[place]

    cdef list rows(self):
        if self._rows is None:
            self._rows = []
            for topic, first, stop in self.topics:
                for at in range(first * self.width, stop * self.width, self.width):
                    self._rows.append((topic, *self.numbers[at : at + self.width]))
        return self._rows


def gather_partitions(rows):
    """Rows as the careful readers give them, as PartitionArray where there are several."""
    if len(rows) < 2:
        return list(rows)
    topics = []
    numbers = array("q")
    topic, first = rows[0][0], 0
    for place, row in enumerate(rows):
        if row[0] != topic:
            topics.append((topic, first, place))
            topic, first = row[0], place
        numbers.extend(row[1:])
    topics.append((topic, first, len(rows)))
    return PartitionArray(topics, numbers, len(rows[0]) - 1)


cdef inline Reader _reader(Bytes start, Bytes end) noexcept nogil:
    cdef Reader reader
    reader.at, reader.end, reader.failed = start, end, False
    return reader


cdef array _with_room(array numbers, Py_ssize_t count, Py_ssize_t spare):
    # The same numbers, and room for `count` of them; if there is none, for `spare` more. The caller has seen the bytes
    # that `count` numbers come from.
    if numbers is None:
        return clone(_NUMBERS, count + spare, zero=False)
    if count > len(numbers):
        resize(numbers, max(count + spare, 2 * len(numbers)))
    return numbers


# --- requests ---------------------------------------------------------------------------------------------------------


cdef struct Head:
    int version, acks
    bint is_flexible
    Text client_id, transactional_id
    long long topics


cdef inline Head _read_head(Reader *reader) noexcept nogil:
    # All before the first topic.
    cdef Head head
    fields.read_bytes(reader, 2)  # the API
    head.version = fields.read_int16(reader)
    head.is_flexible = head.version >= FLEXIBLE
    fields.read_bytes(reader, 4)  # correlation id
    head.client_id = fields.read_text(reader, False)
    fields.read_no_tags(reader, head.is_flexible)
    head.transactional_id = fields.read_text(reader, head.is_flexible)
    head.acks = fields.read_int16(reader)
    fields.read_bytes(reader, 4)  # timeout
    head.topics = fields.read_size(reader, head.is_flexible)
    if not OLDEST <= head.version <= NEWEST:
        fields.fail(reader)
    return head


cdef inline Text _read_topic(Reader *reader, int version) noexcept nogil:
    cdef Text topic
    if version < TOPIC_IDS:
        topic = fields.read_text(reader, version >= FLEXIBLE)
        if topic.size < 0:
            fields.fail(reader)
    else:
        topic = fields.read_text_of(reader, fields.ID_BYTES)
    return topic


cdef inline void _read_batch(Reader *reader, long long size, Batch *batch) noexcept nogil:
    # A partition's records, so many bytes of them.
    cdef Bytes at = fields.read_bytes(reader, size)
    if at is NULL or size < HEADER:
        fields.fail(reader)
        return
    batch.size = fields.int32_at(at + 8) + PREFIX
    batch.producer = fields.int64_at(at + 43)
    batch.epoch = fields.int16_at(at + 51)
    batch.sequence = fields.int32_at(at + 53) if batch.producer >= 0 else -1
    batch.messages = fields.int32_at(at + 57)
    batch.trailing = size - batch.size
    if batch.size < HEADER or batch.trailing < 0 or at[16] != MAGIC or batch.messages < 0:
        fields.fail(reader)


cdef bint read_single(Bytes start, Bytes end, Single *found) noexcept nogil:
    # The Produce request there, if it has one partition. Nearly all requests pass here: it makes no objects.
    cdef Reader reader = _reader(start, end)
    cdef Head head = _read_head(&reader)
    if head.topics != 1:
        return False
    found.version, found.acks = head.version, head.acks
    found.client_id, found.transactional_id = head.client_id, head.transactional_id
    found.topic = _read_topic(&reader, head.version)
    if fields.read_size(&reader, head.is_flexible) != 1:
        return False
    found.index = fields.read_int32(&reader)
    _read_batch(&reader, fields.read_size(&reader, head.is_flexible), &found.batch)
    fields.read_no_tags(&reader, head.is_flexible)  # of the partition, the topic and the request
    fields.read_no_tags(&reader, head.is_flexible)
    fields.read_no_tags(&reader, head.is_flexible)
    return not reader.failed and reader.at == end


cdef tuple single_part(bytes topic, Single *one):
    # produce_request.Partition
    return (
        topic, one.index, one.batch.size, one.batch.messages, one.batch.producer, one.batch.epoch, one.batch.sequence,
        one.batch.trailing,
    )


cpdef tuple read_request(object buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t most):
    """The contents of the Produce request in buf[start:end] as `produce_request.skim` gives them, for at most `most`
    partitions; None: ask that.

    Raises:
        TypeError: `buf` is no buffer.
    """
    cdef Bytes first_byte = _frame(buf, start, end)
    if first_byte is NULL:
        return None
    cdef Single one
    if most > 0 and read_single(first_byte, first_byte + (end - start), &one):
        return (
            one.version, one.acks, fields.name(one.client_id), fields.name(one.transactional_id),
            [single_part(fields.name(one.topic), &one)],
        )
    cdef Reader reader = _reader(first_byte, first_byte + (end - start))
    cdef Head head = _read_head(&reader)
    cdef Py_ssize_t place = 0, first
    cdef long long left = head.topics, count, index, last
    cdef Batch batch
    cdef Text topic
    cdef array numbers = None
    cdef long long *row
    cdef bint ascends
    cdef list topics = []
    cdef set names = set()
    if left < 0:
        return None
    while left and not reader.failed:
        left -= 1
        topic = _read_topic(&reader, head.version)
        count = fields.read_size(&reader, head.is_flexible)
        if count < 1 or place + count > most or HEADER * count > reader.end - reader.at:
            return None
        numbers = _with_room(numbers, PART * (place + count), PART * min(left, MANY))
        first, last, ascends = place, -0x80000001, True
        row = numbers.data.as_longlongs + PART * place
        while count and not reader.failed:
            count -= 1
            index = fields.read_int32(&reader)
            _read_batch(&reader, fields.read_size(&reader, head.is_flexible), &batch)
            fields.read_no_tags(&reader, head.is_flexible)
            row[0], row[1], row[2], row[3] = index, batch.size, batch.messages, batch.producer
            row[4], row[5], row[6] = batch.epoch, batch.sequence, batch.trailing
            row += PART
            place += 1
            ascends = ascends and index > last
            last = index
        fields.read_no_tags(&reader, head.is_flexible)
        if reader.failed or not (ascends or _are_different(numbers, first, place)):
            return None
        name = fields.name(topic)
        names.add(name)
        topics.append((name, first, place))
    fields.read_no_tags(&reader, head.is_flexible)
    if reader.failed or reader.at != reader.end or len(names) != len(topics):
        return None
    if place == 1:  # read_single has seen something that is no partition
        return None
    parts = PartitionArray(topics, numbers, PART) if place else []
    return head.version, head.acks, fields.name(head.client_id), fields.name(head.transactional_id), parts


cdef bint _are_different(array numbers, Py_ssize_t first, Py_ssize_t stop) except -1:
    # The indexes of these partitions, which are of one topic.
    return len(set(numbers[PART * first : PART * stop : PART])) == stop - first


cdef Bytes _frame(object buf, Py_ssize_t start, Py_ssize_t end) except? NULL:
    # Where it is; NULL: not in this buffer.
    try:
        return fields.within(buf, start, end - start)
    except (IndexError, OverflowError):
        return NULL


# --- answers ----------------------------------------------------------------------------------------------------------


cdef inline long long _read_answer_head(Reader *reader, int version) noexcept nogil:
    # The number of topics.
    if not OLDEST <= version <= NEWEST:
        fields.fail(reader)
    fields.read_bytes(reader, 4)  # correlation id
    fields.read_no_tags(reader, version >= FLEXIBLE)
    return fields.read_size(reader, version >= FLEXIBLE)


cdef inline void _read_result(Reader *reader, int version, long long *row) noexcept nogil:
    # Index, error code and base offset of a partition about which nothing else is said.
    cdef bint is_flexible = version >= FLEXIBLE
    row[0] = fields.read_int32(reader)
    row[1] = fields.read_int16(reader)
    row[2] = fields.read_int64(reader)
    fields.read_bytes(reader, 8 if version < LOG_START else 16)  # log append time, log start offset
    if version >= ERROR_TEXT:
        if fields.read_size(reader, is_flexible):  # errors of single records
            fields.fail(reader)
        if fields.read_text(reader, is_flexible).size != -1:  # the message
            fields.fail(reader)
        fields.read_no_tags(reader, is_flexible)


cdef inline bint _ends(Reader *reader, int version) noexcept nogil:
    # Whether an answer ends behind its topics as it should.
    fields.read_bytes(reader, 4)  # throttle time
    fields.read_no_tags(reader, version >= FLEXIBLE)
    return not reader.failed and reader.at == reader.end


cpdef long long read_written_offset(
    object buf, Py_ssize_t start, Py_ssize_t end, int version, bytes topic, long long index
) except? -2:
    """The base offset in the Produce answer in buf[start:end], where it says that this partition was written, and
    nothing else; below 0: ask `read_response`. Nearly all answers pass here: it makes no objects.
    """
    cdef Bytes first_byte = _frame(buf, start, end)
    cdef Reader reader
    cdef long long row[RESULT]
    if first_byte is NULL:
        return -1
    reader = _reader(first_byte, first_byte + (end - start))
    if _read_answer_head(&reader, version) != 1 or not fields.is_name(_read_topic(&reader, version), topic):
        return -1
    if fields.read_size(&reader, version >= FLEXIBLE) != 1:
        return -1
    _read_result(&reader, version, row)
    fields.read_no_tags(&reader, version >= FLEXIBLE)
    if not _ends(&reader, version) or row[0] != index or row[1]:
        return -1
    return row[2]


cpdef object read_response(object buf, Py_ssize_t start, Py_ssize_t end, int version):
    """The results in the Produce answer in buf[start:end] as `produce_response.skim` gives them, where it carries
    nothing else; None: ask that.
    """
    cdef Bytes first_byte = _frame(buf, start, end)
    if first_byte is NULL:
        return None
    cdef Reader reader = _reader(first_byte, first_byte + (end - start))
    cdef long long left = _read_answer_head(&reader, version), count
    cdef Py_ssize_t place = 0, first
    cdef Text topic
    cdef array numbers = None
    cdef long long *row
    cdef list topics = []
    if left < 0:
        return None
    while left and not reader.failed:
        left -= 1
        topic = _read_topic(&reader, version)
        count = fields.read_size(&reader, version >= FLEXIBLE)
        if count < 1 or LEAST_RESULT * count > reader.end - reader.at:
            return None
        numbers = _with_room(numbers, RESULT * (place + count), RESULT * min(left, MANY))
        first = place
        row = numbers.data.as_longlongs + RESULT * place
        while count and not reader.failed:
            count -= 1
            _read_result(&reader, version, row)
            row += RESULT
            place += 1
        fields.read_no_tags(&reader, version >= FLEXIBLE)
        if reader.failed:
            return None
        topics.append((fields.name(topic), first, place))
    if not _ends(&reader, version):
        return None
    if place > 1:
        return PartitionArray(topics, numbers, RESULT)
    return [(topics[0][0], *numbers[:RESULT])] if place else []
