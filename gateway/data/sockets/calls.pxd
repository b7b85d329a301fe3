# The system's calls in C: those of calls.py, and of a socket by its number. A socket that has nothing, or takes
# nothing, is no error here, and one that is broken needs no reason: its link is closed whatever it was.
#
# Neither sockets nor the pipe block, so no other thread waits longer than it takes to copy the bytes; the poller does,
# and lets others run meanwhile.

from cpython.buffer cimport PyBUF_WRITABLE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, EIO, ENOSYS, errno
from libc.math cimport ceil
from posix.unistd cimport read

from protocol.fields cimport within

cdef extern from "sys/socket.h" nogil:
    int MSG_PEEK
    ssize_t recv(int fd, void *buf, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t size, int flags)

cdef enum:
    EOF = 0
    WOULD_BLOCK = -1
    SOCKET_BROKEN = -2


cdef inline char *writable(object buf, Py_ssize_t start, Py_ssize_t size) except NULL:
    return <char *>within(buf, start, size, PyBUF_WRITABLE)


cdef inline Py_ssize_t receive_into(int fd, object buf, Py_ssize_t start, Py_ssize_t most) except -3:
    cdef ssize_t size = recv(fd, writable(buf, start, most), most, 0)
    if size >= 0:
        return size
    return WOULD_BLOCK if errno in (EAGAIN, EINTR) else SOCKET_BROKEN


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


cdef inline (Py_ssize_t, Py_ssize_t) splice_bytes(
    int source, int sink, tuple pipe, object buf, Py_ssize_t start, Py_ssize_t most
) except *:
    cdef char *room = writable(buf, start, most)
    cdef Py_ssize_t size = -1, sent, at
    cdef ssize_t more
    cdef int out_of, into
    if pipe is not None:
        out_of, into = pipe
        size = join_by_pipe(source, into, most)
    if size < 1:
        size = receive_into(source, buf, start, most)
        return size, max(0, send_bytes(sink, buf, start, start + size)) if size > 0 else 0
    sent = join_by_pipe(out_of, sink, size)
    sent = max(0, sent)
    at = sent
    while at < size:
        more = read(out_of, room + at, size - at)
        if more <= 0:
            raise OSError(errno if more else EIO, "the pipe between two sockets has lost bytes")
        at += more
    return size, sent


cdef inline bint is_socket_empty(int fd) noexcept:
    cdef char byte
    return recv(fd, &byte, 1, MSG_PEEK) < 0 and errno == EAGAIN


cdef inline Py_ssize_t send_bytes(int fd, object buf, Py_ssize_t start, Py_ssize_t stop) except -3:
    cdef ssize_t size = c_send(fd, within(buf, start, stop - start), stop - start, 0)
    if size >= 0:
        return size
    return 0 if errno in (EAGAIN, EINTR) else SOCKET_BROKEN


cdef extern from *:
    """
    #ifdef __linux__
    #include <sys/epoll.h>
    #else
    #include <stdint.h>
    struct epoll_event { uint32_t events; union { int fd; } data; };
    #define epoll_wait(epoll, events, most, ms) (errno = ENOSYS, -1)
    #endif
    #include <time.h>
    """
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        unsigned int events
        epoll_data_t data
    int epoll_wait(int epoll, epoll_event *events, int most, int ms) nogil
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now) nogil

cdef enum:
    MAX_EVENTS = 256


cdef inline bytearray new_event_buffer():
    return PyByteArray_FromStringAndSize(NULL, MAX_EVENTS * sizeof(epoll_event))


cdef inline epoll_event *at(bytearray events, Py_ssize_t place) except NULL:
    if not 0 <= place < MAX_EVENTS:
        raise IndexError("no such event")
    return <epoll_event *>PyByteArray_AS_STRING(events) + place


cdef inline int wait_for_events(object poller, int epoll, bytearray events, double seconds) except -1:
    cdef epoll_event *first = at(events, 0)
    cdef int ms = <int>ceil(seconds * 1000), number, mask, count = 0
    if epoll >= 0:
        with nogil:
            count = epoll_wait(epoll, first, MAX_EVENTS, ms)
        if count < 0:
            if errno == EINTR:  # whoever waits for signals is told by Python, once the slice is over
                return 0
            raise OSError(errno, "epoll can't be waited for")
        return count
    for number, mask in poller.poll(seconds, MAX_EVENTS):
        at(events, count).data.fd, at(events, count).events = number, mask
        count += 1
    return count


cdef inline (int, int) event_at(bytearray events, Py_ssize_t place) except *:
    cdef epoll_event *one = at(events, place)
    return one.data.fd, <int>one.events


cdef inline double monotonic_time() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9
