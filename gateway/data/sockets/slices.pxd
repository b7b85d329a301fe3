# What the names in slices.py are in C, where it is compiled (setup.py). `calls` is in C as well then.

cimport cython

from gateway.data.sockets cimport calls


cdef class EventHandler:
    cdef public object link

    cpdef handle_event(self, int fd, int events, object now)


@cython.final
cdef class EventSlice(EventHandler):
    cdef double _earliest_end
    cdef int _epoll
    cdef object _poller
    cdef bytearray _events
    cdef public double ends_at

    cpdef begin_slice(self, double now, double least, double most, object timers)

    cpdef end_slice(self)

    cpdef shorten_to(self, double when)

    @cython.locals(
        ready=list, closing=list, answered=list, ahead=cython.double, count=cython.int, place=cython.int, fd=cython.int,
        mask=cython.int, handler=EventHandler,
    )
    cpdef run(self, dict handlers, object now, tuple work, object settle, object fail)
