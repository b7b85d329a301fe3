# What the names in shortcut.py are in C, where it is compiled (setup.py). `calls`, `passing`, `layouts` and the ledger
# are in C as well then.

cimport cython

from gateway.data cimport calls
from gateway.data cimport in_flight_compiled as in_flight
from gateway.data cimport ledger_compiled as ledger
from gateway.data cimport passing_compiled as passing
from protocol cimport layouts

cdef int _IN, _OUT, _HEAD_ROOM, _LOCAL


@cython.final
cdef class Seen:
    cdef public object read_at, drained_at, answered_at
    cdef public bint is_drained
    cdef public Py_ssize_t unseen


@cython.final
cdef class Shortcut:
    cdef object _rejected, _shared, _inbound, _outbound
    cdef ledger.Ledger _ledger
    cdef long long _epoch
    cdef bytearray _buf
    cdef int _client_fd, _upstream_fd
    cdef readonly object link
    cdef readonly passing.Terms terms
    cdef readonly Seen seen
    cdef public bint takes_requests, looks_ahead
    cdef public Py_ssize_t unseen

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
        sent=cython.Py_ssize_t, terms=passing.Terms, oldest=in_flight.Owed,
    )
    cpdef on_upstream(self, int events, object now)

    @cython.locals(
        most=cython.Py_ssize_t, size=cython.Py_ssize_t, sent=cython.Py_ssize_t, end=cython.Py_ssize_t, seen=Seen,
    )
    cdef _pass_unseen(self, object now)

    @cython.locals(size=cython.Py_ssize_t, sent=cython.Py_ssize_t)
    cdef _flush(self, object now)


@cython.locals(length=cython.longlong)
cdef bint _is_cut(object buf, Py_ssize_t pos, Py_ssize_t end) except -1
