# What the names in tls.py are in C, where it is compiled (setup.py). `calls` is in C as well then.

cimport cython

from gateway.data.sockets cimport calls

cdef Py_ssize_t _HEADER
cdef double _DATA_RECORD


cdef class Tls:
    cdef public object _object, _incoming, _outgoing, _explain, _sock, _error
    cdef object _scratch
    cdef bytes _header
    cdef Py_ssize_t _skip
    cdef bint _ended, _emptied
    cdef public double _beside
    cdef public bint ready, drained
    cdef public str fault

    @cython.locals(n=cython.Py_ssize_t, wanted=cython.Py_ssize_t, got=cython.Py_ssize_t, filled=cython.Py_ssize_t)
    cpdef Py_ssize_t recv_into(self, object view) except -1

    @cython.locals(data=bytearray, filled=cython.Py_ssize_t, at=cython.Py_ssize_t, to=cython.Py_ssize_t)
    cdef Py_ssize_t _feed(self, Py_ssize_t got, object view) except -1

    @cython.locals(
        follows=cython.bint, stop=cython.Py_ssize_t, whole=cython.Py_ssize_t, pos=cython.Py_ssize_t, records=cython.int
    )
    cdef Py_ssize_t _cut(self, bytearray data, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(size=cython.Py_ssize_t, filled=cython.Py_ssize_t, records=cython.int, n=cython.Py_ssize_t)
    cdef Py_ssize_t _decrypt(self, object view) except -1

    cdef bint _is_over(self) except -1

    cpdef list encrypt(self, list parts)
