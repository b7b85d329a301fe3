# What the names in duplicates.py are in C, where it is compiled (setup.py).

cimport cython

cdef long long _NO_SEQUENCE, _SEQUENCE_MASK, _MAX_AHEAD
cdef Py_ssize_t _RECORD_SIZE, _LAST_PLACE, _MIN_RECORDS, _BATCH_NUMBERS


cdef class AcknowledgedBatches:
    cdef Py_ssize_t _generation, _count, _old_count
    cdef dict _young, _old
    cdef object _records, _old_records
    cdef long long[::1] _view

    @cython.locals(writer=tuple, indexes=dict, at=cython.Py_ssize_t)
    cpdef bint record_batch(
        self, long long pid, int epoch, bytes topic, long long index, long long seq, long long offset
    ) except -1

    @cython.locals(
        again=list, records="long long[::1]", topic=bytes, first=cython.Py_ssize_t, stop=cython.Py_ssize_t,
        last_pid=cython.longlong, last_epoch=cython.longlong, indexes=dict, place=cython.Py_ssize_t,
        index=cython.longlong, pid=cython.longlong, epoch=cython.longlong, seq=cython.longlong, at=cython.Py_ssize_t,
    )
    cpdef list record_batches(self, list topics, const long long[::1] parts, const long long[::1] offsets)

    @cython.locals(record=object, older=dict, indexes=dict, was=cython.Py_ssize_t, at=cython.Py_ssize_t)
    cdef Py_ssize_t _start_record(self, tuple writer, long long index) except -1


@cython.locals(latest=cython.longlong, place=cython.Py_ssize_t)
cdef bint _record_batch(long long[::1] records, Py_ssize_t at, long long seq, long long offset) except -1
