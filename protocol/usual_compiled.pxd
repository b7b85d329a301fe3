# What the names in usual.py are in C, where it is compiled (setup.py). `layouts` are the functions in layouts.pxd then.

cimport cython

from protocol cimport layouts

ctypedef long long longlong

cdef int _MIN, _MAX, _FLEXIBLE, _TOPIC_IDS, _LOG_START, _ERROR_TEXT, _ID, _LONGEST, _LEAST_LENGTH, _MAGIC
cdef int _LEAST_BATCH, _LEAST_ANSWER, _PART, _RESULT, _PART_BYTES, _RESULT_BYTES, _MANY


@cython.final
cdef class Partitions:
    cdef readonly list topics
    cdef readonly object numbers
    cdef readonly Py_ssize_t width
    cdef Py_ssize_t _count
    cdef list _rows

    @cython.locals(rows=list, topic=bytes, first=cython.Py_ssize_t, stop=cython.Py_ssize_t, at=cython.Py_ssize_t)
    cdef list _tuples(self)


ctypedef (
    int, int, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, longlong, longlong, longlong,
    longlong, int, longlong, longlong,
) Row
cdef Row _NOT_SINGLE

@cython.locals(
    version=cython.int, client_size=cython.Py_ssize_t, client_at=cython.Py_ssize_t, pos=cython.Py_ssize_t,
    header_tags=cython.int, transactional=cython.int, acks=cython.int, topics=cython.int,
    transactional_at=cython.Py_ssize_t, topic_size=cython.Py_ssize_t, topic_at=cython.Py_ssize_t, count=cython.int,
    index=cython.longlong, a=cython.int, b=cython.int, c=cython.int, d=cython.int, size=cython.longlong,
    width=cython.int, length=cython.longlong, magic=cython.int, producer=cython.longlong, epoch=cython.int,
    sequence=cython.longlong, messages=cython.longlong, trailing=cython.longlong,
)
cpdef Row single(object buf, Py_ssize_t start, Py_ssize_t end) except *

@cython.locals(
    pos=cython.Py_ssize_t, transactional=cython.int, acks=cython.int, topics=cython.longlong,
    topic_size=cython.Py_ssize_t, topic_at=cython.Py_ssize_t, count=cython.longlong, index=cython.longlong,
    records=cython.longlong, length=cython.longlong, magic=cython.int, producer=cython.longlong, epoch=cython.int,
    sequence=cython.longlong, messages=cython.longlong, trailing=cython.longlong,
)
cdef Row _plain_single(
    object buf, Py_ssize_t start, Py_ssize_t end, int version, Py_ssize_t client_size
) except *

@cython.locals(
    version=cython.int, acks=cython.int, client_at=cython.Py_ssize_t, client_size=cython.Py_ssize_t,
    transactional_at=cython.Py_ssize_t, transactional_size=cython.Py_ssize_t, topic_at=cython.Py_ssize_t,
    topic_size=cython.Py_ssize_t, index=cython.longlong, size=cython.longlong, messages=cython.longlong,
    producer=cython.longlong, epoch=cython.int, sequence=cython.longlong, trailing=cython.longlong, client_id=bytes,
    transactional_id=bytes, topic=bytes,
)
cpdef tuple request(object buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t most)

@cython.locals(
    pos=cython.Py_ssize_t, size=cython.Py_ssize_t, version=cython.int,
    client_id=bytes, transactional_id=bytes, header_tags=cython.int, transactional=cython.int, acks=cython.int,
    topics=cython.longlong, named=cython.Py_ssize_t, names=set, spans=list, numbers=cython.p_longlong,
    place=cython.Py_ssize_t, topic=bytes, count=cython.longlong, first=cython.Py_ssize_t, last=cython.longlong,
    ascends=cython.bint, width=cython.int,
    a=cython.int, b=cython.int, c=cython.int, d=cython.int, more=cython.int, tags=cython.int, index=cython.longlong,
    length=cython.longlong, magic=cython.int, producer=cython.longlong, epoch=cython.int, sequence=cython.longlong,
    messages=cython.longlong, trailing=cython.longlong,
)
cpdef tuple several(object buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t most)

@cython.locals(
    pos=cython.Py_ssize_t, client_id=bytes, transactional=cython.int, acks=cython.int, topics=cython.longlong,
    named=cython.Py_ssize_t, names=set, spans=list, numbers=cython.p_longlong, place=cython.Py_ssize_t,
    room=cython.longlong, topic=bytes, count=cython.longlong, first=cython.Py_ssize_t, last=cython.longlong,
    ascends=cython.bint, index=cython.longlong, records=cython.longlong, length=cython.longlong,
    magic=cython.int, producer=cython.longlong, epoch=cython.int, sequence=cython.longlong, messages=cython.longlong,
    trailing=cython.longlong,
)
cdef tuple _plain_several(
    object buf, Py_ssize_t start, Py_ssize_t end, int version, Py_ssize_t size, Py_ssize_t most
)

cdef bint _twice(object kept, Py_ssize_t first, Py_ssize_t stop) except -1

@cython.locals(
    pos=cython.Py_ssize_t, size=cython.Py_ssize_t, header_tags=cython.int, topics=cython.int, count=cython.int,
    answered=cython.longlong, error=cython.int, offset=cython.longlong, record_errors=cython.int, message=cython.int,
    tags=cython.int,
)
cpdef long long written(
    object buf, Py_ssize_t start, Py_ssize_t end, int version, bytes topic, long long index
) except? -2

@cython.locals(
    pos=cython.Py_ssize_t, size=cython.Py_ssize_t, topics=cython.longlong, count=cython.longlong,
    answered=cython.longlong, error=cython.int, offset=cython.longlong, record_errors=cython.longlong,
    message=cython.int,
)
cdef long long _plain_written(
    object buf, Py_ssize_t start, Py_ssize_t end, int version, bytes topic, long long index
) except? -2

@cython.locals(
    pos=cython.Py_ssize_t, size=cython.Py_ssize_t, header_tags=cython.int, topics=cython.int, several=cython.bint,
    spans=list, single=list, numbers=cython.p_longlong, place=cython.Py_ssize_t, first=cython.Py_ssize_t,
    alone=cython.bint, topic=bytes, count=cython.int, index=cython.longlong, error=cython.int, offset=cython.longlong,
    record_errors=cython.int, message=cython.int, tags=cython.int, more=cython.int,
)
cpdef object answer(object buf, Py_ssize_t start, Py_ssize_t end, int version)

@cython.locals(
    pos=cython.Py_ssize_t, size=cython.Py_ssize_t, topics=cython.longlong, rest=cython.int, several=cython.bint,
    spans=list, single=list, numbers=cython.p_longlong, place=cython.Py_ssize_t, first=cython.Py_ssize_t,
    alone=cython.bint, topic=bytes, count=cython.longlong, index=cython.longlong, error=cython.int,
    offset=cython.longlong, record_errors=cython.longlong, message=cython.int,
)
cdef object _plain_answer(object buf, Py_ssize_t start, Py_ssize_t end, int version)
