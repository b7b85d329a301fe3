# What calls.py does, in C. The sockets don't block, so no other thread waits longer than it takes to copy the bytes.

from cpython.buffer cimport PyBUF_WRITABLE
from libc.errno cimport EAGAIN, EINTR, errno

from protocol cimport layouts

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void *buf, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t size, int flags)

cdef enum:
    EOF = 0
    NOTHING = -1
    BROKEN = -2


cdef inline Py_ssize_t receive(int fd, object buf, Py_ssize_t start, Py_ssize_t most) except -3:
    cdef char *data
    cdef Py_ssize_t there
    data, there = layouts.whole(buf, PyBUF_WRITABLE)
    if start < 0 or most < 0 or most > there - start:
        raise IndexError("the buffer ends before")
    cdef ssize_t size = recv(fd, data + start, most, 0)
    if size >= 0:
        return size
    return NOTHING if errno in (EAGAIN, EINTR) else BROKEN


cdef inline Py_ssize_t send(int fd, object buf, Py_ssize_t start, Py_ssize_t stop) except -3:
    cdef ssize_t size = c_send(fd, layouts.at(buf, start, stop - start), stop - start, 0)
    if size >= 0:
        return size
    return 0 if errno in (EAGAIN, EINTR) else BROKEN
