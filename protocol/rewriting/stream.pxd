# What the names in stream.py are in C, where it is compiled (setup.py).

cimport cython

cdef int _SKIP, _STRING, _SIZED, _ARRAY, _COUNT, _TAG, _ENDPOINT_TAG, _TOPIC, _SIZE, _HIDE_ARRAY, _NEXT, _READ_TOPIC, _READ_RECORDS
cdef int _END, _INT16, _INT32


cdef class EndpointHider:
    cdef public tuple _program
    cdef list _stack
    cdef Py_ssize_t _step
    cdef int _shift
    cdef long long _value
    cdef public long long _due
    cdef readonly long long left, unread
    cdef readonly bint lost

    @cython.locals(size=cython.longlong)
    cpdef Py_ssize_t feed(self, object buf, Py_ssize_t start, Py_ssize_t end) except -1

    cpdef skip_unread(self, long long size)

    @cython.locals(
        data="const unsigned char[::1]", frame_end=cython.longlong, pos=cython.longlong, program=tuple,
        step=cython.Py_ssize_t, stack=list, value=cython.longlong, shift=cython.int, held=cython.longlong,
        followed=cython.bint, kind=cython.int,
        argument=cython.longlong, byte=cython.longlong, number=cython.longlong,
    )
    cdef Py_ssize_t _walk_bytes(self, object buf, Py_ssize_t start, Py_ssize_t end) except -1

    # Those that FetchMeter, which is Python, has its own of.

    cpdef _mark_lost(self)

    cpdef _announce_records(self, long long size)

    cpdef Py_ssize_t _read_topic(self, object buf, long long pos, Py_ssize_t end, long long size) except -1

    cpdef Py_ssize_t _measure_records(self, object buf, long long pos, Py_ssize_t end) except -1


cpdef EndpointHider pass_through_hider(long long size)
