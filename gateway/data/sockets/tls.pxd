# What the names in tls.py are in C, where it is compiled (setup.py). `calls` is in C as well then.

cimport cython

from gateway.data.sockets cimport calls

cdef Py_ssize_t _HEADER_BYTES
cdef double _DATA_RECORD_WEIGHT


cdef class TlsConnection:
    cdef public object _ssl_object, _incoming, _outgoing, _explain, _sock, _error
    cdef object _scratch
    cdef bytes _header
    cdef Py_ssize_t _record_rest
    cdef bint _ended, _is_socket_drained
    cdef public double _empty_records
    cdef public bint has_plaintext, is_drained
    cdef public str fault

    @cython.locals(n=cython.Py_ssize_t, wanted=cython.Py_ssize_t, got=cython.Py_ssize_t, filled=cython.Py_ssize_t)
    cpdef Py_ssize_t recv_into(self, object view) except -1

    @cython.locals(data=bytearray, filled=cython.Py_ssize_t, at=cython.Py_ssize_t, to=cython.Py_ssize_t)
    cdef Py_ssize_t _decrypt_received(self, Py_ssize_t got, object view) except -1

    @cython.locals(
        follows=cython.bint, stop=cython.Py_ssize_t, whole=cython.Py_ssize_t, pos=cython.Py_ssize_t, records=cython.int
    )
    cdef Py_ssize_t _split_records(self, bytearray data, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(size=cython.Py_ssize_t, filled=cython.Py_ssize_t, records=cython.int, n=cython.Py_ssize_t)
    cdef Py_ssize_t _decrypt_into(self, object view) except -1

    cdef bint _check_ended(self) except -1

    cpdef list encrypt(self, list parts)
