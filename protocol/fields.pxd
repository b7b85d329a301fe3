# Reading Kafka's fields in C, for the compiled modules: each step is bounded, and what doesn't fit fails the whole
# message. A reader that has failed stays so, and everything read from it since is 0: a message is read to its end, and
# whether it was one is asked once.
#
# wire.py has the same steps for the careful readers, which say what is wrong.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.string cimport memcmp

ctypedef const unsigned char *Bytes

cdef enum:
    LONGEST_TEXT = 249  # bytes: Kafka's topics have no more; longer ones are for the careful readers
    ID_BYTES = 16


cdef struct Reader:
    Bytes at  # the next byte
    Bytes end
    bint failed


cdef struct Text:
    Bytes at
    Py_ssize_t size  # -1: null


cdef inline Bytes within(object buf, Py_ssize_t start, Py_ssize_t size, int flags=PyBUF_SIMPLE) except NULL:
    # Where buf[start:start + size] lies: nothing is read or written anywhere else. It stays there as long as the caller
    # has the object, and runs nothing that could close it or change its size.
    cdef Py_buffer view
    cdef Bytes data
    cdef Py_ssize_t there
    if PyByteArray_CheckExact(buf):  # nearly all frames are in one
        data, there = <Bytes>PyByteArray_AS_STRING(buf), PyByteArray_GET_SIZE(buf)
    else:  # a large one is in mapped memory
        PyObject_GetBuffer(buf, &view, flags)
        data, there = <Bytes>view.buf, view.len
        PyBuffer_Release(&view)
    if start < 0 or size < 0 or size > there - start:
        raise IndexError("the buffer ends before")
    return data + start


# --- numbers at a place that is known to be there ---------------------------------------------------------------------


cdef inline int int16_at(Bytes data) noexcept nogil:
    return <short>(data[0] << 8 | data[1])


cdef inline long long int32_at(Bytes data) noexcept nogil:
    return <int>(<unsigned int>data[0] << 24 | <unsigned int>data[1] << 16 | <unsigned int>data[2] << 8 | data[3])


cdef inline long long int64_at(Bytes data) noexcept nogil:
    return <long long>(<unsigned long long>int32_at(data) << 32 | <unsigned int>int32_at(data + 4))


# --- the next field ---------------------------------------------------------------------------------------------------


cdef inline void fail(Reader *reader) noexcept nogil:
    reader.failed, reader.at = True, reader.end


cdef inline Bytes read_bytes(Reader *reader, long long size) noexcept nogil:
    # NULL: they aren't there.
    cdef Bytes at = reader.at
    if size < 0 or size > reader.end - at:
        fail(reader)
        return NULL
    reader.at = at + size
    return at


cdef inline int read_byte(Reader *reader) noexcept nogil:
    cdef Bytes at = read_bytes(reader, 1)
    return 0 if at is NULL else at[0]


cdef inline int read_int16(Reader *reader) noexcept nogil:
    cdef Bytes at = read_bytes(reader, 2)
    return 0 if at is NULL else int16_at(at)


cdef inline long long read_int32(Reader *reader) noexcept nogil:
    cdef Bytes at = read_bytes(reader, 4)
    return 0 if at is NULL else int32_at(at)


cdef inline long long read_int64(Reader *reader) noexcept nogil:
    cdef Bytes at = read_bytes(reader, 8)
    return 0 if at is NULL else int64_at(at)


cdef inline long long read_uvarint(Reader *reader) noexcept nogil:
    # Of up to four bytes: no frame is so long that a fifth were needed.
    cdef Bytes at = reader.at
    cdef Py_ssize_t left = reader.end - at
    if left > 0 and at[0] < 0x80:
        reader.at = at + 1
        return at[0]
    if left > 1 and at[1] < 0x80:
        reader.at = at + 2
        return at[0] & 0x7F | at[1] << 7
    if left > 2 and at[2] < 0x80:
        reader.at = at + 3
        return at[0] & 0x7F | (at[1] & 0x7F) << 7 | at[2] << 14
    if left > 3 and at[3] < 0x80:
        reader.at = at + 4
        return at[0] & 0x7F | (at[1] & 0x7F) << 7 | (at[2] & 0x7F) << 14 | at[3] << 21
    fail(reader)
    return 0


cdef inline long long read_size(Reader *reader, bint is_flexible) noexcept nogil:
    # Of an array or of bytes (KIP-482: a compact one is larger by one); -1: null.
    return read_uvarint(reader) - 1 if is_flexible else read_int32(reader)


cdef inline Text read_text(Reader *reader, bint is_compact) noexcept nogil:
    cdef long long size = read_uvarint(reader) - 1 if is_compact else read_int16(reader)
    return read_text_of(reader, size if size <= LONGEST_TEXT else -2)


cdef inline Text read_text_of(Reader *reader, long long size) noexcept nogil:
    # -1: null. What isn't there is null as well, so that nothing is looked up at no place.
    cdef Text text
    text.at = NULL if size == -1 else read_bytes(reader, size)
    text.size = -1 if text.at is NULL else size
    return text


cdef inline void read_no_tags(Reader *reader, bint is_flexible) noexcept nogil:
    if is_flexible and read_byte(reader):
        fail(reader)


# --- texts as objects -------------------------------------------------------------------------------------------------

cdef extern from *:
    """
    #define NAMES 256
    static PyObject *known_names[NAMES];
    """
    enum: NAMES
    PyObject *known_names[NAMES]


cdef inline bytes name(Text text):
    # The same few names come again and again: one that is known needs no object, and has its hash already.
    cdef Bytes data = text.at
    cdef Py_ssize_t size = text.size
    if size < 0:
        return None
    if size == 0:
        return b""
    cdef unsigned int place = (size + 31 * data[0] + 37 * data[size // 2] + 41 * data[size - 1]) % NAMES
    cdef PyObject *known = known_names[place]
    if known is not NULL and PyBytes_GET_SIZE(<bytes>known) == size:
        if memcmp(PyBytes_AS_STRING(<bytes>known), data, size) == 0:
            return <bytes>known
    cdef bytes made = PyBytes_FromStringAndSize(<const char *>data, size)
    Py_INCREF(made)
    known_names[place] = <PyObject *>made
    Py_XDECREF(known)
    return made


cdef inline bint is_name(Text text, bytes name) noexcept:
    # `name` may be None, which a null is.
    if name is None:
        return text.size < 0
    return text.size == PyBytes_GET_SIZE(name) and memcmp(text.at, PyBytes_AS_STRING(name), text.size) == 0
