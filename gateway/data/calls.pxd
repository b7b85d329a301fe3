# What calls.py does, in C. The sockets don't block, so no other thread waits longer than it takes to copy the bytes.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void *buf, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t size, int flags)

cdef enum:
    EOF = 0
    NOTHING = -1
    BROKEN = -2


cdef inline Py_ssize_t receive(int fd, bytearray buf, Py_ssize_t start, Py_ssize_t most) except -3:
    if buf is None or start < 0 or most < 0 or most > PyByteArray_GET_SIZE(buf) - start:
        raise IndexError("the buffer ends before")
    cdef ssize_t size = recv(fd, PyByteArray_AS_STRING(buf) + start, most, 0)
    if size >= 0:
        return size
    return NOTHING if errno in (EAGAIN, EINTR) else BROKEN


cdef inline Py_ssize_t send(int fd, bytearray buf, Py_ssize_t start, Py_ssize_t stop) except -3:
    if buf is None or start < 0 or stop < start or stop > PyByteArray_GET_SIZE(buf):
        raise IndexError("the buffer ends before")
    cdef ssize_t size = c_send(fd, PyByteArray_AS_STRING(buf) + start, stop - start, 0)
    if size >= 0:
        return size
    return 0 if errno in (EAGAIN, EINTR) else BROKEN
