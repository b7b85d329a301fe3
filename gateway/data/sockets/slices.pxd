# What the names in slices.py are in C, where it is compiled (setup.py). `calls` is in C as well then.

cimport cython

from gateway.data.sockets cimport calls


cdef class EventHandler:
    cdef public object link

    cpdef handle(self, int fd, int events, object now)


@cython.final
cdef class Slice(EventHandler):
    cdef double _least
    cdef int _epoll
    cdef object _poller
    cdef bytearray _events
    cdef public double end

    cpdef begin(self, double now, double least, double most, object timers)

    cpdef finish(self)

    cpdef shorten(self, double when)

    @cython.locals(
        ready=list, closing=list, answered=list, ahead=cython.double, count=cython.int, place=cython.int, fd=cython.int,
        mask=cython.int, handler=EventHandler,
    )
    cpdef run(self, dict handlers, object now, tuple work, object settle, object fail)
