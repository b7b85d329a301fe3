# What the names in slices.py are in C, where it is compiled (setup.py). `calls` and the shortcut are in C as well then.

cimport cython

from gateway.data cimport calls
from gateway.data cimport shortcut_compiled as shortcut


@cython.final
cdef class Slice:
    cdef double _least
    cdef int _epoll
    cdef object _poller
    cdef bytearray _events
    cdef public double end
    cdef readonly object link

    cpdef begin(self, double now, double least, double most, object timers)

    cpdef finish(self)

    cpdef handle(self, int fd, int events, object now)

    cpdef shorten(self, double when)

    @cython.locals(
        ready=list, closing=list, answered=list, ahead=cython.double, count=cython.int, place=cython.int, fd=cython.int,
        mask=cython.int, own=shortcut.Shortcut,
    )
    cpdef run(self, dict handlers, object now, tuple work, object settle, object fail)
