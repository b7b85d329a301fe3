# What calls.py does, in C. The sockets don't block, so no other thread waits longer than it takes to copy the bytes.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno

cdef extern from "sys/socket.h" nogil:
    int MSG_PEEK
    ssize_t recv(int fd, void *buf, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t size, int flags)

cdef enum:
    EOF = 0
    NOTHING = -1
    BROKEN = -2


cdef inline char *within(object buf, Py_ssize_t start, Py_ssize_t size, int flags) except NULL:
    # `size` bytes from `start` on, in a bytearray or any other buffer: nothing is read or written anywhere else.
    cdef Py_buffer view
    cdef char *data
    cdef Py_ssize_t there
    if PyByteArray_CheckExact(buf):
        data, there = PyByteArray_AS_STRING(buf), PyByteArray_GET_SIZE(buf)
    else:
        PyObject_GetBuffer(buf, &view, flags)
        data, there = <char *>view.buf, view.len
        PyBuffer_Release(&view)
    if start < 0 or size < 0 or size > there - start:
        raise IndexError("the buffer ends before")
    return data + start


cdef inline Py_ssize_t receive(int fd, object buf, Py_ssize_t start, Py_ssize_t most) except -3:
    cdef ssize_t size = recv(fd, within(buf, start, most, PyBUF_WRITABLE), most, 0)
    if size >= 0:
        return size
    return NOTHING if errno in (EAGAIN, EINTR) else BROKEN


cdef inline bint is_empty(int fd) noexcept:
    cdef char byte
    return recv(fd, &byte, 1, MSG_PEEK) < 0 and errno == EAGAIN


cdef inline Py_ssize_t send(int fd, object buf, Py_ssize_t start, Py_ssize_t stop) except -3:
    cdef ssize_t size = c_send(fd, within(buf, start, stop - start, PyBUF_SIMPLE), stop - start, 0)
    if size >= 0:
        return size
    return 0 if errno in (EAGAIN, EINTR) else BROKEN
