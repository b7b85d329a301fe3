# What the names in shortcut.py are in C, where it is compiled (setup.py). `calls` and `passing` are in C as well then.

cimport cython

from gateway.data cimport calls
from gateway.data cimport passing_compiled as passing

cdef int _IN, _HEAD_ROOM, _LOCAL


@cython.final
cdef class Shortcut:
    cdef object _ledger, _rejected, _shared, _watch, _hold, _epoch, _read_at, _answered_at
    cdef bytearray _buf
    cdef int _client_fd, _upstream_fd
    cdef readonly object link
    cdef readonly tuple terms
    cdef public bint takes_requests

    cpdef shut(self)

    cdef tuple _find_terms(self, object now)

    cpdef handle(self, int fd, int events, object now)

    @cython.locals(
        buf=bytearray, room=cython.Py_ssize_t, size=cython.Py_ssize_t, start=cython.Py_ssize_t, end=cython.Py_ssize_t,
        pos=cython.Py_ssize_t, passed=cython.Py_ssize_t, sent=cython.Py_ssize_t, counts=dict, mask=cython.longlong,
        max_bytes=cython.longlong, most=cython.Py_ssize_t, charged=tuple, terms=tuple,
    )
    cpdef on_client(self, int events, object now)

    @cython.locals(
        buf=bytearray, size=cython.Py_ssize_t, start=cython.Py_ssize_t, end=cython.Py_ssize_t, pos=cython.Py_ssize_t,
        sent=cython.Py_ssize_t, counted=tuple, terms=tuple,
    )
    cpdef on_upstream(self, int events, object now)


@cython.locals(mask=cython.int, shortcut=Shortcut)
cpdef handle(list events, dict handlers, object now, object fail)
