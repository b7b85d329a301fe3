# What the names in shortcut.py are in C, where it is compiled (setup.py). `calls`, `passing`, `stream` and `layouts`
# are in C as well then.

cimport cython

from gateway.data cimport calls
from gateway.data cimport in_flight_compiled as in_flight
from gateway.data cimport passing_compiled as passing
from protocol cimport layouts
from protocol cimport stream_compiled as stream

cdef int _IN, _OUT, _HEAD_ROOM, _LOCAL, _TAIL_BYTES


@cython.final
cdef class Seen:
    cdef public object read_at, drained_at, answered_at
    cdef public bint is_drained


@cython.final
cdef class Shortcut:
    cdef object _rejected, _shared, _inbound, _outbound
    cdef passing.Counted _counted
    cdef long long _epoch
    cdef bytearray _buf
    cdef int _client_fd, _upstream_fd
    cdef readonly object link
    cdef readonly passing.Terms terms
    cdef readonly Seen seen
    cdef public bint takes_requests, looks_ahead, passes_unseen

    cpdef shut(self)

    @cython.locals(seen=Seen)
    cdef _tell(self)

    cdef passing.Terms _find_terms(self, object now)

    cpdef handle(self, int fd, int events, object now)

    @cython.locals(
        room=cython.Py_ssize_t, size=cython.Py_ssize_t, start=cython.Py_ssize_t, end=cython.Py_ssize_t,
        pos=cython.Py_ssize_t, passed=cython.Py_ssize_t, sent=cython.Py_ssize_t, terms=passing.Terms, seen=Seen,
    )
    cpdef on_client(self, int events, object now)

    @cython.locals(
        buf=bytearray, size=cython.Py_ssize_t, start=cython.Py_ssize_t, end=cython.Py_ssize_t, pos=cython.Py_ssize_t,
        sent=cython.Py_ssize_t, unseen=cython.Py_ssize_t, terms=passing.Terms, oldest=in_flight.Owed,
    )
    cpdef on_upstream(self, int events, object now)

    @cython.locals(unseen=cython.Py_ssize_t, walker=stream.EndpointHider)
    cdef Py_ssize_t _unseen(self) except -1

    @cython.locals(
        most=cython.Py_ssize_t, size=cython.Py_ssize_t, sent=cython.Py_ssize_t, end=cython.Py_ssize_t,
        walker=stream.EndpointHider,
    )
    cdef _pass_unseen(self, Py_ssize_t unseen, object now)

    @cython.locals(size=cython.Py_ssize_t, sent=cython.Py_ssize_t)
    cdef _flush(self, object now)


@cython.locals(length=cython.longlong)
cdef bint _is_cut(object buf, Py_ssize_t pos, Py_ssize_t end) except -1
