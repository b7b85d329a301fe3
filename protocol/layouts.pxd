# What layouts.py does, in C. The positions are those of its formats: a format and its function stand side by side in
# mind when either is changed, and tests read every cut of every message by both.

from cpython.array cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_FromStringAndSize

ctypedef const unsigned char *Bytes


cdef inline Bytes at(bytearray buf, Py_ssize_t pos, Py_ssize_t size) except NULL:
    # `size` bytes from `pos` on: nothing is read anywhere else.
    if buf is None:  # which is as good as any object of a class to Cython
        raise TypeError("no buffer")
    if pos < 0 or size < 0 or size > PyByteArray_GET_SIZE(buf) - pos:
        raise IndexError("the buffer ends before")
    return <Bytes>PyByteArray_AS_STRING(buf) + pos


cdef inline int int8(Bytes data) noexcept:
    return <signed char>data[0]


cdef inline int int16(Bytes data) noexcept:
    return <short>(data[0] << 8 | data[1])


cdef inline long long int32(Bytes data) noexcept:
    return <int>(<unsigned int>data[0] << 24 | <unsigned int>data[1] << 16 | <unsigned int>data[2] << 8 | data[3])


cdef inline long long int64(Bytes data) noexcept:
    return <long long>(<unsigned long long>int32(data) << 32 | <unsigned int>int32(data + 4))


# --- frames -----------------------------------------------------------------------------------------------------------


cdef inline (long long, int, int, long long) request_head(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 12)
    return int32(data), int16(data + 4), int16(data + 6), int32(data + 8)


cdef inline (long long, long long) answer_start(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 8)
    return int32(data), int32(data + 4)


# --- requests ---------------------------------------------------------------------------------------------------------


cdef inline (int, int) version_and_client(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 10)
    return int16(data + 2), int16(data + 8)


cdef inline (int, int) acks_and_topics(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 7)
    return int16(data), data[6]


cdef inline (long long, int, long long, int, long long, long long) batch(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 61)
    return int32(data + 8), int8(data + 16), int64(data + 43), int16(data + 51), int32(data + 53), int32(data + 57)


cdef inline (long long, int, int, int, int) flexible_partition(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 8)
    return int32(data), data[4], data[5], data[6], data[7]


cdef inline (int, long long, int, long long, int, long long, int, long long, long long) short_partition(
    bytearray buf, Py_ssize_t pos
) except *:
    cdef Bytes data = at(buf, pos, 67)
    cdef Bytes of = data + 6
    return (
        data[0], int32(data + 1), data[5],
        int32(of + 8), int8(of + 16), int64(of + 43), int16(of + 51), int32(of + 53), int32(of + 57),
    )


cdef inline (int, long long, int, int, long long, int, long long, int, long long, long long) partition(
    bytearray buf, Py_ssize_t pos
) except *:
    cdef Bytes data = at(buf, pos, 68)
    cdef Bytes of = data + 7
    return (
        data[0], int32(data + 1), data[5], data[6],
        int32(of + 8), int8(of + 16), int64(of + 43), int16(of + 51), int32(of + 53), int32(of + 57),
    )


cdef inline (long long, long long) plain_partition(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 8)
    return int32(data), int32(data + 4)


# --- answers ----------------------------------------------------------------------------------------------------------


cdef inline (int, int) answer_head(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 6)
    return data[4], data[5]


cdef inline (long long, int, long long, int, int, int) answered(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 33)
    return int32(data), int16(data + 4), int64(data + 6), data[30], data[31], data[32]


cdef inline (long long, int, long long) plain_answered(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 14)
    return int32(data), int16(data + 4), int64(data + 6)


cdef inline (long long, int) record_errors_and_message(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 6)
    return int32(data), int16(data + 4)


# --- behind a string, from its end on ---------------------------------------------------------------------------------


cdef inline (int, int, int, int) flexible_head(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 9)
    return data[0], data[1], int16(data + 2), data[8]


cdef inline (int, int, long long) plain_head(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 12)
    return int16(data), int16(data + 2), int32(data + 8)


cdef inline (int, long long, int, int, int, int) flexible_topic(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 9)
    return data[0], int32(data + 1), data[5], data[6], data[7], data[8]


cdef inline (long long, long long, long long) plain_topic(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 12)
    return int32(data), int32(data + 4), int32(data + 8)


cdef inline (int, long long, int, long long, int, int, int) flexible_answer(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 34)
    return data[0], int32(data + 1), int16(data + 5), int64(data + 7), data[31], data[32], data[33]


cdef inline (long long, long long, int, long long) plain_answer(bytearray buf, Py_ssize_t pos) except *:
    cdef Bytes data = at(buf, pos, 18)
    return int32(data), int32(data + 4), int16(data + 8), int64(data + 10)


cdef inline bytes name(bytearray buf, Py_ssize_t pos, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *>at(buf, pos, size), size)


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


cdef inline void put_result(long long *numbers, Py_ssize_t at, long long index, long long error, long long offset) noexcept:
    cdef long long *row = numbers + at // 8
    row[0], row[1], row[2] = index, error, offset
