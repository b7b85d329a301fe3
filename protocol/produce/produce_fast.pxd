# What other compiled modules use of produce_fast.pyx.

cimport cython
from cpython.array cimport array

from protocol.fields cimport Bytes, Text

cdef enum:
    PART = 7  # numbers of a partition in a request: index, size, messages, producer id, epoch, base sequence, trailing
    RESULT = 3  # and in an answer: index, error code, base offset


cdef struct Batch:
    long long size, messages, producer, sequence, trailing
    int epoch


cdef struct Single:
    int version, acks
    Text client_id, transactional_id, topic
    long long index
    Batch batch


@cython.final
cdef class PartitionArray:
    cdef readonly list topics
    cdef readonly array numbers
    cdef readonly Py_ssize_t width
    cdef Py_ssize_t count
    cdef list _rows

    cdef list rows(self)


cdef bint read_single(Bytes start, Bytes end, Single *found) noexcept nogil

cdef tuple single_part(bytes topic, Single *one)

cpdef tuple read_request(object buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t most)

cpdef long long read_written_offset(
    object buf, Py_ssize_t start, Py_ssize_t end, int version, bytes topic, long long index
) except? -2

cpdef object read_response(object buf, Py_ssize_t start, Py_ssize_t end, int version)
