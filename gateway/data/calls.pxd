# What calls.py does, in C. The sockets don't block, so no other thread waits longer than it takes to copy the bytes.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, EINVAL, ENOSYS, EPERM, errno
from posix.unistd cimport read

cdef extern from "sys/socket.h" nogil:
    int MSG_PEEK
    ssize_t recv(int fd, void *buf, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t size, int flags)

cdef enum:
    EOF = 0
    NOTHING = -1
    BROKEN = -2
    UNABLE = -3


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


cdef extern from *:
    """
    #ifdef __linux__
    #include <fcntl.h>
    #define join_by_pipe(source, sink, most) splice(source, NULL, sink, NULL, most, SPLICE_F_NONBLOCK)
    #else
    #define join_by_pipe(source, sink, most) (errno = ENOSYS, -1)
    #endif
    """
    ssize_t join_by_pipe(int source, int sink, size_t most) nogil


cdef inline Py_ssize_t splice_(int source, int sink, Py_ssize_t most) noexcept:
    cdef ssize_t size = join_by_pipe(source, sink, most)
    if size >= 0:
        return size
    if errno in (EAGAIN, EINTR):
        return NOTHING
    return UNABLE if errno in (EINVAL, ENOSYS, EPERM) else BROKEN


cdef inline (Py_ssize_t, Py_ssize_t) move(
    int source, int sink, tuple pipe, object buf, Py_ssize_t start, Py_ssize_t most
) except *:
    cdef char *room = within(buf, start, most, PyBUF_WRITABLE)
    cdef Py_ssize_t size = UNABLE, sent, at
    cdef ssize_t more
    cdef int out_of, into
    if pipe is not None:
        out_of, into = pipe
        size = splice_(source, into, most)
    if size == UNABLE:
        size = receive(source, buf, start, most)
        return size, max(0, send(sink, buf, start, start + size)) if size > 0 else 0
    sent = max(0, splice_(out_of, sink, size)) if size > 0 else 0
    at = sent
    while at < size:
        more = read(out_of, room + at, size - at)
        if more <= 0:
            raise OSError(errno, "the pipe between two sockets has lost bytes")
        at += more
    return size, sent


cdef inline bint is_empty(int fd) noexcept:
    cdef char byte
    return recv(fd, &byte, 1, MSG_PEEK) < 0 and errno == EAGAIN


cdef inline Py_ssize_t send(int fd, object buf, Py_ssize_t start, Py_ssize_t stop) except -3:
    cdef ssize_t size = c_send(fd, within(buf, start, stop - start, PyBUF_SIMPLE), stop - start, 0)
    if size >= 0:
        return size
    return 0 if errno in (EAGAIN, EINTR) else BROKEN
