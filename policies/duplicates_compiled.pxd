# What the names in duplicates.py are in C, where it is compiled (setup.py).

cimport cython

cdef long long _NONE, _WRAP, _AHEAD
cdef Py_ssize_t _RECORD, _LAST, _FEWEST


cdef class Acknowledged:
    cdef Py_ssize_t _generation
    cdef dict _young, _old
    cdef object _records, _old_records

    @cython.locals(key=tuple, at=cython.Py_ssize_t)
    cpdef bint seen(self, long long pid, int epoch, bytes topic, long long index, long long seq, long long offset) except -1

    @cython.locals(
        again=list, young=dict, records="long long[::1]", called=bytes, topic=bytes, place=cython.Py_ssize_t, part=tuple,
        offset=cython.longlong, pid=cython.longlong, seq=cython.longlong, key=tuple, at=cython.Py_ssize_t,
    )
    cpdef list seen_of(self, list parts, list offsets, dict names)

    @cython.locals(was=cython.Py_ssize_t, at=cython.Py_ssize_t)
    cdef Py_ssize_t _begin(self, tuple key) except -1


@cython.locals(latest=cython.longlong, place=cython.Py_ssize_t)
cdef bint _seen(long long[::1] records, Py_ssize_t at, long long seq, long long offset) except -1
