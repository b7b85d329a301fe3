# What layouts.py does, in C. The positions are those of its formats: a format and its function stand side by side in
# mind when either is changed, and tests read every cut of every message by both.

from cpython.array cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.string cimport memcmp

ctypedef const unsigned char *Bytes


cdef inline Bytes at(object buf, Py_ssize_t pos, Py_ssize_t size) except NULL:
    # `size` bytes from `pos` on: nothing is read anywhere else.
    cdef char *data
    cdef Py_ssize_t there
    if PyByteArray_CheckExact(buf):  # nearly all frames are in one
        data, there = PyByteArray_AS_STRING(buf), PyByteArray_GET_SIZE(buf)
    else:
        data, there = whole(buf)
    if pos < 0 or size < 0 or size > there - pos:
        raise IndexError("the buffer ends before")
    return <Bytes>data + pos


cdef inline (char *, Py_ssize_t) whole(object buf) except *:
    # A large frame is in mapped memory, which has no other way to it. Whoever calls has the object, and nobody else
    # runs who could close it or change its size.
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    cdef char *data = <char *>view.buf
    cdef Py_ssize_t size = view.len
    PyBuffer_Release(&view)
    return data, size


cdef inline int byte(object buf, Py_ssize_t pos) except -1:
    return at(buf, pos, 1)[0]


cdef inline int int8(Bytes data) noexcept:
    return <signed char>data[0]


cdef inline int int16(Bytes data) noexcept:
    return <short>(data[0] << 8 | data[1])


cdef inline long long int32(Bytes data) noexcept:
    return <int>(<unsigned int>data[0] << 24 | <unsigned int>data[1] << 16 | <unsigned int>data[2] << 8 | data[3])


cdef inline long long int64(Bytes data) noexcept:
    return <long long>(<unsigned long long>int32(data) << 32 | <unsigned int>int32(data + 4))


# --- frames -----------------------------------------------------------------------------------------------------------


cdef inline (long long, int, int, long long) request_head(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 12)
    return int32(data), int16(data + 4), int16(data + 6), int32(data + 8)


cdef inline (long long, long long) answer_start(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 8)
    return int32(data), int32(data + 4)


# --- requests ---------------------------------------------------------------------------------------------------------


cdef inline (int, int) version_and_client(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 10)
    return int16(data + 2), int16(data + 8)


cdef inline (int, int) acks_and_topics(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 7)
    return int16(data), data[6]


cdef inline (long long, int, long long, int, long long, long long) batch(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 61)
    return int32(data + 8), int8(data + 16), int64(data + 43), int16(data + 51), int32(data + 53), int32(data + 57)


cdef inline (long long, int, int, int, int) flexible_partition(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 8)
    return int32(data), data[4], data[5], data[6], data[7]


cdef inline (int, long long, int, long long, int, long long, int, long long, long long) short_partition(
    object buf, Py_ssize_t pos
) except *:
    cdef Bytes data = at(buf, pos, 67)
    cdef Bytes of = data + 6
    return (
        data[0], int32(data + 1), data[5],
        int32(of + 8), int8(of + 16), int64(of + 43), int16(of + 51), int32(of + 53), int32(of + 57),
    )


cdef inline (int, long long, int, int, long long, int, long long, int, long long, long long) partition(
    object buf, Py_ssize_t pos
) except *:
    cdef Bytes data = at(buf, pos, 68)
    cdef Bytes of = data + 7
    return (
        data[0], int32(data + 1), data[5], data[6],
        int32(of + 8), int8(of + 16), int64(of + 43), int16(of + 51), int32(of + 53), int32(of + 57),
    )


cdef inline (long long, long long) plain_partition(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 8)
    return int32(data), int32(data + 4)


# --- answers ----------------------------------------------------------------------------------------------------------


cdef inline (int, int) answer_head(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 6)
    return data[4], data[5]


cdef inline (long long, int, long long, int, int, int) answered(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 33)
    return int32(data), int16(data + 4), int64(data + 6), data[30], data[31], data[32]


cdef inline (long long, int, long long) plain_answered(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 14)
    return int32(data), int16(data + 4), int64(data + 6)


cdef inline (long long, int) record_errors_and_message(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 6)
    return int32(data), int16(data + 4)


# --- behind a string, from its end on ---------------------------------------------------------------------------------


cdef inline (int, int, int, int) flexible_head(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 9)
    return data[0], data[1], int16(data + 2), data[8]


cdef inline (int, int, long long) plain_head(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 12)
    return int16(data), int16(data + 2), int32(data + 8)


cdef inline (int, long long, int, int, int, int) flexible_topic(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 9)
    return data[0], int32(data + 1), data[5], data[6], data[7], data[8]


cdef inline (long long, long long, long long) plain_topic(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 12)
    return int32(data), int32(data + 4), int32(data + 8)


cdef inline (int, long long, int, long long, int, int, int) flexible_answer(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 34)
    return data[0], int32(data + 1), int16(data + 5), int64(data + 7), data[31], data[32], data[33]


cdef inline (long long, long long, int, long long) plain_answer(object buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 18)
    return int32(data), int32(data + 4), int16(data + 8), int64(data + 10)


cdef extern from *:
    """
    #define NAMES 256
    static PyObject *known_names[NAMES];
    """
    enum: NAMES
    PyObject *known_names[NAMES]


cdef inline bytes name(object buf, Py_ssize_t pos, Py_ssize_t size):
    # The same few names come again and again. One that is known needs no object, and has its hash already.
    cdef Bytes data = at(buf, pos, size)
    if size == 0:
        return b""
    cdef unsigned int place = (size + 31 * data[0] + 37 * data[size // 2] + 41 * data[size - 1]) % NAMES
    cdef PyObject *known = known_names[place]
    if known != NULL and PyBytes_GET_SIZE(<bytes>known) == size:
        if memcmp(PyBytes_AS_STRING(<bytes>known), data, size) == 0:
            return <bytes>known
    cdef bytes made = PyBytes_FromStringAndSize(<const char *>data, size)
    Py_INCREF(made)
    known_names[place] = <PyObject *>made
    Py_XDECREF(known)
    return made


cdef inline (long long, int) length(int a, int b, int c, int d) noexcept:
    if b < 0x80 <= a:
        return (a & 0x7F | b << 7) - 1, 2
    if a < 0x80:
        return a - 1, 1
    if c < 0x80:
        return (a & 0x7F | (b & 0x7F) << 7 | c << 14) - 1, 3
    if d < 0x80:
        return (a & 0x7F | (b & 0x7F) << 7 | (c & 0x7F) << 14 | d << 21) - 1, 4
    return 0, 0


cdef inline bint has(object buf, Py_ssize_t pos, bytes name) except -1:
    cdef Py_ssize_t size = len(name)  # a TypeError where it is None
    return memcmp(at(buf, pos, size), PyBytes_AS_STRING(name), size) == 0


cdef inline bint is_name(object buf, Py_ssize_t pos, Py_ssize_t size, bytes name) except -1:
    if name is None:
        return size < 0
    return size == PyBytes_GET_SIZE(name) and memcmp(at(buf, pos, size), PyBytes_AS_STRING(name), size) == 0


# --- numbers that are kept --------------------------------------------------------------------------------------------


cdef inline long long *items(array numbers) noexcept:
    # Its reader knows how many there are, and keeps the array.
    return numbers.data.as_longlongs


cdef inline void put_part(
    long long *numbers, Py_ssize_t at, long long index, long long size, long long messages, long long producer,
    long long epoch, long long sequence, long long trailing,
) noexcept:
    cdef long long *row = numbers + at // 8
    row[0], row[1], row[2], row[3], row[4], row[5], row[6] = index, size, messages, producer, epoch, sequence, trailing


cdef inline void put_result(
    long long *numbers, Py_ssize_t at, long long index, long long error, long long offset
) noexcept:
    cdef long long *row = numbers + at // 8
    row[0], row[1], row[2] = index, error, offset
